"""A lock manager when one call comes after the other: modes, sets, tokens that only grow, leases
that end, holders that die.

    acquire  names; by, mode, wait, ttl_s   -> {"tokens": {name: token}} or None
    renew    names; tokens, ttl_s           -> True or False
    release  names; tokens                  -> True or False
    check    name; token                    -> True or False

A grant is known by its name and token. `process` of an operation is that of the holder, and its
death may free all it holds. A grant whose time is over is in nobody's way and in force for nobody,
but it stands until somebody comes for it: until then its release may say that it freed something. A
refusal needs a reason unless the caller was ready to wait: then its time was up, of which this
knows nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from proof.histories.operation import DIE, Operation

_EXPIRE = "expire"


class _Hold(NamedTuple):
    name: str
    by: str
    mode: str
    token: int
    """0: unknown, since nobody got the answer."""
    process: str
    lease: str
    """The operation that last set its TTL; "" if it has none."""
    over: bool = False


class State(NamedTuple):
    """Who holds what, and the greatest known token of each name."""

    holds: frozenset[_Hold]
    tokens: frozenset[tuple[str, int]]


class LockSpecification:
    """Locks as `holdfast.primitives.locks` promises them. `clocks_s`: how much sooner than its TTL
    a lease may end, as it is measured by another clock than that of the history.
    """

    def __init__(self, *, clocks_s: float = 0.05) -> None:
        self._clocks_s = clocks_s

    def first(self) -> State:
        return State(frozenset(), frozenset())

    def waits(self, operation: Operation) -> bool:
        return (
            operation.call == "acquire"
            and bool(operation.arguments["wait"])
            and operation.answer is not None
        )

    def also(self, operations: Sequence[Operation]) -> Iterable[Operation]:
        """A lease may end at any time after its TTL, counted from before the request."""
        for operation in operations:
            ttl_s = operation.arguments.get("ttl_s")
            if ttl_s is not None:
                over = operation.begin + ttl_s - self._clocks_s
                yield Operation(
                    f"{operation.id}#end",
                    operation.process,
                    _EXPIRE,
                    operation.keys,
                    {"lease": operation.id},
                    over,
                )

    def steps(self, state: State, operation: Operation) -> Iterable[State]:
        if operation.call == "acquire":
            return _acquired(state, operation)
        if operation.call == "renew":
            return _renewed(state, operation)
        if operation.call == "release":
            return _released(state, operation)
        if operation.call == "check":
            return _checked(state, operation)
        if operation.call == _EXPIRE:
            return _expired(state, operation.arguments["lease"])
        if operation.call == DIE:
            return _without(
                state, [hold for hold in state.holds if hold.process == operation.process]
            )
        raise ValueError(f"what is {operation.call} of a lock?")


def _acquired(state: State, operation: Operation) -> Iterable[State]:
    wanted, arguments = set(operation.keys), operation.arguments
    against = [
        hold
        for hold in state.holds
        if hold.name in wanted
        and hold.by != arguments["by"]
        and "exclusive" in (hold.mode, arguments["mode"])
    ]
    refused = any(not hold.over for hold in against)
    if operation.answer is None and not operation.pending:
        return [state] if refused or arguments["wait"] else []
    if refused:
        return []
    tokens: Mapping[str, int] = {} if operation.pending else operation.answer["tokens"]
    last = dict(state.tokens)
    if any(token <= last.get(name, 0) for name, token in tokens.items()):
        return []
    lease = operation.id if arguments.get("ttl_s") is not None else ""
    process = arguments.get("process", operation.process)
    given = {
        _Hold(name, arguments["by"], arguments["mode"], tokens.get(name, 0), process, lease)
        for name in operation.keys
    }
    return [State(state.holds.difference(against) | given, frozenset({**last, **tokens}.items()))]


def _of_grant(state: State, operation: Operation) -> list[_Hold]:
    tokens = operation.arguments["tokens"]
    return [hold for hold in state.holds if hold.token and tokens.get(hold.name) == hold.token]


def _renewed(state: State, operation: Operation) -> Iterable[State]:
    found = _of_grant(state, operation)
    whole = len(found) == len(operation.keys) and not any(hold.over for hold in found)
    again = State(
        state.holds.difference(found) | {hold._replace(lease=operation.id) for hold in found},
        state.tokens,
    )
    if operation.pending:
        return [again] if whole else []
    if whole != operation.answer:
        return []
    return [again] if whole else [State(state.holds.difference(found), state.tokens)]


def _released(state: State, operation: Operation) -> Iterable[State]:
    found = _of_grant(state, operation)
    if operation.pending or operation.answer:
        return _without(state, found)
    return (
        [State(state.holds.difference(found), state.tokens)]
        if all(hold.over for hold in found)
        else []
    )


def _checked(state: State, operation: Operation) -> Iterable[State]:
    if operation.pending:
        return []
    name, token = operation.keys[0], operation.arguments["token"]
    in_force = any(
        hold.name == name and hold.token == token and not hold.over for hold in state.holds
    )
    return [state] if in_force == operation.answer else []


def _expired(state: State, lease: str) -> Iterable[State]:
    found = [hold for hold in state.holds if hold.lease == lease and not hold.over]
    over = {hold._replace(over=True) for hold in found}
    return [State(state.holds.difference(found) | over, state.tokens)] if found else []


def _without(state: State, holds: Sequence[_Hold]) -> Iterable[State]:
    return [State(state.holds.difference(holds), state.tokens)] if holds else []
