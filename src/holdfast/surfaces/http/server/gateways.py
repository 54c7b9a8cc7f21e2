"""Gateways over HTTP: those on the server's machine, asked with their own tokens."""

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from holdfast.domains.gateway import Status
from holdfast.domains.gateway.gateway import Reconciled
from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import Unavailable
from holdfast.primitives.queue import RequestState
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.http.gateway.messages import Accepted, Detaching, RequestsPruned, RequestView
from holdfast.surfaces.http.server.fields import (
    AgentName,
    Count,
    Id,
    Label,
    Limit,
    Seconds,
    Wait,
    told,
)
from holdfast.surfaces.http.server.operation import operation

T = TypeVar("T")

_Prompt = Annotated[
    str,
    told(
        "The text for the agent; of control characters it may have tab and newline.", min_length=1
    ),
]


class OfGateway(Plain, frozen=True, kw_only=True):
    """An agent that has a gateway."""

    agent: AgentName


class Prompt(Plain, frozen=True, kw_only=True):
    """What the agent is to do. The same key again is the same request."""

    agent: AgentName
    prompt: _Prompt
    idempotency_key: Label | None = None
    expected_epoch: Count | None = None


class InterruptAgent(Plain, frozen=True, kw_only=True):
    """The agent that is to stop. The same key again is the same request."""

    agent: AgentName
    idempotency_key: Label | None = None


class ListRequests(Plain, frozen=True, kw_only=True):
    """Which requests of an agent, the newest."""

    agent: AgentName
    state: RequestState | None = None
    limit: Limit = 100


class GetRequest(Plain, frozen=True, kw_only=True):
    """A request of an agent, and how long to wait for its end."""

    agent: AgentName
    request_id: Id
    wait_s: Wait = 0.0


class CancelRequest(Plain, frozen=True, kw_only=True):
    """A request of an agent."""

    agent: AgentName
    request_id: Id


class ReconcileGateway(Plain, frozen=True, kw_only=True):
    """What is to become of the requests that wait for an earlier instance of the agent: all, or
    those named.
    """

    agent: AgentName
    action: Literal["replay", "discard"]
    epoch: Count
    requests: Annotated[list[Id], Meta(max_length=1000)] | None = None


class PruneRequests(Plain, frozen=True, kw_only=True):
    """How many finished requests of an agent to keep, and for how long; those that a queue keeps by
    itself unless told.
    """

    agent: AgentName
    keep_finished: Count | None = None
    keep_s: Seconds | None = None


@operation("GET", "/v1/gateways")
def list_(hf: Holdfast) -> list[str]:
    """The agents that have, or had, a gateway on the server's machine."""
    return hf.gateways()


@operation("GET", "/v1/gateways/{agent}", problems=(404,), outside=True)
def status(hf: Holdfast, asked: OfGateway) -> Status:
    """How an agent's gateway and the agent itself are doing; what the last gateway left when none
    answers.
    """
    return _told(hf.gateway(asked.agent).status(), Status)


@operation("POST", "/v1/gateways/{agent}/prompt", problems=(404, 409, 412), outside=True)
def prompt(hf: Holdfast, asked: Prompt) -> Accepted:
    """Hand a prompt to an agent. It is stored, durably, before this is answered."""
    gateway = hf.gateway(asked.agent)
    accepted = gateway.prompt(
        asked.prompt, idempotency_key=asked.idempotency_key, expected_epoch=asked.expected_epoch
    )
    return _told(accepted, Accepted)


@operation("POST", "/v1/gateways/{agent}/interrupt", problems=(404, 409, 412), outside=True)
def interrupt(hf: Holdfast, asked: InterruptAgent) -> Accepted:
    """Stop what the agent does; it does not wait behind what it is to stop."""
    return _told(hf.gateway(asked.agent).interrupt(idempotency_key=asked.idempotency_key), Accepted)


@operation("GET", "/v1/gateways/{agent}/requests", problems=(404,), outside=True)
def requests(hf: Holdfast, asked: ListRequests) -> list[RequestView]:
    """An agent's requests in the order they came, the newest of those that match."""
    state = None if asked.state is None else asked.state.value
    return [
        _told(one, RequestView)
        for one in hf.gateway(asked.agent).requests(state=state, limit=asked.limit)
    ]


@operation("GET", "/v1/gateways/{agent}/requests/{request_id}", problems=(404,), outside=True)
def request(hf: Holdfast, asked: GetRequest) -> RequestView:
    """A request; with `wait_s` when it has ended, or as it stands after that time."""
    return _told(
        hf.gateway(asked.agent).request(asked.request_id, wait_s=asked.wait_s), RequestView
    )


@operation(
    "DELETE", "/v1/gateways/{agent}/requests/{request_id}", problems=(404, 409), outside=True
)
def cancel(hf: Holdfast, asked: CancelRequest) -> RequestView:
    """Cancel a request that was not begun."""
    return _told(hf.gateway(asked.agent).cancel(asked.request_id), RequestView)


@operation("POST", "/v1/gateways/{agent}/reconcile", problems=(404, 409), outside=True)
def reconcile(hf: Holdfast, asked: ReconcileGateway) -> Reconciled:
    """Decide what becomes of the requests that wait for an agent that was replaced; then admission
    opens.
    """
    gateway = hf.gateway(asked.agent)
    return _told(
        gateway.reconcile(asked.action, epoch=asked.epoch, requests=asked.requests), Reconciled
    )


@operation("POST", "/v1/gateways/{agent}/prune", problems=(404,), outside=True)
def prune(hf: Holdfast, asked: PruneRequests) -> RequestsPruned:
    """Remove an agent's finished requests beyond the bounds, with their keys. Those that ended
    within a day stay.
    """
    gateway = hf.gateway(asked.agent)
    return _told(
        gateway.prune(keep_finished=asked.keep_finished, keep_s=asked.keep_s), RequestsPruned
    )


@operation("POST", "/v1/gateways/{agent}/detach", problems=(404,), outside=True)
def detach(hf: Holdfast, asked: OfGateway) -> Detaching:
    """Stop an agent's gateway. What was accepted waits for the next one; the agent itself is left
    alone.
    """
    return _told(hf.gateway(asked.agent).detach(), Detaching)


def _told(answer: dict[str, Any], kind: type[T]) -> T:
    """What a gateway answered. Raises Unavailable when it is of another version."""
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise Unavailable(
            f"the gateway is of another version: {error}", outcome="unknown"
        ) from None


OPERATIONS = [list_, status, prompt, interrupt, requests, request, cancel, reconcile, prune, detach]
