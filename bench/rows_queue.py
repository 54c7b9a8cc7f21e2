"""Queues: durable jobs from end to end, and claims from a growing queue."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import holdfast
from bench import queueing, servers
from bench.measure import Contender, Lab, Series, find, ratio
from bench.queueing import HOLDFAST, Kind
from bench.report import Row, Verdict
from bench.work import FULL, PROMPT, SESSION
from holdfast.domains.jobs.records import JOBS, Job
from holdfast.kernel.space import rows
from holdfast.kernel.store import Tx

NAME = "queue"
WORKERS = (1, 4, 8)
PENDING = (1_000, 100_000, 1_000_000)
QUICK_PENDING = (200, 1_000, 2_000)
_BATCH = 5_000


def measure(lab: Lab) -> list[Row]:
    with ExitStack() as stack:
        running = {
            "redis": stack.enter_context(servers.redis(durable=True)),
            "postgres": stack.enter_context(servers.postgres()),
        }
        kinds, absent = queueing.take_part(running)
        through = [_through(lab, kinds, absent, workers) for workers in WORKERS]
    return [*through, _claims(lab)]


def _through(lab: Lab, kinds: Sequence[Kind], absent: Sequence[str], workers: int) -> Row:
    able = [kind for kind in kinds if workers == 1 or not kind.alone]
    series = lab.interleave(
        [
            Contender(
                kind.name,
                FULL,
                lab.race(
                    prepare=partial(queueing.prepare, opens=kind.opens),
                    cast=kind.opens,
                    processes=workers,
                    seconds=1.5,
                    warm_up_s=0.5,
                ),
            )
            for kind in able
        ],
        rounds=min(lab.rounds, 3),
    )
    noun = "worker" if workers == 1 else "workers"
    lacks = "; ".join(f"{kind.name}: {kind.lacks}" for kind in able if kind.lacks)
    return Row(
        name=f"queue-{workers}",
        title=f"Durable job from end to end, {workers} {noun}",
        says=f"Store a job, take the next, complete it: {workers} {noun} at once, each a "
        f"process, with {queueing.AHEAD} jobs in the queue at the start, in "
        f"{len(series[0].samples)} rounds. Each of the three steps survives a power loss "
        "once it is acknowledged. Holdfast completes one job and claims the next in one "
        "transaction, and keeps a journal, a token and the worker's process with each "
        f"job. What others lack: {lacks}.",
        series=series,
        verdicts=_first(series, able),
        absent=absent,
    )


def _first(series: Sequence[Series], kinds: Sequence[Kind]) -> list[Verdict]:
    ours = find(series, HOLDFAST)
    names = queueing.peers(kinds)
    theirs = [one for one in series if one.contender.name in names]
    if ours is None or not theirs:
        return []
    fastest = max(theirs, key=lambda one: one.spread(lambda sample: sample.rate).median)
    rate = ratio(ours, fastest, lambda sample: sample.rate)
    return [
        Verdict(
            f"throughput, Holdfast to the fastest ({fastest.contender.name})",
            "over 1",
            rate,
            rate.median > 1,
            _KEPT,
        )
    ]


_KEPT = (
    "A job is two durable transactions of six and nine statements, for its record, "
    "queue position, token and journal. A fifth of the instructions of the second are "
    "SQLite's, and most of the rest Python's. huey stores a row of bytes and deletes "
    "it. Redis is one server in C with one sync for all its clients."
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


def fill(folder: Path, *, pending: int) -> None:
    """A store with so many pending jobs."""
    with holdfast.connect(f"sqlite:{folder / 'store.sqlite'}") as hf:
        for begin in range(0, pending, _BATCH):

            def body(tx: Tx, begin: int = begin) -> None:
                for number in range(begin, min(begin + _BATCH, pending)):
                    job_id = f"{number * 2654435761 % (1 << 32):08x}"
                    tx.put(
                        JOBS,
                        job_id,
                        Job(
                            job_id=job_id,
                            created_at=tx.now,
                            updated_at=tx.now,
                            prompt=PROMPT,
                            agent="claude",
                            agent_session=SESSION,
                            arrival=tx.revision + number,
                        ),
                    )

            hf.store.transact(body, scope=[rows(JOBS)], durable=False, timeout_s=120)


def _claims(lab: Lab) -> Row:
    sizes = QUICK_PENDING if lab.quick else PENDING
    contenders = [
        Contender(
            f"{size:,} pending",
            FULL,
            lab.race(prepare=partial(fill, pending=size), cast=Claim, seconds=1.0, warm_up_s=0.3),
        )
        for size in sizes
    ]
    # Filling the largest takes most of the time.
    series = lab.interleave(contenders, rounds=min(lab.rounds, 2))
    took = ratio(series[-1], series[0], lambda sample: sample.p50_s)
    return Row(
        name="queue-claim",
        title="Claim from a growing queue",
        says="One process claims the next of that many pending jobs and puts it back, durably, "
        f"in {len(series[0].samples)} rounds. The next job is the first of an index, so "
        "the length of the queue should not matter.",
        series=series,
        verdicts=[
            Verdict(
                f"time, {sizes[-1]:,} pending to {sizes[0]:,}",
                "at most 1.6",
                took,
                took.median <= 1.6,
            )
        ],
        kind="time",
    )
