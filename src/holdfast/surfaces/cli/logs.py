"""What the library logs: its warnings as remarks of the command line, each once, since a command
often says the same with advice; and JSON lines for servers.
"""

import logging
import threading
from collections import deque

from holdfast.kernel.codec import to_json
from holdfast.surfaces.cli.output import say

_DELAY_S = 0.2
_KEPT_MAX = 16


class Warnings(logging.Handler):
    """Warnings as remarks on standard error. Each is held back for a moment, in which a command may
    report it in better words.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.waiting: list[str] = []
        self._warned: deque[str] = deque(maxlen=_KEPT_MAX)
        self._remarks: deque[str] = deque(maxlen=_KEPT_MAX)
        self._mutex = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        warning = record.getMessage()
        with self._mutex:
            if any(_same(warning, text) for text in self._remarks):
                return
            if any(warning in text for text in self.waiting):
                return
            self.waiting = [text for text in self.waiting if text not in warning]
            self.waiting.append(warning)
        timer = threading.Timer(_DELAY_S, self.flush)
        timer.daemon = True
        timer.start()

    def flush(self) -> None:
        """Say what waits."""
        with self._mutex:
            warnings, self.waiting = self.waiting, []
            self._warned.extend(warnings)
        for warning in warnings:
            say(warning)

    def is_new(self, text: str) -> bool:
        """Does a remark say something that was not said yet? Warnings that wait and say the same
        are dropped.
        """
        with self._mutex:
            self.waiting = [warning for warning in self.waiting if not _same(warning, text)]
            self._remarks.append(text)
            return not any(text in warning for warning in self._warned)


def _same(warning: str, text: str) -> bool:
    return warning in text or text in warning


WARNINGS = Warnings()
"""Those of this process."""


class JsonLine(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return to_json(line).decode()


def log_json_lines() -> None:
    """Log to stderr as JSON from here on."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLine())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    # Not as remarks too.
    logging.getLogger("holdfast").handlers.clear()


def listen() -> None:
    """Say the library's warnings as remarks from here on.

    The database driver's own stay off stderr: what matters of them comes as an error of ours.
    """
    logging.getLogger("psycopg").setLevel(logging.ERROR)
    # Without a handler Python would print warnings in a form of its own.
    logging.getLogger("holdfast").addHandler(WARNINGS)
