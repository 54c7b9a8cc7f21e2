"""The control group of a tree: it finds and ends what lost FIFO and mark, and nothing of it is
left.
"""

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.kernel.holder import Liveness
from holdfast.processes import cgroup
from holdfast.processes.piped_command import PipedCommand
from holdfast.processes.trees import Trees
from holdfast.system.access import PRIVATE
from tests.harness.timeouts import PATIENCE_S, until
from tests.processes.trees import (
    FORKING,
    bench_on,
    deaths,
    groups_of,
    guardian_of,
    needs_groups,
    parent,
    quiet,
    tree_of,
)
from tests.surfaces.command import ENTRY
from tests.surfaces.locking import Bench, end, line, nested

STRIPPED = """
import os, sys
os.closerange(3, 65536)
os.execve(sys.executable, [sys.executable, "-c", *sys.argv[1:]], {})
"""
"""Becomes a Python program without the FIFO and without the mark."""

PRINTING = "import os, signal; print(os.getpid(), flush=True); signal.pause()"


def stripped(program: str) -> list[str]:
    return [sys.executable, "-c", STRIPPED, program]


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Bench]:
    """`holdfast` on a SQLite store."""
    with bench_on(f"sqlite:{tmp_path}/state/store", tmp_path) as made:
        yield made


pytestmark = pytest.mark.prove


@needs_groups
def test_explain_names_a_survivor_that_lost_both_signs_and_kick_ends_it(sqlite: Bench) -> None:
    first = sqlite.run("r", "--by", "one", "--", *parent("none"))
    command, grandchild = map(int, line(first).split())
    with deaths([guardian_of(first), first.pid, command, grandchild]) as (
        guardian,
        wrapper,
        head,
        last,
    ):
        for one in (guardian, wrapper, head):
            one.kill()
        [group] = groups_of(tree_of(sqlite.hf, "r"))
        assert cgroup.processes(group) == [grandchild]
        assert (
            f"is dead, 1 of its processes lives: {grandchild} sleep"
            in sqlite("locks", "explain", "r").out
        )
        assert sqlite("locks", "kick", "r", "--why", "over", "--end-tree").status == 0
        last.wait()
        assert not os.path.exists(group)
    assert sqlite.nothing_left()


@needs_groups
@pytest.mark.parametrize("guardian", ["lives", "killed", "stopped"])
def test_a_deaf_tree_that_forks_all_the_time_without_signs_is_ended(
    sqlite: Bench, guardian: str
) -> None:
    first = sqlite.run("r", "--by", "one", "--", *stripped(FORKING))
    line(first)
    with deaths([first.pid, guardian_of(first)]) as (wrapper, guardian_process):
        wrapper.kill()
        if guardian == "killed":
            guardian_process.kill()
        elif guardian == "stopped":
            os.kill(guardian_process.pid, signal.SIGSTOP)
        tree = tree_of(sqlite.hf, "r")
        [group] = groups_of(tree)
        assert sqlite.hf.processes.tree_liveness(tree, in_sight=True) is Liveness.ALIVE
        assert sqlite.hf.processes.end_tree(tree, 0.2)
        assert cgroup.processes(group) == [] and sqlite.hf.processes.survivors(tree) == []
        assert sqlite("locks", "run", "-n", "r", "--", "true").status == 0


@needs_groups
def test_an_inner_command_that_lost_both_signs_keeps_both_claims(sqlite: Bench) -> None:
    """The group of the inner tree lies in that of the outer one."""
    script = f"{nested('locks', 'run', 'inner', '--')} {shlex.join(stripped(PRINTING))}"
    first = sqlite.run("outer", "--by", "one", "--", "sh", "-c", script)
    innermost = int(line(first))
    outer, inner = tree_of(sqlite.hf, "outer"), tree_of(sqlite.hf, "inner")
    [group], [inside] = groups_of(outer), groups_of(inner)
    assert os.path.dirname(inside) == group
    others = [pid for pid in cgroup.processes(group) if pid != innermost]
    with deaths([innermost, first.pid, guardian_of(first), *others]) as (last, *above):
        for one in above:
            one.kill()
        assert cgroup.processes(group) == [innermost]
        for name in ("outer", "inner"):
            assert sqlite("locks", "run", "-n", name, "--by", "else", "--", "true").status == 5
        last.kill()
        for name in ("outer", "inner"):
            assert (
                sqlite(
                    "locks", "run", "-w", str(PATIENCE_S), name, "--by", "else", "--", "true"
                ).status
                == 0
            )
    assert groups_of(outer) == [] and groups_of(inner) == []


@needs_groups
@pytest.mark.parametrize("killed", ["nobody", "guardian", "wrapper", "all"])
def test_no_group_is_left(sqlite: Bench, killed: str) -> None:
    first = sqlite.run("r", "--", *parent("both"))
    command, grandchild = map(int, line(first).split())
    tree = tree_of(sqlite.hf, "r")
    [group] = groups_of(tree)
    # As a container program does it.
    os.mkdir(f"{group}/made-by-the-command")
    with deaths([first.pid, guardian_of(first), command, grandchild]) as (
        wrapper,
        guardian,
        head,
        last,
    ):
        if killed in ("guardian", "all"):
            guardian.kill()
        if killed in ("wrapper", "all"):
            wrapper.kill()
        quiet(first)
        head.wait()
        last.kill()
        if killed != "all":
            guardian.wait()
            wrapper.wait()
        else:
            assert os.path.exists(group)
            sqlite.hf.processes.trees.sweep(older_than_s=0)
    assert not os.path.exists(group)


@needs_groups
def test_a_command_that_never_begins_leaves_no_group(sqlite: Bench) -> None:
    first, _ = sqlite.hold("r", "--by", "one")
    second = sqlite.run("r", "--by", "two", "--", "true")
    sqlite.waiting("r", "two")
    own = cgroup._own()
    assert own is not None
    # The claim has no tree while it waits. But the id of a tree names its wrapper.
    [group] = Path(own).glob(f"holdfast-{os.geteuid()}-{second.pid}-*")
    second.send_signal(signal.SIGTERM)
    assert end(second)[0] != 0
    assert not group.exists()
    end(first)


@needs_groups
def test_a_process_cannot_end_the_tree_that_it_belongs_to_by_its_group(sqlite: Bench) -> None:
    kick = shlex.join([*ENTRY, "locks", "kick", "r", "--why", "over", "--end-tree"])
    kept = " ".join(
        f"{name}={shlex.quote(sqlite.environment[name])}"
        for name in ("PATH", "HOME", "HOLDFAST_STORE")
    )
    done = sqlite("locks", "run", "r", "--", "sh", "-c", f"env -i {kept} {kick}; echo kicked $?")
    assert done.status == 0 and done.out != "kicked 0\n"


@needs_groups
def test_the_tree_of_a_worker_is_alive_by_the_group_of_its_part(tmp_path: Path) -> None:
    trees = Trees(lambda: tmp_path / "trees", lambda: PRIVATE)
    shared = f"{os.geteuid()}-1-0-0123456789abcdef"
    heard: list[bytes] = []
    words = stripped(PRINTING)
    environment = {"PATH": os.environ["PATH"]}
    command = PipedCommand(
        words,
        trees,
        cwd=None,
        environment=environment,
        stdin=b"",
        each_line=heard.append,
        tree=f"{shared}.7",
    )
    try:
        until(lambda: heard)
        [group] = groups_of(shared)
        assert (
            group.endswith(".7")
            and groups_of(f"{shared}.7") == [group]
            and groups_of(f"{shared}.70") == []
        )
        assert cgroup.contains(shared, command.pid) and not cgroup.contains(
            shared, command.guardian
        )
        assert trees.liveness(shared, in_sight=True) is Liveness.ALIVE
    finally:
        command.end_tree()
        assert command.wait_for_tree(PATIENCE_S)
        command.close()
    assert not os.path.exists(group)


V2 = "31 23 0:28 {root} {point} rw,relatime shared:4 - cgroup2 cgroup2 rw"
V1 = "36 31 0:33 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"


@pytest.mark.parametrize(
    ("mounts", "path", "own"),
    [
        ([("/", "/sys/fs/cgroup")], "0::/user.slice/a", "/sys/fs/cgroup/user.slice/a"),
        ([("/", "/sys/fs/cgroup/unified")], "4:memory:/x\n0::/", "/sys/fs/cgroup/unified"),
        # A container that has the host's namespace and sees its own part alone.
        ([("/docker/a", "/sys/fs/cgroup")], "0::/docker/a", "/sys/fs/cgroup"),
        ([("/docker/a", "/sys/fs/cgroup")], "0::/docker/a/b", "/sys/fs/cgroup/b"),
        ([("/docker/a", "/sys/fs/cgroup")], "0::/docker/ab", None),
        ([("/docker/a", "/one"), ("/", "/two")], "0::/docker/b", "/two/docker/b"),
        # Moved out of its own cgroup namespace: the path leads out of the mount.
        ([("/", "/sys/fs/cgroup")], "0::/../b", None),
        ([], "0::/a", None),
        ([("/", "/sys/fs/cgroup")], "4:memory:/x", None),
    ],
)
def test_where_the_own_group_is(
    monkeypatch: pytest.MonkeyPatch, mounts: list[tuple[str, str]], path: str, own: str | None
) -> None:
    said = {
        "/proc/self/cgroup": path,
        "/proc/self/mountinfo": "\n".join(
            [V1, *(V2.format(root=root, point=point) for root, point in mounts)]
        ),
    }
    monkeypatch.setattr(cgroup, "_read", said.__getitem__)
    assert cgroup._own() == own
