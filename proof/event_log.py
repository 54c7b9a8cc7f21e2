"""A log of events that a killed process leaves readable.

Each event is one line, written by one call to a file opened for appending. So a kill leaves whole
lines and at most one torn one, the last of that process.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class EventLog:
    """Appends events to a file. Safe for threads, and for several processes that append to one
    file.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, event: Mapping[str, Any]) -> None:
        """Append one event. Raises OSError when only part of it was written."""
        line = json.dumps(event).encode() + b"\n"
        written = os.write(self._fd, line)
        if written != len(line):
            raise OSError(f"wrote {written} of {len(line)} bytes of an event")

    def close(self) -> None:
        os.close(self._fd)


def events_in(path: Path, *, torn: bool = True) -> list[dict[str, Any]]:
    """The events of a log, without a torn last one. Raises AssertionError for a torn event if
    `torn` is False, that is, if the process was not killed.
    """
    *lines, rest = path.read_bytes().split(b"\n")
    assert torn or not rest, f"{path.name} ends in the middle of a line"
    return [json.loads(line) for line in lines]
