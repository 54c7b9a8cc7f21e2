"""A wrapper that only waits for its command is a slim program, and does everything that a loaded
one does.
"""

import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from tests.harness.timeouts import until
from tests.processes.terminal import RUN, Shell
from tests.processes.trees import KEPT, bench_on, deaths, guardian_of, parent, quiet, report
from tests.surfaces.locking import HOLDING, Bench, end, line, remark, trapping

pytestmark = pytest.mark.prove

MEMORY_MAX_MB = 15


@pytest.fixture(params=["sqlite", "files"])
def slim(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """`holdfast` on a store, whose wrappers go on standby at once."""
    go_on_standby_at_once(tmp_path)
    with bench_on(f"{request.param}:{tmp_path}/state/store", tmp_path) as made:
        yield made


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Bench]:
    """The same on SQLite alone."""
    go_on_standby_at_once(tmp_path)
    with bench_on(f"sqlite:{tmp_path}/state/store", tmp_path) as made:
        yield made


def go_on_standby_at_once(folder: Path) -> None:
    (folder / "holdfast.toml").write_text("[locks]\nstandby_after_s = 0.01\n")


def is_slim(pid: int) -> bool:
    return b"standby_program.py" in Path(f"/proc/{pid}/cmdline").read_bytes()


def until_slim(pid: int) -> None:
    """Wait until a wrapper is on standby, and has come as far as its wait."""
    until(lambda: is_slim(pid) and "signalfd" in " ".join(_files(pid)))


def _files(pid: int) -> list[str]:
    found = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(os.readlink(fd))
        except FileNotFoundError:
            continue
    return found


def _memory_mb(pid: int) -> float:
    """The memory of a process, with its share of what it has in common with others."""
    [line] = [
        line
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        if line.startswith("Pss:")
    ]
    return int(line.split()[1]) * 1024 / 1e6


def test_a_waiting_wrapper_and_its_guardian_need_little_memory(slim: Bench) -> None:
    wrapper, _ = slim.hold("r", "--by", "one")
    until_slim(wrapper.pid)
    assert b"\0holdfast\0locks\0run\0r\0" in Path(f"/proc/{wrapper.pid}/cmdline").read_bytes()
    assert Path(f"/proc/{wrapper.pid}/comm").read_text() == "holdfast\n"
    assert _memory_mb(wrapper.pid) + _memory_mb(guardian_of(wrapper)) < MEMORY_MAX_MB
    assert slim("locks", "run", "-n", "r", "--", "true").status == 5
    assert end(wrapper) == (0, "", "")
    assert slim.nothing_left()


def test_the_exit_status_is_the_commands(slim: Bench) -> None:
    wrapper = slim.run("r", "--", "sh", "-c", "read line; exit 7")
    until_slim(wrapper.pid)
    assert end(wrapper) == (7, "", "")
    assert slim.nothing_left()


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    """In the folder of the store, and among the words of the command."""
    go_on_standby_at_once(tmp_path)
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/st\xffate")
    with bench_on(f"sqlite:{folder}/store", tmp_path) as made:
        wrapper = made.run(
            "r",
            "--",
            "sh",
            "-c",
            "read line; printf %s $0 | od -An -tx1; exit 7",
            os.fsdecode(b"\xff"),
        )
        until_slim(wrapper.pid)
        assert end(wrapper) == (7, " ff\n", "")
        assert made.nothing_left()


def test_a_waiter_is_next_when_the_command_ends(slim: Bench) -> None:
    first, _ = slim.hold("r", "--by", "one")
    until_slim(first.pid)
    second = slim.run("r", "--by", "two", "-q", "--", "echo", "in")
    slim.waiting("r", "two")
    assert end(first) == (0, "", "")
    assert end(second) == (0, "in\n", "")


def test_a_lock_that_is_taken_away_ends_the_command(slim: Bench) -> None:
    wrapper = slim.run("r", "--by", "one", "--", *trapping("SIGTERM"))
    assert line(wrapper) == "up"
    until_slim(wrapper.pid)
    assert slim("locks", "kick", "r", "--why", "it is needed").status == 0
    assert line(wrapper) == "got"
    status, out, err = end(wrapper)
    assert (status, out) == (4, "")
    assert err.count("was taken away") == 1


def test_a_revoked_lock_leaves_the_command_on_request(slim: Bench) -> None:
    wrapper = slim.run("r", "--by", "one", "--on-lost", "ignore", "--", *HOLDING)
    line(wrapper)
    until_slim(wrapper.pid)
    assert slim("locks", "kick", "r", "--why", "it is needed").status == 0
    assert "was taken away" in remark(wrapper)
    assert end(wrapper) == (4, "", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_signals_are_passed_on(slim: Bench, number: signal.Signals) -> None:
    wrapper = slim.run("r", "--", *trapping(number.name))
    assert line(wrapper) == "up"
    until_slim(wrapper.pid)
    wrapper.send_signal(number)
    assert end(wrapper) == (42, "got\n", "")


def test_it_goes_on_standby_again(sqlite: Bench) -> None:
    counting = (
        "import signal\nfor number in range(1, 4):\n    print(number, flush=True)\n    "
        "signal.sigwait([signal.SIGUSR1])\n"
    )
    blocked = (
        f"import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n{counting}"
    )
    wrapper = sqlite.run("r", "--", sys.executable, "-c", blocked)
    for number in ("1", "2", "3"):
        assert line(wrapper) == number
        until_slim(wrapper.pid)
        wrapper.send_signal(signal.SIGUSR1)
    assert end(wrapper) == (0, "", "")


def test_processes_that_the_command_leaves_are_named_once(slim: Bench) -> None:
    wrapper = slim.run("r", "--", "sh", "-c", "sleep 1000 > /dev/null 2>&1 & echo $!; exit 3")
    with deaths([int(line(wrapper))]) as (left,):
        assert f"{left.pid} sleep" in remark(wrapper)
        until_slim(wrapper.pid)
        assert slim("locks", "run", "-n", "r", "--", "true").status == 5
        left.kill()
        assert end(wrapper) == (3, "", "")
    assert slim.nothing_left()


def test_sigterm_ends_what_the_command_left(sqlite: Bench) -> None:
    wrapper = sqlite.run("r", "--", "sh", "-c", "sleep 1000 > /dev/null 2>&1 & echo $!; exit 3")
    with deaths([int(line(wrapper))]) as (left,):
        remark(wrapper)
        until_slim(wrapper.pid)
        wrapper.send_signal(signal.SIGTERM)
        left.wait()
        assert end(wrapper) == (3, "", "")


def test_its_store_stays_in_use(sqlite: Bench, tmp_path: Path) -> None:
    """No restore replaces the files of a store under a lock, and no container with a boot id of its
    own takes this boot for over: both are kept out by locks on this file.
    """
    wrapper, _ = sqlite.hold("r", "--by", "one")
    until_slim(wrapper.pid)
    sqlite.hf.close()
    with open(tmp_path / "state" / "store-users", "rb+") as users:
        with pytest.raises(BlockingIOError):
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(BlockingIOError):
            # The byte of those who use the file of volatile locks.
            fcntl.fcntl(
                users, fcntl.F_OFD_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            )
        assert end(wrapper) == (0, "", "")
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("role", ["wrapper", "guardian", "command"])
def test_kills(sqlite: Bench, role: str, kept: str) -> None:
    first = sqlite.run("r", "--by", "one", "--", *parent(kept))
    command, grandchild = map(int, line(first).split())
    guardian = guardian_of(first)
    with deaths([first.pid, guardian, command, grandchild]) as (wrapper, guard, head, last):
        until_slim(first.pid)
        second = sqlite.run("r", "--by", "two", "-q", "--", *report([command, grandchild]))
        sqlite.waiting("r", "two")
        {"wrapper": wrapper, "guardian": guard, "command": head}[role].kill()
        if role != "command":
            quiet(first)
            head.wait()
        assert sqlite("locks", "run", "-n", "r", "--", "true").status == 5
        last.kill()
        assert end(second) == (0, "[]\n", "")
        if role != "wrapper":
            assert first.wait() == (137 if role == "command" else 0)
    assert sqlite.nothing_left()


def test_without_its_fifo_it_is_loaded_again_and_renews(tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text("[locks]\nstandby_after_s = 0.01\nlease_s = 1.5\n")
    with bench_on(f"sqlite:{tmp_path}/state/store", tmp_path) as made:
        wrapper, _ = made.hold("r", "--by", "one")
        until_slim(wrapper.pid)
        [fifo] = (tmp_path / "state" / "store-trees").iterdir()
        fifo.unlink()
        until(lambda: not is_slim(wrapper.pid))
        [before] = made.hf.locks.status("r").holds
        until(lambda: made.hf.locks.status("r").holds[0].expires_at > before.expires_at)
        assert not is_slim(wrapper.pid)
        assert end(wrapper) == (0, "", "")


def test_a_store_that_is_gone_does_not_hide_the_exit_status(sqlite: Bench, tmp_path: Path) -> None:
    wrapper = sqlite.run("r", "--", "sh", "-c", "read line; exit 7")
    until_slim(wrapper.pid)
    shutil.rmtree(tmp_path / "state")
    status, _, err = end(wrapper)
    assert status == 7
    assert "The lock ends with its command all the same" in err
    assert not (tmp_path / "state").exists()


def test_a_program_that_is_gone_does_not_hide_the_exit_status(tmp_path: Path) -> None:
    """As `make clean` under a lock removes the venv."""
    package = Path(holdfast.__file__).parent
    shutil.copytree(
        package, tmp_path / "program" / "holdfast", ignore=shutil.ignore_patterns("__pycache__")
    )
    go_on_standby_at_once(tmp_path)
    with bench_on(f"sqlite:{tmp_path}/state/store", tmp_path) as made:
        made.environment["PYTHONPATH"] = str(tmp_path / "program")
        wrapper = made.run("r", "--", "sh", "-c", "read line; exit 7")
        until_slim(wrapper.pid)
        assert (
            str(tmp_path).encode()
            in Path(f"/proc/{wrapper.pid}/cmdline").read_bytes().split(b"\0")[3]
        )
        shutil.rmtree(tmp_path / "program")
        status, _, err = end(wrapper)
        assert status == 7
        assert "the program was removed while it waited" in err
        assert made.free("r")


def test_a_module_in_the_working_folder_is_not_imported(sqlite: Bench, tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise SystemExit(99)\n")
    script = Path(sys.executable).with_name("holdfast")
    words = [str(script), "locks", "run", "r", "--", "sh", "-c", "read line; exit 7"]
    wrapper = subprocess.Popen(
        words, cwd=tmp_path, env=sqlite.environment, stdin=subprocess.PIPE, text=True
    )
    until_slim(wrapper.pid)
    wrapper.communicate()
    assert wrapper.returncode == 7


def test_a_lock_on_a_shared_database_needs_a_loaded_wrapper(
    tmp_path: Path, postgres_url: str
) -> None:
    """Only a loaded one can renew its lease."""
    (tmp_path / "holdfast.toml").write_text("[locks]\nstandby_after_s = 0.01\nlease_s = 0.9\n")
    with bench_on(postgres_url, tmp_path) as made:
        wrapper, _ = made.hold("r", "--by", "one")
        [before] = made.hf.locks.status("r").holds
        until(lambda: made.hf.locks.status("r").holds[0].expires_at > before.expires_at)
        assert not is_slim(wrapper.pid)
        assert end(wrapper) == (0, "", "")


def test_a_lock_inside_of_the_same_lock_needs_a_loaded_wrapper(sqlite: Bench) -> None:
    """The grant belongs to the outer one, and only that one is notified of its loss."""
    outer, _ = sqlite.hold("r", "--by", "one")
    inner, _ = sqlite.hold("r", "q", "--by", "one")
    until_slim(outer.pid)
    # It has tried, and waits for its guardian in read(2). Before that it waits in poll(2), and so
    # does a slim one.
    until(lambda: "pipe_read" in Path(f"/proc/{inner.pid}/wchan").read_text())
    assert not is_slim(inner.pid)
    assert end(inner) == (0, "", "")
    assert end(outer) == (0, "", "")


@pytest.fixture
def shell(sqlite: Bench) -> Iterator[Shell]:
    """A shell in which `holdfast` works on the store."""
    made = Shell(sqlite.environment | {"HOME": str(sqlite.folder)})
    made.type(f"cd {sqlite.folder}\n")
    made.until("ready> ")
    try:
        yield made
    finally:
        made.close()


_TELLING = "sh -c 'echo $PPID u''p; exec cat'"


def _wrapper_of(guardian: int) -> int:
    return int(Path(f"/proc/{guardian}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_terminal_stops_and_continues_it(shell: Shell, sqlite: Bench) -> None:
    shell.type(f"{RUN} r -- {_TELLING}; echo st''atus $?\n")
    wrapper = _wrapper_of(int(shell.until(" up").split()[-1]))
    until_slim(wrapper)
    shell.type("\x1a")
    shell.until("Stopped")
    shell.until("ready> ")
    assert sqlite("locks", "run", "-n", "r", "--", "true").status == 5
    shell.type("fg; echo st''atus $?\n")
    shell.until("cat")
    shell.type("typed\n")
    shell.until("typed")
    shell.until("typed")
    assert is_slim(wrapper)
    shell.type("\x04")
    shell.until("status 0")
    assert sqlite.nothing_left()


def test_ctrl_c_reaches_the_command_once(shell: Shell, sqlite: Bench) -> None:
    program = sqlite.folder / "count.py"
    program.write_text(
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, lambda *_: os.write(1, b'<int>'))\n"
        "print(os.getppid(), 'up', flush=True)\n"
        "sys.stdin.readline()\n"
        "print('end')\n"
    )
    shell.type(f"{RUN} r -- {sys.executable} {program}; echo st''atus $?\n")
    wrapper = _wrapper_of(int(shell.until(" up").split()[-1]))
    until_slim(wrapper)
    shell.type("\x03")
    shell.until("<int>")
    # It was woken by the key, and is back on standby.
    until(lambda: not is_slim(wrapper))
    until_slim(wrapper)
    shell.type("line\n")
    assert "<int>" not in shell.until("status 0")
    assert sqlite.nothing_left()
