"""What the library returns, as the results of operations show it: the library's column of the
table.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import asdict

from holdfast.domains.agents import Agent
from holdfast.domains.workflows import Registered, SwapStatus
from holdfast.domains.workflows.registry import ReconciledMarker
from holdfast.kernel.histogram import BUCKETS_S
from holdfast.operations import agents, gateways, locks, workflows
from holdfast.primitives.locks import Grant
from holdfast.primitives.locks.policy import Obstruction
from holdfast.primitives.locks.records import LockHold
from holdfast.primitives.locks.statistics import LockStatistics
from holdfast.runtime.connection import Holdfast


def grant_view(grant: Grant) -> locks.GrantView:
    return locks.GrantView(
        token=grant.token,
        names=grant.names,
        by=grant.by,
        mode=grant.mode,
        tokens=dict(grant.tokens),
        ttl_s=grant.ttl_s,
        reentered=grant.reentered,
    )


def renewed_view(hold: LockHold) -> locks.Renewed:
    return locks.Renewed(
        token=hold.token,
        names=hold.names,
        by=hold.by,
        mode=hold.mode,
        expires_at=hold.lease.expires_at,
    )


def kicked_view(kicked: Iterable[LockHold]) -> locks.Kicked:
    return locks.Kicked(
        kicked=[
            locks.KickedHold(by=hold.by, names=hold.names, token=hold.token, process=hold.process)
            for hold in kicked
        ]
    )


def free_view(why: Obstruction | None) -> locks.Free:
    return locks.Free(free=True) if why is None else locks.Free(free=False, holders=why.holders)


def lease_ended(ended: tuple[int, bool]) -> dict[str, Any]:
    count, should_delete = ended
    return {"count": count, "should_delete": should_delete}


def statistics_view(name: str, found: Mapping[str, LockStatistics]) -> dict[str, Any]:
    """The library's counts, and the times that the histograms hold."""
    one = asdict(found[name])
    times = {}
    for what in ("wait", "hold"):
        counts = one[f"{what}_counts"]
        number = sum(counts)
        # The bucket of each single time, in the order of their lengths.
        each = [
            bound
            for bound, count in zip((*BUCKETS_S, None), counts, strict=True)
            for _ in range(count)
        ]
        times[f"{what}_mean_s"] = one[f"{what}_s"] / number if number else None
        for share in (50, 95):
            at = -(-number * share // 100) - 1
            times[f"{what}_p{share}_s"] = each[at] if number else None
    return {"resource": name, **one, "buckets_s": BUCKETS_S, **times}


def agent_view(hf: Holdfast, agent_id: str) -> dict[str, Any]:
    agent = hf.agents.get(agent_id)
    return {**asdict(agent), "liveness": hf.agents.liveness(agent)}


def job_log(hf: Holdfast, job_id: str) -> list[dict[str, Any]]:
    hf.catch_up(wait=True)
    assert hf.job_log is not None
    return list(hf.job_log.events(job_id))


def host_added(hf: Holdfast, name: str) -> dict[str, Any]:
    return {"host": name, **(hf.network.get_host_info(name) or {})}


def live_agent(agent: Agent) -> agents.LiveAgent:
    """Of an agent without a recorded process or gateway."""
    return agents.LiveAgent(
        agent_name=agent.agent_name,
        agent_id=agent.agent_id,
        tool=agent.identity.tool,
        backend=agent.identity.backend,
        tmux_session=agent.session_name,
        lease_expires_at=agent.lease_expires_at,
        process="none",
        has_gateway=False,
    )


def sent_request(request: dict[str, Any]) -> gateways.SentRequest:
    """Of a request that was just sent."""
    return gateways.SentRequest(
        agent="gpu",
        request_id=request["request_id"],
        state=request["state"],
        epoch=request["epoch"],
    )


def registered_view(registered: Registered) -> workflows.RegisteredView:
    return workflows.RegisteredView(
        **asdict(registered.workflow), swap_needed=registered.swap_needed
    )


def swap_view(found: SwapStatus) -> workflows.SwapView:
    return workflows.SwapView(
        current=found.current,
        unknown=found.unknown,
        swap=found.marker,
        workflows=found.workflows,
    )


def reconciled_view(found: ReconciledMarker) -> workflows.SwapReconciled:
    return workflows.SwapReconciled(swap=found.live, cleared=found.cleared)
