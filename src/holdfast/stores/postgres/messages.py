"""Messages: several statements in one, each executed by the name that the session knows it by, and their answers.

A transaction is a few messages of several statements. Parsing and planning them would be most of the server's work, so that a
statement is prepared in each session when it is first sent, in the same message, and from then on named. Its parameters travel
beside it, so that none of them is ever read as SQL.
"""

from collections.abc import Callable, Generator, Sequence
from datetime import datetime
from itertools import count
from typing import Any, NamedTuple

import psycopg
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.waiting import Ready, Wait

from holdfast.kernel.errors import InvalidValue
from holdfast.stores.postgres.connections import Connection

_PREPARED_MAX = 512
"""Most statements that are kept prepared in a session; what comes beyond is sent with its text."""
_PARAMETERS_MAX = 128
"""Most parameters of one that is kept: so many are those of a number of records that seldom comes again."""

_FAILED = (ExecStatus.FATAL_ERROR, ExecStatus.BAD_RESPONSE)
_BOOL, _INT8, _INT2, _INT4 = 16, 20, 21, 23


class Statement(NamedTuple):
    """A statement to be part of a message, and its parameters as the server reads them."""

    sql: str
    parameters: list[bytes | None]


class Answer(NamedTuple):
    """What the server said to one statement: its rows, or how many it changed."""

    rows: list[tuple[Any, ...]]
    changed: int


def bound(sql: str, parameters: Sequence[Any] = ()) -> Statement:
    """A statement with its parameters, each marked in it by %s. Raises InvalidValue for text that cannot be sent."""
    return Statement(sql, [_written(value) for value in parameters])


def exchange(raw: Connection, statements: Sequence[Statement]) -> list[Answer]:
    """Send statements in one message, and return the answers to them. Raises the driver's errors.

    What follows one that failed is not done. A connection that is left in the middle of a message is of no use any more.
    """
    raw.pgconn.enter_pipeline_mode()
    fresh: dict[str, bytes] = {}
    asked = [preparing for one in statements for preparing in _send(raw, one, fresh)]
    raw.pgconn.pipeline_sync()
    results = raw.wait(_results(raw.pgconn))
    for result in results:
        if result.status in _FAILED:
            raise psycopg.errors.error_from_result(result)
    # Known by their names only now: had something before them failed, they would not have been prepared.
    raw.prepared.update(fresh)
    return [_answer(result) for result, preparing in zip(results, asked, strict=True) if not preparing]


def _send(raw: Connection, statement: Statement, fresh: dict[str, bytes]) -> tuple[bool, ...]:
    """Add a statement to the message; say of each result that it will have whether it is that of preparing it. Those that are
    prepared here are put into `fresh`."""
    sql, parameters = statement
    name = raw.prepared.get(sql) or fresh.get(sql)
    if name is not None:
        raw.pgconn.send_query_prepared(name, parameters)
        return (False,)
    marked = (sql % tuple(f"${number}" for number in range(1, len(parameters) + 1))).encode()
    if len(raw.prepared) + len(fresh) >= _PREPARED_MAX or len(parameters) > _PARAMETERS_MAX:
        raw.pgconn.send_query_params(marked, parameters)
        return (False,)
    name = fresh[sql] = b"holdfast_%d" % next(_names)
    raw.pgconn.send_prepare(name, marked)
    raw.pgconn.send_query_prepared(name, parameters)
    return (True, False)


def _results(pgconn: psycopg.pq.abc.PGconn) -> Generator[Wait, Ready, list[Any]]:
    """The results of a message, one for each statement, once its end has come; after a failure what came until then."""
    results: list[Any] = []
    try:
        while pgconn.flush():
            if (yield Wait.RW) & Ready.R:
                pgconn.consume_input()
        while True:
            yield Wait.R
            pgconn.consume_input()
            while not pgconn.is_busy():
                result = pgconn.get_result()
                if result is not None:
                    if result.status == ExecStatus.PIPELINE_SYNC:
                        pgconn.exit_pipeline_mode()
                        return results
                    results.append(result)
                elif pgconn.status == ConnStatus.BAD:
                    raise psycopg.OperationalError("the connection is lost")
    except psycopg.OperationalError:
        # What the server said before it ended the connection says more than that it did.
        if not any(result.status in _FAILED for result in results):
            raise
        return results


def _answer(result: Any) -> Answer:
    loads = [_LOADS.get(result.ftype(column), _decoded) for column in range(result.nfields)]
    return Answer([_row(result, row, loads) for row in range(result.ntuples)], result.command_tuples or 0)


def _row(result: Any, row: int, loads: Sequence[Callable[[bytes], Any]]) -> tuple[Any, ...]:
    values = [result.get_value(row, column) for column in range(len(loads))]
    return tuple([None if value is None else load(value) for load, value in zip(loads, values, strict=True)])


def _decoded(value: bytes) -> str:
    return value.decode()


def _written(value: Any) -> bytes | None:
    """A value as the server reads it."""
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
    return b"{%b}" % b",".join(b'"%b"' % _text(item.replace("\\", r"\\").replace('"', r"\"")) for item in value)


def _text(text: str) -> bytes:
    # The driver would take it for the end of the text.
    if "\0" in text:
        raise InvalidValue("PostgreSQL cannot keep text with NUL in it: leave it out")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidValue("a lone surrogate is no character and cannot be stored: encode such text first") from None


_LOADS: dict[int, Callable[[bytes], Any]] = {_INT8: int, _INT2: int, _INT4: int, _BOOL: lambda value: value == b"t"}
_names = count(1)
