"""The records: a workflow, the marker of a swap, and what is loaded; the states of a request to
yield; and what a swap leaves behind when its process dies during the load.
"""

import enum
import time
from collections.abc import Callable, Mapping, Sequence
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
    """The state of a request to yield."""

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

    `preempt_swap` is the token of the swap that asked it to yield; None without a request, or when
    an operator made it. `others` are fields of another program that shares the file; they are kept.
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
        """How long the workflow counts without a renewal. A workflow of one process ends with this
        time even if the process lives. For a workflow of a process tree the time counts only where
        the tree cannot be seen.
        """
        return leases.grant(self.last_renewed_at, self.ttl_seconds, explicit=not self.owner.tree)


class Phase(enum.StrEnum):
    """The progress of a swap."""

    BEGUN = "begun"
    WAITING = "waiting"
    LOADING = "loading"


class SwapMarker(Record, frozen=True, kw_only=True):
    """Says that a swap is under way. It counts only while its holder lives and has the swap lock.
    If the holder names the process tree of the load, it counts until that tree has ended.

    `phase` is None in the marker of a program that does not report its progress. `reload` is true
    when a loaded recipe is loaded again, so that work with this same recipe conflicts too.
    """

    recipe: str
    holder: Holder
    begun_at: Instant
    token: int
    phase: Phase | None = None
    reload: bool = False
    others: dict[str, Any] = msgspec.field(default_factory=dict)


class CurrentRecipe(Record, frozen=True, kw_only=True):
    """What is loaded: the last load succeeded. Never stored together with `UnknownRecipe`."""

    recipe: str
    loaded_at: Instant
    token: int
    by: str = ""
    others: dict[str, Any] = msgspec.field(default_factory=dict)


class UnknownRecipe(Record, frozen=True, kw_only=True):
    """It is unknown what is loaded: the load of `recipe` failed, was killed, or has not ended yet.

    Stored before a load begins, so that it is true even if the swapper is killed. `ended_at` is
    None until the end of that load was seen. `before` is the last recipe known to be loaded.
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
    """What is known to be loaded. Both are None when nothing was ever loaded."""

    current: CurrentRecipe | None
    unknown: UnknownRecipe | None

    def has(self, recipe: str) -> bool:
        """Whether this recipe is certainly loaded."""
        return self.current is not None and self.current.recipe == recipe


def moved(workflow: Workflow, to: Preempt, swap: int | None = None) -> Workflow:
    """The workflow with its request to yield in another state. Raises ImpossibleTransition."""
    if to not in TRANSITIONS[workflow.preempt]:
        raise ImpossibleTransition(
            f"a request to yield that is {workflow.preempt.value} cannot become {to.value}: look "
            "again with `holdfast workflows list`",
            workflow=workflow.name,
        )
    if to is Preempt.REQUESTED or to is Preempt.NONE:
        return replace(workflow, preempt=to, preempt_swap=swap)
    return replace(workflow, preempt=to)


def may_yield(workflow: Workflow) -> bool:
    return workflow.preemptible and workflow.preempt is not Preempt.IGNORED


def waits_for(marker: SwapMarker, workflow: Workflow) -> bool:
    """Whether a swap waits for a workflow. Work with the swap's own recipe is waited for only when
    that recipe is loaded again.
    """
    if workflow.recipe != marker.recipe:
        return True
    return marker.reload and not same_process(workflow.owner, marker.holder)


def same_process(one: Holder, other: Holder) -> bool:
    """Whether these are the same process; labels do not matter."""
    return (one.place, one.pid, one.start_ticks) == (other.place, other.pid, other.start_ticks)


def who(holder: Holder) -> str:
    """A process, for messages."""
    return f"{holder.label} (process {holder.pid})" if holder.label else f"process {holder.pid}"


class OrphanLoad(NamedTuple):
    """The load of a swap whose process is dead or has lost the swap lock. As far as is known, the
    load has not ended. It is not work, so the next swap may end it.
    """

    marker: SwapMarker
    survivors: Sequence[Survivor]
    """The live processes of the load, where they can be seen."""
    left_s: float | None
    """Where they cannot be seen: how long this process still assumes that they live."""


class Policy(enum.StrEnum):
    """What to do about work that cannot be preempted, or does not yield."""

    WAIT = "wait"
    REFUSE = "refuse"


Obstacle = SwapMarker | OrphanLoad | Workflow | CurrentRecipe | UnknownRecipe
OnWait = Callable[[Sequence[Obstacle]], None]
"""Called when a wait begins, and when its reasons change: another swap, the load of one that is
over, or workflows; for work that waits for its recipe, also what is loaded instead.
"""


def fact_of(one: Obstacle) -> tuple[str, int, str | None]:
    """The part of an obstacle that is reported again when it changes."""
    if isinstance(one, OrphanLoad):
        return one.marker.recipe, one.marker.token, "orphan"
    if isinstance(one, Workflow):
        return one.name, one.token, one.preempt
    return one.recipe, one.token, None


class UnseenLoads:
    """How long this process has seen a free swap lock while the load of that swap may still run on
    another machine.

    The lock ends with the swapping process; then a guardian on the same machine ends the load.
    Other machines cannot see that, so they wait for the guardian's time limit. Each process
    measures that time itself: clocks of two machines may differ by more.
    """

    def __init__(self) -> None:
        self._since_s: dict[int, float] = {}

    def note(self, token: int) -> float:
        """Start or continue the measurement; return how long the load is still assumed to run."""
        self._since_s = {token: self._since_s.get(token, time.monotonic())}
        return self.left_s(token) or 0.0

    def left_s(self, token: int) -> float | None:
        """How long the load is still assumed to run; None for a swap that is not measured."""
        since_s = self._since_s.get(token)
        return (
            None if since_s is None else max(since_s + SWAP_LOAD_UNSEEN_S - time.monotonic(), 0.0)
        )

    def forget(self) -> None:
        """Stop: the swap has its lock, or its load can be seen."""
        self._since_s = {}
