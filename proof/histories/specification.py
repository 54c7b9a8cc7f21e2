"""The rules of a sequential object: its first state, and what each call does to a state."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Protocol, TypeVar

from proof.histories.operation import Operation

S = TypeVar("S", bound=Hashable)


class Specification(Protocol[S]):
    """The rules of one kind of object when its calls come one after the other. States are immutable
    and hashable. Time, threads and processes appear only in the operations.
    """

    def first(self) -> S:
        """The state before anything happened."""
        ...

    def steps(self, state: S, operation: Operation) -> Iterable[S]:
        """Every state that the operation with its answer may lead to; none if that answer is
        impossible. A pending operation may have had any answer.
        """
        ...

    def also(self, operations: Sequence[Operation]) -> Iterable[Operation]:
        """What may have happened without any call: pending operations, such as the end of a lease."""
        ...

    def waits(self, operation: Operation) -> bool:
        """Does the call wait until its answer is possible? Only such a call can be late."""
        ...
