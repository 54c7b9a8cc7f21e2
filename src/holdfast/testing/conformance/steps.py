"""Steps that the tests share."""

import multiprocessing
from collections.abc import Callable
from typing import Any

from holdfast.kernel.space import Space, rows
from holdfast.kernel.store import Store, Tx
from holdfast.testing.conformance.harness import PATIENCE_S, THINGS, Harness, Thing


def put(store: Store, key: str, thing: Thing | None = None, *, space: Space[Thing] = THINGS) -> int:
    """Put a record; return its revision."""

    def body(tx: Tx) -> int:
        tx.put(space, key, thing or Thing())
        return tx.revision

    return store.transact(body, scope=[space])


def append(
    store: Store, subject: str, data: dict[str, Any] | None = None, *, space: Space[Thing] = THINGS
) -> int:
    return store.transact(
        lambda tx: tx.append(actor="t", kind="k", subject=subject, data=data), scope=[space]
    )


def increment(store: Store) -> None:
    """Read, add one and write in one transaction, which waits up to PATIENCE_S for its turn."""

    def body(tx: Tx) -> None:
        row = tx.get(THINGS, "sum")
        assert row is not None
        tx.put(THINGS, "sum", Thing(rank=row.record.rank + 1))

    store.transact(body, scope=[THINGS], timeout_s=PATIENCE_S)


def take(store: Store) -> str | None:
    """Take the first record of owner x, in a transaction that waits up to PATIENCE_S."""

    def body(tx: Tx) -> str | None:
        row = tx.take_first(THINGS, "place", ("x",))
        if row is None:
            return None
        tx.put(THINGS, row.key, Thing(owner="nobody", rank=row.record.rank))
        return row.key

    return store.transact(body, scope=[rows(THINGS)], timeout_s=PATIENCE_S)


def take_all(store: Store) -> list[str]:
    taken = []
    while (key := take(store)) is not None:
        taken.append(key)
    return taken


def heard(listener: Any) -> bool:
    """Wait up to PATIENCE_S for a notice."""
    waited_s = 0.0
    while waited_s < PATIENCE_S:
        if listener.wait(1.0).notified:
            return True
        waited_s += 1.0
    return False


def run_processes(number: int, work: Callable[[Any], Any], harness: Harness) -> list[Any]:
    """Run the work in so many new processes at once; return their results."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(number) as pool:
        return pool.map_async(work, [harness] * number, chunksize=1).get(4 * PATIENCE_S)
