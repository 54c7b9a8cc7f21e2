"""`swap_log.jsonl`: the swap log as a file of JSON lines, for people and programs that read the folder.

A mirror of the journal. Its place in the journal is kept beside it, and the last line says how far it really came, so that
after a kill at any moment no line is missing or there twice.
"""

import os
from pathlib import Path
from typing import Any

import msgspec

from holdfast.adapters.durable_write import atomic_durable_write
from holdfast.adapters.flock import FlockGuard
from holdfast.domains.workflows.swap_log import SwapEvent, event_of
from holdfast.kernel import clock
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import HoldfastError
from holdfast.kernel.store import BEGINNING, Cursor
from holdfast.primitives.journal import Journal

_LAST_LINE_BYTES_MAX = 1 << 17


class SwapLogFile:
    """The mirror in one folder; `beside` is for its place in the journal and its latch."""

    def __init__(self, path: Path, beside: Path, journal: Journal) -> None:
        self._path = path
        self._place = beside / "swap_log.cursor"
        self._latch = beside / "swap_log.latch"
        self._journal = journal

    def catch_up(self) -> None:
        """Add what is not there yet. What cannot be written now is added by the next who tries."""
        try:
            self._place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with FlockGuard(self._latch):
                self._add()
        except (HoldfastError, OSError) as error:
            _warn(self._path, error)

    def _add(self) -> None:
        cursor, written = self._cursor(), self._last_revision()
        lines: list[bytes] = []
        reached = cursor
        for batch in self._journal.since(cursor):
            reached = batch.cursor
            events = [event for entry in batch.entries if (event := event_of(entry)) is not None]
            lines += [to_json(_line(event)) + b"\n" for event in events if event.revision > written]
        if lines:
            self._append(b"".join(lines))
        if reached != cursor:
            atomic_durable_write(self._place, reached)

    def _append(self, data: bytes) -> None:
        fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        with open(fd, "r+b", buffering=0) as file:
            os.ftruncate(fd, _whole_lines(file.fileno()))
            file.write(data)
            os.fsync(fd)

    def _cursor(self) -> Cursor:
        try:
            return self._place.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return BEGINNING

    def _last_revision(self) -> int:
        """The revision of the last whole line; 0 where there is none of ours."""
        try:
            with open(self._path, "rb") as file:
                file.seek(max(os.fstat(file.fileno()).st_size - _LAST_LINE_BYTES_MAX, 0))
                lines = file.read().split(b"\n")[:-1]
        except FileNotFoundError:
            return 0
        for line in reversed(lines):
            try:
                revision = msgspec.json.decode(line)["revision"]
            except (msgspec.DecodeError, KeyError, TypeError):
                # Another program's line.
                continue
            return revision if isinstance(revision, int) else 0
        return 0


def _whole_lines(fd: int) -> int:
    """How long the file is without a last line that was cut off as its writer died."""
    size = os.fstat(fd).st_size
    tail = os.pread(fd, _LAST_LINE_BYTES_MAX, max(size - _LAST_LINE_BYTES_MAX, 0))
    return size - (len(tail) - (tail.rfind(b"\n") + 1))


def _line(event: SwapEvent) -> dict[str, Any]:
    return {
        "at": clock.render(event.at),
        "event": event.event,
        "recipe": event.recipe,
        "who": event.who,
        "revision": event.revision,
        **{name: value for name, value in event.data.items() if name not in ("at", "event", "recipe", "revision")},
    }


def _warn(path: Path, error: Exception) -> None:
    import logging

    logging.getLogger("holdfast.workflows").warning("swap log not written path=%s: %s", path, error)
