"""PostgreSQL: claims, lock pairs and wake-ups, compared with hand-written SQL."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench import servers, work, work_postgres
from bench.measure import Contender, Lab, Sample, ratio, took_s
from bench.report import EQUAL, LESS, Row, Verdict

NAME = "postgres"

_WORKERS = 8
_SECONDS = 2.0
_JOBS = 20_000
_QUICK_JOBS = 3_000
_WAKE_MS = 5


def measure(lab: Lab) -> list[Row]:
    with servers.postgres() as address:
        if address is None:
            return []
        return lab.rows(
            {
                "Claims on PostgreSQL": partial(_claims, lab, address),
                "Row lock on PostgreSQL": partial(_pair, lab, address),
                "Wake-up through PostgreSQL": partial(_wake, lab, address),
            }
        )


def _race(
    lab: Lab, address: str, cast: Callable[..., object], *, claims: bool, **how: float
) -> Callable[[Path], Sample]:
    jobs = partial(
        work_postgres.prepare_jobs, address=address, jobs=_QUICK_JOBS if lab.quick else _JOBS
    )
    prepare = jobs if claims else partial(work_postgres.prepare_nothing, address=address)
    return lab.race(prepare=prepare, cast=partial(cast, address=address), **how)  # type: ignore[arg-type]


def _claims(lab: Lab, address: str) -> Row:
    race = partial(_race, lab, address, claims=True, processes=_WORKERS, seconds=_SECONDS)
    series = lab.interleave(
        [
            Contender("Holdfast, PostgreSQL", work.FULL, race(work_postgres.Claim)),
            Contender("raw SKIP LOCKED", work.FULL, race(work_postgres.RawClaim)),
        ],
        judged=lambda series: [ratio(series[0], series[1], lambda sample: sample.rate)],
    )
    rate = ratio(series[0], series[1], lambda sample: sample.rate)
    return Row(
        name="postgres-claims",
        title=f"Claims on PostgreSQL, {_WORKERS} workers",
        says=f"{_WORKERS} processes claim jobs from one queue, as fast as they can: the first "
        "free job becomes running, with a token and a journal entry. The raw side does "
        "the same on the same tables with four prepared statements of psycopg: SELECT ... "
        "FOR UPDATE SKIP LOCKED, UPDATE, INSERT into the journal, COMMIT. It decodes, "
        "checks and encodes nothing. Both wait for the disk at each commit.",
        series=series,
        verdicts=[
            Verdict(
                "throughput, Holdfast to raw",
                "over 0.65 (aim 0.8)",
                rate,
                rate.median > 0.65,
                _CHECKED,
                against=EQUAL,
            )
        ],
    )


_CHECKED = (
    "Holdfast sends two messages and the raw side four. But Holdfast also decodes, "
    "checks and encodes the record, and each worker checks once a second whether the "
    "running ones still live."
)


def _pair(lab: Lab, address: str) -> Row:
    race = partial(_race, lab, address, claims=False, seconds=1.0)
    series = lab.interleave(
        [
            Contender("Holdfast, PostgreSQL", work.FULL, race(work_postgres.LockPair)),
            Contender("raw row lock", work.FULL, race(work_postgres.RawLockPair)),
        ]
    )
    took = ratio(series[0], series[1], took_s)
    return Row(
        name="postgres-pair",
        title="Lock on PostgreSQL against a row lock",
        says="One process takes and releases a lock. *Lock pair, uncontended* has the advisory lock. "
        "The raw side is a table of its own: an "
        "INSERT ... ON CONFLICT DO NOTHING with the holder's name, and a DELETE, each "
        "committed to disk. It has no queue, no lease and no token.",
        series=series,
        verdicts=[
            Verdict(
                "time, Holdfast to raw", "at most 2", took, took.median <= 2, _NAMED, against=LESS
            )
        ],
    )


_NAMED = (
    "Each of the two steps is one message on both sides. Holdfast's also latches the "
    "key, takes a token, and notes its outcome, so that a commit whose answer was "
    "lost can be looked up."
)


def _wake(lab: Lab, address: str) -> Row:
    race = partial(_race, lab, address, claims=False, seconds=1.0)
    series = lab.interleave(
        [
            Contender("Holdfast, PostgreSQL", "", race(work_postgres.Wake)),
            Contender("raw NOTIFY", "", race(work_postgres.RawWake), limit=True),
        ]
    )
    took = series[0].spread(lambda sample: sample.p50_s * 1000)
    return Row(
        name="postgres-wake",
        title="Wake-up through PostgreSQL",
        says="One process notifies a topic; another sleeps on the topic and reports through a "
        "pipe that it is awake. The time is from the call to the report. The raw side "
        "uses pg_notify and LISTEN.",
        series=series,
        verdicts=[
            Verdict("wake-up in ms, median", f"under {_WAKE_MS}", took, took.median < _WAKE_MS)
        ],
        kind="time",
        column="",
    )
