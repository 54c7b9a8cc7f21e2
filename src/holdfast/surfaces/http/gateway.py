"""The HTTP side of a gateway as one application: messages, routes, and the gate before them."""

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from litestar import delete, get, post
from litestar.params import HeaderParameter, JSONBody, PathParameter, QueryParameter, RawBody
from litestar.types import ASGIApp

from holdfast.domains.gateway import Gateway, GatewayStatus
from holdfast.domains.gateway.proof import CHALLENGE_HEADER, CHALLENGE_PATTERN, proof_of
from holdfast.domains.gateway.records import PROTOCOL_VERSION, Reconciled
from holdfast.domains.gateway.request import Submission, draft_of
from holdfast.domains.gateway.state import Question
from holdfast.kernel.codec import Plain
from holdfast.kernel.limits import (
    GATEWAY_WAIT_MAX_S,
    LABEL_CHARS_MAX,
    LIST_MAX,
    QUEUE_PRUNE_LEAST_S,
)
from holdfast.kernel.store import JOURNAL_TOPIC, Entry
from holdfast.operations.gateways import Accepted, Detaching, RequestsPruned, RequestView
from holdfast.primitives.queue import QueueRequest, RequestState
from holdfast.primitives.queue.records import ENDED
from holdfast.primitives.queue.transaction import topic_of
from holdfast.surfaces.http.access import AccessGate, served_hosts
from holdfast.surfaces.http.events import Changes, events_route
from holdfast.surfaces.http.openapi import application
from holdfast.surfaces.http.problems import PUBLIC_PROBLEMS, SECURED, problems, strictly, takes
from holdfast.surfaces.http.shared_commit import SharedCommits

_GLANCE_EVERY_S = 0.1


class PromptPayload(Plain, frozen=True, kw_only=True):
    """The text for the agent.

    Of control characters it may have tab and newline. Its length is bounded in bytes, which a
    schema cannot say.
    """

    prompt: Annotated[str, msgspec.Meta(min_length=1)]


class NoPayload(Plain, frozen=True, kw_only=True):
    """Nothing."""


_Person = Annotated[str, msgspec.Meta(min_length=1, max_length=LABEL_CHARS_MAX)]


class SubmitPrompt(Plain, frozen=True, kw_only=True, tag_field="kind", tag="submit_prompt"):
    """Ask the agent to do something. `sender` is who asks; `sender_claimed`: only the sender says
    so.
    """

    schema_version: Literal[1]
    payload: PromptPayload
    expected_epoch: int | None = None
    sender: _Person | None = None
    sender_claimed: bool = True


class Interrupt(Plain, frozen=True, kw_only=True, tag_field="kind", tag="interrupt"):
    """Stop what the agent does. `sender` as for a prompt."""

    schema_version: Literal[1]
    payload: NoPayload = NoPayload()
    expected_epoch: int | None = None
    sender: _Person | None = None
    sender_claimed: bool = True


NewRequest = SubmitPrompt | Interrupt


class Decision(Plain, frozen=True, kw_only=True):
    """What becomes of the requests that wait for an earlier instance: all, or those named."""

    action: Literal["replay", "discard"]
    epoch: int
    requests: list[str] | None = None


class Bounds(Plain, frozen=True, kw_only=True):
    """How many finished requests to keep, and for how long; by default as the queue itself does.
    The queue refuses an age below the least one, with the reason.
    """

    keep_finished: (
        Annotated[int, msgspec.Meta(ge=0, le=1 << 53, extra_json_schema={"extra": {"minimum": 0}})]
        | None
    ) = None
    keep_s: (
        Annotated[
            float, msgspec.Meta(extra_json_schema={"extra": {"minimum": QUEUE_PRUNE_LEAST_S}})
        ]
        | None
    ) = None


class QuestionReply(Plain, frozen=True, kw_only=True):
    """The answer to a question: the name of a choice or, where it takes one, a text. `by` is who
    answers; `claimed`: only the caller says so.
    """

    reply: Annotated[str, msgspec.Meta(min_length=1)]
    by: _Person | None = None
    claimed: bool = True


class QuestionList(Plain, frozen=True, kw_only=True):
    """The questions that wait for an answer."""

    questions: tuple[Question, ...]


class Health(Plain, frozen=True, kw_only=True):
    """The gateway answers. It says nothing of the agent. `proof` answers a challenge."""

    protocol_version: str
    status: str
    proof: str | msgspec.UnsetType = msgspec.UNSET


class RequestList(Plain, frozen=True, kw_only=True):
    """Requests in the order they came."""

    requests: list[RequestView]


_NEW_REQUEST: msgspec.json.Decoder[NewRequest] = msgspec.json.Decoder(NewRequest)
_DECISION = msgspec.json.Decoder(Decision)
_BOUNDS = msgspec.json.Decoder(Bounds)
_NO_BOUNDS = Bounds()
_REPLY = msgspec.json.Decoder(QuestionReply)
_RequestId = Annotated[str, PathParameter(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
_IdempotencyKey = Annotated[
    str | None,
    HeaderParameter(name="Idempotency-Key", min_length=1, max_length=256, required=False),
]
_Challenge = Annotated[
    str, HeaderParameter(name=CHALLENGE_HEADER, pattern=CHALLENGE_PATTERN, required=False)
]


class GatewaySide:
    """The application, and what ends its waits when the server stops.

    `detach` is called when a client asks the gateway to stop.
    """

    def __init__(
        self,
        gateway: Gateway,
        *,
        token: str,
        host: str,
        port: int,
        more_hosts: Iterable[str] = (),
        detach: Callable[[], None] = lambda: None,
    ) -> None:
        changes = Changes(gateway.queue.store, [JOURNAL_TOPIC, topic_of(gateway.agent)])
        accepts = SharedCommits(gateway.accept_counted)
        prove = partial(proof_of, token, port=port)
        self.end_waits = changes.end_waits
        app = application(
            routes(gateway, changes, accepts, detach=detach, prove=prove),
            changes,
            title=f"Holdfast gateway of {gateway.agent}",
            close=accepts.close,
        )
        hosts = served_hosts(host, port, more_hosts)
        self.app: ASGIApp = AccessGate(app, token=token, hosts=hosts, public=frozenset({"/health"}))


def routes(
    gateway: Gateway,
    changes: Changes,
    accepts: SharedCommits,
    *,
    detach: Callable[[], None],
    prove: Callable[[str], str],
) -> list[Any]:
    """The routes of one gateway. `prove` answers a challenge."""

    def concerns(entry: Entry) -> bool:
        # A shared store has the entries of other gateways too.
        ours = entry.kind.startswith(("request.", "gateway."))
        return ours and entry.data.get("agent") == gateway.agent

    return [
        *_status_routes(gateway, detach, prove),
        *_question_routes(gateway),
        *_queue_routes(gateway, accepts),
        *_request_routes(gateway, changes),
        events_route(gateway.queue.store, changes, concerns),
    ]


def _secured(status_code: int, *errors: int) -> dict[str, Any]:
    """The options of a route that needs a token: its status and its errors."""
    return {"status_code": status_code, "responses": problems(*errors), "security": SECURED}


def _status_routes(
    gateway: Gateway, on_detach: Callable[[], None], prove: Callable[[str], str]
) -> list[Any]:
    glanced_s = 0.0

    @get("/health", sync_to_thread=False, responses=PUBLIC_PROBLEMS)
    def health(challenge: _Challenge = "") -> Health:
        """Does the gateway itself answer? Says nothing of the agent.

        With a challenge, it proves that it has the token.
        """
        proof = prove(challenge) if challenge else msgspec.UNSET
        return Health(protocol_version=PROTOCOL_VERSION, status="ok", proof=proof)

    @get("/v1/status", sync_to_thread=True, **_secured(200))
    def status() -> GatewayStatus:
        """How gateway and agent are doing."""
        nonlocal glanced_s
        # A look at the agent may start a program: not for each of many clients.
        if time.monotonic() - glanced_s > _GLANCE_EVERY_S:
            gateway.glance()
            glanced_s = time.monotonic()
        return gateway.status()

    @post("/v1/reconcile", sync_to_thread=True, **_secured(200, 404, 409, 412))
    def reconcile(data: JSONBody[Decision], body: RawBody) -> Reconciled:  # noqa: ARG001
        """Decide what becomes of the requests that wait for an earlier instance of the agent; then
        admission opens.
        """
        decision = strictly(_DECISION, body)
        return gateway.reconcile(decision.action, epoch=decision.epoch, requests=decision.requests)

    @post("/v1/detach", sync_to_thread=False, **_secured(202))
    def detach() -> Detaching:
        """Stop this gateway, as SIGTERM does. What was accepted waits for the next one."""
        on_detach()
        return Detaching()

    return [health, status, reconcile, detach]


def _question_routes(gateway: Gateway) -> list[Any]:
    @get("/v1/questions", sync_to_thread=True, **_secured(200))
    def questions() -> QuestionList:
        """What the agent asks its operator now."""
        return QuestionList(questions=gateway.glance().questions)

    @post("/v1/questions/{question_id:str}/answer", sync_to_thread=True, **_secured(200, 404, 412))
    def answer(
        question_id: _RequestId,
        data: JSONBody[QuestionReply],  # noqa: ARG001
        body: RawBody,
    ) -> Question:
        """Answer a question of the agent, and return the question."""
        given = strictly(_REPLY, body)
        claimed = given.claimed and given.by is not None
        return gateway.reply(question_id, given.reply, by=given.by or "", claimed=claimed)

    return [questions, answer]


def _queue_routes(gateway: Gateway, accepts: SharedCommits) -> list[Any]:
    @post("/v1/requests", **_secured(202, 409, 412, 429))
    async def accept(
        # `data` is for the schema only. The body is decoded strictly: the framework would take "1"
        # for 1.
        data: JSONBody[NewRequest],  # noqa: ARG001
        body: RawBody,
        idempotency_key: _IdempotencyKey = None,
    ) -> Accepted:
        """Accept a request: it is stored, durably, before this is answered.

        The same Idempotency-Key again answers the same request.
        """
        submitted = strictly(_NEW_REQUEST, body)
        kind, payload = "interrupt", {}
        if isinstance(submitted, SubmitPrompt):
            kind, payload = "submit_prompt", {"prompt": submitted.payload.prompt}
        draft = draft_of(
            kind,
            payload,
            gateway.adapter.check,
            idempotency_key=idempotency_key,
            sender=submitted.sender,
            sender_claimed=submitted.sender_claimed and submitted.sender is not None,
            name_sender=gateway.name_sender,
        )
        stored, depth = await accepts.accept(Submission(draft, submitted.expected_epoch))
        return Accepted(
            request_id=stored.request_id,
            state=stored.state.value,
            accepted_at=stored.accepted_at,
            queue_depth=depth,
            epoch=stored.epoch,
        )

    @get("/v1/requests", sync_to_thread=True, opt=takes("state", "limit"), **_secured(200))
    def list_requests(
        state_: Annotated[RequestState | None, QueryParameter(name="state", required=False)] = None,
        limit: Annotated[int, QueryParameter(ge=0, le=LIST_MAX)] = 100,
    ) -> RequestList:
        """Requests in the order they came, the newest of those that match."""
        found = gateway.queue.list(state=state_, limit=limit, damaged=[])
        return RequestList(requests=[view_of(one) for one in found])

    @post("/v1/prune", sync_to_thread=True, **_secured(200))
    def prune(body: RawBody, data: JSONBody[Bounds] = _NO_BOUNDS) -> RequestsPruned:  # noqa: ARG001
        """Remove finished requests beyond the bounds, with their idempotency keys.

        Those that ended within a day stay.
        """
        bounds = strictly(_BOUNDS, body or b"{}")
        removed = gateway.queue.prune(keep_finished=bounds.keep_finished, keep_s=bounds.keep_s)
        return RequestsPruned(removed=removed)

    return [accept, list_requests, prune]


def _request_routes(gateway: Gateway, changes: Changes) -> list[Any]:
    path = "/v1/requests/{request_id:str}"

    @get(path, opt=takes("wait_s"), **_secured(200, 404))
    async def get_request(
        request_id: _RequestId,
        wait_s: Annotated[float, QueryParameter(ge=0, le=GATEWAY_WAIT_MAX_S)] = 0.0,
    ) -> RequestView:
        """A request; with `wait_s` when it has ended, or as it stands after that time."""
        deadline_s = time.monotonic() + wait_s
        request = await asyncio.to_thread(gateway.queue.get, request_id)
        if wait_s and request.state not in ENDED:
            async with changes.watched():
                while True:
                    mark = changes.mark
                    request = await asyncio.to_thread(gateway.queue.get, request_id)
                    left_s = deadline_s - time.monotonic()
                    if request.state in ENDED or left_s <= 0 or changes.closed:
                        break
                    await changes.wait(mark, left_s)
        return view_of(request)

    @delete(path, sync_to_thread=True, **_secured(200, 404, 409))
    def cancel(request_id: _RequestId) -> RequestView:
        """Cancel a request that has not begun."""
        return view_of(gateway.cancel(request_id))

    return [get_request, cancel]


def view_of(request: QueueRequest) -> RequestView:
    """A request for showing."""
    return msgspec.convert(request, RequestView, from_attributes=True)
