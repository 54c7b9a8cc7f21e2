"""Rounds of work by processes that start together, and their results.

A round ends with a Sample. Contenders take turns, round by round, so that other load of the machine
affects all of them. A ratio is taken in each round, and the median of the rounds counts. A row whose
judged ratio spreads widely gets more rounds.
"""

import math
import multiprocessing
import os
import shutil
import signal
import statistics
import tempfile
import threading
import time
import traceback
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

T = TypeVar("T")

ROUNDS = 3
MOST_ROUNDS = 5
WIDE = 0.2
"""A judged ratio whose rounds differ by more than this part of their median gets more rounds."""
EXTRA_S = 60.0
"""How long all of these rounds of a run may take: on a busy machine most ratios spread widely."""

_START_TIMEOUT_S = 60.0
_ROUND_TIMEOUT_S = 240.0
_QUICK_S = 0.2


class Actor(Protocol):
    """One worker's side of a contender, connected and ready to repeat its work."""

    def __call__(self) -> bool:
        """Do it once. False when the peer gave up (its own time limit passed)."""
        ...

    def close(self) -> None:
        """Disconnect."""
        ...


Cast = Callable[[Path, int], Actor]
"""Makes the actor of a worker with a number, on a prepared folder. It is a name of a module, so
that a process can receive it.
"""


@dataclass(frozen=True)
class Sample:
    """The result of one round."""

    rate: float
    """Pieces of work a second, all workers together."""
    p50_s: float
    worst_s: float
    share: float
    """What the worker with the least work got, divided by what the one with the most got."""
    gave_up: int = 0
    handed_s: float = math.nan
    """Where workers take turns: the median time from the end of one turn to the start of another
    worker's.
    """
    handed_worst_s: float = math.nan
    value: float = math.nan
    """Where neither a rate nor a time is measured: the figure itself, such as memory in MB."""


class Spread(NamedTuple):
    """A median with the least and the most of the rounds."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Contender:
    """A contender: a name, what its result survives, and a way to run one round in a folder of its
    own.
    """

    name: str
    durability: str
    run: Callable[[Path], Sample]
    limit: bool = False
    """A limit of the machine, not a peer."""
    size: int | None = None
    """In a row of kind `scale`: the size that this one measures. Contenders of the same name and
    different sizes are one line of its picture.
    """


@dataclass(frozen=True)
class Series:
    """A contender and its rounds."""

    contender: Contender
    samples: tuple[Sample, ...]

    def spread(self, of: Callable[[Sample], float]) -> Spread:
        """The median, least and most of one figure."""
        return spread(of(sample) for sample in self.samples)

    def worst_s(self) -> float:
        """The longest time of one piece of work in any round."""
        return max(sample.worst_s for sample in self.samples)

    def gave_up(self) -> int:
        """How often it gave up, in all rounds."""
        return sum(sample.gave_up for sample in self.samples)


class Log:
    """How long each piece of one worker's work took."""

    def __init__(self) -> None:
        self.took = array("d")
        self.handed = array("d")
        self.done = 0
        """Without work that ended after the round, which counts as a wait and not as work done."""
        self.gave_up = 0

    def work(self, actor: Actor, begin: float, end: float) -> None:
        """Work until the end of the round, and keep what ended after its start. Work at least once,
        even if a busy machine starts it after the end.
        """
        clock = time.perf_counter
        before = clock()
        while before < end or not self.took:
            done = actor()
            after = clock()
            if after >= begin:
                self.took.append(after - before)
                self.done += done and after <= end
                self.gave_up += not done
            before = after


@dataclass(frozen=True)
class Failure:
    """A row that could not be measured, and the error."""

    row: str
    error: str


class Lab:
    """The folder and the sizes of a run, and the rows that failed in it."""

    def __init__(
        self, root: Path, *, rounds: int, most_rounds: int | None = None, quick: bool
    ) -> None:
        self._root = root
        self.rounds = rounds
        self.most_rounds = most_rounds or rounds
        """The rounds of a row whose judged ratio spreads widely."""
        self.quick = quick
        self._extra_s = EXTRA_S
        self.failures: list[Failure] = []

    def rows(self, made: Mapping[str, Callable[[], T]]) -> list[T]:
        """What these make, by title. One that raises is kept as a failure, and the others go on."""
        out = []
        for title, make in made.items():
            before = time.monotonic()
            try:
                out.append(make())
            except Exception as error:  # noqa: BLE001 - whatever it is, the other rows go on
                traceback.print_exc()
                self.failures.append(Failure(title, f"{type(error).__name__}: {error}"))
            print(f"  {title}: {time.monotonic() - before:.1f} s", flush=True)
        return out

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """A new folder for one round. What the last round left to be written is written first."""
        folder = Path(tempfile.mkdtemp(dir=self._root))
        try:
            yield folder
        finally:
            shutil.rmtree(folder)
            os.sync()

    def race(
        self,
        *,
        prepare: Callable[[Path], None],
        cast: Cast,
        seconds: float,
        warm_up_s: float = 0.2,
        processes: int = 1,
        threads: int = 1,
        log: Callable[[], Log] = Log,
    ) -> Callable[[Path], Sample]:
        """A round of work by a number of workers, ready to run in a folder."""
        seconds = min(seconds, _QUICK_S) if self.quick else seconds
        work = partial(
            _work, cast=cast, log=log, threads=threads, warm_up_s=warm_up_s, seconds=seconds
        )
        return partial(_race, prepare=prepare, work=work, processes=processes, seconds=seconds)

    def interleave(
        self,
        contenders: Sequence[Contender],
        *,
        rounds: int | None = None,
        shared: Path | None = None,
        judged: Callable[[list[Series]], Iterable[Spread]] | None = None,
    ) -> list[Series]:
        """Let the contenders take turns for a number of rounds, each in a new folder unless they
        share one. While a figure that `judged` finds in the rounds so far spreads widely, there are
        more rounds, up to `most_rounds`, until all of these have taken `EXTRA_S`.
        """
        fixed = rounds or self.rounds
        most = self.most_rounds if judged and not rounds else fixed
        taken: list[list[Sample]] = [[] for _ in contenders]
        while True:
            before = time.monotonic()
            for contender, samples in zip(contenders, taken, strict=True):
                with nullcontext(shared) if shared else self.folder() as folder:
                    samples.append(contender.run(folder))
            series = [
                Series(contender, tuple(samples))
                for contender, samples in zip(contenders, taken, strict=True)
            ]
            done = len(taken[0]) if taken else most
            if done > fixed:
                self._extra_s -= time.monotonic() - before
            if done >= most:
                return series
            if done >= fixed and judged:
                enough = not any(map(wide, judged(series)))
                if enough or self._extra_s <= 0:
                    return series


def wide(figure: Spread) -> bool:
    """Whether the rounds of a figure differ too much to be judged by few of them."""
    return figure.high - figure.low > WIDE * abs(figure.median)


def spread(figures: Iterator[float]) -> Spread:
    """The median, least and most of some figures."""
    found = list(figures)
    return Spread(statistics.median(found), min(found), max(found))


def ratio(ours: Series, theirs: Series, of: Callable[[Sample], float]) -> Spread:
    """Ours divided by theirs, round by round. Infinite if theirs is zero, as on a busy machine."""
    return spread(
        of(a) / of(b) if of(b) else math.inf
        for a, b in zip(ours.samples, theirs.samples, strict=True)
    )


def took_s(sample: Sample) -> float:
    """The time of a piece of work where one follows the other; infinite if none was done in time."""
    return 1 / sample.rate if sample.rate else math.inf


def find(series: Sequence[Series], name: str, size: int | None = None) -> Series | None:
    """The contender with that name (and size), unless it could not take part."""
    return next(
        (
            one
            for one in series
            if one.contender.name == name and size in (None, one.contender.size)
        ),
        None,
    )


def sizes(series: Sequence[Series], name: str | None = None) -> list[int]:
    """The sizes that were measured, ascending: all of them, or those of one contender."""
    return sorted(
        {
            one.contender.size
            for one in series
            if one.contender.size is not None and name in (None, one.contender.name)
        }
    )


def growth(
    series: Sequence[Series], name: str, since: int, of: Callable[[Sample], float] = took_s
) -> Spread:
    """What one contender costs at its largest size, divided by what it costs at the size `since`:
    1 is flat. `of` is the cost of a sample: a time or a value that should stay low, not a rate.
    """
    largest = find(series, name, sizes(series, name)[-1])
    base = find(series, name, since)
    if largest is None or base is None:
        raise ValueError(f"{name} was not measured at {since:,}")
    return ratio(largest, base, of)


def alone(body: Callable[..., T], *args: object) -> T:
    """Run this in a new interpreter and return its result. The interpreter loads only what one
    contender needs: a library may install hooks that slow down all code in it. Work that needs many
    processes forks them there, which is a hundred times faster than starting them.
    """
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_tell, args=(send, body, *args))
    process.start()
    send.close()
    try:
        if not receive.poll(_ROUND_TIMEOUT_S):
            raise RuntimeError(f"a round took longer than {_ROUND_TIMEOUT_S:g} s")
        reported: T = receive.recv()
    except EOFError:
        raise RuntimeError("a round came to nothing: what a process said of it is above") from None
    except BaseException:
        # It leads a process group, with all that it forked.
        with suppress(ProcessLookupError):
            assert process.pid is not None
            os.killpg(process.pid, signal.SIGKILL)
        raise
    finally:
        process.join()
    return reported


def _tell(send: Connection, body: Callable[..., object], *args: object) -> None:
    os.setpgid(0, 0)
    send.send(body(*args))


def _race(
    folder: Path,
    *,
    prepare: Callable[[Path], None],
    work: Callable[..., None],
    processes: int,
    seconds: float,
) -> Sample:
    """One round: workers connect, start together, warm up, and work for a while. Work after the
    warm-up counts.
    """
    return _summary(alone(_crew, folder, prepare, work, processes), seconds)


def _crew(
    folder: Path, prepare: Callable[[Path], None], work: Callable[..., None], processes: int
) -> list[Log]:
    prepare(folder)
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(processes)
    pipes = [context.Pipe(duplex=False) for _ in range(processes)]
    # They end with this process, if one of them fails and leaves the others waiting.
    workers = [
        context.Process(target=work, args=(folder, number, barrier, pipe), daemon=True)
        for number, (_, pipe) in enumerate(pipes)
    ]
    for worker in workers:
        worker.start()
    logs: list[Log] = []
    pending = {receive: worker for worker, (receive, _) in zip(workers, pipes, strict=True)}
    while pending:
        # The pipes do not show a death: every worker that was forked has their other ends open.
        wait([*pending, *(worker.sentinel for worker in pending.values())])
        for receive, worker in list(pending.items()):
            alive = worker.is_alive()
            if receive.poll():
                logs += receive.recv()
                del pending[receive]
            elif not alive:
                raise RuntimeError("a worker ended without a word")
    for worker in workers:
        worker.join()
    return logs


def _summary(logs: Sequence[Log], seconds: float) -> Sample:
    """A round's logs as one sample."""
    took = sorted(took for log in logs for took in log.took)
    handed = sorted(handed for log in logs for handed in log.handed)
    done = [log.done for log in logs]
    return Sample(
        rate=sum(done) / seconds,
        p50_s=took[len(took) // 2],
        worst_s=took[-1],
        share=min(done) / max(done) if max(done) else 0.0,
        gave_up=sum(log.gave_up for log in logs),
        handed_s=handed[len(handed) // 2] if handed else math.nan,
        handed_worst_s=handed[-1] if handed else math.nan,
    )


def _work(
    folder: Path,
    number: int,
    barrier: Barrier,
    send: Connection,
    *,
    cast: Cast,
    log: Callable[[], Log],
    threads: int,
    warm_up_s: float,
    seconds: float,
) -> None:
    try:
        actor = cast(folder, number)
    except BaseException:
        # The others need not wait for a worker that will not come.
        barrier.abort()
        raise
    barrier.wait(_START_TIMEOUT_S)
    begin = time.perf_counter() + warm_up_s
    logs = [log() for _ in range(threads)]
    helpers = [
        threading.Thread(target=log.work, args=(actor, begin, begin + seconds)) for log in logs[1:]
    ]
    for helper in helpers:
        helper.start()
    logs[0].work(actor, begin, begin + seconds)
    for helper in helpers:
        helper.join()
    send.send(logs)
    actor.close()
