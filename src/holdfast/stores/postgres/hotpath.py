"""The port's one-statement paths: one message that latches and changes, one that commits.

They could be a single message, but then a connection lost at the commit would leave no name by
which to ask how it ended.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from holdfast.kernel import faults
from holdfast.kernel.space import R, Space
from holdfast.stores.postgres import latches, schema
from holdfast.stores.postgres.attempt import Ended, committing
from holdfast.stores.postgres.connections import Connection, Deadline
from holdfast.stores.postgres.messages import bound, exchange
from holdfast.stores.sql import table_of

_COMMIT, _ROLLBACK = bound("COMMIT"), bound("ROLLBACK")


def put_new(
    raw: Connection,
    namespace: str,
    space: Space[R],
    items: Sequence[tuple[str, R]],
    deadline: Deadline,
) -> Ended[int | None]:
    """Insert all items and return their revision, or nothing and None if any key exists."""
    table = table_of(space, schema.DIALECT)
    parameters: list[Any] = []
    for key, record in items:
        parameters += [
            namespace,
            key,
            schema.DIALECT.dump(space.encode(record)),
            *space.index_keys(record),
        ]
    # Each key is latched before the revision is taken: otherwise one that waited could put a
    # smaller token on a key than another that came and went meanwhile.
    stripes = [latches.stripe_key(namespace, table.name, key) for key, _ in items]
    found = _changed(
        raw, namespace, space, deadline, stripes, _put_new(space, len(items)), parameters
    )
    if len(found) < len(items):
        exchange(raw, [_ROLLBACK])
        return Ended(None)
    return committing(raw, int(found[0][0]), found[0][1], lambda: _commit(raw))


def delete_if(
    raw: Connection,
    namespace: str,
    space: Space[Any],
    keys: Sequence[str],
    token: int,
    deadline: Deadline,
) -> Ended[int]:
    """Delete those of the keys whose record has the revision `token`; return how many there
    were.
    """
    sql = (
        table_of(space, schema.DIALECT).delete_if(len(keys), schema.DIALECT)
        + f" RETURNING 0, {schema.THIS_TRANSACTION}"
    )
    found = _changed(raw, namespace, space, deadline, [], sql, [namespace, token, *keys])
    if not found:
        exchange(raw, [_ROLLBACK])
        return Ended(0)
    return committing(raw, len(found), found[0][1], lambda: _commit(raw))


def _changed(
    raw: Connection,
    namespace: str,
    space: Space[Any],
    deadline: Deadline,
    stripes: list[int],
    sql: str,
    parameters: Sequence[Any],
) -> list[tuple[Any, ...]]:
    latching = latches.shared(namespace, space.name, stripes, latches.limit_ms(deadline))
    faults.reach("postgres.write")
    return exchange(
        raw, [bound(*one) for one in (*latches.begin(deadline), latching, (sql, parameters))]
    )[-1].rows


def _commit(raw: Connection) -> None:
    faults.reach("postgres.commit.before")
    exchange(raw, [_COMMIT])
    faults.reach("postgres.commit.after")


@lru_cache(maxsize=1024)
def _put_new(space: Space[Any], items: int) -> str:
    table = table_of(space, schema.DIALECT)
    columns = ["ns", "key", "value", *table.columns]
    # The types of a list of values are guessed from its first row, where an index may have NULL.
    types = ["text", "text", "text", *["bytea"] * len(table.columns)]
    row = f"({', '.join(f'%s::{kind}' for kind in types)})"
    names = ", ".join(columns)
    return (
        f"WITH next (rev) AS MATERIALIZED (SELECT {schema.NEXT_REVISION}), "
        f"new ({names}) AS (VALUES {', '.join([row] * items)}) "
        f"INSERT INTO {table.name} ({names}, rev) SELECT {names}, rev FROM new, next "
        f"ON CONFLICT (ns, key) DO NOTHING RETURNING rev, {schema.THIS_TRANSACTION}"
    )
