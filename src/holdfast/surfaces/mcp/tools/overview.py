"""`whoami` and `status`."""

import time
from typing import Annotated

from msgspec import Meta

from holdfast.domains.jobs import Job
from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.limits import ID_CHARS_MAX, LABEL_CHARS_MAX
from holdfast.kernel.store import JOURNAL_TOPIC
from holdfast.surfaces.mcp.answers import Holding, Me, Status, job_view, recipes_view
from holdfast.surfaces.mcp.cancellation import Call
from holdfast.surfaces.mcp.claims import Hand
from holdfast.surfaces.mcp.tool import Tool, WaitS


class WhoamiArguments(Plain, frozen=True, kw_only=True):
    """Nothing."""


class StatusArguments(Plain, frozen=True, kw_only=True):
    """A lock's name or a job's id, or neither."""

    lock: (
        Annotated[
            str, Meta(min_length=1, max_length=LABEL_CHARS_MAX, description="A resource's name.")
        ]
        | None
    ) = None
    job_id: (
        Annotated[str, Meta(min_length=1, max_length=ID_CHARS_MAX, description="A job's id.")]
        | None
    ) = None
    wait_s: WaitS = 0


def whoami(hand: Hand, _: WhoamiArguments, call: Call) -> Me:
    """Who the caller is."""
    me, agent = hand.me, hand.me.agent
    return Me(
        label=me.label,
        by=me.by,
        pid=hand.hf.processes.current().pid,
        agent_id=None if agent is None else agent.agent_id,
        agent_name=None if agent is None else agent.agent_name,
        queues=me.queues,
        store=hand.hf.store.kind,
        namespace=hand.hf.store.namespace,
        holdings=_holdings(hand),
        next="claim_job takes work from your queues; acquire takes locks",
    )


def status(hand: Hand, asked: StatusArguments, call: Call) -> Status:
    """How a lock, a job, or the caller stands."""
    if asked.lock is not None and asked.job_id is not None:
        raise InvalidValue("status: give lock or job_id, not both", field="lock")
    if asked.lock is not None:
        explanation = hand.hf.locks.explain(asked.lock)
        return Status(
            lock=explanation,
            next="acquire gets in line for it" if explanation.status.holds else "it is free",
        )
    if asked.job_id is not None:
        job = _ended(hand, asked.job_id, asked.wait_s, call)
        return Status(
            job=job_view(job),
            next="" if job.status.ended else "call again with wait_s to wait for its end",
        )
    return Status(
        holdings=_holdings(hand), recipes=recipes_view(hand.hf.workflows.swap_status(damaged=[]))
    )


def _holdings(hand: Hand) -> tuple[Holding, ...]:
    return tuple(claim.holding() for claim in hand.claims())


def _ended(hand: Hand, job_id: str, wait_s: float, call: Call) -> Job:
    """The job, when it has ended or the time is over."""
    end_s = time.monotonic() + wait_s
    with hand.hf.store.listen([JOURNAL_TOPIC]) as ears:
        while True:
            job = hand.hf.jobs.get_job(job_id)
            left_s = end_s - time.monotonic()
            if (
                job.status.ended
                or left_s <= 0
                or call.stop.fd in ears.wait(left_s, also=[call.stop.fd]).ready
            ):
                return job


LOOKING_TOOLS = (
    Tool(
        "whoami",
        "Tells who you are to others, which job queues you may claim from, and every handle you "
        "have. Use it first, and "
        "whenever you lost track of what you hold.",
        WhoamiArguments,
        Me,
        whoami,
        only_looks=True,
        again_is_harmless=True,
    ),
    Tool(
        "status",
        "Shows how something stands. With lock: who holds that resource, who waits, and why. With "
        "job_id: a job and its "
        "result; with wait_s it waits for the job's end. With neither: your handles, and which "
        "recipe is loaded.",
        StatusArguments,
        Status,
        status,
        only_looks=True,
        again_is_harmless=True,
    ),
)
