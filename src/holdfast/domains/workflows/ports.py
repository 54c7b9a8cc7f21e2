"""The swap lock: a real lock that dies with its process, and so tells a live swap from what a dead
one left behind.

Signal files: how work that may be preempted is asked to yield. It looks for its file at moments
when stopping is safe.

The swap log: what happened to swaps, read out of the journal, and where it is mirrored for people
to read.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from holdfast.kernel.codec import Instant, Value
from holdfast.kernel.store import Entry
from holdfast.primitives.journal import Lag


class Contender(Protocol):
    """One who wants the swap lock, and maybe has it. Closing it lets go."""

    def try_take(self) -> bool:
        """Take the lock if nobody else has it; True also when it is ours already. Never waits for
        its holder.

        Raises StoreUnavailable when that cannot be known.
        """
        ...

    def has_it(self) -> bool:
        """Is the lock still ours? False as soon as what carried it is gone."""
        ...

    def watch(self, lost: Callable[[], None]) -> None:
        """Call back once, from another thread, when the lock that is ours is found to be gone.
        Until `close`; where it cannot be lost by a process that lives, never.
        """
        ...

    def close(self) -> None:
        """Let go of it. Calling it again is harmless."""
        ...


class SwapLock(Protocol):
    """The lock that a swap keeps from its beginning to its end.

    Promised by each: at most one contender has it; it ends with the process of whoever has it,
    however that ends; neither a forked child nor a program that was started meanwhile keeps it. Not
    promised: any order among those who want it.
    """

    def contender(self) -> Contender:
        """Get ready to ask for it. Raises StoreUnavailable."""
        ...

    def is_held(self) -> bool:
        """Has anybody got it at this moment? To be asked under the latch of the workflows, under
        which it is also taken: so a question and a taker never meet. Raises StoreUnavailable.
        """
        ...


class Signals(Protocol):
    """The signal files of this machine.

    Promised by each: nothing is written through a link or over a file that is there; only files are
    removed that were made here for that very registration.
    """

    def path_of(self, name: str, token: int) -> str:
        """Where the signal of a registration lies unless its owner chose a place. No two
        registrations share one.
        """
        ...

    def checked(self, path: str, name: str) -> str:
        """The caller's own path, made out. Raises InvalidValue for one that is not absolute, whose
        folder is not there, or where there is anything but a signal that was left over for a
        workflow of that name.
        """
        ...

    def give(self, path: str, name: str, token: int, swap: int) -> str | None:
        """Make the signal file of a registration, for the swap with that token or, by 0, for an
        operator; return what is wrong when that cannot be done. One that is there already counts.
        """
        ...

    def given(self, path: str) -> bool:
        """Is there a signal?"""
        ...

    def clear(self, path: str, name: str, token: int) -> bool:
        """Remove the signal file if it was made for a workflow of that name, for the registration
        with this token or an earlier one; False when nothing was removed.
        """
        ...

    def swap_of(self, path: str, name: str, token: int) -> int:
        """The token of the swap for which a registration's signal was made; 0 where there is none,
        or it was an operator's.
        """
        ...


STARTED, COMPLETED, FAILED, REFUSED = (
    "swap.started",
    "swap.completed",
    "swap.failed",
    "swap.refused",
)
ASKED, YIELDED, IGNORED = "swap.preempt_requested", "swap.preempt_yielded", "swap.preempt_ignored"
ORPHANED, NOT_NEEDED = "swap.orphan_marker_cleared", "swap.not_needed"

EVENTS: Mapping[str, str] = {
    STARTED: "swap_started",
    ASKED: "preempt_requested",
    YIELDED: "preempt_yielded",
    IGNORED: "preempt_ignored",
    COMPLETED: "swap_completed",
    FAILED: "swap_failed",
    REFUSED: "swap_refused",
    ORPHANED: "orphan_marker_cleared",
    NOT_NEEDED: "swap_not_needed",
}
"""What an entry of the journal is called in the swap log."""


class SwapEvent(Value, frozen=True, kw_only=True):
    """One line of the swap log. `who` did it or, of a request to yield, was asked."""

    at: Instant
    event: str
    recipe: str
    who: str
    revision: int
    data: dict[str, Any]


def event_of(entry: Entry) -> SwapEvent | None:
    """The line that tells of an entry; None for an entry that is not about swaps."""
    if entry.kind not in EVENTS:
        return None
    data = {name: value for name, value in entry.data.items() if name != "who"}
    who = str(entry.data.get("who", entry.actor))
    return SwapEvent(
        at=entry.at,
        event=EVENTS[entry.kind],
        recipe=entry.subject,
        who=who,
        revision=entry.revision,
        data=data,
    )


class Mirror(Protocol):
    """A copy of the swap log that people can read without Holdfast."""

    def catch_up(self) -> None:
        """Add what is not there yet. Raises nothing: a mirror's failure never fails what it tells
        of.
        """
        ...

    def lag(self) -> Lag | None:
        """How far it is behind the journal; None where there is no copy. Raises OSError when that
        cannot be told.
        """
        ...


class NoMirror:
    """For stores whose journal is enough."""

    def catch_up(self) -> None:
        """Add nothing."""

    def lag(self) -> None:
        """There is nothing that could be behind."""
