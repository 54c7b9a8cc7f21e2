"""The search for an order: Wing and Gong's, over a linked list of events, with the states it has
been in remembered.

An operation may be put next in the order if it was called before anything that is not in the order
yet was answered. So the search walks the events from the first on, tries each call that it meets,
and when it comes to an answer whose operation is not in the order it must take back its last
choice. What was tried is remembered as the set of operations in the order and the state they led
to; how they came to it makes no difference to what can follow.
"""

from collections.abc import Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from proof.histories.operation import Operation
from proof.histories.specification import S, Specification

T = TypeVar("T")


class Undecided(Exception):
    """The search was given up without a verdict."""


class Found(NamedTuple, Generic[T]):
    """The result of a search. `order`: the operations with the states that they led to. `stuck`:
    None, or the operation that fits nowhere; then `order` is the longest order before it.
    """

    order: list[tuple[Operation, T]]
    stuck: Operation | None
    tried: int


class _Event:
    """A call, or an answer; linked to its neighbours."""

    __slots__ = ("answer", "at", "bit", "next", "operation", "previous")

    def __init__(self, at: float, operation: Operation, bit: int, answer: "_Event | None") -> None:
        self.at = at
        self.operation = operation
        self.bit = bit
        self.answer = answer
        self.previous: _Event
        self.next: _Event | None = None


class _Choice(NamedTuple, Generic[T]):
    event: _Event
    before: T
    others: Iterator[T]


def search(
    operations: Sequence[Operation], specification: Specification[S], *, tries_max: int
) -> Found[S]:
    """Look for an order of all answered operations, with any of the pending ones among them. Raises
    Undecided after `tries_max` tries.
    """
    return _Search(operations, specification, tries_max).run()


class _Search(Generic[S]):
    def __init__(
        self, operations: Sequence[Operation], specification: Specification[S], tries_max: int
    ) -> None:
        self._specification = specification
        self._tries_max = tries_max
        self._head = _linked(operations)
        self._left = sum(not operation.pending for operation in operations)
        self._done = 0
        self._state = specification.first()
        self._seen: set[tuple[int, S]] = {(0, self._state)}
        self._choices: list[_Choice[S]] = []
        self._states: list[S] = []
        self._furthest: tuple[float, list[tuple[Operation, S]], Operation | None] = (-1.0, [], None)

    def run(self) -> Found[S]:
        event = self._head.next
        while self._left:
            assert event is not None, "an answered operation has its answer in the list"
            if event.answer is None and not event.operation.pending:
                self._note_stuck(event)
                following = self._take_back()
                if following is None:
                    _, order, stuck = self._furthest
                    return Found(order, stuck, len(self._seen))
                event = following
                continue
            chosen = self._try(event, iter(self._specification.steps(self._state, event.operation)))
            event = self._head.next if chosen else event.next
        return Found(self._order(), None, len(self._seen))

    def _try(self, event: _Event, states: Iterator[S]) -> bool:
        """Put the operation next in the order, if that leads to a new state of the search."""
        done = self._done | event.bit
        for state in states:
            if (done, state) in self._seen:
                continue
            self._seen.add((done, state))
            if len(self._seen) > self._tries_max:
                raise Undecided(
                    f"no verdict after {self._tries_max} tries: make the history smaller, or its "
                    "keys more"
                )
            self._choices.append(_Choice(event, self._state, states))
            self._states.append(state)
            self._done, self._state = done, state
            self._lift(event)
            return True
        return False

    def _take_back(self) -> _Event | None:
        """Undo the last choice, and make another; return where to continue, or None without a
        choice left.
        """
        while self._choices:
            choice = self._choices.pop()
            self._states.pop()
            self._put_back(choice.event)
            self._done ^= choice.event.bit
            self._state = choice.before
            if self._try(choice.event, choice.others):
                return self._head.next
            if choice.event.next is not None:
                return choice.event.next
        return None

    def _lift(self, event: _Event) -> None:
        _unlink(event)
        if event.answer is not None:
            _unlink(event.answer)
            self._left -= 1

    def _put_back(self, event: _Event) -> None:
        if event.answer is not None:
            _relink(event.answer)
            self._left += 1
        _relink(event)

    def _note_stuck(self, answer: _Event) -> None:
        # Of equal ones the longest order, which leaves the least unexplained.
        at, order, _ = self._furthest
        if answer.at > at or (answer.at == at and len(self._choices) > len(order)):
            self._furthest = answer.at, self._order(), answer.operation

    def _order(self) -> list[tuple[Operation, S]]:
        return [
            (choice.event.operation, state)
            for choice, state in zip(self._choices, self._states, strict=True)
        ]


def _linked(operations: Sequence[Operation]) -> _Event:
    events: list[tuple[float, bool, _Event]] = []
    for number, operation in enumerate(operations):
        bit = 1 << number
        answer = None if operation.pending else _Event(operation.end, operation, bit, None)
        events.append((operation.begin, False, _Event(operation.begin, operation, bit, answer)))
        if answer is not None:
            events.append((operation.end, True, answer))
    # At one instant calls come before answers: two that touch may have overlapped.
    events.sort(key=lambda event: event[:2])
    head = last = _Event(0.0, Operation("", "", "", (), {}, 0.0), 0, None)
    for _, _, event in events:
        last.next, event.previous = event, last
        last = event
    return head


def _unlink(event: _Event) -> None:
    event.previous.next = event.next
    if event.next is not None:
        event.next.previous = event.previous


def _relink(event: _Event) -> None:
    event.previous.next = event
    if event.next is not None:
        event.next.previous = event
