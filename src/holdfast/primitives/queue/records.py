"""A request: its record, its states, and the table of their transitions."""

import enum
from collections.abc import Mapping
from typing import Any

from holdfast.kernel.codec import Instant, Plain, Record
from holdfast.kernel.order import Parts
from holdfast.kernel.space import Space


class RequestState(enum.StrEnum):
    """Where a request stands."""

    ACCEPTED = "accepted"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


class Receipt(enum.StrEnum):
    """How far a request got on its way to the agent."""

    ACCEPTED = "accepted"
    DELIVERED = "delivered"
    ANSWERED = "answered"


TRANSITIONS: Mapping[RequestState, frozenset[RequestState]] = {
    RequestState.ACCEPTED: frozenset(
        {RequestState.RUNNING, RequestState.FAILED, RequestState.ACCEPTED}
    ),
    RequestState.RUNNING: frozenset(
        {RequestState.COMPLETED, RequestState.FAILED, RequestState.ACCEPTED}
    ),
    RequestState.COMPLETED: frozenset(),
    RequestState.FAILED: frozenset(),
}
"""docs/state_machines.md draws it."""

ENDED = frozenset({RequestState.COMPLETED, RequestState.FAILED})


class Draft(Plain, frozen=True, kw_only=True):
    """A request before it is accepted. An `express` one neither takes the slot nor waits for it."""

    kind: str
    payload: dict[str, Any]
    idempotency_key: str | None = None
    express: bool = False
    sender: str | None = None
    sender_claimed: bool = False


class QueueRequest(Record, frozen=True, kw_only=True):
    """One request of one queue.

    `arrival` is the revision of its acceptance in the journal, which orders requests without a
    clock. `epoch` is the instance of the agent that it is meant for, `token` that of its claim, and
    `beside` the request that ran when an express one arrived. `sender` is who sent it; with
    `sender_claimed`, only the sender says so.
    """

    request_id: str
    queue: str
    kind: str
    payload: dict[str, Any]
    state: RequestState = RequestState.ACCEPTED
    receipt: Receipt = Receipt.ACCEPTED
    arrival: int
    epoch: int
    express: bool = False
    beside: str | None = None
    accepted_at: Instant
    started_at: Instant | None = None
    finished_at: Instant | None = None
    token: int | None = None
    error_code: str | None = None
    error_detail: str | None = None
    result: dict[str, Any] | None = None
    idempotency_key: str | None = None
    sender: str | None = None
    sender_claimed: bool = False


class Head(Record, frozen=True, kw_only=True):
    """How many requests of a queue wait, how many of these are express, how many run, and which has
    the slot. Every change of a queue latches its head, and no other queue.
    """

    accepted: int = 0
    express: int = 0
    running: int = 0
    slot: str | None = None

    @property
    def depth(self) -> int:
        """How many requests have not ended."""
        return self.accepted + self.running


class Key(Record, frozen=True, kw_only=True):
    """The request of an idempotency key."""

    request_id: str


def _turn(request: QueueRequest) -> Parts | None:
    """Accepted requests by queue, lane and epoch, then arrival."""
    if request.state is not RequestState.ACCEPTED:
        return None
    return (request.queue, request.express, request.epoch, request.arrival)


REQUESTS = Space(
    "requests",
    QueueRequest,
    # Only these two: each is written with every step of every request.
    indexes={
        "turn": _turn,
        "state": lambda request: (request.queue, request.state.value, request.arrival),
    },
)
HEADS = Space("queue_heads", Head)
KEYS = Space("request_keys", Key)
