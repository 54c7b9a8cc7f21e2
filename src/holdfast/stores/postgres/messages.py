"""Messages of several statements, and their answers.

A transaction is a few messages of several statements. Parsing and planning them would be most of
the server's work, so each session prepares a statement when it is first sent, in the same message,
and names it from then on. Parameters travel beside the statement and are never read as SQL.
"""

from collections.abc import Generator, Sequence
from datetime import datetime
from itertools import count
from typing import Any, NamedTuple

import psycopg
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.waiting import Ready, Wait

from holdfast.kernel.errors import InvalidValue
from holdfast.stores.postgres.connection import Connection

_PREPARED_MAX = 512
"""Most statements that a session keeps prepared; further ones are sent with their text."""
_PARAMETERS_MAX = 128
"""Most parameters of a statement that is kept: one with more is for a number of records that seldom
comes again.
"""

_FAILED = (ExecStatus.FATAL_ERROR, ExecStatus.BAD_RESPONSE)
_END = ExecStatus.PIPELINE_SYNC


class Statement(NamedTuple):
    """A statement, and its parameters as the server reads them."""

    sql: str
    parameters: list[bytes | None]


class Answer(NamedTuple):
    """The answer to one statement: its rows, or how many it changed."""

    rows: list[tuple[Any, ...]]
    changed: int


def bound(sql: str, parameters: Sequence[Any] = ()) -> Statement:
    """A statement with its parameters, each marked in it by %s. Raises InvalidValue for text that
    cannot be sent.
    """
    return Statement(sql, [_written(value) for value in parameters])


COMMIT, ROLLBACK = bound("COMMIT"), bound("ROLLBACK")


def exchange(raw: Connection, statements: Sequence[Statement]) -> list[Answer]:
    """Send statements in one message, and return their answers. Raises the driver's errors.

    Statements after a failed one are not executed. A connection left in the middle of a message is
    of no use any more.
    """
    pgconn, known = raw.pgconn, raw.prepared
    fresh: dict[str, bytes] = {}
    preparations: list[int] = []
    pgconn.enter_pipeline_mode()
    for number, (sql, parameters) in enumerate(statements):
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


def _prepare(raw: Connection, sql: str, parameters: int, fresh: dict[str, bytes]) -> bytes:
    """Add the preparation of a statement to the message; return its name, which goes into `fresh`
    if the session keeps it.
    """
    name = b""
    if len(raw.prepared) + len(fresh) < _PREPARED_MAX and parameters <= _PARAMETERS_MAX:
        name = fresh[sql] = b"holdfast_%d" % next(_names)
    marked = sql % tuple(f"${number}" for number in range(1, parameters + 1))
    raw.pgconn.send_prepare(name, marked.encode())
    return name


def _results(raw: Connection) -> Generator[Wait, Ready | int, list[Any]]:
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


def _answer(raw: Connection, result: Any) -> Answer:
    if not result.ntuples:
        return Answer([], result.command_tuples or 0)
    raw.reader.set_pgresult(result)
    rows = raw.reader.load_rows(0, result.ntuples, tuple)
    # Or the connection would keep the whole last answer in memory.
    raw.reader.set_pgresult(None)
    return Answer(rows, result.ntuples)


def _written(value: Any) -> bytes | None:
    if isinstance(value, str):
        return _text(value)
    if value is None:
        return None
    if isinstance(value, int):
        return b"%d" % value
    if isinstance(value, bytes):
        return b"\\x" + value.hex().encode()
    if isinstance(value, datetime):
        return value.isoformat().encode()
    return b"{%b}" % b",".join(
        b'"%b"' % _text(item.replace("\\", r"\\").replace('"', r"\"")) for item in value
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


_names = count(1)
