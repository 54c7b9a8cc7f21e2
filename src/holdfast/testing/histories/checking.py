"""Checking a history part by part, and saying what is wrong with it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from holdfast.testing.histories.operation import Operation
from holdfast.testing.histories.parting import parts
from holdfast.testing.histories.search import Found, search
from holdfast.testing.histories.specification import S, Specification
from holdfast.testing.histories.telling import told, told_late

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
    """For each part that no order explains, why; and for each operation that was late, by how much."""

    def summary(self) -> str:
        """A few lines for people."""
        head = (
            f"{self.operations} operations ({self.pending} pending) in {self.parts} parts, {self.tried} states tried, "
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
    """Is there an order of these operations that the specification allows and no instant contradicts?

    With `late_s`, an operation that waits is wrong too when the order would have let it go so long before its answer. Raises
    Undecided when a part is too large to search.
    """
    report = Report(len(operations), sum(operation.pending for operation in operations))
    for key, part in parts([*operations, *specification.also(operations)]).items():
        found = search(part, specification, tries_max=tries_max)
        report.parts += 1
        report.tried += found.tried
        if found.stuck is not None:
            report.wrong.append(told(key, found.order, found.stuck, specification.first()))
        elif late_s is not None:
            report.wrong += late(found, specification, late_s)
    return report


def late(found: Found[S], specification: Specification[S], late_s: float) -> Iterator[str]:
    """The operations that waited for longer than so after they could have gone, in the order that was found."""
    states = [specification.first(), *(state for _, state in found.order)]
    for place, (operation, _) in enumerate(found.order):
        if operation.pending or operation.end - operation.begin <= late_s or not specification.waits(operation):
            continue
        free = place
        while free and any(True for _ in specification.steps(states[free - 1], operation)):
            free -= 1
        # Known to have been so when all that came before had been answered; what is pending was never known.
        known = [before.end for before, _ in found.order[:free]]
        since = max([operation.begin, *known])
        if operation.end - since > late_s:
            yield told_late(operation, operation.end - since)
