"""Processes that fork with a store open: what a child is told to be done is on disk, and nothing
hangs.

SQLite keeps its locks in a table of the process. A child has the table and not the locks.
"""

import contextlib
import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.conformance.harness import put
from tests.harness.processes import flock_waiters
from tests.harness.timeouts import PATIENCE_S, until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


@contextmanager
def _program(*words: object) -> Iterator["subprocess.Popen[str]"]:
    """A program of fork_parents.py. In a session of its own, so that what hangs can be ended with
    all its children.
    """
    words_ = [sys.executable, "-m", "tests.hazards.fork_parents", *map(str, words)]
    with subprocess.Popen(
        words_,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        start_new_session=True,
    ) as program:
        try:
            yield program
        finally:
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)


def _say(program: "subprocess.Popen[str]", lines: int = 1) -> None:
    assert program.stdin is not None
    program.stdin.write("\n" * lines)
    program.stdin.flush()


def _hear(program: "subprocess.Popen[str]", wanted: str) -> list[str]:
    """The lines up to one that is wanted."""
    assert program.stdout is not None
    heard = []
    for line in program.stdout:
        heard.append(line.strip())
        if heard[-1] == wanted:
            return heard
    raise AssertionError(f"{wanted!r} never came, but {heard}")


def _acked(lines: list[str]) -> set[str]:
    return {line.removeprefix("acked ") for line in lines if line.startswith("acked ")}


def _on_disk(path: Path) -> set[str]:
    """The keys that a process that has seen nothing else finds, by SQLite alone."""
    code = (
        "import sqlite3, sys; print(*(row[0] for row in "
        "sqlite3.connect(sys.argv[1]).execute(sys.argv[2])), sep='\\n')"
    )
    table = _table(path)
    output = subprocess.run(
        [sys.executable, "-c", code, str(path), f"SELECT key FROM {table}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(output.stdout.splitlines())


def _table(path: Path) -> str:
    with closing(sqlite3.connect(path)) as raw:
        names = [
            row[0]
            for row in raw.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 's_%'"
            )
        ]
    (name,) = [name for name in names if "things" in name]
    return str(name)


# --- a thread that waits at the gate ---


@pytest.mark.parametrize("how", ["fork", "process", "grandchild"])
def test_a_worker_that_is_forked_while_a_thread_waits_loses_nothing_that_was_acknowledged(
    path: Path, how: str
) -> None:
    """Its own `connect` would trust locks of its parent's, and the next process that closes the
    store deletes the log under it: 11 of 12 acknowledged changes were gone.
    """
    SqliteStore(path, boot_id="boot-1").close()
    gate = path.with_name("store.sqlite-gate")
    with _program("waiting_thread", path, how) as program:
        lines = _hear(program, "open")
        in_the_way = os.open(gate, os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(in_the_way, fcntl.LOCK_EX)
        _say(program)
        lines += _hear(program, "waiting")
        until(lambda: flock_waiters(gate))
        _say(program)
        lines += _hear(program, "forked")
        os.close(in_the_way)
        lines += _hear(program, "closed")
        # The worker begins.
        _say(program)
        assert program.stdout is not None
        while (line := program.stdout.readline().strip()) not in ("worked", "refused", ""):
            lines.append(line)
        lines.append(line)
        # Another process is the last to close the store, as far as the kernel knows: it deletes the
        # log.
        other = SqliteStore(path, boot_id="boot-1")
        put(other, "other")
        other.close()
        assert program.stdin is not None
        program.stdin.close()
        lines += [line.strip() for line in program.stdout]
        assert program.wait(PATIENCE_S) == 0
    assert _acked(lines) >= {"parent", "waiting"}
    assert _acked(lines) - _on_disk(path) == set()
    assert "refused" in lines
    assert not any(line.startswith("strange") for line in lines)


# --- busy threads ---


@pytest.mark.parametrize("how", ["fork", "exit", "process", "pool", "executor"])
def test_children_forked_from_busy_threads_can_write(path: Path, how: str) -> None:
    acked, refused = _run_busy(path, threads=6, children=4, how=how, wait_s=PATIENCE_S)
    assert (len(acked), refused) == (4, 0)


@pytest.mark.parametrize("how", ["fork", "exit", "process", "pool", "executor"])
def test_children_forked_from_busy_threads_at_once_end_and_lose_nothing(
    path: Path, how: str
) -> None:
    """Threads are inside SQLite at that moment, and hold its mutexes and Python's locks, which
    nobody will release.
    """
    acked, refused = _run_busy(path, threads=12, children=6, how=how, wait_s=0)
    # Each child has either done it or was refused before anything was done.
    assert len(acked) + refused == 6
    assert refused


@pytest.mark.exhaustive
def test_children_forked_from_170_busy_threads_can_write(path: Path) -> None:
    """Seen to hang on a futex: the thread that forked never got the lock that all others wanted to
    open their files by.
    """
    acked, refused = _run_busy(path, threads=170, children=4, how="fork", wait_s=PATIENCE_S)
    assert (len(acked), refused) == (4, 0)


def _run_busy(
    path: Path, *, threads: int, children: int, how: str, wait_s: float
) -> tuple[set[str], int]:
    """What the children were acknowledged, all of which is on disk, and how many were refused."""
    with _program("busy_threads", path, threads, children, how, wait_s) as program:
        out, _ = program.communicate(timeout=PATIENCE_S)
        lines = out.splitlines()
    assert program.returncode == 0
    assert lines[-1] == "ended"
    assert not any(line.startswith("strange") for line in lines), lines
    acked = _acked(lines)
    assert acked - _on_disk(path) == set()
    return acked, lines.count("refused")


# --- servers ---


def test_workers_of_a_server_that_forks_them_write_and_are_replaced(path: Path) -> None:
    workers, rounds = 4, 3
    with _program("prefork_server", path, workers, rounds) as program:
        lines: list[str] = []
        for _ in range(workers):
            lines += _hear(program, "served")
        for _ in range(rounds):
            _say(program)
            lines += _hear(program, "served")
        assert program.stdin is not None
        program.stdin.close()
        assert program.stdout is not None
        lines += [line.strip() for line in program.stdout]
        assert program.wait(PATIENCE_S) == 0
    acked = _acked(lines)
    assert {f"worker {number} again" for number in range(rounds, workers + rounds)} <= acked
    assert acked - _on_disk(path) == set()


# --- forks at bad moments ---


@pytest.mark.parametrize(
    ("words", "written", "refused"),
    [
        pytest.param(["inside_a_transaction"], {"inside", "after"}, 3, id="inside a transaction"),
        pytest.param(["without_hooks"], {"before", "after"}, 2, id="by a C library"),
        pytest.param(["failing_hook", "EBADF"], {"before", "after"}, 2, id="closed descriptors"),
        pytest.param(["failing_hook", "MemoryError"], {"before", "after"}, 2, id="no memory"),
    ],
)
def test_a_child_forked_at_a_bad_moment_is_refused_and_changes_nothing(
    path: Path, words: list[str], written: set[str], refused: int
) -> None:
    with _program(words[0], path, *words[1:]) as program:
        out, _ = program.communicate(timeout=PATIENCE_S)
    assert program.returncode == 0
    assert out.splitlines().count("refused") == refused, out
    assert "strange" not in out
    assert _on_disk(path) == written
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_closed_connection_has_no_file_open_though_its_statement_failed(path: Path) -> None:
    """A fork takes it for closed; SQLite keeps it open while a cursor has a statement that did not
    end.
    """
    with closing(SqliteStore(path, boot_id="boot-1")) as store:
        connection = store.durable.lend()
        connection.cursor.execute("CREATE TEMP TABLE once (key PRIMARY KEY)")
        connection.cursor.execute("INSERT INTO once VALUES (1)")
        with pytest.raises(sqlite3.IntegrityError):
            connection.cursor.execute("INSERT INTO once VALUES (1)")
        connection.close()
        store.durable.close()
        assert not _open_files(path)


def _open_files(path: Path) -> list[str]:
    names = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            names.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [name for name in names if name in (str(path), f"{path}-wal", f"{path}-shm")]


def test_a_daemon_that_closes_all_descriptors_keeps_those_it_opens_then(path: Path) -> None:
    program = f"""
import os, holdfast
hf = holdfast.connect("sqlite:{path}")
hf.locks.release(hf.locks.acquire("r", by="parent"))
child = os.fork()
if child:
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os.closerange(3, 256)
mine = [os.open("{path}.mine", os.O_RDWR | os.O_CREAT) for _ in range(40)]
found = [os.fstat(fd).st_ino for fd in mine]
hf = holdfast.connect("sqlite:{path}")
hf.locks.release(hf.locks.acquire("r", by="child"))
assert [os.fstat(fd).st_ino for fd in mine] == found
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)


def test_threads_of_a_forked_child_that_begin_at_once_keep_their_locks(path: Path) -> None:
    program = f"""
import os, sys, threading, holdfast
hf = holdfast.connect("sqlite:{path}")
hf.locks.release(hf.locks.acquire("r", by="parent"))
sys.setswitchinterval(1e-6)
child = os.fork()
if child:
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
freed = []
begun = threading.Barrier(4)
def use(n):
    begun.wait()
    freed.append(hf.locks.release(hf.locks.acquire(f"r-{{n}}", by=f"job-{{n}}")))
threads = [threading.Thread(target=use, args=(n,)) for n in range(4)]
for one in threads: one.start()
for one in threads: one.join()
os._exit(0 if freed == [True] * 4 else 1)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)
