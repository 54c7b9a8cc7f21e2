"""put_new and delete_if, one message each: a statement that latches, changes, and notes the call.

The message is its own transaction, so a connection that is lost meanwhile leaves the caller without
the transaction's name. Table `holdfast.calls` answers instead. It has a row for each session with
the number and the result of the session's last call, written by the same statement. Whoever asks
for the outcome of a call closes the row first. A message that the server still has, and reads only
later, then fails. The row is the session's own, so nobody waits for it, and an update in place
costs little beside the commit.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import psycopg

from holdfast.kernel import faults
from holdfast.kernel.errors import HoldfastError
from holdfast.kernel.space import R, Space
from holdfast.stores.postgres import latches, schema
from holdfast.stores.postgres.connection import CallDeadline, PostgresConnection, bound, exchange
from holdfast.stores.postgres.connections import Connections
from holdfast.stores.postgres.errors import is_lost, unknown
from holdfast.stores.sql import table_of

_PAUSE_S = 0.005
_PAUSE_MAX_S = 0.25

_NOTE = (
    "noted AS (INSERT INTO holdfast.calls AS mine (session, number, result) "
    "SELECT %s::bigint, %s::bigint, result FROM done WHERE result > 0 "
    "ON CONFLICT (session) DO UPDATE SET number = excluded.number, result = excluded.result, "
    "at = excluded.at WHERE NOT mine.closed RETURNING 1) "
    # A closed row is not updated. Dividing by 0 then takes the change back.
    "SELECT result, CASE WHEN result > 0 THEN 1 / (SELECT count(*) FROM noted) END FROM done"
)
_CLOSE = (
    "INSERT INTO holdfast.calls AS theirs (session, number, result, closed) VALUES (%s, 0, 0, true)"
    " ON CONFLICT (session) DO UPDATE SET closed = true RETURNING number, result"
)

Message = list[latches.Sql]
"""Statements and their parameters, of which the last also takes the session and the number of the
call.
"""


class LostCall(NamedTuple):
    """A call whose connection was lost: its session, and its number there."""

    session: int
    number: int


def put_new(
    connections: Connections,
    namespace: str,
    space: Space[R],
    items: Sequence[tuple[str, R]],
    deadline: CallDeadline,
) -> int | None:
    """Insert all items and return their revision, or nothing and None if any key exists."""
    table = table_of(space, schema.DIALECT)
    rows: list[Any] = []
    for key, record in items:
        value = schema.DIALECT.dump(space.encode(record))
        rows += [namespace, key, value, *space.index_keys(record)]
    # Each key is latched before the revision is taken: otherwise one that waited could put a
    # smaller token on a key than another that came and went meanwhile.
    stripes = [latches.stripe_key(namespace, table.name, key) for key, _ in items]

    def message() -> Message:
        latched = latches.limited(deadline, namespace, space.name, stripes)
        if len(items) == 1:
            return [(_put_one(space, latched[0]), [*latched[1], *rows])]
        # Each statement sees what was committed before it, so the keys are looked for in one that
        # begins when all of them are latched.
        keys = [key for key, _ in items]
        return [latched, (_put_many(space, len(items)), [*rows, namespace, keys])]

    return _run(connections, message, deadline) or None


def delete_if(
    connections: Connections,
    namespace: str,
    space: Space[Any],
    keys: Sequence[str],
    token: int,
    deadline: CallDeadline,
) -> int:
    """Delete those of the keys whose record has the revision `token`; return how many there
    were.
    """

    def message() -> Message:
        latched, parameters = latches.limited(deadline, namespace, space.name, [])
        return [(_delete_if(space, len(keys), latched), [*parameters, namespace, token, *keys])]

    return _run(connections, message, deadline)


def _run(connections: Connections, message: Callable[[], Message], deadline: CallDeadline) -> int:
    """Send a message until it is known to have taken effect, and return its result."""

    def run(raw: PostgresConnection) -> int | LostCall:
        raw.calls += 1
        call = LostCall(raw.session, raw.calls)
        *before, (sql, parameters) = message()
        statements = [bound(*one) for one in before]
        statements.append(bound(sql, [*parameters, *call]))
        faults.reach("postgres.write")
        faults.reach("postgres.commit.before")
        # Most lost connections were lost while nobody used them: then nothing is sent, and nothing
        # has to be asked.
        raw.check_open()
        try:
            found = exchange(raw, statements)[-1].rows
        except psycopg.Error as error:
            if not is_lost(error):
                raise
            # Its row will be closed, so it can make no further call.
            raw.close()
            return call
        faults.reach("postgres.commit.after")
        return int(found[0][0] or 0) if found else 0

    while True:
        found = connections.run(run, deadline)
        if not isinstance(found, LostCall):
            return found
        result = _result(connections, found, deadline)
        if result is not None:
            return result


def _result(connections: Connections, call: LostCall, deadline: CallDeadline) -> int | None:
    """The result of a call, or None if it took no effect and never will. Raises StoreUnavailable
    with the outcome "unknown" if the server cannot be asked within the time limit.
    """

    def ask(raw: PostgresConnection) -> list[tuple[Any, ...]]:
        # It waits for a transaction of that session that is just ending. Its own commit is as safe
        # as this server's settings make it, and everything before it too.
        return exchange(raw, [bound(_CLOSE, (call.session,))])[0].rows

    pause_s = _PAUSE_S
    while not deadline.passed():
        with contextlib.suppress(HoldfastError):
            number, result = connections.run(ask, deadline)[0]
            return int(result) if number == call.number else None
        time.sleep(min(pause_s, deadline.left_s()))
        pause_s = min(2 * pause_s, _PAUSE_MAX_S)
    raise unknown(connections.address)


@lru_cache(maxsize=1024)
def _put_one(space: Space[Any], latched: str) -> str:
    table, names, row = _new_row(space)
    return (
        f"WITH next AS MATERIALIZED ({latched}, {schema.NEXT_REVISION} AS rev), "
        f"done AS (INSERT INTO {table} ({names}, rev) SELECT {row}, rev FROM next "
        f"ON CONFLICT (ns, key) DO NOTHING RETURNING rev AS result), {_NOTE}"
    )


@lru_cache(maxsize=1024)
def _put_many(space: Space[Any], items: int) -> str:
    table, names, row = _new_row(space)
    return (
        f"WITH next (rev) AS MATERIALIZED (SELECT {schema.NEXT_REVISION}), "
        f"new ({names}) AS (VALUES {', '.join([f'({row})'] * items)}), "
        f"put AS (INSERT INTO {table} ({names}, rev) SELECT {names}, rev FROM new, next "
        f"WHERE NOT EXISTS (SELECT FROM {table} WHERE ns = %s AND key = ANY(%s)) RETURNING rev), "
        f"done AS (SELECT min(rev) AS result FROM put), {_NOTE}"
    )


@lru_cache(maxsize=1024)
def _delete_if(space: Space[Any], keys: int, latched: str) -> str:
    table = table_of(space, schema.DIALECT)
    where = table.delete_if(keys).partition(" WHERE ")[2]
    return (
        f"WITH latched AS MATERIALIZED ({latched}), "
        f"gone AS (DELETE FROM {table.name} USING latched WHERE {where} RETURNING 1), "
        f"done AS (SELECT count(*) AS result FROM gone), {_NOTE}"
    )


def _new_row(space: Space[Any]) -> tuple[str, str, str]:
    """The table, the columns but the revision, and a row of parameters for them."""
    table = table_of(space, schema.DIALECT)
    # The types of a list of values are guessed from its first row, where an index may have NULL.
    types = ["text", "text", "text", *["bytea"] * len(table.columns)]
    names = ", ".join(["ns", "key", "value", *table.columns])
    return table.name, names, ", ".join(f"%s::{kind}" for kind in types)
