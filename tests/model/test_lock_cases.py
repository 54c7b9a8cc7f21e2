"""Short sequences that a lock table went wrong on at one time, as the model found them. Each is
judged by the oracle.
"""

from collections.abc import Callable
from typing import Any

from holdfast.primitives.locks.records import Mode
from holdfast.stores.memory import MemoryStore
from tests.model.lock_machine import LockMachine

Do = Callable[[LockMachine], None]


def play(*steps: Do, backfill_max: int = 4, several: bool = False, wakes: bool = False) -> None:
    """Do these things to a new table, compare after each, and let everyone who still waits have a
    turn.
    """
    machine = LockMachine(
        lambda clock: MemoryStore(clock=clock), several=several, wakes=wakes, say=print
    )
    try:
        machine.begin(backfill_max=backfill_max, tell_all=False)
        for step in steps:
            step(machine)
    except BaseException:
        machine.broken = True
        raise
    finally:
        machine.teardown()


def ask(job: str, names: str, *, mode: Mode = Mode.EXCLUSIVE, slot: int = 0, **more: Any) -> Do:
    usual: dict[str, Any] = {
        "priority": 0,
        "look": False,
        "ttl_s": None,
        "behalf": "self",
        "quickly": False,
        "waits": True,
    }
    return lambda machine: machine.ask(
        job=job, names=tuple(names.split()), mode=mode, slot=slot, **{**usual, **more}
    )


def release(job: str) -> Do:
    return lambda machine: machine.release_hold(
        next(hold.id for hold in machine.oracle.holds if hold.by == job)
    )


def leave(job: str) -> Do:
    def do(machine: LockMachine) -> None:
        waiting = [
            request.by for request in machine.oracle.waiting if request.id in machine.patient()
        ]
        machine.leave(at=waiting.index(job))

    return do


def look_ahead(job: str) -> Do:
    def do(machine: LockMachine) -> None:
        machine.look_ahead(
            next(request.id for request in machine.oracle.waiting if request.by == job)
        )

    return do


def advance(seconds: float) -> Do:
    return lambda machine: machine.advance(seconds=seconds)


def die(slot: int) -> Do:
    return lambda machine: machine.die(slot=slot)


def pass_on(machine: LockMachine) -> None:
    machine.pass_on(at=0)


def watch_all(machine: LockMachine) -> None:
    machine.watch_all()


HERE, ALSO_HERE, THERE = 0, 1, 2
"""Where processes run: two on one machine, and one on another."""


# Who goes.


def test_an_expired_waiter_is_granted_nothing_for_the_end_of_another() -> None:
    """Both before the last are over: the second must not get what the first waited for, with a new
    lease at that.
    """
    play(
        *(ask("j3", "b"), ask("j0", "a c b", slot=HERE), ask("j1", "a", slot=HERE), advance(31.0)),
        *(ask("j2", "c a", slot=THERE), look_ahead("j2")),
        backfill_max=0,
    )


def test_no_dead_waiter_is_granted_anything() -> None:
    play(
        *(
            ask("j0", "c"),
            ask("j1", "c", mode=Mode.SHARED, slot=HERE),
            ask("j2", "c", mode=Mode.SHARED, slot=HERE),
        ),
        *(die(HERE), ask("j3", "c", slot=ALSO_HERE), watch_all),
    )


def test_what_a_job_of_several_threads_gets_lets_nobody_pass_one_that_could_go() -> None:
    """The last must not go before j1, which only waits for its turn in the same step."""
    play(
        *(
            ask("j3", "b a"),
            ask("j0", "b", mode=Mode.SHARED),
            ask("j0", "b", mode=Mode.SHARED, priority=1),
        ),
        *(ask("j1", "a"), ask("j0", "b a"), release("j3")),
        several=True,
    )


def test_a_wait_that_takes_nothing_lets_nobody_pass_a_ready_waiter() -> None:
    play(
        *(ask("j1/x", "a b c"), ask("j0/x", "b", priority=2), ask("j0/x", "c"), ask("j3", "c a")),
        *(ask("j0/x", "a", look=True, priority=2), release("j1/x")),
        several=True,
    )


# Deadlocks.


def test_a_grant_that_closes_two_cycles_ends_both() -> None:
    """j2 gets d while it waits for j1, of which two threads wait for d."""
    play(
        *(
            ask("j1", "c"),
            ask("j2", "c"),
            ask("j3", "d"),
            ask("j2", "d"),
            ask("j1", "d"),
            ask("j1", "d"),
            release("j3"),
        ),
        several=True,
    )


def test_a_cycle_through_a_dead_process_is_no_deadlock() -> None:
    play(
        *(
            ask("j0", "a", slot=HERE),
            ask("j1", "b", slot=ALSO_HERE),
            ask("j0", "b", slot=HERE),
            die(HERE),
        ),
        *(ask("j1", "a", slot=ALSO_HERE), watch_all),
    )


# Who watches whom.


def test_what_was_passed_on_to_another_process_is_not_taken_from_it_when_the_first_ends() -> None:
    """Like a command that waits for a lock in the name of its shell, and ends as soon as it has the
    lock.
    """
    play(
        *(
            ask("j0", "a", slot=ALSO_HERE),
            ask("j1", "a", slot=HERE, behalf="other"),
            ask("j2", "a", slot=ALSO_HERE),
        ),
        *(release("j0"), pass_on, die(HERE), look_ahead("j2")),
        wakes=True,
    )


def test_one_that_is_granted_something_at_once_is_watched_by_those_with_a_later_place() -> None:
    play(ask("j0", "d"), ask("j1", "d a"), ask("j0", "a", priority=1), wakes=True)


def test_when_one_goes_out_of_turn_those_behind_it_watch_the_one_before_it() -> None:
    play(
        *(
            ask("j0", "a"),
            ask("j3", "b"),
            ask("j1", "a b"),
            ask("j0", "b a"),
            ask("j2", "b"),
            release("j3"),
        ),
        backfill_max=0,
        wakes=True,
    )


def test_a_wait_that_takes_nothing_separates_nobody() -> None:
    play(
        *(ask("j0", "a"), ask("j1", "a"), ask("j2", "a", look=True), ask("j3", "a"), leave("j1")),
        wakes=True,
    )


def test_a_wait_that_takes_nothing_wakes_nobody() -> None:
    play(ask("j0", "e"), ask("j1", "e"), ask("j2", "e", look=True, priority=1), wakes=True)
    play(ask("j0", "e"), ask("j1", "e", look=True), ask("j2", "e"), leave("j1"), wakes=True)


def test_a_dead_waiter_before_another_of_its_own_job_is_seen() -> None:
    play(
        *(
            ask("j2", "d", slot=ALSO_HERE),
            ask("j1", "d", slot=THERE),
            ask("j1", "d", slot=ALSO_HERE),
            die(THERE),
        ),
        *(ask("j3", "d", slot=ALSO_HERE), advance(31.0), watch_all),
        several=True,
    )


def test_a_time_to_live_that_its_own_job_waits_behind_is_seen_to_end() -> None:
    play(
        *(ask("j2", "d"), ask("j1", "c", ttl_s=5.0), ask("j1", "c d"), ask("j3", "c")),
        *(advance(31.0), watch_all),
        wakes=True,
    )


# The order.


def test_a_clock_stepped_back_lets_nobody_pass_one_of_higher_priority_than_the_last() -> None:
    play(
        *(
            ask("j0", "a"),
            ask("j1", "a", priority=-1),
            advance(1.0),
            ask("j2", "a"),
            advance(-12.0),
        ),
        *(ask("j3", "a"), release("j0")),
    )
