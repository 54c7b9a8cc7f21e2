"""Processes that take turns at locks: how long each waits, and how long a lock is idle between two
of them.
"""

import random
import time
from array import array
from collections.abc import Iterator, Sequence
from itertools import cycle, repeat
from mmap import mmap
from pathlib import Path
from typing import Any

from bench import locking
from bench.locking import Opens
from bench.measure import Actor, Log

ONE: tuple[str, ...] = ("lock",)
FIFTY = tuple(f"lock-{number:02d}" for number in range(50))

_SLOT = "slot"
_SLOT_BYTES = 4096
_BY, _RELEASED_AT = 0, 1
_SETS = 500
_GLANCE_S = 0.001


def prepare(folder: Path, *, opens: Opens, names: Sequence[str]) -> None:
    """Locks that were used before, and the memory in which each holder leaves word for the next."""
    locking.prepare(folder, opens=opens, names=names)
    (folder / _SLOT).write_bytes(bytes(_SLOT_BYTES))


class OneLock:
    """One lock for all, with as little work as possible while it is held."""

    holds_s: Iterator[float] = repeat(0.0)
    polite = False
    """Whether it lets another process have the lock before it asks again."""

    def __init__(self, folder: Path, number: int, *, opens: Opens) -> None:
        self.peer = opens(folder, number, ONE)
        self.sets = cycle([ONE])
        self.me = float(number + 1)
        with (folder / _SLOT).open("r+b") as file:
            self.slot: Any = memoryview(mmap(file.fileno(), _SLOT_BYTES)).cast("d")

    def __call__(self) -> bool:
        raise NotImplementedError("a turn is timed in parts, by its own log")

    def close(self) -> None:
        self.peer.close()


class ByTurns(OneLock):
    """One lock, held for a while, then left to a waiter."""

    polite = True

    def __init__(self, folder: Path, number: int, *, opens: Opens) -> None:
        super().__init__(folder, number, opens=opens)
        chosen = random.Random(number)
        self.holds_s = iter(lambda: chosen.uniform(0.01, 0.06), None)


class FiveOfFifty(OneLock):
    """Five locks at a time, any of fifty, for 20 ms."""

    holds_s = repeat(0.02)

    def __init__(self, folder: Path, number: int, *, opens: Opens) -> None:
        self.peer = opens(folder, number, FIFTY)
        chosen = random.Random(number)
        self.sets = cycle([tuple(sorted(chosen.sample(FIFTY, 5))) for _ in range(_SETS)])
        self.me = float(number + 1)
        # Several hold at the same time, so there is no last holder to note.
        self.slot = array("d", [0.0, 0.0])


class TurnLog(Log):
    """Waits from asking to having it, and hand-overs: from a release to the entry of another
    process.

    perf_counter is the same clock in every process here (CLOCK_MONOTONIC).
    """

    def work(self, actor: Actor, begin: float, end: float) -> None:
        """Take turns until the end of the round."""
        assert isinstance(actor, OneLock)
        clock, slot, me, peer = time.perf_counter, actor.slot, actor.me, actor.peer
        asked = clock()
        while asked < end:
            names = next(actor.sets)
            peer.acquire(names)
            entered = clock()
            before = slot[_BY]
            slot[_BY] = me
            if entered >= begin:
                self.took.append(entered - asked)
                self.done += entered <= end
                if before not in (0.0, me):
                    self.handed.append(entered - slot[_RELEASED_AT])
            if hold_s := next(actor.holds_s):
                time.sleep(hold_s)
            if slot[_BY] != me:
                raise AssertionError("two processes held one lock")
            slot[_RELEASED_AT] = clock()
            peer.release(names)
            asked = clock()
            while actor.polite and slot[_BY] == me and asked < end:
                time.sleep(_GLANCE_S)
                asked = clock()
