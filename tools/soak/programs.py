"""What is no process of ours: the gateway's own program, the broker, the database. Each can be killed and started again."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from tests.hazards.gateway_process import DILIGENT
from tests.stores import postgres_server
from tests.stores.postgres_server import Server
from tests.surfaces.broker import Broker
from tools.soak.gateway_parts import AGENT


class Program(Protocol):
    """Something that can be taken down and brought up again."""

    name: str

    def down(self) -> None:
        """End it without a word, or as harshly as it can bear."""
        ...

    def up(self) -> None:
        """Start it."""
        ...

    def ready(self) -> None:
        """Return when it serves."""
        ...


class Gateway:
    """`holdfast gateway serve` before a command agent that writes down what it is asked for. Another `holdfast` program, as a
    server of the whole store, is one more class like this one, and a line in `programs`."""

    name = "gateway"

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._environment = {
            **os.environ,
            "HOLDFAST_STORE": url,
            "HOLDFAST_GATEWAY_ROOT": str(folder / "gateways"),
            "LC_ALL": "C.UTF-8",
        }
        self._process: subprocess.Popen[str] | None = None
        self._told = False

    def up(self) -> None:
        agent = [sys.executable, "-c", DILIGENT, str(self._folder / "asked")]
        words = [sys.executable, "-m", "holdfast.surfaces.cli.entry", "gateway", "serve", AGENT, "--adapter", "command"]
        with open(self._folder / "gateway.log", "a") as errors:
            self._process = subprocess.Popen(
                [*words, "--", *agent],
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
        line = "gateway of " if self._told else self._process.stdout.readline()
        self._told = True
        if not line.startswith("gateway of "):
            raise RuntimeError(f"the gateway did not start: {(self._folder / 'gateway.log').read_text()[-2000:]}")

    def down(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


class MessageBroker:
    """mosquitto."""

    name = "broker"

    def __init__(self, folder: Path) -> None:
        self._broker = Broker(folder / "broker")
        os.environ.update(self._broker.environment)

    def up(self) -> None:
        self._broker.start()

    def ready(self) -> None:
        """It is, once it was started."""

    def down(self) -> None:
        self._broker.stop()


class Database:
    """PostgreSQL: crashed, so that what it had not written is lost, and recovered."""

    name = "database"

    def __init__(self, server: Server) -> None:
        self._server = server

    def up(self) -> None:
        self._server.start()

    def ready(self) -> None:
        """It is, once it was started."""

    def down(self) -> None:
        self._server.crash()


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
            server = stack.enter_context(postgres_server.serving(binaries, settings))
            url = server.database()
            found.append(Database(server))
        else:
            url = f"sqlite:{folder}/store.sqlite"
        for program in (MessageBroker(folder), Gateway(folder, url)):
            stack.callback(program.down)
            program.up()
            program.ready()
            found.append(program)
        yield url, found
