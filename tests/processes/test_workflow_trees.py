"""Work and loads live as long as their process trees: no swap begins before the last process is
gone, whoever was killed.
"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from holdfast.domains.workflows import Workflow
from holdfast.runtime.connection import Holdfast, connect
from holdfast.runtime.doctor.finding import Severity, within
from holdfast.runtime.doctor.records import leftovers
from tests.harness.processes import children, state_of, used_by, used_since
from tests.harness.timeouts import PATIENCE_S, until
from tests.processes.trees import end_left
from tests.surfaces.command import CommandLine
from tests.surfaces.locking import HOLDING, Process, end, line, output_of, put_down, remark

pytestmark = pytest.mark.prove

PARENT = [
    sys.executable,
    "-c",
    "import os, subprocess, sys\n"
    "quiet = subprocess.DEVNULL\n"
    "child = subprocess.Popen(['sleep', 'infinity'], stdin=quiet, stdout=quiet, stderr=quiet, "
    "start_new_session=True)\n"
    "print(os.getpid(), child.pid, flush=True)\n"
    "sys.stdin.read()\n",
]
"""A command that starts a daemon, prints both process ids, and ends when its input does."""

_LOAD = """
import fcntl, os, signal, sys
witness, go = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), sys.argv[2]
# Each process of a load has this lock until it has ended: a second load that is let in beside it
# fails.
fcntl.flock(witness, fcntl.LOCK_EX | fcntl.LOCK_NB)
child = os.fork()
if child:
    print(os.getpid(), child, flush=True)
    signal.pause()
def term(*_):
    print("asked", flush=True)
    with open(go) as pipe:
        pipe.read()
    os._exit(0)
signal.signal(signal.SIGTERM, term)
print("up", flush=True)
while True:
    signal.pause()
"""


def only_load(witness: Path) -> list[str]:
    """A load that fails when any process of another one has the witness."""
    return ["flock", "--nonblock", "--conflict-exit-code", "77", str(witness), "echo", "loaded"]


class Bench(CommandLine):
    """`holdfast` on a store, and a look into that store."""

    def __init__(self, folder: Path, hf: Holdfast, url: str) -> None:
        super().__init__(folder, HOLDFAST_STORE=url, XDG_STATE_HOME=os.environ["XDG_STATE_HOME"])
        self.hf = hf
        self.started: list[Process] = []
        self.pids: list[int] = []

    def begin(self, *words: str) -> Process:
        """Start `holdfast WORDS`; its input is ours to end."""
        process = self.start(*words, stdin=subprocess.PIPE)
        self.started.append(process)
        return process

    def load(self) -> tuple[Process, list[int]]:
        """Start a swap to A, whose load has a child that ends only on request; return it with the
        pids of the guardian, the load and the child.
        """
        os.mkfifo(self.go)
        process = self.begin(
            "swap", "to", "A", "--", sys.executable, "-c", _LOAD, str(self.witness), str(self.go)
        )
        lines = {line(process), line(process)} - {"up"}
        pids = [*children(process.pid), *map(int, lines.pop().split())]
        self.pids += pids
        return process, pids

    @property
    def go(self) -> Path:
        return self.folder / "go"

    @property
    def witness(self) -> Path:
        return self.folder / "witness"

    def let_go(self) -> None:
        """Let the child of the load end."""
        # Not before it waits for this: the opening blocks until then.
        with open(self.go, "w"):
            pass

    def workflows(self) -> list[Workflow]:
        return self.hf.workflows.list_workflows()

    def events(self) -> list[str]:
        return [event.event for event in self.hf.workflows.swap_log()]


@pytest.fixture(params=["sqlite", "files", "postgres"])
def bench(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    found = request.param
    url = (
        str(request.getfixturevalue("postgres_url"))
        if found == "postgres"
        else f"{found}:{tmp_path}/state/store"
    )
    with connect(url) as hf:
        made = Bench(tmp_path, hf, url)
        try:
            yield made
        finally:
            for process in made.started:
                put_down(process)
            for pid in made.pids:
                end_left(pid, tmp_path)


def lives(pid: int) -> bool:
    return state_of(pid) not in (None, "Z", "X")


def killed(*pids: int) -> None:
    """Kill processes, and wait until they have ended."""
    fds = [os.pidfd_open(pid) for pid in pids]
    for pid, fd in zip(pids, fds, strict=True):
        os.kill(pid, signal.SIGKILL)
        assert ended(fd, PATIENCE_S)
        os.close(fd)


def ended(fd: int, seconds: float) -> bool:
    return select.select([fd], [], [], seconds)[0] == [fd]


def report(pids: Sequence[int]) -> list[str]:
    """A command that prints which of these processes live when it begins."""
    # One check each: a process that ends between two checks must not count as alive.
    gone = "''|*') Z '*|*') X '*"
    test = " ".join(
        f'case "$(cat /proc/{pid}/stat 2>/dev/null)" in {gone}) ;; *) echo {pid};; esac;'
        for pid in pids
    )
    return ["sh", "-c", f"{test} echo loaded"]


# --- work ---


def test_work_whose_wrapper_was_killed_is_not_swapped_under_even_when_its_time_is_over(
    bench: Bench,
) -> None:
    run = bench.begin(
        "workflows", "run", "tune", "--recipe", "A", "--ttl", "1", "-q", "--", *HOLDING
    )
    command = int(line(run))
    [workflow] = bench.workflows()
    assert workflow.owner.pid == command and not workflow.lease.explicit
    killed(run.pid)
    waits = bench.begin("swap", "to", "B", "--", *report([command]))
    assert "workflow tune (A, sh (process" in remark(waits)
    [last] = bench.workflows()
    until(lambda: not last.lease.fresh(bench.hf.store.now()))
    # It neither counts the work as ended nor polls for its end.
    began = used_by(waits.pid)
    assert output_of(waits, within_s=1.5) == []
    assert used_since(began, waits.pid).is_rest(1.5)
    assert lives(command) and [one.name for one in bench.workflows()] == ["tune"]
    assert bench("swap", "to", "B", "--timeout", "0", "--", "true").status == 5
    assert bench("workflows", "sweep").out == ""
    assert run.stdin is not None
    run.stdin.close()
    run.stdin = None
    assert end(waits)[:2] == (0, "loaded\n")
    assert bench.workflows() == []


@pytest.mark.parametrize(
    "kills",
    [("command",), ("wrapper", "command"), ("wrapper", "guardian", "command")],
    ids="+".join,
)
def test_work_goes_on_while_a_grandchild_lives(bench: Bench, kills: tuple[str, ...]) -> None:
    run = bench.begin(
        "workflows", "run", "tune", "--recipe", "A", "--ttl", "1", "-q", "--", *PARENT
    )
    command, grandchild = map(int, line(run).split())
    [guardian] = children(run.pid)
    bench.pids += [guardian, command, grandchild]
    pids = {"wrapper": run.pid, "guardian": guardian, "command": command}
    killed(*(pids[one] for one in kills))
    waits = bench.begin("swap", "to", "B", "--", *report([command, grandchild]))
    assert "workflow tune (A, python" in remark(waits)
    [last] = bench.workflows()
    if "wrapper" in kills:
        until(lambda: not last.lease.fresh(bench.hf.store.now()))
    else:
        assert f"1 process of it lives: {grandchild} sleep" in remark(run)
    assert bench("swap", "to", "B", "--timeout", "0", "--", "true").status == 5
    assert [one.name for one in bench.workflows()] == ["tune"] and lives(grandchild)
    killed(grandchild)
    assert end(waits)[:2] == (0, "loaded\n")
    if "wrapper" not in kills:
        assert run.wait(PATIENCE_S) == 128 + signal.SIGKILL
    assert bench.workflows() == []


@pytest.mark.parametrize("leftovers", ["keep", "end"])
def test_what_becomes_of_processes_that_work_leaves(bench: Bench, leftovers: str) -> None:
    run = bench.begin(
        "workflows", "run", "tune", "--recipe", "A", "--leftovers", leftovers, "-q", "--", *PARENT
    )
    _, grandchild = map(int, line(run).split())
    bench.pids += [grandchild]
    assert end(run)[0] == 0
    assert lives(grandchild) == (leftovers == "keep")
    assert [one.name for one in bench.workflows()] == (["tune"] if leftovers == "keep" else [])
    if leftovers == "keep":
        waits = bench.begin("swap", "to", "B", "--", *report([grandchild]))
        remark(waits)
        killed(grandchild)
        assert end(waits)[:2] == (0, "loaded\n")


# --- loads ---


def test_the_load_of_a_killed_swap_is_ended_before_the_next_swap_loads(bench: Bench) -> None:
    first, (guardian, load, child) = bench.load()
    waits = bench.begin("swap", "to", "B", "--", *only_load(bench.witness))
    assert f"waiting for a swap to A by process {first.pid} to end" in remark(waits)
    killed(first.pid)
    assert line(first) == "asked", "its guardian has sent SIGTERM to the whole tree"
    assert f"the swap to A by process {first.pid} was killed, and " in (output := remark(waits))
    assert f"{child} python" in output
    assert lives(child) and lives(guardian)
    for words in (
        ("swap", "to", "C", "--policy", "refuse"),
        ("workflows", "run", "x", "--recipe", "C"),
    ):
        refused = bench(*words, "--", "true")
        assert refused.status == 4 and f"by process {first.pid} was killed, and " in refused.err
    assert bench("swap", "to", "C", "--timeout", "0", "--", "true").status == 5
    assert f"by process {first.pid} was killed, and " in bench("swap", "reconcile").out
    assert f"by process {first.pid} was killed, and " in bench("swap", "status").out
    assert lives(child)
    bench.let_go()
    assert end(waits)[:2] == (0, "loaded\n")
    assert not any(map(lives, (guardian, load, child)))
    status = bench.hf.workflows.swap_status()
    assert status.current is not None and status.current.recipe == "B" and status.marker is None
    assert bench.events().count("orphan_marker_cleared") == 1


def test_the_next_swap_ends_a_load_whose_wrapper_and_guardian_were_killed(bench: Bench) -> None:
    first, (guardian, load, child) = bench.load()
    killed(guardian, first.pid)
    # Nobody ends it, and nobody loads or works beside it.
    assert lives(load) and lives(child)
    refused = bench("swap", "to", "B", "--policy", "refuse", "--", *only_load(bench.witness))
    assert (
        refused.status == 4 and f"{load} python" in refused.err and f"{child} python" in refused.err
    )
    assert bench("workflows", "run", "x", "--recipe", "A", "--", "true").status == 4
    assert lives(load) and lives(child) and "orphan_marker_cleared" not in bench.events()
    second = bench.begin("swap", "to", "B", "--", *only_load(bench.witness))
    assert f"2 processes of its load live: {load} python" in remark(second)
    assert line(first) == "asked", "the second swap has sent SIGTERM to the whole tree"
    assert lives(child)
    bench.let_go()
    assert end(second)[:2] == (0, "loaded\n")
    assert not lives(load) and not lives(child)


def test_the_doctor_names_the_load_of_a_killed_swap(bench: Bench) -> None:
    first, (guardian, load, child) = bench.load()
    assert [found.verdict for found in leftovers(bench.hf)] == [Severity.OK]
    killed(guardian, first.pid)
    [found] = within(PATIENCE_S, "leftovers", lambda: leftovers(bench.hf))
    assert (found.check, found.verdict) == ("leftovers", Severity.WARN)
    assert f"{load} python" in found.says and f"{child} python" in found.says
    # The command that it names does what it says. Looking did not.
    assert lives(load) and lives(child) and "`holdfast swap to " in found.fix
    second = bench.begin("swap", "to", "A", "--", "echo", "loaded")
    assert line(first) == "asked"
    bench.let_go()
    assert end(second)[:2] == (0, "loaded\n")
    assert not lives(load) and not lives(child)
    assert [found.verdict for found in leftovers(bench.hf)] == [Severity.OK]


def test_work_that_waits_begins_when_the_load_of_a_killed_swap_is_gone(bench: Bench) -> None:
    first, (_, _, child) = bench.load()
    waits = bench.begin(
        "workflows", "run", "x", "--recipe", "B", "-w", "60", "--any-recipe", "--", *report([child])
    )
    remark(waits)
    killed(first.pid)
    assert line(first) == "asked"
    assert output_of(waits, within_s=0) == []
    bench.let_go()
    assert end(waits)[:2] == (0, "loaded\n")


def test_a_model_server_that_a_load_leaves_keeps_running_and_blocks_nobody(bench: Bench) -> None:
    script = "sleep infinity > /dev/null 2>&1 & echo $!"
    done = bench("swap", "to", "A", "--", "sh", "-c", script)
    assert (done.status, done.err) == (0, "")
    server = int(done.out)
    bench.pids.append(server)
    fd = os.pidfd_open(server)
    status = bench.hf.workflows.swap_status()
    assert status.marker is None and status.current is not None and status.current.recipe == "A"
    assert bench("workflows", "run", "x", "--recipe", "A", "--", "echo", "ran").out == "ran\n"
    assert bench("swap", "to", "B", "--policy", "refuse", "--", "echo", "loaded").out == "loaded\n"
    # The guardian of the first load has long known by now that its wrapper is gone.
    assert not ended(fd, 0.5) and lives(server)
    os.close(fd)


def test_a_server_of_a_load_that_fails_is_not_taken_for_a_running_load(bench: Bench) -> None:
    done = bench(
        "swap", "to", "A", "--", "sh", "-c", "sleep infinity > /dev/null 2>&1 & echo $!; exit 3"
    )
    server = int(done.out)
    bench.pids.append(server)
    status = bench.hf.workflows.swap_status()
    assert (done.status, status.marker, status.current) == (3, None, None) and lives(server)
    assert bench("swap", "to", "B", "--policy", "refuse", "--", "echo", "loaded").out == "loaded\n"


@pytest.mark.parametrize("bench", ["postgres"], indirect=True)
def test_a_swap_that_loses_its_session_ends_the_whole_load_before_it_is_over(
    bench: Bench, postgres_url: str
) -> None:
    import psycopg

    first, (_, load, child) = bench.load()
    with psycopg.connect(postgres_url, autocommit=True) as operator:
        session = (
            "SELECT pg_terminate_backend(l.pid, 10000) FROM pg_locks l JOIN pg_stat_activity a "
            "USING (pid) "
            "WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND a.datname = current_database()"
        )
        assert (True,) in operator.execute(session).fetchall()
    assert "all its processes are sent SIGTERM" in remark(first)
    assert line(first) == "asked"
    # The lock is free, and processes of the load live.
    waits = bench.begin("swap", "to", "B", "--", *only_load(bench.witness))
    assert f"waiting for a swap to A by process {first.pid}" in remark(waits)
    assert lives(child)
    bench.let_go()
    assert first.wait(PATIENCE_S) == 4
    assert end(waits)[:2] == (0, "loaded\n")
    assert not lives(load) and not lives(child)
