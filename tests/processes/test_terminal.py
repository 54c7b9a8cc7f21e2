"""A command in custody on a terminal, in a script and without either is as it was without
custody.
"""

import os
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.timeouts import PATIENCE_S
from tests.processes.terminal import RUN, Shell
from tests.processes.trees import bench_on
from tests.surfaces.command import ENTRY
from tests.surfaces.locking import Bench

pytestmark = pytest.mark.prove


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Bench]:
    """`holdfast` on a SQLite store."""
    with bench_on(f"sqlite:{tmp_path}/state/store", tmp_path) as made:
        yield made


@pytest.fixture
def shell(sqlite: Bench) -> Iterator[Shell]:
    """A shell in which `holdfast` works on the store."""
    made = Shell(sqlite.environment)
    try:
        yield made
    finally:
        made.close()


def test_a_command_reads_the_terminal_and_is_stopped_and_continued(
    shell: Shell, sqlite: Bench
) -> None:
    shell.type(f"{RUN} r -- sh -c 'echo u''p; exec cat'; echo st''atus $?\n")
    # Keys that arrive while bash gives the terminal back to the command may be lost, with any
    # command.
    shell.until("up\r\n")
    shell.type("first\n")
    # Once as it is typed, and once by the command.
    shell.until("first")
    shell.until("first")
    shell.type("\x1a")
    shell.until("Stopped")
    shell.until("ready> ")
    assert sqlite("locks", "run", "-n", "r", "--", "true").status == 5
    shell.type("fg; echo st''atus $?\n")
    shell.until("cat")
    shell.type("second\n")
    shell.until("second")
    shell.until("second")
    shell.type("\x04")
    shell.until("status 0")
    assert sqlite.nothing_left()


@pytest.mark.parametrize(("key", "status"), [("\x03", 130), ("\x1c", 131)])
def test_keys_that_end_a_command(shell: Shell, sqlite: Bench, key: str, status: int) -> None:
    shell.type(f"{RUN} r -- sh -c 'echo u''p; exec sleep 1000'\n")
    shell.until("up")
    shell.type(key)
    shell.until("ready> ")
    shell.type("echo st''atus $?\n")
    shell.until(f"status {status}")
    assert sqlite.nothing_left()


def test_a_terminal_that_hangs_up_ends_the_command(shell: Shell, sqlite: Bench) -> None:
    shell.type(f"{RUN} r -- sh -c 'echo $$ u''p; exec sleep 1000'\n")
    command = int(shell.until(" up").split()[-1])
    fd = os.pidfd_open(command)
    shell.type("")
    os.kill(shell.pid, signal.SIGHUP)
    assert select.select([fd], [], [], PATIENCE_S)[0]
    os.close(fd)
    assert sqlite("locks", "run", "-w", str(PATIENCE_S), "r", "--", "true").status == 0


def test_a_script_that_ends_at_the_first_failure(sqlite: Bench) -> None:
    done = sqlite.shell(f"set -e; {RUN} r -- sh -c 'exit 9'; echo not reached")
    assert (done.status, done.out) == (9, "")


def test_without_a_terminal_and_with_hardly_any_environment(sqlite: Bench) -> None:
    """As cron or a container starts it."""
    bare = {name: sqlite.environment[name] for name in ("PATH", "HOME", "HOLDFAST_STORE")}
    words = ["setsid", "--wait", *ENTRY, "locks", "run", "r", "--", "sh", "-c", "cat; exit 3"]
    if "PYTHONPATH" in os.environ:
        bare["PYTHONPATH"] = os.environ["PYTHONPATH"]
    done = subprocess.run(
        words, env=bare, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
    assert sqlite.nothing_left()


def test_a_wrapper_in_the_background_of_a_script(sqlite: Bench) -> None:
    done = sqlite.shell(f"{RUN} r -- sh -c 'echo one' & wait $!; echo $?; {RUN} r -- echo two")
    assert (done.status, done.out) == (0, "one\n0\ntwo\n")
