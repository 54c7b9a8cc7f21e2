"""The agent itself, and what is done by handle: state, wait, release."""

import os
from typing import Annotated

from msgspec import Meta

from holdfast.kernel.errors import InvalidValue
from holdfast.operations import locks, workflows
from holdfast.operations.fields import Label
from holdfast.operations.locks import ResourceName
from holdfast.surfaces.mcp.agents import answered, live_agent
from holdfast.surfaces.mcp.call import Call
from holdfast.surfaces.mcp.claims import Session, no_handle
from holdfast.surfaces.mcp.jobs import JobClaim, ended_job
from holdfast.surfaces.mcp.locks import LockClaim
from holdfast.surfaces.mcp.recipes import SwapClaim
from holdfast.surfaces.mcp.tool import HandleText, ToolResult, WaitS, behind, tool


@tool(reads=True)
def whoami(session: Session, call: Call) -> ToolResult:
    """Who you are to others, the queues you may claim jobs from, and every handle you have. Call
    it first, and whenever you lost track of what you hold."""
    me, agent, store = session.me, session.me.agent, session.hf.store
    return {
        "label": me.label,
        "by": me.by,
        "pid": os.getpid(),
        "agent_id": None if agent is None else agent.agent_id,
        "agent_name": None if agent is None else agent.agent_name,
        "queues": me.queues,
        "store": store.kind,
        "namespace": store.namespace,
        "may": sorted(session.may),
        "holdings": [claim.holding() for claim in session.claims()],
        "next": "claim_job takes work from your queues; acquire takes locks",
    }


@tool(reads=True)
def status(
    session: Session,
    call: Call,
    *,
    lock: Annotated[Label, Meta(description="A resource's name.")] | None = None,
    job_id: Annotated[str, Meta(description="A job's id or handle.")] | None = None,
    handle: HandleText | None = None,
    wait_s: WaitS = 0,
) -> ToolResult:
    """The state of one thing: a lock (holder, waiters, why), a job (with wait_s: when it has
    ended), or whatever has a handle. Without arguments: your handles, and which recipe is
    loaded."""
    if sum(one is not None for one in (lock, job_id, handle)) > 1:
        raise InvalidValue("status: give lock, job_id or handle, not both", field="lock")
    state: ToolResult = {"lock": None, "job": None, "holdings": [], "recipes": None, "next": ""}
    if lock is not None:
        why = locks.explain(session.hf, ResourceName(name=lock))
        words = "acquire joins its queue" if why.status.holds else "it is free"
        return state | {"lock": why, "next": words}
    if job_id is not None:
        return state | _of_job(session, job_id, wait_s, call)
    if handle is None:
        state["holdings"] = [claim.holding() for claim in session.claims()]
        return state | {"recipes": workflows.recipes(session.hf)}
    if (claim := session.find(handle)) is not None:
        state["holdings"] = [claim.holding()]
    kind = _kind(session, handle)
    if kind == "agent":
        return state | {"agent": live_agent(session, behind(handle, "agent"))}
    if kind == "request":
        return state | {"request": _of_request(session, handle, wait_s, call)}
    if kind == "job":
        return state | _of_job(session, handle, wait_s, call)
    waits = isinstance(claim, LockClaim | SwapClaim) and not claim.done
    return state | {"next": "wait with this handle to wait for it" if waits else ""}


@tool(repeatable=True)
def wait(session: Session, call: Call, *, handle: HandleText, wait_s: WaitS = 25) -> ToolResult:
    """Go on waiting by handle without losing your place: for a lock or a swap (state held or ready:
    it is your turn), for the end of a job or request, or for the answer to a job of yours that
    waits for a permission. state waiting: call again."""
    state: ToolResult = {"handle": handle, "token": None, "position": None, "ahead": []}
    claim = session.find(handle)
    if isinstance(claim, LockClaim):
        claim.wait(wait_s, call)
        return claim.state(claim.answer(session, call))
    if isinstance(claim, SwapClaim):
        claim.wait(wait_s, call)
        return state | claim.state(claim.answer(session, call))
    if isinstance(claim, JobClaim):
        return state | claim.wait(wait_s, call)
    kind = _kind(session, handle)
    if claim is not None or kind == "agent":
        raise InvalidValue(
            f"with {handle} there is nothing to wait for: `status` shows its state", field="handle"
        )
    if kind == "request":
        sent = _of_request(session, handle, wait_s, call)
        return state | {"state": sent["state"], "request": sent, "next": sent["next"]}
    found = _of_job(session, handle, wait_s, call)
    return state | {"state": found["job"].status} | found


@tool(repeatable=True)
def release(session: Session, call: Call, *, handle: HandleText) -> ToolResult:
    """Release what has this handle: a lock you hold or wait for, a claimed job (it goes back to its
    queue), work with a recipe, or a swap. Also clears a handle that pending calls lost."""
    if session.find(handle) is None:
        raise no_handle(handle)
    released = session.release(handle)
    words = "it was not yours any more, or another grant of yours still holds it: see pending"
    return {"handle": handle, "released": released, "next": "" if released else words}


def _kind(session: Session, handle: str) -> str:
    """The kind of a handle: of a claim, or of a thing that needs none. Raises NotFound."""
    kind, _, name = handle.partition(":")
    if session.find(handle) is None and not (kind in ("agent", "job", "request") and name):
        raise no_handle(handle)
    return kind


def _of_job(session: Session, handle: str, wait_s: float, call: Call) -> ToolResult:
    job = ended_job(session, behind(handle, "job"), wait_s, call)
    words = "" if job.status.ended else "call again with wait_s to wait for its end"
    return {"job": job, "next": words}


def _of_request(session: Session, handle: str, wait_s: float, call: Call) -> ToolResult:
    agent, _, request_id = behind(handle, "request").partition("/")
    return answered(session, agent, request_id, wait_s, call)
