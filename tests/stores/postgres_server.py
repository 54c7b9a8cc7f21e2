"""A real PostgreSQL for the tests, in a temporary folder of its own.

It listens on a socket in that folder alone, so that nothing else on the machine can meet it, and
runs as a user that is not root, as PostgreSQL insists.
"""

import os
import pwd
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TypedDict

import psycopg

from tests.harness.processes import children, state_of
from tests.harness.timeouts import PATIENCE_S, until

# These settings only save time. A running vacuum would hold back followers of the journal, as any
# open transaction does. Survival of a power loss is not tested here.
SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "autovacuum": "off",
    "shared_buffers": "16MB",
    "max_connections": "200",
    "deadlock_timeout": "50ms",
}
_numbers = count(1)


class User(TypedDict, total=False):
    """Whom to run as, in the words of subprocess; nothing for ourselves."""

    user: int
    group: int


def binaries() -> Path | None:
    """The folder of initdb and postgres, of the newest version that is installed."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if found:
        return max(found, key=lambda path: float(path.parent.name))
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


class Server:
    """A server that runs. `url` is that of its first database."""

    def __init__(
        self, folder: Path, binaries: Path, user: User, settings: Mapping[str, str]
    ) -> None:
        self.folder = folder
        self.binaries = binaries
        self.user = user
        self.settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"postgresql://holdfast@/postgres?host={folder}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        settings = [f"--{name}={value}" for name, value in self.settings.items()]
        log = (self.folder / "log").open("ab")
        command = [
            str(self.binaries / "postgres"),
            "-D",
            str(self.folder / "data"),
            "-k",
            str(self.folder),
            *settings,
        ]
        with log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.folder, **self.user
            )
        ready = [
            str(self.binaries / "pg_isready"),
            "-q",
            "-h",
            str(self.folder),
            "-p",
            self.settings.get("port", "5432"),
        ]
        for _ in range(int(PATIENCE_S) * 20):
            if subprocess.run(ready, check=False).returncode == 0:
                return
            try:
                self._process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            break
        raise RuntimeError(f"PostgreSQL did not start: {(self.folder / 'log').read_text()[-2000:]}")

    def stop(self) -> None:
        """Stop it at once, ending all connections."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(PATIENCE_S)
            self._process = None

    @property
    def pid(self) -> int:
        """Of the process that begins all others."""
        assert self._process is not None
        return self._process.pid

    def reload(self) -> None:
        """Let it read its settings again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def crash(self) -> None:
        """End it without a word: what it had not written is lost, and it recovers when it is
        started again.
        """
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(PATIENCE_S)
            self._process = None

    def kill(self) -> None:
        """Kill it and all its sessions at once, as the end of its machine would."""
        if self._process is not None:
            # The first of them is the last to go, and sees nothing before: sessions that notice its
            # end run on for a moment, and show each other commits that no standby has confirmed.
            _stop(self.pid)
            for session in self._sessions():
                _kill(session)
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._process = None

    def freeze(self) -> None:
        """Let it and all its sessions stand still."""
        _stop(self.pid)
        for session in self._sessions():
            _stop(session)

    def go_on(self) -> None:
        """Let all of it go on from where they stood still."""
        # The first process continues last: until then it learns of no death, and no pid is reused.
        for pid in (*self._sessions(), self.pid):
            _send(pid, signal.SIGCONT)

    def _sessions(self) -> list[int]:
        # While it stands still it begins no other.
        return children(self.pid)

    def database(self) -> str:
        """Make a new, empty database and return its URL."""
        name = f"test_{os.getpid()}_{next(_numbers)}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(
                f"CREATE DATABASE {name} TEMPLATE template0 STRATEGY file_copy".encode()
            )
        return f"postgresql://holdfast@/{name}?host={self.folder}"

    def drop(self, url: str) -> None:
        """Remove a database, with all its connections."""
        name = url.partition("@/")[2].partition("?")[0]
        with psycopg.connect(self.url, autocommit=True) as connection:
            # Whom FORCE ends it waits for five seconds alone.
            ended = "SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity WHERE datname = %s"
            connection.execute(ended, (int(PATIENCE_S * 1000), name))
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())


@contextmanager
def running(**more: str) -> Iterator[Server]:
    """Run a server for the block, with more settings if given; skip the test, or fail it in CI,
    where there is none to run.
    """
    # Here, so that the benchmark, whose venv has none, can import the rest.
    from tests.harness.requirements import skip_or_fail

    found = binaries()
    if found is None:
        skip_or_fail("no PostgreSQL here: apt-get install postgresql")
    with serving(found, {**SETTINGS, **more}) as server:
        yield server


@contextmanager
def serving(found: Path, settings: Mapping[str, str]) -> Iterator[Server]:
    """Run a server of these binaries, with these settings, for the block. Needs no pytest: the
    benchmark uses it too.
    """
    user = _user()
    # Not pytest's folder: that is closed to other users, and too long for the name of a socket.
    folder = Path(tempfile.mkdtemp(prefix="hfpg-"))
    try:
        if user:
            os.chown(folder, user["user"], user["group"])
        made = str(folder / "data")
        make = [
            str(found / "initdb"),
            "-D",
            made,
            "-U",
            "holdfast",
            "-E",
            "UTF8",
            "--no-sync",
            "--auth=trust",
        ]
        subprocess.run(
            [*make, "--locale=C.UTF-8"], check=True, capture_output=True, cwd=folder, **user
        )
        server = Server(folder, found, user, settings)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _send(pid: int, number: int) -> None:
    # One that was just ending may be gone.
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _stop(pid: int) -> None:
    """Let a process stand still, and wait until it does: it may be about to begin another, or to
    answer.
    """
    _send(pid, signal.SIGSTOP)
    until(lambda: state_of(pid) in ("T", "Z", None))


def _kill(pid: int) -> None:
    """Kill a process that is not our child, and wait for its end."""
    try:
        session = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        _send(pid, signal.SIGKILL)
        waiting = select.poll()
        waiting.register(session, select.POLLIN)
        if not waiting.poll(PATIENCE_S * 1000):
            raise RuntimeError(f"{pid}, a session of PostgreSQL, outlives its own SIGKILL")
    finally:
        os.close(session)


def _user() -> User:
    """Whom to run as: ourselves, but never root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid}
    return {"user": 65534, "group": 65534}
