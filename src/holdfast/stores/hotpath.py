"""The port's hot paths as general transactions, for stores and spaces without a faster way."""

from collections.abc import Sequence
from typing import Any

from holdfast.kernel.space import R, Space
from holdfast.kernel.store import Store, Tx
from holdfast.stores.checks import check_keys


def put_new(
    store: Store, space: Space[R], items: Sequence[tuple[str, R]], timeout_s: float
) -> int | None:
    check_keys([key for key, _ in items], distinct=True)

    def insert(tx: Tx) -> int | None:
        if any(tx.get(space, key) for key, _ in items):
            return None
        for key, record in items:
            tx.put(space, key, record)
        return tx.revision

    return store.transact(insert, scope=[space], timeout_s=timeout_s)


def delete_if(
    store: Store, space: Space[Any], keys: Sequence[str], token: int, timeout_s: float
) -> int:
    check_keys(keys)

    def remove(tx: Tx) -> int:
        found = [
            row
            for key in dict.fromkeys(keys)
            if (row := tx.get(space, key)) and row.revision == token
        ]
        return sum(tx.delete(space, row.key) for row in found)

    return store.transact(remove, scope=[space], timeout_s=timeout_s)
