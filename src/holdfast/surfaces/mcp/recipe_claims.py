"""Work that needs a recipe, and a swap to another one."""

from collections.abc import Callable, Iterator, Sequence

from holdfast.domains.workflows.messages import describe_orphan_load
from holdfast.domains.workflows.records import (
    CurrentRecipe,
    Obstacle,
    OrphanLoad,
    SwapMarker,
    Workflow,
    who,
)
from holdfast.domains.workflows.swap import Swap
from holdfast.domains.workflows.work import Work
from holdfast.kernel.errors import EAgain, HoldfastError, LeaseLost, Lost
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.mcp.answers import Ahead, Holding, Notice
from holdfast.surfaces.mcp.cancellation import Call
from holdfast.surfaces.mcp.turn import Turn


class RecipeClaim:
    """A workflow of this process. It is renewed in the background, by the workflow's own thread."""

    def __init__(self, hf: Holdfast, handle: str, work: Work) -> None:
        self._hf = hf
        self.handle = handle
        self.work = work

    def holding(self) -> Holding:
        """What it is, and how it stands."""
        state = (
            "lease_lost"
            if self.work.lost.is_set()
            else "preemption_asked"
            if self.work.preempted.is_set()
            else "registered"
        )
        return Holding(
            handle=self.handle, what=f"work with recipe {self.work.workflow.recipe}", state=state
        )

    def notices(self) -> Iterator[Notice]:
        """Whether it was asked to yield, or swept."""
        workflow = self.work.workflow
        try:
            asked = self._hf.workflows.preempt_requested(workflow.name, workflow.token)
        except Lost as error:
            yield Notice(kind="lease_lost", handle=self.handle, message=error.message)
            return
        if asked:
            words = (
                f"another recipe is wanted in place of {workflow.recipe}: come to a safe point, "
                "save what you need, then call "
                f"yield_or_swap with action yield and handle {self.handle}"
            )
            yield Notice(kind="preemption_asked", handle=self.handle, message=words)

    def attend(self, now_s: float) -> float | None:
        """Nothing: its own thread renews it."""
        return None

    def let_go(self, within_s: float) -> bool:
        """Release it; if it was asked to yield, it has. False when it was swept before."""
        try:
            self.work.__exit__(None, None, None)
        except LeaseLost:
            return False
        return True


class SwapClaim:
    """A swap: waiting for others, ready to load, or over."""

    def __init__(
        self,
        hf: Holdfast,
        handle: str,
        recipe: str,
        *,
        grace_s: float,
        timeout_s: float,
        reload: bool = False,
    ) -> None:
        self._hf = hf
        self.handle = handle
        self.recipe = recipe
        self._grace_s = grace_s
        self._timeout_s = timeout_s
        self._reload = reload
        self._ahead: Sequence[Obstacle] = ()
        self._turn: Turn[Swap] = Turn(
            self._seek, abandon=lambda swap: swap.cancel(_GIVEN_UP), over=self._over
        )

    def begin(self, ended: Callable[[], object]) -> None:
        """Ask the others to yield, and wait for them."""
        self._turn.begin(ended)

    def wait(self, limit_s: float, call: Call) -> None:
        """Wait until it is ready."""
        self._turn.wait(limit_s, call)

    def swap(self) -> Swap | None:
        """The swap when it is ready; None while others are in the way. Raises what it was refused
        with, and LeaseLost when it was given up.
        """
        return self._turn.found()

    def tell(self) -> bool:
        """The agent is about to be told that it may load; True for the first time. Raises LeaseLost
        when the swap is just being given up: never both.
        """
        return self._turn.tell()

    def refused(self, error: HoldfastError) -> bool:
        """Is this what the swap itself ended with?"""
        return error is self._turn.refusal

    def loaded(self) -> Swap:
        """The recipe is loaded: make it the current one. Raises EAgain while others are in the way,
        LeaseLost when the swap was lost meanwhile.
        """
        swap = self._ready()
        if swap.needed:
            # It may have been given up since.
            swap.check()
            swap.__exit__(None, None, None)
        return swap

    def failed(self, why: str) -> Swap:
        """The recipe could not be loaded: it is unknown what is."""
        swap = self._ready()
        swap.fail(why)
        return swap

    def ahead(self) -> tuple[Ahead, ...]:
        """Who is in the way, while it waits."""
        return tuple(_in_the_way(one) for one in self._ahead) if self._turn.waits else ()

    def holding(self) -> Holding:
        """What it is, and how it stands."""
        try:
            state = "waiting" if self.swap() is None else "ready"
        except HoldfastError as error:
            state = error.code
        return Holding(handle=self.handle, what=f"swap to {self.recipe}", state=state)

    def notices(self) -> Iterator[Notice]:
        """Whether it is ready, was refused, or was lost."""
        if (refusal := self._turn.refusal) is not None:
            yield Notice(kind="swap_refused", handle=self.handle, message=refusal.message)
            return
        try:
            swap = self.swap()
            if swap is None:
                return
            if swap.needed:
                swap.check()
            first = self.tell()
        except LeaseLost as error:
            yield Notice(kind="lease_lost", handle=self.handle, message=error.message)
            return
        if not swap.needed:
            words = f"{self.recipe} is loaded already: load nothing, and release the handle"
            yield Notice(kind="swap_not_needed", handle=self.handle, message=words)
        elif first:
            words = (
                f"nobody is in the way any more: load {self.recipe}, then call yield_or_swap with "
                "action loaded or failed"
            )
            yield Notice(kind="swap_ready", handle=self.handle, message=words)

    def attend(self, now_s: float) -> float | None:
        """A swap that nobody came for is given up: all others wait behind it. One that is not
        needed is over already.
        """
        if self._turn.kept is not None and not self._turn.kept.needed:
            return None
        due_s = self._turn.untold_until_s()
        if due_s is None or now_s < due_s:
            return due_s
        if self._turn.kept is not None and self._turn.withhold():
            self._turn.kept.cancel("nobody came to load it")
        return None

    def let_go(self, within_s: float) -> bool:
        """Give the swap up. If its agent was told to load, it is unknown from here on what is
        loaded.
        """
        waited = self._turn.give_up(within_s)
        if self._turn.kept is None:
            return waited
        if self._turn.told:
            self._turn.kept.fail(_GIVEN_UP)
        else:
            self._turn.kept.cancel(_GIVEN_UP)
        return True

    def _seek(self, stop_fd: int) -> Swap:
        swap = self._hf.workflows.swap(
            self.recipe,
            grace_s=self._grace_s,
            timeout_s=self._timeout_s,
            reload=self._reload,
            on_wait=self._see,
            stop_fd=stop_fd,
        )
        swap.__enter__()
        if not swap.needed:
            # There is nothing for the agent to do, so nobody need wait until it says so.
            swap.__exit__(None, None, None)
        return swap

    def _over(self) -> LeaseLost:
        return LeaseLost(
            f"the swap to {self.recipe} was given up: do not load it; ask for another",
            recipe=self.recipe,
        )

    def _see(self, in_the_way: Sequence[Obstacle]) -> None:
        self._ahead = list(in_the_way)

    def _ready(self) -> Swap:
        swap = self.swap()
        if swap is None:
            raise EAgain(
                f"the swap to {self.recipe} is not ready: call `wait` with {self.handle} until it "
                "is",
                recipe=self.recipe,
            )
        return swap


_GIVEN_UP = "given up by its agent"


def _in_the_way(one: Obstacle) -> Ahead:
    if isinstance(one, Workflow):
        return Ahead(
            by=who(one.owner),
            what=f"{one.name} works with {one.recipe}",
            holds=True,
            since=one.started_at,
        )
    if isinstance(one, OrphanLoad):
        return Ahead(
            by=who(one.marker.holder),
            what=describe_orphan_load(one),
            holds=True,
            since=one.marker.begun_at,
        )
    if isinstance(one, SwapMarker):
        return Ahead(
            by=who(one.holder),
            what=f"a swap to {one.recipe}",
            holds=True,
            since=one.begun_at,
        )
    since = one.loaded_at if isinstance(one, CurrentRecipe) else one.began_at
    return Ahead(by=one.by, what=f"a swap to {one.recipe}", holds=True, since=since)
