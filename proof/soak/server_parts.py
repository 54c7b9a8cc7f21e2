"""Clients of the servers: the same locks, holds, agents, workflows and jobs as everybody's, over
HTTP.

A client names its process, so that its claims end with it, and a TTL, which it never needs. Each
request uses a new name. If no answer comes, the client checks whether the request took effect, and
releases the claim. A stopped server may still carry out the request later; then the closed
connection or the TTL ends the claim.
"""

from contextlib import ExitStack

from holdfast.runtime.connection import Holdfast
from proof.soak import agent_parts, flow_parts, job_parts, lock_parts
from proof.soak.calls import Answer, Caller, Unheard
from proof.soak.child import Child

_TTL_S = 300.0
"""Longer than a call is retried."""
_OK, _NONE, _NOT_FOUND, _CONFLICT, _FENCED, _LATE = 200, 204, 404, 409, 412, 504


def caller(child: Child, hf: Holdfast) -> bool:
    """Does one thing over HTTP, and gives back what it took."""
    if child.draining:
        return False
    doing = child.draw.choice([_lock, _lock, _hold, _agent, _workflow, _register])
    try:
        doing(child, hf, Caller(child, hf))
        child.did()
    except Unheard:
        child.count("unsure")
    child.pause(0.05)
    return True


def _lock(child: Child, hf: Holdfast, call: Caller) -> None:
    draw, by = child.draw, call.fresh()
    mode = draw.choice(["exclusive", "exclusive", "shared"])
    names = sorted(draw.sample(lock_parts.NAMES, draw.choice([1, 1, 2])))
    asked = {
        "names": names,
        "by": by,
        "mode": mode,
        "pid": call.pid,
        "ttl_s": _TTL_S,
        "timeout_s": draw.choice([0.0, 0.5, 2.0]),
    }
    try:
        answer = call.post("locks", "acquire", **asked)
    except Unheard:
        # All or none, so the first shows all.
        if any(hold["by"] == by for hold in call.get("locks", names[0], "status").body["holds"]):
            call.post("locks", "free", names=names, by=by)
        raise
    if answer.status == _LATE:
        child.count("refused")
        return
    if not _as_wished(child, answer):
        return
    with ExitStack() as seen:
        for name in names:
            token = answer.body["tokens"][name]
            if not seen.enter_context(child.witness(name, shared=mode == "shared", token=token)):
                child.wrong(f"{name} is held by another too: {answer.body}")
        child.pause(0.02)
    _release(child, call, names[0], answer.body["token"])


def _release(child: Child, call: Caller, name: str, token: int) -> None:
    """Release until that is certain."""
    unheard = False
    while True:
        try:
            answer = call.post("locks", "release", token=token)
        except Unheard:
            unheard = True
            if call.get("locks", name, "check", token=token).status == _FENCED:
                return
            continue
        if answer.status != _OK and not unheard:
            child.wrong(f"{name} was lost by a client that lives: {answer.body}")
        return


def _hold(child: Child, hf: Holdfast, call: Caller) -> None:
    subject, by = child.draw.choice(lock_parts.SUBJECTS), call.fresh()
    try:
        if _as_wished(
            child, call.post("holds", subject, "take", by=by, pid=call.pid, ttl_s=_TTL_S)
        ):
            child.pause(0.03)
            if by not in {hold["by"] for hold in call.get("holds", subject).body}:
                child.wrong(f"{by} holds {subject} and does not count")
            _as_wished(child, call.post("holds", subject, "drop", by=by))
    except Unheard:
        if by in {hold["by"] for hold in call.get("holds", subject).body}:
            call.post("holds", subject, "drop", by=by)
        raise


def _agent(child: Child, hf: Holdfast, call: Caller) -> None:
    name, generation = child.draw.choice(agent_parts.NAMES), call.fresh()
    facts = {
        "backend": "command",
        "tool": "t",
        "manifest_path": "/m.json",
        "pid": call.pid,
        "lease_s": 2.0,
    }
    try:
        answer = call.post("agents", name=name, generation_id=generation, **facts)
        found = answer.body if answer.status == _OK else None
    except Unheard:
        agents = call.get("agents").body
        found = next((one for one in agents if one["generation_id"] == generation), None)
    if found is None:
        child.count("refused")
        return
    child.tell("published", agent=found["agent_id"], token=found["token"], generation=generation)
    shown = {"generation_id": generation, "token": found["token"]}
    for step in ("refresh", "refresh", "remove"):
        child.pause(0.05)
        if call.post("agents", found["agent_id"], step, **shown).status in (
            _NOT_FOUND,
            _CONFLICT,
            _FENCED,
        ):
            # It was too late: its lease is so short that another has taken over.
            child.count("fenced")
            return


def _workflow(child: Child, hf: Holdfast, call: Caller) -> None:
    name, recipe = call.fresh(), child.draw.choice(flow_parts.RECIPES)
    try:
        answer = call.post(
            "workflows",
            name=name,
            recipe=recipe,
            pid=call.pid,
            ttl_s=_TTL_S,
            preemptible=True,
            wait_s=1.0,
        )
    except Unheard:
        found = call.get("workflows", name)
        if found.status == _OK:
            call.post("workflows", name, "release", token=found.body["token"])
        raise
    if answer.status == _CONFLICT:
        child.count("refused")
        return
    if not _as_wished(child, answer):
        return
    token = answer.body["token"]
    with child.witness(f"gpu-{recipe}", shared=True) as seen:
        if not seen:
            child.wrong(f"a swap goes on under {name}, which needs {recipe}")
        for _ in range(3):
            child.pause(0.02)
            if call.get("workflows", name, "preempt", token=token).body.get("requested"):
                break
    _end_workflow(child, call, name, token)


def _end_workflow(child: Child, call: Caller, name: str, token: int) -> None:
    """Release until that is certain."""
    unheard = False
    while True:
        try:
            answer = call.post("workflows", name, "release", token=token)
        except Unheard:
            unheard = True
            if call.get("workflows", name).status == _NOT_FOUND:
                return
            continue
        if answer.status != _OK and not unheard:
            child.wrong(f"a workflow that lives was swept: {answer.body}")
        return


def _register(child: Child, hf: Holdfast, call: Caller) -> None:
    """With an id of its own, so that a registration whose answer was lost can be found."""
    label, job_id = child.draw.choice(job_parts.LABELS), call.fresh()
    if job_parts.full(hf, label):
        return
    asked = {
        "prompt": "work",
        "agent_session": label,
        "job_id": job_id,
        "max_attempts": 1000,
        "timeout_sec": 3600,
    }
    try:
        if not _as_wished(child, call.post("jobs", **asked)):
            return
    except Unheard:
        if call.get("jobs", job_id).status == _NOT_FOUND:
            raise
    child.tell("registered", job=job_id)


def fetcher(child: Child, hf: Holdfast) -> bool:
    """A worker over HTTP: one job at a time, with a witness that nobody else works on it."""
    call = Caller(child, hf)
    try:
        _put_back_unheard(call)
        label, wait_s = child.draw.choice(job_parts.LABELS), 0.0 if child.draining else 0.3
        answer = call.post("queue", "pick", agent_session=label, wait_s=wait_s, pid=call.pid)
        if answer.status == _NONE:
            child.pause(0.1)
            return job_parts.left(hf) or not child.draining
        job = answer.body if _as_wished(child, answer) else None
        while job is not None:
            with child.witness(f"job-{job['job_id']}", token=job["token"]) as alone:
                if not alone:
                    child.wrong(
                        f"{job['job_id']} was claimed twice: attempt {job['attempt']}, token "
                        f"{job['token']}"
                    )
                child.pause(0.02)
            job = _ended(child, call, job["job_id"], job["token"])
            child.did()
    except Unheard:
        child.count("unsure")
    return True


def _put_back_unheard(call: Caller) -> None:
    """A claim whose answer was lost belongs to this worker. Otherwise nobody would work on it."""
    for job in call.get("jobs", status="running").body:
        if job["claimed_by"] is not None and job["claimed_by"]["pid"] == call.pid:
            call.post("jobs", job["job_id"], "requeue", token=job["token"])


def _ended(child: Child, call: Caller, job_id: str, token: int) -> object:
    """Report the result of a job until that is certain; return the next one that came with it."""
    how = (
        "status"
        if child.draining
        else child.draw.choice(["status", "status", "requeue", "finish-and-pick"])
    )
    fields = {} if how == "requeue" else {"status": "completed"}
    more = {"pid": call.pid} if how == "finish-and-pick" else {}
    unheard = False
    while True:
        try:
            answer = call.post("jobs", job_id, how, token=token, **fields, **more)
        except Unheard:
            answer = None
        if answer is not None and answer.status == _OK:
            _reported_done(child, job_id, token, how, completed=True)
            return answer.body["picked"] if how == "finish-and-pick" else None
        if answer is not None and not unheard:
            child.wrong(f"a worker that lives lost {job_id}: {answer.body}")
            return None
        unheard = True
        now = call.get("jobs", job_id).body
        if now["status"] != "running" or now["token"] != token:
            _reported_done(child, job_id, token, how, completed=now["status"] == "completed")
            return None


def _reported_done(child: Child, job_id: str, token: int, how: str, *, completed: bool) -> None:
    """A job that was put back is for another worker to end."""
    if how == "requeue":
        return
    if completed:
        child.tell("done", job=job_id, token=token)
    else:
        child.wrong(f"a worker that lives lost {job_id}, token {token}")


def _as_wished(child: Child, answer: Answer) -> bool:
    """Was it done? The reasons for a refusal were checked before."""
    if answer.status != _OK:
        child.wrong(f"refused for no reason, with {answer.status}: {answer.body}")
    return answer.status == _OK
