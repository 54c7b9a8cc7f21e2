"""Jobs on every store against a plain oracle, by steps that Hypothesis chooses."""

import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from holdfast.domains.jobs import Job, Jobs
from holdfast.domains.jobs.event_stream import JobEvents
from holdfast.kernel.errors import HoldfastError
from holdfast.kernel.store import Store
from holdfast.primitives.journal import Journal
from holdfast.stores.files.store import FilesStore
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.clock import ManualClock
from tests.harness.machine import Machine
from tests.harness.stores import ClockedStore
from tests.model.job_oracle import JobOracle, Refused
from tests.model.search import search
from tests.stores.harnesses import IN_MEMORY

pytestmark = pytest.mark.prove

LABELS = ("tmux:a", "tmux:b")
EVENTS = ("started", "permission_required", "progress", "completed", "error", "cancelled")
STATUSES = ("pending", "running", "completed", "error", "cancelled")

numbers = st.integers(0, 30)
Open = Callable[[ManualClock], Store]


class JobsMachine(RuleBasedStateMachine):
    """Each rule does one thing to the registry and to the oracle, and compares what both say and
    are.
    """

    def __init__(self, open_: Open) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.store = ClockedStore(open_(self.clock), self.clock)
        self.machine = Machine()
        self.seat = self.machine.begin(1)
        self.pids = count(100)
        self.workers: list[int] = [self.start() for _ in range(2)]
        self.journal = Journal(self.store, actor="model")
        self.jobs = Jobs(self.store, self.journal, self.seat)
        self.events = JobEvents(self.store, self.journal, self.seat)
        self.oracle = JobOracle()
        self.ids: list[str] = []
        self.tokens: dict[int, int] = {}
        """The token of each claim that the oracle gave a number."""

    # --- what happens ---

    @initialize(
        attempts=st.lists(st.integers(1, 2), min_size=3, max_size=6),
        picked=st.lists(st.none() | numbers, max_size=4),
    )
    def begin(self, attempts: list[int], picked: list[int | None]) -> None:
        """Some jobs exist, and some of them are running."""
        for number, most in enumerate(attempts):
            self.register(
                LABELS[number % 2],
                number % 3 - 1,
                most,
                [5.0, 500.0][number % 2],
                [3.0, 30.0][number // 2 % 2],
            )
        for number, at in enumerate(picked):
            self.pick(LABELS[number % 2], at)

    @rule(
        label=st.sampled_from(LABELS),
        priority=st.integers(-1, 1),
        attempts=st.integers(1, 2),
        timeout=st.sampled_from([5.0, 500.0]),
        idle=st.sampled_from([3.0, 30.0]),
    )
    def register(
        self, label: str, priority: int, attempts: int, timeout: float, idle: float
    ) -> None:
        job = self.jobs.register_job(
            "x",
            agent="a",
            agent_session=label,
            priority=priority,
            max_attempts=attempts,
            timeout_sec=timeout,
            idle_timeout_sec=idle,
        )
        self.ids.append(job.job_id)
        self.oracle.register(job.job_id, label, priority, attempts, timeout, idle)
        self.agree()

    @rule(label=st.sampled_from(LABELS), at=st.none() | numbers)
    def pick(self, label: str, at: int | None) -> None:
        worker = None if at is None else self.workers[at % len(self.workers)]
        self.sweep_is_due()
        self.oracle.reap()
        job = self.jobs.pick_pending(label, holder=None if worker is None else self.seat.of(worker))
        self.same_pick(job, self.oracle.pick(label, worker))
        self.agree()

    @precondition(lambda self: self.ids)
    @rule(at=numbers, status=st.sampled_from(STATUSES), claim=st.none() | numbers)
    def move(self, at: int, status: str, claim: int | None) -> None:
        job_id, shown = self.choose(at, claim)
        self.both(
            lambda: self.jobs.update_status(job_id, status, token=self.token(shown)),
            lambda: self.oracle.move(job_id, status, shown),
        )
        self.learn(job_id)
        self.agree()

    @precondition(lambda self: self.oracle.claims)
    @rule(at=numbers, status=st.sampled_from(STATUSES[2:]), claim=numbers, by=numbers)
    def finish_and_pick(self, at: int, status: str, claim: int, by: int) -> None:
        job_id, shown = self.choose(at, claim)
        assert shown is not None
        worker = self.workers[by % len(self.workers)]
        self.sweep_is_due()
        self.oracle.reap()
        finished, picked = self.both(
            lambda: (
                self.jobs.finish_and_pick(
                    job_id, status, token=self.token(shown) or 0, holder=self.seat.of(worker)
                ).picked
            ),
            lambda: self.oracle.finish_and_pick(job_id, status, shown, worker),
        )
        self.same_pick(finished, picked)
        self.agree()

    @precondition(lambda self: self.ids)
    @rule(at=numbers)
    def retry(self, at: int) -> None:
        job_id = self.ids[at % len(self.ids)]
        self.both(lambda: self.jobs.retry(job_id), lambda: self.oracle.retry(job_id))
        self.agree()

    @precondition(lambda self: self.oracle.claims)
    @rule(at=numbers, claim=numbers)
    def heartbeat(self, at: int, claim: int) -> None:
        job_id, shown = self.choose(at, claim)
        assert shown is not None
        self.both(
            lambda: self.jobs.heartbeat(job_id, token=self.token(shown) or 0),
            lambda: self.oracle.heartbeat(job_id, shown),
        )
        self.agree()

    @precondition(lambda self: self.ids)
    @rule(at=numbers, event=st.sampled_from(EVENTS), claim=st.none() | numbers)
    def publish(self, at: int, event: str, claim: int | None) -> None:
        job_id, shown = self.choose(at, claim)
        ours, theirs = self.both(
            lambda: self.events.publish(job_id, event, token=self.token(shown)).event.seq,
            lambda: self.oracle.publish(job_id, event, shown),
        )
        assert ours == theirs
        self.learn(job_id)
        self.agree()

    @precondition(lambda self: any(job["status"] == "running" for job in self.oracle.jobs))
    @rule(at=numbers, seconds=st.sampled_from([1.0, 10.0, 60.0]))
    def wait_for_permission(self, at: int, seconds: float) -> None:
        running = [job for job in self.oracle.jobs if job["status"] == "running"]
        job = running[at % len(running)]
        self.oracle.publish(job["id"], "permission_required", job["claim"])
        self.events.publish(job["id"], "permission_required", token=self.tokens[job["claim"]])
        self.pass_time(seconds)
        self.reap()

    @precondition(lambda self: self.ids)
    @rule(at=numbers)
    def number(self, at: int) -> None:
        job = self.oracle.job(self.ids[at % len(self.ids)])
        job["seq"] += 1
        assert self.jobs.next_seq(job["id"]) == job["seq"]
        self.agree()

    @rule(at=numbers, soon=st.booleans())
    def kill(self, at: int, soon: bool) -> None:
        """A worker dies, and another begins in its place."""
        slot = at % len(self.workers)
        self.machine.end(self.workers[slot])
        self.oracle.dead.add(self.workers[slot])
        self.workers[slot] = self.start()
        self.agree()
        if soon:
            self.reap()

    @rule(seconds=st.sampled_from([1.0, 2.0, 10.0, 60.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.oracle.now += seconds

    @rule()
    def reap(self) -> None:
        assert sorted(job.job_id for job in self.jobs.reap()) == sorted(self.oracle.reap())
        self.agree()

    @rule(
        status=st.none() | st.sampled_from(STATUSES),
        label=st.none() | st.sampled_from(LABELS),
        limit=st.integers(0, 9),
    )
    def look(self, status: str | None, label: str | None, limit: int) -> None:
        self.oracle.reap()
        expected = [
            job["id"]
            for job in self.oracle.jobs
            if status in (None, job["status"]) and label in (None, job["label"])
        ]
        found = self.jobs.list_jobs(status=status, agent_session=label, limit=limit)
        assert [job.job_id for job in found] == expected[max(len(expected) - limit, 0) :]

    # --- what must agree ---

    def agree(self) -> None:
        for expected in self.oracle.jobs:
            job = self.jobs.peek(expected["id"])
            assert job is not None
            token = None if expected["claim"] is None else self.tokens[expected["claim"]]
            assert (job.status.value, job.attempt, job.token) == (
                expected["status"],
                expected["attempt"],
                token,
            ), expected
            assert (job.last_seq, job.error_code, job.deaths) == (
                expected["seq"],
                expected["code"],
                expected["deaths"],
            ), expected
            assert (job.claimed_by and job.claimed_by.pid) == expected["worker"]

    def same_pick(self, job: Job | None, expected: str | None) -> None:
        assert (job and job.job_id) == expected
        if job is not None:
            self.learn(job.job_id)

    def learn(self, job_id: str) -> None:
        """A new claim's token is greater than every one before it."""
        claim = self.oracle.job(job_id)["claim"]
        if claim is not None and claim not in self.tokens:
            job = self.jobs.peek(job_id)
            assert job is not None
            assert job.token is not None
            assert job.token > max(self.tokens.values(), default=0)
            self.tokens[claim] = job.token

    def both(self, ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[Any, Any]:
        """Do it to both; both say no, for the same reason, or neither does."""
        expected: Any = None
        code = None
        try:
            expected = theirs()
        except Refused as refusal:
            code = str(refusal)
        try:
            got = ours()
        except HoldfastError as error:
            if error.code != code:
                raise AssertionError(f"{error.code} instead of {code}") from error
            return None, None
        assert code is None, f"done, and not refused as {code}"
        return got, expected

    def choose(self, at: int, claim: int | None) -> tuple[str, int | None]:
        """A job and a claim: its own, or one of any that were ever given."""
        job_id = self.ids[at % len(self.ids)]
        if claim is None or not self.oracle.claims:
            return job_id, None
        own = self.oracle.job(job_id)["claim"]
        return job_id, own if own is not None and claim % 2 else 1 + claim % self.oracle.claims

    def token(self, claim: int | None) -> int | None:
        return None if claim is None else self.tokens[claim]

    def start(self) -> int:
        pid = next(self.pids)
        self.machine.begin(pid)
        return pid

    def sweep_is_due(self) -> None:
        """A busy worker reaps once a second; here it reaps each time."""
        self.jobs._reaper._next_s = 0.0

    def teardown(self) -> None:
        self.machine.close()
        self.store.close()


def agree(open_: Open, *, examples: int, steps: int) -> None:
    search(lambda: JobsMachine(open_), examples=examples, steps=steps)


def test_jobs_in_memory_agree_with_a_plain_list() -> None:
    agree(lambda clock: MemoryStore(clock=clock), examples=150, steps=40)


def test_jobs_in_sqlite_agree_with_a_plain_list() -> None:
    names = count(1)
    with tempfile.TemporaryDirectory() as folder:
        agree(
            lambda clock: SqliteStore(
                Path(folder) / f"{next(names)}.sqlite", boot_id="boot-1", clock=clock
            ),
            examples=40,
            steps=30,
        )


def test_jobs_in_files_agree_with_a_plain_list() -> None:
    names = count(1)
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        agree(
            lambda clock: FilesStore(
                Path(folder) / str(next(names)), boot_id="boot-1", clock=clock, retry_delay_s=0.001
            ),
            examples=30,
            steps=25,
        )


def test_jobs_in_postgresql_agree_with_a_plain_list(postgres_url: str) -> None:
    from holdfast.stores.postgres import open_postgres

    names = count(1)
    agree(lambda _: open_postgres(postgres_url, namespace=f"w{next(names)}"), examples=30, steps=25)
