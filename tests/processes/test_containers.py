"""Commands in containers: pids of their own, no terminal, hardly any environment, and often the
wrapper is the first process.

The kernel treats the first process of a pid namespace in a special way. It gets no signal that it
has no handler for, all orphans become its children, and its end ends all others. Its process group
may be one outside, which has the number 0 inside.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.harness.containers import needs_containers
from tests.harness.processes import children
from tests.processes.trees import DAEMON, deaths, report
from tests.processes.users import ONE, User, needs_users, room
from tests.surfaces.locking import HOLDING, Process, end, line, remark, trapping

pytestmark = [pytest.mark.prove, needs_users, needs_containers]

_NAMESPACES = [
    "unshare",
    "--kill-child=KILL",
    "--mount",
    "--pid",
    "--ipc",
    "--uts",
    "--fork",
    "--mount-proc",
]
KINDS = {
    # As unshare(1) leaves it: the wrapper has pid 1, and its group is outside.
    "first": _NAMESPACES,
    # As container engines leave it: the first process leads a session.
    "leader": [*_NAMESPACES, "setsid"],
    # Below an init, whose group is outside too.
    "below-init": [*_NAMESPACES, "sh", "-c", '"$@"; exit $?', "sh"],
    # With the /proc of the machine, in which each pid is another process.
    "foreign-proc": [*_NAMESPACES[:-1], "sh", "-c", '"$@"; exit $?', "sh"],
    "first-in-foreign-proc": _NAMESPACES[:-1],
    # An ordinary user is root inside.
    "user": [*_NAMESPACES, "--user", "--map-root-user"],
}
PARENT = "setsid sleep infinity > /dev/null 2>&1 & echo up; exec sleep infinity"
"""A command that starts a daemon. Both live until they are killed."""


class Container:
    """`holdfast` inside and outside of a container, on one store."""

    names_leftovers = True
    """Can processes be found by their mark inside?"""

    def __init__(self, inside: User, outside: User) -> None:
        url = f"sqlite:{outside.folder}/state/store"
        self.outside, self._inside = outside, inside
        self.outside.environment["HOLDFAST_STORE"] = url
        self._inside.environment = {
            name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ
        }
        self._store = ("--store", url)

    def begin(self, area: str, verb: str, *words: str) -> Process:
        """Start `holdfast AREA VERB WORDS` inside, without a terminal and without input."""
        return self._inside.begin(
            area, verb, *self._store, *words, stdin=subprocess.DEVNULL, start_new_session=True
        )

    def nothing_left(self) -> bool:
        return self.outside("locks", "status").out == ""


@contextmanager
def contained(kind: str, folder: Path) -> Iterator[Container]:
    with room(folder) as place:
        uid = ONE if kind == "user" else 0
        inside, outside = place.user(uid), place.user(uid)
        inside.before = [*inside.before, *KINDS[kind]]
        for user in (inside, outside):
            del user.environment["HOLDFAST_GROUP"]
        made = Container(inside, outside)
        made.names_leftovers = "foreign" not in kind
        yield made


@pytest.fixture(params=[kind for kind in KINDS if kind != "first-in-foreign-proc"])
def container(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Container]:
    with contained(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def first(tmp_path: Path) -> Iterator[Container]:
    """One whose first process is the wrapper."""
    with contained("first", tmp_path) as made:
        yield made


def wrapper_of(started: Process) -> int:
    """The wrapper of a container, by its pid outside."""
    below = [started.pid]
    for pid in below:
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(os.fsencode(sys.executable)):
            return pid
        below += children(pid)
    raise AssertionError(f"no wrapper below {started.pid}")


def test_the_exit_status_and_what_the_command_gets(container: Container) -> None:
    script = "cat; tty; echo ${HOME-none} ${TERM-none}; grep SigIgn /proc/self/status; exit 7"
    started = container.begin("locks", "run", "r", "--", "sh", "-c", script)
    status, out, err = end(started)
    output, _, ignored = out.partition("SigIgn:")
    assert (status, output, err) == (7, "not a tty\nnone none\n", "")
    # Signals 32 and 33 are the C library's own: make(1) starts everything with them ignored.
    assert int(ignored, 16) & 0x7FFFFFFF == 0
    assert (
        end(container.begin("locks", "run", "r", "--", "sh", "-c", "kill -9 $$"))[0]
        == 128 + signal.SIGKILL
    )
    assert container.nothing_left()


@pytest.mark.parametrize("sender", ["inside", "outside"])
def test_a_signal_to_the_wrapper_reaches_the_command(container: Container, sender: str) -> None:
    started = container.begin("locks", "run", "r", "--", *trapping("SIGTERM"))
    assert line(started) == "up"
    with deaths([wrapper_of(started)]) as (wrapper,):
        if sender == "outside":
            wrapper.send(signal.SIGTERM)
        else:
            inner = (
                Path(f"/proc/{wrapper.pid}/status")
                .read_text()
                .partition("NSpid:")[2]
                .splitlines()[0]
                .split()[-1]
            )
            there = ["nsenter", f"--target={wrapper.pid}", "--pid", "--mount"]
            subprocess.run([*there, "sh", "-c", f"kill -TERM {inner}"], check=True)
        assert end(started)[:2] == (42, "got\n")
    assert container.nothing_left()


def test_a_signal_ends_the_wait_for_a_lock(container: Container) -> None:
    holder = container.outside.begin("locks", "run", "r", "--by", "one", "--", *HOLDING)
    line(holder)
    started = container.begin("locks", "run", "r", "--by", "two", "--", "true")
    assert "waiting" in remark(started)
    with deaths([wrapper_of(started)]) as (wrapper,):
        wrapper.send(signal.SIGTERM)
        assert end(started)[0] == 128 + signal.SIGTERM
    assert end(holder)[0] == 0
    assert container.nothing_left()


def test_processes_that_the_command_leaves(container: Container) -> None:
    daemon = (sys.executable, "-c", DAEMON)
    assert end(container.begin("locks", "run", "r", "--leftovers", "end", "--", *daemon))[0] == 0
    if not container.names_leftovers:
        return
    started = container.begin("locks", "run", "r", "--", *daemon)
    assert "1 process of it lives" in remark(started)
    with deaths([wrapper_of(started)]) as (wrapper,):
        wrapper.send(signal.SIGTERM)
        assert end(started)[0] == 0
    assert container.nothing_left()


def test_under_a_foreign_proc_only_the_tree_is_ended(tmp_path: Path) -> None:
    """The guardian has pid 2 inside. In /proc the children of 2 are threads of the kernel, with
    small numbers.
    """
    with contained("first-in-foreign-proc", tmp_path) as container, ExitStack() as beside:
        started = container.begin("locks", "run", "r", "--", "sh", "-c", PARENT)
        assert line(started) == "up"
        wrapper = wrapper_of(started)
        [guardian] = children(wrapper)
        [command] = children(guardian)
        [grandchild] = children(command)
        there = [
            "nsenter",
            f"--target={wrapper}",
            "--pid",
            "sh",
            "-c",
            "echo up; exec sleep infinity",
        ]
        others = []
        for _ in range(4):
            other = beside.enter_context(subprocess.Popen(there, stdout=subprocess.PIPE, text=True))
            beside.callback(other.kill)
            assert line(other) == "up"
            others += children(other.pid)
        with deaths([wrapper, guardian, command, grandchild, *others]) as (
            init,
            guard,
            head,
            last,
            *bystanders,
        ):
            head.kill()
            # Stopped, since all other processes end with it.
            init.send(signal.SIGSTOP)
            guard.send(signal.SIGTERM)
            last.wait()
            guard.wait()
            assert [one.lives for one in bystanders] == [True] * 4
            init.send(signal.SIGCONT)
            assert end(started)[0] == 128 + signal.SIGKILL
        assert container.nothing_left()


@pytest.mark.parametrize("kills", [["command"], ["guardian"], ["guardian", "command"]])
def test_outside_the_lock_is_held_until_the_last_process_is_gone(
    first: Container, kills: list[str]
) -> None:
    started = first.begin("locks", "run", "r", "--by", "one", "--", "sh", "-c", PARENT)
    assert line(started) == "up"
    wrapper = wrapper_of(started)
    [guardian] = children(wrapper)
    [command] = children(guardian)
    [grandchild] = children(command)
    with deaths([wrapper, guardian, command, grandchild]) as (_, guard, head, last):
        second = first.outside.begin(
            "locks", "run", "r", "--by", "two", "--", *report([command, grandchild])
        )
        assert "waiting" in remark(second)
        named = {"guardian": guard, "command": head}
        for role in kills:
            named[role].kill()
        head.kill()
        assert first.outside("locks", "run", "-n", "r", "--", "true").status == 5
        last.kill()
        assert end(second)[:2] == (0, "[]\n")
        assert end(started)[0] == 128 + signal.SIGKILL
    assert first.nothing_left()


@pytest.mark.parametrize("ended_by", ["kill", "keep"])
def test_the_end_of_a_container_ends_its_trees(first: Container, ended_by: str) -> None:
    """The kernel kills the guardian too, so nobody can tell that the tree has ended. The lease
    decides.
    """
    (first.outside.folder / "holdfast.toml").write_text("[locks]\nlease_s = 1.0\n")
    started = first.begin(
        "locks", "run", "r", "--leftovers", "keep", "--by", "one", "--", "sh", "-c", PARENT
    )
    assert line(started) == "up"
    wrapper = wrapper_of(started)
    [command] = children(children(wrapper)[0])
    [grandchild] = children(command)
    with deaths([wrapper, command, grandchild]) as (init, head, last):
        second = first.outside.begin(
            "locks", "run", "r", "--by", "two", "--", *report([command, grandchild])
        )
        assert "waiting" in remark(second)
        (init if ended_by == "kill" else head).kill()
        init.wait()
        last.wait()
        assert end(second)[:2] == (0, "[]\n")
    assert first.nothing_left()


def test_a_worker_ends_what_its_command_leaves(first: Container) -> None:
    assert first.outside("jobs", "register", "--agent-session", "q", "--prompt", "x").status == 0
    started = first.begin(
        "jobs",
        "run",
        "--agent-session",
        "q",
        "-q",
        "--once",
        "--",
        "sh",
        "-c",
        "sleep 1000 & echo ok",
    )
    assert end(started)[:2] == (0, "ok\n")


def test_a_workflow_ends_with_its_command(first: Container) -> None:
    started = first.begin(
        "workflows", "run", "tune", "--recipe", "A", "-q", "--", "sh", "-c", "exit 7"
    )
    assert end(started)[0] == 7
    assert first.outside("workflows", "list").out == ""
