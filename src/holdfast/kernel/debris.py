"""What lies among the folders of a space and is no record: a port that a store serves whose records are folders."""

from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from holdfast.kernel.space import Space


class Leftover(NamedTuple):
    """A folder that should have a record in it and has none, or what is no folder.

    `age_s` is how long ago it last changed, on the clock of its file system.
    """

    key: str
    kind: Literal["no_record", "link", "unreadable"]
    age_s: float


@runtime_checkable
class Debris(Protocol):
    """A store that can tell of such things, and remove them. Links are never followed: what one leads to stays as it is."""

    def leftovers(self, space: Space[Any]) -> list[Leftover]:
        """What is there beside records. What cannot be looked at is told as unreadable, and hides nothing else."""
        ...

    def remove_leftover(self, space: Space[Any], key: str, *, older_than_s: float) -> bool:
        """Remove a folder that still has no record and did not change for so long, or a link itself however young, in one
        step with that check against whoever writes one. False when it is not so any more. Raises HoldfastError when it cannot
        be done."""
        ...
