"""The conformance suite: what every store must do, as tests for its author.

    class TestMyStore(StoreConformance):
        capabilities = ALL
        @pytest.fixture
        def harness(self, tmp_path): return MyHarness(tmp_path)

A Harness opens stores on the same place. A test is skipped when the store lacks a capability that
it needs; `skipped_by` lists those tests, so that a project can pin the list.

    harness.py                                               what a harness gives, and shared steps
    transactions.py  hostile.py  journal.py  concurrency.py  the tests
"""

from holdfast.testing.conformance.concurrency import Concurrency
from holdfast.testing.conformance.harness import (
    ALL,
    CLOCKED,
    LATCHED,
    PERSISTENT,
    SHARED,
    Harness,
)
from holdfast.testing.conformance.hostile import Hostile
from holdfast.testing.conformance.journal import JournalSuite
from holdfast.testing.conformance.transactions import Transactions

__all__ = [
    "ALL",
    "CLOCKED",
    "LATCHED",
    "PERSISTENT",
    "SHARED",
    "Harness",
    "StoreConformance",
    "skipped_by",
]


class StoreConformance(Transactions, Hostile, JournalSuite, Concurrency):
    """All tests. Subclass it with a `harness` fixture and the store's capabilities."""


def skipped_by(capabilities: frozenset[str]) -> list[str]:
    """The names of the tests that a store with these capabilities skips."""
    return sorted(
        name
        for name in dir(StoreConformance)
        if name.startswith("test_")
        and not getattr(getattr(StoreConformance, name), "needs", frozenset()) <= capabilities
    )
