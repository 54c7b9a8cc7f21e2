"""What the library warns of, said as the command line says things, and once: a command often tells
the same, with advice.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable

_PATIENCE_S = 0.2
_SAID_MAX = 16


class Warnings(logging.Handler):
    """Warnings as remarks on standard error.

    Each waits for a moment, in which a command may tell of it in better words.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._say: Callable[[str], None] = lambda _: None
        self._waiting: list[str] = []
        self._warned: deque[str] = deque(maxlen=_SAID_MAX)
        self._told: deque[str] = deque(maxlen=_SAID_MAX)
        self._mutex = threading.Lock()

    def pass_on(self, say: Callable[[str], None]) -> None:
        """Say warnings of `holdfast.*` from here on.

        Without a handler Python would say them in a form of its own.
        """
        self._say = say
        logging.getLogger("holdfast").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        warning = record.getMessage()
        with self._mutex:
            if any(_same(warning, text) for text in self._told):
                return
            if any(warning in text for text in self._waiting):
                return
            self._waiting = [text for text in self._waiting if text not in warning]
            self._waiting.append(warning)
        timer = threading.Timer(_PATIENCE_S, self.flush)
        timer.daemon = True
        timer.start()

    def flush(self) -> None:
        """Say what waits."""
        with self._mutex:
            warnings, self._waiting = self._waiting, []
            self._warned.extend(warnings)
        for warning in warnings:
            self._say(warning)

    def tells(self, text: str) -> bool:
        """Does a remark tell something that was not said yet? What waits of the same is not said
        any more.
        """
        with self._mutex:
            self._waiting = [warning for warning in self._waiting if not _same(warning, text)]
            self._told.append(text)
            return not any(text in warning for warning in self._warned)


def _same(warning: str, text: str) -> bool:
    return warning in text or text in warning


WARNINGS = Warnings()
"""Those of this process."""
