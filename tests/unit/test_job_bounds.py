"""A registered job fits in every later state; one that can never be claimed blocks no other."""

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.domains.jobs import Broker, Job, JobStatus
from holdfast.domains.jobs.records import JOBS
from holdfast.kernel.codec import CUT, json_bytes
from holdfast.kernel.errors import InvalidName, InvalidValue, Lost, Refused
from holdfast.kernel.holder import Holder
from holdfast.kernel.limits import (
    HOLDER_BYTES_MAX,
    JOB_EVENT_BYTES_MAX,
    JOB_LATE_BYTES_MAX,
    JOB_PAST_ATTEMPTS_MAX,
    JOB_PAST_ERROR_BYTES_MAX,
    JOB_PROMPT_BYTES_MAX,
    JOB_REGISTERED_BYTES_MAX,
    JOB_VERDICT_BYTES_MIN,
    RECORD_BYTES_MAX,
)
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import ManualClock
from tests.unit.job_world import CHARACTERS, LABEL, STORES, WIDE, World, world_on

LONG = 2 * RECORD_BYTES_MAX


@pytest.fixture(params=STORES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with world_on(request.param, tmp_path, request) as made:
        yield made


def filled(character: str, bytes_max: int) -> str:
    """As much of a character as so many bytes of JSON hold."""
    return character * ((bytes_max - 2) // (json_bytes(character) - 2))


def largest(world: World, character: str) -> Job:
    """The largest job that can be registered, whose prompt is of one character."""
    whole: dict[str, Any] = {
        "prompt": filled(character, JOB_PROMPT_BYTES_MAX),
        "agent": WIDE,
        "agent_session": LABEL,
        "workdir": "/" + "\U00020000" * 4095,
        "topic_prefix": WIDE,
        "broker": Broker(host=WIDE, username=WIDE, password_env=WIDE, tls=True, port=65535),
        "priority": -1000,
        "max_attempts": 1000,
        "job_id": "j" * 128,
        "timeout_sec": 123456789.123456,
        "idle_timeout_sec": 12345678.123456,
    }
    probe = world.jobs.register_job(**{**whole, "job_id": "p" * 128, "expected_artifacts": ["a"]})
    world.jobs.cancel(probe.job_id)
    artifacts = ["a"]
    left = JOB_REGISTERED_BYTES_MAX - json_bytes(probe)
    while left > 4:
        artifacts.append("a" * min(4096, left - 3))
        left -= json_bytes(artifacts[-1]) + 1
    job = world.jobs.register_job(**{**whole, "expected_artifacts": artifacts})
    assert JOB_REGISTERED_BYTES_MAX - 8 <= json_bytes(job) <= JOB_REGISTERED_BYTES_MAX
    return job


class Life:
    """One job, pushed through its states by steps that say as much as they can."""

    def __init__(self, world: World, character: str) -> None:
        self.world = world
        self.world.journal.actor = WIDE
        self.character = character
        self.words = character * LONG
        self.job = largest(world, character)
        self.pid = 100
        self.tokens: list[int] = []

    @property
    def now(self) -> Job:
        job = self.world.jobs.peek(self.job.job_id)
        assert job is not None
        return job

    def holder(self) -> Holder:
        self.pid += 1
        bare = self.world.machine.begin(self.pid).current(WIDE)
        return replace(bare, pid_ns=4294967295, host_id=WIDE) if self.pid % 2 else bare

    def pick(self) -> None:
        # Whatever else waits: it must be the one.
        picked = self.world.jobs.pick_pending(LABEL, holder=self.holder())
        assert picked is None or picked.job_id == self.job.job_id
        if picked is not None:
            assert picked.token is not None
            self.tokens.append(picked.token)

    def die(self) -> None:
        with suppress(KeyError):
            self.world.machine.end(self.pid)
        self.world.jobs.reap()

    def time_out(self) -> None:
        self.world.clock.advance(2e8)
        self.world.jobs.reap()

    def verdict(self, status: str, **words: Any) -> None:
        self.world.jobs.update_status(
            self.job.job_id, status, token=self.now.token or 0, error_code=WIDE, **words
        )

    def late(self) -> None:
        for token in self.tokens:
            with suppress(Refused, Lost):
                self.world.jobs.update_status(
                    self.job.job_id,
                    "completed",
                    token=token,
                    result=self.words,
                    error=self.words,
                    error_code=WIDE,
                )

    def finish(self) -> None:
        job = self.now
        self.world.jobs.finish_and_pick(
            job.job_id,
            "error",
            token=job.token or 0,
            error=self.words,
            error_code=WIDE,
            holder=self.holder(),
        )

    def publish(self, kind: str) -> None:
        self.world.events.publish(
            self.job.job_id, kind, detail=self.words, token=self.now.token or 0
        )

    def beat(self) -> None:
        self.world.jobs.heartbeat(self.job.job_id, token=self.now.token or 0)

    def steps(self) -> dict[str, Callable[[], Any]]:
        jobs, job_id = self.world.jobs, self.job.job_id
        return {
            "pick": self.pick,
            "die": self.die,
            "time_out": self.time_out,
            "completed": lambda: self.verdict("completed", result=self.words, error=self.words),
            "error": lambda: self.verdict("error", result=self.words, error=self.words),
            "give_back": lambda: self.verdict("pending", result=self.words, error=self.words),
            "late": self.late,
            "finish_and_pick": self.finish,
            "heartbeat": self.beat,
            "next_seq": lambda: jobs.next_seq(job_id),
            "publish_completed": lambda: self.publish("completed"),
            "publish_error": lambda: self.publish("error"),
            "permission": lambda: self.world.events.publish(job_id, "permission_required"),
            "cancel": lambda: jobs.cancel(job_id, reason=self.words),
            "requeue": lambda: jobs.requeue(job_id),
            "retry": lambda: jobs.retry(job_id),
        }

    def live(self, names: list[str]) -> None:
        known = self.steps()
        for name in names:
            attempts, forgotten = self.now.attempt, len(self.now.past_attempts)
            # What the job's status does not allow is refused; what does not fit would be
            # InvalidValue.
            with suppress(Refused, Lost):
                known[name]()
            job = self.now
            assert json_bytes(job) <= RECORD_BYTES_MAX
            assert len(job.past_attempts) >= min(forgotten, JOB_PAST_ATTEMPTS_MAX)
            assert job.attempt >= attempts
            for output in (job.result, job.error):
                assert (
                    output is None
                    or output in self.words
                    or not output.startswith(self.words[:2])
                    or output.endswith(CUT)
                )


HARDEST = [
    *["pick", "error", "late", "retry"] * (JOB_PAST_ATTEMPTS_MAX + 1),
    *[
        "pick",
        "requeue",
        "late",
        "pick",
        "die",
        "late",
        "pick",
        "time_out",
        "late",
        "retry",
        "pick",
        "permission",
        "heartbeat",
    ],
    *[
        "publish_error",
        "late",
        "cancel",
        "late",
        "retry",
        "pick",
        "finish_and_pick",
        "late",
        "cancel",
        "retry",
        "pick",
    ],
    *["give_back", "late", "pick", "next_seq", "completed", "late"],
]


@pytest.mark.slow
@pytest.mark.parametrize("character", CHARACTERS)
def test_the_largest_job_fits_in_every_later_state(character: str) -> None:
    clock = ManualClock()
    with closing(MemoryStore(clock=clock)) as store:
        life = Life(World(store, clock), character)
        life.live(HARDEST)
        assert life.now.status is JobStatus.COMPLETED and life.now.late_result is not None
        assert len(life.now.past_attempts) == JOB_PAST_ATTEMPTS_MAX


def test_the_largest_job_fits_in_every_later_state_on_every_store(world: World) -> None:
    life = Life(world, "🙂")
    life.live(["pick", "error", "retry", "pick", "requeue", "late", "pick", "completed", "late"])
    job = life.now
    assert (job.status, len(job.past_attempts)) == (JobStatus.COMPLETED, 2)
    assert job.late_result is not None and job.result is not None
    assert json_bytes(job.result) + json_bytes(job.error) >= JOB_VERDICT_BYTES_MIN - json_bytes(CUT)


NAMES = st.sampled_from(sorted(set(HARDEST) | {"publish_completed"}))


def any_life(character: str, names: list[str]) -> None:
    clock = ManualClock()
    with closing(MemoryStore(clock=clock)) as store:
        Life(World(store, clock), character).live(names)


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(st.sampled_from(CHARACTERS), st.lists(NAMES, min_size=5, max_size=20))
def test_no_order_of_steps_makes_a_registered_job_too_large(
    character: str, names: list[str]
) -> None:
    any_life(character, ["pick", *names])


@pytest.mark.exhaustive
@settings(max_examples=200, deadline=None)
@given(st.sampled_from(CHARACTERS), st.lists(NAMES, min_size=5, max_size=60))
def test_no_order_of_steps_makes_a_registered_job_too_large_of_many(
    character: str, names: list[str]
) -> None:
    any_life(character, ["pick", *names])


# --- admission ---


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"prompt": "x" * 1_048_000}, "prompt"),
        ({"prompt": "🙂" * 300_000}, "prompt"),
        ({"prompt": "\0" * 200_000}, "prompt"),
        ({"prompt": "x", "expected_artifacts": ["a" * 4000] * 261}, "expected_artifacts"),
        ({"prompt": "x" * 700_000, "expected_artifacts": ["\U0001f600" * 4000] * 12}, "prompt"),
    ],
)
def test_a_job_that_would_have_no_room_to_be_claimed_is_refused(
    world: World, wrong: dict[str, Any], field: str
) -> None:
    with pytest.raises(
        InvalidValue, match=r"bytes as JSON and may have \d+.*into a file and pass its path"
    ) as caught:
        world.register(**wrong)
    assert caught.value.fields["field"] == field
    assert caught.value.fields["bytes"] > caught.value.fields["bytes_max"]
    assert world.jobs.list_jobs() == [] and world.journal.tail(10)[0] == []


def test_a_process_that_would_not_fit_is_refused_and_takes_no_job(world: World) -> None:
    job = world.register()
    holder = replace(world.worker(7), label="x" * HOLDER_BYTES_MAX)
    with pytest.raises(InvalidValue, match="shorter label"):
        world.jobs.pick_pending(LABEL, holder=holder)
    assert world.jobs.peek(job.job_id) == job
    world.pick()
    token = world.jobs.get_job(job.job_id).token or 0
    with pytest.raises(InvalidValue, match="shorter label"):
        world.jobs.finish_and_pick(job.job_id, "completed", token=token, holder=holder)
    with pytest.raises(InvalidName, match="error code"):
        world.jobs.update_status(job.job_id, "error", token=token, error_code="x" * 257)
    assert world.jobs.get_job(job.job_id).status is JobStatus.RUNNING


# --- verdicts ---


def test_a_verdict_that_does_not_fit_is_cut_with_a_mark_and_ends_the_job(world: World) -> None:
    job = world.register(prompt="x" * 700_000)
    token = world.pick().token
    done = world.jobs.update_status(job.job_id, "completed", token=token, result="r" * 2_000_000)
    assert done == world.jobs.get_job(job.job_id)
    assert done.status is JobStatus.COMPLETED
    assert done.result is not None and done.result.endswith(f"r{CUT}")
    assert len(done.result) > JOB_VERDICT_BYTES_MIN
    assert world.jobs.pick_pending(LABEL) is None


def test_a_verdict_with_room_is_kept_whole(world: World) -> None:
    job = world.register(prompt="x")
    done = world.jobs.update_status(job.job_id, "running")
    done = world.jobs.update_status(job.job_id, "completed", token=done.token, result="r" * 800_000)
    assert done.result == "r" * 800_000


def test_a_long_event_is_cut_if_it_ends_the_job_and_refused_otherwise(world: World) -> None:
    job = world.register()
    token = world.pick().token
    with pytest.raises(InvalidValue, match="may have"):
        world.events.publish(job.job_id, "progress", detail="x" * JOB_EVENT_BYTES_MAX, token=token)
    logged = world.events.publish(
        job.job_id, "completed", detail="\0" * JOB_EVENT_BYTES_MAX, token=token
    )
    assert (
        logged.job.status is JobStatus.COMPLETED and logged.job.result == "\0" * JOB_EVENT_BYTES_MAX
    )
    [kept] = world.events.of_job(job.job_id)
    assert kept.detail.endswith(CUT) and json_bytes(kept) <= JOB_EVENT_BYTES_MAX + 128


def test_what_is_remembered_of_errors_and_late_verdicts_counts_bytes(world: World) -> None:
    job = world.register()
    token = world.pick().token
    world.jobs.requeue(job.job_id)
    with pytest.raises(Lost, match="late_result"):
        world.jobs.update_status(job.job_id, "error", token=token, error="\0" * 100_000)
    world.jobs.update_status(job.job_id, "error", token=world.pick().token, error="🙂" * 100_000)
    found = world.jobs.get_job(job.job_id)
    assert found.late_result is not None and found.late_result.error is not None
    assert json_bytes(found.late_result.error) <= JOB_LATE_BYTES_MAX
    assert json_bytes(found.past_attempts[-1].error) <= JOB_PAST_ERROR_BYTES_MAX


def test_a_long_reason_cancels_and_gives_up(world: World) -> None:
    job = world.register()
    world.jobs.update_status(job.job_id, "error", token=world.pick().token, error="broken")
    assert world.jobs.cancel(job.job_id, reason="🙂" * 300_000).status is JobStatus.CANCELLED
    other = world.register()
    assert world.jobs.cancel(other.job_id, reason="\0" * 300_000).status is JobStatus.CANCELLED


# --- what an earlier version registered ---


def old_job(world: World, bytes_left: int) -> Job:
    """A pending job as an earlier version registered it: that many bytes under the bound of a
    record.
    """
    job = replace(world.register(prompt="x"), expected_artifacts=("a",))
    job = replace(job, prompt="x" * (RECORD_BYTES_MAX - bytes_left - json_bytes(job) + 1))
    assert json_bytes(job) == RECORD_BYTES_MAX - bytes_left
    world.store.transact(lambda tx: tx.put(JOBS, job.job_id, job), scope=[JOBS])
    return job


@pytest.mark.parametrize("bytes_left", [0, 20, 60, 90, 150])
def test_a_job_without_room_for_a_claim_holds_up_no_other(world: World, bytes_left: int) -> None:
    reported: list[str] = []
    world.jobs.warn = reported.append
    old = [old_job(world, bytes_left) for _ in range(2)]
    good = [world.register() for _ in range(2)]
    worker = world.worker(7)
    first = world.pick(worker)
    assert first.job_id == good[0].job_id
    assert [one.split(": ")[0] for one in reported] == [
        f"skipped space=jobs key={job.job_id}" for job in old
    ]
    second = world.jobs.finish_and_pick(
        first.job_id, "completed", token=first.token or 0, holder=worker
    )
    assert second.done.status is JobStatus.COMPLETED
    assert second.picked is not None and second.picked.job_id == good[1].job_id
    assert world.jobs.pick_pending(LABEL, holder=worker) is None
    for job in old:
        found = world.jobs.get_job(job.job_id)
        assert found.prompt == job.prompt
        # Where there is room for a word of it, it is an error for people to see; else it waits, and
        # is shown by the doctor.
        if found.status is JobStatus.ERROR:
            assert found.error_code == "too_large"
        else:
            assert found == job
            assert job in world.jobs.unpickable(damaged=[])
    if bytes_left == 150:
        assert all(world.jobs.get_job(job.job_id).status is JobStatus.ERROR for job in old)
        assert world.jobs.unpickable(damaged=[]) == []


def test_finishing_passes_over_a_job_without_room_and_takes_the_next(world: World) -> None:
    first, old, last = world.register(), old_job(world, 0), world.register()
    token = world.pick().token or 0
    finished = world.jobs.finish_and_pick(first.job_id, "completed", token=token)
    assert finished.picked is not None and finished.picked.job_id == last.job_id
    assert world.jobs.peek(old.job_id) == old


def test_the_end_of_an_old_running_job_is_written_without_its_words(world: World) -> None:
    old = old_job(world, 600)
    picked = world.pick(world.worker(7))
    assert picked.job_id == old.job_id
    done = world.jobs.update_status(
        old.job_id, "error", token=picked.token, error="e" * 5000, error_code="command_failed"
    )
    assert done.status is JobStatus.ERROR and done.error is not None and done.error.endswith(CUT)
    assert world.jobs.pick_pending(LABEL) is None


def test_a_dead_workers_old_job_keeps_no_others_from_being_reaped(world: World) -> None:
    old = old_job(world, 600)
    world.register()
    worker = world.worker(7)
    picked = [world.pick(worker) for _ in range(2)]
    assert picked[0].job_id == old.job_id
    world.machine.end(7)
    assert {job.job_id for job in world.jobs.reap()} == {job.job_id for job in picked}
    assert {job.status for job in world.jobs.list_jobs()} == {JobStatus.PENDING}


def test_every_job_without_room_is_found_in_pages(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.domains.jobs import queries

    monkeypatch.setattr(queries, "JOBS_PAGE", 2)
    old = []
    for _ in range(3):
        world.register()
        old.append(old_job(world, 0))
    assert [job.job_id for job in world.jobs.unpickable(damaged=[])] == [job.job_id for job in old]
