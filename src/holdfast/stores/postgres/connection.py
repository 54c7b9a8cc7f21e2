"""One connection, which stops waiting for a silent server, the deadline of a call, and the
database's clock.
"""

import math
import time
from collections.abc import Callable, Generator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg.adapt import Transformer
from psycopg.waiting import Ready, Wait

from holdfast.stores.postgres.errors import NoAnswer

T = TypeVar("T")


class Deadline(NamedTuple):
    """The end of a call's time limit, on the monotonic clock."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        return cls(time.monotonic() + seconds)

    def left_s(self) -> float:
        """What is left, and a little when nothing is: a driver takes 0 for no limit at all."""
        return max(self.at - time.monotonic(), 0.001)

    def passed(self) -> bool:
        return time.monotonic() >= self.at


class Again(Exception):
    """Nothing was committed and the work should run again."""


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that stops waiting for the server at `patience_until`."""

    patience_until: float = math.inf
    at_hand_until: float = 0.0
    incarnation: int = 0
    """The incarnation of the server (incarnation.py) that this connection is in."""
    journal: int = 0
    """The number that identifies the store's journal in its cursors."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prepared: dict[str, bytes] = {}
        """The statements that this session has prepared (messages.py), and their names."""
        self.reader = Transformer(self)
        """Makes values of the server's answers."""

    @classmethod
    def connect(  # type: ignore[override]
        cls,
        conninfo: str = "",
        *,
        failed: Callable[[psycopg.Error], None] | None = None,
        **kwargs: Any,
    ) -> "Connection":
        """As the driver does. `failed` gets the error of a failed attempt: a pool hides it."""
        try:
            return super().connect(conninfo, **kwargs)
        except psycopg.Error as error:
            if failed is not None:
                failed(error)
            raise

    def value(self, sql: str, parameters: Sequence[Any] | None = None) -> Any:
        """The one value that a statement returns."""
        return self.execute(sql.encode(), parameters).fetchall()[0][0]

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        return super().wait(_bounded(gen, self), *args, **kwargs)

    def wait_unbounded(self, gen: Generator[Wait, Ready | int, T]) -> T:
        """Wait as a generator asks that calls `check_patience` itself."""
        return super().wait(gen)

    def check_patience(self) -> None:
        """Raise NoAnswer after the limit."""
        if time.monotonic() > self.patience_until:
            raise NoAnswer("no answer within the time limit")


def _bounded(gen: Generator[Any, Any, T], connection: Connection) -> Generator[Any, Any, T]:
    """The driver's own waiting, ended at the connection's limit. The driver sends 0 after each
    moment of silence.
    """
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready:
                connection.check_patience()
            wanted = gen.send(ready)
    except StopIteration as end:
        result: T = end.value
        return result


TRUSTED_S = 60.0
"""How long the last answer is used. Clocks drift apart by some milliseconds in that time."""


class ServerClock:
    """What the server's clock said last, and when. Safe for threads and after fork.

    Time passes on CLOCK_BOOTTIME, which nobody sets and which goes on while the machine sleeps.
    """

    def __init__(self) -> None:
        self._seen: tuple[datetime, float] | None = None

    def saw(self, at: datetime, asked_s: float) -> datetime:
        """Note the server's time as soon as its answer came, and when it was asked for
        (`passing_s`); return that time.

        The server's clock said so at some moment between the two. If the known time agrees with
        that, it is better and stays: a process that was stopped before it read the answer would set
        its clock back, and shorten its leases by as much.
        """
        came = passing_s()
        counted = at if self._seen is None else _counted(self._seen, came)
        agrees = at <= counted <= at + timedelta(seconds=came - asked_s)
        self._seen = (counted if agrees else at), came
        return at

    def now(self, ask: Callable[[], datetime]) -> datetime:
        """The server's time: behind it by at most what the quickest of the last answers took, and
        the drift since then.
        """
        seen, now_s = self._seen, passing_s()
        if seen is not None and now_s - seen[1] <= TRUSTED_S:
            return _counted(seen, now_s)
        return self.saw(ask(), now_s)


def passing_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _counted(seen: tuple[datetime, float], now_s: float) -> datetime:
    at, came = seen
    return at + timedelta(seconds=now_s - came)
