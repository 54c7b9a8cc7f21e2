"""The table of the surfaces is whole: every operation of the server, and every public call of the
library.
"""

import inspect
from collections.abc import Iterator

from holdfast.adapters.gateway_client import GatewayClient
from holdfast.domains.agents import Agents
from holdfast.domains.jobs import Jobs
from holdfast.domains.jobs.event_stream import JobEvents
from holdfast.domains.network import Registry
from holdfast.domains.workflows import Workflows
from holdfast.operations import all_operations
from holdfast.primitives.holds import Holds
from holdfast.primitives.journal import Journal
from holdfast.primitives.locks import Locks
from tests.surfaces.parity_cases import TABLE

CLASSES = (Agents, GatewayClient, Holds, JobEvents, Jobs, Journal, Locks, Registry, Workflows)

SERVED = {
    "Agents.cleanup": "agents.cleanup",
    "Agents.control_target": "agents.control_target",
    "Agents.get": "agents.get",
    "Agents.list_agents": "agents.list",
    "Agents.liveness": "agents.get",
    "Agents.publish": "agents.publish",
    "Agents.refresh": "agents.refresh",
    "Agents.remove": "agents.remove",
    "Agents.resolve": "agents.resolve",
    "Agents.resolve_live_agent_record": "agents.resolve",
    "GatewayClient.cancel": "gateways.cancel",
    "GatewayClient.detach": "gateways.detach",
    "GatewayClient.interrupt": "gateways.interrupt",
    "GatewayClient.prompt": "gateways.prompt",
    "GatewayClient.prune": "gateways.prune",
    "GatewayClient.questions": "questions.of_agent",
    "GatewayClient.reconcile": "gateways.reconcile",
    "GatewayClient.reply": "questions.answer",
    "GatewayClient.request": "gateways.request",
    "GatewayClient.requests": "gateways.requests",
    "GatewayClient.status": "gateways.status",
    "Holds.count": "holds.holders",
    "Holds.drop": "holds.drop",
    "Holds.holders": "holds.holders",
    "Holds.subjects": "holds.list",
    "Holds.sweep": "holds.sweep",
    "Holds.take": "holds.take",
    "JobEvents.answer": "questions.answer",
    "JobEvents.of_job": "jobs.events",
    "JobEvents.publish": "jobs.publish",
    "JobEvents.sent": "jobs.send",
    "JobEvents.unsent": "jobs.send",
    "JobEvents.waiting": "questions.list",
    "Jobs.cancel": "jobs.cancel",
    "Jobs.finish_and_pick": "jobs.finish_and_pick",
    "Jobs.get_job": "jobs.get",
    "Jobs.heartbeat": "jobs.heartbeat",
    "Jobs.list_jobs": "jobs.list",
    "Jobs.peek": "jobs.get",
    "Jobs.pick_pending": "jobs.pick",
    "Jobs.prune": "jobs.prune",
    "Jobs.reap": "jobs.reap",
    "Jobs.register_job": "jobs.register",
    "Jobs.requeue": "jobs.requeue",
    "Jobs.retry": "jobs.retry",
    "Jobs.retry_all": "jobs.retry_all",
    "Jobs.update_status": "jobs.status",
    "Journal.chosen": "log.read",
    "Journal.prune": "log.prune",
    "Journal.since": "log.read",
    "Journal.tail": "log.read",
    "Locks.acquire": "locks.acquire",
    "Locks.check_token": "locks.check_token",
    "Locks.explain": "locks.explain",
    "Locks.free": "locks.free",
    "Locks.graph": "locks.graph",
    "Locks.kick": "locks.kick",
    "Locks.list_held": "locks.list",
    "Locks.release_token": "locks.release",
    "Locks.renew_token": "locks.renew",
    "Locks.statistics": "locks.statistics",
    "Locks.status": "locks.status",
    "Locks.try_acquire": "locks.acquire",
    "Locks.wait": "locks.wait",
    "Locks.wait_free": "locks.wait",
    "Registry.acquire_all_router_locks_atomic": "network.lock_routers",
    "Registry.acquire_neighbor_lease": "network.take_neighbor",
    "Registry.acquire_router_lock": "network.lock_routers",
    "Registry.acquire_source_host_lease": "network.take_leases",
    "Registry.acquire_source_host_leases": "network.take_leases",
    "Registry.check_and_register_host": "network.add_host",
    "Registry.counts": "network.counts",
    "Registry.get_host": "network.get_host",
    "Registry.get_host_info": "network.get_host",
    "Registry.get_host_lease_count": "network.list_leases",
    "Registry.is_router_locked": "locks.status",
    "Registry.lease_hosts": "network.take_leases",
    "Registry.list_all_hosts": "network.list_hosts",
    "Registry.list_host_leases": "network.list_leases",
    "Registry.list_neighbor_leases": "network.list_neighbors",
    "Registry.lock_routers": "network.lock_routers",
    "Registry.register_host": "network.add_host",
    "Registry.register_hosts": "network.add_hosts",
    "Registry.release_all_router_locks": "network.unlock_routers",
    "Registry.release_neighbor_lease": "network.drop_neighbor",
    "Registry.release_router_lock": "network.unlock_routers",
    "Registry.release_source_host_lease": "network.drop_lease",
    "Registry.remove_host": "network.remove_host",
    "Registry.router_statistics": "locks.statistics",
    "Registry.router_status": "locks.status",
    "Registry.sweep": "network.sweep",
    "Registry.unlock_routers": "network.unlock_routers",
    "Registry.unregister_host": "network.remove_host",
    "Registry.wait_for_all_routers": "network.wait_for_routers",
    "Registry.wait_for_router": "network.wait_for_routers",
    "Registry.wait_routers_free": "network.wait_for_routers",
    "Workflows.clear_preempt_signal": "workflows.yield",
    "Workflows.get": "workflows.get",
    "Workflows.list_workflows": "workflows.list",
    "Workflows.preempt_requested": "workflows.preempt_requested",
    "Workflows.reconcile_swap_marker": "workflows.swap_reconcile",
    "Workflows.register": "workflows.register",
    "Workflows.release": "workflows.release",
    "Workflows.renew": "workflows.renew",
    "Workflows.request_preempt": "workflows.preempt",
    "Workflows.swap_log": "workflows.swap_log",
    "Workflows.swap_status": "workflows.swap_status",
    "Workflows.sweep": "workflows.sweep",
}
"""Which operation of the server a call of the library is."""

_MEASURED = "for /metrics and the doctor, which tell it"
_SHOWN = "a part of what the page reads, at /v1/overview and below it"

NOT_SERVED = {
    "Agents.attach_gateway": "a gateway writes down itself where it listens",
    "Agents.clear_after": "a take-over on this machine, and cleanup, do it themselves",
    "Agents.count": _SHOWN,
    "Agents.in_tmux_session": _SHOWN,
    "Agents.last_run": "a part of `agents.get`, `logs` and `restart`",
    "Agents.last_runs": "a part of `agents.list`",
    "Agents.note_end": "the process that runs an agent keeps it itself",
    "Agents.note_run": "the process that runs an agent keeps it itself",
    "Agents.page": _SHOWN,
    "GatewayClient.answers": "asked before the token is sent",
    "GatewayClient.events": "the gateway's own stream; the server's is /v1/events",
    "Holds.close": "the end of a connection",
    "JobEvents.answer_to": "for the worker that asked; others read it among the events",
    "JobEvents.receive": "for subscribers of the broker",
    "JobEvents.unsent_count": _MEASURED,
    "JobEvents.sendable": _MEASURED,
    "JobEvents.unsent_pages": "the same as `unsent`, page by page",
    "JobEvents.ended_by_event": "for the process that runs the command of a job: a worker",
    "JobEvents.with_step": "a part of another call, in its transaction",
    "Jobs.abandoned": _MEASURED,
    "Jobs.survivors": "processes of the caller's machine",
    "Jobs.unpickable": _MEASURED,
    "Jobs.counts": _SHOWN,
    "Jobs.work": "a worker is a process",
    "Jobs.next_seq": "a number that `publish` takes by itself",
    "Journal.append": "domains tell of their changes themselves",
    "Journal.follow": "a stream: /v1/events",
    "Journal.lag": _MEASURED,
    "Journal.oldest": _MEASURED,
    "Journal.trim": "a part of another transaction",
    "Locks.abandon": "of a grant in hand, which a client has not: release_token",
    "Locks.check": "of a grant in hand, which a client has not: check_token",
    "Locks.clear_unread": "done in the background",
    "Locks.close": "the end of a connection",
    "Locks.contention": _SHOWN,
    "Locks.counts": _SHOWN,
    "Locks.hold": "for a block of code",
    "Locks.leave": "for a block of code",
    "Locks.obstruction": "an `acquire` that times out tells it, and so does `explain`",
    "Locks.page": _SHOWN,
    "Locks.release": "of a grant in hand, which a client has not: release_token",
    "Locks.renew": "of a grant in hand, which a client has not: renew_token",
    "Locks.resume": "of a grant that an earlier program of this process had in hand",
    "Locks.suspend": "of a grant in hand, for the next program of this process",
    "Registry.all_router_locks": "for a block of code",
    "Registry.close": "the end of a connection",
    "Registry.router_lock": "for a block of code",
    "Workflows.orphan_load": "names processes of the machine that asks",
    "Workflows.running": "for a block of code",
    "Workflows.snapshot": _MEASURED,
    "Workflows.swap": (
        "for a block of code, by a process that can be seen to die: docs/decisions/0022"
    ),
    "Workflows.swap_log_lag": _MEASURED,
}
"""Which calls of the library are no operation of the server, and why."""

NEVER_REFUSED = {
    "gateways.list",
    "holds.list",
    "holds.sweep",
    "jobs.reap",
    "locks.graph",
    "locks.list",
    "locks.statistics",
    "log.prune",
    "network.counts",
    "network.list_hosts",
    "network.list_leases",
    "network.list_neighbors",
    "network.sweep",
    "questions.list",
    "store.info",
    "workflows.list",
    "workflows.swap_log",
    "workflows.swap_reconcile",
    "workflows.swap_status",
    "workflows.sweep",
}
"""Operations that nothing in the store's state makes fail."""


def _calls() -> Iterator[str]:
    for kind in CLASSES:
        for name, _ in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_"):
                yield f"{kind.__name__}.{name}"


def test_every_public_call_of_the_library_is_served_or_has_a_reason_not_to_be() -> None:
    assert sorted(_calls()) == sorted([*SERVED, *NOT_SERVED])
    assert set(SERVED.values()) <= {operation.name for operation in all_operations()}


def test_every_operation_is_in_the_table_with_its_result_and_its_error() -> None:
    names = [operation.name for operation in all_operations()]
    assert len(set(names)) == len(names)
    assert {case.operation for case in TABLE if case.code is None} == set(names)
    refused = {case.operation for case in TABLE if case.code is not None or case.exit}
    assert refused | NEVER_REFUSED == set(names)
    assert not refused & NEVER_REFUSED


def test_every_operation_and_request_is_documented() -> None:
    for operation in all_operations():
        assert (operation.description).strip(), operation.name
        assert (operation.request.__doc__ or "").strip(), operation.name
