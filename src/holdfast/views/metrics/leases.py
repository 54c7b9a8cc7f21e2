"""How long agents and workflows are still believed, and how long ago they were last heard of."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from holdfast.domains.agents import Agent
from holdfast.domains.workflows import Workflow
from holdfast.domains.workflows.room import Sight
from holdfast.kernel.holder import Liveness
from holdfast.kernel.limits import METRICS_CLAIMS_MAX
from holdfast.views.metrics.text import gauge, gauges

if TYPE_CHECKING:
    from prometheus_client import Metric


class _Claim(NamedTuple):
    labels: tuple[str, ...]
    age_s: float
    remaining_s: float


def of_agents(agents: Iterable[Agent], damaged: int, now: datetime) -> "Iterator[Metric]":
    """The samples of agents: how many there are, and the leases that end first."""
    claims = [
        _Claim((agent.agent_id, agent.agent_name), _since(agent.published_at, now), -_since(agent.lease_expires_at, now))
        for agent in agents
    ]
    fresh = sum(claim.remaining_s >= 0 for claim in claims)
    states = {"fresh": fresh, "expired": len(claims) - fresh, "damaged": damaged}
    yield gauges("holdfast_agents", "Records of agents, by state.", ["state"], (([name], n) for name, n in states.items()))
    yield from _leases("agent", "published", ["agent", "name"], claims)


def of_workflows(sight: Sight) -> "Iterator[Metric]":
    """The samples of workflows and of the swap under way."""
    claims = [
        _Claim(
            (workflow.name, workflow.recipe),
            _since(workflow.last_renewed_at, sight.now),
            _remaining(workflow, sight),
        )
        for workflow in sight.workflows
    ]
    dead = sum(sight.verdicts.get(workflow.owner) is Liveness.DEAD for workflow in sight.workflows)
    states = {"live": len(claims) - dead, "dead": dead, "damaged": len(sight.damaged)}
    yield gauges(
        "holdfast_workflows", "Registered workflows, by state.", ["state"], (([name], n) for name, n in states.items())
    )
    yield from _leases("workflow", "renewed", ["workflow", "recipe"], claims)
    yield gauge("holdfast_swap_age_seconds", "How long the swap under way has been so; 0 without one.", _swap_age(sight))


def _remaining(workflow: Workflow, sight: Sight) -> float:
    remaining_s = -_since(workflow.lease.expires_at, sight.now)
    # Without a renewal it is believed all the same as long as its processes are seen to live.
    seen = not workflow.lease.explicit and sight.verdicts.get(workflow.owner) is Liveness.ALIVE
    return max(remaining_s, 0.0) if seen else remaining_s


def _swap_age(sight: Sight) -> float:
    # What a dead one left behind is cleared by the next one who needs it to be, and holds up nobody.
    if sight.marker is None or sight.verdicts.get(sight.marker.holder) is Liveness.DEAD:
        return 0.0
    return max(_since(sight.marker.begun_at, sight.now), 0.001)


def _leases(what: str, heard: str, labels: list[str], claims: list[_Claim]) -> "Iterator[Metric]":
    first = sorted(claims, key=lambda claim: (claim.remaining_s, claim.labels))[:METRICS_CLAIMS_MAX]
    yield gauges(
        f"holdfast_{what}_lease_age_seconds",
        f"How long ago the {what} was {heard}.",
        labels,
        ((claim.labels, claim.age_s) for claim in first),
    )
    yield gauges(
        f"holdfast_{what}_lease_remaining_seconds",
        f"How long the {what} is still believed without a sign of life; less than 0 when it is not any more.",
        labels,
        ((claim.labels, claim.remaining_s) for claim in first),
    )


def _since(at: datetime, now: datetime) -> float:
    return (now - at).total_seconds()
