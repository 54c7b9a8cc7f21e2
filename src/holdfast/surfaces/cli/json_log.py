"""Log lines as JSON, for servers whose logs are read by programs."""

import logging

from holdfast.kernel.codec import to_json


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
    """Log to stderr in this form from here on."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLine())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    # In this form alone.
    logging.getLogger("holdfast").handlers.clear()
