"""Messages: several statements in one, each as short as the server's memory of it allows, and their answers.

A transaction is a few messages of several statements, and only text can carry several. Parsing and planning the text would be
most of the server's work, so that a statement with parameters is prepared in each session when it is first sent, and from
then on executed by its name.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import count
from typing import Any, NamedTuple

import psycopg
from psycopg import generators
from psycopg.pq import Escaping, ExecStatus

from holdfast.kernel.errors import InvalidValue
from holdfast.stores.postgres.connections import Connection

_PREPARED_MAX = 512
"""Most statements that are kept prepared in a session; what comes beyond is sent as text."""

_FAILED = (ExecStatus.FATAL_ERROR, ExecStatus.BAD_RESPONSE)
_BOOL, _INT8, _INT2, _INT4 = 16, 20, 21, 23


class Answer(NamedTuple):
    """What the server said to one statement: its rows, or how many it changed."""

    rows: list[tuple[Any, ...]]
    changed: int


class Messages:
    """The messages of one transaction over one connection."""

    def __init__(self, raw: Connection) -> None:
        self._raw = raw
        self._escape = Escaping(raw.pgconn).escape_literal
        self._preparing: dict[str, tuple[str, str]] = {}

    def bound(self, sql: str, parameters: Sequence[Any] = ()) -> str:
        """A statement with its parameters, to be part of a message. Raises InvalidValue for text that cannot be sent."""
        texts = [self._literal(value) for value in parameters]
        name = self._raw.prepared.get(sql)
        if name is None:
            if len(self._raw.prepared) + len(self._preparing) >= _PREPARED_MAX:
                return sql % tuple(texts)
            name = self._prepare(sql, len(texts))
        return f"EXECUTE {name}({', '.join(texts)})" if texts else f"EXECUTE {name}"

    def exchange(self, statements: Sequence[str]) -> list[Answer]:
        """Send statements in one message, and return the answers to them. Raises the driver's errors."""
        preparing = [text for _, text in self._preparing.values()]
        # A transaction says how it is isolated before anything else is said.
        at = 1 if preparing and statements[0].startswith("BEGIN") else 0
        answers = _exchange(self._raw, "; ".join([*statements[:at], *preparing, *statements[at:]]))
        # Known by their names only now: had something before them failed, they would not have been prepared.
        self._raw.prepared.update({sql: name for sql, (name, _) in self._preparing.items()})
        self._preparing = {}
        return [*answers[:at], *answers[at + len(preparing) :]]

    def _prepare(self, sql: str, parameters: int) -> str:
        if sql not in self._preparing:
            name = f"holdfast_{next(_names)}"
            marked = sql % tuple(f"${number}" for number in range(1, parameters + 1))
            self._preparing[sql] = name, f"PREPARE {name} AS {marked}"
        return self._preparing[sql][0]

    def _literal(self, value: Any) -> str:
        if value is None:
            return "NULL"
        if isinstance(value, int):
            return str(value)
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, bytes):
            return f"E'\\\\x{value.hex()}'::bytea"
        if isinstance(value, datetime):
            return f"'{value.isoformat()}'::timestamptz"
        return f"ARRAY[{', '.join(map(self._text, value))}]::text[]"

    def _text(self, text: str) -> str:
        if "\0" in text:
            raise InvalidValue("PostgreSQL cannot keep text with NUL in it: leave it out")
        try:
            return self._escape(text.encode()).decode()
        except UnicodeEncodeError:
            raise InvalidValue("a lone surrogate is no character and cannot be stored: encode such text first") from None


def _exchange(raw: Connection, text: str) -> list[Answer]:
    raw.pgconn.send_query(text.encode())
    answers = []
    for result in raw.wait(generators.execute(raw.pgconn)):
        if result.status in _FAILED:
            raise psycopg.errors.error_from_result(result)
        loads = [_LOADS.get(result.ftype(column), _decoded) for column in range(result.nfields)]
        rows = [_row(result, row, loads) for row in range(result.ntuples)]
        answers.append(Answer(rows, result.command_tuples or 0))
    return answers


def _row(result: Any, row: int, loads: Sequence[Callable[[bytes], Any]]) -> tuple[Any, ...]:
    values = (result.get_value(row, column) for column in range(len(loads)))
    return tuple(None if value is None else load(value) for load, value in zip(loads, values, strict=True))


def _decoded(value: bytes) -> str:
    return value.decode()


_LOADS: dict[int, Callable[[bytes], Any]] = {_INT8: int, _INT2: int, _INT4: int, _BOOL: lambda value: value == b"t"}
_names = count(1)
