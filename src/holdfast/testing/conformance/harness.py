"""The capabilities, records, spaces and shared steps of the suite, and the harness that opens a
store for it.
"""

import multiprocessing
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest

from holdfast.kernel.codec import Instant, Record
from holdfast.kernel.space import Space, rows
from holdfast.kernel.store import Store, Tx
from holdfast.testing.clock import ManualClock

SHARED = "shared"
"""Several processes can open the store."""
PERSISTENT = "persistent"
"""Records survive the last process that had the store open."""
CLOCKED = "clocked"
"""The store uses a given clock. A database has its own."""
LATCHED = "latched"
"""A transaction waits for its turn, so that its time limit can pass."""
ALL = frozenset({SHARED, PERSISTENT, CLOCKED, LATCHED})

PATIENCE_S = 120.0
"""How long a test waits for something that must happen, before it fails."""


class Thing(Record, frozen=True, kw_only=True):
    owner: str = "nobody"
    rank: int = 0
    at: Instant | None = None


class ThingV2(Record, frozen=True, kw_only=True):
    """Thing in a later schema version."""

    schema_version: int = 2
    owner: str
    rank: int
    colour: str


def _place(thing: Thing) -> tuple[str, int] | None:
    return (thing.owner, thing.rank) if thing.owner != "nobody" else None


THINGS = Space("conformance_things", Thing, indexes={"place": _place})
OTHERS = Space("conformance_others", Thing)
VOLATILE = Space("conformance_volatile", Thing, indexes={"place": _place}, volatile=True)
THINGS_V2 = Space(
    "conformance_things",
    ThingV2,
    schema_version=2,
    upgrades={1: lambda old: {"owner": old["owner"], "rank": old["rank"], "colour": "grey"}},
    indexes={"colour": lambda thing: (thing.colour,)},
)


class Harness(Protocol):
    """Opens stores for the suite, all on the same place."""

    clock: ManualClock

    def open(self, *, namespace: str = "default") -> Store:
        """Open a new store object. Called in other processes too."""

    def damage(self, space: str, key: str, data: bytes) -> None:
        """Overwrite the stored bytes of a record, past the store."""


def needs(*capabilities: str) -> Callable[[Any], Any]:
    """Mark a test with the capabilities it needs."""

    def mark(test: Any) -> Any:
        test.needs = frozenset(capabilities)
        return test

    return mark


class Suite:
    """Base of all tests: the store under test, and skips by capability."""

    capabilities: frozenset[str] = ALL

    @pytest.fixture(autouse=True)
    def _by_capability(self, request: pytest.FixtureRequest) -> None:
        missing: frozenset[str] = (
            getattr(request.function, "needs", frozenset()) - self.capabilities
        )
        if missing:
            pytest.skip(f"the store does not claim {', '.join(sorted(missing))}")

    @pytest.fixture
    def store(self, harness: Harness) -> Iterator[Store]:
        store = harness.open()
        yield store
        store.close()


def put(store: Store, key: str, thing: Thing | None = None, *, space: Space[Thing] = THINGS) -> int:
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
