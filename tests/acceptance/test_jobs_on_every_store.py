"""Jobs through the whole house, by real processes, on every store that processes can share."""

import json
import multiprocessing
from pathlib import Path

import pytest

import holdfast
from holdfast.domains.jobs import JobStatus

pytestmark = pytest.mark.slow

WORKERS = 8
JOBS = 200
LABELS = ("tmux:a", "tmux:b")


@pytest.fixture(params=["sqlite", "files", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/store.sqlite"
    if request.param == "files":
        return f"files:{tmp_path}/state"
    return str(request.getfixturevalue("postgres_url"))


def _work(task: tuple[str, str]) -> list[tuple[str, int, str]]:
    """Pick and complete until nothing is left; return what was picked, with its token and label."""
    url, label = task
    done = []
    with holdfast.connect(url) as hf:
        while job := hf.jobs.pick_pending(label):
            assert job.token is not None
            done.append((job.job_id, job.token, job.agent_session))
            hf.jobs.update_status(job.job_id, JobStatus.COMPLETED, token=job.token)
    return done


def test_each_job_is_taken_once_by_a_worker_of_its_label_in_order(url: str) -> None:
    with holdfast.connect(url) as hf:
        ids = [hf.jobs.register_job(f"task {n}", agent="a", agent_session=LABELS[n % 2]).job_id for n in range(JOBS)]
        with multiprocessing.get_context("spawn").Pool(WORKERS) as pool:
            tasks = [(url, LABELS[n % 2]) for n in range(WORKERS)]
            taken = pool.map_async(_work, tasks, chunksize=1).get(120)
        assert sorted(job_id for done in taken for job_id, _, _ in done) == sorted(ids)
        for (_, label), done in zip(tasks, taken, strict=True):
            assert {session for _, _, session in done} <= {label}
            places = [ids.index(job_id) for job_id, _, _ in done]
            assert places == sorted(places)
        tokens = [token for done in taken for _, token, _ in done]
        assert len(set(tokens)) == JOBS
        assert all(job.status is JobStatus.COMPLETED and job.attempt == 1 for job in hf.jobs.list_jobs())
        told = [entry for batch in hf.log.since() for entry in batch.entries]
        assert len(told) == 3 * JOBS
        for job_id in ids:
            steps = [entry.data.get("to") for entry in told if entry.subject == job_id]
            assert steps == [None, "running", "completed"]


def test_the_command_line_on_every_store(url: str, tmp_path: Path) -> None:
    from tests.surfaces.command import CommandLine

    command = CommandLine(tmp_path, HOLDFAST_STORE=url)
    job_id = command("jobs", "register", "--prompt", "x", "--agent-session", "s").out.strip()
    picked = json.loads(command("jobs", "pick", "--agent-session", "s", "--json").out)
    assert picked["job_id"] == job_id
    assert command("jobs", "pick", "--agent-session", "s").status == 3
    token = str(picked["token"])
    assert command("jobs", "status", "--job", job_id, "--set", "error", "--token", token, "--error", "no").status == 0
    assert command("jobs", "status", "--job", job_id, "--set", "completed", "--token", token).status == 4
    assert command("jobs", "get", "--job", "nosuch").status == 1
    assert len(command("log", "--json").out.splitlines()) == 3
