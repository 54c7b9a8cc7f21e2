"""Trees that are hard to see or hard to end: daemons, deaf programs, stopped guardians, removed
FIFOs, other namespaces.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.kernel.holder import Liveness
from holdfast.runtime.connection import connect
from tests.harness.processes import children, state_of
from tests.harness.timeouts import PATIENCE_S, until
from tests.processes.trees import (
    DAEMON,
    FORKING,
    bench_on,
    deaths,
    fifos,
    guardian_of,
    needs_groups,
    needs_mounts,
    parent,
    quiet,
    report,
    runs,
    tree_of,
    without_groups,
)
from tests.surfaces.command import ENTRY
from tests.surfaces.locking import Bench, end, line, nested, put_down, remark

pytestmark = pytest.mark.prove


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Bench]:
    """`holdfast` on a SQLite store."""
    with bench_on(f"sqlite:{tmp_path}/state/store", tmp_path) as made:
        yield made


def test_a_daemon_keeps_the_lock_and_is_waited_for(sqlite: Bench) -> None:
    first = sqlite.run("r", "--by", "one", "--", sys.executable, "-c", DAEMON)
    daemon = int(line(first))
    said = remark(first)
    assert f"{daemon} python" in said and "1 process of it lives" in said
    assert sqlite("locks", "run", "-n", "r", "--", "true").status == 5
    with deaths([daemon]) as (last,):
        last.kill()
        assert end(first) == (0, "", "")
    assert sqlite.nothing_left() and fifos(sqlite.hf) == []


def test_a_signal_ends_what_a_command_left(sqlite: Bench) -> None:
    first = sqlite.run("r", "--", sys.executable, "-c", DAEMON)
    with deaths([int(line(first))]) as (last,):
        assert "Ctrl-C ends them" in remark(first)
        first.send_signal(signal.SIGINT)
        assert end(first)[0] == 0
        last.wait()
    assert sqlite.nothing_left()


def test_leftovers_are_ended_on_request(sqlite: Bench) -> None:
    first = sqlite.run("r", "--leftovers", "end", "--", sys.executable, "-c", DAEMON)
    daemon = int(line(first))
    assert end(first) == (0, "", "")
    assert not runs(daemon, DAEMON)
    assert sqlite.nothing_left()


def test_leftovers_keep_the_lock_without_their_wrapper(bench: Bench) -> None:
    first = bench.run("r", "--by", "one", "--leftovers", "keep", "--", sys.executable, "-c", DAEMON)
    daemon = int(line(first))
    with deaths([daemon]) as (last,):
        assert end(first) == (0, "", "")
        second = bench.run("r", "--by", "two", "-q", "--", *report([daemon]))
        bench.waiting("r", "two")
        assert bench("locks", "run", "-n", "r", "--", "true").status == 5
        last.kill()
        assert end(second) == (0, "[]\n", "")
    assert bench.nothing_left()


def test_leftovers_keep_their_wrapper_if_the_guardian_was_killed(bench: Bench) -> None:
    """Nobody else would know of them, or renew the claim."""
    first = bench.run("r", "--by", "one", "--leftovers", "keep", "--", *parent("none"))
    command, grandchild = map(int, line(first).split())
    with deaths([guardian_of(first), command, grandchild]) as (guardian, head, last):
        second = bench.run("r", "--by", "two", "-q", "--", *report([command, grandchild]))
        bench.waiting("r", "two")
        guardian.kill()
        quiet(first)
        head.wait()
        assert bench("locks", "run", "-n", "r", "--", "true").status == 5
        last.kill()
        assert end(second) == (0, "[]\n", "")
        assert first.wait(PATIENCE_S) == 0
    assert bench.nothing_left()


def test_explain_names_the_survivors_and_kick_ends_them(sqlite: Bench) -> None:
    first = sqlite.run("r", "--by", "one", "--", *parent("both"))
    command, grandchild = map(int, line(first).split())
    with deaths([first.pid, command, grandchild]) as (wrapper, head, last):
        wrapper.kill()
        head.kill()
        answer = sqlite("locks", "explain", "r").out
        assert f"is dead, 1 of its processes lives: {grandchild} sleep" in answer
        assert "--end-tree" in answer
        assert sqlite("locks", "kick", "r", "--why", "over", "--end-tree").status == 0
        last.wait()
    assert sqlite.nothing_left()


def test_kick_ends_the_tree_under_a_live_wrapper(sqlite: Bench) -> None:
    """The wrapper releases the lock by itself then, so nobody may hold it any more when it is to be
    taken away.
    """
    first, pid = sqlite.hold("r", "--by", "one")
    with deaths([pid]) as (head,):
        done = sqlite("locks", "kick", "r", "--why", "over", "--end-tree")
        assert done.status == 0 and done.out.startswith("took r from one")
        head.wait()
    assert end(first)[0] in (4, 128 + signal.SIGTERM)
    assert sqlite.nothing_left()


def test_kick_without_the_tree_leaves_the_processes(sqlite: Bench) -> None:
    first, pid = sqlite.hold("r", "--by", "one", "--on-lost", "ignore")
    assert sqlite("locks", "kick", "r", "--why", "over").status == 0
    assert Path(f"/proc/{pid}").exists()
    end(first)


@pytest.mark.parametrize("guardian", ["lives", "killed", "stopped"])
def test_a_deaf_tree_that_forks_all_the_time_is_ended(sqlite: Bench, guardian: str) -> None:
    first = sqlite.run("r", "--by", "one", "--", sys.executable, "-c", FORKING)
    line(first)
    guard = guardian_of(first)
    with deaths([first.pid, guard]) as (wrapper, guardian_process):
        wrapper.kill()
        if guardian == "killed":
            guardian_process.kill()
        elif guardian == "stopped":
            os.kill(guard, signal.SIGSTOP)
        [hold] = sqlite.hf.locks.status("r").holds
        assert hold.process is not None and hold.process.tree
        assert sqlite.hf.processes.end_tree(str(hold.process.tree), 0.2)
        assert sqlite.hf.processes.survivors(str(hold.process.tree)) == []
        assert sqlite("locks", "run", "-n", "r", "--", "true").status == 0


def test_a_stopped_guardian_keeps_the_lock(sqlite: Bench) -> None:
    first = sqlite.run("r", "--by", "one", "--", *parent("none"))
    command, grandchild = map(int, line(first).split())
    guard = guardian_of(first)
    with deaths([first.pid, guard, command, grandchild]) as (wrapper, guardian, head, last):
        wrapper.kill()
        # Not before: the kernel continues a stopped process when its group loses its last parent in
        # the session.
        os.kill(guard, signal.SIGSTOP)
        head.kill()
        last.kill()
        # Nobody can tell a tree that has ended from one whose guardian stands still.
        assert sqlite("locks", "run", "-n", "r", "--", "true").status == 5
        os.kill(guard, signal.SIGCONT)
        guardian.wait()
        assert sqlite("locks", "run", "-w", str(PATIENCE_S), "r", "--", "true").status == 0


def test_a_guardian_that_is_stopped_while_it_starts_only_delays(sqlite: Bench) -> None:
    """The kernel reports the stop and the continuation to the wrapper, while it waits for the
    guardian's first line.
    """
    first = sqlite.run("r", "--", "echo", "in")
    end_s = time.monotonic() + PATIENCE_S
    # Without a pause in between: the guardian says its first word within milliseconds.
    while not (found := children(first.pid)):
        assert time.monotonic() < end_s
    with deaths(found) as (guardian,):
        guardian.send(signal.SIGSTOP)
        until(lambda: state_of(guardian.pid) == "T")
        # Asleep in the read, or still in vfork(2) where the guardian has not been executed yet.
        until(lambda: state_of(first.pid) in ("S", "D"), saw=lambda: first.poll())
        guardian.send(signal.SIGCONT)
        assert end(first) == (0, "in\n", "")
    assert sqlite.nothing_left()


@pytest.mark.parametrize("kills", ["nobody", "wrapper", "guardian", "wrapper and guardian"])
def test_a_program_that_cleans_up_removes_the_fifo(sqlite: Bench, kills: str) -> None:
    first = sqlite.run("r", "--by", "one", "--", *parent("mark"))
    command, grandchild = map(int, line(first).split())
    guard = guardian_of(first)
    with deaths([first.pid, guard, command, grandchild]) as (wrapper, guardian, head, last):
        second = sqlite.run("r", "--by", "two", "-q", "--", *report([command, grandchild]))
        sqlite.waiting("r", "two")
        folder = sqlite.hf.processes.trees._folder
        assert folder is not None
        # The second wrapper has not made a FIFO of its own go: only the first one's.
        for name in fifos(sqlite.hf):
            if name.split("-")[1] == str(first.pid):
                (folder / name).unlink()
        if "wrapper" in kills:
            wrapper.kill()
        if "guardian" in kills:
            guardian.kill()
        head.kill()
        assert sqlite("locks", "run", "-n", "r", "--", "true").status == 5
        last.kill()
        assert end(second) == (0, "[]\n", "")


def test_custody_within_custody(sqlite: Bench) -> None:
    """The inner command belongs to both trees, and keeps both locks when all wrappers and guardians
    are killed.
    """
    script = f'{nested("locks", "run", "inner", "--", sys.executable)} -c "$PROGRAM"'
    first = sqlite.run(
        "outer", "--by", "one", "--", "env", f"PROGRAM={PRINTING}", "sh", "-c", script
    )
    innermost = int(line(first))
    marks = dict(
        variable.partition("=")[::2]
        for variable in Path(f"/proc/{innermost}/environ").read_text().split("\0")
        if variable
    )["HOLDFAST_CUSTODY"].split(":")
    assert len(marks) == 2
    outer, within = (sqlite.hf.locks.status(name).holds[0].process for name in ("outer", "inner"))
    assert outer is not None and within is not None and [outer.tree, within.tree] == marks
    above = _ancestors(innermost, first.pid)
    with deaths([innermost, *above]) as (last, *others):
        for one in others:
            one.kill()
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


PRINTING = "import os, signal; print(os.getpid(), flush=True); signal.pause()"


def _ancestors(pid: int, last: int) -> list[int]:
    """The processes above one, up to another."""
    found = []
    while pid != last:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(pid)
    return found


def test_another_pid_namespace_sees_by_the_fifo(sqlite: Bench) -> None:
    first = sqlite.run("r", "--by", "one", "--", *parent("both"))
    command, grandchild = map(int, line(first).split())
    with deaths([first.pid, command, grandchild]) as (wrapper, head, last):
        wrapper.kill()
        head.kill()
        there = [
            *("unshare", "--pid", "--fork", "--mount-proc"),
            *ENTRY,
            "locks",
            "status",
            "r",
            "--json",
        ]
        if subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True).returncode:
            pytest.skip("this machine lets nobody make a pid namespace")
        said = subprocess.run(
            there, capture_output=True, text=True, check=True, env=sqlite.environment
        )
        assert json.loads(said.stdout)[0]["holds"][0]["alive"] == "alive"
        last.kill()


@needs_mounts
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    "group", [pytest.param(True, marks=needs_groups), False], ids=["group", "no group"]
)
def test_without_the_fifo_another_user_sees_the_group_alone(sqlite: Bench, group: bool) -> None:
    words = ("r", "--by", "one", "--", *parent("mark"))
    first = sqlite.run(*words) if group else without_groups(sqlite, *words)
    command, grandchild = map(int, line(first).split())
    guard = guardian_of(first)
    with deaths([first.pid, guard, command, grandchild]) as (wrapper, guardian, head, last):
        for one in (wrapper, guardian, head):
            one.kill()
        program = (
            "import os, sys\n"
            "from holdfast.processes.trees import Trees\n"
            "os.setgid(65534); os.setuid(65534)\n"
            "print(Trees(lambda: None, lambda: None).liveness(sys.argv[1], in_sight=True).value)"
        )
        command_line = [sys.executable, "-c", program, tree_of(sqlite.hf, "r")]
        said = subprocess.run(command_line, capture_output=True, text=True, check=True)
        assert said.stdout.strip() == (Liveness.ALIVE if group else Liveness.UNKNOWN).value
        last.kill()
    put_down(first)


def test_another_machine_leaves_a_claim_whose_wrapper_was_killed(
    postgres_url: str, tmp_path: Path
) -> None:
    """The guardian becomes a caretaker, which renews the lease that other machines go by, and
    releases the lock in the end.
    """
    lease_s = 6.0
    (tmp_path / "holdfast.toml").write_text(f"[locks]\nlease_s = {lease_s}\n")
    with bench_on(postgres_url, tmp_path) as here:
        first = here.run("r", "--by", "one", "--", *parent("none"))
        command, grandchild = map(int, line(first).split())
        with deaths([first.pid, command, grandchild]) as (wrapper, head, last):
            wrapper.kill()
            head.kill()
            before = here.hf.locks.status("r").holds[0].expires_at
            there = {**here.environment, "HOLDFAST_HOST_ID": "another-machine"}
            waiting = subprocess.Popen(
                [
                    *ENTRY,
                    "locks",
                    "run",
                    "r",
                    "--by",
                    "two",
                    "-q",
                    "--",
                    *report([command, grandchild]),
                ],
                stdout=subprocess.PIPE,
                text=True,
                env=there,
                cwd=tmp_path,
            )
            here.waiting("r", "two")
            # The lease that the wrapper left passes, which would have let the other machine in.
            until(
                lambda: (
                    here.hf.locks.status("r").holds[0].expires_at
                    > before + timedelta(seconds=lease_s)
                )
            )
            assert [hold.by for hold in here.hf.locks.status("r").holds] == ["one"]
            last.kill()
            assert waiting.communicate(timeout=PATIENCE_S)[0] == "[]\n"
        assert here.nothing_left()


def test_a_kicked_command_is_ended_by_the_caretaker(postgres_url: str, tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text("[locks]\nlease_s = 6.0\n")
    with bench_on(postgres_url, tmp_path) as here:
        first, pid = here.hold("r", "--by", "one")
        with deaths([first.pid, pid]) as (wrapper, head):
            wrapper.kill()
            here.hf.locks.kick("r", why="over")
            head.wait()


def test_the_command_keeps_descriptors_that_the_wrapper_was_given(
    sqlite: Bench, tmp_path: Path
) -> None:
    words = " ".join([*ENTRY, "locks", "run", "r", "--", "sh", "-c", "'echo deep >&7'"])
    subprocess.run(
        ["bash", "-c", f"{words} 7>{tmp_path}/seven"], check=True, env=sqlite.environment
    )
    assert (tmp_path / "seven").read_text() == "deep\n"


def test_a_guardian_that_is_killed_leaves_the_exit_status(sqlite: Bench) -> None:
    first = sqlite.run("r", "--", "sh", "-c", "echo $$; read line; exit 7")
    line(first)
    with deaths([guardian_of(first)]) as (guardian,):
        guardian.kill()
        assert first.stdin is not None
        assert end(first)[0] == 7
    assert sqlite.nothing_left() and fifos(sqlite.hf) == []


def test_sweep_removes_the_fifos_of_trees_that_nobody_ended(sqlite: Bench) -> None:
    first, pid = sqlite.hold("r")
    with deaths([guardian_of(first), first.pid, pid]) as killed:
        for one in killed:
            one.kill()
    assert len(fifos(sqlite.hf)) == 1
    with connect(sqlite.url) as hf:
        assert hf.processes.trees.sweep(older_than_s=0) == 1
    assert fifos(sqlite.hf) == []


@pytest.mark.parametrize("kept", ["both", "mark"])
def test_a_signal_ends_what_is_left_also_without_a_guardian(bench: Bench, kept: str) -> None:
    first = bench.run("r", "--by", "one", "--", *parent(kept))
    command, grandchild = map(int, line(first).split())
    with deaths([guardian_of(first), command, grandchild]) as (guard, head, last):
        guard.kill()
        quiet(first)
        head.wait()
        # It waits for the rest, and has reported that.
        assert f"{grandchild} sleep" in remark(first)
        first.send_signal(signal.SIGTERM)
        last.wait()
        assert end(first) == (0, "", "")
