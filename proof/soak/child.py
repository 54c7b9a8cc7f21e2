"""A process of the soak: its counts, its logs and its witnesses."""

import contextlib
import fcntl
import mmap
import os
import random
import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import holdfast
from holdfast.kernel.errors import Unavailable
from holdfast.runtime.connection import Holdfast
from proof.event_log import EventLog, events_in
from proof.parent import end_with_parent

RUN, DRAIN = 1, 2
CONNECT_S = 60.0
"""How long a database may be down: longer than any restart, and shorter than the end of a soak."""
_CELL = struct.Struct("<q")


NICENESS = os.getpriority(os.PRIO_PROCESS, 0)
"""The priority of the dozens: that of the soak."""


def settle() -> None:
    """In a new process: end with the parent, and have the priority of the dozens."""
    end_with_parent()
    os.setpriority(os.PRIO_PROCESS, 0, NICENESS)


def settle_first() -> None:
    """The same for a process that the dozens wait for, or that kills them: it must not wait for the
    processor behind all of them. Without the right to that it does.
    """
    settle()
    hurry()


def hurry() -> None:
    """Take a higher priority than the dozens, where that is allowed."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS - 10)


class Board:
    """Memory that all processes of a soak share: the phase, and a row of counts for each slot."""

    COUNTS = (
        "operations",
        "recoveries",
        "kills",
        "stops",
        "restarts",
        "fenced",
        "refused",
        "unsure",
    )
    """`kills`, `stops` and `restarts` count programs that a process has started itself."""

    def __init__(self, slots: int) -> None:
        self._memory = mmap.mmap(-1, (1 + slots * len(self.COUNTS)) * _CELL.size)
        self._slots = slots
        self.phase = RUN

    @property
    def phase(self) -> int:
        return int(_CELL.unpack_from(self._memory, 0)[0])

    @phase.setter
    def phase(self, phase: int) -> None:
        _CELL.pack_into(self._memory, 0, phase)

    def add(self, slot: int, what: str) -> None:
        """Add one. A slot has one process at a time."""
        at = self._at(slot, what)
        _CELL.pack_into(self._memory, at, _CELL.unpack_from(self._memory, at)[0] + 1)

    def total(self, what: str) -> int:
        return sum(
            _CELL.unpack_from(self._memory, self._at(slot, what))[0] for slot in range(self._slots)
        )

    def of(self, slot: int, what: str) -> int:
        return int(_CELL.unpack_from(self._memory, self._at(slot, what))[0])

    def _at(self, slot: int, what: str) -> int:
        return (1 + slot * len(self.COUNTS) + self.COUNTS.index(what)) * _CELL.size


class Child:
    """What a part works with."""

    def __init__(
        self,
        url: str,
        folder: Path,
        board: Board,
        slot: int,
        name: str,
        life: int,
        seed: int,
        plant: str = "",
    ) -> None:
        self.url = url
        self.folder = folder
        self.board = board
        self.slot = slot
        self.name = f"{name}-{life}"
        """A new name in each life: this process does not own what a dead one held."""
        self.part = name
        self.plant = plant
        """A fault for the commands that it starts."""
        self.draw = random.Random(f"{seed}/{name}/{life}")
        self._lives = life
        self._fresh = True

    def begin(self) -> None:
        """In the new process, before anything else."""
        settle()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        errors = os.open(self.folder / "stderr", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(errors, 2)
        os.close(errors)

    def connect(self) -> Holdfast:
        """A connection, as soon as there is a store. Raises Unavailable if there is none for long."""
        end_s = time.monotonic() + CONNECT_S
        while True:
            try:
                return holdfast.connect(self.url)
            except Unavailable:
                # The database is just being restarted.
                if time.monotonic() > end_s:
                    raise
                time.sleep(0.1)

    @property
    def draining(self) -> bool:
        """True when nothing new may be started."""
        return self.board.phase == DRAIN

    def did(self) -> None:
        """Count a finished operation."""
        self.board.add(self.slot, "operations")
        if self._fresh and self._lives:
            self.board.add(self.slot, "recoveries")
        self._fresh = False

    def count(self, what: str) -> None:
        self.board.add(self.slot, what)

    def pause(self, most_s: float) -> None:
        """Simulate work for a while."""
        time.sleep(self.draw.random() * most_s)

    def wrong(self, what: str) -> None:
        """Report a violation."""
        self.tell("violations", at=time.time(), by=self.name, what=what)

    def tell(self, log: str, **fields: object) -> None:
        """Append a line to a log that all processes share, in one write."""
        with contextlib.closing(EventLog(self.folder / log)) as file:
            file.write(fields)

    @contextlib.contextmanager
    def witness(
        self, what: str, *, shared: bool = False, token: int | None = None
    ) -> Iterator[bool]:
        """Hold something under the witness of the kernel, which releases it at the process's death;
        False if another process holds it. `token` must be greater than each earlier one.
        """
        path = self.folder / "witnesses" / what.replace("/", "_")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            if token is not None and not shared:
                before = os.pread(fd, _CELL.size, 0)
                if before and _CELL.unpack(before)[0] >= token:
                    self.wrong(
                        f"the tokens of {what} do not grow: {token} after {_CELL.unpack(before)[0]}"
                    )
                os.pwrite(fd, _CELL.pack(token), 0)
            yield True
        finally:
            os.close(fd)


def read_log(folder: Path, log: str) -> list[dict[str, object]]:
    """The lines of a log; a torn last one is left out."""
    path = folder / log
    return events_in(path) if path.exists() else []
