"""Verdicts that come too late, jobs that are tried again, and workers that cannot be seen. On every
store.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.domains.jobs import Job, JobStatus
from holdfast.domains.jobs.records import JOBS, beat_every_s
from holdfast.kernel.codec import json_bytes
from holdfast.kernel.errors import (
    Fenced,
    HoldfastError,
    ImpossibleTransition,
    InvalidValue,
    NotFound,
)
from holdfast.kernel.limits import (
    JOB_LATE_BYTES_MAX,
    JOB_LEASE_S,
    JOB_PAST_ATTEMPTS_MAX,
    JOB_PAST_ERROR_BYTES_MAX,
    RECORD_BYTES_MAX,
)
from holdfast.runtime.connection import connect
from tests.harness.errors import raises
from tests.harness.machine import Machine
from tests.unit.job_world import LABEL, STORES, EventWorld, World, world_on

DAY_S = 24 * 3600.0


@pytest.fixture(params=STORES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with world_on(request.param, tmp_path, request) as made:
        yield made


def late_job(world: World, **more: Any) -> tuple[Job, int]:
    """A job whose time is over, and the token of the attempt that was too slow."""
    world.register(timeout_sec=10, **more)
    token = world.pick(world.worker(7)).token or 0
    world.clock.advance(11)
    [ended] = world.jobs.reap()
    assert ended.error_code == "timed_out"
    return ended, token


def kinds(world: World) -> list[str]:
    return [entry.kind for entry in world.journal.tail(1000)[0]]


# --- late results ---


@pytest.mark.parametrize("way", ["update_status", "finish_and_pick", "publish"])
def test_what_a_verdict_says_after_the_time_limit_is_kept(world: World, way: str) -> None:
    before, token = late_job(world)
    world.clock.advance(5)
    calls: dict[str, Callable[[], object]] = {
        "update_status": lambda: world.jobs.update_status(
            before.job_id, "completed", token=token, result="42"
        ),
        "finish_and_pick": lambda: world.jobs.finish_and_pick(
            before.job_id, "completed", token=token, result="42"
        ),
        "publish": lambda: world.events.publish(
            before.job_id, "completed", detail="42", token=token
        ),
    }
    with raises(Fenced, late_result=1) as caught:
        calls[way]()
    assert caught.value.fields["late_result"] == 1
    job = world.jobs.get_job(before.job_id)
    late = job.late_result
    assert late is not None
    assert (late.status, late.attempt, late.result, late.error) == (
        JobStatus.COMPLETED,
        1,
        "42",
        None,
    )
    assert (late.by, late.at) == ("tester", world.clock.now())
    # Nothing else has changed, and nothing was picked or published.
    assert (job.status, job.error, job.error_code, job.result) == (
        before.status,
        before.error,
        before.error_code,
        None,
    )
    assert (job.finished_at, job.last_seq, job.token) == (before.finished_at, before.last_seq, None)
    assert kinds(world)[-1] == "job.late_result"


def test_an_operators_verdict_without_a_token_is_kept_after_the_time_limit(world: World) -> None:
    before, _ = late_job(world)
    with raises(ImpossibleTransition, late_result=1):
        world.jobs.update_status(before.job_id, "completed", result="42")
    late = world.jobs.get_job(before.job_id).late_result
    assert late is not None and (late.attempt, late.result) == (1, "42")


def test_a_stranger_writes_no_late_result(world: World) -> None:
    before, token = late_job(world)
    other = world.register(timeout_sec=1000)
    strange = world.pick().token
    assert strange is not None
    for wrong in (token + 1, token - 1, 0, strange):
        with pytest.raises(Fenced) as caught:
            world.jobs.update_status(before.job_id, "completed", token=wrong, result="mine")
        assert "late_result" not in caught.value.message
    assert world.jobs.get_job(before.job_id) == before
    # Nor does anybody on a job that has a verdict.
    world.jobs.update_status(other.job_id, "error", token=strange, error="broken")
    done = world.jobs.get_job(other.job_id)
    for shown in (strange, None):
        with pytest.raises(HoldfastError):
            world.jobs.update_status(other.job_id, "completed", token=shown, result="after all")
    assert world.jobs.get_job(other.job_id) == done


@pytest.mark.parametrize("how", ["requeued", "cancelled", "worker_died"])
def test_an_attempt_that_was_taken_away_may_bring_its_result(world: World, how: str) -> None:
    job = world.register()
    token = world.pick(world.worker(7)).token
    if how == "requeued":
        world.jobs.requeue(job.job_id)
    elif how == "cancelled":
        world.jobs.cancel(job.job_id, reason="no need")
    else:
        world.machine.end(7)
        world.jobs.reap()
    with pytest.raises(Fenced, match="late_result"):
        world.jobs.update_status(job.job_id, "error", token=token, error="no such file")
    found = world.jobs.get_job(job.job_id)
    assert found.late_result is not None
    assert (found.late_result.status, found.late_result.error) == (JobStatus.ERROR, "no such file")
    assert [past.outcome for past in found.past_attempts] == [how]


def test_an_attempt_that_was_given_back_has_nothing_more_to_say(world: World) -> None:
    job = world.register()
    token = world.pick().token
    world.jobs.requeue(job.job_id, token=token)
    with pytest.raises(Fenced):
        world.jobs.update_status(job.job_id, "completed", token=token, result="x")
    assert world.jobs.get_job(job.job_id).late_result is None


def test_a_late_result_leaves_the_result_of_a_newer_attempt_alone(world: World) -> None:
    before, token = late_job(world)
    world.jobs.retry(before.job_id)
    second = world.pick()
    # While the next one runs, and after it has completed.
    with raises(Fenced, late_result=1):
        world.jobs.update_status(before.job_id, "completed", token=token, result="old")
    assert world.jobs.get_job(before.job_id).token == second.token
    world.jobs.update_status(before.job_id, "completed", token=second.token, result="new")
    with pytest.raises(Fenced):
        world.jobs.update_status(before.job_id, "completed", token=token, result="older still")
    job = world.jobs.get_job(before.job_id)
    assert (job.status, job.result, job.attempt) == (JobStatus.COMPLETED, "new", 2)
    assert job.late_result is not None and (job.late_result.attempt, job.late_result.result) == (
        1,
        "older still",
    )


def test_a_repeated_late_verdict_is_logged_once_and_that_of_an_earlier_attempt_dropped(
    world: World,
) -> None:
    before, first = late_job(world)
    world.jobs.retry(before.job_id)
    second = world.pick().token
    world.clock.advance(11)
    world.jobs.reap()
    for _ in range(3):
        with pytest.raises(Fenced, match="late_result"):
            world.jobs.update_status(before.job_id, "completed", token=second, result="2")
    assert kinds(world).count("job.late_result") == 1
    with pytest.raises(Fenced) as caught:
        world.jobs.update_status(before.job_id, "completed", token=first, result="1")
    assert "late_result" not in caught.value.message
    late = world.jobs.get_job(before.job_id).late_result
    assert late is not None and (late.attempt, late.result) == (2, "2")


def test_a_late_result_is_bounded_and_leaves_room_for_the_verdict_that_counts(world: World) -> None:
    before, token = late_job(world, prompt="é" * 200_000)
    with pytest.raises(Fenced, match="late_result"):
        world.jobs.update_status(before.job_id, "completed", token=token, result="ü" * 200_000)
    late = world.jobs.get_job(before.job_id).late_result
    assert late is not None and late.result is not None
    assert late.result.endswith("ü [cut]")
    assert len(late.result.encode()) <= JOB_LATE_BYTES_MAX + len(" [cut]")
    world.jobs.retry(before.job_id)
    done = world.jobs.update_status(
        before.job_id, "completed", token=world.pick().token, result="x" * 400_000
    )
    assert len(done.result or "") == 400_000


def test_a_late_result_that_has_no_room_is_refused_as_any_late_verdict_is(world: World) -> None:
    before, token = late_job(world)
    # As an earlier version registered it.
    before = replace(before, prompt="x" * (RECORD_BYTES_MAX - json_bytes(before) - 10_000))
    world.store.transact(lambda tx: tx.put(JOBS, before.job_id, before), scope=[JOBS])
    with pytest.raises(Fenced) as caught:
        world.jobs.update_status(
            before.job_id, "completed", token=token, result="y" * 60_000, error="y" * 60_000
        )
    assert "late_result" not in caught.value.message
    assert world.jobs.get_job(before.job_id) == before


def test_a_genuine_event_that_arrives_too_late_is_dropped_and_its_words_kept(world: World) -> None:
    before, _ = late_job(world)
    made = EventWorld(world.store)
    received = made.events.receive(made.forged(before, detail="42"))
    assert received.dropped is not None
    job = world.jobs.get_job(before.job_id)
    assert job.status is JobStatus.ERROR
    assert job.late_result is not None and job.late_result.result == "42"
    forged = made.forged(before, detail="43", key="not the key")
    made.events.receive(forged)
    assert world.jobs.get_job(before.job_id) == job


# --- retry ---


@pytest.mark.parametrize("ended", ["error", "cancelled"])
def test_a_job_that_failed_is_pending_again_with_its_history(world: World, ended: str) -> None:
    first, other = world.register("1", max_attempts=2), world.register("2")
    token = world.pick().token
    world.jobs.update_status(
        first.job_id, ended, token=token, error="no disk", error_code="command_failed"
    )
    retried = world.jobs.retry(first.job_id)
    assert (retried.status, retried.attempt, retried.deaths) == (JobStatus.PENDING, 1, 0)
    assert (retried.error, retried.error_code, retried.finished_at, retried.arrival) == (
        None,
        None,
        None,
        first.arrival,
    )
    [past] = retried.past_attempts
    assert (past.attempt, past.token, past.outcome, past.error) == (
        1,
        token,
        "command_failed",
        "no disk",
    )
    assert world.logged()[-1] == {
        "from": ended,
        "to": "pending",
        "attempt": 1,
        "token": None,
        "why": "retried",
    }
    # In its old place, and no longer among those that ended.
    again = world.pick()
    assert (again.job_id, again.attempt) == (first.job_id, 2)
    assert [job.job_id for job in world.jobs.list_jobs(status=ended)] == []
    assert [job.job_id for job in world.jobs.list_jobs()] == [first.job_id, other.job_id]
    assert (
        world.jobs.update_status(first.job_id, "completed", token=again.token).status
        is JobStatus.COMPLETED
    )


def test_the_error_of_a_job_that_another_program_ended_outlives_a_retry(world: World) -> None:
    """Its record names the error, and no past attempt: what went wrong was gone once it was tried
    again.
    """
    job = world.register()
    running = world.pick()
    ended = replace(
        running,
        status=JobStatus.ERROR,
        token=None,
        finished_at=world.clock.now(),
        error="no disk",
        error_code="exit_1",
    )
    world.store.transact(lambda tx: tx.put(JOBS, job.job_id, ended), scope=[JOBS])
    retried = world.jobs.retry(job.job_id)
    [past] = retried.past_attempts
    assert (past.attempt, past.token, past.outcome, past.error) == (1, None, "exit_1", "no disk")
    assert (past.started_at, past.ended_at, past.taken_away) == (
        running.started_at,
        ended.finished_at,
        False,
    )
    # Cancelled while it was pending, it has no other attempt than that.
    world.jobs.cancel(job.job_id, reason="not now")
    assert world.jobs.retry(job.job_id).past_attempts == (past,)


def test_a_retried_job_may_lose_as_many_workers_as_a_new_one(world: World) -> None:
    job = world.register(max_attempts=2)
    for pid in (7, 8):
        world.pick(world.worker(pid))
        world.machine.end(pid)
        world.jobs.reap()
    assert world.jobs.retry(job.job_id).deaths == 0
    world.pick(world.worker(9))
    world.machine.end(9)
    [back] = world.jobs.reap()
    assert (back.status, back.attempt, back.deaths) == (JobStatus.PENDING, 3, 1)


@pytest.mark.parametrize("status", ["pending", "running", "completed"])
def test_only_a_failed_job_can_be_retried(world: World, status: str) -> None:
    job = world.register()
    if status != "pending":
        token = world.pick().token
    if status == "completed":
        world.jobs.update_status(job.job_id, status, token=token)
    before = world.jobs.get_job(job.job_id)
    with raises(ImpossibleTransition, status=status):
        world.jobs.retry(job.job_id)
    assert world.jobs.get_job(job.job_id) == before
    with pytest.raises(NotFound):
        world.jobs.retry("nosuch")


def test_all_jobs_of_a_status_are_retried_of_one_label_or_of_all(world: World) -> None:
    failed = [world.register(str(number)) for number in range(5)]
    for _ in failed:
        job = world.pick()
        world.jobs.update_status(job.job_id, "error", token=job.token, error="x")
    other = world.jobs.register_job("y", agent="a", agent_session="other")
    world.jobs.update_status(other.job_id, "running")
    world.jobs.update_status(other.job_id, "error", error="x")
    dropped = world.register("dropped")
    world.jobs.cancel(dropped.job_id)
    retried = world.jobs.retry_all(agent_session=LABEL)
    assert [job.job_id for job in retried] == [job.job_id for job in reversed(failed)]
    assert [job.job_id for job in world.jobs.retry_all()] == [other.job_id]
    assert world.jobs.retry_all() == []
    assert [job.job_id for job in world.jobs.retry_all(status="cancelled")] == [dropped.job_id]
    with raises(InvalidValue, field="status"):
        world.jobs.retry_all(status="completed")


def test_only_so_many_past_attempts_are_remembered(world: World) -> None:
    job = world.register(prompt="x")
    for _ in range(JOB_PAST_ATTEMPTS_MAX + 5):
        picked = world.pick()
        world.jobs.update_status(job.job_id, "error", token=picked.token, error="e" * 10_000)
        world.jobs.retry(job.job_id)
    past = world.jobs.get_job(job.job_id).past_attempts
    assert [one.attempt for one in past] == list(range(6, JOB_PAST_ATTEMPTS_MAX + 6))
    assert max(json_bytes(one.error) for one in past) == JOB_PAST_ERROR_BYTES_MAX


# --- limits and leases ---


def test_a_new_job_has_a_day_and_no_idle_limit(world: World) -> None:
    job = world.register()
    assert (job.timeout_sec, job.idle_timeout_sec) == (DAY_S, None)
    token = world.pick().token
    # Neither a process nor a heartbeat: only the time limit ends it.
    world.clock.advance(DAY_S - 1)
    assert world.jobs.reap() == []
    assert (
        world.jobs.update_status(job.job_id, "completed", token=token).status is JobStatus.COMPLETED
    )
    world.register()
    world.pick()
    world.clock.advance(DAY_S + 1)
    assert [ended.error_code for ended in world.jobs.reap()] == ["timed_out"]


def test_a_claim_of_a_live_local_process_is_idle_only_on_request(world: World) -> None:
    world.register()
    world.pick(world.worker(7))
    world.clock.advance(DAY_S - 1)
    assert world.jobs.reap() == [] == world.jobs.abandoned()


def test_limits_of_records_that_name_none_are_as_they_were(world: World) -> None:
    own = world.register()
    assert JOBS.decode(own.job_id, JOBS.encode(own)) == own
    stored = json.loads(JOBS.encode(own))
    # As earlier versions wrote a job whose registrant named no limits.
    del stored["timeout_sec"], stored["idle_timeout_sec"]
    old = JOBS.decode(own.job_id, json.dumps(stored).encode())
    assert (old.timeout_sec, old.idle_timeout_sec) == (600, 120)


def test_the_job_of_a_machine_that_vanished_is_pending_again_after_the_lease(world: World) -> None:
    elsewhere = Machine("host-2")
    job = world.register(max_attempts=2)
    for attempt in (1, 2):
        token = world.pick(world.worker(attempt, elsewhere)).token
        world.clock.advance(JOB_LEASE_S / 2)
        world.jobs.heartbeat(job.job_id, token=token or 0)
        elsewhere.end(attempt)
        world.clock.advance(JOB_LEASE_S)
        assert world.jobs.reap() == []
        world.clock.advance(0.001)
        [reaped] = world.jobs.reap()
        with pytest.raises(Fenced, match="late_result"):
            world.jobs.update_status(job.job_id, "completed", token=token, result=str(attempt))
        if attempt == 1:
            assert (reaped.status, reaped.deaths, reaped.error_code) == (JobStatus.PENDING, 1, None)
            assert world.logged()[-1]["why"] == "worker_died"
        else:
            assert (reaped.status, reaped.deaths, reaped.error_code) == (
                JobStatus.ERROR,
                2,
                "worker_died",
            )


def test_a_short_idle_limit_shortens_the_lease_and_a_long_one_does_not_lengthen_it(
    world: World,
) -> None:
    elsewhere = Machine("host-2")
    for idle_s, lease_s in ((10.0, 10.0), (1000.0, JOB_LEASE_S)):
        world.register(idle_timeout_sec=idle_s, timeout_sec=5000)
        job = world.pick(world.worker(7, elsewhere))
        assert beat_every_s(job) == lease_s / 3
        world.clock.advance(lease_s + 1)
        [back] = world.jobs.reap()
        assert (back.status, back.deaths) == (JobStatus.PENDING, 1)
        world.jobs.cancel(job.job_id)


def test_without_a_process_the_end_of_heartbeats_is_no_death(world: World) -> None:
    """An agent that gives one sign and then works for an hour in silence must not get a second
    worker beside it.
    """
    job = world.register()
    token = world.pick().token or 0
    world.jobs.heartbeat(job.job_id, token=token)
    world.clock.advance(100 * JOB_LEASE_S)
    assert world.jobs.reap() == []
    world.jobs.update_status(job.job_id, JobStatus.COMPLETED, token=token)


def test_with_an_idle_limit_of_its_own_silence_without_a_process_is_an_error(world: World) -> None:
    job = world.register(idle_timeout_sec=1000)
    world.jobs.heartbeat(job.job_id, token=world.pick().token or 0)
    world.clock.advance(JOB_LEASE_S + 1)
    assert world.jobs.reap() == []
    world.clock.advance(1000)
    assert [ended.error_code for ended in world.jobs.reap()] == ["timed_out"]


def test_a_folder_of_another_program_keeps_that_programs_limits(tmp_path: Path) -> None:
    with connect(f"files:{tmp_path}", folders={"jobs": "."}) as hf:
        job = hf.jobs.register_job("x", agent="a", agent_session=LABEL)
        written = json.loads((tmp_path / f"{job.job_id}.json").read_text())
        assert (written["timeout_sec"], written["idle_timeout_sec"]) == (600, 120)
    with connect(f"files:{tmp_path / 'own'}") as hf:
        job = hf.jobs.register_job("x", agent="a", agent_session=LABEL)
        written = json.loads((tmp_path / "own" / "jobs" / f"{job.job_id}.json").read_text())
        assert (written["timeout_sec"], written["idle_timeout_sec"]) == (86400, None)
        assert hf.jobs.get_job(job.job_id) == job
