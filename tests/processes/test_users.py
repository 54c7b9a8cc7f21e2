"""Custody of ordinary users: one alone, two on one store, and root whose command becomes an
ordinary user's.
"""

import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.terminal import RUN, Shell
from tests.processes.trees import (
    DAEMON,
    READ_ONLY_GROUPS,
    deaths,
    guardian_of,
    needs_mounts,
    parent,
    quiet,
    report,
    runs,
)
from tests.processes.users import ONE, TWO, Room, User, needs_users, room
from tests.surfaces.locking import end, line, remark

pytestmark = [pytest.mark.prove, needs_users]

DROPS = {
    "setpriv": ["setpriv", "--reuid", str(ONE), "--regid", str(ONE), "--clear-groups"],
    "su": ["su", "-s", "/bin/sh", "nobody", "-c"],
}
"""How root's command becomes an ordinary user's."""
WORK = "setsid sleep infinity > /dev/null 2>&1 & echo $$ $!; exec sleep infinity"
"""The command of a job. It starts a daemon, and prints both pids."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Room]:
    with room(tmp_path) as made:
        yield made


def nothing_left(user: User) -> bool:
    return user("locks", "status").out == ""


@pytest.mark.parametrize(
    ("kills", "kept"),
    [
        ([], "none"),
        (["wrapper"], "none"),
        (["guardian"], "none"),
        (["command"], "none"),
        (["wrapper", "guardian"], "mark"),
        (["wrapper", "command"], "none"),
        (["guardian", "command"], "none"),
        (["wrapper", "guardian", "command"], "mark"),
        (["wrapper", "guardian", "command"], "fifo"),
    ],
)
def test_the_next_holder_begins_when_the_last_process_is_gone(
    place: Room, kills: list[str], kept: str
) -> None:
    user = place.user(ONE)
    first = user.begin("locks", "run", "r", "--by", "one", "--", *parent(kept))
    command, grandchild = map(int, line(first).split())
    guardian = guardian_of(first)
    assert {
        os.stat(f"/proc/{pid}").st_uid for pid in (first.pid, guardian, command, grandchild)
    } == {ONE}
    with deaths([first.pid, guardian, command, grandchild]) as (wrapper, guard, head, last):
        second = user.begin(
            "locks", "run", "r", "--by", "two", "--", *report([command, grandchild])
        )
        assert "waiting" in remark(second)
        named = {"wrapper": wrapper, "guardian": guard, "command": head}
        for role in kills:
            named[role].kill()
        if "command" not in kills:
            quiet(first)
            head.wait()
        assert user("locks", "run", "-n", "r", "--", "true").status == 5
        last.kill()
        assert end(second)[:2] == (0, "[]\n")
        if "wrapper" not in kills:
            first.wait()
    assert nothing_left(user)


def test_keys_end_the_command_and_what_it_left(place: Room) -> None:
    user = place.user(ONE)
    shell = Shell(user.environment, user.before)
    try:
        shell.type(f"{RUN} r -- sh -c 'echo u''p; exec sleep 1000'\n")
        shell.until("up")
        shell.type("\x03")
        shell.until("ready> ")
        shell.type("echo st''atus $?\n")
        shell.until("status 130")
        shell.type(f"{RUN} r -- sh -c 'sleep 1000 & exit 7'\n")
        shell.until("Ctrl-C ends them")
        shell.type("\x03")
        shell.until("ready> ")
        shell.type("echo st''atus $?\n")
        shell.until("status 7")
    finally:
        shell.close()
    assert nothing_left(user)


def test_leftovers_are_ended_on_request(place: Room) -> None:
    user = place.user(ONE)
    first = user.begin(
        "locks", "run", "r", "--leftovers", "end", "--", sys.executable, "-c", DAEMON
    )
    daemon = int(line(first))
    assert end(first) == (0, "", "")
    assert not runs(daemon, DAEMON)
    assert nothing_left(user)


@pytest.mark.parametrize("next_user", [ONE, TWO])
def test_a_killed_worker_leaves_the_job_when_its_tree_is_gone(place: Room, next_user: int) -> None:
    user = place.user(ONE)
    other = user if next_user == ONE else place.user(next_user)
    assert user("jobs", "register", "--agent-session", "q", "--prompt", "x").status == 0
    first = user.begin("jobs", "run", "--agent-session", "q", "-q", "--", "sh", "-c", WORK)
    pids = [int(word) for word in line(first).split()]
    with deaths([first.pid, *pids]) as (worker, *_):
        second = other.begin(
            "jobs",
            "run",
            "--agent-session",
            "q",
            "-q",
            "--once",
            "--wait",
            "100",
            "--",
            *report(pids),
        )
        worker.kill()
        assert end(second)[:2] == (0, "[]\n")


def test_a_killed_worker_and_guardian_are_cleaned_up_after_by_the_next_worker(place: Room) -> None:
    user = place.user(ONE)
    assert user("jobs", "register", "--agent-session", "q", "--prompt", "x").status == 0
    first = user.begin("jobs", "run", "--agent-session", "q", "-q", "--", "sh", "-c", WORK)
    pids = [int(word) for word in line(first).split()]
    with deaths([first.pid, guardian_of(first), *pids]) as (worker, guardian, *_):
        second = user.begin(
            "jobs",
            "run",
            "--agent-session",
            "q",
            "-q",
            "--once",
            "--wait",
            "100",
            "--",
            *report(pids),
        )
        for number in (signal.SIGSTOP, signal.SIGKILL):
            # Stopped first, so that none of them sees the death of the other.
            worker.send(number)
            guardian.send(number)
        assert end(second)[:2] == (0, "[]\n")


@pytest.mark.parametrize("kills", [["wrapper", "command"], ["wrapper", "guardian", "command"]])
def test_work_goes_on_while_a_grandchild_lives(place: Room, kills: list[str]) -> None:
    user = place.user(ONE)
    run = user.begin("workflows", "run", "tune", "--recipe", "A", "-q", "--", *parent("mark"))
    command, grandchild = map(int, line(run).split())
    with deaths([run.pid, guardian_of(run), command, grandchild]) as (
        wrapper,
        guardian,
        head,
        last,
    ):
        named = {"wrapper": wrapper, "guardian": guardian, "command": head}
        for role in kills:
            named[role].kill()
        swap = user.begin("swap", "to", "B", "--", *report([command, grandchild]))
        assert "workflow tune" in remark(swap)
        last.kill()
        assert end(swap)[:2] == (0, "[]\n")


@pytest.mark.parametrize(("holder", "store"), [(ONE, "sqlite"), (TWO, "sqlite"), (TWO, "files")])
def test_two_users_of_one_store(place: Room, holder: int, store: str) -> None:
    one = place.user(holder, store)
    two = place.user(TWO if holder == ONE else ONE, store)
    # Made by the first of them, who may be either.
    first = one.begin("locks", "run", "r", "--by", "one", "--", *parent("none"))
    command, grandchild = map(int, line(first).split())
    with deaths([first.pid, command, grandchild]) as (wrapper, head, last):
        second = two.begin("locks", "run", "r", "--by", "two", "--", *report([command, grandchild]))
        assert "waiting" in remark(second)
        wrapper.kill()
        head.kill()
        assert two("locks", "run", "-n", "r", "--", "true").status == 5
        last.kill()
        assert end(second)[:2] == (0, "[]\n")
    assert nothing_left(two)


def test_a_tree_without_wrapper_and_guardian_keeps_another_user_out(place: Room) -> None:
    """The lease ends, since nobody renews it. The FIFO shows that the tree lives."""
    one, two = place.user(ONE), place.user(TWO)
    (one.folder / "holdfast.toml").write_text("[locks]\nlease_s = 0.5\n")
    first = one.begin("locks", "run", "r", "--by", "one", "--", *parent("fifo"))
    command, grandchild = map(int, line(first).split())
    with deaths([first.pid, guardian_of(first), command, grandchild]) as (*killed, last):
        for one_of_them in killed:
            one_of_them.kill()
        assert two("locks", "run", "-w", "1", "r", "--", "true").status == 5
        [status] = json.loads(two("locks", "status", "r", "--json").out)
        assert status["holds"][0]["alive"] == "alive"
        second = two.begin("locks", "run", "r", "--by", "two", "--", *report([command, grandchild]))
        assert "waiting" in remark(second)
        last.kill()
        assert end(second)[:2] == (0, "[]\n")


@pytest.mark.parametrize(
    ("drop", "kills", "kept"),
    [
        ("setpriv", ["wrapper"], "none"),
        ("setpriv", ["wrapper", "guardian"], "fifo"),
        ("su", ["wrapper"], "none"),
        ("su", ["wrapper", "guardian"], "mark"),
    ],
)
def test_the_command_of_root_becomes_an_ordinary_users(
    place: Room, drop: str, kills: list[str], kept: str
) -> None:
    root = place.user(0)
    words = parent(kept)
    dropped = [*DROPS[drop], *([shlex.join(words)] if drop == "su" else words)]
    first = root.begin("locks", "run", "r", "--by", "one", "--", *dropped)
    command, grandchild = map(int, line(first).split())
    assert {os.stat(f"/proc/{pid}").st_uid for pid in (command, grandchild)} == {ONE}
    guardian = guardian_of(first)
    [below] = [
        int(pid) for pid in Path(f"/proc/{guardian}/task/{guardian}/children").read_text().split()
    ]
    # `su` stays, as root, and waits for the command.
    assert (below == command) is (drop == "setpriv")
    with deaths([first.pid, guardian, below, command, grandchild]) as (
        wrapper,
        guard,
        direct,
        head,
        last,
    ):
        second = root.begin(
            "locks", "run", "r", "--by", "two", "--", *report([command, grandchild])
        )
        assert "waiting" in remark(second)
        named = {"wrapper": wrapper, "guardian": guard}
        for role in kills:
            named[role].kill()
        direct.kill()
        head.kill()
        assert root("locks", "run", "-n", "r", "--", "true").status == 5
        last.kill()
        assert end(second)[:2] == (0, "[]\n")
    assert nothing_left(root)


def verdict_on_mark(holder: User, observer: User, *before: str) -> str:
    """What an observer's `locks status` says when only a process with the mark, and without the
    FIFO, is left of a tree. `before` are words that the holder's command begins with.
    """
    first = holder.begin("locks", "run", "r", "--by", "one", "--", *before, *parent("mark"))
    command, grandchild = map(int, line(first).split())
    with deaths([first.pid, guardian_of(first), command, grandchild]) as (*killed, last):
        for one in killed:
            one.kill()
        [status] = json.loads(observer("locks", "status", "r", "--json").out)
        refused = observer("locks", "run", "-n", "r", "--", "true").status == 5
        # The observer may not read the mark.
        assert observer.shell(f"cat /proc/{grandchild}/environ").status == 1
        last.kill()
    assert refused
    return str(status["holds"][0]["alive"])


@needs_mounts
def test_root_that_may_not_look_at_other_users(place: Room) -> None:
    """As in most containers, where control groups are read-only too."""
    root, weak = place.user(0), place.user(0)
    root.before = [*root.before, *READ_ONLY_GROUPS]
    weak.before = [*weak.before, "setpriv", "--bounding-set", "-sys_ptrace,-sys_admin,-perfmon"]
    assert verdict_on_mark(root, weak, *DROPS["setpriv"]) == "unknown"


@pytest.mark.parametrize("mapped", ["--map-root-user", "--map-current-user"])
def test_an_observer_in_a_user_namespace(place: Room, mapped: str) -> None:
    """As in a sandbox: the observer is root or itself there, and may see no process outside."""
    # Not as `nobody`, whose number the kernel shows for every user that has none there.
    user, inside = place.user(TWO), place.user(TWO)
    for one in (user, inside):
        # The group has no number there, so the store is the user's own.
        one.environment["HOLDFAST_STORE"] = f"sqlite:{user.folder}/state/store"
        del one.environment["HOLDFAST_GROUP"]
    inside.before = [*inside.before, "unshare", "--user", mapped]
    assert verdict_on_mark(user, inside) == "unknown"


def test_a_survivor_that_runs_a_set_user_id_program(place: Room) -> None:
    """Its own user may not inspect it. But that user started it."""
    program = place.folder / "bin" / "sleep"
    program.parent.mkdir(mode=0o755)
    shutil.copy("/bin/sleep", program)
    program.chmod(0o4755)
    user = place.user(ONE)
    user.environment["PATH"] = f"{program.parent}:{user.environment['PATH']}"
    if os.statvfs(place.folder).f_flag & os.ST_NOSUID:
        pytest.skip("the folder of the test is mounted with nosuid")
    assert verdict_on_mark(user, user) == "unknown"


def test_leftovers_are_ended_by_root_for_any_owner(place: Room) -> None:
    root = place.user(0)
    first = root.begin(
        "locks",
        "run",
        "r",
        "--leftovers",
        "end",
        "--",
        *DROPS["setpriv"],
        sys.executable,
        "-c",
        DAEMON,
    )
    daemon = int(line(first))
    assert end(first) == (0, "", "")
    assert not runs(daemon, DAEMON)
