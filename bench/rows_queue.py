"""Queues: durable jobs from end to end, and claims from a growing queue."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import holdfast
from bench import queueing, servers, work
from bench.measure import Contender, Lab, Sample, Series, Spread, find, ratio
from bench.queueing import (
    HOLDFAST,
    HOLDFAST_APART,
    HOLDFAST_POSTGRES,
    PROCRASTINATE,
    SKIP_LOCKED,
    Kind,
)
from bench.report import EQUAL, LESS, Row, Scale, Verdict, growth_verdict
from bench.work import FULL, SESSION

NAME = "queue"
PENDING = (1_000, 100_000, 1_000_000)
QUICK_PENDING = (200, 1_000, 2_000)
_WIDEST = 8
"""The workers of the row that is judged against peers of equal promise."""


@dataclass(frozen=True)
class _Crew:
    """Some workers, how long they work, and who is left out."""

    workers: int
    seconds: float
    warm_up_s: float
    without: tuple[str, ...] = ()
    rounds: int | None = None
    """None: more where a judged ratio spreads widely."""


_CREWS = (
    _Crew(1, seconds=0.8, warm_up_s=0.3, rounds=2),
    _Crew(4, seconds=0.8, warm_up_s=0.3, without=(HOLDFAST_APART, "litequeue, FULL"), rounds=2),
    _Crew(_WIDEST, seconds=1.5, warm_up_s=0.5, without=(HOLDFAST_APART,)),
)


def measure(lab: Lab) -> list[Row]:
    with ExitStack() as stack:
        running = {
            "redis": stack.enter_context(servers.redis(durable=True)),
            "postgres": stack.enter_context(servers.postgres()),
        }
        through = lab.rows(
            {
                f"Durable job from end to end, {crew.workers}": partial(
                    _through, lab, running, crew
                )
                for crew in _CREWS
            }
        )
    return [*through, *lab.rows({"Claim from a growing queue": partial(_claims, lab)})]


def _through(lab: Lab, running: Mapping[str, str | None], crew: _Crew) -> Row:
    workers = crew.workers
    kinds, absent = queueing.take_part(running)
    able = [
        kind for kind in kinds if kind.name not in crew.without and (workers == 1 or not kind.alone)
    ]

    def judged(series: Sequence[Series]) -> list[Spread]:
        return [verdict.figure for verdict in _fair(series, workers)]

    series = lab.interleave(
        [
            Contender(
                kind.name,
                FULL,
                lab.race(
                    prepare=partial(queueing.prepare, opens=kind.opens),
                    cast=kind.opens,
                    processes=workers,
                    seconds=crew.seconds,
                    warm_up_s=crew.warm_up_s,
                ),
            )
            for kind in able
        ],
        rounds=crew.rounds and min(crew.rounds, lab.rounds),
        judged=judged,
    )
    lacks = "; ".join(f"{kind.name}: {kind.lacks}" for kind in kinds if kind.lacks)
    return Row(
        name=f"queue-{workers}",
        title="Durable job from end to end",
        variant="1 worker" if workers == 1 else f"{workers} workers",
        size=workers,
        says="Store a job, take the next, complete it: some workers at once, each a "
        f"process, with {queueing.AHEAD} jobs in the queue at the start. Each of the three steps "
        "survives a power loss "
        "once it is acknowledged. Holdfast completes one job and claims the next in one "
        "transaction, and keeps a journal, a token and the worker's process with each "
        f"job. What others lack: {lacks}.",
        series=series,
        verdicts=[*_fair(series, workers), *_first(series, able)],
        absent=absent,
    )


def _fair(series: Sequence[Series], workers: int) -> list[Verdict]:
    """Holdfast against queues that are as durable and acknowledge, each on its own store."""
    found = []
    for name, other, least, missed in (
        (HOLDFAST, SKIP_LOCKED, 1.0, _KEPT),
        (HOLDFAST_POSTGRES, PROCRASTINATE, 1.2, _KEPT_POSTGRES),
    ):
        if (ours := find(series, name)) and (theirs := find(series, other)):
            rate = ratio(ours, theirs, lambda sample: sample.rate)
            judged = workers == _WIDEST
            found.append(
                Verdict(
                    f"throughput, {name} to {other}",
                    f"at least {least:g}" if judged else "",
                    rate,
                    rate.median >= least if judged else None,
                    missed,
                    against=EQUAL,
                )
            )
    return found


def _first(series: Sequence[Series], kinds: Sequence[Kind]) -> list[Verdict]:
    """Holdfast against the fastest of all, whatever it lacks."""
    ours = find(series, HOLDFAST)
    names = queueing.peers(kinds)
    theirs = [one for one in series if one.contender.name in names]
    if ours is None or not theirs:
        return []
    fastest = max(theirs, key=lambda one: one.spread(lambda sample: sample.rate).median)
    rate = ratio(ours, fastest, lambda sample: sample.rate)
    return [
        Verdict(
            "throughput, Holdfast, sqlite to the fastest",
            "over 1",
            rate,
            rate.median > 1,
            _FASTEST,
            against=LESS,
            variant=f"({fastest.contender.name})",
        )
    ]


_KEPT = (
    "A job is two durable transactions, for its record, queue position, token and journal. Most of "
    "the time beside the syncs is Python code and SQLite statements that one worker at a time may "
    "run; PostgreSQL runs its transactions side by side."
)
_KEPT_POSTGRES = (
    "Holdfast also writes a token and the journal's rows, in the same transactions as the job."
)
_FASTEST = (
    "huey stores a row of bytes and deletes it, without an acknowledgement. Redis is one server in "
    "C with one sync for all its clients."
)


class Claim:
    """Claim the next job, on a store that has been in use for a while."""

    def __init__(self, folder: Path, number: int) -> None:
        self._hf = holdfast.connect(f"sqlite:{folder / 'store.sqlite'}")
        self._jobs = self._hf.jobs
        self._holder = self._hf.processes.current()
        # The pages of a store that was just filled are not in memory yet, and a large store has
        # more of them.
        for _ in range(50):
            self()

    def __call__(self) -> bool:
        job = self._jobs.pick_pending(SESSION, holder=self._holder)
        assert job is not None
        self._jobs.requeue(job.job_id, token=job.token)
        return True

    def close(self) -> None:
        self._hf.close()


_PENDING = Scale("pending jobs", "ms, less is better", lambda sample: sample.p50_s * 1000)
_CLAIM = "Holdfast, claim and put back"


def _claims(lab: Lab) -> Row:
    sizes = QUICK_PENDING if lab.quick else PENDING
    with lab.folder() as shared:
        for size in sizes:
            folder = shared / str(size)
            folder.mkdir()
            work.prepare_pending(folder, size)
        contenders = [
            Contender(_CLAIM, FULL, partial(_claimed, lab, size), size=size) for size in sizes
        ]
        series = lab.interleave(contenders, shared=shared)
    return Row(
        name="queue-claim",
        title="Claim from a growing queue",
        says="One process claims the next of that many pending jobs and puts it back, durably. "
        "The next job is the first of an index, so the length of the queue should not matter.",
        series=series,
        verdicts=[
            growth_verdict(
                _PENDING,
                series,
                _CLAIM,
                since=sizes[0],
                at_most=1.6,
                of=lambda sample: sample.p50_s,
                missed="More levels of the index and fewer of its pages in memory.",
            )
        ],
        kind="scale",
        scale=_PENDING,
    )


def _claimed(lab: Lab, size: int, shared: Path) -> Sample:
    race = lab.race(prepare=work.prepare_nothing, cast=Claim, seconds=1.0, warm_up_s=0.3)
    return race(shared / str(size))
