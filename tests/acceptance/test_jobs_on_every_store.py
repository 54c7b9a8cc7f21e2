"""Jobs end to end, by real processes, on every store that processes can share."""

import json
import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import holdfast
from holdfast.domains.jobs import JobStatus
from tests.harness.stores import store_url
from tests.harness.timeouts import PATIENCE_S

pytestmark = pytest.mark.prove

WORKERS = 8
JOBS = int(os.environ.get("HOLDFAST_TEST_JOBS", "200"))
"""The whole of it is 10,000: some minutes here."""
LABELS = ("tmux:a", "tmux:b")


@pytest.fixture(params=["sqlite", "files", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return store_url(request, tmp_path)


Done = list[tuple[str, int, str]]


def _work(task: tuple[str, str]) -> Done:
    """Pick and complete until nothing is left; return what was picked, with its token and label."""
    url, label = task
    with holdfast.connect(url) as hf:
        return _toil(hf, label)


def _toil(hf: holdfast.Holdfast, label: str) -> Done:
    done: Done = []
    me = hf.processes.current()
    while job := hf.jobs.pick_pending(label, holder=me):
        # Half of them the one way, half the other.
        while job is not None:
            assert job.token is not None
            done.append((job.job_id, job.token, job.agent_session))
            if len(done) % 2:
                job = hf.jobs.finish_and_pick(
                    job.job_id, JobStatus.COMPLETED, token=job.token, holder=me
                ).picked
            else:
                hf.jobs.update_status(job.job_id, JobStatus.COMPLETED, token=job.token)
                job = None
    return done


TASKS = [LABELS[number % 2] for number in range(WORKERS)]


def test_each_job_is_taken_once_by_a_worker_of_its_label_in_order(url: str) -> None:
    with holdfast.connect(url) as hf:
        ids = _register(hf)
        with multiprocessing.get_context("spawn").Pool(WORKERS) as pool:
            taken = pool.map_async(_work, [(url, label) for label in TASKS], chunksize=1).get(
                4 * PATIENCE_S
            )
        _judge(hf, ids, taken)


def test_the_same_by_threads_in_memory() -> None:
    with holdfast.connect("memory:") as hf, ThreadPoolExecutor(WORKERS) as pool:
        ids = _register(hf)
        _judge(hf, ids, list(pool.map(lambda label: _toil(hf, label), TASKS)))


def _register(hf: holdfast.Holdfast) -> list[str]:
    return [
        hf.jobs.register_job(f"task {n}", agent="a", agent_session=LABELS[n % 2]).job_id
        for n in range(JOBS)
    ]


def _judge(hf: holdfast.Holdfast, ids: list[str], taken: list[Done]) -> None:
    order = {job_id: number for number, job_id in enumerate(ids)}
    assert sorted(job_id for done in taken for job_id, _, _ in done) == sorted(ids)
    for label, done in zip(TASKS, taken, strict=True):
        assert {session for _, _, session in done} <= {label}
        places = [order[job_id] for job_id, _, _ in done]
        assert places == sorted(places)
    tokens = [token for done in taken for _, token, _ in done]
    assert len(set(tokens)) == JOBS
    assert all(
        job.status is JobStatus.COMPLETED and job.attempt == 1
        for job in hf.jobs.list_jobs(limit=JOBS)
    )
    reported: dict[str, list[object]] = {}
    for batch in hf.log.since():
        for entry in batch.entries:
            reported.setdefault(entry.subject, []).append(entry.data.get("to"))
    assert reported == {job_id: [None, "running", "completed"] for job_id in ids}


def test_the_command_line_on_every_store(url: str, tmp_path: Path) -> None:
    from tests.surfaces.command import CommandLine

    command = CommandLine(tmp_path, HOLDFAST_STORE=url)
    job_id = command("jobs", "register", "--prompt", "x", "--agent-session", "s").out.strip()
    picked = json.loads(command("jobs", "pick", "--agent-session", "s", "--json").out)
    assert picked["job_id"] == job_id
    assert command("jobs", "pick", "--agent-session", "s").status == 3
    token = str(picked["token"])
    assert (
        command(
            "jobs", "status", "--job", job_id, "--set", "error", "--token", token, "--error", "no"
        ).status
        == 0
    )
    assert (
        command("jobs", "status", "--job", job_id, "--set", "completed", "--token", token).status
        == 4
    )
    assert command("jobs", "get", "--job", "nosuch").status == 1
    assert len(command("log", "--json").out.splitlines()) == 3
    assert command("jobs", "watch", job_id).status == 1
    nobody = {
        "MQTT_BROKER": "127.0.0.1",
        "MQTT_PORT": "9",
        "DELEGATE_JOB_LOGS_DIR": str(tmp_path / "logs"),
    }
    command.environment.update(nobody)
    second = command("jobs", "register", "--prompt", "y", "--agent-session", "s").out.strip()
    watcher = command.start("jobs", "watch", second, "--timeout", "60")
    ran = command("jobs", "run", "--agent-session", "s", "--once", "--", "echo", "fine")
    assert (ran.status, ran.out) == (0, "fine\n")
    said, _ = watcher.communicate(timeout=PATIENCE_S)
    assert (watcher.returncode, said.splitlines()[-1]) == (0, f"{second} is completed: fine")
    assert command("jobs", "logs", second, "--json").out.count("\n") == 5
