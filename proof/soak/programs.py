"""The programs of a soak: the gateway and the servers as their users run them, the broker, the
database. Each can be killed, stopped and continued, ended, and restarted.
"""

import contextlib
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from proof.soak.child import settle_first
from proof.soak.gateway_parts import AGENT
from proof.soak.invocation import environment, program
from proof.soak.outcome import Plan
from proof.soak.services import Database, MessageBroker
from tests.harness.ports import spare_port
from tests.hazards.gateway_process import DILIGENT
from tests.stores import postgres_server

_SERVERS = 2
_PATIENCE_S = 120.0
_NO_STORE = 6
"""The exit status of a command that cannot reach its store: the database is down."""


_NEEDED = {"broker": ("courier",), "gateway": ("client",), "server": ("caller", "fetcher")}
"""The parts that need each program."""


class Program(Protocol):
    """A program that can be taken down, and that `tend` restarts."""

    @property
    def kind(self) -> str:
        """Its name in the counts."""
        ...

    @property
    def serves(self) -> bool:
        """True after `tend`, until it is killed or stopped again."""
        ...

    @property
    def stopped(self) -> bool:
        """True after `stop`, until it is continued."""
        ...

    def up(self) -> None:
        """Start it for the first time."""
        ...

    def kill(self) -> bool:
        """Kill it with -9, wait for its end, and return whether the kill ended it: it may be down
        already.
        """
        ...

    def end(self) -> None:
        """Ask it to end."""
        ...

    def stop(self) -> None:
        """Stop it until `go_on`."""
        ...

    def go_on(self) -> None:
        """After `stop`."""
        ...

    def tend(self) -> Iterator[str]:
        """Restart it if it is down, and count events: it ended on request, restarted, or serves
        again (a recovery). Never waits long. Raises RuntimeError if it ended by itself or badly, or
        does not start or end in time.
        """
        ...


class Command:
    """A `holdfast` command that serves until it is ended, and reports that in its first line."""

    def __init__(
        self, kind: str, folder: Path, url: str, words: Sequence[str], said: str, plant: str = ""
    ) -> None:
        self.kind = kind
        self.serves = self.stopped = False
        self._folder = folder
        self._log = folder / f"{kind}.log"
        self._words = [*program(plant), *words]
        self._said = said
        gateways = str(folder / "gateways")
        self._environment = {
            **environment(plant),
            "HOLDFAST_STORE": url,
            "HOLDFAST_GATEWAY_ROOT": gateways,
            "LC_ALL": "C.UTF-8",
        }
        self._process: subprocess.Popen[str] | None = None
        self._ending = False
        self._late_s = 0.0
        """The time by which it must serve, or have ended."""

    def up(self) -> None:
        with self._log.open("a") as errors:
            self._process = subprocess.Popen(
                self._words,
                env=self._environment,
                cwd=self._folder,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                preexec_fn=settle_first,
            )
        self.serves = self._ending = False
        self._late_s = time.monotonic() + _PATIENCE_S

    def tend(self) -> Iterator[str]:
        if self._process is not None and (status := self._process.poll()) is not None:
            if status != (0 if self._ending else _NO_STORE):
                how = "as it was asked to" if self._ending else "by itself"
                raise RuntimeError(
                    f"the {self.kind} ended {how}, with {status}: {self._log.read_text()[-2000:]}"
                )
            if self._ending:
                yield "ended"
            self.kill()
        if self._process is None:
            self.up()
            yield "restarts"
        if self._heard():
            yield "recoveries"
        if (
            (self._ending or not self.serves)
            and not self.stopped
            and time.monotonic() > self._late_s
        ):
            raise RuntimeError(
                f"the {self.kind} does not serve, or end: {self._log.read_text()[-2000:]}"
            )

    def _heard(self) -> bool:
        """Does it report now that it serves?"""
        assert self._process is not None and self._process.stdout is not None
        if self.serves or self._ending or not select.select([self._process.stdout], [], [], 0.0)[0]:
            return False
        self.serves = self._process.stdout.readline().startswith(self._said)
        return self.serves

    def kill(self) -> bool:
        self.serves = self.stopped = False
        if self._process is None:
            return False
        self._process.kill()
        self._process.communicate()
        ended_by, self._process = self._process.returncode, None
        return ended_by == -signal.SIGKILL

    def end(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self.serves, self._ending = False, True
        self._late_s = time.monotonic() + _PATIENCE_S

    def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        self.stopped = True

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self.stopped = False


def gateway(folder: Path, url: str) -> Command:
    """`holdfast gateway serve` before a command agent that logs its prompts."""
    agent = [sys.executable, "-c", DILIGENT, str(folder / "asked")]
    words = ["gateway", "serve", AGENT, "--adapter", "command", "--", *agent]
    return Command("gateway", folder, url, words, "gateway of ")


def server(folder: Path, url: str, plant: str) -> Command:
    """`holdfast serve` at a fixed port."""
    return Command(
        "server", folder, url, ["serve", "--port", str(spare_port())], "serving at ", plant
    )


@contextlib.contextmanager
def programs(plan: Plan, folder: Path) -> Iterator[tuple[str, list[Program]]]:
    """The URL of a new store, and all programs of the soak, running, for the block."""
    with contextlib.ExitStack() as stack:
        found: list[Program] = []
        if plan.store == "postgres":
            database = stack.enter_context(_database())
            url = database.database()
            found.append(Database(database))
        else:
            url = (
                f"files:{folder}/store"
                if plan.store == "files"
                else f"sqlite:{folder}/store.sqlite"
            )
        for program in _beside(plan, folder, url):
            stack.callback(program.kill)
            program.up()
            found.append(program)
        while not all(program.serves for program in found):
            time.sleep(0.05)
            for program in found:
                list(program.tend())
        yield url, found


def _beside(plan: Plan, folder: Path, url: str) -> list[Program]:
    """The programs that some part needs."""
    found: list[Program] = []
    if _needed("broker", plan):
        found.append(MessageBroker(folder))
    if _needed("gateway", plan):
        found.append(gateway(folder, url))
    if _needed("server", plan):
        found.extend(server(folder, url, plan.plant) for _ in range(_SERVERS))
    return found


def _needed(kind: str, plan: Plan) -> bool:
    return not plan.parts or any(part in plan.parts for part in _NEEDED[kind])


def _database() -> contextlib.AbstractContextManager[postgres_server.Server]:
    binaries = postgres_server.binaries()
    if binaries is None:
        raise SystemExit("no PostgreSQL here: apt-get install postgresql")
    # A crash may lose only what was not promised: the database syncs as it does for its users.
    settings = {
        **postgres_server.SETTINGS,
        "fsync": "on",
        "autovacuum": "on",
        "max_connections": "400",
    }
    return postgres_server.serving(binaries, settings)
