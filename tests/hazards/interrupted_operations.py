"""The public operations in which `interruptions` raises exceptions, and the states that are legal
after a failure.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from holdfast.domains.jobs.records import JobStatus
from holdfast.kernel.errors import HoldfastError, NotFound
from holdfast.runtime.connection import Holdfast

HERE = "victim"
R1 = "router-1"


class Operation(NamedTuple):
    """One public operation: the state before it, the call, the legal states after a failure, and
    how to continue.
    """

    prepare: Callable[[Holdfast], Any]
    act: Callable[[Holdfast, Any], object]
    seen: Callable[[Holdfast], object] = lambda hf: None
    allowed: Sequence[object] = (None,)
    settle: Callable[[Holdfast, Any], object] = lambda hf, before: None


def _nothing(_: Holdfast) -> None:
    return None


def _holder_of_r1(hf: Holdfast) -> str | None:
    holds = hf.locks.status(R1).holds
    return holds[0].by if holds else None


def _free_r1(hf: Holdfast, _: object) -> None:
    hf.locks.free(R1, by=HERE)
    assert _holder_of_r1(hf) is None


def _queue(hf: Holdfast) -> list[Any]:
    """Who holds, and how many wait."""
    return [_holder_of_r1(hf), len(hf.locks.status(R1).queue)]


def _behind_another(hf: Holdfast) -> Any:
    return hf.locks.acquire(R1, by="another")


def _release(hf: Holdfast, grant: Any) -> None:
    hf.locks.release(grant)
    _free_r1(hf, None)


def _statuses(hf: Holdfast) -> list[str]:
    return sorted(job.status.value for job in hf.jobs.list_jobs())


def registered(hf: Holdfast) -> Any:
    """A new job."""
    return hf.jobs.register_job("work", agent="claude", agent_session="s")


def _running(hf: Holdfast) -> Any:
    registered(hf)
    return hf.jobs.pick_pending("s")


def _finish_all(hf: Holdfast, _: object) -> None:
    """A job that exists can be picked and completed, and nothing else of it is left."""
    for job in hf.jobs.list_jobs():
        if not job.status.ended:
            hf.jobs.cancel(job.job_id)
    hf.jobs.prune(keep_finished=0, keep_s=0)
    assert hf.jobs.list_jobs() == []


def _fail(hf: Holdfast) -> Any:
    job = _running(hf)
    return hf.jobs.update_status(job.job_id, JobStatus.ERROR, token=job.token, error="no")


def _drop(hf: Holdfast, _: object) -> None:
    with contextlib.suppress(NotFound):
        hf.holds.drop("gpu", by=HERE)
    assert hf.holds.count("gpu") == 0


def _host(hf: Holdfast) -> None:
    hf.network.register_host("h1", "10.0.0.1", R1, "02:00:00:00:00:01")


def _hosts(hf: Holdfast) -> list[str]:
    return sorted(hf.network.list_all_hosts())


def _lease(hf: Holdfast) -> None:
    _host(hf)
    hf.network.acquire_source_host_lease("run", "h1", "quick", R1)


def _no_host(hf: Holdfast, _: object) -> None:
    with contextlib.suppress(HoldfastError):
        hf.network.release_source_host_lease("run", "h1")
    with contextlib.suppress(HoldfastError):
        hf.network.release_neighbor_lease("run", "h1", "10.0.0.9")
    hf.network.unregister_host("h1", force=True)
    assert _hosts(hf) == []


def _published(hf: Holdfast) -> Any:
    return hf.agents.publish(
        "claude-a", backend="command", tool="claude", manifest_path="/nowhere/manifest.json"
    )


def _agents(hf: Holdfast) -> list[str]:
    return [agent.agent_name for agent in hf.agents.list_agents()]


def _no_agent(hf: Holdfast, _: object) -> None:
    for agent in hf.agents.list_agents():
        hf.agents.remove(agent.agent_id, agent.generation_id)
    assert _agents(hf) == []


def _workflow(hf: Holdfast) -> Any:
    return hf.workflows.register("tune", "a")


def _workflows(hf: Holdfast) -> list[Any]:
    return [
        [one.name for one in hf.workflows.list_workflows()],
        hf.workflows.swap_status().marker is not None,
    ]


def _work(hf: Holdfast, _: object) -> None:
    with hf.workflows.running("tune", "a", any_recipe=True):
        pass


def _swap(hf: Holdfast, _: object) -> None:
    with hf.workflows.swap("b", timeout_s=5, reload=True):
        pass


def _no_workflow(hf: Holdfast, _: object) -> None:
    hf.workflows.reconcile_swap_marker()
    for one in hf.workflows.list_workflows():
        hf.workflows.release(one.name, one.token)
    assert _workflows(hf) == [[], False]
    # Nobody has the swap lock any more.
    _swap(hf, None)


def _router(hf: Holdfast, _: object) -> None:
    with hf.network.router_lock(R1, HERE):
        pass


def _hold(hf: Holdfast, _: object) -> None:
    with hf.locks.hold([R1, "router-2"], by=HERE):
        pass


def _read_everything(hf: Holdfast, _: object) -> None:
    hf.jobs.list_jobs()
    hf.jobs.counts()
    hf.agents.list_agents()
    hf.network.list_all_hosts()
    hf.workflows.swap_status()
    hf.locks.explain(R1)
    hf.locks.graph()
    hf.holds.subjects()
    hf.log.tail(10)


def _times_out(hf: Holdfast, _: object) -> None:
    assert hf.locks.try_acquire(R1, by=HERE, timeout_s=0.001) is None


FREE: Sequence[object] = (None,)
"""A caller that got no grant holds nothing."""

OPERATIONS: dict[str, Operation] = {
    "locks.acquire": Operation(
        _nothing, lambda hf, _: hf.locks.acquire(R1, by=HERE), _holder_of_r1, FREE, _free_r1
    ),
    "locks.acquire, a set": Operation(
        _nothing,
        lambda hf, _: hf.locks.acquire([R1, "router-2"], by=HERE, mode="shared"),
        _holder_of_r1,
        FREE,
        _free_r1,
    ),
    "locks.acquire, with a time": Operation(
        _nothing,
        lambda hf, _: hf.locks.acquire(R1, by=HERE, ttl_s=60, process=None),
        _holder_of_r1,
        (None, HERE),
        _free_r1,
    ),
    "locks.try_acquire, held": Operation(
        _behind_another, _times_out, _queue, (["another", 0],), _release
    ),
    "locks.hold": Operation(_nothing, _hold, _holder_of_r1, (None, HERE), _free_r1),
    "locks.release": Operation(
        lambda hf: hf.locks.acquire(R1, by=HERE),
        lambda hf, grant: hf.locks.release(grant),
        _holder_of_r1,
        (None, HERE),
        _release,
    ),
    "locks.renew": Operation(
        lambda hf: hf.locks.acquire(R1, by=HERE),
        lambda hf, grant: hf.locks.renew(grant),
        _holder_of_r1,
        (HERE,),
        _release,
    ),
    "locks.kick": Operation(
        _behind_another,
        lambda hf, _: hf.locks.kick(R1, why="test"),
        _holder_of_r1,
        (None, "another"),
        _release,
    ),
    "holds.take": Operation(
        _nothing,
        lambda hf, _: hf.holds.take("gpu", by=HERE),
        lambda hf: hf.holds.count("gpu"),
        (0, 1),
        _drop,
    ),
    "holds.drop": Operation(
        lambda hf: hf.holds.take("gpu", by=HERE),
        lambda hf, _: hf.holds.drop("gpu", by=HERE),
        lambda hf: hf.holds.count("gpu"),
        (0, 1),
        _drop,
    ),
    "jobs.register_job": Operation(
        _nothing, lambda hf, _: registered(hf), _statuses, ([], ["pending"]), _finish_all
    ),
    "jobs.pick_pending": Operation(
        registered,
        lambda hf, _: hf.jobs.pick_pending("s"),
        _statuses,
        (["pending"], ["running"]),
        _finish_all,
    ),
    "jobs.heartbeat": Operation(
        _running,
        lambda hf, job: hf.jobs.heartbeat(job.job_id, token=job.token),
        _statuses,
        (["running"],),
        _finish_all,
    ),
    "jobs.update_status": Operation(
        _running,
        lambda hf, job: hf.jobs.update_status(
            job.job_id, "completed", token=job.token, result="yes"
        ),
        _statuses,
        (["running"], ["completed"]),
        _finish_all,
    ),
    "jobs.finish_and_pick": Operation(
        lambda hf: (_running(hf), registered(hf))[0],
        lambda hf, job: hf.jobs.finish_and_pick(job.job_id, "completed", token=job.token),
        _statuses,
        (["pending", "running"], ["completed", "running"]),
        _finish_all,
    ),
    "jobs.cancel": Operation(
        _running,
        lambda hf, job: hf.jobs.cancel(job.job_id),
        _statuses,
        (["running"], ["cancelled"]),
        _finish_all,
    ),
    "jobs.requeue": Operation(
        _running,
        lambda hf, job: hf.jobs.requeue(job.job_id, token=job.token),
        _statuses,
        (["running"], ["pending"]),
        _finish_all,
    ),
    "jobs.retry": Operation(
        _fail,
        lambda hf, job: hf.jobs.retry(job.job_id),
        _statuses,
        (["error"], ["pending"]),
        _finish_all,
    ),
    "jobs.reap": Operation(
        _running, lambda hf, _: hf.jobs.reap(), _statuses, (["running"],), _finish_all
    ),
    "network.register_host": Operation(
        _nothing, lambda hf, _: _host(hf), _hosts, ([], ["h1"]), _no_host
    ),
    "network.acquire_source_host_lease": Operation(
        _host,
        lambda hf, _: hf.network.acquire_source_host_lease("run", "h1", "quick", R1),
        lambda hf: hf.network.get_host_lease_count("h1"),
        (0, 1),
        _no_host,
    ),
    "network.release_source_host_lease": Operation(
        _lease,
        lambda hf, _: hf.network.release_source_host_lease("run", "h1"),
        lambda hf: hf.network.get_host_lease_count("h1"),
        (0, 1),
        _no_host,
    ),
    "network.acquire_neighbor_lease": Operation(
        _host,
        lambda hf, _: hf.network.acquire_neighbor_lease("run", "h1", "10.0.0.9"),
        lambda hf: len(hf.network.list_neighbor_leases()),
        (0, 1),
        _no_host,
    ),
    "network.router_lock": Operation(_nothing, _router, _holder_of_r1, (None, HERE), _free_r1),
    "agents.publish": Operation(
        _nothing, lambda hf, _: _published(hf), _agents, ([], ["HOLDFAST-claude-a"]), _no_agent
    ),
    "agents.refresh": Operation(
        _published,
        lambda hf, agent: hf.agents.refresh(agent.agent_id, agent.generation_id),
        _agents,
        (["HOLDFAST-claude-a"],),
        _no_agent,
    ),
    "agents.remove": Operation(
        _published,
        lambda hf, agent: hf.agents.remove(agent.agent_id, agent.generation_id),
        _agents,
        ([], ["HOLDFAST-claude-a"]),
        _no_agent,
    ),
    "workflows.register": Operation(
        _nothing,
        lambda hf, _: _workflow(hf),
        _workflows,
        ([[], False], [["tune"], False]),
        _no_workflow,
    ),
    "workflows.release": Operation(
        _workflow,
        lambda hf, made: hf.workflows.release("tune", made.workflow.token),
        _workflows,
        ([[], False], [["tune"], False]),
        _no_workflow,
    ),
    "workflows.running": Operation(
        _nothing, _work, _workflows, ([[], False], [["tune"], False]), _no_workflow
    ),
    "workflows.swap": Operation(
        _nothing, _swap, _workflows, ([[], False], [[], True]), _no_workflow
    ),
    "log.prune": Operation(
        registered,
        lambda hf, _: hf.log.prune(keep_entries=10),
        _statuses,
        (["pending"],),
        _finish_all,
    ),
    "reads": Operation(registered, _read_everything, _statuses, (["pending"],), _finish_all),
}
