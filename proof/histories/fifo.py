"""A queue with one slot and epochs, when one call comes after the other.

    accept    queue; name, epoch         -> {"arrival": number}: a name that is known already is the same request
    claim     queue; epoch               -> {"name": name, "token": token} or None
    complete  queue; name, token         -> True, or False when that is not the token of its claim
    put_back  queue; name, token         -> the same
    cancel    queue; name                -> True, or False when it does not wait
    readmit   queue; name, epoch         -> the same
    abandon   queue                      -> the names of what ran, in order of arrival
    look      queue                      -> {"waiting": names in order, "running": name or None, "ended": names}

A name is the idempotency key of a request, so that a caller that lost an answer can ask again. What a
dead process had claimed stays claimed until somebody abandons it.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from proof.histories.operation import DIE, Operation


class _Request(NamedTuple):
    arrival: int
    """0: unknown, since nobody got the answer."""
    name: str
    epoch: int


class State(NamedTuple):
    """The waiting requests, the running one with its token (0: unknown), the finished ones, and the
    greatest known token.
    """

    waiting: frozenset[_Request]
    slot: tuple[_Request, int] | None
    ended: frozenset[str]
    token: int


class FifoSpecification:
    """The queue as `holdfast.primitives.queue` promises it."""

    def first(self) -> State:
        return State(frozenset(), None, frozenset(), 0)

    def waits(self, operation: Operation) -> bool:
        return False

    def also(self, operations: Sequence[Operation]) -> Iterable[Operation]:
        return ()

    def steps(self, state: State, operation: Operation) -> Iterable[State]:
        if operation.call == DIE:
            return []
        return _VERBS[operation.call](state, operation)


def _accepted(state: State, operation: Operation) -> Iterable[State]:
    name, arrival = (
        operation.arguments["name"],
        0 if operation.pending else operation.answer["arrival"],
    )
    known = _known(state, name)
    if known is None and name not in state.ended:
        new = _Request(arrival, name, operation.arguments["epoch"])
        return [state._replace(waiting=state.waiting | {new})]
    if operation.pending:
        return []
    if known is None or known.arrival == arrival:
        return [state]
    # Its arrival was unknown, as nobody got the first answer. Now it is known.
    return [] if known.arrival else [_learnt(state, known, known._replace(arrival=arrival))]


def _known(state: State, name: str) -> _Request | None:
    if state.slot is not None and state.slot[0].name == name:
        return state.slot[0]
    return next((one for one in state.waiting if one.name == name), None)


def _learnt(state: State, old: _Request, new: _Request) -> State:
    if state.slot is not None and state.slot[0] == old:
        return state._replace(slot=(new, state.slot[1]))
    return state._replace(waiting=state.waiting - {old} | {new})


def _claimed(state: State, operation: Operation) -> Iterable[State]:
    epoch = operation.arguments["epoch"]
    meant = [one for one in state.waiting if one.epoch == epoch]
    known = [one for one in meant if one.arrival]
    may_be = [*([min(known)] if known else []), *(one for one in meant if not one.arrival)]
    if operation.pending:
        return (
            []
            if state.slot
            else [
                State(state.waiting - {one}, (one, 0), state.ended, state.token) for one in may_be
            ]
        )
    if operation.answer is None:
        return [state] if state.slot or not known else []
    token = operation.answer["token"]
    chosen = [one for one in may_be if one.name == operation.answer["name"]]
    if state.slot or token <= state.token:
        return []
    return [State(state.waiting - {one}, (one, token), state.ended, token) for one in chosen]


def _completed(state: State, operation: Operation) -> Iterable[State]:
    return _owned(
        state,
        operation,
        state._replace(slot=None, ended=state.ended | {operation.arguments["name"]}),
    )


def _put_back(state: State, operation: Operation) -> Iterable[State]:
    back = state.waiting if state.slot is None else state.waiting | {state.slot[0]}
    return _owned(state, operation, state._replace(slot=None, waiting=back))


def _owned(state: State, operation: Operation, after: State) -> Iterable[State]:
    """`after`, if the claim is that of the operation."""
    owner = None if state.slot is None else (state.slot[0].name, state.slot[1])
    if owner == (operation.arguments["name"], operation.arguments["token"]):
        return [after] if operation.pending or operation.answer else []
    return [] if operation.pending or operation.answer else [state]


def _cancelled(state: State, operation: Operation) -> Iterable[State]:
    found = next((one for one in state.waiting if one.name == operation.arguments["name"]), None)
    if found is None:
        return [] if operation.pending or operation.answer else [state]
    after = state._replace(waiting=state.waiting - {found}, ended=state.ended | {found.name})
    return [after] if operation.pending or operation.answer else []


def _readmitted(state: State, operation: Operation) -> Iterable[State]:
    found = next((one for one in state.waiting if one.name == operation.arguments["name"]), None)
    if found is None:
        return [] if operation.pending or operation.answer else [state]
    meant = found._replace(epoch=operation.arguments["epoch"])
    after = state._replace(waiting=state.waiting - {found} | {meant})
    return [after] if operation.pending or operation.answer else []


def _abandoned(state: State, operation: Operation) -> Iterable[State]:
    ran = [] if state.slot is None else [state.slot[0].name]
    if not operation.pending and operation.answer != ran:
        return []
    return [state._replace(slot=None, ended=state.ended.union(ran))]


def _looked(state: State, operation: Operation) -> Iterable[State]:
    if operation.pending:
        return []
    seen = operation.answer
    running = None if state.slot is None else state.slot[0].name
    same = (
        set(seen["waiting"]) == {one.name for one in state.waiting} and seen["running"] == running
    )
    in_order = [
        one
        for one in seen["waiting"]
        if one in {known.name for known in state.waiting if known.arrival}
    ]
    ordered = in_order == [one.name for one in sorted(state.waiting) if one.arrival]
    return [state] if same and ordered and set(seen["ended"]) == state.ended else []


_VERBS = {
    "accept": _accepted,
    "claim": _claimed,
    "complete": _completed,
    "put_back": _put_back,
    "cancel": _cancelled,
    "readmit": _readmitted,
    "abandon": _abandoned,
    "look": _looked,
}
