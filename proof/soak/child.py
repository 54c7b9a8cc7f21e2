"""A process of the soak: what it may know of the others, and how it tells what it sees."""

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
"""How long a database may be away: longer than any restart, and not as long as a soak runs dry."""
_CELL = struct.Struct("<q")


NICENESS = os.getpriority(os.PRIO_PROCESS, 0)
"""Of the dozens: as the soak was begun."""


def settle() -> None:
    """In a new process: end with the one that began it, and be no more urgent than dozens of
    others.
    """
    end_with_parent()
    os.setpriority(os.PRIO_PROCESS, 0, NICENESS)


def settle_first() -> None:
    """The same, for one that the dozens wait for, or that strikes them: it must not stand in line
    behind each of them to begin. Without the right to that it does.
    """
    settle()
    hurry()


def hurry() -> None:
    """Be more urgent than the dozens, where that is allowed."""
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
    """`kills`, `stops` and `restarts` are those of programs that a process has begun itself."""

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
        """One more. A slot has one process at a time."""
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
    """What a part is given to work with."""

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
        """Another in each life: what a dead one held is not this one's."""
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
        """A connection, as soon as there is a store to connect to. Raises Unavailable when there is
        none for long.
        """
        end_s = time.monotonic() + CONNECT_S
        while True:
            try:
                return holdfast.connect(self.url)
            except Unavailable:
                # A database that is just being restarted.
                if time.monotonic() > end_s:
                    raise
                time.sleep(0.1)

    @property
    def draining(self) -> bool:
        """Nothing new is to be begun."""
        return self.board.phase == DRAIN

    def did(self) -> None:
        """An operation came to an end."""
        self.board.add(self.slot, "operations")
        if self._fresh and self._lives:
            self.board.add(self.slot, "recoveries")
        self._fresh = False

    def count(self, what: str) -> None:
        self.board.add(self.slot, what)

    def pause(self, most_s: float) -> None:
        """Be busy for a while."""
        time.sleep(self.draw.random() * most_s)

    def wrong(self, what: str) -> None:
        """Tell of a violation."""
        self.tell("violations", at=time.time(), by=self.name, what=what)

    def tell(self, log: str, **fields: object) -> None:
        """Append a line to a log that all processes share, by one write."""
        with contextlib.closing(EventLog(self.folder / log)) as file:
            file.write(fields)

    @contextlib.contextmanager
    def witness(
        self, what: str, *, shared: bool = False, token: int | None = None
    ) -> Iterator[bool]:
        """Be seen to have something, by the kernel, which knows nothing of us and forgets the dead;
        False when it is another's.

        `token` must be greater than each that was shown here before.
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
