"""Workers that are killed with -9: their jobs are pending again, their verdicts refused. Real
processes, on every store that processes can share.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.domains.jobs import Job, Jobs, JobStatus
from holdfast.domains.jobs.work import WorkRequest
from holdfast.kernel.errors import Fenced, StoreUnavailable
from holdfast.runtime.attempt import Attempt
from tests.harness.stopped_processes import stop_outside
from tests.harness.stores import store_url
from tests.harness.timeouts import NEVER_S, PATIENCE_S

pytestmark = pytest.mark.prove

LABEL = "tmux:a"
SILENCE_S = 2.0

_WORKER = """
import sys, time, holdfast
hf = holdfast.connect(sys.argv[1])
job = hf.jobs.pick_pending(sys.argv[2], wait_s=60, holder=hf.processes.current())
print(job.job_id, job.token, flush=True)
time.sleep(600)
"""


@pytest.fixture(params=["sqlite", "files", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return store_url(request, tmp_path)


class Worker:
    """A process that picks a job and never ends by itself."""

    def __init__(self, url: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _WORKER, url, LABEL], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline().split()
        self.job_id, self.token = said[0], int(said[1])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def test_a_worker_killed_amid_its_job(url: str) -> None:
    with holdfast.connect(url) as hf:
        job = hf.jobs.register_job("x", agent="a", agent_session=LABEL, max_attempts=2)
        first = Worker(url)
        assert first.job_id == job.job_id
        assert hf.jobs.pick_pending(LABEL) is None
        first.kill()
        second = Worker(url)
        assert second.job_id == job.job_id
        with pytest.raises(Fenced):
            hf.jobs.update_status(job.job_id, "completed", token=first.token)
        assert hf.jobs.get_job(job.job_id).token == second.token
        second.kill()
        ended = hf.jobs.get_job(job.job_id)
        assert (ended.status, ended.error_code, ended.attempt) == (
            JobStatus.ERROR,
            "worker_died",
            2,
        )
        assert hf.jobs.pick_pending(LABEL) is None


def test_the_job_of_a_machine_that_vanished_is_done_by_another(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOST_ID", "near")
    with holdfast.connect(postgres_url) as hf:
        job = hf.jobs.register_job(
            "x", agent="a", agent_session=LABEL, timeout_sec=600, idle_timeout_sec=SILENCE_S
        )
        work = [
            "--agent-session",
            LABEL,
            "--once",
            "-q",
            "--",
            "sh",
            "-c",
            "echo begun; exec sleep 600",
        ]
        far = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "holdfast.surfaces.cli.entry",
                "jobs",
                "run",
                "--store",
                postgres_url,
                *work,
            ],
            env={**os.environ, "HOLDFAST_HOST_ID": "far"},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert far.stdout is not None
        assert far.stdout.readline() == "begun\n"
        first = hf.jobs.peek(job.job_id)
        assert first is not None and first.claimed_by is not None
        assert (first.status, first.claimed_by.host_id) == (JobStatus.RUNNING, "far")
        far.kill()
        assert far.wait() == -signal.SIGKILL
        far.stdout.close()
        last = hf.jobs.peek(job.job_id)
        # Nothing wakes it: the machine only stops its heartbeats.
        second = hf.jobs.pick_pending(LABEL, wait_s=PATIENCE_S, holder=hf.processes.current())
        assert second is not None and last is not None
        assert (second.job_id, second.attempt, second.deaths, second.error_code) == (
            job.job_id,
            2,
            1,
            None,
        )
        assert second.started_at is not None and last.last_event_at is not None
        assert (second.started_at - last.last_event_at).total_seconds() >= SILENCE_S
        with pytest.raises(Fenced):
            hf.jobs.update_status(job.job_id, "completed", token=first.token, result="after all")
        assert (
            hf.jobs.update_status(job.job_id, "completed", token=second.token, result="done").result
            == "done"
        )
        kept = hf.jobs.get_job(job.job_id)
        assert kept.late_result is not None and (kept.result, kept.late_result.result) == (
            "done",
            "after all",
        )


class Telling:
    """A store, or its ears, that says when there is nothing to do but sleep."""

    def __init__(self, inner: Any, asleep: threading.Event) -> None:
        self._inner = inner
        self._asleep = asleep

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __enter__(self) -> "Telling":
        return self

    def __exit__(self, *how: object) -> None:
        self._inner.__exit__(*how)

    def listen(self, topics: Any) -> "Telling":
        return Telling(self._inner.listen(topics), self._asleep)

    def wait(self, timeout_s: float | None, **more: Any) -> Any:
        self._asleep.set()
        return self._inner.wait(timeout_s, **more)


@pytest.mark.usefixtures("no_second_look")
def test_a_waiting_worker_has_the_job_at_once(url: str) -> None:
    asleep = threading.Event()
    with holdfast.connect(url) as hf:
        hf.jobs.register_job("x", agent="a", agent_session=LABEL)
        first = Worker(url)
        jobs = Jobs(Telling(hf.store, asleep), hf.log, hf.processes)  # type: ignore[arg-type]
        got: list[Job | None] = []
        waiter = threading.Thread(
            target=lambda: got.append(jobs.pick_pending(LABEL, wait_s=NEVER_S)), daemon=True
        )
        waiter.start()
        assert asleep.wait(PATIENCE_S)
        first.kill()
        waiter.join(PATIENCE_S)
        assert [job and job.attempt for job in got] == [2]


def test_a_stopped_worker_is_not_taken_for_dead(url: str) -> None:
    with holdfast.connect(url) as hf:
        job = hf.jobs.register_job("x", agent="a", agent_session=LABEL)
        worker = Worker(url)
        stop_outside(worker.process.pid, url)
        try:
            assert hf.jobs.reap() == []
            assert hf.jobs.pick_pending(LABEL) is None
            assert hf.jobs.get_job(job.job_id).token == worker.token
        finally:
            os.kill(worker.process.pid, signal.SIGCONT)
            worker.kill()


def test_a_worker_whose_store_is_away_as_its_command_begins_finishes_the_job(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot listen for news of the job, and that is no reason to end its command; when it can,
    it asks for them.
    """
    os.mkfifo(tmp_path / "asked")
    with holdfast.connect(url) as hf:
        hf.jobs.register_job("x", agent="a", agent_session=LABEL)
        job = hf.jobs.pick_pending(LABEL, holder=hf.processes.current())
        assert job is not None
        listen, tries = hf.store.listen, iter(range(2))

        def away_at_first(topics: Sequence[str]) -> Any:
            if next(tries, None) is not None:
                raise StoreUnavailable("away", outcome="none")
            return listen(topics)

        monkeypatch.setattr(hf.store, "listen", away_at_first)
        # Its usual sign of life is minutes away, and its command waits for one.
        monkeypatch.setattr(
            hf.jobs, "heartbeat", lambda *_, **__: (tmp_path / "asked").write_text("once\n")
        )
        stop_fd = os.eventfd(0)
        request = WorkRequest(
            queue=LABEL,
            task=("/bin/sh", "-c", 'read -r word < "$0"; echo "$word"', str(tmp_path / "asked")),
            limit=1,
            wait_s=0,
            validate=None,
            stdin="none",
            heartbeat_s=None,
            stop_fd=stop_fd,
            adopts_orphans=False,
            on_output=None,
            on_event=None,
        )
        outcome = Attempt(
            hf,
            job,
            request,
            stop_fd=stop_fd,
            tree=None,
            registry_dir=None,
            on_progress=lambda: None,
            on_timeout=lambda _: None,
        ).run()
        os.close(stop_fd)
        assert (outcome.status, outcome.words) == (JobStatus.COMPLETED, "once")


def _toil(task: tuple[str, int]) -> None:
    """Complete jobs until there are none, and be killed amid some of them."""
    url, seed = task
    with holdfast.connect(url) as hf:
        me = hf.processes.current()
        job = hf.jobs.pick_pending(LABEL, holder=me)
        done = 0
        while job is not None:
            assert job.token is not None
            if done == seed:
                os.kill(os.getpid(), signal.SIGKILL)
            job = hf.jobs.finish_and_pick(
                job.job_id, "completed", token=job.token, holder=me
            ).picked
            done += 1


def test_workers_killed_under_load_lose_no_job_and_do_none_twice(url: str) -> None:
    number = 60
    with holdfast.connect(url) as hf:
        ids = {
            hf.jobs.register_job(str(n), agent="a", agent_session=LABEL, max_attempts=9).job_id
            for n in range(number)
        }
        context = multiprocessing.get_context("spawn")
        workers = [context.Process(target=_toil, args=((url, seed),)) for seed in (0, 1, 3, 7)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(PATIENCE_S)
        assert sum(worker.exitcode == -signal.SIGKILL for worker in workers) >= 3
        _toil((url, -1))
        jobs = hf.jobs.list_jobs()
        assert {job.job_id for job in jobs} == ids
        assert all(job.status is JobStatus.COMPLETED for job in jobs)
        logged = [entry for batch in hf.log.since() for entry in batch.entries]
        for job in jobs:
            steps = [
                entry.data["to"]
                for entry in logged
                if entry.subject == job.job_id and entry.kind == "job.status_changed"
            ]
            assert steps.count("completed") == 1
            assert steps == ["running", "pending"] * (job.attempt - 1) + ["running", "completed"]
