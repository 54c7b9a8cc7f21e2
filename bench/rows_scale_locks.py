"""How the cost of a lock grows with the locks that are held, and with the waiters of one lock."""

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import holdfast
from bench.measure import Lab, Sample, alone
from bench.report import Row, Scale, growth_verdict
from bench.scale import Growth, p50_s, series_of
from holdfast.operations.page.locks import lock_page
from holdfast.primitives.locks.records import LOCK_WAITS, LOCKS, Waiter

NAME = "scale-locks"

_HELD = (1, 100, 1000, 10_000)
_QUICK_HELD = (1, 10, 100)
_WAITERS = (1, 10, 100, 1000)
_QUICK_WAITERS = (1, 10, 20)
_HAND_OVERS = 60
_QUICK_HAND_OVERS = 3
_PAGE = 50

_CALLS_HELD = (
    "Holdfast, acquire and release another",
    "Holdfast, renew one by its token",
    "Holdfast, status of one",
    "Holdfast, explain one",
    "Holdfast, the page's list",
    "Holdfast, status of all",
)
_CALLS_WAITED = (
    "Holdfast, join and leave the queue",
    "Holdfast, hand over to the next",
    "Holdfast, explain",
    "Holdfast, connect and listen",
)
_UNEXPLAINED = (
    "Calls, statements and written pages of a hand-over are as many among 1,000 waiters as among "
    "10. Where the time goes is not known yet."
)
_OF_HELD = Scale("held locks", "milliseconds, less is better", lambda sample: sample.p50_s * 1000)
_OF_WAITERS = Scale("waiters", "milliseconds, less is better", lambda sample: sample.p50_s * 1000)
_WAITED = "gpu-0"


def measure(lab: Lab) -> list[Row]:
    held = _QUICK_HELD if lab.quick else _HELD
    waiters = _QUICK_WAITERS if lab.quick else _WAITERS
    with lab.folder() as folder:
        samples = alone(_measure_held, folder, held, lab.quick)
    with lab.folder() as folder:
        waited = alone(_measure_waited, folder, waiters, lab.quick)
    return [_row_held(samples, held), _row_waited(waited, waiters)]


def _row_held(samples: dict[tuple[str, int], list[Sample]], sizes: Sequence[int]) -> Row:
    series = series_of(samples, _CALLS_HELD)
    return Row(
        name="scale-locks-held",
        title="Locks: cost of a call as more locks are held",
        says="One process holds the locks and another makes the calls, on SQLite. The status of "
        "all reads all of them, so it grows with their number. The page's list says how "
        "many there are, and SQLite counts rows by reading them.",
        series=series,
        verdicts=[
            growth_verdict(
                _OF_HELD,
                series,
                name,
                since=sizes[-2],
                at_most={_CALLS_HELD[-1]: None, _CALLS_HELD[-2]: 5}.get(name, 2),
                of=p50_s,
            )
            for name in _CALLS_HELD
        ],
        kind="scale",
        scale=_OF_HELD,
        logarithmic=True,
    )


def _row_waited(samples: dict[tuple[str, int], list[Sample]], sizes: Sequence[int]) -> Row:
    series = series_of(samples, _CALLS_WAITED)
    return Row(
        name="scale-locks-waited",
        title="Locks: cost of a call as more requests wait for one lock",
        says="The waiters are rows of one process, which is asleep, so only the work on the queue "
        "is measured. To join and leave is one request that is stopped at once; a hand-over is a "
        "release that grants the lock to the first waiter. `explain` lists all waiters. To connect "
        "and listen is what a new process does before it waits.",
        series=series,
        verdicts=[
            growth_verdict(
                _OF_WAITERS,
                series,
                name,
                since=sizes[1],
                at_most=None if name == "Holdfast, explain" else 2,
                of=p50_s,
                missed=_UNEXPLAINED,
            )
            for name in _CALLS_WAITED
        ],
        kind="scale",
        scale=_OF_WAITERS,
        logarithmic=True,
    )


def _measure_held(
    folder: Path, sizes: tuple[int, ...], quick: bool
) -> dict[tuple[str, int], list[Sample]]:
    growth = Growth(quick=quick)
    wanted, taken = os.pipe(), os.pipe()
    if (holder := os.fork()) == 0:
        with suppress(BaseException):
            _hold(folder, wanted[0], taken[1], parents=(wanted[1], taken[0]))
        os._exit(0)
    with _connected(folder) as hf:
        for size in sizes:
            os.write(wanted[1], size.to_bytes(4))
            os.read(taken[0], 1)
            growth.measure(size, _calls_held(hf, size))
    os.close(wanted[1])
    os.waitpid(holder, 0)
    return growth.samples


def _hold(folder: Path, wanted: int, taken: int, parents: Sequence[int]) -> None:
    """Hold as many locks as are wanted, until nobody wants any more."""
    for fd in parents:
        os.close(fd)
    with _connected(folder) as hf:
        have = 0
        while word := os.read(wanted, 4):
            for number in range(have, int.from_bytes(word)):
                hf.locks.acquire(_name(number), by=f"job-{number}")
            have = int.from_bytes(word)
            os.write(taken, b"!")


def _calls_held(hf: holdfast.Holdfast, size: int) -> dict[str, Any]:
    name, own = _name(size // 2), hf.locks.acquire("own", by="bench", ttl_s=3600)
    hf.locks.release(hf.locks.acquire("another", by="bench"))

    def pair() -> None:
        hf.locks.release(hf.locks.acquire("another", by="bench"))

    calls = (
        pair,
        lambda: hf.locks.renew_token(own.token),
        lambda: hf.locks.status(name),
        lambda: hf.locks.explain(name),
        lambda: lock_page(hf.locks, limit=_PAGE),
        hf.locks.list_held,
    )
    return dict(zip(_CALLS_HELD, calls, strict=True))


def _measure_waited(
    folder: Path, sizes: tuple[int, ...], quick: bool
) -> dict[tuple[str, int], list[Sample]]:
    growth = Growth(quick=quick)
    stop_fd = os.eventfd(1)
    with _connected(folder) as hf:
        queue = _Queue(hf)
        for size in sizes:
            queue.grow(size)
            for _ in range(3):
                took = [
                    queue.hand_over() for _ in range(_QUICK_HAND_OVERS if quick else _HAND_OVERS)
                ]
                growth.note(size, _CALLS_WAITED[1], took)

            def join_and_leave() -> None:
                hf.locks.try_acquire(_WAITED, by="bench", timeout_s=None, stop_fd=stop_fd)

            def connect_and_listen() -> None:
                with _connected(folder) as new, new.store.listen():
                    pass

            join, _, explain, listen = _CALLS_WAITED
            growth.measure(
                size,
                {
                    join: join_and_leave,
                    explain: lambda: hf.locks.explain(_WAITED),
                    listen: connect_and_listen,
                },
            )
    return growth.samples


class _Queue:
    """A lock that is held, and rows of waiters that are copies of one that Holdfast wrote."""

    def __init__(self, hf: holdfast.Holdfast) -> None:
        self._hf = hf
        self._numbers = count(1)
        self._size = 0
        self._listening: list[object] = []
        hf.locks.acquire(_WAITED, by="holder", ttl_s=3600)
        stop_fd, seen = os.eventfd(0), threading.Event()
        waiter = threading.Thread(
            target=hf.locks.try_acquire,
            args=(_WAITED,),
            kwargs={
                "by": "waiter",
                "timeout_s": None,
                "stop_fd": stop_fd,
                "on_wait": lambda _: seen.set(),
            },
        )
        waiter.start()
        seen.wait()
        [row] = hf.store.read(lambda tx: tx.find(LOCK_WAITS, "queue"), scope=[LOCK_WAITS])
        self._model = row.record
        self.grow(1)
        os.eventfd_write(stop_fd, 1)
        waiter.join()
        os.close(stop_fd)

    def grow(self, size: int) -> None:
        """Let that many wait."""
        added = [self._copy() for _ in range(size - self._size)]
        while len(self._listening) < size:
            self._listening.append(self._hf.store.listen())

        def put(tx: Any) -> None:
            for waiter in added:
                tx.put(LOCK_WAITS, waiter.key, waiter)

        self._hf.store.transact(put, scope=[LOCKS, LOCK_WAITS])
        self._size = size

    def hand_over(self) -> float:
        """Release the lock, so that the first waiter has it; return how long that took."""
        self.grow(self._size + 1)
        [hold] = self._hf.locks.status(_WAITED).holds
        before = time.perf_counter()
        assert self._hf.locks.release_token(hold.token)
        self._size -= 1
        return time.perf_counter() - before

    def _copy(self) -> Waiter:
        number = next(self._numbers)
        return replace(
            self._model,
            id=f"waiter-{number}",
            by=f"waiter-{number}",
            rank=self._model.rank + number,
            arrival=self._model.arrival + number,
            # A hand-over after a wait of over a second is journalled.
            arrived_at=self._hf.store.now(),
        )


def _connected(folder: Path) -> holdfast.Holdfast:
    return holdfast.connect(f"sqlite:{folder}/store.sqlite")


def _name(number: int) -> str:
    return f"router-{number:05}"
