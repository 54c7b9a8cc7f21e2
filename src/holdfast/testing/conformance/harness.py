"""The capabilities, records and spaces of the suite, and the harness that opens a store for it."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest

from holdfast.kernel.codec import Instant, Record
from holdfast.kernel.space import Space
from holdfast.kernel.store import Store
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
        ...

    def damage(self, space: str, key: str, data: bytes) -> None:
        """Overwrite the stored bytes of a record, past the store."""
        ...


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
