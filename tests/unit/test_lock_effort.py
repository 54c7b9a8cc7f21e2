"""The cost of one release in Python calls: it must grow with the number of waiters, and not with
its square.
"""

import sys
from collections.abc import Callable, Iterable
from functools import partial

import pytest

import holdfast
from holdfast.primitives.locks import Locks, Mode
from holdfast.primitives.locks.request import check_request, make_draft
from holdfast.primitives.locks.transaction import LockTransaction
from tests.unit.lock_world import context_of

NAMES = [f"router-{number}" for number in range(16)]

Wait = tuple[list[str], Mode]


def _calls(work: Callable[[], object]) -> int:
    """How many calls the work makes, generators that go on included. Unlike time, it is the same on
    every machine.
    """
    number = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return number


def _wait_in_line(locks: Locks, waits: Iterable[Wait]) -> None:
    """Put requests in line without a thread for each."""
    for number, (names, mode) in enumerate(waits):
        request = check_request(names, f"job-{number}", mode, None)
        # The queue is the hazard here, and 250 threads are not.
        draft = make_draft(context_of(locks), request, context_of(locks).new_id())
        context_of(locks).transact(partial(LockTransaction.grant_or_queue, draft=draft))


def _shared(number: int) -> list[Wait]:
    return [(NAMES, Mode.SHARED)] * number


def _shared_then_exclusive(number: int) -> list[Wait]:
    half = number // 2
    return [(NAMES, Mode.SHARED)] * half + [(NAMES, Mode.EXCLUSIVE)] * half


def _shared_behind_a_blocked_one(number: int) -> list[Wait]:
    return [([*NAMES, "elsewhere"], Mode.EXCLUSIVE), *_shared(number)]


def _blocked_elsewhere(number: int) -> list[Wait]:
    return [([*NAMES, "elsewhere"], Mode.SHARED)] * number


@pytest.mark.parametrize(
    "shape", [_shared, _shared_then_exclusive, _shared_behind_a_blocked_one, _blocked_elsewhere]
)
def test_a_release_costs_in_proportion_to_the_waiters(shape: Callable[[int], list[Wait]]) -> None:
    """250 waiters that share 64 names made one release take 8 s: each was compared with every
    holder of every name.
    """

    def calls_of_release(waiters: int) -> int:
        with holdfast.connect("memory:") as hf:
            hf.locks.acquire("elsewhere", by="other")
            grant = hf.locks.acquire(NAMES, by="first")
            _wait_in_line(hf.locks, shape(waiters))
            return _calls(lambda: hf.locks.release(grant))

    few, many = calls_of_release(20), calls_of_release(80)
    assert many < 5 * few, (few, many)
