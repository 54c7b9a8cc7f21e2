"""What the checker finds and what it lets pass: histories told by hand, and small random ones
against every order there is.
"""

from collections.abc import Sequence
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proof.histories import (
    NEVER,
    ClaimSpecification,
    CountSpecification,
    FifoSpecification,
    LockSpecification,
    Operation,
    Recorder,
    Specification,
    check,
    died,
    read,
)
from proof.histories.search import Undecided, search


class Tale:
    """A history told by hand."""

    def __init__(self, key: str = "n") -> None:
        self.key = key
        self.operations: list[Operation] = []

    def call(
        self, begin: float, end: float, who: str, call: str, answer: Any, **arguments: Any
    ) -> "Tale":
        keys = tuple(arguments.pop("keys", self.key).split())
        name = f"{who}#{len(self.operations)}"
        self.operations.append(Operation(name, who, call, keys, arguments, begin, end, answer))
        return self

    def acquire(self, begin: float, end: float, who: str, token: int | None, **more: Any) -> "Tale":
        usual = {"by": who, "mode": "exclusive", "wait": False}
        names = more.get("keys", self.key).split()
        answer = None if token is None else {"tokens": dict.fromkeys(names, token)}
        return self.call(begin, end, who, "acquire", answer, **{**usual, **more})

    def release(
        self, begin: float, end: float, who: str, token: int, freed: bool = True, **more: Any
    ) -> "Tale":
        names = more.get("keys", self.key).split()
        return self.call(
            begin, end, who, "release", freed, tokens=dict.fromkeys(names, token), **more
        )

    def wrong(self, specification: Specification[Any], **more: Any) -> list[str]:
        return check(self.operations, specification, **more).wrong


LOCKS, CLAIMS, COUNTS, FIFO = (
    LockSpecification(),
    ClaimSpecification(),
    CountSpecification(),
    FifoSpecification(),
)


# Locks.


def test_one_holder_after_the_other_is_well() -> None:
    tale = Tale().acquire(1, 2, "a", 5).release(3, 4, "a", 5).acquire(3.5, 6, "b", 6)
    assert tale.wrong(LOCKS) == []


def test_two_exclusive_holders_are_found_and_reported() -> None:
    wrong = Tale().acquire(1, 2, "a", 5).acquire(3, 4, "b", 6).release(5, 6, "a", 5).wrong(LOCKS)
    assert len(wrong) == 1
    assert "no order of the operations on n explains" in wrong[0]
    assert "b: acquire(n; by=b" in wrong[0]
    assert "a: acquire" in wrong[0]


def test_sharers_may_hold_together_and_none_with_an_exclusive_one() -> None:
    shared = Tale().acquire(1, 2, "a", 5, mode="shared").acquire(3, 4, "b", 6, mode="shared")
    assert shared.wrong(LOCKS) == []
    assert shared.acquire(5, 6, "c", 7).wrong(LOCKS) != []


def test_a_refusal_needs_a_holder() -> None:
    assert Tale().acquire(1, 2, "a", None).wrong(LOCKS) != []
    assert Tale().acquire(1, 2, "a", None, wait=True).wrong(LOCKS) == []
    assert Tale().acquire(1, 2, "a", 5).acquire(1.5, 3, "b", None).wrong(LOCKS) == []


def test_tokens_only_grow() -> None:
    assert (
        Tale().acquire(1, 2, "a", 5).release(3, 4, "a", 5).acquire(5, 6, "b", 5).wrong(LOCKS) != []
    )
    assert (
        Tale().acquire(1, 2, "a", 5).release(3, 4, "a", 5).acquire(5, 6, "b", 4).wrong(LOCKS) != []
    )


def test_a_set_is_taken_whole() -> None:
    crossed = Tale().acquire(1, 2, "a", 5, keys="n m").acquire(3, 4, "b", 6, keys="m k")
    assert crossed.wrong(LOCKS) != []
    freed = (
        Tale()
        .acquire(1, 2, "a", 5, keys="n m")
        .release(2.5, 2.6, "a", 5, keys="n m")
        .acquire(3, 4, "b", 6, keys="m k")
    )
    assert freed.wrong(LOCKS) == []


def test_a_dead_holder_is_out_of_the_way_and_not_before_it_was_killed() -> None:
    tale = Tale().acquire(1, 2, "a", 5).acquire(3, 4, "b", 6)
    assert check([*tale.operations, died("a", 2.5)], LOCKS).wrong == []
    assert check([*tale.operations, died("a", 4.5)], LOCKS).wrong != []


def test_what_a_killed_process_asked_for_it_may_have_got() -> None:
    asked = Tale().acquire(1, NEVER, "a", None).acquire(2, 3, "b", None)
    assert asked.wrong(LOCKS) == []
    both = Tale().acquire(1, NEVER, "a", None).acquire(2, 3, "b", 7)
    assert both.wrong(LOCKS) == [], "and it may not have got it"


def test_a_lease_ends_a_grant_and_no_sooner() -> None:
    tale = Tale().acquire(1, 1.1, "a", 5, ttl_s=1.0)
    assert Tale.acquire(tale, 2.1, 2.2, "b", 6).wrong(LOCKS) == []
    tale = Tale().acquire(1, 1.1, "a", 5, ttl_s=1.0)
    assert Tale.acquire(tale, 1.7, 1.8, "b", 6).wrong(LOCKS) != []
    renewed = (
        Tale()
        .acquire(1, 1.1, "a", 5, ttl_s=1.0)
        .call(1.5, 1.6, "a", "renew", True, tokens={"n": 5}, ttl_s=1.0)
    )
    assert renewed.acquire(2.2, 2.3, "b", 6).wrong(LOCKS) != []


def test_a_grant_that_is_over_stands_until_another_comes() -> None:
    over = Tale().acquire(1, 1.1, "a", 5, ttl_s=1.0).call(3, 4, "x", "check", False, token=5)
    assert over.release(5, 6, "a", 5).wrong(LOCKS) == []
    taken = Tale().acquire(1, 1.1, "a", 5, ttl_s=1.0).acquire(3, 4, "b", 6)
    assert taken.release(5, 6, "a", 5).wrong(LOCKS) != []
    late = Tale().acquire(1, 1.1, "a", 5, ttl_s=1.0).call(3, 4, "x", "check", False, token=5)
    assert late.call(5, 6, "a", "renew", True, tokens={"n": 5}, ttl_s=1.0).wrong(LOCKS) != []


def test_a_stale_token_is_refused_and_a_good_one_is_not() -> None:
    tale = (
        Tale().acquire(1, 2, "a", 5).call(3, 4, "x", "check", True, token=5).release(5, 6, "a", 5)
    )
    assert tale.wrong(LOCKS) == []
    assert tale.call(7, 8, "x", "check", True, token=5).wrong(LOCKS) != []
    assert Tale().acquire(1, 2, "a", 5).call(3, 4, "x", "check", False, token=5).wrong(LOCKS) != []


def test_a_release_of_what_is_held_frees_it() -> None:
    assert Tale().acquire(1, 2, "a", 5).release(3, 4, "a", 5, freed=False).wrong(LOCKS) != []
    assert Tale().acquire(1, 2, "a", 5).release(3, 4, "a", 6).wrong(LOCKS) != []


def test_a_waiter_that_is_woken_late_is_found() -> None:
    tale = Tale().acquire(1, 2, "a", 5).acquire(2, 9, "b", 6, wait=True).release(3, 4, "a", 5)
    assert tale.wrong(LOCKS) == []
    assert "5.000 s after it could have gone" in tale.wrong(LOCKS, late_s=1.0)[0]
    soon = Tale().acquire(1, 2, "a", 5).acquire(2, 9, "b", 6, wait=True).release(3, 8.5, "a", 5)
    assert soon.wrong(LOCKS, late_s=1.0) == []


def test_one_that_others_went_before_is_not_late() -> None:
    tale = Tale().acquire(1, 2, "a", 5).acquire(2, 9, "b", 7, wait=True).release(3, 4, "a", 5)
    tale.acquire(3.5, 4.5, "c", 6, wait=True).release(8, 8.5, "c", 6)
    assert tale.wrong(LOCKS, late_s=1.0) == []


# Claims.


def register(tale: Tale, begin: float, end: float, job: str, arrival: int, **more: Any) -> Tale:
    return tale.call(begin, end, "r", "register", {"arrival": arrival}, job=job, **more)


def picked(job: str, token: int) -> dict[str, Any]:
    return {"job": job, "token": token}


def test_a_claim_given_twice_is_found() -> None:
    tale = (
        register(Tale(), 1, 2, "j", 1)
        .call(3, 4, "a", "pick", picked("j", 2))
        .call(5, 6, "b", "pick", picked("j", 3))
    )
    assert tale.wrong(CLAIMS) != []
    assert check([*tale.operations, died("a", 4.5)], CLAIMS).wrong == []


def test_claims_come_in_order_of_priority_then_arrival() -> None:
    both = register(register(Tale(), 1, 2, "j", 1), 1, 2, "k", 2)
    assert both.call(3, 4, "a", "pick", picked("k", 3)).wrong(CLAIMS) != []
    assert both.wrong(ClaimSpecification(passes=True)) == []
    urgent = register(register(Tale(), 1, 2, "j", 1), 1, 2, "k", 2, priority=1)
    assert urgent.call(3, 4, "a", "pick", picked("k", 3)).wrong(CLAIMS) == []


def test_an_empty_pick_is_legal_only_when_the_queue_is_empty() -> None:
    assert register(Tale(), 1, 2, "j", 1).call(3, 4, "a", "pick", None).wrong(CLAIMS) != []
    assert register(Tale(), 1, 3.5, "j", 1).call(3, 4, "a", "pick", None).wrong(CLAIMS) == []


@pytest.mark.parametrize(("call", "done"), [("finish", True), ("requeue", True), ("finish", False)])
def test_a_verdict_shows_the_token_of_the_attempt(call: str, done: bool) -> None:
    tale = register(Tale(), 1, 2, "j", 1).call(3, 4, "a", "pick", picked("j", 2))
    tale.call(5, 6, "a", call, done, job="j", token=2 if done else 1)
    assert tale.wrong(CLAIMS) == []
    stale = register(Tale(), 1, 2, "j", 1).call(3, 4, "a", "pick", picked("j", 2))
    assert stale.call(5, 6, "a", call, done, job="j", token=1 if done else 2).wrong(CLAIMS) != []


def test_a_lost_job_is_found() -> None:
    tale = register(Tale(), 1, 2, "j", 1).call(3, 4, "a", "pick", picked("j", 2))
    tale.call(5, 6, "a", "requeue", True, job="j", token=2)
    assert tale.call(7, 8, "b", "pick", None).wrong(CLAIMS) != []


def test_finish_and_pick_is_one_step() -> None:
    tale = register(register(Tale(), 1, 2, "j", 1), 2.1, 2.2, "k", 2).call(
        3, 4, "a", "pick", picked("j", 3)
    )
    answer = {"done": True, "picked": picked("k", 4)}
    tale.call(5, 6, "a", "finish_and_pick", answer, job="j", token=3)
    assert tale.wrong(CLAIMS) == []
    assert tale.call(7, 8, "b", "pick", picked("k", 5)).wrong(CLAIMS) != []


# Counts.


def test_a_count_is_its_holders() -> None:
    tale = (
        Tale()
        .call(1, 2, "a", "take", 1, by="a")
        .call(3, 4, "b", "take", 2, by="b")
        .call(5, 6, "a", "take", 2, by="a")
    )
    assert tale.call(7, 8, "a", "drop", 1, by="a").call(9, 10, "c", "count", 1).wrong(COUNTS) == []
    assert tale.call(11, 12, "c", "count", 2).wrong(COUNTS) != []


def test_a_lost_count_is_found() -> None:
    both = Tale().call(1, 3, "a", "take", 1, by="a").call(2, 4, "b", "take", 1, by="b")
    assert both.wrong(COUNTS) != []


def test_the_dead_may_count_and_the_living_must() -> None:
    tale = Tale().call(1, 2, "a", "take", 1, by="a").call(3, 4, "b", "take", 2, by="b")
    for seen, well in ((2, True), (1, True), (0, False)):
        looked = [
            *tale.operations,
            Operation("c", "c", "count", ("n",), {}, 5, 6, seen),
            died("a", 4.5),
        ]
        assert (check(looked, COUNTS).wrong == []) is well


def test_dropping_a_hold_of_another_is_refused() -> None:
    assert Tale().call(1, 2, "a", "drop", None, by="a").wrong(COUNTS) == []
    assert (
        Tale()
        .call(1, 2, "a", "take", 1, by="a")
        .call(3, 4, "a", "drop", None, by="a")
        .wrong(COUNTS)
        != []
    )
    assert Tale().call(1, 2, "a", "drop", 0, by="a").wrong(COUNTS) != []


# The queue.


def accept(tale: Tale, begin: float, end: float, name: str, arrival: int, epoch: int = 1) -> Tale:
    return tale.call(begin, end, "r", "accept", {"arrival": arrival}, name=name, epoch=epoch)


def claimed(name: str, token: int) -> dict[str, Any]:
    return {"name": name, "token": token}


def test_a_queue_has_one_slot_and_an_order() -> None:
    both = accept(accept(Tale(), 1, 2, "x", 1), 3, 4, "y", 2)
    assert both.call(5, 6, "a", "claim", claimed("y", 3), epoch=1).wrong(FIFO) != []
    both = accept(accept(Tale(), 1, 2, "x", 1), 3, 4, "y", 2).call(
        5, 6, "a", "claim", claimed("x", 3), epoch=1
    )
    assert both.call(7, 8, "b", "claim", None, epoch=1).wrong(FIFO) == []
    assert both.call(9, 10, "b", "claim", claimed("y", 4), epoch=1).wrong(FIFO) != []


def test_a_request_runs_only_in_its_epoch() -> None:
    assert (
        accept(Tale(), 1, 2, "x", 1).call(3, 4, "a", "claim", claimed("x", 2), epoch=2).wrong(FIFO)
        != []
    )
    again = accept(Tale(), 1, 2, "x", 1).call(3, 4, "o", "readmit", True, name="x", epoch=2)
    assert again.call(5, 6, "a", "claim", claimed("x", 2), epoch=2).wrong(FIFO) == []


def test_a_stale_completion_is_found() -> None:
    tale = accept(Tale(), 1, 2, "x", 1).call(3, 4, "a", "claim", claimed("x", 2), epoch=1)
    tale.call(5, 6, "o", "put_back", True, name="x", token=2).call(
        7, 8, "b", "claim", claimed("x", 3), epoch=1
    )
    assert tale.wrong(FIFO) == []
    assert tale.call(9, 10, "a", "complete", True, name="x", token=2).wrong(FIFO) != []


def test_an_answer_that_was_lost_can_be_asked_for_again() -> None:
    tale = Tale().call(1, NEVER, "r", "accept", None, name="x", epoch=1)
    assert (
        accept(tale, 3, 4, "x", 2).call(5, 6, "r", "claim", claimed("x", 3), epoch=1).wrong(FIFO)
        == []
    )
    assert accept(accept(Tale(), 1, 2, "x", 1), 3, 4, "x", 2).wrong(FIFO) != []


def test_what_is_seen_is_what_there_is() -> None:
    tale = accept(accept(Tale(), 1, 2, "x", 1), 3, 4, "y", 2).call(
        5, 6, "a", "claim", claimed("x", 3), epoch=1
    )
    tale.call(7, 8, "o", "abandon", ["x"])
    assert (
        tale.call(9, 10, "o", "look", {"waiting": ["y"], "running": None, "ended": ["x"]}).wrong(
            FIFO
        )
        == []
    )
    assert (
        tale.call(11, 12, "o", "look", {"waiting": [], "running": None, "ended": ["x"]}).wrong(FIFO)
        != []
    )


# The search.


def by_every_order(operations: Sequence[Operation], specification: Specification[Any]) -> bool:
    """Whether there is an order. This tries all of them."""
    answered = [one for one in operations if not one.pending]
    pending = [one for one in operations if one.pending]
    return any(
        _allowed(order, specification)
        for number in range(len(pending) + 1)
        for some in combinations(pending, number)
        for order in permutations([*answered, *some])
    )


def _allowed(order: Sequence[Operation], specification: Specification[Any]) -> bool:
    if any(
        later.end < earlier.begin for at, earlier in enumerate(order) for later in order[at + 1 :]
    ):
        return False
    states = [specification.first()]
    for operation in order:
        states = [after for state in states for after in specification.steps(state, operation)]
    return bool(states)


_INSTANT = st.integers(0, 8)


@st.composite
def lock_operation(draw: st.DrawFn) -> Operation:
    begin, who = draw(_INSTANT), draw(st.sampled_from("ab"))
    end = begin + draw(st.sampled_from([1, 2, 4, NEVER]))
    token = draw(st.integers(1, 3))
    call = draw(st.sampled_from(["acquire", "acquire", "release", "check"]))
    if call == "acquire":
        arguments: dict[str, Any] = {
            "by": who,
            "mode": draw(st.sampled_from(["exclusive", "shared"])),
            "wait": False,
        }
        answer: Any = draw(st.sampled_from([None, {"tokens": {"n": token}}]))
    else:
        arguments = {"tokens": {"n": token}} if call == "release" else {"token": token}
        answer = draw(st.booleans())
    return Operation(
        draw(st.uuids()).hex,
        who,
        call,
        ("n",),
        arguments,
        begin,
        end,
        None if end == NEVER else answer,
    )


@st.composite
def fifo_operation(draw: st.DrawFn) -> Operation:
    begin, name, token = draw(_INSTANT), draw(st.sampled_from("xy")), draw(st.integers(1, 3))
    end = begin + draw(st.sampled_from([1, 2, 4, NEVER]))
    call = draw(st.sampled_from(["accept", "claim", "claim", "complete", "put_back", "cancel"]))
    answer: Any = draw(st.booleans())
    if call == "accept":
        answer = {"arrival": draw(st.integers(1, 2))}
    elif call == "claim":
        answer = draw(st.sampled_from([None, claimed(name, token)]))
    arguments = {"name": name, "epoch": 1, "token": token}
    return Operation(
        draw(st.uuids()).hex,
        "p",
        call,
        ("q",),
        arguments,
        begin,
        end,
        None if end == NEVER else answer,
    )


@settings(max_examples=400, deadline=None)
@given(st.lists(lock_operation(), max_size=5))
def test_the_search_finds_an_order_of_locks_when_there_is_one(operations: list[Operation]) -> None:
    assert (search(operations, LOCKS, tries_max=10**6).stuck is None) == by_every_order(
        operations, LOCKS
    )


@settings(max_examples=400, deadline=None)
@given(st.lists(fifo_operation(), max_size=5))
def test_the_search_finds_an_order_of_a_queue_when_there_is_one(
    operations: list[Operation],
) -> None:
    assert (search(operations, FIFO, tries_max=10**6).stuck is None) == by_every_order(
        operations, FIFO
    )


def test_parts_that_share_no_key_are_searched_alone() -> None:
    tale = Tale()
    for number in range(40):
        tale.acquire(1, 2, f"p{number}", number + 1, keys=f"n{number}")
    report = check(tale.operations, LOCKS)
    assert (report.parts, report.wrong) == (40, [])
    assert report.tried < 100


def test_a_search_that_is_too_long_says_so() -> None:
    tale = Tale()
    for number in range(12):
        tale.call(1, NEVER, f"p{number}", "take", None, by=f"p{number}")
    tale.call(1, 2, "p", "count", 99)
    with pytest.raises(Undecided):
        tale.wrong(COUNTS, tries_max=500)


def test_what_was_recorded_is_read_back_and_a_torn_line_is_not(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "p.history", process="p")
    with recorder.call("acquire", ["n"], by="p", mode="exclusive", wait=False) as pending:
        pending.answer({"tokens": {"n": 3}})
    with recorder.call("release", ["n"], tokens={"n": 3}):
        pass
    recorder.close()
    with (tmp_path / "p.history").open("ab") as file:
        file.write(b'{"at": 1.0, "id": "p#')
    one, other = read([tmp_path / "p.history"])
    assert (one.call, one.process, one.keys, one.answer) == (
        "acquire",
        "p",
        ("n",),
        {"tokens": {"n": 3}},
    )
    assert one.begin <= one.end <= other.begin
    assert other.pending
