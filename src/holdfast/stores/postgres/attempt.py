"""A body run to its end: again while its connection is lost before the commit. If it is lost at the
commit, the server is asked for the outcome.

put_new and delete_if are one message that latches and changes, and one that commits. They could be
a single message, but then a connection lost at the commit would leave no name by which to ask for
the outcome.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from holdfast.kernel import faults
from holdfast.kernel.errors import HoldfastError
from holdfast.kernel.space import R, Space
from holdfast.kernel.store import Tx
from holdfast.stores.port import Plan
from holdfast.stores.postgres import latches, schema
from holdfast.stores.postgres.connection import (
    COMMIT,
    ROLLBACK,
    CallDeadline,
    PostgresConnection,
    bound,
    exchange,
)
from holdfast.stores.postgres.connections import Connections
from holdfast.stores.postgres.errors import is_lost, unknown
from holdfast.stores.postgres.transaction import LateLatch, PostgresTx
from holdfast.stores.sql import table_of

T = TypeVar("T")

_PAUSE_S = 0.005
_PAUSE_MAX_S = 0.25


class Doubt(NamedTuple):
    """A transaction whose connection was lost at its commit: the server's name for it, and the
    incarnation of the server that gave that name.
    """

    xid: str
    incarnation: int


class RunResult(NamedTuple, Generic[T]):
    """The result of one run, and the doubt whether it was committed."""

    result: T
    doubt: Doubt | None = None


def run_to_end(
    connections: Connections,
    run: Callable[[PostgresConnection], RunResult[T]],
    deadline: CallDeadline,
) -> T:
    """Run until a run is known to be committed, and return its result. Raises StoreUnavailable with
    the outcome "unknown" if the server cannot be asked within the time limit.
    """
    while True:
        attempt = connections.run(run, deadline)
        if attempt.doubt is None or was_committed(connections, attempt.doubt, deadline):
            return attempt.result


def transact(
    connections: Connections,
    namespace: str,
    body: Callable[[Tx], T],
    plan: Plan,
    deadline: CallDeadline,
    durable: bool,
) -> T:
    stripes: set[int] = set()

    def run(raw: PostgresConnection) -> RunResult[T]:
        tx = PostgresTx(raw, namespace, plan, deadline, set(stripes), connections.clock)
        try:
            tx.begin(durable=durable)
            result = body(tx)
            tx.prepare()
            return try_commit(raw, result, tx.xid, tx.commit)
        except LateLatch as late:
            stripes.update(late.stripes)
            raise
        finally:
            tx.end()

    return run_to_end(connections, run, deadline)


def try_commit(
    raw: PostgresConnection, result: T, xid: str | None, commit: Callable[[], Any]
) -> RunResult[T]:
    """Commit. A connection lost meanwhile leaves a doubt, unless there was nothing to commit."""
    try:
        commit()
    except psycopg.Error as error:
        # An error that leaves the transaction open came before the commit; any other may have come
        # with it or after it.
        ended = is_lost(error) or raw.pgconn.transaction_status == TransactionStatus.IDLE
        if xid is None or not ended:
            raise
        return RunResult(result, Doubt(xid, raw.incarnation))
    return RunResult(result)


def was_committed(connections: Connections, doubt: Doubt, deadline: CallDeadline) -> bool:
    """Ask the server how a transaction ended, until it has. Raises StoreUnavailable with the
    outcome "unknown" if the server cannot be asked within the time limit.
    """

    def ask(raw: PostgresConnection) -> str | None:
        fate = schema.fate(raw, doubt.xid, doubt.incarnation)
        if fate == "committed":
            schema.confirm_commits(raw)
        return fate

    pause_s = _PAUSE_S
    while not deadline.passed():
        fate: str | None = None
        with contextlib.suppress(HoldfastError):
            fate = connections.run(ask, deadline)
        if fate in ("committed", "aborted"):
            return fate == "committed"
        # The server is away, or still ending the transaction, and notifies us of neither.
        time.sleep(min(pause_s, deadline.left_s()))
        pause_s = min(2 * pause_s, _PAUSE_MAX_S)
    raise unknown(connections.address)


def put_new(
    raw: PostgresConnection,
    namespace: str,
    space: Space[R],
    items: Sequence[tuple[str, R]],
    deadline: CallDeadline,
) -> RunResult[int | None]:
    """Insert all items and return their revision, or nothing and None if any key exists."""
    table = table_of(space, schema.DIALECT)
    parameters: list[Any] = []
    for key, record in items:
        value = schema.DIALECT.dump(space.encode(record))
        parameters += [namespace, key, value, *space.index_keys(record)]
    # Each key is latched before the revision is taken: otherwise one that waited could put a
    # smaller token on a key than another that came and went meanwhile.
    stripes = [latches.stripe_key(namespace, table.name, key) for key, _ in items]
    latching = latches.shared(namespace, space.name, stripes, latches.limit_ms(deadline))
    found = _changed(raw, deadline, latching, _put_new(space, len(items)), parameters)
    if len(found) < len(items):
        exchange(raw, [ROLLBACK])
        return RunResult(None)
    return try_commit(raw, int(found[0][0]), found[0][1], lambda: _commit(raw))


def delete_if(
    raw: PostgresConnection,
    namespace: str,
    space: Space[Any],
    keys: Sequence[str],
    token: int,
    deadline: CallDeadline,
) -> RunResult[int]:
    """Delete those of the keys whose record has the revision `token`; return how many there
    were.
    """
    sql = (
        table_of(space, schema.DIALECT).delete_if(len(keys))
        + f" RETURNING 0, {schema.THIS_TRANSACTION}"
    )
    latching = latches.shared(namespace, space.name, [], latches.limit_ms(deadline))
    found = _changed(raw, deadline, latching, sql, [namespace, token, *keys])
    if not found:
        exchange(raw, [ROLLBACK])
        return RunResult(0)
    return try_commit(raw, len(found), found[0][1], lambda: _commit(raw))


def _changed(
    raw: PostgresConnection,
    deadline: CallDeadline,
    latching: latches.Sql,
    sql: str,
    parameters: Sequence[Any],
) -> list[tuple[Any, ...]]:
    faults.reach("postgres.write")
    statements = (*latches.begin(deadline), latching, (sql, parameters))
    return exchange(raw, [bound(*one) for one in statements])[-1].rows


def _commit(raw: PostgresConnection) -> None:
    faults.reach("postgres.commit.before")
    exchange(raw, [COMMIT])
    faults.reach("postgres.commit.after")


@lru_cache(maxsize=1024)
def _put_new(space: Space[Any], items: int) -> str:
    table = table_of(space, schema.DIALECT)
    # The types of a list of values are guessed from its first row, where an index may have NULL.
    types = ["text", "text", "text", *["bytea"] * len(table.columns)]
    row = f"({', '.join(f'%s::{kind}' for kind in types)})"
    names = ", ".join(["ns", "key", "value", *table.columns])
    return (
        f"WITH next (rev) AS MATERIALIZED (SELECT {schema.NEXT_REVISION}), "
        f"new ({names}) AS (VALUES {', '.join([row] * items)}) "
        f"INSERT INTO {table.name} ({names}, rev) SELECT {names}, rev FROM new, next "
        f"ON CONFLICT (ns, key) DO NOTHING RETURNING rev, {schema.THIS_TRANSACTION}"
    )
