"""A counter-example in words: how far an order goes, and what fits nowhere after it."""

from collections.abc import Sequence
from typing import Any

from holdfast.testing.histories.operation import Operation

_STEPS_SHOWN = 12


def told(key: str, order: Sequence[tuple[Operation, Any]], stuck: Operation, first: Any) -> str:
    """Why no order explains a part of a history: nothing up to the answer of `stuck` can be put in an order with it."""
    left_out = max(len(order) - _STEPS_SHOWN, 0)
    lines = [f"no order of the operations on {key} explains this answer:", f"  {stuck}", "the furthest that any order comes:"]
    if left_out:
        lines.append(f"  ({left_out} before these)")
    lines += [f"  {operation}" for operation, _ in order[left_out:]]
    lines.append(f"after which there is: {order[-1][1] if order else first}")
    return "\n".join(lines)


def told_late(operation: Operation, late_s: float) -> str:
    """An operation that waited without a reason."""
    return f"waited for {late_s:.3f} s after it could have gone:\n  {operation}"
