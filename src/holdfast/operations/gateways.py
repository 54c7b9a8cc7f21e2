"""Gateways of agents, each called with its own token."""

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeVar

import msgspec
from msgspec import Meta

from holdfast.domains.gateway import GatewayStatus
from holdfast.domains.gateway.records import Reconciled
from holdfast.kernel.codec import Instant, Plain
from holdfast.kernel.errors import (
    Fenced,
    HoldfastError,
    InvalidValue,
    NotFound,
    Refused,
    Unavailable,
)
from holdfast.kernel.limits import (
    LABEL_CHARS_MAX,
    LIST_MAX,
    PROMPT_BYTES_MAX,
    QUEUE_KEEP_LEAST,
    QUEUE_KEEP_REQUESTS,
    QUEUE_KEEP_S,
)
from holdfast.operations.fields import (
    DAY_S,
    AgentName,
    Count,
    Id,
    Label,
    Limit,
    Seconds,
    WaitSeconds,
    described,
)
from holdfast.operations.operation import Argument, Flag, Positional, Request, Wait, operation
from holdfast.primitives.queue import RequestState

if TYPE_CHECKING:
    from holdfast.adapters.gateway_client import GatewayClient

T = TypeVar("T")

_Prompt = Annotated[
    str,
    described(
        "The text for the agent; of control characters it may have tab and newline.", min_length=1
    ),
]
_Agent = Annotated[AgentName, Positional()]
Sender = (
    Annotated[
        str,
        described(
            "Who asks, in your own words: it is shown as claimed. By default the server's actor.",
            min_length=1,
            max_length=LABEL_CHARS_MAX,
        ),
    ]
    | None
)


class Gateways(Protocol):
    """Where gateways are found: a connection, or an address that the user gave."""

    def gateway(self, agent: str) -> "GatewayClient":
        """The client of an agent's gateway."""

    def gateways(self) -> list[str]:
        """The agents that have, or had, a gateway here."""


class GatewayKey(Request, frozen=True, kw_only=True):
    """An agent that has a gateway."""

    agent: _Agent


class Prompt(GatewayKey, frozen=True, kw_only=True):
    """What the agent is to do. The same key again is the same request."""

    prompt: _Prompt
    idempotency_key: Annotated[
        Label | None,
        Flag("--key", help="An idempotency key of your own: the same again is the same request."),
    ] = None
    expected_epoch: Annotated[
        Count | None,
        Flag("--epoch", within=(0, None), help="Only if this is the agent's epoch."),
    ] = None
    sender: Sender = None


class InterruptAgent(GatewayKey, frozen=True, kw_only=True):
    """The agent that is to stop. The same key again is the same request."""

    idempotency_key: Label | None = None
    sender: Sender = None


class SendRequest(Request, frozen=True, kw_only=True):
    """A prompt for an agent, or an interrupt. The same key again is the same request."""

    agent: Annotated[AgentName, Argument("Its name, id or handle.", handle="agent")]
    kind: Annotated[Literal["prompt", "interrupt"], Argument()] = "prompt"
    prompt: Annotated[
        _Prompt | None,
        Argument(
            f"What to say to the agent, in at most {PROMPT_BYTES_MAX} bytes of UTF-8.",
            max_length=PROMPT_BYTES_MAX,
        ),
    ] = None
    idempotency_key: Annotated[
        Label | None, Argument("The same key again is the same request.")
    ] = None
    sender: Label | None = None
    """The agent that sends it, as its own server knows it."""


class ListRequests(GatewayKey, frozen=True, kw_only=True):
    """Which requests of an agent, the newest."""

    state: Annotated[RequestState | None, Flag("--state", help="Only those in this state.")] = None
    limit: Annotated[
        Limit,
        Flag(
            "--limit",
            within=(0, LIST_MAX),
            show_default=True,
            help="At most this many, the newest.",
        ),
    ] = 100


class RequestKey(Request, frozen=True, kw_only=True):
    """A request of an agent."""

    agent: Annotated[
        _Agent, Argument("Whom it was sent to, unless by handle.", default=None, handle="agent")
    ]
    request_id: Annotated[
        Id, Positional(), Argument("Its id or handle, from send_request.", handle="request")
    ]


class GetRequest(RequestKey, frozen=True, kw_only=True):
    """A request of an agent, and how long to wait for its end."""

    wait_s: WaitSeconds = 0.0


class ReconcileGateway(GatewayKey, frozen=True, kw_only=True):
    """What becomes of all requests, or of some, that wait for an agent that was replaced."""

    action: Annotated[Literal["replay", "discard"], Positional()]
    epoch: Annotated[
        Count,
        Flag(
            "--epoch",
            within=(0, None),
            help="The epoch that you decide about, as the status shows it.",
        ),
    ]
    requests: Annotated[
        Annotated[list[Id], Meta(max_length=1000)] | None,
        Flag("--request", metavar="ID", help="Only this one; repeatable.  [default: all]"),
    ] = None


class PruneRequests(GatewayKey, frozen=True, kw_only=True):
    """How many finished requests of an agent to keep, and for how long; the queue has defaults."""

    keep_finished: Annotated[
        Count | None,
        Flag(
            "--keep",
            within=(0, None),
            help=f"How many finished requests to keep.  [default: {QUEUE_KEEP_REQUESTS}]",
        ),
    ] = None
    keep_s: Annotated[
        Seconds | None,
        Flag(
            "--keep-days",
            unit_s=DAY_S,
            help="For how many days to keep them, 1 or more.  "
            f"[default: {QUEUE_KEEP_S / DAY_S:g}, and the last {QUEUE_KEEP_LEAST}]",
        ),
    ] = None


class Accepted(Plain, frozen=True, kw_only=True):
    """A request was stored, durably."""

    request_id: str
    state: str
    accepted_at: Instant
    queue_depth: int
    epoch: int


class RequestView(Plain, frozen=True, kw_only=True):
    """A request, as it stands."""

    request_id: str
    kind: str
    payload: dict[str, Any]
    state: str
    receipt: str
    epoch: int
    arrival: int
    accepted_at: Instant
    started_at: Instant | None
    finished_at: Instant | None
    token: int | None
    error_code: str | None
    error_detail: str | None
    result: dict[str, Any] | None
    idempotency_key: str | None
    sender: str | None = None
    sender_claimed: bool = False
    """Only the sender itself says who it is."""


class SentRequest(Plain, frozen=True, kw_only=True):
    """A request in short, as far as it has got, and the agent's answer."""

    agent: str
    request_id: str
    state: str
    epoch: int
    sender: str | None = None
    answer: str | None = None
    error_code: str | None = None
    error: str | None = None


class RequestsPruned(Plain, frozen=True, kw_only=True):
    """How many finished requests were removed."""

    removed: int


class Detaching(Plain, frozen=True, kw_only=True):
    """The gateway is stopping."""

    status: str = "detaching"


@operation("GET /v1/gateways")
def list_(hf: Gateways) -> list[str]:
    """The agents that have, or had, a gateway on the server's machine."""
    return hf.gateways()


@operation("GET /v1/gateways/{agent}", cli="gateway status", errors=(NotFound,), outside=True)
def status(hf: Gateways, request: GatewayKey) -> GatewayStatus:
    """Show the state of a gateway and its agent.

    When no gateway answers: what the last one left.
    """
    return _converted(hf.gateway(request.agent).status(), GatewayStatus)


@operation(
    "POST /v1/gateways/{agent}/prompt",
    cli="gateway prompt",
    errors=(NotFound, Refused, Fenced),
    outside=True,
)
def prompt(hf: Gateways, request: Prompt) -> Accepted:
    """Hand a prompt to an agent. It is stored, durably, before this returns."""
    accepted = hf.gateway(request.agent).prompt(
        request.prompt,
        idempotency_key=request.idempotency_key,
        expected_epoch=request.expected_epoch,
        sender=request.sender,
    )
    return _converted(accepted, Accepted)


@operation(
    "POST /v1/gateways/{agent}/interrupt",
    cli="gateway interrupt",
    errors=(NotFound, Refused, Fenced),
    outside=True,
)
def interrupt(hf: Gateways, request: InterruptAgent) -> Accepted:
    """Stop what the agent does. The interrupt does not wait behind what it is to stop."""
    accepted = hf.gateway(request.agent).interrupt(
        idempotency_key=request.idempotency_key, sender=request.sender
    )
    return _converted(accepted, Accepted)


def _unsend(hf: Gateways, sent: SentRequest, _: Wait) -> None:
    with suppress(HoldfastError):
        # It has begun, or the gateway is away: then it goes on.
        hf.gateway(sent.agent).cancel(sent.request_id)


@operation(mcp="send_request", errors=(NotFound, Refused, Fenced), outside=True, undo=_unsend)
def send(hf: Gateways, request: SendRequest) -> SentRequest:
    """Send a prompt or an interrupt to an agent. It is stored, durably, before this returns."""
    if (request.prompt is None) != (request.kind == "interrupt"):
        raise InvalidValue("a prompt needs its text, and an interrupt has none", field="prompt")
    gateway = hf.gateway(request.agent)
    known: dict[str, Any] = {
        "idempotency_key": request.idempotency_key,
        "sender": request.sender,
        "claimed": False,
    }
    if request.prompt is None:
        sent = gateway.interrupt(**known)
    else:
        sent = gateway.prompt(request.prompt, **known)
    return _in_short(request.agent, sent)


@operation(mcp="request_status", errors=(NotFound,), outside=True)
def progress(hf: Gateways, request: GetRequest) -> SentRequest:
    """A request in short, with the agent's answer; with `wait_s` when it has ended."""
    found = hf.gateway(request.agent).request(request.request_id, wait_s=request.wait_s)
    return _in_short(request.agent, found)


def _in_short(agent: str, request: dict[str, Any]) -> SentRequest:
    return SentRequest(
        agent=agent,
        request_id=request["request_id"],
        state=request["state"],
        epoch=request["epoch"],
        sender=request.get("sender"),
        answer=(request.get("result") or {}).get("text"),
        error_code=request.get("error_code") or None,
        error=request.get("error_detail") or None,
    )


@operation(
    "GET /v1/gateways/{agent}/requests", cli="gateway requests", errors=(NotFound,), outside=True
)
def requests(hf: Gateways, request: ListRequests) -> list[RequestView]:
    """An agent's requests in the order they came, the newest of those that match."""
    state = None if request.state is None else request.state.value
    found = hf.gateway(request.agent).requests(state=state, limit=request.limit)
    return [_converted(one, RequestView) for one in found]


@operation("GET /v1/gateways/{agent}/requests/{request_id}", errors=(NotFound,), outside=True)
def request(hf: Gateways, request: GetRequest) -> RequestView:
    """A request; with `wait_s` when it has ended, or as it stands after that time."""
    found = hf.gateway(request.agent).request(request.request_id, wait_s=request.wait_s)
    return _converted(found, RequestView)


@operation(
    "DELETE /v1/gateways/{agent}/requests/{request_id}",
    cli="gateway cancel",
    errors=(NotFound, Refused),
    outside=True,
)
def cancel(hf: Gateways, request: RequestKey) -> RequestView:
    """Cancel a request that has not begun."""
    return _converted(hf.gateway(request.agent).cancel(request.request_id), RequestView)


@operation(
    "POST /v1/gateways/{agent}/reconcile",
    cli="gateway reconcile",
    errors=(NotFound, Refused),
    outside=True,
)
def reconcile(hf: Gateways, request: ReconcileGateway) -> Reconciled:
    """Decide what becomes of the requests that wait for an agent that was replaced.

    They are delivered to the new one, or discarded; then admission opens.
    """
    decided = hf.gateway(request.agent).reconcile(
        request.action, epoch=request.epoch, requests=request.requests
    )
    return _converted(decided, Reconciled)


@operation("POST /v1/gateways/{agent}/prune", cli="gateway prune", errors=(NotFound,), outside=True)
def prune(hf: Gateways, request: PruneRequests) -> RequestsPruned:
    """Remove an agent's finished requests beyond the bounds, with their idempotency keys.

    Those that ended within a day stay, whatever the bounds: a prompt that is sent again must not
    be delivered again.
    """
    pruned = hf.gateway(request.agent).prune(
        keep_finished=request.keep_finished, keep_s=request.keep_s
    )
    return _converted(pruned, RequestsPruned)


@operation(
    "POST /v1/gateways/{agent}/detach", cli="gateway detach", errors=(NotFound,), outside=True
)
def detach(hf: Gateways, request: GatewayKey) -> Detaching:
    """Stop an agent's gateway.

    What was accepted waits for the next one; the agent itself is left alone.
    """
    return _converted(hf.gateway(request.agent).detach(), Detaching)


def _converted(answer: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise Unavailable(
            f"the gateway is of another version: {error}", outcome="unknown"
        ) from None


OPERATIONS = [
    *(list_, status, prompt, interrupt, send, requests, request, progress, cancel, reconcile),
    *(prune, detach),
]
