"""The rules of the kernel and the primitives, each with a way to break it: a text that occurs once in
the code, and its replacement.

kernel.py          leases, holders, tokens, names, records, orders
primitives.py      the journal, counted holds, background renewal
queue.py           queues
locks.py           locks: compatibility, order, what is kept
lock_hot_path.py   locks: the straight way through the usual turn
lock_requests.py   locks: requests, waits, durable grants, upkeep

`tests/house/test_mutants.py` checks that each text occurs once, so that a mutant follows its rule
when code moves.
"""

from proof.mutation import kernel, lock_hot_path, lock_requests, locks, primitives, queue
from proof.mutation.mutant import Mutant

__all__ = ["MUTANTS", "TESTS", "Mutant"]

_AREAS = (kernel, primitives, queue, locks, lock_hot_path, lock_requests)

MUTANTS = [mutant for area in _AREAS for mutant in area.MUTANTS]

TESTS: dict[str, tuple[str, ...]] = {
    file: tests for area in _AREAS for file, tests in area.TESTS.items()
}
"""The tests that must fail for a broken rule of a file, the nearest first."""
