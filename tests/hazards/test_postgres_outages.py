"""PostgreSQL stopped, crashed and cut off under the load of several machines: nothing lost, nothing
done twice.

HOLDFAST_RESTARTS and HOLDFAST_CUTS set how often; a run of the suite does it a few times.
"""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

import holdfast
from tests.harness.timeouts import PATIENCE_S, until
from tests.hazards.postgres_load import check, followed, load
from tests.stores.postgres_proxy import Proxy
from tests.stores.postgres_server import Server, running

pytestmark = pytest.mark.prove

RESTARTS = int(os.environ.get("HOLDFAST_RESTARTS", "4"))
CUTS = int(os.environ.get("HOLDFAST_CUTS", "9"))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as server:
        yield server


def test_a_server_restarted_and_crashed_again_and_again(server: Server) -> None:
    url = server.database()
    with followed(url) as follower, load(url) as machines:
        machines.progress()
        for number in range(RESTARTS):
            server.crash() if number % 2 else server.stop()
            server.start()
            machines.progress()
        reported = machines.end()
    with holdfast.connect(url) as hf:
        check(hf, reported, follower.seen)
    assert all(one.counted >= RESTARTS for one in reported)


def test_watchers_and_workers_wait_until_the_server_is_back(server: Server, tmp_path: Path) -> None:
    url = server.database()
    with holdfast.connect(url) as hf, ExitStack() as begun:
        job_id = hf.jobs.register_job("x", agent="a", agent_session="s").job_id
        hf.job_events.publish(job_id, "started")
        first, second = (
            hf.jobs.register_job("y", agent="a", agent_session=label).job_id for label in ("t", "u")
        )
        watched = begun.enter_context(_process(tmp_path, url, "jobs", "watch", job_id))
        following = begun.enter_context(_process(tmp_path, url, "log", "--follow"))
        run = ("jobs", "run", "--agent-session")
        worker = begun.enter_context(_process(tmp_path / "t", url, *run, "t", "--", "echo", "fine"))
        quiet = begun.enter_context(
            _process(tmp_path / "u", url, *run, "u", "-q", "--", "echo", "fine")
        )
        assert watched.stdout is not None and following.stdout is not None
        assert worker.stdout is not None and quiet.stdout is not None
        assert (
            watched.stderr is not None
            and following.stderr is not None
            and worker.stderr is not None
        )
        assert watched.stdout.readline() == f"{job_id} #1 started\n"
        assert "job.registered" in following.stdout.readline()
        # Each was seen to run, since a process that starts while the server is down gets an error
        # and ends.
        assert (worker.stdout.readline(), quiet.stdout.readline()) == ("fine\n", "fine\n")
        # And has nothing left to do, not even to write down: what an outage keeps from the audit
        # log is reported, quiet or not.
        for job, folder in ((first, tmp_path / "t"), (second, tmp_path / "u")):
            _written_down(folder / "logs", job)
        server.stop()
        try:
            # Longer than a transaction is tried for.
            for stream in (watched.stderr, following.stderr, worker.stderr):
                assert any("goes on when the store is back" in line for line in stream)
        finally:
            server.start()
        hf.jobs.register_job("z", agent="a", agent_session="t")
        assert worker.stdout.readline() == "fine\n"
        hf.jobs.register_job("q", agent="a", agent_session="u")
        assert quiet.stdout.readline() == "fine\n"
        for one in (worker, quiet):
            one.terminate()
            _, complained = one.communicate(timeout=PATIENCE_S)
            assert one.returncode == 0
        assert complained == ""
        hf.jobs.update_status(job_id, "completed")
        assert any(f"{job_id} " in line and "to=completed" in line for line in following.stdout)
        said, _ = watched.communicate(timeout=PATIENCE_S)
        assert (watched.returncode, said) == (0, f"{job_id} is completed\n")


def _written_down(logs: Path, job_id: str) -> None:
    """Wait until the end of a job is in an audit log, and its writer is done."""
    status = logs / job_id / "status.json"
    until(lambda: status.exists() and json.loads(status.read_bytes())["status"] == "completed")
    with (logs / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


@contextmanager
def _process(folder: Path, url: str, *words: str) -> Iterator["subprocess.Popen[str]"]:
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "holdfast.surfaces.cli.entry", *words]
    environment = {
        **os.environ,
        "HOLDFAST_STORE": url,
        "DELEGATE_JOB_LOGS_DIR": str(folder / "logs"),
        "PYTHONUNBUFFERED": "1",
    }
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=environment, cwd=folder, stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_connections_cut_before_at_and_after_their_commit(server: Server) -> None:
    url = server.database()
    with closing(Proxy(server.folder)) as proxy:
        distant = url.replace(str(server.folder), str(proxy.folder))
        # Who was cut off has time enough to look it up, however busy the machine is.
        with followed(url) as follower, load(distant, call_s=PATIENCE_S) as machines:
            machines.progress()
            for number in range(CUTS):
                proxy.lost, proxy.lose = 0, ("before", "after", "all")[number % 3]
                until(lambda: proxy.lost)
                machines.progress()
            proxy.lose = ""
            reported = machines.end()
    with holdfast.connect(url) as hf:
        check(hf, reported, follower.seen)
    # Every cut could be looked up, so that nobody got an error.
    assert not [one.errors for one in reported if one.errors]
