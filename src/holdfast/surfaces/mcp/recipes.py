"""Recipes: work that needs one, and a swap to another one."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta

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
from holdfast.kernel.errors import EAgain, HoldfastError, InvalidValue, LeaseLost, Lost
from holdfast.kernel.limits import SWAP_GRACE_S, SWAP_TIMEOUT_S, SWAP_WHY_CHARS_MAX
from holdfast.operations import workflows
from holdfast.operations.fields import Label
from holdfast.operations.workflows import RegisterWorkflow
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.mcp.call import Call
from holdfast.surfaces.mcp.claims import Holding, Notice, Session
from holdfast.surfaces.mcp.offer import GO_ON, AheadView, Offer
from holdfast.surfaces.mcp.tool import HandleText, ToolResult, WaitS, tool

_MOMENT_S = 0.5
_GIVEN_UP = "given up by its agent"
_Seconds = Annotated[float, Meta(ge=0, le=24 * 3600.0)]


class RecipeClaim:
    """A workflow of this process. The workflow's own thread renews it."""

    def __init__(self, hf: Holdfast, handle: str, work: Work) -> None:
        self._hf = hf
        self.handle = handle
        self.work = work

    def holding(self) -> Holding:
        state = "preemption_asked" if self.work.preempted.is_set() else "registered"
        if self.work.lost.is_set():
            state = "lease_lost"
        what = f"work with recipe {self.work.workflow.recipe}"
        return Holding(handle=self.handle, what=what, state=state)

    def notices(self) -> Iterator[Notice]:
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

    def renew(self, now_s: float) -> float | None:
        return None

    def release(self, within_s: float) -> bool:
        """Release it; if it was asked to yield, it has. False when it was swept before."""
        try:
            self.work.__exit__(None, None, None)
        except LeaseLost:
            return False
        return True


class SwapClaim(Offer[Swap]):
    """A swap: waiting for others, ready to load, or over. `how` is as `Workflows.swap` takes it."""

    ready = "ready"
    refused = "swap_refused"

    def __init__(self, hf: Holdfast, handle: str, recipe: str, **how: Any) -> None:
        super().__init__(handle)
        self._hf = hf
        self.recipe = recipe
        self.what = f"swap to {recipe}"
        self._how = how
        self._obstacles: Sequence[Obstacle] = ()

    def finish(self, failure: str | None) -> Swap:
        """End it: the recipe is loaded, or the load failed and it is unknown what is loaded.

        Raises EAgain while others are in the way, LeaseLost when the swap was lost meanwhile.
        """
        swap = self.result()
        if swap is None:
            raise EAgain(
                f"the swap to {self.recipe} is not ready: call `wait` with {self.handle} until it "
                "is",
                recipe=self.recipe,
            )
        if failure is not None:
            swap.fail(failure)
        elif swap.needed:
            # It may have been given up since.
            swap.check()
            swap.__exit__(None, None, None)
        return swap

    def seek(self, stop_fd: int) -> Swap:
        swap = self._hf.workflows.swap(
            self.recipe, **self._how, on_wait=self._wait, stop_fd=stop_fd
        )
        swap.__enter__()
        if not swap.needed:
            # The agent has nothing to do, so nobody need wait until it says so.
            swap.__exit__(None, None, None)
        return swap

    def verify(self, found: Swap) -> None:
        if found.needed:
            found.check()

    def give_back(self, found: Swap) -> bool:
        """Give it up. If the agent knew that it may load, it is unknown what is loaded."""
        if self.delivered:
            found.fail(_GIVEN_UP)
        else:
            found.cancel(_GIVEN_UP)
        return True

    def granted(self, found: Swap, *, first: bool) -> Iterator[Notice]:
        if not found.needed:
            words = f"{self.recipe} is loaded already: load nothing, and release the handle"
            yield Notice(kind="swap_not_needed", handle=self.handle, message=words)
        elif first:
            words = (
                f"nobody is in the way any more: load {self.recipe}, then call yield_or_swap with "
                "action loaded or failed"
            )
            yield Notice(kind="swap_ready", handle=self.handle, message=words)

    def renew(self, now_s: float) -> float | None:
        """Give it up if the agent does not come for it; one that is not needed is over already."""
        return super().renew(now_s) if self.found is None or self.found.needed else None

    def over(self) -> LeaseLost:
        return LeaseLost(
            f"the swap to {self.recipe} was given up: do not load it; request another",
            recipe=self.recipe,
        )

    def answer(self, session: Session, call: Call) -> Swap | None:
        """The swap when the agent may load; its handle is over when it is not needed."""
        swap = super().answer(session, call)
        if swap is not None and not swap.needed and not call.cancelled:
            session.drop(self.handle)
        return swap

    def state(self, swap: Swap | None) -> ToolResult:
        """How it stands, and who is in the way."""
        if swap is None:
            ahead = () if self.done else tuple(_ahead(one) for one in self._obstacles)
            return _answer(self.handle, "waiting", self.recipe, GO_ON, ahead=ahead)
        if swap.needed:
            words = f"load {self.recipe}, then yield_or_swap with this handle and loaded or failed"
            return _answer(self.handle, "ready", self.recipe, words, token=swap.token)
        words = "it is loaded already, so load nothing: your swap is over. use_recipe before work"
        return _answer(self.handle, "loaded", self.recipe, words)

    def _wait(self, obstacles: Sequence[Obstacle]) -> None:
        self._obstacles = list(obstacles)


@tool(workflows.register)
def use_recipe(
    session: Session, call: Call, request: RegisterWorkflow, *, wait_s: WaitS = 0
) -> ToolResult:
    """Say that your work needs a recipe (a model on the GPU), so that nobody swaps it away under
    you. Refused when another is loaded, or it is unknown which: load yours with yield_or_swap, or
    wait with wait_s. swap_needed: nothing was ever loaded. While you work, pending may say
    preemption_asked: then yield soon."""
    handle = session.new_handle("recipe")
    work = session.hf.workflows.running(
        request.name,
        request.recipe,
        preemptible=request.preemptible,
        any_recipe=not request.loaded_only,
        wait_s=wait_s,
    )
    session.add(RecipeClaim(session.hf, handle, work.__enter__()))
    call.undo_by(lambda: session.release(handle))
    words = "it is loaded: go ahead"
    if work.swap_needed:
        words = "it is not loaded yet: yield_or_swap with action swap loads it"
    words = f"{words}. Release the handle when you are done"
    token, needed = work.workflow.token, work.swap_needed
    return _answer(handle, "registered", request.recipe, words, token=token, swap_needed=needed)


@tool()
def yield_or_swap(
    session: Session,
    call: Call,
    *,
    action: Literal["yield", "swap", "loaded", "failed"],
    handle: HandleText | None = None,
    recipe: Annotated[Label, Meta(description="Such as llama-70b.")] | None = None,
    why: Annotated[
        str, Meta(max_length=SWAP_WHY_CHARS_MAX, description="With failed: what went wrong.")
    ] = "",
    grace_s: Annotated[
        _Seconds, Meta(description="With swap: how long others may take to yield.")
    ] = SWAP_GRACE_S,
    timeout_s: Annotated[
        _Seconds, Meta(description="With swap: how long it stays in the queue.")
    ] = SWAP_TIMEOUT_S,
    reload: Annotated[bool, Meta(description="With swap: also if it is loaded.")] = False,
    wait_s: WaitS = 0,
) -> ToolResult:
    """Change which recipe is loaded. yield: make room, with the handle of use_recipe. swap: load a
    recipe; others are asked to yield. In state ready load it yourself, then call with the swap's
    handle and loaded, or failed with why. In state loaded there is nothing to load. Yield your own
    work with another recipe first."""
    if action == "swap":
        if recipe is None or handle is not None:
            raise InvalidValue("yield_or_swap: swap needs a recipe, and no handle", field="recipe")
        how = {"grace_s": grace_s, "timeout_s": timeout_s, "reload": reload}
        claim = SwapClaim(session.hf, session.new_handle("swap"), recipe, **how)
        return claim.state(claim.start(session, call, max(wait_s, _MOMENT_S)))
    if handle is None or recipe is not None:
        raise InvalidValue(f"yield_or_swap: {action} needs a handle, and no recipe", field="handle")
    if action != "yield":
        failure = None if action == "loaded" else why or "not said"
        return _finish(session, session.claim(handle, SwapClaim), failure)
    workflow = session.claim(handle, RecipeClaim).work.workflow
    if not session.release(handle):
        recipe = workflow.recipe
        raise LeaseLost(f"your work with {recipe} was swept before: stop it now", recipe=recipe)
    words = "use_recipe when you want to go on"
    return _answer(handle, "ended", workflow.recipe, words, token=workflow.token)


def _finish(session: Session, claim: SwapClaim, failure: str | None) -> ToolResult:
    try:
        swap = claim.finish(failure)
    except HoldfastError as error:
        if not isinstance(error, EAgain):
            session.drop(claim.handle)
        raise
    session.drop(claim.handle)
    words = "it is unknown what is loaded now"
    if failure is None or not swap.needed:
        words = f"{claim.recipe} is the current recipe"
    return _answer(claim.handle, "ended", claim.recipe, words, token=swap.token)


def _answer(handle: str, state: str, recipe: str, next: str, **more: Any) -> ToolResult:
    found = {"handle": handle, "state": state, "recipe": recipe, "next": next}
    return found | {"token": None, "swap_needed": False, "ahead": ()} | more


def _ahead(one: Obstacle) -> AheadView:
    if isinstance(one, Workflow):
        by, what, since = who(one.owner), f"{one.name} works with {one.recipe}", one.started_at
    elif isinstance(one, OrphanLoad):
        by, what, since = who(one.marker.holder), describe_orphan_load(one), one.marker.begun_at
    elif isinstance(one, SwapMarker):
        by, what, since = who(one.holder), f"a swap to {one.recipe}", one.begun_at
    else:
        since = one.loaded_at if isinstance(one, CurrentRecipe) else one.began_at
        by, what = one.by, f"a swap to {one.recipe}"
    return AheadView(by=by, what=what, holds=True, since=since)
