"""One connection, which stops waiting for a silent server; messages of several statements, and
their answers; the deadline of a call, and the database's clock.

A transaction is a few messages of several statements. Parsing and planning them would be most of
the server's work, so each session prepares a statement when it is first sent, in the same message,
and names it from then on. Parameters travel beside the statement and are never read as SQL.
"""

import math
import secrets
import time
from collections.abc import Callable, Generator, Sequence
from datetime import datetime, timedelta
from itertools import count
from typing import Any, NamedTuple, TypeVar

import psycopg
from msgspec import Struct
from psycopg.adapt import Transformer
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.waiting import Ready, Wait

from holdfast.kernel.errors import InvalidValue
from holdfast.stores.listener import readable
from holdfast.stores.postgres.errors import NoAnswer

T = TypeVar("T")

_PREPARED_MAX = 512
"""Most statements that a session keeps prepared; further ones are sent with their text."""
_PARAMETERS_MAX = 128
"""Most parameters of a statement that is kept: one with more is for a number of records that seldom
comes again.
"""

_FAILED = (ExecStatus.FATAL_ERROR, ExecStatus.BAD_RESPONSE)
_END = ExecStatus.PIPELINE_SYNC


class CallDeadline(NamedTuple):
    """The end of a call's time limit, on the monotonic clock."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> "CallDeadline":
        return cls(time.monotonic() + seconds)

    def left_s(self) -> float:
        """The seconds left. A little more than 0 after the end: a driver takes 0 for no limit at
        all.
        """
        return max(self.at - time.monotonic(), 0.001)

    def passed(self) -> bool:
        return time.monotonic() >= self.at


class Again(Exception):
    """Nothing was committed and the work should run again."""


class PostgresConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that stops waiting for the server at `patience_until`."""

    patience_until: float = math.inf
    at_hand_until: float = 0.0
    incarnation: int = 0
    """The incarnation of the server (schema.py) that this connection is in."""
    journal: int = 0
    """The number that identifies the store's journal in its cursors."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.session = secrets.randbits(63)
        """The name of this session in the table of calls (calls.py)."""
        self.calls = 0
        """How many calls were sent that are noted there."""
        self.prepared: dict[str, bytes] = {}
        """The statements that this session has prepared, and their names."""
        self.reader = Transformer(self)
        """Makes values of the server's answers."""

    @classmethod
    def connect(  # type: ignore[override]
        cls,
        conninfo: str = "",
        *,
        failed: Callable[[psycopg.Error], None] | None = None,
        **kwargs: Any,
    ) -> "PostgresConnection":
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
        """Wait as the generator asks; the generator itself calls `check_patience`."""
        return super().wait(gen)

    def check_open(self) -> None:
        """Raise the driver's error if the server has ended this idle connection."""
        if readable([self.pgconn.socket], 0):
            self.pgconn.consume_input()
            if self.pgconn.status == ConnStatus.BAD:
                raise psycopg.OperationalError("the connection is lost")

    def check_patience(self) -> None:
        """Raise NoAnswer after the limit."""
        if time.monotonic() > self.patience_until:
            raise NoAnswer("no answer within the time limit")


def _bounded(gen: Generator[Any, Any, T], connection: PostgresConnection) -> Generator[Any, Any, T]:
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


class Statement(Struct):
    """A statement, and its parameters as the server reads them."""

    sql: str
    parameters: list[bytes | None]


class StatementResult(Struct):
    """The answer to one statement: its rows, or how many it changed."""

    rows: list[tuple[Any, ...]]
    changed: int


def bound(sql: str, parameters: Sequence[Any] = ()) -> Statement:
    """A statement with its parameters, each marked in it by %s. Raises InvalidValue for text that
    cannot be sent.
    """
    return Statement(sql, [_WRITERS[value.__class__](value) for value in parameters])


COMMIT, ROLLBACK = bound("COMMIT"), bound("ROLLBACK")


def exchange(raw: PostgresConnection, statements: Sequence[Statement]) -> list[StatementResult]:
    """Send statements in one message, and return their answers. Raises the driver's errors.

    Statements after a failed one are not executed. A connection left in the middle of a message is
    of no use any more.
    """
    pgconn, known = raw.pgconn, raw.prepared
    fresh: dict[str, bytes] = {}
    preparations: list[int] = []
    pgconn.enter_pipeline_mode()
    for number, statement in enumerate(statements):
        sql, parameters = statement.sql, statement.parameters
        name = known.get(sql) or fresh.get(sql)
        if name is None:
            preparations.append(number)
            name = _prepare(raw, sql, len(parameters), fresh)
        pgconn.send_query_prepared(name, parameters)
    pgconn.pipeline_sync()
    results = raw.wait_unbounded(_results(raw))
    for number in preparations:
        # The answer to a preparation comes just before that to its statement.
        del results[number]
    # Only now: if something before them had failed, they would not have been prepared.
    known.update(fresh)
    return [_answer(raw, result) for result in results]


def _prepare(raw: PostgresConnection, sql: str, parameters: int, fresh: dict[str, bytes]) -> bytes:
    """Add the preparation of a statement to the message; return its name, which goes into `fresh`
    if the session keeps it.
    """
    name = b""
    if len(raw.prepared) + len(fresh) < _PREPARED_MAX and parameters <= _PARAMETERS_MAX:
        name = fresh[sql] = b"holdfast_%d" % next(_names)
    marked = sql % tuple(f"${number}" for number in range(1, parameters + 1))
    raw.pgconn.send_prepare(name, marked.encode())
    return name


def _results(raw: PostgresConnection) -> Generator[Wait, Ready | int, list[Any]]:
    """The results of a message once it has ended. Raises the error of the first that failed."""
    pgconn = raw.pgconn
    results: list[Any] = []
    failed = None
    try:
        while pgconn.flush():
            if not (yield Wait.RW):
                raw.check_patience()
            pgconn.consume_input()
        status = None
        while status != _END:
            if not (yield Wait.R):
                raw.check_patience()
            pgconn.consume_input()
            while status != _END and not pgconn.is_busy():
                result = pgconn.get_result()
                if result is not None:
                    status = result.status
                    results.append(result)
                    failed = result if failed is None and status in _FAILED else failed
                elif pgconn.status == ConnStatus.BAD:
                    raise psycopg.OperationalError("the connection is lost")
        pgconn.exit_pipeline_mode()
    except psycopg.OperationalError:
        # The server's last error says more than the end of the connection.
        if failed is None:
            raise
    if failed is not None:
        raise psycopg.errors.error_from_result(failed)
    return results[:-1]


def _answer(raw: PostgresConnection, result: Any) -> StatementResult:
    if not result.ntuples:
        return StatementResult([], result.command_tuples or 0)
    raw.reader.set_pgresult(result)
    rows = raw.reader.load_rows(0, result.ntuples, tuple)
    # Otherwise the connection would keep the whole last answer in memory.
    raw.reader.set_pgresult(None)
    return StatementResult(rows, result.ntuples)


def _array(items: Sequence[str]) -> bytes:
    return b"{%b}" % b",".join(
        b'"%b"' % _text(item.replace("\\", r"\\").replace('"', r"\"")) for item in items
    )


def _text(text: str) -> bytes:
    # libpq would take NUL for the end of the text.
    if "\0" in text:
        raise InvalidValue("PostgreSQL cannot keep text with NUL in it: leave it out")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidValue(
            "a lone surrogate is no character and cannot be stored: encode such text first"
        ) from None


class _Writers(dict[type, Callable[[Any], bytes | None]]):
    """For each type of a parameter the function that writes it as the server reads it."""

    def __missing__(self, kind: type) -> Callable[[Any], bytes | None]:
        self[kind] = next(write for base, write in _WRITTEN if issubclass(kind, base))
        return self[kind]


_WRITTEN: tuple[tuple[type, Callable[[Any], bytes | None]], ...] = (
    (str, _text),
    (type(None), lambda _: None),
    (int, b"%d".__mod__),
    (bytes, lambda data: b"\\x" + data.hex().encode()),
    (datetime, lambda at: at.isoformat().encode()),
    (list, _array),
)
_WRITERS = _Writers()
_names = count(1)


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
