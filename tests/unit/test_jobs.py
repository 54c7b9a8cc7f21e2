"""Jobs: order, transitions, tokens, bad input, in memory and in plain files."""

import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.domains.jobs import Broker, Job, Jobs, JobStatus
from holdfast.domains.jobs.records import TRANSITIONS
from holdfast.domains.jobs.transitions import job_topic
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import (
    Collision,
    Fenced,
    ImpossibleTransition,
    InvalidName,
    InvalidValue,
    NotFound,
    StoreUnavailable,
)
from holdfast.kernel.limits import JOB_PROMPT_BYTES_MAX
from holdfast.kernel.names import check_id
from holdfast.kernel.store import Woken
from holdfast.primitives.journal import Journal
from holdfast.processes.procfs import Procfs
from holdfast.stores import listener
from holdfast.testing.clock import ManualClock
from tests.harness.errors import raises
from tests.harness.stores import open_store
from tests.harness.timeouts import NEVER_S, PATIENCE_S

LABEL = "tmux:a"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "files"])
def journal(
    request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path
) -> Iterator[Journal]:
    with closing(open_store(request.param, tmp_path, clock, request)) as store:
        yield Journal(store, actor="t")


@pytest.fixture
def jobs(journal: Journal) -> Jobs:
    return Jobs(journal._store, journal, Procfs())


def register(jobs: Jobs, prompt: str = "do it", label: str = LABEL, **more: object) -> Job:
    return jobs.register_job(prompt, agent="claude", agent_session=label, **more)  # type: ignore[arg-type]


def test_a_registered_job_is_pending_and_has_a_short_id(jobs: Jobs, clock: ManualClock) -> None:
    job = register(jobs, expected_artifacts=["a.md"])
    assert job.status is JobStatus.PENDING
    assert len(job.job_id) == 8
    assert job.created_at == clock.now()
    assert job.token is None
    assert jobs.get_job(job.job_id) == job


def test_ids_of_jobs_that_come_one_after_the_other_are_neighbours(
    jobs: Jobs, clock: ManualClock
) -> None:
    ids = []
    for _ in range(300):
        ids.append(register(jobs).job_id)
        clock.advance(0.025)
    assert all(job_id[0].isalnum() and check_id(job_id) for job_id in ids)
    # They start again once in four hours, so perhaps once in these seconds.
    assert sum(later < earlier for earlier, later in pairwise(ids)) <= 1


def test_an_id_that_is_taken_is_drawn_again(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([b"\0\0\1", b"\0\0\1", b"\0\0\2"])
    urandom = os.urandom
    monkeypatch.setattr(os, "urandom", lambda size: next(drawn) if size == 3 else urandom(size))
    first, second = register(jobs).job_id, register(jobs).job_id
    assert first[:4] == second[:4]
    assert (first[4:], second[4:]) == ("---0", "---1")


def test_pick_is_by_label_priority_and_arrival(jobs: Jobs) -> None:
    first, second = register(jobs, "1"), register(jobs, "2")
    urgent = register(jobs, "3", priority=5)
    other = register(jobs, "4", label="tmux:b")
    picked = [jobs.pick_pending(LABEL) for _ in range(4)]
    assert [job and job.job_id for job in picked] == [
        urgent.job_id,
        first.job_id,
        second.job_id,
        None,
    ]
    taken = jobs.pick_pending("tmux:b")
    assert taken is not None
    assert taken.job_id == other.job_id


def test_arrival_orders_jobs_that_share_an_instant(jobs: Jobs) -> None:
    ids = [register(jobs, str(n)).job_id for n in range(20)]
    assert [job.job_id for job in jobs.list_jobs()] == ids
    assert [job.job_id for _ in ids if (job := jobs.pick_pending(LABEL))] == ids


def test_a_claim_has_a_token_that_grows_with_each_attempt(jobs: Jobs) -> None:
    job = register(jobs)
    tokens = []
    for attempt in range(1, 4):
        claimed = jobs.pick_pending(LABEL)
        assert claimed is not None
        assert claimed.attempt == attempt
        assert claimed.token is not None
        tokens.append(claimed.token)
        jobs.update_status(job.job_id, JobStatus.PENDING, token=claimed.token)
    assert tokens == sorted(set(tokens))


def test_a_stale_worker_is_fenced_and_changes_nothing(jobs: Jobs) -> None:
    job = register(jobs)
    first = jobs.pick_pending(LABEL)
    assert first is not None
    jobs.update_status(job.job_id, JobStatus.PENDING)
    with pytest.raises(Fenced) as caught:
        jobs.update_status(job.job_id, JobStatus.COMPLETED, token=first.token)
    assert caught.value.fields["job_id"] == job.job_id
    second = jobs.pick_pending(LABEL)
    assert second is not None
    with pytest.raises(Fenced):
        jobs.update_status(job.job_id, JobStatus.ERROR, token=first.token)
    # What it said is kept beside what counts.
    assert replace(
        jobs.get_job(job.job_id), late_result=None, updated_at=second.updated_at
    ) == replace(second, late_result=None)
    done = jobs.update_status(job.job_id, JobStatus.COMPLETED, token=second.token, result="fine")
    assert (done.result, done.token, done.claimed_by) == ("fine", None, None)
    assert done.finished_at is not None
    with pytest.raises(Fenced):
        jobs.update_status(job.job_id, JobStatus.ERROR, token=second.token)


def _bring_to(jobs: Jobs, status: JobStatus) -> Job:
    job = register(jobs)
    if status is JobStatus.PENDING:
        return job
    if status is not JobStatus.CANCELLED:
        jobs.update_status(job.job_id, JobStatus.RUNNING)
    if status is not JobStatus.RUNNING:
        jobs.update_status(job.job_id, status)
    return jobs.get_job(job.job_id)


@pytest.mark.parametrize(
    ("before", "after"), list(itertools.product(JobStatus, JobStatus)), ids=lambda s: s.value
)
def test_every_transition_is_as_the_table_says(
    jobs: Jobs, journal: Journal, before: JobStatus, after: JobStatus
) -> None:
    job = _bring_to(jobs, before)
    logged = len(journal.tail(100)[0])
    if after in TRANSITIONS[before]:
        assert jobs.update_status(job.job_id, after).status is after
        assert len(journal.tail(100)[0]) == logged + 1
    else:
        with pytest.raises(ImpossibleTransition, match=f"is {before.value}"):
            jobs.update_status(job.job_id, after)
        assert jobs.get_job(job.job_id) == job
        assert len(journal.tail(100)[0]) == logged


def test_every_change_is_logged_without_the_prompt(jobs: Jobs, journal: Journal) -> None:
    job = register(jobs, "a secret prompt")
    claimed = jobs.pick_pending(LABEL)
    assert claimed is not None
    jobs.update_status(job.job_id, JobStatus.ERROR, error="no")
    entries, _ = journal.tail(10)
    assert [entry.kind for entry in entries] == [
        "job.registered",
        "job.status_changed",
        "job.status_changed",
    ]
    assert entries[1].data == {
        "from": "pending",
        "to": "running",
        "attempt": 1,
        "token": claimed.token,
    }
    assert all("secret" not in str(entry.data) for entry in entries)


def test_a_given_id_is_taken_once(jobs: Jobs) -> None:
    register(jobs, job_id="nightly-1")
    with raises(Collision, job_id="nightly-1"):
        register(jobs, job_id="nightly-1")


@pytest.mark.parametrize(
    "job_id", ["..", "../x", "a/b", "", "a\0", "x" * 10_000, "\U0001f600", ".x"]
)
def test_names_that_cannot_be_ids(jobs: Jobs, job_id: str) -> None:
    with pytest.raises(InvalidName):
        register(jobs, job_id=job_id or "/")
    with pytest.raises(InvalidName):
        jobs.get_job(job_id)
    with pytest.raises(InvalidName):
        jobs.update_status(job_id, JobStatus.RUNNING)
    assert jobs.list_jobs() == []


@pytest.mark.parametrize("job_id", ["-x", "_x"])
def test_an_id_may_begin_so_only_where_another_program_chose_it(jobs: Jobs, job_id: str) -> None:
    with pytest.raises(InvalidName):
        register(jobs, job_id=job_id)
    with pytest.raises(NotFound):
        jobs.get_job(job_id)


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout_sec": 0},
        {"timeout_sec": float("nan")},
        {"timeout_sec": "90"},
        {"idle_timeout_sec": float("inf")},
        {"prompt": "  \n"},
        {"prompt": "x" * (2 << 20)},
        {"prompt": "lone \ud800"},
        {"expected_artifacts": [5]},
        {"expected_artifacts": "out.txt"},
        {"expected_artifacts": ["a", ""]},
        {"expected_artifacts": ["a\nb"]},
        {"expected_artifacts": ["lone \ud800"]},
        {"workdir": " "},
        {"workdir": "/a\0b"},
        {"broker": Broker(password_env="")},
        {"broker": Broker(username="a\nb")},
        {"priority": "high"},
        {"priority": 1 << 80},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_values_that_cannot_be_stored_are_refused_whole(
    jobs: Jobs, journal: Journal, wrong: dict[str, object]
) -> None:
    with pytest.raises((InvalidValue, InvalidName)):
        register(jobs, **wrong)  # type: ignore[arg-type]
    assert jobs.list_jobs() == []
    assert journal.tail(10)[0] == []


def test_the_longest_prompt_can_be_claimed_and_a_longer_one_is_refused(jobs: Jobs) -> None:
    with raises(InvalidValue, field="prompt"):
        register(jobs, "x\n" * (JOB_PROMPT_BYTES_MAX // 3))
    job = register(jobs, "x" * (JOB_PROMPT_BYTES_MAX - 2), expected_artifacts=["a"] * 100)
    picked = jobs.pick_pending(LABEL)
    assert picked is not None and picked.prompt == job.prompt
    assert (
        jobs.update_status(job.job_id, "completed", token=picked.token, result="r" * 100_000).status
        is JobStatus.COMPLETED
    )


def test_labels_are_free_text_without_control_characters(jobs: Jobs) -> None:
    job = register(jobs, label="fe80::1 / \U0001f600")
    assert jobs.pick_pending("fe80::1 / \U0001f600") is not None
    with raises(InvalidName, what="agent session"):
        jobs.pick_pending("a\nb")
    assert jobs.list_jobs(agent_session=job.agent_session)[0].job_id == job.job_id


def test_an_unknown_job(jobs: Jobs) -> None:
    with raises(NotFound, job_id="nosuch"):
        jobs.get_job("nosuch")
    with pytest.raises(NotFound):
        jobs.update_status("nosuch", JobStatus.RUNNING)


def test_list_filters_and_keeps_the_newest(jobs: Jobs) -> None:
    for n in range(5):
        register(jobs, str(n), label=LABEL if n % 2 else "tmux:b")
    jobs.pick_pending(LABEL)
    assert [job.prompt for job in jobs.list_jobs(status=JobStatus.RUNNING)] == ["1"]
    assert [job.prompt for job in jobs.list_jobs(agent_session="tmux:b")] == ["0", "2", "4"]
    assert [job.prompt for job in jobs.list_jobs(limit=2)] == ["3", "4"]
    assert len(jobs.list_jobs(limit=9)) == 5
    assert jobs.list_jobs(limit=0) == []
    with raises(InvalidValue, field="limit"):
        jobs.list_jobs(limit=-1)


class Waiter:
    """A thread that picks, with no second look of its own before the test gives up."""

    def __init__(self, jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
        self._jobs = jobs
        self._got: list[Job | None] = []
        self._asleep = threading.Event()
        self._thread = threading.Thread(target=self._pick, daemon=True)
        wait = listener.FdListener.wait

        def noted(ears: listener.FdListener, timeout_s: float | None, **more: Any) -> Woken:
            self._asleep.set()
            return wait(ears, timeout_s, **more)

        monkeypatch.setattr(listener, "WAIT_RECHECK_S", NEVER_S)
        monkeypatch.setattr(listener.FdListener, "wait", noted)

    def fall_asleep(self) -> None:
        """Return when it has found nothing: from here on only a notification can bring it a job in
        time.
        """
        self._thread.start()
        assert self._asleep.wait(PATIENCE_S)

    def got(self) -> Job | None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "nobody woke it"
        return self._got[0]

    def _pick(self) -> None:
        self._got.append(self._jobs.pick_pending(LABEL, wait_s=NEVER_S))


def test_a_waiting_pick_wakes_for_its_own_label(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiter = Waiter(jobs, monkeypatch)
    waiter.fall_asleep()
    register(jobs, label="tmux:b")
    job = register(jobs)
    picked = waiter.got()
    assert picked is not None
    assert picked.job_id == job.job_id


@pytest.mark.parametrize("shown", [True, False])
def test_a_worker_hears_that_its_job_was_put_back_whatever_was_shown(
    jobs: Jobs, journal: Journal, shown: bool
) -> None:
    register(jobs)
    job = jobs.pick_pending(LABEL)
    assert job is not None
    with journal._store.listen([job_topic(job.job_id)]) as ears:
        jobs.requeue(job.job_id, token=job.token if shown else None)
        assert ears.wait(0).notified


def test_a_waiting_pick_wakes_for_a_requeue(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    job = register(jobs)
    jobs.pick_pending(LABEL)
    waiter = Waiter(jobs, monkeypatch)
    waiter.fall_asleep()
    jobs.update_status(job.job_id, JobStatus.PENDING)
    picked = waiter.got()
    assert picked is not None
    assert picked.attempt == 2


def test_a_waiting_pick_gives_up_in_time(jobs: Jobs) -> None:
    assert jobs.pick_pending(LABEL, wait_s=0.01) is None
    with raises(InvalidValue, field="wait_s"):
        jobs.pick_pending(LABEL, wait_s=float("nan"))


def test_every_change_moves_updated_at(jobs: Jobs, clock: ManualClock) -> None:
    job = register(jobs)
    clock.advance(5)
    claimed = jobs.pick_pending(LABEL)
    assert claimed is not None
    assert claimed.created_at == job.created_at
    assert claimed.updated_at == claimed.started_at == clock.now() > job.updated_at
    clock.advance(5)
    done = jobs.update_status(job.job_id, JobStatus.COMPLETED)
    assert done.updated_at == done.finished_at == clock.now() > claimed.updated_at
    assert done.started_at == claimed.started_at


def test_a_status_may_be_given_by_its_name(jobs: Jobs) -> None:
    job = register(jobs)
    assert jobs.update_status(job.job_id, "running").status is JobStatus.RUNNING
    assert [found.job_id for found in jobs.list_jobs(status="running")] == [job.job_id]
    statuses: list[Any] = ["finished", "", None, 5, []]
    for wrong in statuses:
        with pytest.raises(InvalidValue, match="pending, running, completed, error, cancelled"):
            jobs.update_status(job.job_id, wrong)
    with pytest.raises(InvalidValue):
        jobs.list_jobs(status="finished")
    assert jobs.get_job(job.job_id).status is JobStatus.RUNNING


def test_a_late_repeat_of_a_verdict_names_where_to_look(jobs: Jobs) -> None:
    job = register(jobs)
    claimed = jobs.pick_pending(LABEL)
    assert claimed is not None
    jobs.update_status(job.job_id, JobStatus.COMPLETED, token=claimed.token)
    with pytest.raises(
        Fenced,
        match=f"is completed; token {claimed.token} no longer counts.*jobs get --job {job.job_id}",
    ):
        jobs.update_status(job.job_id, JobStatus.COMPLETED, token=claimed.token)


def test_what_goes_wrong_with_old_jobs_does_not_concern_a_new_one(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.domains.jobs import registry, retention

    def fail(*_args: object, **_: object) -> int:
        raise StoreUnavailable("the disk is full", outcome="none")

    monkeypatch.setattr(registry, "JOBS_PRUNE_EVERY", 1)
    monkeypatch.setattr(retention, "prune", fail)
    assert register(jobs).status is JobStatus.PENDING


def test_a_status_equals_its_text_and_is_written_as_that(jobs: Jobs) -> None:
    job = register(jobs)
    assert job.status == "pending"
    cancelled = jobs.update_status(job.job_id, "cancelled")
    assert cancelled.status == "cancelled"
    assert b'"status":"cancelled"' in to_json(cancelled)


@pytest.mark.parametrize(
    ("field", "value"),
    [("workdir", "build"), ("priority", 1001), ("priority", -1001), ("prompt", " \n")],
)
def test_a_job_that_no_surface_takes_is_refused_by_the_library_too(
    jobs: Jobs, field: str, value: object
) -> None:
    wanted = {"prompt": "x", "agent": "a", "agent_session": "tmux:a", field: value}
    with pytest.raises(InvalidValue) as refused:
        jobs.register_job(**wanted)  # type: ignore[arg-type]
    assert refused.value.fields["field"] == field
    assert jobs.list_jobs() == []
