"""The worker of the library: `hf.jobs.work` with handlers and commands."""

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

import holdfast
from holdfast import Holdfast, Job, JobStatus, errors
from tests.harness.timeouts import PATIENCE_S, until

QUEUE = "tmux:a"


@pytest.fixture
def hf(tmp_path: Path) -> Holdfast:
    return holdfast.connect(f"sqlite:{tmp_path}/store.sqlite")


def register(hf: Holdfast, prompt: str = "x", **more: object) -> str:
    job = hf.jobs.register_job(prompt, agent="a", agent_session=QUEUE, **more)  # type: ignore[arg-type]
    return job.job_id


def _peek(hf: Holdfast, job: Job) -> Job:
    found = hf.jobs.peek(job.job_id)
    assert found is not None
    return found


def test_a_handler_does_one_job_after_the_other(hf: Holdfast) -> None:
    ids = [register(hf, prompt) for prompt in ("one", "two")]
    report = hf.jobs.work(QUEUE, lambda job: job.prompt.upper(), wait_s=0)
    assert (report.completed, report.attempts, report.stopped) == (2, 2, False)
    assert [hf.jobs.get_job(job_id).result for job_id in ids] == ["ONE", "TWO"]
    kinds = [event.event for event in hf.job_events.of_job(ids[0])]
    assert kinds == ["started", "completed"]
    assert hf.jobs.work(QUEUE, lambda job: None, wait_s=0).attempts == 0


def test_a_worker_stops_at_its_limit_and_leaves_the_next_job_alone(hf: Holdfast) -> None:
    first, second = register(hf), register(hf)
    assert hf.jobs.work(QUEUE, lambda job: None, limit=1).completed == 1
    assert hf.jobs.get_job(first).status is JobStatus.COMPLETED
    assert hf.jobs.get_job(second).attempt == 0


def test_an_exception_of_a_handler_ends_its_job_in_error(hf: Holdfast) -> None:
    failing, odd, unencodable = register(hf), register(hf), register(hf)

    def handle(job: Job) -> str | None:
        if job.job_id == failing:
            raise ValueError("no such board")
        return 5 if job.job_id == odd else "\udcff"  # type: ignore[return-value]

    assert hf.jobs.work(QUEUE, handle, wait_s=0).failed == 2
    job = hf.jobs.get_job(failing)
    assert (job.status, job.error_code) == (JobStatus.ERROR, "handler_failed")
    assert job.error == "ValueError: no such board"
    assert hf.jobs.get_job(odd).error_code == "handler_failed"
    assert hf.jobs.get_job(unencodable).result == "\\udcff"


def test_a_handler_learns_from_its_heartbeat_that_the_job_was_cancelled(hf: Holdfast) -> None:
    job_id = register(hf)

    def handle(job: Job) -> str | None:
        hf.jobs.cancel(job.job_id)
        hf.jobs.heartbeat(job.job_id, token=job.token or 0)
        return "never"

    assert hf.jobs.work(QUEUE, handle, wait_s=0).lost == 1
    assert hf.jobs.get_job(job_id).status is JobStatus.CANCELLED


def test_the_worker_sends_heartbeats_while_a_handler_works(hf: Holdfast) -> None:
    register(hf, idle_timeout_sec=60)

    def handle(job: Job) -> str | None:
        until(lambda: _peek(hf, job).last_event_at != begun(job))
        return None

    def begun(job: Job) -> object:
        return hf.job_events.of_job(job.job_id)[0].timestamp

    assert hf.jobs.work(QUEUE, handle, heartbeat_s=0.05, wait_s=0).completed == 1


def test_a_handler_beyond_its_time_limit_fails_its_job_and_its_result_is_kept(
    hf: Holdfast,
) -> None:
    job_id = register(hf, timeout_sec=0.2)

    def handle(job: Job) -> str | None:
        until(lambda: _peek(hf, job).status.ended)
        return "late"

    assert hf.jobs.work(QUEUE, handle, wait_s=0).failed == 1
    job = hf.jobs.get_job(job_id)
    assert (job.status, job.error_code) == (JobStatus.ERROR, "timed_out")
    assert job.late_result is not None and job.late_result.result == "late"


def test_an_expected_artifact_is_looked_for_after_a_handler(hf: Holdfast, tmp_path: Path) -> None:
    register(hf, expected_artifacts=["out.txt"], workdir=str(tmp_path))
    assert hf.jobs.work(QUEUE, lambda job: None, wait_s=0).failed == 1
    register(hf, expected_artifacts=["out.txt"], workdir=str(tmp_path))

    def write(job: Job) -> str | None:
        Path(job.workdir or "", "out.txt").write_text("there")
        return None

    check = [sys.executable, "-c", "assert open('out.txt').read() == 'there'"]
    assert hf.jobs.work(QUEUE, write, validate=check, wait_s=0).completed == 1


def test_a_command_gets_the_job_and_its_lines_are_passed_on(hf: Holdfast) -> None:
    job_id = register(hf, "greet")
    lines: list[str] = []
    said: list[str] = []
    report = hf.jobs.work(
        QUEUE,
        ["sh", "-c", 'cat; echo; echo "$HOLDFAST_JOB_ID"'],
        stdin="prompt",
        limit=1,
        on_output=lines.append,
        on_event=said.append,
    )
    assert report.completed == 1
    assert lines == ["greet", job_id]
    assert hf.jobs.get_job(job_id).result == job_id
    assert said[0].startswith(f"job {job_id}, attempt 1")


def test_a_descriptor_stops_a_worker_in_another_thread_and_its_job_is_put_back(
    hf: Holdfast, tmp_path: Path
) -> None:
    job_id, begun = register(hf), tmp_path / "begun"
    stop_fd = os.eventfd(0)
    reports: list[tuple[int, bool]] = []

    def work() -> None:
        report = hf.jobs.work(
            QUEUE, ["sh", "-c", f"touch {begun}; exec sleep 600"], stop_fd=stop_fd
        )
        reports.append((report.given_back, report.stopped))

    thread = threading.Thread(target=work)
    thread.start()
    until(begun.exists)
    os.eventfd_write(stop_fd, 1)
    thread.join(PATIENCE_S)
    os.close(stop_fd)
    assert reports == [(1, True)]
    assert hf.jobs.get_job(job_id).status is JobStatus.PENDING


def test_a_signal_lets_a_handler_finish_and_a_second_interrupt_gives_its_job_back(
    hf: Holdfast,
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    first, second = register(hf), register(hf)

    def handle(_: Job) -> str | None:
        signal.raise_signal(signal.SIGTERM)
        return "finished"

    report = hf.jobs.work(QUEUE, handle)
    assert (report.completed, report.stopped) == (1, True)
    assert hf.jobs.get_job(first).result == "finished"
    assert signal.getsignal(signal.SIGTERM) is before

    def interrupted(_: Job) -> str | None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        return "never"

    with pytest.raises(KeyboardInterrupt):
        hf.jobs.work(QUEUE, interrupted)
    assert hf.jobs.get_job(second).status is JobStatus.PENDING


@pytest.mark.parametrize("task", [[], "ls -l", ["ls", 5], 7])
def test_what_is_no_task_is_refused(hf: Holdfast, task: object) -> None:
    with pytest.raises(errors.InvalidValue):
        hf.jobs.work(QUEUE, task, wait_s=0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "more",
    [
        {"limit": 0},
        {"wait_s": float("nan")},
        {"heartbeat_s": 0.0},
        {"heartbeat_s": float("nan")},
        {"heartbeat_s": float("inf")},
        {"stdin": "result"},
        {"validate": "ls -l"},
        {"validate": []},
    ],
)
def test_arguments_of_a_worker_that_cannot_be_are_refused(
    hf: Holdfast, more: dict[str, object]
) -> None:
    job_id = register(hf)
    with pytest.raises(errors.InvalidValue):
        hf.jobs.work(QUEUE, ["true"], **{"wait_s": 0, **more})  # type: ignore[arg-type]
    assert hf.jobs.get_job(job_id).status is JobStatus.PENDING


def test_closing_a_connection_that_changed_jobs_writes_the_audit_log(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/store.sqlite"
    logs = tmp_path / "store.sqlite-job-logs"
    with holdfast.connect(url) as hf:
        job_id = register(hf)
        assert not logs.exists()
    assert sorted(path.name for path in (logs / job_id).iterdir()) == [
        "events.ndjson",
        "meta.json",
        "status.json",
    ]
    with holdfast.connect(url) as hf:
        assert hf.jobs.pick_pending(QUEUE) is not None
    # A pick leaves it to the next one.
    assert len((logs / job_id / "events.ndjson").read_text().splitlines()) == 1
    with holdfast.connect(url) as hf:
        assert hf.catch_up() == []
    assert len((logs / job_id / "events.ndjson").read_text().splitlines()) == 2


def test_an_audit_log_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite-job-logs").write_text("in the way")
    with holdfast.connect(f"sqlite:{tmp_path}/store.sqlite") as hf:
        register(hf)
        [trouble] = hf.catch_up(wait=True)
        assert "store.sqlite-job-logs" in trouble
