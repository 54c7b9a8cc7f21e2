"""The conformance suite: what every store must do, as code for whoever writes one.

    class TestMyStore(StoreConformance):
        capabilities = ALL
        @pytest.fixture
        def harness(self, tmp_path): return MyHarness(tmp_path)

A Harness opens stores on one and the same place. Tests of what a store does not claim are skipped
by capability, never in silence: `skipped_by` lists them, so that a project can pin the list.

    harness.py  steps.py                                    what the suite is given, keeps and uses
    transactions.py  order.py  hostile.py  journal.py  waiting.py  concurrency.py    its parts
"""

from holdfast.testing.conformance.concurrency import Concurrency
from holdfast.testing.conformance.harness import (
    ALL,
    CLOCKED,
    LATCHED,
    OTHERS,
    PATIENCE_S,
    PERSISTENT,
    SHARED,
    THINGS,
    THINGS_V2,
    VOLATILE,
    Harness,
    Thing,
    ThingV2,
    needs,
)
from holdfast.testing.conformance.hostile import Hostile
from holdfast.testing.conformance.journal import JournalKept
from holdfast.testing.conformance.order import Order
from holdfast.testing.conformance.steps import (
    append,
    heard,
    increment,
    put,
    run_processes,
    take,
    take_all,
)
from holdfast.testing.conformance.transactions import Transactions
from holdfast.testing.conformance.waiting import Waiting

__all__ = [
    "ALL",
    "CLOCKED",
    "LATCHED",
    "OTHERS",
    "PATIENCE_S",
    "PERSISTENT",
    "SHARED",
    "THINGS",
    "THINGS_V2",
    "VOLATILE",
    "Harness",
    "StoreConformance",
    "Thing",
    "ThingV2",
    "append",
    "heard",
    "increment",
    "needs",
    "put",
    "run_processes",
    "skipped_by",
    "take",
    "take_all",
]


class StoreConformance(Transactions, Order, Hostile, JournalKept, Waiting, Concurrency):
    """The whole suite. Subclass it with a `harness` fixture and the store's capabilities."""


def skipped_by(capabilities: frozenset[str]) -> list[str]:
    """The names of the tests that a store with these capabilities skips."""
    return sorted(
        name
        for name in dir(StoreConformance)
        if name.startswith("test_")
        and not getattr(getattr(StoreConformance, name), "needs", frozenset()) <= capabilities
    )
