"""The programs of others beside a soak: the broker, and the database."""

import contextlib
import os
import select
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from tests.stores.postgres_server import Server
from tests.surfaces.broker import Broker

_DEATH_MS = 30_000


class _Restarted(ABC):
    """A program that is begun again when it does not serve."""

    serves = False
    _ended = False

    @abstractmethod
    def up(self) -> None:
        """Begin it, and wait until it serves."""

    def tend(self) -> Iterator[str]:
        """Begin it again if it was struck; tell what happened."""
        if self._ended:
            self._ended = False
            yield "ended"
        if not self.serves:
            self.up()
            yield "restarts"
            yield "recoveries"


class MessageBroker(_Restarted):
    """mosquitto."""

    kind = "broker"

    def __init__(self, folder: Path) -> None:
        self.stopped = False
        self._broker = Broker(folder / "broker")
        os.environ.update(self._broker.environment)

    def up(self) -> None:
        self._broker.start()
        self.serves = True

    def kill(self) -> bool:
        there = self.serves
        self._broker.kill()
        self.serves = self.stopped = False
        return there

    def end(self) -> None:
        self._broker.stop()
        self.serves, self._ended = False, True

    def stop(self) -> None:
        os.kill(self._broker.pid, signal.SIGSTOP)
        self.stopped = True

    def go_on(self) -> None:
        os.kill(self._broker.pid, signal.SIGCONT)
        self.stopped = False


class Database(_Restarted):
    """PostgreSQL with all of its processes. What it had not written is lost when it is killed; it recovers from its log."""

    kind = "database"

    def __init__(self, server: Server) -> None:
        self._server = server
        self._asleep: list[int] = []
        self.serves = True

    @property
    def stopped(self) -> bool:
        return bool(self._asleep)

    def up(self) -> None:
        self._server.start()
        self.serves = True

    def kill(self) -> bool:
        if not self.serves:
            return False
        # Stopped first, so that it begins no other process meanwhile.
        os.kill(self._server.pid, signal.SIGSTOP)
        sessions = children(self._server.pid)
        self._server.kill()
        # The next one cannot begin while one of them has the memory that they share.
        for session in sessions:
            _kill(session)
        self._asleep, self.serves = [], False
        return True

    def end(self) -> None:
        self._server.stop()
        self.serves, self._ended = False, True

    def stop(self) -> None:
        os.kill(self._server.pid, signal.SIGSTOP)
        self._asleep = [*children(self._server.pid), self._server.pid]
        for pid in self._asleep[:-1]:
            _send(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        # The first is the last to go on: until then it hears of nobody's end, and their ids are nobody else's.
        for pid in self._asleep:
            _send(pid, signal.SIGCONT)
        self._asleep = []


def children(pid: int) -> list[int]:
    """The processes that a process has begun."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _send(pid: int, number: int) -> None:
    # One that was just ending may be gone.
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _kill(pid: int) -> None:
    """Kill a process that is not our child, and wait for its end."""
    try:
        session = os.pidfd_open(pid)
    except ProcessLookupError:
        # It has noticed by itself that the first is gone.
        return
    try:
        _send(pid, signal.SIGKILL)
        waiting = select.poll()
        waiting.register(session, select.POLLIN)
        if not waiting.poll(_DEATH_MS):
            raise RuntimeError(f"{pid}, a session of PostgreSQL, outlives its own SIGKILL")
    finally:
        os.close(session)
