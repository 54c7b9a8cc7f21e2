"""`use_recipe` and `yield_or_swap`: who needs which model on the GPU."""

from typing import Annotated, Literal

from msgspec import Meta

from holdfast.domains.workflows import Swap
from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import EAgain, HoldfastError, InvalidValue, LeaseLost, Unavailable
from holdfast.kernel.limits import LABEL_CHARS_MAX, SWAP_GRACE_S, SWAP_TIMEOUT_S, SWAP_WHY_CHARS_MAX
from holdfast.surfaces.mcp.answers import RecipeAnswer
from holdfast.surfaces.mcp.cancellation import Call
from holdfast.surfaces.mcp.claims import Hand
from holdfast.surfaces.mcp.recipe_claims import RecipeClaim, SwapClaim
from holdfast.surfaces.mcp.tool import Handle, Tool, WaitS

_SECONDS_MAX = 24 * 3600.0

Recipe = Annotated[
    str,
    Meta(
        min_length=1, max_length=LABEL_CHARS_MAX, description="A recipe's name, such as llama-70b."
    ),
]
Seconds = Annotated[float, Meta(ge=0, le=_SECONDS_MAX)]


class UseArguments(Plain, frozen=True, kw_only=True):
    """Which recipe the work needs."""

    recipe: Recipe
    preemptible: Annotated[
        bool, Meta(description="May a swap ask you to yield? Then look at pending.")
    ] = True
    any_recipe: Annotated[
        bool, Meta(description="Begin on whatever is loaded, not only on this recipe.")
    ] = False
    wait_s: WaitS = 0


class YieldOrSwapArguments(Plain, frozen=True, kw_only=True):
    """What to do: yield needs the handle of use_recipe; swap a recipe; loaded and failed the handle
    of the swap.
    """

    action: Literal["yield", "swap", "loaded", "failed"]
    handle: Handle | None = None
    recipe: Recipe | None = None
    why: Annotated[
        str, Meta(max_length=SWAP_WHY_CHARS_MAX, description="With failed: what went wrong.")
    ] = ""
    grace_s: Annotated[
        Seconds, Meta(description="With swap: how long others are given to yield.")
    ] = SWAP_GRACE_S
    timeout_s: Annotated[
        Seconds, Meta(description="With swap: how long it stays in line at all.")
    ] = SWAP_TIMEOUT_S
    reload: Annotated[bool, Meta(description="With swap: load it again even if it is loaded.")] = (
        False
    )
    wait_s: WaitS = 0


def use_recipe(hand: Hand, asked: UseArguments, call: Call) -> RecipeAnswer:
    """Register work that needs a recipe."""
    handle = hand.new_handle("recipe")
    name = f"{hand.me.name}-{handle.rpartition(':')[2]}"
    work = hand.hf.workflows.running(
        name,
        asked.recipe,
        preemptible=asked.preemptible,
        any_recipe=asked.any_recipe,
        wait_s=asked.wait_s,
    )
    claim = RecipeClaim(hand.hf, handle, work.__enter__())
    hand.add(claim)
    call.undo_by(lambda: hand.let_go(handle))
    words = (
        "it is not loaded yet: yield_or_swap with action swap loads it"
        if work.swap_needed
        else "it is loaded: go ahead"
    )
    return RecipeAnswer(
        handle=handle,
        state="registered",
        recipe=asked.recipe,
        token=work.workflow.token,
        swap_needed=work.swap_needed,
        next=f"{words}. Release the handle when you are done",
    )


def yield_or_swap(hand: Hand, asked: YieldOrSwapArguments, call: Call) -> RecipeAnswer:
    """Make room for another recipe, or load one."""
    if asked.action == "swap":
        if asked.recipe is None or asked.handle is not None:
            raise InvalidValue("yield_or_swap: swap needs a recipe, and no handle", field="recipe")
        return _swap(hand, asked, asked.recipe, call)
    if asked.handle is None or asked.recipe is not None:
        raise InvalidValue(
            f"yield_or_swap: {asked.action} needs a handle, and no recipe", field="handle"
        )
    return (
        _yield(hand, asked.handle)
        if asked.action == "yield"
        else _finish(hand, asked, asked.handle)
    )


def _yield(hand: Hand, handle: str) -> RecipeAnswer:
    claim = hand.of(handle, RecipeClaim)
    workflow = claim.work.workflow
    if not hand.let_go(handle):
        raise LeaseLost(
            f"your work with {workflow.recipe} was taken out before: stop it now",
            recipe=workflow.recipe,
        )
    return RecipeAnswer(
        handle=handle,
        state="ended",
        recipe=workflow.recipe,
        token=workflow.token,
        next="use_recipe when you want to go on",
    )


def _swap(hand: Hand, asked: YieldOrSwapArguments, recipe: str, call: Call) -> RecipeAnswer:
    handle = hand.new_handle("swap")
    claim = SwapClaim(
        hand.hf,
        handle,
        recipe,
        grace_s=asked.grace_s,
        timeout_s=asked.timeout_s,
        reload=asked.reload,
    )
    claim.begin(hand.attendant.wake)
    hand.add(claim)
    call.undo_by(lambda: hand.let_go(claim.handle))
    claim.wait(max(asked.wait_s, _MOMENT_S), call)
    swap = ready(hand, claim, call)
    if swap is None:
        words = (
            "others are in the way: call wait with this handle to go on, or release to give it up"
        )
        return RecipeAnswer(
            handle=claim.handle, state="waiting", recipe=recipe, ahead=claim.ahead(), next=words
        )
    if not swap.needed:
        return RecipeAnswer(handle=claim.handle, state="loaded", recipe=recipe, next=NOT_NEEDED)
    words = (
        "nobody is in the way: load it now, then call yield_or_swap with this handle and action "
        "loaded or failed"
    )
    return RecipeAnswer(
        handle=claim.handle, state="ready", recipe=recipe, token=swap.token, next=words
    )


def ready(hand: Hand, claim: SwapClaim, call: Call) -> Swap | None:
    """The swap when its agent may load, for it to know; None while others are in the way. Raises
    what it was refused with, and LeaseLost when it is over; its handle is over then, and when the
    swap is not needed.
    """
    try:
        swap = claim.swap()
        if swap is not None:
            if swap.needed:
                swap.check()
            if not call.taken_back:
                claim.tell()
    except Unavailable as error:
        if claim.refused(error):
            hand.drop(claim.handle)
        raise
    except HoldfastError:
        hand.drop(claim.handle)
        raise
    if swap is not None and not swap.needed and not call.taken_back:
        hand.drop(claim.handle)
    return swap


def _finish(hand: Hand, asked: YieldOrSwapArguments, handle: str) -> RecipeAnswer:
    claim = hand.of(handle, SwapClaim)
    loaded = asked.action == "loaded"
    try:
        swap = claim.loaded() if loaded else claim.failed(asked.why or "not said")
    except EAgain:
        raise
    except HoldfastError:
        hand.drop(handle)
        raise
    hand.drop(handle)
    words = (
        f"{claim.recipe} is the current recipe"
        if loaded or not swap.needed
        else "it is unknown what is loaded now"
    )
    return RecipeAnswer(
        handle=handle, state="ended", recipe=claim.recipe, token=swap.token, next=words
    )


_MOMENT_S = 0.5
NOT_NEEDED = (
    "it is loaded already, so load nothing: your swap is over. use_recipe before you work with it"
)

RECIPE_TOOLS = (
    Tool(
        "use_recipe",
        "Says that your work needs a recipe (a model on the GPU), so that nobody swaps it away "
        "under you. Use it before such "
        "work. Refused when another recipe is loaded, or it is unknown which: load yours with "
        "yield_or_swap, or wait for it "
        "with wait_s. Comes back with a handle, and with swap_needed true when nothing was ever "
        "loaded. While you work, "
        "pending may say preemption_asked: then yield soon.",
        UseArguments,
        RecipeAnswer,
        use_recipe,
    ),
    Tool(
        "yield_or_swap",
        "Changes which recipe is loaded. action yield: make room, with the handle of use_recipe. "
        "action swap: begin to load "
        "another recipe; others are asked to yield. When state is loaded, there is nothing to "
        "load. When state is ready, load "
        "it yourself, then call again with the swap's handle and action loaded, or failed with "
        "why. Yield your own work with "
        "another recipe first.",
        YieldOrSwapArguments,
        RecipeAnswer,
        yield_or_swap,
    ),
)
