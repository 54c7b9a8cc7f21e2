"""What workflows need from outside: the swap lock, the signal files, and a mirror of the swap log;
and the swap log itself, which is read out of the journal.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from holdfast.kernel.codec import Instant, Value
from holdfast.kernel.store import Entry
from holdfast.primitives.journal import Lag


class Contender(Protocol):
    """One caller that wants the swap lock, and maybe has it. Closing it releases the lock."""

    def try_take(self) -> bool:
        """Take the lock if it is free; True also when it is ours already. Never waits for its
        holder. Raises StoreUnavailable when that cannot be known.
        """
        ...

    def has_it(self) -> bool:
        """Whether the lock is still ours. False as soon as its carrier is gone."""
        ...

    def watch(self, lost: Callable[[], None]) -> None:
        """Until `close`, call back once, from another thread, when our lock is found to be lost.
        Never called where a live process cannot lose the lock.
        """
        ...

    def close(self) -> None:
        """Release the lock. Calling it again is harmless."""
        ...


class SwapLock(Protocol):
    """The lock that a swap keeps from its beginning to its end. It tells a live swap from what a
    dead one left behind.

    Promised by each: at most one contender has it; it ends with the process of its holder, however
    that ends; neither a forked child nor a program that was started meanwhile keeps it. Not
    promised: any order among the contenders.
    """

    def contender(self) -> Contender:
        """A new contender. Raises StoreUnavailable."""
        ...

    def is_held(self) -> bool:
        """Whether any contender has the lock. Call it under the latch of the workflows, under which
        the lock is also taken: so a probe never makes a swap fail. Raises StoreUnavailable.
        """
        ...


class Signals(Protocol):
    """The signal files of this machine. A signal file asks preemptible work to yield; the work
    looks for it at moments when stopping is safe.

    Promised by each: nothing is written through a link or over an existing file; a file is removed
    only if it was made here for that very registration.
    """

    def path_of(self, name: str, token: int) -> str:
        """The default path of a registration's signal. No two registrations share one."""
        ...

    def checked(self, path: str, name: str) -> str:
        """The caller's own path, resolved. Raises InvalidValue for one that is not absolute, whose
        folder does not exist, or where there is anything but an old signal for a workflow of that
        name.
        """
        ...

    def give(self, path: str, name: str, token: int, swap: int) -> str | None:
        """Make the signal file of a registration, for the swap with that token or, by 0, for an
        operator; return what is wrong when that fails. An existing signal counts as made.
        """
        ...

    def given(self, path: str) -> bool:
        """Whether there is a signal."""
        ...

    def clear(self, path: str, name: str, token: int) -> bool:
        """Remove the signal file if it was made for a workflow of that name, for the registration
        with this token or an earlier one; False when nothing was removed.
        """
        ...

    def swap_of(self, path: str, name: str, token: int) -> int:
        """The token of the swap for which a registration's signal was made; 0 when there is no
        signal, or an operator made it.
        """
        ...


STARTED, COMPLETED, FAILED = "swap.started", "swap.completed", "swap.failed"
REFUSED, NOT_NEEDED = "swap.refused", "swap.not_needed"
ASKED, YIELDED, IGNORED = "swap.preempt_requested", "swap.preempt_yielded", "swap.preempt_ignored"
ORPHANED = "swap.orphan_marker_cleared"

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
"""The kinds of journal entries in the swap log, and their names there."""


class SwapEvent(Value, frozen=True, kw_only=True):
    """One line of the swap log. `who` is the swapper or, for a request to yield, the workflow."""

    at: Instant
    event: str
    recipe: str
    who: str
    revision: int
    data: dict[str, Any]


def event_of(entry: Entry) -> SwapEvent | None:
    """The line of the swap log for an entry; None for an entry that is not about swaps."""
    if entry.kind not in EVENTS:
        return None
    return SwapEvent(
        at=entry.at,
        event=EVENTS[entry.kind],
        recipe=entry.subject,
        who=str(entry.data.get("who", entry.actor)),
        revision=entry.revision,
        data={name: value for name, value in entry.data.items() if name != "who"},
    )


class SwapLogMirror(Protocol):
    """A file with the swap log, for people and for programs that do not use Holdfast."""

    def catch_up(self) -> None:
        """Append what is missing. Raises nothing: a mirror never makes a swap fail."""
        ...

    def lag(self) -> Lag:
        """How far the file is behind the journal. Raises OSError."""
        ...
