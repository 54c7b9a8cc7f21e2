"""Processes that are stopped (SIGSTOP).

A process that is stopped inside a transaction blocks every other writer until it continues or is
killed. A background thread may be inside one at any moment, so a test says which case it wants:
`StoppedInside` or `stop_outside`.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import psycopg

STOPS_MAX = 1000
"""How many stops are tried until one is outside a transaction."""

_SCRIPT = """
import os, signal, sys, holdfast
from holdfast.runtime.maintenance import all_spaces
hf = holdfast.connect(sys.argv[1], namespace=sys.argv[2])
scope = [space for space in all_spaces() if space.name in sys.argv[4:]]
def body(tx):
    for space in scope:
        tx.range(space, limit=1)
    if sys.argv[1].startswith("postgres"):
        # The server ends the session of a stopped client after 5 s. The body would run again, and
        # stop again.
        tx._raw.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
    os.kill(os.getpid(), signal.SIGSTOP)
# Long enough for a stop of any length: a commit that comes too late has an unknown outcome.
getattr(hf.store, sys.argv[3])(body, scope=scope, timeout_s=1200)
"""


class StoppedInside:
    """A process that is stopped inside a transaction or a read of these spaces, for a `with`
    block.
    """

    def __init__(
        self, url: str, *spaces: str, namespace: str = "default", call: str = "transact"
    ) -> None:
        words = [sys.executable, "-c", _SCRIPT, url, namespace, call, *spaces]
        self._process = subprocess.Popen(words)
        self.pid = self._process.pid

    def __enter__(self) -> "StoppedInside":
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"it ended instead ({status})"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()

    def go_on(self) -> None:
        """Continue it and wait for its end."""
        os.kill(self.pid, signal.SIGCONT)
        assert self._process.wait() == 0


def stop_outside(
    pid: int, url: str, stop: Callable[[], object] | None = None, tries: int | None = None
) -> None:
    """Stop a child of this process while it is outside every transaction on the store: continue it
    and stop it again until it is. `stop` replaces the plain SIGSTOP.
    """
    tries = STOPS_MAX if tries is None else tries
    for _ in range(tries):
        if stop is None:
            os.kill(pid, signal.SIGSTOP)
        else:
            stop()
        wait_until_stopped(pid)
        if not is_inside(pid, url):
            return
        os.kill(pid, signal.SIGCONT)
    raise AssertionError(
        f"process {pid} was inside a transaction each of {tries} times that it was stopped: it "
        "hangs in one, or another program keeps one open on the same database"
    )


def wait_until_stopped(pid: int) -> None:
    """Wait until a child of this process has stopped."""
    found = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    assert found is not None and found.si_code == os.CLD_STOPPED, (
        f"process {pid} ended and cannot stop: {found}"
    )


def is_inside(pid: int, url: str) -> bool:
    """Is a thread of this process inside a transaction? On PostgreSQL it may be another
    process's.
    """
    if url.startswith("postgres"):
        with psycopg.connect(url, autocommit=True) as database:
            found = database.execute(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> "
                "pg_backend_pid()"
            ).fetchone()
        return found is None or found[0] > 0
    held = re.compile(rf"FLOCK +\S+ +WRITE {pid} \S+:(\d+) ")
    inodes = {int(found[1]) for found in held.finditer(Path("/proc/locks").read_text())}
    opened = [
        fd
        for fd in Path(f"/proc/{pid}/fd").iterdir()
        if os.readlink(fd).endswith(("-gate", "/latch", ".lock"))
    ]
    return any(os.stat(fd).st_ino in inodes for fd in opened)
