"""Workflows and the swap for the page: what is loaded, what is being loaded, and who it waits
for.
"""

from holdfast.domains.workflows import Preempt, SwapStatus, Workflow, Workflows
from holdfast.domains.workflows.messages import STATES, describe_unknown
from holdfast.domains.workflows.records import waits_for, who
from holdfast.kernel.codec import Instant, Plain
from holdfast.operations.page.explanation import Fact, Tone, Why, known

_TONES: dict[Preempt, Tone] = {
    Preempt.NONE: "good",
    Preempt.REQUESTED: "wait",
    Preempt.YIELDED: "wait",
    Preempt.IGNORED: "bad",
}


class WorkflowLine(Plain, frozen=True, kw_only=True):
    """One workflow in a list."""

    name: str
    recipe: str
    state: str
    tone: Tone
    preemptible: bool
    owner: str
    in_the_way: bool
    """The swap under way waits for it."""
    started_at: Instant
    ends_at: Instant | None
    """None when it ends with its processes."""


class SwapSnapshot(Plain, frozen=True, kw_only=True):
    """What is loaded, the swap under way, and the workflows that live. `unknown` says why nobody
    knows what is loaded: a load failed, or has not ended.
    """

    current: str | None
    loaded_at: Instant | None
    unknown: str
    unknown_at: Instant | None
    """When the load failed; None while it goes on."""
    target: str | None
    by: str
    begun_at: Instant | None
    waits_for: tuple[str, ...]
    workflows: tuple[WorkflowLine, ...]


def swap_snapshot(workflows: Workflows) -> SwapSnapshot:
    """What is loaded, the swap under way, and who it waits for."""
    found = workflows.swap_status(damaged=[])
    lines = tuple(_line(one, found) for one in found.workflows)
    return SwapSnapshot(
        current=None if found.current is None else found.current.recipe,
        loaded_at=None if found.current is None else found.current.loaded_at,
        unknown="" if found.unknown is None else describe_unknown(found.unknown),
        unknown_at=None if found.unknown is None else found.unknown.ended_at,
        target=None if found.marker is None else found.marker.recipe,
        by="" if found.marker is None else who(found.marker.holder),
        begun_at=None if found.marker is None else found.marker.begun_at,
        waits_for=tuple(line.name for line in lines if line.in_the_way),
        workflows=lines,
    )


def why_workflow(workflows: Workflows, name: str) -> Why:
    """Why a workflow holds what it holds, and whether somebody waits for it. Raises NotFound."""
    workflow = workflows.get(name)
    swap = swap_snapshot(workflows)
    in_the_way = name in swap.waits_for
    words = [f"{name} needs {workflow.recipe}, for {who(workflow.owner)}."]
    if in_the_way:
        words.append(
            f"The swap to {swap.target} by {swap.by} waits for it. Work is never killed for a swap."
        )
    return Why(
        kind="workflow",
        name=name,
        title=name,
        state=STATES[workflow.preempt],
        tone=_TONES[workflow.preempt],
        words=tuple(words),
        facts=known(
            Fact(name="recipe", text=workflow.recipe),
            Fact(name="started", at=workflow.started_at),
            Fact(name="last renewed", at=workflow.last_renewed_at),
            Fact(
                name="ends unless renewed",
                at=workflow.lease.expires_at if workflow.lease.explicit else None,
            ),
            Fact(name="owner", text=who(workflow.owner)),
            Fact(name="preemptible", text="yes" if workflow.preemptible else "no"),
        ),
        advice=(advice(workflow, in_the_way),),
    )


def why_swap(workflows: Workflows) -> Why:
    """What the swap under way waits for, or why there is none."""
    swap = swap_snapshot(workflows)
    model = swap.current or ("unknown" if swap.unknown else "none")
    if swap.target is None:
        loaded = (
            f"{swap.current} is loaded." if swap.current else "Nothing was ever swapped in here."
        )
        if swap.unknown:
            loaded = (
                f"What is loaded is unknown: {swap.unknown}. No work begins until a swap has "
                "succeeded."
            )
        words: tuple[str, ...] = ("No swap is under way.", loaded)
        state, tone = ("unknown", "bad") if swap.unknown else ("no swap", "idle")
    elif swap.waits_for:
        words = (f"{swap.by} wants {swap.target}, and waits for: {', '.join(swap.waits_for)}.",)
        state, tone = "waits for work to end", "wait"
    else:
        words = (f"{swap.by} is loading {swap.target}. Nothing is in its way.",)
        state, tone = "loading", "busy"
    return Why(
        kind="swap",
        name="swap",
        title=f"swap to {swap.target}" if swap.target else f"model {model}",
        state=state,
        tone=tone,  # type: ignore[arg-type]
        words=words,
        facts=known(
            Fact(name="loaded now", text=swap.current or ("unknown" if swap.unknown else "")),
            Fact(name="loaded", at=swap.loaded_at),
            Fact(name="swap begun", at=swap.begun_at),
            Fact(name="by", text=swap.by),
        ),
        advice=(
            "`holdfast swap log` says what happened; a dead swap's marker is cleared by itself",
        ),
    )


def _line(workflow: Workflow, found: SwapStatus) -> WorkflowLine:
    return WorkflowLine(
        name=workflow.name,
        recipe=workflow.recipe,
        state=STATES[workflow.preempt],
        tone=_TONES[workflow.preempt],
        preemptible=workflow.preemptible,
        owner=who(workflow.owner),
        in_the_way=found.marker is not None and waits_for(found.marker, workflow),
        started_at=workflow.started_at,
        ends_at=workflow.lease.expires_at if workflow.lease.explicit else None,
    )


def advice(workflow: Workflow, in_the_way: bool) -> str:
    """What to do about a workflow, where a swap waits for it."""
    if not in_the_way:
        return "nothing to do"
    if workflow.preempt is Preempt.IGNORED:
        return f"it was asked to yield and did not: check {who(workflow.owner)}"
    if workflow.preemptible and workflow.preempt is Preempt.NONE:
        return "it may be asked to yield, and was not yet"
    if workflow.preemptible:
        return "it was asked to yield, and does so at its next safe point"
    return f"it cannot be asked to yield: wait for its end, or end {who(workflow.owner)} yourself"
