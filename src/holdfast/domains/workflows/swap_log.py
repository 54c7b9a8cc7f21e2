"""The swap log: what happened to swaps, read out of the journal, and where it is mirrored for people to read."""

from collections.abc import Mapping
from typing import Any, Protocol

from holdfast.kernel.codec import Instant, Value
from holdfast.kernel.store import Entry
from holdfast.primitives.journal import Lag

STARTED, COMPLETED, FAILED, REFUSED = "swap.started", "swap.completed", "swap.failed", "swap.refused"
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
    return SwapEvent(at=entry.at, event=EVENTS[entry.kind], recipe=entry.subject, who=who, revision=entry.revision, data=data)


class Mirror(Protocol):
    """A copy of the swap log that people can read without Holdfast."""

    def catch_up(self) -> None:
        """Add what is not there yet. Raises nothing: a mirror's failure never fails what it tells of."""
        ...

    def lag(self) -> Lag | None:
        """How far it is behind the journal; None where there is no copy. Raises OSError when that cannot be told."""
        ...


class NoMirror:
    """For stores whose journal is enough."""

    def catch_up(self) -> None:
        """Add nothing."""

    def lag(self) -> None:
        """There is nothing that could be behind."""
