"""How the cost of a job grows with the jobs in the store."""

import random
import sqlite3
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import cycle
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import holdfast
from bench.measure import Lab, Sample, alone
from bench.report import Row, Scale, growth_verdict
from bench.scale import Growth, filling, fitting, p50_s, series_of
from holdfast.domains.jobs.records import JOBS, Job, JobStatus
from holdfast.stores.sql import table_of
from holdfast.stores.sqlite.schema import DIALECT

NAME = "scale-jobs"

_SIZES = (1, 100, 10_000, 1_000_000)
_QUICK_SIZES = (1, 100, 1000)
_JOB_BYTES = 1100
_QUEUES = 100
_PAGE = 50
_PROMPT = "Find the cause of the failing test, and propose the smallest change that fixes it."

_CALLS = (
    "Holdfast, register",
    "Holdfast, pick and finish",
    "Holdfast, read one",
    f"Holdfast, list the newest {_PAGE}",
    f"Holdfast, list {_PAGE} of a queue",
    "Holdfast, count by status",
)
_SCALE = Scale("jobs", "milliseconds, less is better", lambda sample: sample.p50_s * 1000)


def measure(lab: Lab) -> list[Row]:
    with lab.folder() as folder:
        sizes, note = fitting(folder, _QUICK_SIZES if lab.quick else _SIZES, _JOB_BYTES)
        samples = alone(_measure, folder, sizes, lab.quick)
    series = series_of(samples, _CALLS)
    verdicts = [
        growth_verdict(
            _SCALE,
            series,
            name,
            since=sizes[-2],
            at_most=None if name == _CALLS[-1] else 3,
            of=p50_s,
        )
        for name in _CALLS
    ]
    return [
        Row(
            name="scale-jobs",
            title="Jobs: cost of a call as the store fills",
            says=f"Half of the jobs wait, in {_QUEUES} queues, and half have ended. SQLite, one "
            "process, each change durable. Counting reads an index to its end, so it grows with the jobs; the "
            "page counts a million jobs once a second.",
            series=series,
            verdicts=verdicts,
            kind="scale",
            scale=_SCALE,
            logarithmic=True,
            notes=note,
        )
    ]


def _measure(
    folder: Path, sizes: Sequence[int], quick: bool
) -> dict[tuple[str, int], list[Sample]]:
    growth, path = Growth(quick=quick), folder / "store.sqlite"
    with _connected(path) as hf:
        for queue in range(_QUEUES):
            hf.jobs.register_job(_PROMPT, agent="claude", agent_session=_queue(queue))
        model = hf.jobs.list_jobs(limit=1)[0]
        hf.jobs.cancel(model.job_id)
    have = 0
    for size in sizes:
        with filling(path) as raw:
            _fill(raw, model, have, size)
        have = size
        with _connected(path) as hf:
            growth.measure(size, _operations(hf, size))
    return growth.samples


def _connected(path: Path) -> holdfast.Holdfast:
    return holdfast.connect(f"sqlite:{path}")


def _operations(hf: holdfast.Holdfast, size: int) -> dict[str, Any]:
    chosen, queues = random.Random(size), cycle(_queue(number) for number in range(_QUEUES))

    def register() -> None:
        hf.jobs.register_job(_PROMPT, agent="claude", agent_session=next(queues))

    def pick_and_finish() -> None:
        job = hf.jobs.pick_pending(_queue(0))
        if job is None:
            register()
            return
        hf.jobs.update_status(job.job_id, JobStatus.COMPLETED, token=job.token)

    return dict(
        zip(
            _CALLS,
            (
                register,
                pick_and_finish,
                # One that waits in another queue than those that end, which may be pruned.
                lambda: hf.jobs.get_job(
                    _job_id(chosen.randrange(2, size, 2 * _QUEUES) if size > 2 else 0)
                ),
                lambda: hf.jobs.list_jobs(limit=_PAGE),
                lambda: hf.jobs.list_jobs(agent_session=next(queues), limit=_PAGE),
                hf.jobs.counts,
            ),
            strict=True,
        )
    )


def _queue(number: int) -> str:
    return f"tmux:agent-{number:02}"


def _job_id(number: int) -> str:
    return f"20260101-000000-{number:08x}"


def _fill(raw: sqlite3.Connection, model: Job, begin: int, end: int) -> None:
    """Write jobs as Holdfast writes them: half of them pending, half completed."""
    last = raw.execute("SELECT max(revision) FROM journal").fetchone()[0]
    first = max(last, raw.execute("SELECT number FROM meta WHERE name = 'revision'").fetchone()[0])
    table = table_of(JOBS, DIALECT)
    raw.executemany(table.insert, _rows(model, begin, end, first + 1))
    raw.execute("UPDATE meta SET number = ? WHERE name = 'revision'", (first + end - begin,))


def _rows(model: Job, begin: int, end: int, revision: int) -> Iterator[tuple[Any, ...]]:
    """The rows of new jobs. Holdfast encodes one for each queue and status; the others differ in
    their id and arrival.
    """
    kinds = []
    for number in range(2 * _QUEUES):
        job = replace(
            model,
            job_id="%s",
            status=JobStatus.PENDING,
            arrival=-99,
            agent_session=_queue(number // 2),
            topic_prefix="holdfast/jobs/%s",
            finished_at=None,
            error=None,
            error_code=None,
        )
        if number % 2:
            ended = model.created_at + timedelta(minutes=5)
            job = replace(
                job, status=JobStatus.COMPLETED, result="done", attempt=1, finished_at=ended
            )
        data = JOBS.encode(job).replace(b"%s", b"%(id)b").replace(b"-99", b"%(arrival)d")
        # Each place in an index ends with the arrival, or the job has none there.
        places = [place and place[:-8] for place in JOBS.index_keys(job)]
        kinds.append((data, places))
    for number in range(begin, end):
        key, arrival = _job_id(number), revision + number - begin
        data, places = kinds[number % len(kinds)]
        tail = arrival.to_bytes(8, "big")
        tail = bytes([tail[0] ^ 0x80]) + tail[1:]
        encoded = key.encode()
        yield (
            "default",
            key,
            arrival,
            data % {b"id": encoded, b"arrival": arrival},
            *(place and place + tail for place in places),
        )
