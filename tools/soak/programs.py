"""What runs beside: the gateway and the servers as their users run them, the broker, the database.

Each can be killed, stopped and continued, ended, and started again.
"""

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from tests.hazards.gateway_process import DILIGENT
from tests.stores import postgres_server
from tools.soak.gateway_parts import AGENT
from tools.soak.services import Database, MessageBroker

_SERVERS = 2
_PATIENCE_S = 60.0


class Program(Protocol):
    """Something that can be taken down and brought up again."""

    @property
    def kind(self) -> str:
        """What it is called in the counts."""
        ...

    @property
    def stopped(self) -> bool:
        """By `stop`, and not continued since."""
        ...

    def kill(self) -> None:
        """End it with -9, and wait for that."""
        ...

    def end(self) -> None:
        """Ask it to end, and wait for that."""
        ...

    def stop(self) -> None:
        """Let it do nothing until `go_on`."""
        ...

    def go_on(self) -> None:
        """After `stop`."""
        ...

    def up(self) -> None:
        """Start it."""
        ...

    def ready(self) -> None:
        """Return when it serves. Raises RuntimeError when it does not come to that."""
        ...


class Command:
    """A `holdfast` command that serves until it is ended, and says so in its first line."""

    def __init__(self, kind: str, folder: Path, url: str, words: Sequence[str], said: str) -> None:
        self.kind = kind
        self.stopped = False
        self._folder = folder
        self._log = folder / f"{kind}.log"
        self._words = [sys.executable, "-m", "holdfast.surfaces.cli.entry", *words]
        self._said = said
        gateways = str(folder / "gateways")
        self._environment = {**os.environ, "HOLDFAST_STORE": url, "HOLDFAST_GATEWAY_ROOT": gateways, "LC_ALL": "C.UTF-8"}
        self._process: subprocess.Popen[str] | None = None
        self._told = False

    def up(self) -> None:
        with self._log.open("a") as errors:
            self._process = subprocess.Popen(
                self._words,
                env=self._environment,
                cwd=self._folder,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                preexec_fn=dies_with_us,
            )
        self._told = False

    def ready(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        if not self._told:
            heard, _, _ = select.select([self._process.stdout], [], [], _PATIENCE_S)
            if not heard or not self._process.stdout.readline().startswith(self._said):
                raise RuntimeError(f"the {self.kind} did not start: {self._log.read_text()[-2000:]}")
        self._told = True

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
        self.stopped = False

    def end(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.communicate(timeout=_PATIENCE_S)
        self._process = None

    def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        self.stopped = True

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self.stopped = False


def gateway(folder: Path, url: str) -> Command:
    """`holdfast gateway serve` before a command agent that writes down what it is asked for."""
    agent = [sys.executable, "-c", DILIGENT, str(folder / "asked")]
    words = ["gateway", "serve", AGENT, "--adapter", "command", "--", *agent]
    return Command("gateway", folder, url, words, "gateway of ")


def server(folder: Path, url: str) -> Command:
    """`holdfast serve` at a port that stays its own."""
    return Command("server", folder, url, ["serve", "--port", str(_free_port())], "serving at ")


def dies_with_us() -> None:
    """In a new process: end when the soak does."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@contextlib.contextmanager
def programs(store: str, folder: Path) -> Iterator[tuple[str, list[Program]]]:
    """The URL of a new store, and everything that is to run beside, running, for the block."""
    with contextlib.ExitStack() as stack:
        found: list[Program] = []
        if store == "postgres":
            binaries = postgres_server.binaries()
            if binaries is None:
                raise SystemExit("no PostgreSQL here: apt-get install postgresql")
            # What the crashes take back must be what was not promised: the database syncs as it does for its users.
            settings = {**postgres_server.SETTINGS, "fsync": "on", "autovacuum": "on", "max_connections": "400"}
            database = stack.enter_context(postgres_server.serving(binaries, settings))
            url = database.database()
            found.append(Database(database))
        else:
            url = f"sqlite:{folder}/store.sqlite"
        more: list[Program] = [MessageBroker(folder), gateway(folder, url), *(server(folder, url) for _ in range(_SERVERS))]
        for program in more:
            stack.callback(program.kill)
            program.up()
            found.append(program)
        for program in more:
            program.ready()
        yield url, found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
