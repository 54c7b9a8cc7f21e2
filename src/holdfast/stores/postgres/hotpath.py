"""put_new and delete_if: one message that latches and changes, one that commits.

They could be a single message, but then a connection lost at the commit would leave no name by
which to ask for the outcome.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from holdfast.kernel import faults
from holdfast.kernel.space import R, Space
from holdfast.stores.postgres import latches, schema
from holdfast.stores.postgres.attempt import Attempt, try_commit
from holdfast.stores.postgres.connection import Connection, Deadline
from holdfast.stores.postgres.messages import COMMIT, ROLLBACK, bound, exchange
from holdfast.stores.sql import table_of


def put_new(
    raw: Connection,
    namespace: str,
    space: Space[R],
    items: Sequence[tuple[str, R]],
    deadline: Deadline,
) -> Attempt[int | None]:
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
        return Attempt(None)
    return try_commit(raw, int(found[0][0]), found[0][1], lambda: _commit(raw))


def delete_if(
    raw: Connection,
    namespace: str,
    space: Space[Any],
    keys: Sequence[str],
    token: int,
    deadline: Deadline,
) -> Attempt[int]:
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
        return Attempt(0)
    return try_commit(raw, len(found), found[0][1], lambda: _commit(raw))


def _changed(
    raw: Connection, deadline: Deadline, latching: latches.Sql, sql: str, parameters: Sequence[Any]
) -> list[tuple[Any, ...]]:
    faults.reach("postgres.write")
    statements = (*latches.begin(deadline), latching, (sql, parameters))
    return exchange(raw, [bound(*one) for one in statements])[-1].rows


def _commit(raw: Connection) -> None:
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
