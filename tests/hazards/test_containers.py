"""One store, used from the host and from containers of the same kernel that have a boot id or pids
of their own.
"""

import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.processes.procfs import Procfs
from tests.harness.containers import HOST, Container, needs_containers, own_boot_id
from tests.harness.timeouts import PATIENCE_S

pytestmark = needs_containers

_AT_ONCE_S = 10.0
"""Enough for a busy machine, and shorter than the lease that a lost lock would have."""

CONNECT = """
import os, sys
import holdfast
from holdfast.kernel.errors import HoldfastError
hf = holdfast.connect(sys.argv[1])
def try_lock(by, timeout_s):
    try:
        return hf.locks.acquire("router-1", by=by, timeout_s=timeout_s)
    except HoldfastError as error:
        return None
"""

HOLDS = (
    CONNECT
    + f"print('holds' if try_lock('first', {PATIENCE_S}) else 'refused', flush=True); input()"
)
TAKES = CONNECT + "print('holds' if try_lock('second', float(sys.argv[2])) else 'refused')"
WAITS = (
    CONNECT
    + "print('waits', flush=True); print('holds' if try_lock('next', float(sys.argv[2])) else "
    "'refused')"
)

WORKS = (
    CONNECT
    + """
hf.jobs.register_job("work", agent="a", agent_session="tmux:a", job_id="job-1")
print(hf.jobs.pick_pending("tmux:a", holder=hf.processes.current()).job_id, flush=True)
input()
"""
)
PICKS = (
    CONNECT
    + """
reaped = [job.job_id for job in hf.jobs.reap()]
picked = hf.jobs.pick_pending("tmux:a", holder=hf.processes.current())
print(reaped, picked and picked.job_id, hf.jobs.get_job("job-1").status.value)
"""
)

TAKES_TURNS = (
    CONNECT
    + """
folder, turns = sys.argv[2], int(sys.argv[3])
print("open", flush=True)
input()
for _ in range(turns):
    with hf.locks.hold("router-1", by=f"{os.getpid()} {hf.processes.here()}", timeout_s=None):
        os.close(os.open(f"{folder}/inside", os.O_CREAT | os.O_EXCL))
        with open(f"{folder}/count", "r+") as file:
            count = int(file.read())
            file.seek(0)
            file.write(str(count + 1))
        os.unlink(f"{folder}/inside")
"""
)


@pytest.fixture(params=["sqlite", "files"])
def url(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    return {"sqlite": f"sqlite:{tmp_path}/store.sqlite", "files": f"files:{tmp_path}/state"}[
        request.param
    ]


@pytest.fixture(params=["own boot id", "own boot id and pids"])
def container(tmp_path: Path, request: pytest.FixtureRequest) -> Container:
    return Container(boot_id=own_boot_id(tmp_path), own_pids="pids" in request.param)


def _line(program: "subprocess.Popen[str]") -> str:
    assert program.stdout is not None
    return program.stdout.readline().strip()


def _lock_files(folder: Path) -> dict[str, int]:
    """The names and inodes of the volatile files."""
    return {path.name: path.stat().st_ino for path in folder.rglob("*.locks-*.sqlite")}


def _end(program: "subprocess.Popen[str]") -> None:
    program.kill()
    program.communicate(timeout=PATIENCE_S)


@pytest.mark.parametrize("inside_first", [False, True])
def test_a_lock_is_held_once_whatever_the_boot_ids(
    tmp_path: Path, url: str, container: Container, inside_first: bool
) -> None:
    """The container's first lock deleted the host's lock file, and both held router-1."""
    first, second = (container, HOST) if inside_first else (HOST, container)
    with first.start(HOLDS, url) as holder:
        assert _line(holder) == "holds"
        there = _lock_files(tmp_path)
        assert len(there) == 1
        assert second.run(TAKES, url, 0.2) == "refused"
        assert first.run(TAKES, url, 0.2) == "refused"
        assert _lock_files(tmp_path) == there
        _end(holder)


@pytest.mark.parametrize("inside_first", [False, True])
def test_a_lock_goes_on_to_a_waiter_of_another_boot_id_when_its_holder_is_killed(
    url: str, container: Container, inside_first: bool
) -> None:
    """Nobody with the holder's boot id has the store open any more, so it is dead, long before its
    lease ends.
    """
    first, second = (container, HOST) if inside_first else (HOST, container)
    with first.start(HOLDS, url) as holder:
        assert _line(holder) == "holds"
        with second.start(WAITS, url, PATIENCE_S) as waiter:
            assert _line(waiter) == "waits"
            _end(holder)
            assert _line(waiter) == "holds"
            assert waiter.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("inside_first", [False, True])
def test_a_running_job_is_not_run_again_by_a_process_of_another_boot_id(
    url: str, container: Container, inside_first: bool
) -> None:
    first, second = (container, HOST) if inside_first else (HOST, container)
    with first.start(WORKS, url) as worker:
        assert _line(worker) == "job-1"
        assert second.run(PICKS, url) == "[] None running"
        _end(worker)
    # It is dead now, and that is seen.
    assert second.run(PICKS, url) == "['job-1'] job-1 running"


def test_processes_of_one_boot_share_the_volatile_file_and_the_next_boot_begins_a_new_one(
    tmp_path: Path, url: str, container: Container
) -> None:
    with HOST.start(HOLDS, url) as host:
        assert _line(host) == "holds"
        with container.start(WAITS, url, PATIENCE_S) as inside:
            assert _line(inside) == "waits"
            _end(host)
            assert _line(inside) == "holds"
            assert inside.wait(PATIENCE_S) == 0
        (name,) = _lock_files(tmp_path)
        assert Procfs().boot_id() in name
    # As after a reboot: nobody uses the file.
    assert container.run(TAKES, url, _AT_ONCE_S) == "holds"
    (name,) = _lock_files(tmp_path)
    assert container.boot_id is not None
    assert container.boot_id.read_text().strip() in name


def test_a_crowd_of_many_boot_ids_takes_turns(tmp_path: Path, url: str) -> None:
    """All start at once on an unused store: the first one chooses the file, and the others use it."""
    (tmp_path / "count").write_text("0")
    turns = 6
    crowd = [
        HOST,
        HOST,
        *(Container(boot_id=own_boot_id(tmp_path), own_pids=n % 2 == 1) for n in range(4)),
    ]
    with ExitStack() as ended:
        programs = [
            ended.enter_context(each.start(TAKES_TURNS, url, tmp_path, turns)) for each in crowd
        ]
        for program in programs:
            ended.callback(program.kill)
        for program in programs:
            assert _line(program) == "open"
        for program in programs:
            assert program.stdin is not None
            program.stdin.write("\n")
            program.stdin.flush()
        assert [program.wait(PATIENCE_S) for program in programs] == [0] * len(crowd)
    assert int((tmp_path / "count").read_text()) == turns * len(crowd)
    assert len(_lock_files(tmp_path)) == 1
