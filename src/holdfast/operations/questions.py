"""Questions that wait for an operator: those of agents, which their gateways report, and those of
jobs that wait for a permission. One list has both, and one operation answers both.
"""

from typing import TYPE_CHECKING, Annotated, Literal, Protocol

import msgspec

from holdfast.adapters.gateway_folder import GatewayFolder
from holdfast.domains.agents.records import inner
from holdfast.domains.gateway.state import ALLOW, DENY, Choice, Question
from holdfast.domains.jobs.event_stream import JobEvents, WaitingJob
from holdfast.kernel.codec import Instant, Plain
from holdfast.kernel.errors import (
    Ambiguous,
    Fenced,
    InvalidName,
    NotFound,
    Unavailable,
)
from holdfast.kernel.limits import QUESTION_CHARS, REPLY_BYTES_MAX
from holdfast.kernel.text import clipped
from holdfast.operations.fields import AgentName, Id, described
from holdfast.operations.gateways import GatewayKey, Sender
from holdfast.operations.operation import Argument, operation
from holdfast.runtime.configuration import actor_here, gateway_root

if TYPE_CHECKING:
    from holdfast.adapters.gateway_client import GatewayClient
    from holdfast.kernel.settings import Settings
    from holdfast.runtime.connection import Holdfast

_JOB = "job."
"""Begins the id of a job's question: `job.`, the job's id, a dot and the number of its event."""
_TMUX = "tmux:"


class AskedPlace(Protocol):
    """Where questions are found: a connection, or the address of one gateway."""

    def gateway(self, agent: str) -> "GatewayClient":
        """The client of an agent's gateway."""

    @property
    def job_events(self) -> JobEvents | None:
        """The events of jobs; None at the address of a gateway."""

    @property
    def settings(self) -> "Settings":
        """The settings in force."""


class AnswerQuestion(GatewayKey, frozen=True, kw_only=True):
    """The answer to a question: the name of a choice or, where it takes one, a text."""

    agent: Annotated[AgentName, Argument("Who asks, as `find_agents` names it.", handle="agent")]
    question_id: Annotated[Id, Argument("From the agent's questions.")]
    reply: Annotated[
        str,
        described("The name of a choice, or a text.", min_length=1, max_length=REPLY_BYTES_MAX),
        Argument("allow, deny, the name of another choice, or a text where it takes one."),
    ]
    by: Sender = None


class OpenQuestion(Plain, frozen=True, kw_only=True):
    """A question that waits for an answer. `agent` asks it; `source` says whether its gateway
    reports it, or a job that it works on waits for a permission.

    Without `choices` it can only be answered in the agent's own terminal. With `free_text` any
    other text is an answer too: of a permission it refuses, and says why.
    """

    agent: str
    question_id: str
    source: Literal["gateway", "job"]
    kind: Literal["permission", "choice", "dialog"]
    subject: str
    detail: str
    choices: tuple[Choice, ...]
    free_text: bool
    asked_at: Instant
    expires_at: Instant | None
    job_id: str | None = None


class Answered(Plain, frozen=True, kw_only=True):
    """A question and its answer, which the agent has."""

    agent: str
    question_id: str
    subject: str
    reply: str
    by: str


@operation("GET /v1/questions", cli="gateway questions")
def list_(hf: "Holdfast") -> list[OpenQuestion]:
    """The questions of all gateways of this machine and of all jobs, the oldest first.

    It asks no gateway: each has published its questions.
    """
    found = []
    for name in hf.gateways():
        status = GatewayFolder(gateway_root(hf.settings, name)).published(hf.processes)
        found += [of_gateway(name, one) for one in (() if status is None else status.questions)]
    found += [_of_job(one) for one in hf.job_events.waiting()]
    return sorted(found, key=lambda one: (one.asked_at, one.question_id))


@operation(
    "GET /v1/gateways/{agent}/questions", cli="gateway questions", errors=(NotFound,), outside=True
)
def of_agent(hf: AskedPlace, request: GatewayKey) -> list[OpenQuestion]:
    """The questions of an agent, and of the jobs that were picked from its queue, the oldest first.

    The queue of an agent has its name, or that of its tmux session behind `tmux:`.
    """
    agent = asker(request.agent)
    jobs = [] if hf.job_events is None else hf.job_events.waiting()
    found = [_of_job(one) for one in jobs if asker(one.job.agent_session) == agent]
    try:
        asked = hf.gateway(request.agent).questions()
    except (Unavailable, InvalidName):
        if not found:
            raise
        asked = []
    found += [of_gateway(agent, _converted(one)) for one in asked]
    return sorted(found, key=lambda one: (one.asked_at, one.question_id))


@operation(
    "POST /v1/gateways/{agent}/questions/{question_id}/answer",
    cli="gateway answer",
    mcp="answer_question",
    errors=(NotFound, Fenced),
    outside=True,
)
def answer(hf: AskedPlace, request: AnswerQuestion) -> Answered:
    """Answer a question of an agent, or of a job that waits for a permission.

    The journal keeps who answered what. An answer is never given twice: the second one is refused,
    as the question is over.
    """
    return reply(hf, request, claimed=request.by is not None)


def reply(hf: AskedPlace, request: AnswerQuestion, *, claimed: bool) -> Answered:
    """Answer a question; `claimed`: only the caller says that it is `by`."""
    by = request.by or hf.settings.actor or actor_here()
    if request.question_id.startswith(_JOB) and hf.job_events is not None:
        subject = _answer_job(hf.job_events, request, by, claimed)
    else:
        question = hf.gateway(request.agent).reply(
            request.question_id, request.reply, by=by, claimed=claimed
        )
        subject = _converted(question).subject
    return Answered(
        agent=asker(request.agent),
        question_id=request.question_id,
        subject=subject,
        reply=request.reply,
        by=by,
    )


def only_question(hf: AskedPlace, agent: str) -> str:
    """The id of the one open question of an agent. Raises NotFound and Ambiguous."""
    found: list[OpenQuestion] = of_agent(hf, GatewayKey(agent=agent))
    if not found:
        raise NotFound(
            f"{agent} asks nothing that can be answered from here: `holdfast gateway status "
            f"{agent}` says what it waits for",
            agent=agent,
        )
    if len(found) > 1:
        ids = ", ".join(one.question_id for one in found[:4])
        raise Ambiguous(
            f"{agent} asks {len(found)} questions: name the one that you answer, of {ids}",
            agent=agent,
        )
    return found[0].question_id


def _answer_job(events: JobEvents, request: AnswerQuestion, by: str, claimed: bool) -> str:
    job_id, _, seq = request.question_id.removeprefix(_JOB).rpartition(".")
    asked = next((one for one in events.waiting() if _id_of(one) == request.question_id), None)
    if asked is None or asker(asked.job.agent_session) != asker(request.agent):
        raise NotFound(
            f"no job of {request.agent} asks {request.question_id[:60]} now: it was answered, or "
            "its worker went on",
            question_id=request.question_id[:128],
        )
    events.answer(job_id, int(seq), request.reply, by=by, claimed=claimed)
    return _of_job(asked).subject


def asker(agent: str) -> str:
    """Who asks: an agent's name without a prefix, also from the label of its queue; or another
    label.
    """
    word = agent.removeprefix(_TMUX)
    try:
        return inner(word)
    except InvalidName:
        return agent


def of_gateway(agent: str, question: Question) -> OpenQuestion:
    """A question that an agent's gateway reports."""
    return OpenQuestion(agent=agent, source="gateway", **msgspec.structs.asdict(question))


def _of_job(waiting: WaitingJob) -> OpenQuestion:
    job, event = waiting
    return OpenQuestion(
        agent=asker(job.agent_session),
        question_id=_id_of(waiting),
        source="job",
        kind="permission",
        subject=clipped(event.detail, QUESTION_CHARS) or "it asks for a permission",
        detail=event.detail,
        choices=(ALLOW, DENY),
        free_text=True,
        asked_at=event.timestamp,
        expires_at=None,
        job_id=job.job_id,
    )


def _id_of(waiting: WaitingJob) -> str:
    return f"{_JOB}{waiting.job.job_id}.{waiting.event.seq}"


def _converted(question: object) -> Question:
    try:
        return msgspec.convert(question, Question)
    except msgspec.ValidationError as error:
        raise Unavailable(
            f"the gateway is of another version: {error}", outcome="unknown"
        ) from None


OPERATIONS = [list_, of_agent, answer]
