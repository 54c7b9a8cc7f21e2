"""What the library returns, as the results of operations show it: the library's column of the
table. Nothing here is made by an operation or its types, so that a wrong one differs from it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import asdict

from holdfast.domains.agents import Agent
from holdfast.domains.jobs import Job
from holdfast.domains.jobs.records import shown
from holdfast.domains.workflows import Registered, SwapStatus
from holdfast.domains.workflows.registry import ReconciledMarker
from holdfast.kernel.codec import to_plain
from holdfast.kernel.histogram import BUCKETS_S
from holdfast.primitives.locks import Grant
from holdfast.primitives.locks.policy import Obstruction
from holdfast.primitives.locks.records import LockHold
from holdfast.primitives.locks.statistics import LockStatistics
from holdfast.runtime.connection import Holdfast


def job_view(job: Job) -> dict[str, Any]:
    return shown(job)


def grant_view(grant: Grant) -> dict[str, Any]:
    names = ("token", "names", "by", "mode", "ttl_s", "reentered")
    return {**{name: getattr(grant, name) for name in names}, "tokens": dict(grant.tokens)}


def renewed_view(hold: LockHold) -> dict[str, Any]:
    names = ("token", "names", "by", "mode")
    return {**{name: getattr(hold, name) for name in names}, "expires_at": hold.lease.expires_at}


def kicked_view(kicked: Iterable[LockHold]) -> dict[str, Any]:
    names = ("by", "names", "token", "process")
    return {"kicked": [{name: getattr(hold, name) for name in names} for hold in kicked]}


def free_view(why: Obstruction | None) -> dict[str, Any]:
    return {"free": why is None, "holders": () if why is None else why.holders}


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
    return {**listed_agent(agent), "liveness": hf.agents.liveness(agent)}


def listed_agent(agent: Agent) -> dict[str, Any]:
    """Of an agent without a gateway whose process is not dead."""
    absent = dict.fromkeys(("since", "idle_since", "queue_depth"))
    work = {"state": "unknown", "activity": "", "waits": "", "questions": 0, "gateway": "none"}
    return {**to_plain(agent), "work": {**absent, **work}}


def asking_agent(hf: Holdfast, agent: Agent) -> dict[str, Any]:
    """Of an agent that asks, whose gateway serves."""
    status = hf.gateway("gpu").status()
    work = {
        "state": "asking",
        "since": status["agent_state_since"],
        "activity": status["activity"],
        "waits": status["detail"],
        "idle_since": None,
        "queue_depth": status["queue_depth"],
        "questions": len(status["questions"]),
        "gateway": "serving",
    }
    return {**to_plain(agent), "work": work}


def asked_questions(hf: Holdfast) -> list[dict[str, Any]]:
    """Of the agent gpu."""
    common = {"agent": "gpu", "source": "gateway", "job_id": None}
    return [{**common, **question} for question in hf.gateway("gpu").questions()]


def job_questions(hf: Holdfast, queue: str | None = None) -> list[dict[str, Any]]:
    """Of the jobs that wait for a permission."""
    return [
        {
            "agent": job.agent_session.removeprefix("tmux:"),
            "question_id": f"job.{job.job_id}.{event.seq}",
            "source": "job",
            "kind": "permission",
            "subject": event.detail,
            "detail": event.detail,
            "choices": [
                {"name": "allow", "label": "Allow it, this once"},
                {"name": "deny", "label": "Refuse it"},
            ],
            "free_text": True,
            "asked_at": event.timestamp,
            "expires_at": None,
            "job_id": job.job_id,
        }
        for job, event in hf.job_events.waiting()
        if queue in (None, job.agent_session)
    ]


def answered(question: Mapping[str, Any], reply: str) -> dict[str, Any]:
    return {
        "agent": "gpu",
        "question_id": question["question_id"],
        "subject": question["subject"],
        "reply": reply,
        "by": "tester",
    }


def answered_job(hf: Holdfast, n: str, reply: str) -> dict[str, Any]:
    [(_, asked)] = [one for one in hf.job_events.waiting() if one.job.job_id == f"job-{n}"]
    hf.job_events.answer(f"job-{n}", asked.seq, reply, by="tester")
    facts = {"question_id": f"job.job-{n}.{asked.seq}", "subject": asked.detail}
    return {"agent": n, "reply": reply, "by": "tester", **facts}


def job_log(hf: Holdfast, job_id: str) -> list[dict[str, Any]]:
    hf.catch_up(wait=True)
    assert hf.job_log is not None
    return list(hf.job_log.events(job_id))


def host_added(hf: Holdfast, name: str) -> dict[str, Any]:
    return {"host": name, **(hf.network.get_host_info(name) or {})}


def live_agent(agent: Agent) -> dict[str, Any]:
    """Of an agent without a recorded process or gateway."""
    return {
        "agent_name": agent.agent_name,
        "agent_id": agent.agent_id,
        "tool": agent.identity.tool,
        "backend": agent.identity.backend,
        "tmux_session": agent.session_name,
        "lease_expires_at": agent.lease_expires_at,
        "process": "none",
        "has_gateway": False,
        "state": "unknown",
        "activity": "",
        "waiting": "",
        "queue_depth": None,
    }


def sent_request(request: dict[str, Any]) -> dict[str, Any]:
    """Of a request that was just sent."""
    absent = dict.fromkeys(("answer", "error_code", "error"))
    names = ("request_id", "state", "epoch")
    known = {"sender": request.get("sender")}
    return {"agent": "gpu", **{name: request[name] for name in names}, **absent, **known}


def registered_view(registered: Registered) -> dict[str, Any]:
    return {**asdict(registered.workflow), "swap_needed": registered.swap_needed}


def swap_view(found: SwapStatus) -> dict[str, Any]:
    names = ("current", "unknown", "workflows")
    return {**{name: getattr(found, name) for name in names}, "swap": found.marker}


def reconciled_view(found: ReconciledMarker) -> dict[str, Any]:
    return {"swap": found.live, "cleared": found.cleared}
