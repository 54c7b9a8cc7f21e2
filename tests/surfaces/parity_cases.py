"""The table of the surfaces: every operation with a case that succeeds and its most telling error."""

import contextlib
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from holdfast.adapters.event_sender import EventSender
from holdfast.adapters.gateway_folder import GatewayFolder
from holdfast.adapters.tmux import Tmux
from holdfast.domains.agents import Agent, GatewayAddress
from holdfast.domains.agents import manifest as manifests
from holdfast.domains.agents.manifest import Manifest, TmuxHandle
from holdfast.domains.agents.runs import AgentRun, LaunchChoices, RestartedAgent
from holdfast.domains.jobs import Broker, Job
from holdfast.domains.jobs.events import EventKind
from holdfast.domains.workflows.records import Phase, SwapMarker
from holdfast.domains.workflows.wire import ONLY, SWAP_MARKER
from holdfast.kernel import clock
from holdfast.kernel.agent_adapter import TmuxAdapter
from holdfast.kernel.errors import STATUS, Fenced, HoldfastError, LeaseLost, NotFound
from holdfast.kernel.holder import Holder
from holdfast.runtime.agent_restart import restart_agent
from holdfast.runtime.agent_screen import screen_of
from holdfast.runtime.agent_stop import stop_agent
from holdfast.runtime.configuration import gateway_root
from holdfast.runtime.connection import Holdfast
from holdfast.runtime.maintenance import Upkeep
from tests.surfaces import library_views as views
from tests.surfaces.gateway_http import Served, aged
from tests.surfaces.locking import a_dead_process
from tests.surfaces.parity import Case, Facts

ME = os.getpid()
NOBODY = 2**22 + 7
"""Beyond what Linux gives out."""
AWAY = Broker(host="127.0.0.1", port=1)
DEAD = cache(a_dead_process)
"""The same dead process in each namespace, so that the results are equal."""


# --- states ---


def a_job(hf: Holdfast, n: str, **more: Any) -> Facts:
    hf.jobs.register_job(
        "say hello", agent="agent", agent_session=f"tmux:{n}", job_id=f"job-{n}", **more
    )
    return {}


def a_running_job(hf: Holdfast, n: str) -> Facts:
    a_job(hf, n)
    return {"token": _picked(hf, n).token}


def two_jobs(hf: Holdfast, n: str) -> Facts:
    a_job(hf, n)
    hf.jobs.register_job("and more", agent="agent", agent_session=f"tmux:{n}", job_id=f"next-{n}")
    return {"token": _picked(hf, n).token}


def a_failed_job(hf: Holdfast, n: str) -> Facts:
    facts = a_running_job(hf, n)
    hf.jobs.update_status(f"job-{n}", "error", token=facts["token"], error="no disk")
    return facts


def a_job_taken_away(hf: Holdfast, n: str) -> Facts:
    facts = a_running_job(hf, n)
    hf.jobs.cancel(f"job-{n}", reason="too late")
    return facts


def a_job_with_a_late_result(hf: Holdfast, n: str) -> Facts:
    facts = a_job_taken_away(hf, n)
    with contextlib.suppress(Fenced):
        hf.jobs.update_status(f"job-{n}", "completed", token=facts["token"], result="42")
    return facts


def an_ended_job(hf: Holdfast, n: str) -> Facts:
    a_job(hf, n)
    hf.jobs.cancel(f"job-{n}")
    return {}


def a_job_in_error(hf: Holdfast, n: str) -> Facts:
    hf.jobs.update_status(
        f"job-{n}", "error", token=a_running_job(hf, n)["token"], error="it burns"
    )
    return {}


def an_unsent_event(hf: Holdfast, n: str) -> Facts:
    a_job(hf, n, broker=AWAY)
    hf.job_events.publish(f"job-{n}", "progress", detail="half")
    return {}


def a_sendable_event(hf: Holdfast, n: str) -> Facts:
    """One unsent event, whose broker answers."""
    hf.job_events.sent([unsent.event for unsent in hf.job_events.unsent()])
    a_broker(hf, n)
    hf.job_events.publish(f"job-{n}", "progress", detail="half")
    return {}


def a_job_of_a_dead_worker(hf: Holdfast, n: str) -> Facts:
    a_job(hf, n)
    assert hf.jobs.pick_pending(f"tmux:{n}", holder=DEAD())
    return {}


def a_job_whose_broker_is_away(hf: Holdfast, n: str) -> Facts:
    return a_job(hf, n, broker=AWAY)


def _picked(hf: Holdfast, n: str) -> Job:
    job = hf.jobs.pick_pending(f"tmux:{n}")
    assert job is not None
    return job


def a_lock(hf: Holdfast, n: str) -> Facts:
    grant = hf.locks.acquire(
        [f"/dev/lock-{n}", f"lock-{n}"], by=f"holder-{n}", ttl_s=600, process=None
    )
    return {"token": grant.token}


def a_lost_lock(hf: Holdfast, n: str) -> Facts:
    facts = a_lock(hf, n)
    hf.locks.kick(f"lock-{n}", why="it hangs")
    hf.locks.statistics()
    return facts


def a_hold(hf: Holdfast, n: str) -> Facts:
    hf.holds.take(f"subject-{n}", by="one", process=None, ttl_s=600)
    return {}


def a_dead_hold(hf: Holdfast, n: str) -> Facts:
    hf.holds.take(f"subject-{n}", by="killed", process=DEAD())
    return {}


def an_agent(hf: Holdfast, n: str) -> Facts:
    return _facts(_published(hf, n))


def _facts(agent: Agent) -> Facts:
    return {"id": agent.agent_id, "token": agent.token, "generation": agent.generation_id}


def _published(hf: Holdfast, n: str, **more: Any) -> Agent:
    said: dict[str, Any] = {
        "backend": "claude_headless",
        "tool": "claude",
        "manifest_path": f"/nosuch/{n}.json",
        "session_name": f"session-{n}",
        "generation_id": f"first-{n}",
        **more,
    }
    return hf.agents.publish(f"agent-{n}", **said)


def an_agent_in_tmux(hf: Holdfast, n: str) -> Facts:
    return _with_a_manifest(hf, n, hf.processes.of(_pane(n)))


def an_agent_beside_its_tmux_session(hf: Holdfast, n: str) -> Facts:
    _pane(n)
    return _with_a_manifest(hf, n, hf.processes.current())


def an_agent_whose_tmux_session_is_gone(hf: Holdfast, n: str) -> Facts:
    return _with_a_manifest(hf, n, hf.processes.current())


def an_agent_of_another_generation(hf: Holdfast, n: str) -> Facts:
    return _with_a_manifest(hf, n, hf.processes.of(_pane(n)), generation_id="earlier")


def _pane(n: str) -> int:
    """The process of a tmux session of that row, begun by whichever surface comes first."""
    if not Tmux().panes(f"session-{n}"):
        return Tmux().start(f"session-{n}", ["sleep", "600"], folder="/", environment={}).pid
    [pid] = Tmux().panes(f"session-{n}") or []
    return pid


def _restarted(hf: Holdfast, agent: str) -> RestartedAgent:
    return restart_agent(hf, agent, fresh=False, conversation=None, grace_s=1, watch_s=0)


def a_dead_agent(hf: Holdfast, n: str) -> Facts:
    """One whose process has ended, and whose record nobody has removed."""
    program = subprocess.Popen(["sleep", "600"])
    holder = hf.processes.of(program.pid)
    program.kill()
    program.wait()
    return _facts(_published(hf, n, holder=holder))


def an_ended_agent(hf: Holdfast, n: str) -> Facts:
    """One of which only is kept how it was started: in a tmux session of its namespace."""
    agent = _published(hf, n, session_name=f"session-{hf.store.namespace}-{n}")
    hf.agents.remove(agent.agent_id, agent.generation_id)
    command, choices = ("sleep", "600"), LaunchChoices(tool="generic")
    hf.agents.note_run(
        AgentRun(
            agent=agent, command=command, working_directory="/", choices=choices, own_session=True
        )
    )
    return _facts(agent)


def _with_a_manifest(hf: Holdfast, n: str, holder: Holder, **more: str) -> Facts:
    folder = Path(hf.settings.gateway_root or "", hf.store.namespace)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{n}.json"
    agent = _published(hf, n, manifest_path=str(path), holder=holder)
    said = Manifest(
        agent_id=agent.agent_id,
        agent_name=agent.agent_name,
        generation_id=more.get("generation_id", agent.generation_id),
        backend="claude_headless",
        tool="claude",
        working_directory="/",
        adapter=TmuxAdapter(),
        tmux=TmuxHandle(session_name=f"session-{n}"),
    )
    path.write_bytes(manifests.as_json(said))
    return _facts(agent)


def a_host(hf: Holdfast, n: str) -> Facts:
    number = int(n)
    ip, mac = (
        f"10.1.{number >> 8}.{number & 255}",
        f"02:00:00:00:{number >> 8:02x}:{number & 255:02x}",
    )
    hf.network.register_host(f"host-{n}", ip, f"router-{n}", mac, {"rack": "7"})
    return {"ip": ip, "mac": mac}


def a_leased_host(hf: Holdfast, n: str) -> Facts:
    facts = a_host(hf, n)
    hf.network.acquire_source_host_lease(
        f"run-{n}", f"host-{n}", "quick", f"router-{n}", pid=None, ttl_s=600
    )
    return facts


def a_host_whose_router_is_locked(hf: Holdfast, n: str) -> Facts:
    hf.network.acquire_router_lock(f"router-{n}", "another", ttl_s=600, pid=None)
    return a_host(hf, n)


def a_leased_neighbor(hf: Holdfast, n: str) -> Facts:
    hf.network.acquire_neighbor_lease(f"run-{n}", f"host-{n}", "10.9.9.9", pid=None, ttl_s=600)
    return {}


def a_locked_router(hf: Holdfast, n: str) -> Facts:
    hf.network.acquire_router_lock(f"router-{n}", f"run-{n}", ttl_s=600, pid=None)
    return {}


def dead_leases(hf: Holdfast, n: str) -> Facts:
    a_host(hf, n)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as run:
        hf.network.acquire_source_host_lease(
            f"run-{n}", f"host-{n}", "quick", f"router-{n}", pid=run.pid
        )
        hf.network.acquire_neighbor_lease(f"run-{n}", f"host-{n}", "10.9.9.9", pid=run.pid)
    return {}


def a_dead_workflow(hf: Holdfast, n: str) -> Facts:
    hf.workflows.register(f"flow-{n}", "llama", owner=DEAD())
    return {}


def a_dead_swap(hf: Holdfast, n: str) -> Facts:
    marker = SwapMarker(
        recipe="qwen", holder=DEAD(), begun_at=hf.store.now(), token=0, phase=Phase.WAITING
    )
    hf.store.transact(lambda tx: tx.put(SWAP_MARKER, ONLY, marker), scope=[SWAP_MARKER])
    return {}


def a_workflow(hf: Holdfast, n: str) -> Facts:
    return {
        "token": hf.workflows.register(
            f"flow-{n}", "llama", ttl_s=600, preemptible=True
        ).workflow.token
    }


def no_workflows(hf: Holdfast) -> None:
    """End what other cases left, which a swap would wait for."""
    for workflow in hf.workflows.list_workflows():
        hf.workflows.release(workflow.name, workflow.token)


def a_loaded_recipe(hf: Holdfast, n: str) -> Facts:
    no_workflows(hf)
    with hf.workflows.swap(f"recipe-{n}"):
        pass
    return {}


def a_failed_load(hf: Holdfast, n: str) -> Facts:
    no_workflows(hf)
    hf.workflows.swap(f"recipe-{n}").__enter__().fail("exit status 9", exit_status=9)
    return {}


def an_asked_workflow(hf: Holdfast, n: str) -> Facts:
    facts = a_workflow(hf, n)
    hf.workflows.request_preempt(f"flow-{n}")
    return facts


def a_firm_workflow(hf: Holdfast, n: str) -> Facts:
    return {"token": hf.workflows.register(f"flow-{n}", "llama", ttl_s=600).workflow.token}


GATEWAYS: dict[str, Served] = {}
"""The gateway of the agent gpu in each namespace, while they are served."""


def a_request(hf: Holdfast, n: str) -> Facts:
    return {
        "request": hf.gateway("gpu").prompt(f"prompt {n}", idempotency_key=f"key-{n}")["request_id"]
    }


def an_ended_request(hf: Holdfast, n: str) -> Facts:
    facts = a_request(hf, n)
    hf.gateway("gpu").cancel(facts["request"])
    return facts


def an_old_request(hf: Holdfast, n: str) -> Facts:
    facts = an_ended_request(hf, n)
    aged(GATEWAYS[hf.store.namespace].store, "gpu", facts["request"])
    return facts


def a_replaced_agent(hf: Holdfast, n: str) -> Facts:
    facts = a_request(hf, n)
    GATEWAYS[hf.store.namespace].agent.instance_id = f"instance-{n}"
    GATEWAYS[hf.store.namespace].gateway.look()
    status = hf.gateway("gpu").status()
    assert status["request_admission"] == "blocked_reconciliation"
    return {**facts, "epoch": status["managed_agent_instance_epoch"]}


def a_question(hf: Holdfast, n: str, **more: Any) -> Facts:
    gate = GATEWAYS[hf.store.namespace]
    gate.agent.questions = ()
    gate.agent.asks(f"q-{n}", **more)
    gate.gateway.look()
    GatewayFolder(gateway_root(hf.settings, "gpu")).write_state(gate.gateway.status())
    return {}


def a_strict_question(hf: Holdfast, n: str) -> Facts:
    return a_question(hf, n, free_text=False)


def an_asking_agent(hf: Holdfast, n: str) -> Facts:
    a_question(hf, n)
    agent = _published(hf, n, holder=hf.processes.current())
    gate = GATEWAYS[hf.store.namespace]
    where = GatewayAddress(
        host="127.0.0.1",
        port=gate.port,
        state_path=str(gateway_root(hf.settings, "gpu") / "state.json"),
        protocol_version="v1",
    )
    hf.agents.attach_gateway(agent.agent_id, agent.generation_id, where)
    return _facts(agent)


def a_waiting_job(hf: Holdfast, n: str) -> Facts:
    facts = a_running_job(hf, n)
    hf.job_events.publish(
        f"job-{n}", "permission_required", detail="flash it?", token=facts["token"]
    )
    return facts


def an_answered_job(hf: Holdfast, n: str) -> Facts:
    facts = a_waiting_job(hf, n)
    hf.job_events.answer(f"job-{n}", 1, "deny", by="tester")
    return facts


def reconciled(hf: Holdfast, n: str) -> Facts:
    facts = a_replaced_agent(hf, n)
    hf.gateway("gpu").reconcile("discard", epoch=facts["epoch"])
    return facts


def a_broker(hf: Holdfast, n: str) -> Facts:
    """A job whose broker answers."""
    return a_job(hf, n, broker=Broker(host="127.0.0.1", port=int(os.environ["PARITY_BROKER_PORT"])))


# --- the table ---


def _check_token(hf: Holdfast, f: Any) -> Facts:
    hf.check_token(f"lock-{f.n}", f.token)
    return {"resource": f"lock-{f.n}", "token": f.token, "in_force": True}


def _remove_agent(hf: Holdfast, f: Any) -> Facts:
    hf.agents.remove(f.id, f.generation)
    return {"removed": f.id, "generation_id": f.generation}


def _add_host(hf: Holdfast, f: Any) -> object:
    hf.network.register_host(
        f"new-{f.n}",
        f"10.2.0.{f.n}/16",
        f"router-{f.n}",
        f"02:00:00:01:00:{f.hex}",
        {"a": "b"},
    )
    return views.host_added(hf, f"new-{f.n}")


JOBS = [
    Case(
        "jobs.register",
        lambda hf, f: views.job_view(
            hf.jobs.register_job(
                "say hello",
                agent="agent",
                agent_session="s",
                job_id=f"new-{f.n}",
                priority=3,
                signed=False,
                workdir="/",
            )
        ),
        "jobs register --prompt 'say hello' --agent-session s --id new-{n} --priority 3 "
        "--unsigned --workdir / --json",
        {
            "prompt": "say hello",
            "agent_session": "s",
            "job_id": "new-{n}",
            "priority": 3,
            "signed": False,
            "workdir": "/",
        },
    ),
    Case(
        "jobs.register",
        lambda hf, f: hf.jobs.register_job(
            "x", agent="agent", agent_session="s", job_id=f"job-{f.n}"
        ),
        "jobs register --prompt x --agent-session s --id job-{n} --json",
        {"prompt": "x", "agent_session": "s", "job_id": "job-{n}"},
        a_job,
        "collision",
    ),
    Case(
        "jobs.pick",
        lambda hf, f: views.job_view(_picked(hf, f.n)),
        "jobs pick --agent-session tmux:{n} --json",
        {"agent_session": "tmux:{n}"},
        a_job,
    ),
    Case(
        "jobs.pick",
        lambda hf, f: hf.jobs.pick_pending("nobody's", wait_s=0.01),
        'jobs pick --agent-session "nobody\'s" --wait 0.01 --json',
        {"agent_session": "nobody's", "wait_s": 0.01},
    ),
    Case(
        "jobs.pick",
        lambda hf, f: hf.jobs.pick_pending(f"tmux:{f.n}", holder=hf.processes.of(NOBODY)),
        f"jobs pick --agent-session tmux:{{n}} --pid {NOBODY} --json",
        {"agent_session": "tmux:{n}", "pid": NOBODY},
        a_job,
        "not_found",
    ),
    Case(
        "jobs.status",
        lambda hf, f: views.job_view(
            hf.jobs.update_status(f"job-{f.n}", "completed", token=f.token, result="42")
        ),
        "jobs status --job job-{n} --set completed --token {token} --result 42 --json",
        {"job_id": "job-{n}", "status": "completed", "token": "{token}", "result": "42"},
        a_running_job,
    ),
    Case(
        "jobs.status",
        lambda hf, f: hf.jobs.update_status(f"job-{f.n}", "completed", token=7),
        "jobs status --job job-{n} --set completed --token 7 --json",
        {"job_id": "job-{n}", "status": "completed", "token": 7},
        a_running_job,
        "fenced",
    ),
    Case(
        "jobs.finish_and_pick",
        lambda hf, f: _finished(
            hf.jobs.finish_and_pick(f"job-{f.n}", "completed", token=f.token, result="42")
        ),
        None,
        {"job_id": "job-{n}", "status": "completed", "token": "{token}", "result": "42"},
        two_jobs,
    ),
    Case(
        "jobs.finish_and_pick",
        lambda hf, f: hf.jobs.finish_and_pick(f"job-{f.n}", "completed", token=7),
        None,
        {"job_id": "job-{n}", "status": "completed", "token": 7},
        a_running_job,
        "fenced",
    ),
    Case(
        "jobs.report",
        lambda hf, f: views.job_view(
            hf.jobs.update_status(
                f"job-{f.n}",
                "completed",
                token=f.token,
                result="42",
                also=hf.job_events.with_step(EventKind.COMPLETED, detail="42"),
            )
        ),
        None,
        {"job_id": "job-{n}", "outcome": "completed", "detail": "42", "token": "{token}"},
        a_running_job,
    ),
    Case(
        "jobs.report",
        lambda hf, f: views.job_view(hf.jobs.requeue(f"job-{f.n}", token=f.token)),
        None,
        {"job_id": "job-{n}", "outcome": "give_back", "token": "{token}"},
        a_running_job,
    ),
    Case(
        "jobs.report",
        lambda hf, f: hf.jobs.update_status(f"job-{f.n}", "completed", token=f.token),
        None,
        {"job_id": "job-{n}", "outcome": "completed", "token": "{token}"},
        a_job_taken_away,
        "fenced",
    ),
    Case(
        "jobs.cancel",
        lambda hf, f: views.job_view(hf.jobs.cancel(f"job-{f.n}", reason="too late")),
        "jobs cancel --job job-{n} --reason 'too late' --json",
        {"job_id": "job-{n}", "reason": "too late"},
        a_running_job,
    ),
    Case(
        "jobs.cancel",
        lambda hf, f: views.job_view(hf.jobs.cancel(f"job-{f.n}", reason="seen")),
        "jobs cancel --job job-{n} --reason seen --json",
        {"job_id": "job-{n}", "reason": "seen"},
        a_job_in_error,
    ),
    Case(
        "jobs.cancel",
        lambda hf, f: hf.jobs.cancel(f"job-{f.n}"),
        "jobs cancel --job job-{n} --json",
        {"job_id": "job-{n}"},
        an_ended_job,
        "impossible_transition",
    ),
    Case(
        "jobs.requeue",
        lambda hf, f: views.job_view(hf.jobs.requeue(f"job-{f.n}", token=f.token)),
        "jobs requeue --job job-{n} --token {token} --json",
        {"job_id": "job-{n}", "token": "{token}"},
        a_running_job,
    ),
    Case(
        "jobs.requeue",
        lambda hf, f: hf.jobs.requeue(f"nosuch-{f.n}"),
        "jobs requeue --job nosuch-{n} --json",
        {"job_id": "nosuch-{n}"},
        code="not_found",
    ),
    Case(
        "jobs.retry",
        lambda hf, f: views.job_view(hf.jobs.retry(f"job-{f.n}")),
        "jobs retry job-{n} --json",
        {"job_id": "job-{n}"},
        a_failed_job,
        alone=True,
    ),
    Case(
        "jobs.retry",
        lambda hf, f: hf.jobs.retry(f"job-{f.n}"),
        "jobs retry job-{n} --json",
        {"job_id": "job-{n}"},
        a_running_job,
        "impossible_transition",
    ),
    Case(
        "jobs.retry_all",
        lambda hf, f: [
            views.job_view(job) for job in hf.jobs.retry_all(agent_session=f"tmux:{f.n}")
        ],
        "jobs retry --status error --agent-session tmux:{n} --json",
        {"agent_session": "tmux:{n}"},
        a_failed_job,
    ),
    Case(
        "jobs.retry_all",
        lambda hf, f: hf.jobs.retry_all(status="completed"),
        "jobs retry --status completed --json",
        {"status": "completed"},
        code="invalid_value",
        same_words=False,
    ),
    Case(
        "jobs.status",
        lambda hf, f: hf.jobs.update_status(f"job-{f.n}", "completed", token=f.token, result="42"),
        "jobs status --job job-{n} --set completed --token {token} --result 42 --json",
        {"job_id": "job-{n}", "status": "completed", "token": "{token}", "result": "42"},
        a_job_taken_away,
        "fenced",
    ),
    Case(
        "jobs.get",
        lambda hf, f: views.job_view(hf.jobs.get_job(f"job-{f.n}")),
        "jobs get --job job-{n} --json",
        {"job_id": "job-{n}"},
        a_job_with_a_late_result,
    ),
    Case(
        "jobs.heartbeat",
        lambda hf, f: views.job_view(hf.jobs.heartbeat(f"job-{f.n}", token=f.token)),
        "jobs heartbeat --job job-{n} --token {token} --json",
        {"job_id": "job-{n}", "token": "{token}"},
        a_running_job,
    ),
    Case(
        "jobs.heartbeat",
        lambda hf, f: hf.jobs.heartbeat(f"job-{f.n}", token=7),
        "jobs heartbeat --job job-{n} --token 7 --json",
        {"job_id": "job-{n}", "token": 7},
        a_running_job,
        "fenced",
    ),
    Case(
        "jobs.list",
        lambda hf, f: [
            views.job_view(job)
            for job in hf.jobs.list_jobs(status="running", agent_session=f"tmux:{f.n}")
        ],
        "jobs list --status running --agent-session tmux:{n} --json",
        {"status": "running", "agent_session": "tmux:{n}"},
        a_running_job,
    ),
    Case(
        "jobs.list",
        lambda hf, f: hf.jobs.list_jobs(status="asleep"),
        "jobs list --status asleep --json",
        {"status": "asleep"},
        code="invalid_value",
        same_words=False,
    ),
    Case(
        "jobs.get",
        lambda hf, f: views.job_view(hf.jobs.get_job(f"job-{f.n}")),
        "jobs get --job job-{n} --json",
        {"job_id": "job-{n}"},
        a_running_job,
    ),
    Case(
        "jobs.get",
        lambda hf, f: hf.jobs.get_job("../etc"),
        "jobs get --job ../etc --json",
        {"job_id": "../etc"},
        code="invalid_name",
    ),
    Case(
        "jobs.log",
        lambda hf, f: views.job_log(hf, f"job-{f.n}")[-2:],
        "jobs logs job-{n} --tail 2 --json",
        {"job_id": "job-{n}", "tail": 2},
        two_jobs,
        lines=True,
    ),
    Case(
        "jobs.log",
        lambda hf, f: unless_empty(views.job_log(hf, f"nosuch-{f.n}"), NotFound),
        "jobs logs nosuch-{n} --json",
        {"job_id": "nosuch-{n}"},
        code="not_found",
        quiet=True,
    ),
    Case(
        "jobs.events",
        lambda hf, f: hf.job_events.of_job(f"job-{f.n}"),
        None,
        {"job_id": "job-{n}"},
        an_unsent_event,
    ),
    Case(
        "jobs.events",
        lambda hf, f: hf.jobs.get_job(f"nosuch-{f.n}"),
        None,
        {"job_id": "nosuch-{n}"},
        code="not_found",
    ),
    Case(
        "jobs.publish",
        lambda hf, f: _publish(hf, f"job-{f.n}", "progress"),
        "jobs publish job-{n} progress --detail half --json",
        {"job_id": "job-{n}", "event": "progress", "detail": "half"},
        a_job_whose_broker_is_away,
        "broker_unavailable",
        quiet=True,
    ),
    Case(
        "jobs.publish",
        lambda hf, f: _publish(hf, f"job-{f.n}", "progress"),
        "jobs publish job-{n} progress --detail half --json",
        {"job_id": "job-{n}", "event": "progress", "detail": "half"},
        a_broker,
    ),
    Case(
        "jobs.publish",
        lambda hf, f: hf.job_events.publish(f"job-{f.n}", "completed"),
        "jobs publish job-{n} completed --json",
        {"job_id": "job-{n}", "event": "completed"},
        an_ended_job,
        "impossible_transition",
    ),
    Case(
        "jobs.send",
        lambda hf, f: _send(hf),
        "jobs publish --unsent --json",
        {},
        an_unsent_event,
        "broker_unavailable",
        quiet=True,
    ),
    Case(
        "jobs.send",
        lambda hf, f: {"sent": _send(hf)},
        "jobs publish --unsent --json",
        {},
        a_sendable_event,
    ),
    Case(
        "jobs.reap",
        lambda hf, f: [views.job_view(job) for job in hf.jobs.reap()],
        "jobs reap --json",
        {},
        a_job_of_a_dead_worker,
    ),
    Case(
        "jobs.prune",
        lambda hf, f: {"removed": hf.jobs.prune(keep_finished=0)},
        "jobs prune --keep 0 --json",
        {"keep_finished": 0},
        an_ended_job,
    ),
    Case(
        "jobs.prune",
        lambda hf, f: hf.jobs.prune(keep_finished=-1),
        "jobs prune --keep -1 --json",
        {"keep_finished": -1},
        code="invalid_value",
        same_words=False,
    ),
]


def _finished(finished: Any) -> Any:
    return {"done": views.job_view(finished.done), "picked": views.job_view(finished.picked)}


def _publish(hf: Holdfast, job_id: str, event: str) -> Any:
    published = hf.job_events.publish(job_id, event, detail="half").event
    _send(hf, [job_id])
    return published


def _send(hf: Holdfast, job_ids: list[str] | None = None) -> int:
    with contextlib.closing(EventSender(hf.job_events)) as sender:
        return sender.send(job_ids)


def unless_empty(result: Any, error: type[HoldfastError]) -> Any:
    """A result of the library, or the error by which the surfaces report that it is empty."""
    if result:
        return result
    raise error("the library returned an empty result")


LOCKS = [
    Case(
        "locks.acquire",
        lambda hf, f: views.grant_view(
            hf.locks.acquire(
                [f"a-{f.n}", f"b-{f.n}"], by="job", mode="shared", ttl_s=60, process=None
            )
        ),
        "locks acquire a-{n} b-{n} --by job --shared --ttl 60 --json",
        {"names": ["a-{n}", "b-{n}"], "by": "job", "mode": "shared", "ttl_s": 60},
    ),
    Case(
        "locks.acquire",
        lambda hf, f: hf.locks.acquire(
            f"lock-{f.n}", by="late", timeout_s=0.05, ttl_s=60, process=None
        ),
        "locks acquire lock-{n} --by late --ttl 60 --timeout 0.05 --quiet --json",
        {"names": ["lock-{n}"], "by": "late", "timeout_s": 0.05, "ttl_s": 60},
        a_lock,
        "lock_timeout",
    ),
    Case(
        "locks.acquire",
        lambda hf, f: hf.locks.acquire(
            f"x-{f.n}", by="job", process=hf.processes.of(NOBODY), ttl_s=60
        ),
        f"locks acquire x-{{n}} --by job --pid {NOBODY} --ttl 60 --json",
        {"names": ["x-{n}"], "by": "job", "pid": NOBODY, "ttl_s": 60},
        code="not_found",
    ),
    Case(
        "locks.renew",
        lambda hf, f: views.renewed_view(hf.locks.renew_token(f.token, 900)),
        "locks renew {token} --ttl 900 --json",
        {"token": "{token}", "ttl_s": 900},
        a_lock,
    ),
    Case(
        "locks.renew",
        lambda hf, f: hf.locks.renew_token(f.token),
        "locks renew {token} --json",
        {"token": "{token}"},
        a_lost_lock,
        "lease_lost",
    ),
    Case(
        "locks.release",
        lambda hf, f: {"released": f.token if hf.locks.release_token(f.token) else None},
        "locks release {token} --json",
        {"token": "{token}"},
        a_lock,
    ),
    Case(
        "locks.release",
        lambda hf, f: unless_empty(hf.locks.release_token(f.token), LeaseLost),
        "locks release {token} --json",
        {"token": "{token}"},
        a_lost_lock,
        "lease_lost",
        quiet=True,
    ),
    Case(
        "locks.free",
        lambda hf, f: {"released": hf.locks.free([f"lock-{f.n}"], by=f"holder-{f.n}")},
        "locks release lock-{n} --by holder-{n} --json",
        {"names": ["lock-{n}"], "by": "holder-{n}"},
        a_lock,
    ),
    Case(
        "locks.free",
        lambda hf, f: unless_empty(hf.locks.free(f"lock-{f.n}", by="another"), NotFound),
        "locks release lock-{n} --by another --json",
        {"names": ["lock-{n}"], "by": "another"},
        a_lock,
        "not_found",
        quiet=True,
    ),
    Case(
        "locks.wait",
        lambda hf, f: views.free_view(hf.locks.wait_free(f"lock-{f.n}", by=f"holder-{f.n}")),
        "locks wait lock-{n} --by holder-{n} --json",
        {"names": ["lock-{n}"], "by": "holder-{n}"},
        a_lock,
    ),
    Case(
        "locks.wait",
        lambda hf, f: views.free_view(hf.locks.wait_free(f"lock-{f.n}", by="another", timeout_s=0)),
        "locks wait lock-{n} --by another --nonblock --json",
        {"names": ["lock-{n}"], "by": "another", "timeout_s": 0},
        a_lock,
        exit=STATUS["lock_timeout"].exit,
    ),
    Case(
        "locks.wait",
        lambda hf, f: hf.locks.wait("a\nb", by="job"),
        "locks wait 'a\nb' --by job --json",
        {"names": ["a\nb"], "by": "job"},
        code="invalid_name",
    ),
    Case(
        "locks.kick",
        lambda hf, f: views.kicked_view(hf.locks.kick(f"lock-{f.n}", why="it hangs")),
        "locks kick lock-{n} --why 'it hangs' --json",
        {"name": "lock-{n}", "why": "it hangs"},
        a_lock,
    ),
    Case(
        "locks.kick",
        lambda hf, f: hf.locks.kick(f"lock-{f.n}", why="it hangs"),
        "locks kick lock-{n} --why 'it hangs' --json",
        {"name": "lock-{n}", "why": "it hangs"},
        code="not_found",
    ),
    Case("locks.list", lambda hf, f: hf.locks.list_held(), "locks status --json", {}, a_lock),
    Case(
        "locks.status",
        lambda hf, f: hf.locks.status(f"/dev/lock-{f.n}"),
        "locks status /dev/lock-{n} --json",
        {"name": "/dev/lock-{n}"},
        a_lock,
        alone=True,
    ),
    Case(
        "locks.status",
        lambda hf, f: hf.locks.status("a\x1fb"),
        "locks status 'a\x1fb' --json",
        {"name": "a\x1fb"},
        code="invalid_name",
        same_words=False,
    ),
    Case(
        "locks.explain",
        lambda hf, f: hf.locks.explain(f"/dev/lock-{f.n}"),
        "locks explain /dev/lock-{n} --json",
        {"name": "/dev/lock-{n}"},
        a_lock,
    ),
    Case(
        "locks.explain",
        lambda hf, f: hf.locks.explain("x" * 257),
        f"locks explain {'x' * 257} --json",
        {"name": "x" * 257},
        code="invalid_name",
    ),
    Case(
        "locks.check_token",
        _check_token,
        "token check lock-{n} {token} --json",
        {"name": "lock-{n}", "token": "{token}"},
        a_lock,
    ),
    Case(
        "locks.check_token",
        lambda hf, f: hf.check_token(f"lock-{f.n}", 7),
        "token check lock-{n} 7 --json",
        {"name": "lock-{n}", "token": 7},
        a_lock,
        "fenced",
    ),
    Case("locks.graph", lambda hf, f: hf.locks.graph(), "locks graph --json", {}, a_lock),
    Case(
        "locks.statistics",
        lambda hf, f: [views.statistics_view(f"lock-{f.n}", hf.locks.statistics())],
        "locks stats lock-{n} --json",
        {"name": "lock-{n}"},
        a_lost_lock,
    ),
]

HOLDS = [
    Case(
        "holds.take",
        lambda hf, f: {
            "subject": f"subject-{f.n}",
            "by": "two",
            "count": hf.holds.take(f"subject-{f.n}", by="two", ttl_s=60, process=None),
        },
        "holds take subject-{n} --by two --ttl 60 --json",
        {"subject": "subject-{n}", "by": "two", "ttl_s": 60},
        a_hold,
    ),
    Case(
        "holds.take",
        lambda hf, f: hf.holds.take(f"subject-{f.n}", by="two", process=None),
        "holds take subject-{n} --by two --json",
        {"subject": "subject-{n}", "by": "two"},
        code="invalid_value",
    ),
    Case(
        "holds.drop",
        lambda hf, f: {
            "subject": f"subject-{f.n}",
            "by": "one",
            "count": hf.holds.drop(f"subject-{f.n}", by="one"),
        },
        "holds drop subject-{n} --by one --json",
        {"subject": "subject-{n}", "by": "one"},
        a_hold,
    ),
    Case(
        "holds.drop",
        lambda hf, f: hf.holds.drop(f"subject-{f.n}", by="two"),
        "holds drop subject-{n} --by two --json",
        {"subject": "subject-{n}", "by": "two"},
        a_hold,
        "not_found",
    ),
    Case("holds.list", lambda hf, f: hf.holds.subjects(), "holds list --json", {}, a_hold),
    Case(
        "holds.holders",
        lambda hf, f: hf.holds.holders(f"subject-{f.n}"),
        "holds list subject-{n} --json",
        {"subject": "subject-{n}"},
        a_hold,
    ),
    Case(
        "holds.holders",
        lambda hf, f: hf.holds.holders("x" * 257),
        f"holds list {'x' * 257} --json",
        {"subject": "x" * 257},
        code="invalid_name",
    ),
    Case(
        "holds.sweep",
        lambda hf, f: {"swept": hf.holds.sweep()},
        "holds sweep --json",
        {},
        a_dead_hold,
    ),
]

AGENTS = [
    Case(
        "agents.list",
        lambda hf, f: [views.listed_agent(one) for one in hf.agents.list_agents(fresh=True)],
        "agents list --fresh --json",
        {"fresh": True},
        an_agent,
    ),
    Case(
        "agents.list",
        lambda hf, f: hf.agents.list_agents(limit=-1),
        "agents list --limit -1 --json",
        {"limit": -1},
        code="invalid_value",
        same_words=False,
    ),
    Case(
        "agents.get",
        lambda hf, f: views.agent_view(hf, f.id),
        "agents get agent-{n} --json",
        {"agent": "agent-{n}"},
        an_agent,
    ),
    Case(
        "agents.get",
        lambda hf, f: hf.agents.get(f"nosuch-{f.n}"),
        "agents get nosuch-{n} --json",
        {"agent": "nosuch-{n}"},
        code="not_found",
    ),
    Case(
        "agents.resolve",
        lambda hf, f: hf.agents.resolve(f"agent-{f.n}"),
        "agents resolve agent-{n} --json",
        {"agent": "agent-{n}"},
        an_agent,
    ),
    Case(
        "agents.resolve",
        lambda hf, f: hf.agents.resolve(f"nosuch-{f.n}").unwrap(),
        "agents resolve nosuch-{n} --json",
        {"agent": "nosuch-{n}"},
        code="not_found",
        same_words=False,
    ),
    Case(
        "agents.find",
        lambda hf, f: {
            "agents": [views.live_agent(hf.agents.resolve(f"agent-{f.n}").unwrap())],
            "questions": [],
        },
        None,
        {"name": "agent-{n}"},
        an_agent,
    ),
    Case(
        "agents.find",
        lambda hf, f: hf.agents.resolve(f"nosuch-{f.n}").unwrap(),
        None,
        {"name": "nosuch-{n}"},
        code="not_found",
    ),
    Case(
        "agents.control_target",
        lambda hf, f: hf.agents.control_target(f"agent-{f.n}"),
        "agents target agent-{n} --json",
        {"agent": "agent-{n}"},
        an_agent_in_tmux,
    ),
    *(
        Case(
            "agents.control_target",
            lambda hf, f: hf.agents.control_target(f"agent-{f.n}"),
            "agents target agent-{n} --json",
            {"agent": "agent-{n}"},
            given,
            code,
        )
        for given, code in (
            (an_agent_beside_its_tmux_session, "process_not_in_session"),
            (an_agent_whose_tmux_session_is_gone, "tmux_session_gone"),
            (an_agent_of_another_generation, "generation_mismatch"),
        )
    ),
    Case(
        "agents.control_target",
        lambda hf, f: hf.agents.control_target(f"agent-{f.n}"),
        "agents target agent-{n} --json",
        {"agent": "agent-{n}"},
        an_agent,
        "manifest_missing",
    ),
    Case(
        "agents.publish",
        lambda hf, f: _published(hf, f.n, lease_s=60),
        "agents publish agent-{n} --manifest /nosuch/{n}.json --backend claude_headless --tool "
        "claude "
        "--tmux-session session-{n} --generation first-{n} --lease 60 --json",
        {
            "name": "agent-{n}",
            "manifest_path": "/nosuch/{n}.json",
            "backend": "claude_headless",
            "tool": "claude",
            "session_name": "session-{n}",
            "generation_id": "first-{n}",
            "lease_s": 60,
        },
    ),
    Case(
        "agents.publish",
        lambda hf, f: _published(
            hf, f.n, generation_id="second", backend="command", session_name=None
        ),
        "agents publish agent-{n} --manifest /nosuch/{n}.json --backend command --tool claude "
        "--generation second --json",
        {
            "name": "agent-{n}",
            "manifest_path": "/nosuch/{n}.json",
            "backend": "command",
            "tool": "claude",
            "generation_id": "second",
        },
        lambda hf, n: _facts(_published(hf, n, holder=hf.processes.of(ME))),
        "held",
    ),
    Case(
        "agents.refresh",
        lambda hf, f: hf.agents.refresh(f.id, f.generation, token=f.token, lease_s=90000),
        "agents refresh agent-{n} --generation {generation} --token {token} --lease 90000 --json",
        {
            "agent": "agent-{n}",
            "generation_id": "{generation}",
            "token": "{token}",
            "lease_s": 90000,
        },
        an_agent,
    ),
    Case(
        "agents.refresh",
        lambda hf, f: hf.agents.refresh(f.id, "another"),
        "agents refresh agent-{n} --generation another --json",
        {"agent": "agent-{n}", "generation_id": "another"},
        an_agent,
        "lease_lost",
    ),
    Case(
        "agents.remove",
        _remove_agent,
        "agents remove agent-{n} --generation {generation} --json",
        {"agent": "agent-{n}", "generation_id": "{generation}"},
        an_agent,
    ),
    Case(
        "agents.remove",
        lambda hf, f: hf.agents.remove(f.id, f.generation, token=7),
        "agents remove agent-{n} --generation {generation} --token 7 --json",
        {"agent": "agent-{n}", "generation_id": "{generation}", "token": 7},
        an_agent,
        "fenced",
    ),
    Case(
        "agents.logs",
        lambda hf, f: screen_of(hf, f"agent-{f.n}", 5),
        "agents logs agent-{n} -n 5 --json",
        {"agent": "agent-{n}", "lines": 5},
        an_agent_in_tmux,
    ),
    Case(
        "agents.logs",
        lambda hf, f: screen_of(hf, f"nosuch-{f.n}", 5),
        "agents logs nosuch-{n} --json",
        {"agent": "nosuch-{n}"},
        code="not_found",
    ),
    Case(
        "agents.stop",
        lambda hf, f: stop_agent(hf, f"agent-{f.n}", grace_s=1),
        "agents stop agent-{n} --grace 1 --json",
        {"agent": "agent-{n}", "grace_s": 1},
        a_dead_agent,
    ),
    Case(
        "agents.stop",
        lambda hf, f: stop_agent(hf, f"agent-{f.n}", grace_s=1),
        "agents stop agent-{n} --json",
        {"agent": "agent-{n}"},
        an_agent_beside_its_tmux_session,
        # It is this very process.
        code="invalid_value",
    ),
    Case(
        "agents.restart",
        lambda hf, f: _restarted(hf, f"agent-{f.n}"),
        "agents restart agent-{n} --watch 0 --json",
        {"agent": "agent-{n}", "watch_s": 0},
        an_ended_agent,
    ),
    Case(
        "agents.restart",
        lambda hf, f: _restarted(hf, f"nosuch-{f.n}"),
        "agents restart nosuch-{n} --json",
        {"agent": "nosuch-{n}"},
        code="not_found",
    ),
    Case(
        "agents.cleanup",
        lambda hf, f: hf.agents.cleanup(dry_run=True, tmux_check=False),
        "agents cleanup --dry-run --no-tmux-check --json",
        {"dry_run": True, "tmux_check": False},
        an_agent,
    ),
    Case(
        "agents.cleanup",
        lambda hf, f: hf.agents.cleanup(grace_s=-1),
        "agents cleanup --grace -1 --json",
        {"grace_s": -1},
        code="invalid_value",
        same_words=False,
    ),
]

_NEW = {
    "primary_ip": "10.2.0.{n}/16",
    "connected_to": "router-{n}",
    "mac_address": "02:00:00:01:00:{hex}",
}
NETWORK = [
    Case(
        "network.add_host",
        _add_host,
        "network hosts add new-{n} --ip 10.2.0.{n}/16 --router router-{n} --mac "
        "02:00:00:01:00:{hex} --info a=b --json",
        {"name": "new-{n}", **_NEW, "info": {"a": "b"}},
    ),
    Case(
        "network.add_host",
        lambda hf, f: hf.network.register_host(f"new-{f.n}", f.ip, "r", "02:00:00:02:00:00"),
        "network hosts add new-{n} --ip {ip} --router r --mac 02:00:00:02:00:00 --json",
        {
            "name": "new-{n}",
            "primary_ip": "{ip}",
            "connected_to": "r",
            "mac_address": "02:00:00:02:00:00",
        },
        a_host,
        "registry_collision",
    ),
    Case(
        "network.add_hosts",
        lambda hf, f: hf.network.register_hosts(
            [
                {
                    "host_name": f"new-{f.n}",
                    "primary_ip": f"10.2.0.{f.n}/16",
                    "connected_to": f"router-{f.n}",
                    "mac_address": f"02:00:00:01:00:{f.hex}",
                }
            ]
        ),
        None,
        {"hosts": [{"name": "new-{n}", **_NEW}]},
    ),
    Case(
        "network.add_hosts",
        lambda hf, f: hf.network.register_host(
            f"new-{f.n}", "no address", "r", "02:00:00:02:00:00"
        ),
        None,
        {
            "hosts": [
                {
                    "name": "new-{n}",
                    "primary_ip": "no address",
                    "connected_to": "r",
                    "mac_address": "02:00:00:02:00:00",
                }
            ]
        },
        code="invalid_value",
    ),
    Case(
        "network.remove_host",
        lambda hf, f: {
            "unregistered": f"host-{f.n}"
            if hf.network.unregister_host(f"host-{f.n}", force=True)
            else None
        },
        "network hosts remove host-{n} --force --json",
        {"host": "host-{n}", "force": True},
        a_leased_host,
    ),
    Case(
        "network.remove_host",
        lambda hf, f: hf.network.unregister_host(f"host-{f.n}"),
        "network hosts remove host-{n} --json",
        {"host": "host-{n}"},
        a_leased_host,
        "registry_held",
    ),
    Case(
        "network.list_hosts",
        lambda hf, f: hf.network.list_all_hosts(router_name=f"router-{f.n}"),
        "network hosts list --router router-{n} --json",
        {"router": "router-{n}"},
        a_host,
    ),
    Case(
        "network.get_host",
        lambda hf, f: hf.network.get_host_info(f"host-{f.n}"),
        "network hosts get host-{n} --json",
        {"host": "host-{n}"},
        a_host,
    ),
    Case(
        "network.get_host",
        lambda hf, f: hf.network.get_host(f"nosuch-{f.n}"),
        "network hosts get nosuch-{n} --json",
        {"host": "nosuch-{n}"},
        code="registry_not_found",
    ),
    Case(
        "network.take_leases",
        lambda hf, f: {
            f"host-{f.n}": hf.network.acquire_source_host_lease(
                "run", f"host-{f.n}", "quick", f"router-{f.n}", 46, pid=None, ttl_s=60
            )
        },
        "network leases take host-{n} --by run --type quick --dscp 46 --ttl 60 --json",
        {"hosts": ["host-{n}"], "by": "run", "job_type": "quick", "dscp": 46, "ttl_s": 60},
        a_leased_host,
    ),
    Case(
        "network.take_leases",
        lambda hf, f: hf.network.acquire_source_host_lease(
            "run", f"host-{f.n}", "quick", f"router-{f.n}", pid=None
        ),
        "network leases take host-{n} --by run --type quick --json",
        {"hosts": ["host-{n}"], "by": "run", "job_type": "quick"},
        a_host_whose_router_is_locked,
        "registry_held",
    ),
    Case(
        "network.drop_lease",
        lambda hf, f: {
            "host": f"host-{f.n}",
            **views.lease_ended(hf.network.release_source_host_lease(f"run-{f.n}", f"host-{f.n}")),
        },
        "network leases drop host-{n} --by run-{n} --json",
        {"host": "host-{n}", "by": "run-{n}"},
        a_leased_host,
    ),
    Case(
        "network.drop_lease",
        lambda hf, f: hf.network.release_source_host_lease("another", f"host-{f.n}"),
        "network leases drop host-{n} --by another --json",
        {"host": "host-{n}", "by": "another"},
        a_leased_host,
        "registry_not_found",
    ),
    Case(
        "network.list_leases",
        lambda hf, f: hf.network.list_host_leases(f"host-{f.n}"),
        "network leases list host-{n} --json",
        {"host": "host-{n}"},
        a_leased_host,
    ),
    Case(
        "network.take_neighbor",
        lambda hf, f: {
            "host": f"host-{f.n}",
            "neighbor_ip": "10.9.9.9",
            "count": hf.network.acquire_neighbor_lease(
                "run", f"host-{f.n}", "10.9.9.9", pid=None, ttl_s=60
            ),
        },
        "network neighbors take host-{n} 10.9.9.9 --by run --ttl 60 --json",
        {"host": "host-{n}", "address": "10.9.9.9", "by": "run", "ttl_s": 60},
        a_leased_neighbor,
    ),
    Case(
        "network.take_neighbor",
        lambda hf, f: hf.network.acquire_neighbor_lease(
            "run", f"host-{f.n}", "nowhere", pid=None, ttl_s=60
        ),
        "network neighbors take host-{n} nowhere --by run --ttl 60 --json",
        {"host": "host-{n}", "address": "nowhere", "by": "run", "ttl_s": 60},
        code="invalid_value",
    ),
    Case(
        "network.drop_neighbor",
        lambda hf, f: {
            "host": f"host-{f.n}",
            "neighbor_ip": "10.9.9.9",
            **views.lease_ended(
                hf.network.release_neighbor_lease(f"run-{f.n}", f"host-{f.n}", "10.9.9.9")
            ),
        },
        "network neighbors drop host-{n} 10.9.9.9 --by run-{n} --json",
        {"host": "host-{n}", "address": "10.9.9.9", "by": "run-{n}"},
        a_leased_neighbor,
    ),
    Case(
        "network.drop_neighbor",
        lambda hf, f: hf.network.release_neighbor_lease("run", f"host-{f.n}", "10.9.9.9"),
        "network neighbors drop host-{n} 10.9.9.9 --by run --json",
        {"host": "host-{n}", "address": "10.9.9.9", "by": "run"},
        code="registry_not_found",
    ),
    Case(
        "network.list_neighbors",
        lambda hf, f: hf.network.list_neighbor_leases(),
        "network neighbors list --json",
        {},
        a_leased_neighbor,
    ),
    Case(
        "network.lock_routers",
        lambda hf, f: views.grant_view(
            hf.network.lock_routers(
                [f"router-{f.n}", f"other-{f.n}"], "run", job_type="detailed", ttl_s=60, pid=None
            )
        ),
        "network routers lock router-{n} other-{n} --by run --type detailed --ttl 60 --json",
        {"names": ["router-{n}", "other-{n}"], "by": "run", "job_type": "detailed", "ttl_s": 60},
    ),
    Case(
        "network.lock_routers",
        lambda hf, f: hf.network.lock_routers([f"router-{f.n}"], "another", 0, ttl_s=60, pid=None),
        "network routers lock router-{n} --by another --ttl 60 --nonblock --quiet --json",
        {"names": ["router-{n}"], "by": "another", "timeout_s": 0, "ttl_s": 60},
        a_locked_router,
        "registry_lock_timeout",
    ),
    Case(
        "network.lock_routers",
        lambda hf, f: hf.network.lock_routers([f"router-{f.n}"], "run", pid=NOBODY, ttl_s=60),
        f"network routers lock router-{{n}} --by run --pid {NOBODY} --ttl 60 --json",
        {"names": ["router-{n}"], "by": "run", "pid": NOBODY, "ttl_s": 60},
        code="registry_not_found",
    ),
    Case(
        "network.lock_routers",
        lambda hf, f: hf.network.lock_routers([f"router-{f.n}"], "run", pid=None),
        "network routers lock router-{n} --by run --json",
        {"names": ["router-{n}"], "by": "run"},
        code="invalid_value",
    ),
    Case(
        "network.unlock_routers",
        lambda hf, f: {"released": hf.network.unlock_routers([f"router-{f.n}"], f"run-{f.n}")},
        "network routers unlock router-{n} --by run-{n} --json",
        {"names": ["router-{n}"], "by": "run-{n}"},
        a_locked_router,
    ),
    Case(
        "network.unlock_routers",
        lambda hf, f: hf.network.unlock_routers([f"router-{f.n}"], "another"),
        "network routers unlock router-{n} --by another --json",
        {"names": ["router-{n}"], "by": "another"},
        a_locked_router,
        "registry_not_found",
    ),
    Case(
        "network.wait_for_routers",
        lambda hf, f: views.free_view(
            hf.network.wait_routers_free([f"router-{f.n}"], 0, job_id=f"run-{f.n}")
        ),
        "network routers wait router-{n} --by run-{n} --nonblock --json",
        {"names": ["router-{n}"], "by": "run-{n}", "timeout_s": 0},
        a_locked_router,
    ),
    Case(
        "network.wait_for_routers",
        lambda hf, f: views.free_view(hf.network.wait_routers_free([f"router-{f.n}"], 0)),
        "network routers wait router-{n} --nonblock --json",
        {"names": ["router-{n}"], "timeout_s": 0},
        a_locked_router,
        exit=STATUS["lock_timeout"].exit,
    ),
    Case("network.counts", lambda hf, f: hf.network.counts()._asdict(), None, {}, a_leased_host),
    Case(
        "network.sweep",
        lambda hf, f: hf.network.sweep()._asdict(),
        "network sweep --json",
        {},
        dead_leases,
    ),
]

WORKFLOWS = [
    Case(
        "workflows.register",
        lambda hf, f: views.registered_view(
            hf.workflows.register(f"flow-{f.n}", "llama", owner=hf.processes.of(ME), ttl_s=60)
        ),
        f"workflows register flow-{{n}} --recipe llama --pid {ME} --ttl 60 --quiet --json",
        {"name": "flow-{n}", "recipe": "llama", "pid": ME, "ttl_s": 60},
    ),
    Case(
        "workflows.register",
        lambda hf, f: hf.workflows.register(f"flow-{f.n}", "llama", owner=hf.processes.of(1)),
        "workflows register flow-{n} --recipe llama --pid 1 --json",
        {"name": "flow-{n}", "recipe": "llama", "pid": 1},
        a_workflow,
        "held",
    ),
    Case(
        "workflows.register",
        lambda hf, f: hf.workflows.register(
            f"flow-{f.n}", "llama", owner=hf.processes.of(ME), loaded_only=True
        ),
        f"workflows register flow-{{n}} --recipe llama --pid {ME} --loaded-only --json",
        {"name": "flow-{n}", "recipe": "llama", "pid": ME, "loaded_only": True},
        a_loaded_recipe,
        "not_loaded",
    ),
    Case(
        "workflows.register",
        lambda hf, f: hf.workflows.register(
            f"flow-{f.n}", f"recipe-{f.n}", owner=hf.processes.of(ME), loaded_only=True
        ),
        f"workflows register flow-{{n}} --recipe recipe-{{n}} --pid {ME} --loaded-only --json",
        {"name": "flow-{n}", "recipe": "recipe-{n}", "pid": ME, "loaded_only": True},
        a_failed_load,
        "not_loaded",
    ),
    Case(
        "workflows.renew",
        lambda hf, f: hf.workflows.renew(f"flow-{f.n}", f.token, ttl_s=900),
        "workflows renew flow-{n} --token {token} --ttl 900 --json",
        {"name": "flow-{n}", "token": "{token}", "ttl_s": 900},
        a_workflow,
    ),
    Case(
        "workflows.renew",
        lambda hf, f: hf.workflows.renew(f"flow-{f.n}", 7),
        "workflows renew flow-{n} --token 7 --json",
        {"name": "flow-{n}", "token": 7},
        code="lease_lost",
    ),
    Case(
        "workflows.release",
        lambda hf, f: hf.workflows.release(f"flow-{f.n}", f.token),
        "workflows release flow-{n} --token {token} --json",
        {"name": "flow-{n}", "token": "{token}"},
        a_workflow,
    ),
    Case(
        "workflows.release",
        lambda hf, f: hf.workflows.release(f"flow-{f.n}", 7),
        "workflows release flow-{n} --token 7 --json",
        {"name": "flow-{n}", "token": 7},
        a_workflow,
        "fenced",
    ),
    Case(
        "workflows.list",
        lambda hf, f: hf.workflows.list_workflows(),
        "workflows list --json",
        {},
        a_workflow,
    ),
    Case(
        "workflows.get",
        lambda hf, f: hf.workflows.get(f"flow-{f.n}"),
        None,
        {"name": "flow-{n}"},
        a_workflow,
    ),
    Case(
        "workflows.get",
        lambda hf, f: hf.workflows.get(f"flow-{f.n}"),
        None,
        {"name": "flow-{n}"},
        code="not_found",
    ),
    Case(
        "workflows.preempt",
        lambda hf, f: hf.workflows.request_preempt(f"flow-{f.n}"),
        None,
        {"name": "flow-{n}"},
        a_workflow,
    ),
    Case(
        "workflows.preempt",
        lambda hf, f: hf.workflows.request_preempt(f"flow-{f.n}"),
        None,
        {"name": "flow-{n}"},
        a_firm_workflow,
        "invalid_value",
    ),
    Case(
        "workflows.preempt_requested",
        lambda hf, f: {"requested": hf.workflows.preempt_requested(f"flow-{f.n}", f.token)},
        None,
        {"name": "flow-{n}", "token": "{token}"},
        an_asked_workflow,
    ),
    Case(
        "workflows.preempt_requested",
        lambda hf, f: hf.workflows.preempt_requested(f"flow-{f.n}", 7),
        None,
        {"name": "flow-{n}", "token": 7},
        an_asked_workflow,
        "fenced",
    ),
    Case(
        "workflows.yield",
        lambda hf, f: hf.workflows.clear_preempt_signal(f"flow-{f.n}", f.token),
        None,
        {"name": "flow-{n}", "token": "{token}"},
        an_asked_workflow,
    ),
    Case(
        "workflows.yield",
        lambda hf, f: hf.workflows.clear_preempt_signal(f"flow-{f.n}", 7),
        None,
        {"name": "flow-{n}", "token": 7},
        code="lease_lost",
    ),
    Case(
        "workflows.sweep",
        lambda hf, f: hf.workflows.sweep(),
        "workflows sweep --json",
        {},
        a_dead_workflow,
    ),
    Case(
        "workflows.swap_status",
        lambda hf, f: views.swap_view(hf.workflows.swap_status()),
        "swap status --json",
        {},
        a_workflow,
    ),
    Case(
        "workflows.swap_status",
        lambda hf, f: views.swap_view(hf.workflows.swap_status()),
        "swap status --json",
        {},
        a_failed_load,
    ),
    Case(
        "workflows.swap_reconcile",
        lambda hf, f: views.reconciled_view(hf.workflows.reconcile_swap_marker()),
        "swap reconcile --json",
        {},
        a_dead_swap,
    ),
    Case(
        "workflows.swap_log",
        lambda hf, f: hf.workflows.swap_log(2),
        "swap log --tail 2 --json",
        {"tail": 2},
        an_asked_workflow,
        lines=True,
    ),
]

THE_REST = [
    Case(
        "log.read",
        lambda hf, f: hf.log.chosen(subject=f"job-{f.n}", limit=2)[0],
        "log --subject job-{n} --tail 2 --json",
        {"subject": "job-{n}", "tail": 2},
        a_running_job,
        lines=True,
    ),
    Case(
        "log.read",
        lambda hf, f: clock.parse("yesterday", "since"),
        "log --since yesterday --json",
        {"since": "yesterday"},
        code="invalid_value",
        same_words=False,
    ),
    Case("log.prune", lambda hf, f: {"dropped": hf.log.prune()}, "log --prune --json"),
    Case(
        "store.info",
        lambda hf, f: Upkeep(hf.settings).facts(),
        "store info --json",
        without="chosen_by",
    ),
]


GATEWAY = [
    Case("gateways.list", lambda hf, f: hf.gateways(), None),
    Case(
        "gateways.status",
        lambda hf, f: hf.gateway("gpu").status(),
        "gateway status gpu --json",
        {"agent": "gpu"},
    ),
    Case(
        "gateways.status",
        lambda hf, f: hf.gateway("nosuch").status(),
        "gateway status nosuch --json",
        {"agent": "nosuch"},
        code="not_found",
    ),
    Case(
        "gateways.prompt",
        lambda hf, f: hf.gateway("gpu").prompt("say hello", idempotency_key=f"key-{f.n}"),
        "gateway prompt gpu 'say hello' --key key-{n} --json",
        {"agent": "gpu", "prompt": "say hello", "idempotency_key": "key-{n}"},
    ),
    Case(
        "gateways.prompt",
        lambda hf, f: hf.gateway("gpu").prompt("another", idempotency_key=f"key-{f.n}"),
        "gateway prompt gpu another --key key-{n} --json",
        {"agent": "gpu", "prompt": "another", "idempotency_key": "key-{n}"},
        a_request,
        "collision",
    ),
    Case(
        "gateways.send",
        lambda hf, f: views.sent_request(
            hf.gateway("gpu").prompt("say hello", idempotency_key=f"key-{f.n}")
        ),
        None,
        {"agent": "gpu", "prompt": "say hello", "idempotency_key": "key-{n}"},
    ),
    Case(
        "gateways.send",
        lambda hf, f: views.sent_request(
            hf.gateway("gpu").interrupt(idempotency_key=f"stop-{f.n}")
        ),
        None,
        {"agent": "gpu", "kind": "interrupt", "idempotency_key": "stop-{n}"},
    ),
    Case(
        "gateways.send",
        lambda hf, f: hf.gateway("gpu").prompt("another", idempotency_key=f"key-{f.n}"),
        None,
        {"agent": "gpu", "prompt": "another", "idempotency_key": "key-{n}"},
        a_request,
        "collision",
    ),
    Case(
        "gateways.interrupt",
        lambda hf, f: hf.gateway("gpu").interrupt(idempotency_key=f"stop-{f.n}"),
        None,
        {"agent": "gpu", "idempotency_key": "stop-{n}"},
    ),
    Case(
        "gateways.interrupt",
        lambda hf, f: hf.gateway("nosuch").interrupt(),
        "gateway interrupt nosuch --json",
        {"agent": "nosuch"},
        code="unavailable",
    ),
    Case(
        "gateways.requests",
        lambda hf, f: hf.gateway("gpu").requests(state="accepted", limit=2),
        "gateway requests gpu --state accepted --limit 2 --json",
        {"agent": "gpu", "state": "accepted", "limit": 2},
        a_request,
    ),
    Case(
        "gateways.requests",
        lambda hf, f: hf.gateway("nosuch").requests(),
        "gateway requests nosuch --json",
        {"agent": "nosuch"},
        code="unavailable",
    ),
    Case(
        "gateways.request",
        lambda hf, f: hf.gateway("gpu").request(f.request, wait_s=0.01),
        None,
        {"agent": "gpu", "request_id": "{request}", "wait_s": 0.01},
        a_request,
    ),
    Case(
        "gateways.request",
        lambda hf, f: hf.gateway("gpu").request(f"nosuch-{f.n}"),
        None,
        {"agent": "gpu", "request_id": "nosuch-{n}"},
        code="not_found",
    ),
    Case(
        "gateways.progress",
        lambda hf, f: views.sent_request(hf.gateway("gpu").request(f.request)),
        None,
        {"agent": "gpu", "request_id": "{request}"},
        a_request,
    ),
    Case(
        "gateways.progress",
        lambda hf, f: hf.gateway("gpu").request(f"nosuch-{f.n}"),
        None,
        {"agent": "gpu", "request_id": "nosuch-{n}"},
        code="not_found",
    ),
    Case(
        "gateways.cancel",
        lambda hf, f: hf.gateway("gpu").cancel(f.request),
        "gateway cancel gpu {request} --json",
        {"agent": "gpu", "request_id": "{request}"},
        a_request,
    ),
    Case(
        "gateways.cancel",
        lambda hf, f: hf.gateway("gpu").cancel(f"nosuch-{f.n}"),
        "gateway cancel gpu nosuch-{n} --json",
        {"agent": "gpu", "request_id": "nosuch-{n}"},
        code="not_found",
    ),
    Case(
        "gateways.reconcile",
        lambda hf, f: hf.gateway("gpu").reconcile("discard", epoch=f.epoch),
        "gateway reconcile gpu discard --epoch {epoch} --json",
        {"agent": "gpu", "action": "discard", "epoch": "{epoch}"},
        a_replaced_agent,
    ),
    Case(
        "gateways.reconcile",
        lambda hf, f: hf.gateway("gpu").reconcile("replay", epoch=999),
        "gateway reconcile gpu replay --epoch 999 --json",
        {"agent": "gpu", "action": "replay", "epoch": 999},
        reconciled,
        "refused",
    ),
    Case(
        "gateways.prune",
        lambda hf, f: hf.gateway("gpu").prune(keep_finished=9999, keep_s=172800),
        "gateway prune gpu --keep 9999 --keep-days 2 --json",
        {"agent": "gpu", "keep_finished": 9999, "keep_s": 172800},
        an_old_request,
    ),
    Case(
        "gateways.prune",
        lambda hf, f: hf.gateway("gpu").prune(keep_s=43200),
        "gateway prune gpu --keep-days 0.5 --json",
        {"agent": "gpu", "keep_s": 43200},
        an_old_request,
        "invalid_value",
    ),
    Case(
        "questions.list",
        lambda hf, f: views.asked_questions(hf),
        "gateway questions --json",
        given=a_question,
    ),
    Case(
        "questions.of_agent",
        lambda hf, f: views.asked_questions(hf),
        "gateway questions gpu --json",
        {"agent": "gpu"},
        a_question,
    ),
    Case(
        "questions.of_agent",
        lambda hf, f: views.job_questions(hf, f"tmux:{f.n}"),
        "gateway questions {n} --json",
        {"agent": "{n}"},
        a_waiting_job,
    ),
    Case(
        "questions.of_agent",
        lambda hf, f: hf.gateway("nosuch").questions(),
        "gateway questions nosuch --json",
        {"agent": "nosuch"},
        code="unavailable",
    ),
    Case(
        "questions.answer",
        lambda hf, f: views.answered(hf.gateway("gpu").reply(f"q-{f.n}", "allow"), "allow"),
        "gateway answer gpu q-{n} allow --json",
        {"agent": "gpu", "question_id": "q-{n}", "reply": "allow"},
        a_question,
    ),
    Case(
        "questions.answer",
        lambda hf, f: views.answered_job(hf, f.n, "use the other board"),
        "gateway answer {n} job.job-{n}.1 'use the other board' --json",
        {"agent": "{n}", "question_id": "job.job-{n}.1", "reply": "use the other board"},
        a_waiting_job,
    ),
    Case(
        "questions.answer",
        lambda hf, f: hf.gateway("gpu").reply(f"q-{f.n}", "maybe"),
        "gateway answer gpu q-{n} maybe --json",
        {"agent": "gpu", "question_id": "q-{n}", "reply": "maybe"},
        a_strict_question,
        "invalid_value",
    ),
    Case(
        "questions.answer",
        lambda hf, f: hf.gateway("gpu").reply("over", "allow"),
        "gateway answer gpu over allow --json",
        {"agent": "gpu", "question_id": "over", "reply": "allow"},
        a_question,
        "not_found",
    ),
    Case(
        "questions.answer",
        lambda hf, f: hf.job_events.answer(f"job-{f.n}", 1, "allow", by="tester"),
        "gateway answer {n} job.job-{n}.1 allow --json",
        {"agent": "{n}", "question_id": "job.job-{n}.1", "reply": "allow"},
        an_answered_job,
        "not_found",
        same_words=False,
    ),
    Case(
        "questions.answer",
        lambda hf, f: hf.gateway("nosuch").reply("q-1", "allow"),
        "gateway answer nosuch q-1 allow --json",
        {"agent": "nosuch", "question_id": "q-1", "reply": "allow"},
        code="unavailable",
    ),
    Case(
        "agents.get",
        lambda hf, f: {
            **views.asking_agent(hf, hf.agents.get(f.id)),
            "liveness": hf.agents.liveness(hf.agents.get(f.id)),
        },
        "agents get agent-{n} --json",
        {"agent": "agent-{n}"},
        an_asking_agent,
    ),
    Case(
        "gateways.detach",
        lambda hf, f: hf.gateway("gpu").detach(),
        "gateway detach gpu --json",
        {"agent": "gpu"},
    ),
    Case(
        "gateways.detach",
        lambda hf, f: hf.gateway("nosuch").detach(),
        "gateway detach nosuch --json",
        {"agent": "nosuch"},
        code="unavailable",
    ),
]

TABLE = [*JOBS, *LOCKS, *HOLDS, *AGENTS, *NETWORK, *WORKFLOWS, *THE_REST, *GATEWAY]
