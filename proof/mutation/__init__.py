"""The rules of kernel and primitives, each with a way to break it: a text of the code that is there
once, and another for it.

kernel.py          leases, holders, tokens, names, records, orders
primitives.py      the journal, counted holds, what keeps leases in the background
queue.py           queues
locks.py           locks: rules, turns, what is kept
lock_requests.py   locks: asking, waiting, lasting, oversight

`tests/house/test_mutants.py` holds that each text is there once, so that a rule that moves takes
its mutant along.
"""

from proof.mutation import kernel, lock_requests, locks, primitives, queue
from proof.mutation.mutant import Mutant

__all__ = ["MUTANTS", "TESTS", "Mutant"]

_AREAS = (kernel, primitives, queue, locks, lock_requests)

MUTANTS = [mutant for area in _AREAS for mutant in area.MUTANTS]

TESTS: dict[str, tuple[str, ...]] = {
    file: tests for area in _AREAS for file, tests in area.TESTS.items()
}
"""The tests that must notice a rule of a file broken, the nearest first."""
