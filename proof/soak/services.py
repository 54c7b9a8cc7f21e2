"""The other programs of a soak: the broker, and the database."""

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from tests.stores.postgres_server import Server
from tests.surfaces.broker import Broker


class _Restarted(ABC):
    """A program that is restarted when it does not serve."""

    serves = False
    _ended = False

    @abstractmethod
    def up(self) -> None:
        """Start it, and wait until it serves."""

    def tend(self) -> Iterator[str]:
        """Restart it if it was killed or stopped; count what happened."""
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
    """PostgreSQL with all of its processes. A kill loses what it had not written; it recovers from
    its log.
    """

    kind = "database"

    def __init__(self, server: Server) -> None:
        self._server = server
        self.stopped = False
        self.serves = True

    def up(self) -> None:
        self._server.start()
        self.serves = True

    def kill(self) -> bool:
        if not self.serves:
            return False
        self._server.kill()
        self.serves = self.stopped = False
        return True

    def end(self) -> None:
        self._server.stop()
        self.serves, self._ended = False, True

    def stop(self) -> None:
        self._server.freeze()
        self.stopped = True

    def go_on(self) -> None:
        self._server.go_on()
        self.stopped = False
