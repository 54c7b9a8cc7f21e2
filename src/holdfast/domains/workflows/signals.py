"""Signal files: how work that may be preempted is asked to yield. It looks for its file at moments when stopping is safe."""

from typing import Protocol


class Signals(Protocol):
    """The signal files of this machine.

    Promised by each: nothing is written through a link or over a file that is there; only files are removed that were made
    here for that very registration.
    """

    def path_of(self, name: str, token: int) -> str:
        """Where the signal of a registration lies unless its owner chose a place. No two registrations share one."""
        ...

    def checked(self, path: str, name: str) -> str:
        """The caller's own path, made out. Raises InvalidValue for one that is not absolute, whose folder is not there, or
        where there is anything but a signal that was left over for a workflow of that name."""
        ...

    def give(self, path: str, name: str, token: int, swap: int) -> str | None:
        """Make the signal file of a registration, for the swap with that token or, by 0, for an operator; return what is wrong
        when that cannot be done. One that is there already counts."""
        ...

    def given(self, path: str) -> bool:
        """Is there a signal?"""
        ...

    def clear(self, path: str, name: str, token: int) -> bool:
        """Remove the signal file if it was made for a workflow of that name, for the registration with this token or an
        earlier one; False when nothing was removed."""
        ...

    def swap_of(self, path: str, name: str, token: int) -> int:
        """The token of the swap for which a registration's signal was made; 0 where there is none, or it was an operator's."""
        ...
