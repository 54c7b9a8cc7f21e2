"""Rows that show how a cost grows with a size: filling stores in bulk, and timing single calls."""

import gc
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from bench.measure import Contender, Sample, Series

Operation = Callable[[], object]
"""One call that is timed."""

BLOCKS = 3
"""How many samples each operation gives at each size."""
_BLOCK_S = 0.08
_QUICK_BLOCK_S = 0.004
_CALLS_MAX = 2000


class Growth:
    """The samples of some operations at each size, in the order they were measured."""

    def __init__(self, *, quick: bool) -> None:
        self._block_s = _QUICK_BLOCK_S if quick else _BLOCK_S
        self.samples: dict[tuple[str, int], list[Sample]] = {}

    def measure(self, size: int, operations: dict[str, Operation]) -> None:
        """Time each operation for a few blocks. The first call warms up and is not counted. What
        the filling left to be written is written before.
        """
        os.sync()
        for name, operation in operations.items():
            operation()
            blocks = (list(self._block(operation)) for _ in range(BLOCKS))
            self.samples[name, size] = [_sample(took) for took in blocks]

    def note(self, size: int, name: str, took_s: Sequence[float]) -> None:
        """Keep what was timed elsewhere as one block."""
        self.samples.setdefault((name, size), []).append(_sample(took_s))

    def figure(self, size: int, name: str, value: float) -> None:
        """Keep a figure that is no time."""
        sample = Sample(rate=0.0, p50_s=0.0, worst_s=0.0, share=1.0, value=value)
        self.samples.setdefault((name, size), []).append(sample)

    def _block(self, operation: Operation) -> Iterator[float]:
        clock = time.perf_counter
        end, calls = clock() + self._block_s, 0
        gc.collect()
        before = clock()
        while calls == 0 or (before < end and calls < _CALLS_MAX):
            operation()
            after = clock()
            yield after - before
            before, calls = after, calls + 1


def series_of(samples: dict[tuple[str, int], list[Sample]], only: Iterable[str]) -> list[Series]:
    """The lines of a picture: for each of these operations its samples at each size."""
    return [
        Series(Contender(name, "", _nothing, size=size), tuple(found))
        for wanted in only
        for (name, size), found in samples.items()
        if name == wanted
    ]


@contextmanager
def filling(path: Path) -> Iterator[sqlite3.Connection]:
    """The file of a store that nobody has open, to be filled at once: no log, no syncs. A benchmark
    may do so, as its store is thrown away.
    """
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        raw.execute("PRAGMA journal_mode = DELETE")
        raw.execute("PRAGMA locking_mode = EXCLUSIVE")
        raw.execute("PRAGMA journal_mode = OFF")
        raw.execute("PRAGMA synchronous = OFF")
        raw.execute("PRAGMA cache_size = -200000")
        raw.execute("BEGIN")
        yield raw
        raw.execute("COMMIT")
        raw.execute("PRAGMA locking_mode = NORMAL")
        raw.execute("PRAGMA journal_mode = WAL")


def p50_s(sample: Sample) -> float:
    """The time of a call: the median of a block, as a checkpoint may make one call slow."""
    return sample.p50_s


def fitting(folder: Path, sizes: Sequence[int], bytes_each: int) -> tuple[list[int], str]:
    """Those of the sizes for which the disk has room, half as much again; and a note on the others."""
    free = shutil.disk_usage(folder).free
    fit = [size for size in sizes if size * bytes_each * 3 // 2 < free]
    left = [f"{size:,}" for size in sizes if size not in fit]
    note = f"Not measured, as the disk has too little room: {', '.join(left)}." if left else ""
    return fit, note


def _sample(took: Sequence[float]) -> Sample:
    ordered = sorted(took)
    return Sample(
        rate=len(took) / sum(took),
        p50_s=ordered[len(ordered) // 2],
        worst_s=ordered[-1],
        share=1.0,
    )


def _nothing(_: Path) -> Sample:
    raise RuntimeError("a row of kind scale is measured as a whole")
