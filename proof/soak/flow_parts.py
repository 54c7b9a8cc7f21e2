"""Workflows that need a recipe, and swaps that load one."""

import contextlib

from holdfast.kernel.errors import EAgain, Held, LeaseLost, LockTimeout, NotLoaded, Unavailable
from holdfast.runtime.connection import Holdfast
from proof.soak.child import Child

RECIPES = ["recipe-a", "recipe-b", "recipe-c"]


def workflow(child: Child, hf: Holdfast) -> bool:
    """Work is seen to need its recipe while it is registered."""
    if child.draining:
        return False
    recipe = child.draw.choice(RECIPES)
    try:
        preemptible, any_recipe = child.draw.random() < 0.5, child.draw.random() < 0.5
        with hf.workflows.running(
            child.name,
            recipe,
            ttl_s=120.0,
            preemptible=preemptible,
            any_recipe=any_recipe,
            wait_s=1.0,
        ) as work:
            with child.witness(f"gpu-{recipe}", shared=True) as seen:
                if not seen:
                    child.wrong(f"a swap goes on under {child.name}, which needs {recipe}")
                for _ in range(5):
                    child.pause(0.02)
                    if work.should_yield():
                        break
    except (EAgain, Held, NotLoaded):
        child.count("refused")
    except LeaseLost as error:
        child.wrong(f"a workflow that lives was swept: {error.message}")
    child.did()
    return True


def swapper(child: Child, hf: Holdfast) -> bool:
    """No work with another recipe is left when a load starts, and none starts before the load ends."""
    if child.draining:
        return False
    recipe = child.draw.choice(RECIPES)
    try:
        with (
            hf.workflows.swap(recipe, grace_s=0.2, timeout_s=5.0) as swap,
            contextlib.ExitStack() as seen,
        ):
            others = [other for other in RECIPES if other != recipe and swap.needed]
            taken = [seen.enter_context(child.witness(f"gpu-{other}")) for other in others]
            child.pause(0.02)
            if not all(taken) and _in_force(swap):
                child.wrong(f"{child.name} swaps to {recipe} under running work")
    except (LockTimeout, Held):
        child.count("refused")
    except LeaseLost:
        # Its session was lost with the restart of the database, and the swap with it.
        child.count("fenced")
    child.did()
    child.pause(0.3)
    return True


def _in_force(swap: object) -> bool:
    """Does the swap still belong to this process? After a restart of its database it does not, and
    what it sees proves nothing.
    """
    try:
        swap.check()  # type: ignore[attr-defined]
    except (LeaseLost, Unavailable):
        return False
    return True
