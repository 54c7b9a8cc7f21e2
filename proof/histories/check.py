"""Checking a history part by part, and saying what is wrong with it.

A counter-example in words: how far an order goes, and what fits nowhere after it.

Cutting a history into parts that share no key: the whole is linearizable when each part is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from proof.histories.operation import Operation
from proof.histories.search import Found, search
from proof.histories.specification import S, Specification

_STEPS_SHOWN = 12


def explanation(
    key: str, order: Sequence[tuple[Operation, Any]], stuck: Operation, first: Any
) -> str:
    """Why no order explains a part of a history: nothing up to the answer of `stuck` can be put in
    an order with it.
    """
    left_out = max(len(order) - _STEPS_SHOWN, 0)
    lines = [
        f"no order of the operations on {key} explains this answer:",
        f"  {stuck}",
        "the furthest that any order comes:",
    ]
    if left_out:
        lines.append(f"  ({left_out} before these)")
    lines += [f"  {operation}" for operation, _ in order[left_out:]]
    lines.append(f"after which there is: {order[-1][1] if order else first}")
    return "\n".join(lines)


def told_late(operation: Operation, late_s: float) -> str:
    """An operation that waited without a reason."""
    return f"waited for {late_s:.3f} s after it could have gone:\n  {operation}"


def parts(operations: Sequence[Operation]) -> dict[str, list[Operation]]:
    """The parts, each by the least of its keys. What has no keys comes into each part in which its
    process does something.
    """
    roots = _roots(operations)
    found: dict[str, list[Operation]] = {}
    for operation in operations:
        if operation.keys:
            found.setdefault(roots[operation.keys[0]], []).append(operation)
    everywhere = [operation for operation in operations if not operation.keys]
    for part in found.values():
        processes = {operation.process for operation in part}
        part += [operation for operation in everywhere if operation.process in processes]
        part.sort(key=lambda operation: operation.begin)
    return found


def _roots(operations: Sequence[Operation]) -> dict[str, str]:
    """For each key, the least of those that it is joined with by operations on several."""
    roots: dict[str, str] = {}

    def root_of(key: str) -> str:
        while roots.setdefault(key, key) != key:
            roots[key] = roots[roots[key]]
            key = roots[key]
        return key

    for operation in operations:
        for key in operation.keys:
            one, other = sorted((root_of(operation.keys[0]), root_of(key)))
            roots[other] = one
    return {key: root_of(key) for key in list(roots)}


_TRIES_MAX = 500_000
_SHOWN_MAX = 3


@dataclass
class Report:
    """What came of a check."""

    operations: int = 0
    pending: int = 0
    parts: int = 0
    tried: int = 0
    """States that were looked at, of all searches together."""
    wrong: list[str] = field(default_factory=list)
    """For each part that no order explains, why; and for each operation that was late, by how much.
    """

    def summary(self) -> str:
        """A few lines for people."""
        head = (
            f"{self.operations} operations ({self.pending} pending) in {self.parts} parts, "
            f"{self.tried} states tried, "
            f"{len(self.wrong)} wrong"
        )
        return "\n\n".join([head, *self.wrong[:_SHOWN_MAX]])


def check(
    operations: Sequence[Operation],
    specification: Specification[S],
    *,
    late_s: float | None = None,
    tries_max: int = _TRIES_MAX,
) -> Report:
    """Is there an order of these operations that the specification allows and no instant
    contradicts?

    With `late_s`, an operation that waits is wrong too when the order would have let it go so long
    before its answer. Raises Undecided when a part is too large to search.
    """
    report = Report(len(operations), sum(operation.pending for operation in operations))
    for key, part in parts([*operations, *specification.also(operations)]).items():
        found = search(part, specification, tries_max=tries_max)
        report.parts += 1
        report.tried += found.tried
        if found.stuck is not None:
            report.wrong.append(explanation(key, found.order, found.stuck, specification.first()))
        elif late_s is not None:
            report.wrong += late(found, specification, late_s)
    return report


def late(found: Found[S], specification: Specification[S], late_s: float) -> Iterator[str]:
    """The operations that waited for longer than so after they could have gone, in the order that
    was found.
    """
    states = [specification.first(), *(state for _, state in found.order)]
    for place, (operation, _) in enumerate(found.order):
        if (
            operation.pending
            or operation.end - operation.begin <= late_s
            or not specification.waits(operation)
        ):
            continue
        free = place
        while free and any(True for _ in specification.steps(states[free - 1], operation)):
            free -= 1
        # Known to have been so when all that came before had been answered; what is pending was
        # never known.
        known = [before.end for before, _ in found.order[:free]]
        since = max([operation.begin, *known])
        if operation.end - since > late_s:
            yield told_late(operation, operation.end - since)
