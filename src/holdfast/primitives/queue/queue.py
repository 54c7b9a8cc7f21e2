"""A queue on a store: its transactions, and reading and waiting outside of one."""

import time
from collections.abc import Callable
from typing import TypeVar

from holdfast.kernel.codec import json_bytes
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.limits import (
    LIST_MAX,
    QUEUE_DEPTH_MAX,
    QUEUE_KEEP_LEAST,
    QUEUE_KEEP_REQUESTS,
    QUEUE_KEEP_S,
    QUEUE_PRUNE_LEAST_S,
    REQUEST_PAYLOAD_BYTES_MAX,
)
from holdfast.kernel.names import check_agent_name, check_id, check_label, check_new_label
from holdfast.kernel.space import rows
from holdfast.kernel.store import Damage, Scope, Store, Tx
from holdfast.kernel.text import counted
from holdfast.primitives.journal import Journal
from holdfast.primitives.queue.records import (
    ENDED,
    HEADS,
    KEYS,
    REQUESTS,
    Draft,
    Head,
    QueueRequest,
    RequestState,
)
from holdfast.primitives.queue.transaction import (
    QueueTransaction,
    Trimmed,
    in_order,
    key_of,
    no_such,
    topic_of,
)
from holdfast.primitives.steady_clock import steady_clock

T = TypeVar("T")

_ID_BYTES = 9
FIRST_EPOCH = 1
# By rows: every change of a queue latches its head, which excludes all other changes.
_SCOPE = (rows(HEADS), rows(REQUESTS), rows(KEYS))


class Queue:
    """The queue of one name.

    Promised: an accepted request is kept until it has ended; at most one has the slot; requests
    start in the order of acceptance; each ends once, by the token of its claim.
    """

    def __init__(
        self, store: Store, journal: Journal, name: str, *, depth_max: int = QUEUE_DEPTH_MAX
    ) -> None:
        if depth_max < 1:
            raise InvalidValue(f"depth_max is {depth_max}: give 1 or more", field="depth_max")
        self.name = check_agent_name(name, "queue name")
        self.store = store
        self._journal = journal
        self._depth_max = depth_max

    def change(
        self, body: Callable[[Tx, QueueTransaction], T], *, also: Scope = (), durable: bool = True
    ) -> T:
        """Run `body` in one transaction on this queue and the scope `also`: `Store.transact`."""

        def step(tx: Tx) -> T:
            transaction = QueueTransaction(tx, self._journal, self.name, depth_max=self._depth_max)
            result = body(tx, transaction)
            transaction.finish()
            return result

        return self.store.transact(step, scope=(*_SCOPE, *also), durable=durable)

    def prune(self, *, keep_finished: int | None = None, keep_s: float | None = None) -> int:
        """Drop requests that ended more than `keep_s` ago, and the oldest above `keep_finished`,
        with their idempotency keys; return how many. Those that ended less than a day ago stay, as
        their keys may be used again. Raises InvalidValue.
        """
        number = QUEUE_KEEP_REQUESTS if keep_finished is None else keep_finished
        age_s = QUEUE_KEEP_S if keep_s is None else keep_s
        check_bounds(number, age_s)
        # An age that the caller names is meant; by the default bounds the last ones stay.
        least = QUEUE_KEEP_LEAST if keep_s is None else 0
        steady_clock(self.store).compare()
        bounds_given = keep_finished is not None or keep_s is not None
        removed, start = 0, 0

        def trim(_: Tx, transaction: QueueTransaction) -> Trimmed:
            return transaction.trim(
                keep=number,
                keep_s=age_s,
                keep_least=least,
                spare_s=QUEUE_PRUNE_LEAST_S,
                start=start,
                age_given=bounds_given,
            )

        while (trimmed := self.change(trim)).further is not None:
            removed, start = removed + trimmed.dropped, trimmed.further
        return removed

    def get(self, request_id: str) -> QueueRequest:
        """A request. Raises NotFound."""
        row = self.store.get(REQUESTS, key_of(self.name, check_id(request_id, "request id")))
        if row is None:
            raise no_such(self.name, request_id)
        return row.record

    def wait(self, request_id: str, wait_s: float) -> QueueRequest:
        """A request once it has ended, or as it is after `wait_s`. Raises NotFound."""
        deadline = time.monotonic() + wait_s
        with self.store.listen([topic_of(self.name)]) as listener:
            while True:
                request = self.get(request_id)
                left_s = deadline - time.monotonic()
                if request.state in ENDED or left_s <= 0:
                    return request
                listener.wait(left_s)

    def list(
        self,
        *,
        state: RequestState | None = None,
        limit: int = LIST_MAX,
        damaged: Damage | None = None,
    ) -> "list[QueueRequest]":
        """The newest `limit` requests that match, in order. `damaged` as in `ReadTx.range`."""
        wanted = RequestState if state is None else [state]
        found = self.store.read(
            lambda tx: in_order(tx, self.name, wanted, limit=limit, newest=True, damaged=damaged),
            scope=[REQUESTS],
        )
        return found[max(len(found) - limit, 0) :]

    def head(self) -> Head:
        """How many requests wait and run, and which has the slot."""
        row = self.store.get(HEADS, self.name)
        return Head() if row is None else row.record


def check_bounds(keep: int, keep_s: float) -> None:
    """Raises InvalidValue for impossible bounds, or those that drop what must stay."""
    if keep < 0 or not 0 <= keep_s < float("inf"):
        raise InvalidValue(
            f"cannot keep {counted(keep, 'request')} for {keep_s} s: give 0 or more", keep=keep
        )
    if keep_s < QUEUE_PRUNE_LEAST_S:
        raise InvalidValue(
            f"keep_s is {keep_s:g}: finished requests are kept for {QUEUE_PRUNE_LEAST_S:.0f} s (a "
            "day) at least, since without them a prompt that is sent again with the same "
            "idempotency key would be delivered again",
            field="keep_s",
            least=QUEUE_PRUNE_LEAST_S,
        )


def check_draft(draft: Draft) -> None:
    """Raises InvalidName and InvalidValue for a draft that could not be stored, now or later."""
    check_label(draft.kind, "kind of request")
    if draft.idempotency_key is not None:
        check_label(draft.idempotency_key, "idempotency key")
    if draft.sender is not None:
        check_new_label(draft.sender, "sender")
    if (size := json_bytes(draft.payload)) > REQUEST_PAYLOAD_BYTES_MAX:
        raise InvalidValue(
            f"the payload has {size} bytes as JSON and may have {REQUEST_PAYLOAD_BYTES_MAX}: put "
            "long input into a file and pass its path",
            field="payload",
            bytes=size,
            bytes_max=REQUEST_PAYLOAD_BYTES_MAX,
        )


def new_id() -> str:
    import secrets

    while True:
        request_id = secrets.token_urlsafe(_ID_BYTES)
        if request_id[0].isalnum():
            return request_id
