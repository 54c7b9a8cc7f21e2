"""A workflow, the marker of a swap, and what is loaded: their records, and what a request to yield
may become.

What a swap leaves when its process dies while it loads: the processes of its load, which are not
work and may be ended.
"""

import enum
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.kernel import lease as leases
from holdfast.kernel.codec import Instant, Record
from holdfast.kernel.errors import ImpossibleTransition
from holdfast.kernel.holder import Holder, Survivor
from holdfast.kernel.lease import Lease
from holdfast.kernel.limits import SWAP_LOAD_UNSEEN_S


class Preempt(enum.StrEnum):
    """Where a request to yield stands."""

    NONE = "none"
    REQUESTED = "requested"
    YIELDED = "yielded"
    IGNORED = "ignored"


TRANSITIONS: Mapping[Preempt, frozenset[Preempt]] = {
    Preempt.NONE: frozenset({Preempt.REQUESTED}),
    Preempt.REQUESTED: frozenset({Preempt.YIELDED, Preempt.IGNORED, Preempt.NONE}),
    Preempt.YIELDED: frozenset({Preempt.IGNORED, Preempt.NONE, Preempt.REQUESTED}),
    Preempt.IGNORED: frozenset({Preempt.YIELDED, Preempt.NONE, Preempt.REQUESTED}),
}
"""docs/state_machines.md draws it."""


class Workflow(Record, frozen=True, kw_only=True):
    """One piece of work that needs a recipe on the GPU.

    `preempt_swap` is the token of the swap that asked it to yield, None when an operator did or
    nobody. `others` are fields of another program that shares the file; they are kept as they are.
    """

    name: str
    recipe: str
    owner: Holder
    started_at: Instant
    last_renewed_at: Instant
    ttl_seconds: float
    preemptible: bool = False
    preempt_signal_path: str | None = None
    token: int
    preempt: Preempt = Preempt.NONE
    preempt_swap: int | None = None
    others: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def lease(self) -> Lease:
        """How long it is believed without a renewal. A workflow of one process ends with this
        time even if the process lives. A workflow of a process tree does not: there the time
        only counts where the tree cannot be seen.
        """
        return leases.grant(self.last_renewed_at, self.ttl_seconds, explicit=not self.owner.tree)


class Phase(enum.StrEnum):
    """How far a swap has come."""

    BEGUN = "begun"
    WAITING = "waiting"
    LOADING = "loading"


class SwapMarker(Record, frozen=True, kw_only=True):
    """Says that a swap is under way. It counts only while its holder lives and has the swap lock.
    If the holder has a process tree, which is that of the load, it counts until the last process of
    the tree is gone.

    `phase` is None in the marker of a program that does not say how far its swap has come. `reload`
    is true when the recipe was loaded already and is loaded again, so that work with this very
    recipe is in the way too.
    """

    recipe: str
    holder: Holder
    begun_at: Instant
    token: int
    phase: Phase | None = None
    reload: bool = False
    others: dict[str, Any] = msgspec.field(default_factory=dict)


class CurrentRecipe(Record, frozen=True, kw_only=True):
    """What is loaded: the last load succeeded. There is none while `UnknownRecipe` is there."""

    recipe: str
    loaded_at: Instant
    token: int
    by: str = ""
    others: dict[str, Any] = msgspec.field(default_factory=dict)


class UnknownRecipe(Record, frozen=True, kw_only=True):
    """Nobody knows what is loaded: the load of `recipe` has failed, was killed, or has not ended
    yet.

    Stored before a load begins, so that a swapper which is killed need not say it. `ended_at` is
    None until somebody has seen the end of that load. `before` is the recipe that was known to be
    loaded last.
    """

    recipe: str
    before: str | None = None
    began_at: Instant
    ended_at: Instant | None = None
    exit_status: int | None = None
    why: str = ""
    token: int
    by: str = ""
    others: dict[str, Any] = msgspec.field(default_factory=dict)


class Loaded(NamedTuple):
    """What is known of what is loaded. Both are None when nothing was ever loaded."""

    current: CurrentRecipe | None
    unknown: UnknownRecipe | None

    def has(self, recipe: str) -> bool:
        """Is this recipe loaded for certain?"""
        return self.current is not None and self.current.recipe == recipe


def moved(workflow: Workflow, to: Preempt, swap: int | None = None) -> Workflow:
    """The workflow with its request to yield in another state. Raises ImpossibleTransition."""
    if to not in TRANSITIONS[workflow.preempt]:
        raise ImpossibleTransition(
            f"a request to yield that is {workflow.preempt.value} cannot become {to.value}: look "
            "again with "
            "`holdfast workflows list`",
            workflow=workflow.name,
        )
    if to is Preempt.REQUESTED or to is Preempt.NONE:
        return replace(workflow, preempt=to, preempt_swap=swap)
    return replace(workflow, preempt=to)


def waits_for(marker: SwapMarker, workflow: Workflow) -> bool:
    """Is a workflow in the way of a swap? Work with the swap's own recipe is so only when that
    is loaded again under it.
    """
    if workflow.recipe != marker.recipe:
        return True
    return marker.reload and not same_process(workflow.owner, marker.holder)


def same_process(one: Holder, other: Holder) -> bool:
    """Are these the same process, whatever they are called?"""
    return (one.place, one.pid, one.start_ticks) == (other.place, other.pid, other.start_ticks)


def who(holder: Holder) -> str:
    """A process in a few words."""
    return f"{holder.label} (process {holder.pid})" if holder.label else f"process {holder.pid}"


class Remains(NamedTuple):
    """A swap whose process is dead or has lost the swap lock, and whose load has not ended as
    far as is known.
    """

    marker: SwapMarker
    survivors: Sequence[Survivor]
    """The processes that live, where they can be seen."""
    left_s: float | None
    """Where they cannot be seen: how long this process goes on to believe that they live."""


class UnseenLoads:
    """How long one process has seen that the swap lock is free while the load of that swap is out
    of its sight.

    The lock ends with the process that swaps, and then a guardian ends the load on the same
    machine. Nobody else can see that, so its time has to pass. Each process measures it by itself:
    clocks of two machines may differ by more.
    """

    def __init__(self) -> None:
        self._since_s: dict[int, float] = {}

    def note(self, token: int) -> float:
        """Take note of such a swap; return how long its load is still believed to run."""
        self._since_s = {token: self._since_s.get(token, time.monotonic())}
        return self.left_s(token) or 0.0

    def left_s(self, token: int) -> float | None:
        """How long the load of a swap is still believed to run; None when it is no such swap."""
        since_s = self._since_s.get(token)
        return (
            None if since_s is None else max(since_s + SWAP_LOAD_UNSEEN_S - time.monotonic(), 0.0)
        )

    def forget(self) -> None:
        """The swap under way has its lock, or its load can be seen."""
        self._since_s = {}
