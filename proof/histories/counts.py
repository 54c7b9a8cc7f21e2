"""Counted holds, when one call comes after the other: a count is the size of a set of holders.

    take   subject; by  -> how many hold it then
    drop   subject; by  -> how many hold it then, or None when `by` did not
    count  subject      -> how many hold it

A holder whose process died counts or does not, as a reader may have seen it alive before; a
holder that lives always does.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from proof.histories.operation import DIE, Operation


class State(NamedTuple):
    """The live holders, each with its process, and those that may have been swept."""

    living: frozenset[tuple[str, str]]
    dead: frozenset[str]


class CountSpecification:
    """Counts as `holdfast.primitives.holds` promises them."""

    def first(self) -> State:
        return State(frozenset(), frozenset())

    def waits(self, operation: Operation) -> bool:
        return False

    def also(self, operations: Sequence[Operation]) -> Iterable[Operation]:
        return ()

    def steps(self, state: State, operation: Operation) -> Iterable[State]:
        if operation.call == DIE:
            return _died(state, operation.process)
        if operation.call == "count":
            return [state] if _counts(state, operation) else []
        by = operation.arguments["by"]
        rest = frozenset(one for one in state.living if one[0] != by)
        if operation.call == "take":
            after = State(rest | {(by, operation.process)}, state.dead - {by})
            return [after] if _counts(after, operation) else []
        if operation.call == "drop":
            return _dropped(state, State(rest, state.dead - {by}), operation)
        raise ValueError(f"what is {operation.call} of a count?")


def _counts(state: State, operation: Operation) -> bool:
    least = len(state.living)
    return operation.pending or least <= operation.answer <= least + len(state.dead)


def _dropped(state: State, after: State, operation: Operation) -> Iterable[State]:
    living = len(after.living) < len(state.living)
    if operation.answer is None and not operation.pending:
        return [] if living else [after]
    held = living or operation.arguments["by"] in state.dead
    return [after] if held and _counts(after, operation) else []


def _died(state: State, process: str) -> Iterable[State]:
    gone = {one for one in state.living if one[1] == process}
    return [State(state.living - gone, state.dead | {by for by, _ in gone})] if gone else []
