"""What is sent to a gateway and what it answers, as strict values."""

from typing import Annotated, Literal

import msgspec

from holdfast.kernel.codec import Plain
from holdfast.kernel.limits import QUEUE_PRUNE_LEAST_S
from holdfast.operations.gateways import RequestView
from holdfast.primitives.queue import Request


class PromptPayload(Plain, frozen=True, kw_only=True):
    """The text for the agent.

    Of control characters it may have tab and newline. Its length is bounded in bytes, which a
    schema cannot say.
    """

    prompt: Annotated[str, msgspec.Meta(min_length=1)]


class NoPayload(Plain, frozen=True, kw_only=True):
    """Nothing."""


class SubmitPrompt(Plain, frozen=True, kw_only=True, tag_field="kind", tag="submit_prompt"):
    """Ask the agent to do something."""

    schema_version: Literal[1]
    payload: PromptPayload
    expected_epoch: int | None = None


class Interrupt(Plain, frozen=True, kw_only=True, tag_field="kind", tag="interrupt"):
    """Stop what the agent does."""

    schema_version: Literal[1]
    payload: NoPayload = NoPayload()
    expected_epoch: int | None = None


NewRequest = SubmitPrompt | Interrupt


class Decision(Plain, frozen=True, kw_only=True):
    """What is to become of the requests that wait for an earlier instance: all, or those named."""

    action: Literal["replay", "discard"]
    epoch: int
    requests: list[str] | None = None


class Bounds(Plain, frozen=True, kw_only=True):
    """How many finished requests to keep, and for how long; those that a queue keeps by itself
    unless told. The least age is told here and decided where it is used, with the reason for it.
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


class Health(Plain, frozen=True, kw_only=True):
    """The gateway answers. It says nothing of the agent. `proof` answers a challenge."""

    protocol_version: str
    status: str
    proof: str | msgspec.UnsetType = msgspec.UNSET


class RequestList(Plain, frozen=True, kw_only=True):
    """Requests in the order they came."""

    requests: list[RequestView]


def view_of(request: Request) -> RequestView:
    """A request for showing."""
    return RequestView(
        request_id=request.request_id,
        kind=request.kind,
        payload=request.payload,
        state=request.state.value,
        receipt=request.receipt.value,
        epoch=request.epoch,
        arrival=request.arrival,
        accepted_at=request.accepted_at,
        started_at=request.started_at,
        finished_at=request.finished_at,
        token=request.token,
        error_code=request.error_code,
        error_detail=request.error_detail,
        result=request.result,
        idempotency_key=request.idempotency_key,
    )
