"""What the checker of lock histories finds, and what it lets pass."""

from collections.abc import Callable
from typing import Any

import pytest

from proof.crowd.lock_history import Event, History, Rules, violations

RULES = Rules(backfill_max=4, age_s=10.0, recheck_s=2.0)


class Tale:
    """A history told by hand, in seconds."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.granted_at: dict[int, float] = {}

    def ask(
        self, at: float, who: str, names: str = "n", *, queued: float | None = None, **more: Any
    ) -> "Tale":
        usual = {
            "mode": "exclusive",
            "priority": 0,
            "timeout_s": 20.0,
            "ttl_s": None,
            "attended": True,
            "alone": True,
        }
        event = {
            "at": at,
            "kind": "asked",
            "id": who,
            "by": who,
            "process": f"p-{who}",
            "names": names.split(),
            **usual,
            **more,
        }
        self.events.append(event)
        return self if queued is None else self.tell(queued, "queued", who)

    def grant(self, at: float, who: str, token: int, names: str = "n") -> "Tale":
        return self.tell(
            at, "granted", who, tokens=dict.fromkeys(names.split(), token), taken=names.split()
        )

    def release(self, at: float, who: str, *, freed: bool = True) -> "Tale":
        return self.tell(at, "releasing", who).tell(at + 0.001, "released", who, freed=freed)

    def tell(self, at: float, kind: str, who: str, **more: Any) -> "Tale":
        self.events.append({"at": at, "kind": kind, "id": who, **more})
        return self

    def of_process(self, at: float, kind: str, who: str) -> "Tale":
        self.events.append({"at": at, "kind": kind, "process": f"p-{who}"})
        return self

    def wrong(self) -> list[str]:
        return violations(History(self.events), RULES, self.granted_at)


def held(
    token: int, begin: float, end: float, who: str, names: str = "n", **more: Any
) -> Callable[[Tale], Tale]:
    return lambda tale: (
        tale.ask(begin - 0.001, who, names, **more)
        .grant(begin, who, token, names)
        .release(end, who)
    )


def tale(*parts: Callable[[Tale], Tale]) -> Tale:
    found = Tale()
    for part in parts:
        found = part(found)
    return found


def test_one_after_the_other_is_well() -> None:
    assert tale(held(1, 1.0, 2.0, "a"), held(2, 2.002, 3.0, "b")).wrong() == []


def test_two_exclusive_holders_are_found() -> None:
    assert "two holders of n" in tale(held(1, 1.0, 2.0, "a"), held(2, 1.9, 3.0, "b")).wrong()[0]


def test_an_exclusive_holder_among_sharers_is_found() -> None:
    sharers = [
        held(number, 1.0 + number / 10, 2.0, f"s{number}", mode="shared") for number in range(3)
    ]
    assert tale(*sharers).wrong() == []
    assert len(tale(*sharers, held(9, 1.9, 3.0, "b")).wrong()) == 3


def test_holders_of_different_names_do_not_meet() -> None:
    assert tale(held(1, 1.0, 2.0, "a", "n m"), held(2, 1.5, 3.0, "b", "k")).wrong() == []


def test_a_grant_before_its_holder_was_killed_is_found_and_one_after_is_well() -> None:
    killed = (
        Tale()
        .ask(0.9, "a")
        .grant(1.0, "a", 1)
        .of_process(2.0, "killing", "a")
        .of_process(2.01, "died", "a")
    )
    assert held(2, 1.99, 3.0, "b")(killed).wrong()[0].startswith("two holders")
    killed = (
        Tale()
        .ask(0.9, "a")
        .grant(1.0, "a", 1)
        .of_process(2.0, "killing", "a")
        .of_process(2.01, "died", "a")
    )
    assert held(2, 2.005, 3.0, "b")(killed).wrong() == []


def test_a_grant_without_a_process_outlives_its_taker() -> None:
    killed = Tale().ask(0.9, "a", ttl_s=5.0, attended=False).grant(1.0, "a", 1)
    killed.of_process(2.0, "killing", "a").of_process(2.01, "died", "a")
    assert held(2, 2.5, 3.0, "b")(killed).wrong()[0].startswith("two holders")


def test_a_time_to_live_ends_a_grant_and_no_sooner() -> None:
    def leased() -> Tale:
        return Tale().ask(1.0, "a", ttl_s=1.0).grant(1.0, "a", 1).release(4.0, "a", freed=False)

    assert held(2, 2.1, 3.0, "b")(leased()).wrong() == []
    assert held(2, 1.8, 3.0, "b")(leased()).wrong()[0].startswith("two holders")
    too_late = leased().tell(1.5, "renewing", "a")
    assert held(2, 2.1, 3.0, "b")(too_late).wrong() == []
    renewed = leased().tell(1.5, "renewing", "a").tell(1.51, "renewed", "a", ttl_s=1.0)
    assert held(2, 2.1, 3.0, "b")(renewed).wrong()[0].startswith("two holders")


def test_a_grant_that_its_living_holder_lost_is_found() -> None:
    lost = Tale().ask(1.0, "a").grant(1.0, "a", 1).release(2.0, "a", freed=False)
    assert lost.wrong()[0].endswith("was lost")


def test_tokens_that_do_not_grow_are_found() -> None:
    assert "do not grow" in tale(held(2, 1.0, 2.0, "a"), held(1, 3.0, 4.0, "b")).wrong()[0]
    assert "one token" in tale(held(1, 1.0, 2.0, "a"), held(1, 3.0, 4.0, "b")).wrong()[0]


def test_grants_that_may_have_come_in_either_order_may_have_either_tokens() -> None:
    sharers = (
        Tale()
        .ask(1.0, "a", mode="shared")
        .ask(1.0, "b", mode="shared")
        .grant(1.2, "a", 2)
        .grant(1.1, "b", 1)
    )
    assert sharers.release(2.0, "a").release(2.0, "b").wrong() == []


def _passed(times: int, **more: Any) -> Tale:
    """A wants two names; so many of one name go before it, though they came later."""
    found = Tale().ask(1.0, "first", "m").grant(1.0, "first", 1, "m")
    found.ask(1.1, "a", "n m", queued=1.2)
    for number in range(times):
        at = 2.0 + number / 10
        held(number + 2, at, at + 0.05, f"b{number}", **more)(found)
    return found.release(3.0, "first").grant(3.01, "a", 99, "n m").release(3.1, "a")


def test_one_that_is_passed_too_often_is_found() -> None:
    assert _passed(4).wrong() == []
    assert "was passed by 5" in _passed(5).wrong()[0]


def test_a_holder_or_a_first_by_priority_passes_no_waiter() -> None:
    assert _passed(5, alone=False).wrong() == []
    assert _passed(5, priority=1).wrong() == []
    assert _passed(5, priority=-1).wrong() != []


def test_one_that_was_passed_and_gave_up_is_found_too() -> None:
    found = Tale().ask(1.0, "first", "m").grant(1.0, "first", 1, "m").release(9.0, "first")
    found.ask(1.1, "a", "n m", queued=1.2, timeout_s=2.0).tell(3.2, "timed_out", "a")
    for number in range(5):
        held(number + 2, 2.0 + number / 10, 2.05 + number / 10, f"b{number}")(found)
    assert "was passed by 5" in found.wrong()[0]


def test_a_grant_after_a_withdrawal_passes_no_waiter() -> None:
    found = Tale().ask(1.0, "first", "m").grant(1.0, "first", 1, "m").release(9.0, "first")
    found.ask(1.1, "a", "n m", queued=1.2, timeout_s=2.0).tell(4.0, "timed_out", "a")
    for number in range(5):
        held(number + 2, 3.2 + number / 10, 3.25 + number / 10, f"b{number}")(found)
    assert found.wrong() == []


def test_the_later_of_two_requests_must_not_go_first() -> None:
    found = held(1, 1.0, 2.0, "first")(Tale()).ask(1.1, "a", queued=1.2).ask(1.3, "b", queued=1.4)
    found.grant(2.01, "b", 2).release(2.1, "b").grant(2.11, "a", 3).release(2.2, "a")
    assert "the later went first" in found.wrong()[0]


def test_one_that_got_no_turn_may_hold_what_its_job_does_not_know_of() -> None:
    """A job that holds something may overtake those that wait for it."""
    found = (
        held(1, 1.0, 2.0, "first")(Tale()).ask(0.9, "b1", "m", by="b").tell(1.0, "no_turn", "b1")
    )
    found.ask(1.1, "a", queued=1.2).ask(1.3, "b2", by="b")
    found.grant(2.01, "b2", 2).release(2.1, "b2").grant(2.11, "a", 3).release(2.2, "a")
    assert found.wrong() == []
    late = (
        held(1, 1.0, 12.0, "first")(Tale()).ask(0.1, "b1", "m", by="b").tell(0.2, "no_turn", "b1")
    )
    late.ask(11.0, "a", queued=11.1).ask(11.2, "b2", by="b")
    late.grant(12.01, "b2", 2).release(12.1, "b2").grant(12.11, "a", 3).release(12.2, "a")
    assert "the later went first" in late.wrong()[0]


def test_those_that_came_at_the_same_time_may_go_in_either_order() -> None:
    found = held(1, 1.0, 2.0, "first")(Tale()).ask(1.1, "a", queued=1.3).ask(1.2, "b", queued=1.4)
    found.grant(2.01, "b", 2).release(2.1, "b").grant(2.11, "a", 3).release(2.2, "a")
    assert found.wrong() == []


def _waits(end: float, how: str) -> Tale:
    found = held(1, 1.0, 2.0, "first")(Tale()).ask(1.1, "a", queued=1.2, timeout_s=end - 1.1)
    if how == "granted":
        return found.grant(end, "a", 2).release(end + 0.1, "a")
    return found.tell(end, "timed_out", "a")


@pytest.mark.parametrize("how", ["granted", "timed_out"])
def test_a_wait_that_outlasts_its_reason_is_found(how: str) -> None:
    assert _waits(2.9, how).wrong() == []
    assert "while all was free" in _waits(3.1, how).wrong()[0]


def test_a_wait_behind_another_waiter_has_a_reason() -> None:
    found = _waits(3.1, "timed_out").ask(1.15, "b", "n m", queued=1.2).tell(3.0, "timed_out", "b")
    assert found.wrong() == []
    shared = _waits(3.1, "timed_out").ask(1.15, "b", "k", queued=1.2).tell(3.0, "timed_out", "b")
    assert shared.wrong() != [], "that one wanted something else"


def test_the_own_job_is_no_reason_to_wait() -> None:
    found = _waits(3.1, "timed_out")
    found.ask(0.5, "a2", "n", by="a", mode="shared").grant(0.6, "a2", 1).release(4.0, "a2")
    assert any("while all was free" in one for one in found.wrong())


def test_a_stopped_process_may_be_late_and_a_killed_one_may_take_a_wake_up_along() -> None:
    stopped = (
        _waits(3.1, "granted")
        .of_process(1.9, "stopping", "first")
        .of_process(2.5, "continued", "first")
    )
    assert stopped.wrong() == []
    killed = (
        _waits(4.5, "granted")
        .of_process(2.002, "killing", "first")
        .of_process(2.01, "died", "first")
    )
    assert killed.wrong() == []
    killed = (
        _waits(5.5, "granted")
        .of_process(2.002, "killing", "first")
        .of_process(2.01, "died", "first")
    )
    assert killed.wrong() != []


def test_a_grant_that_its_waiter_learns_of_late_is_found() -> None:
    found = tale(held(1, 1.0, 2.0, "first"), held(2, 5.1, 5.2, "later"))
    found.ask(1.1, "a", queued=1.2, mode="shared").ask(1.2, "b", mode="shared").grant(
        4.9, "a", 3
    ).release(5.0, "a")
    found.granted_at = {3: 2.0}
    assert any("learnt of its grant 2.900 s late" in one for one in found.wrong())
    found.granted_at = {3: 4.8}
    assert not any("learnt" in one for one in found.wrong())


def _circle() -> Tale:
    found = (
        Tale()
        .ask(1.0, "a1", "n", by="a")
        .grant(1.0, "a1", 1, "n")
        .ask(1.0, "b1", "m", by="b")
        .grant(1.0, "b1", 2, "m")
    )
    return found.ask(1.1, "b2", "n", by="b", queued=1.2, alone=False, timeout_s=9.0)


def test_a_true_deadlock_is_well() -> None:
    found = _circle().ask(1.3, "a2", "m", by="a", alone=False)
    found.tell(1.31, "deadlock", "a2", message="a waits for m, held by b; b waits for n, held by a")
    found.release(1.4, "a1").grant(1.5, "b2", 3, "n").release(1.6, "b2").release(1.6, "b1")
    assert found.wrong() == []


def test_a_deadlock_with_the_dead_or_with_nobody_is_found() -> None:
    dead = _circle().of_process(1.21, "killing", "b1").of_process(1.22, "died", "b1")
    dead.of_process(1.21, "killing", "b2").of_process(1.22, "died", "b2").ask(
        1.3, "a2", "m", by="a", alone=False
    )
    dead.tell(
        1.31, "deadlock", "a2", message="a waits for m, held by b; b waits for n, held by a"
    ).release(1.4, "a1")
    assert [one for one in dead.wrong() if "which it did not" in one]
    other = _circle().ask(1.3, "a2", "k", by="a", alone=False)
    other.tell(
        1.31, "deadlock", "a2", message="a waits for k, held by b; b waits for n, held by a"
    ).release(1.4, "a1")
    assert [one for one in other.wrong() if "b holds k, which it did not" in one]


def test_one_that_got_no_turn_may_still_stand_in_line() -> None:
    found = (
        Tale()
        .ask(1.0, "a1", "n", by="a")
        .grant(1.0, "a1", 1, "n")
        .ask(1.0, "b1", "m", by="b")
        .grant(1.0, "b1", 2, "m")
    )
    found.ask(1.1, "b2", "n", by="b", alone=False).tell(1.2, "no_turn", "b2").ask(
        1.3, "a2", "m", by="a", alone=False
    )
    found.tell(1.31, "deadlock", "a2", message="a waits for m, held by b; b waits for n, held by a")
    assert found.release(1.4, "a1").release(1.6, "b1").wrong() == []


def test_the_checker_finds_a_deadlock_that_was_not_reported() -> None:
    found = (
        _circle()
        .ask(1.3, "a2", "m", by="a", queued=1.4, alone=False, timeout_s=3.0)
        .tell(4.31, "timed_out", "a2")
    )
    found.release(4.4, "a1").grant(4.5, "b2", 3, "n").release(4.6, "b2").release(4.6, "b1")
    assert ["a deadlock that no job got" in one for one in found.wrong()] == [True]


def test_a_chain_is_no_circle() -> None:
    found = _circle().ask(1.3, "c", "m", queued=1.4, timeout_s=3.0).tell(4.31, "timed_out", "c")
    found.release(4.4, "a1").grant(4.5, "b2", 3, "n").release(4.6, "b2").release(4.6, "b1")
    assert found.wrong() == []


def test_a_call_that_failed_is_found() -> None:
    assert Tale().ask(1.0, "a").tell(1.1, "failed", "a", message="no turn").wrong() != []
