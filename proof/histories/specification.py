"""What a sequential object is: a first state, and what each call makes of a state."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Protocol, TypeVar

from proof.histories.operation import Operation

S = TypeVar("S", bound=Hashable)


class Specification(Protocol[S]):
    """The rules of one kind of object, when one call comes after the other.

    States are immutable and hashable. Nothing here knows of time, threads or processes but by what
    operations say.
    """

    def first(self) -> S:
        """The state before anything happened."""
        ...

    def steps(self, state: S, operation: Operation) -> Iterable[S]:
        """Every state that the operation, answered as it was, may lead to; none if it cannot have
        been answered so. A pending one may have been answered in any way.
        """
        ...

    def also(self, operations: Sequence[Operation]) -> Iterable[Operation]:
        """What may have happened besides, without a call of anybody: pending operations, such as
        the end of a lease.
        """
        ...

    def waits(self, operation: Operation) -> bool:
        """Does the call wait until it can be answered as it was? Only of such is it said that they
        are late.
        """
        ...
