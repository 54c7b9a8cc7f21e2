"""A queue of work that is claimed, when one call comes after the other: each piece by one at a
time, in order.

    register         job; priority         -> {"arrival": number}
    pick             -                     -> {"job": id, "token": token} or None
    finish           job; token            -> True, or False when another attempt is the current one
    requeue          job; token            -> the same
    finish_and_pick  job; token            -> {"done": bool, "picked": {"job": ..., "token": ...} or None}

Every operation is on one key, the label that it is picked by; the job is an argument. The death of
a process puts back what it works on.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from proof.histories.operation import DIE, Operation


class _Waiting(NamedTuple):
    rank: int
    """The smaller goes first: a negated priority."""
    arrival: int
    """0: unknown, since nobody got the answer."""
    job: str
    token: int
    """The token of its last attempt."""


class _Running(NamedTuple):
    waiting: _Waiting
    token: int
    """0: unknown."""
    process: str


class State(NamedTuple):
    """The waiting, running and finished jobs."""

    waiting: frozenset[_Waiting]
    running: frozenset[_Running]
    ended: frozenset[str]


class ClaimSpecification:
    """Claims as `holdfast.domains.jobs` promises them. `passes`: a claim may skip a job that
    another transaction is just claiming, as `Store.take_first` does where rows are latched one by
    one. If that claim is undone, the order was another.
    """

    def __init__(self, *, passes: bool = False) -> None:
        self._passes = passes

    def first(self) -> State:
        return State(frozenset(), frozenset(), frozenset())

    def waits(self, operation: Operation) -> bool:
        return (
            operation.call == "pick"
            and bool(operation.arguments.get("wait"))
            and operation.answer is not None
        )

    def also(self, operations: Sequence[Operation]) -> Iterable[Operation]:
        return ()

    def steps(self, state: State, operation: Operation) -> Iterable[State]:
        if operation.call == "register":
            return _registered(state, operation)
        if operation.call == "pick":
            if operation.pending:
                return self._picked_unheard(state, operation)
            return self._picked(state, operation.answer, operation.process)
        if operation.call in ("finish", "requeue"):
            return _ended(state, operation, operation.answer, back=operation.call == "requeue")
        if operation.call == "finish_and_pick":
            return self._finished_and_picked(state, operation)
        if operation.call == DIE:
            return _put_back(
                state, [one for one in state.running if one.process == operation.process]
            )
        raise ValueError(f"what is {operation.call} of a claim?")

    def _finished_and_picked(self, state: State, operation: Operation) -> Iterable[State]:
        if operation.pending:
            for ended in _ended(state, operation, None, back=False):
                yield ended
                yield from self._picked_unheard(ended, operation)
            return
        done, picked = operation.answer["done"], operation.answer["picked"]
        for ended in _ended(state, operation, done, back=False):
            yield from self._picked(ended, picked, operation.process) if done else [ended]

    def _picked(self, state: State, picked: dict[str, Any] | None, process: str) -> Iterable[State]:
        may_be = self._first_ones(state)
        if picked is None:
            return [state] if self._passes or not any(one.arrival for one in may_be) else []
        chosen = [one for one in may_be if one.job == picked["job"] and picked["token"] > one.token]
        return [_run(state, one, picked["token"], process) for one in chosen]

    def _picked_unheard(self, state: State, operation: Operation) -> Iterable[State]:
        return [_run(state, one, 0, operation.process) for one in self._first_ones(state)]

    def _first_ones(self, state: State) -> list[_Waiting]:
        """The jobs that may be picked: the first one, and those whose place in the order is
        unknown.
        """
        known = [one for one in state.waiting if one.arrival]
        if known and not self._passes:
            known = [min(known)]
        return [*known, *(one for one in state.waiting if not one.arrival)]


def _registered(state: State, operation: Operation) -> Iterable[State]:
    arguments = operation.arguments
    arrival = 0 if operation.pending else operation.answer["arrival"]
    new = _Waiting(-arguments.get("priority", 0), arrival, arguments["job"], 0)
    return [state._replace(waiting=state.waiting | {new})]


def _run(state: State, one: _Waiting, token: int, process: str) -> State:
    begun = _Running(one._replace(token=max(token, one.token)), token, process)
    return State(state.waiting - {one}, state.running | {begun}, state.ended)


def _ended(state: State, operation: Operation, done: bool | None, *, back: bool) -> Iterable[State]:
    """`done` None: nobody knows whether it was done."""
    job, token = operation.arguments["job"], operation.arguments["token"]
    found = [one for one in state.running if one.waiting.job == job and one.token == token]
    if done is False or (done is None and not found):
        return [] if found or done is None else [state]
    if back:
        return _put_back(state, found)
    return [State(state.waiting, state.running - {one}, state.ended | {job}) for one in found]


def _put_back(state: State, running: Sequence[_Running]) -> Iterable[State]:
    if not running:
        return []
    return [
        State(
            state.waiting | {one.waiting for one in running},
            state.running.difference(running),
            state.ended,
        )
    ]
