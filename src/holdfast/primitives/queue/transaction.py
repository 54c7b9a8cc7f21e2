"""The steps of a queue inside a transaction, which may change a domain's own records too."""

import hashlib
from binascii import crc32
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.kernel.codec import CUT, cut, json_bytes
from holdfast.kernel.errors import Collision, Fenced, Full, ImpossibleTransition, NotFound
from holdfast.kernel.limits import (
    LABEL_JSON_BYTES_MAX,
    QUEUE_DEPTH_MAX,
    QUEUE_KEEP_LEAST,
    QUEUE_KEEP_REQUESTS,
    QUEUE_KEEP_S,
    QUEUE_TRIM_EVERY,
    QUEUE_TRIM_MAX,
    REQUEST_DETAIL_BYTES_MAX,
    REQUEST_RESULT_BYTES_MAX,
)
from holdfast.kernel.names import check_id
from holdfast.kernel.store import Damage, ReadTx, Tx
from holdfast.kernel.text import counted
from holdfast.primitives.journal import Journal, retention_limit
from holdfast.primitives.queue.records import (
    ENDED,
    HEADS,
    KEYS,
    REQUESTS,
    TRANSITIONS,
    Draft,
    Head,
    Key,
    QueueRequest,
    Receipt,
    RequestState,
)


class Trimmed(NamedTuple):
    """How many requests were dropped, and the arrival to go on from; None at the end."""

    dropped: int
    further: int | None


class QueueTransaction:
    """A queue inside a transaction that has latched its head. `finish` writes the head, last."""

    def __init__(
        self, tx: Tx, journal: Journal, queue: str, *, depth_max: int = QUEUE_DEPTH_MAX
    ) -> None:
        # The head first: nothing else of the queue can change from here on, and the revision is
        # drawn after it.
        row = tx.get(HEADS, queue)
        self.head = self._before = Head() if row is None else row.record
        self.damaged: Damage = []
        self._changed = self._express_changed = False
        self._tx = tx
        self._journal = journal
        self._queue = queue
        self._depth_max = depth_max

    def accept(self, draft: Draft, request_id: str, *, epoch: int) -> QueueRequest:
        """Accept a request behind all others, or return the one with its idempotency key. Raises
        Full, and Collision when the key is another request's.
        """
        if (known := self.known(draft)) is not None:
            return known
        # Express requests have the bound for themselves: one that stops the running request must
        # not be refused because of those that wait.
        depth = self.head.express if draft.express else self.head.depth
        if depth >= self._depth_max:
            raise Full(
                f"{self._queue} has {counted(depth, 'unfinished request')} and takes no more: wait "
                "until some end, or cancel some",
                queue=self._queue,
                depth=depth,
                depth_max=self._depth_max,
            )
        data = {"agent": self._queue, "kind": draft.kind, "epoch": epoch}
        arrival = self._journal.append(
            self._tx, kind="request.accepted", subject=request_id, data=data
        )
        request = QueueRequest(
            request_id=request_id,
            queue=self._queue,
            kind=draft.kind,
            payload=draft.payload,
            arrival=arrival,
            epoch=epoch,
            express=draft.express,
            beside=self.head.slot if draft.express else None,
            accepted_at=self._tx.now,
            idempotency_key=draft.idempotency_key,
            sender=draft.sender,
            sender_claimed=draft.sender_claimed,
        )
        self._put(request)
        if draft.idempotency_key is not None:
            self._tx.put(KEYS, self._key_of(draft.idempotency_key), Key(request_id=request_id))
        self.head = replace(
            self.head, accepted=self.head.accepted + 1, express=self.head.express + draft.express
        )
        return request

    def claim(self, *, epoch: int, express: bool = False) -> QueueRequest | None:
        """Claim the oldest request of this epoch, past those in `damaged`; None when there is none,
        or the slot is taken. Later steps of the request must show its token.
        """
        if not express and self.head.slot is not None:
            return None
        row = self._tx.take_first(
            REQUESTS, "turn", (self._queue, express, epoch), damaged=self.damaged
        )
        if row is None:
            return None
        request = replace(row.record, started_at=self._tx.now, token=self._tx.revision)
        return self._moved(request, RequestState.RUNNING, {"token": request.token})

    def deliver(self, request_id: str, token: int) -> QueueRequest:
        """Note that a running request was delivered. Raises NotFound and Fenced."""
        request = replace(self._owned(request_id, token), receipt=Receipt.DELIVERED)
        self._put(request)
        self._journal.append(
            self._tx, kind="request.delivered", subject=request_id, data={"agent": self._queue}
        )
        return request

    def complete(
        self,
        request_id: str,
        token: int,
        result: Mapping[str, Any],
        *,
        receipt: Receipt = Receipt.ANSWERED,
    ) -> QueueRequest:
        """Complete a running request. Raises NotFound, and Fenced for another claim's token."""
        request = replace(self._owned(request_id, token), result=_bounded(result), receipt=receipt)
        return self._moved(request, RequestState.COMPLETED, {"receipt": receipt.value})

    def fail(
        self,
        request_id: str,
        token: int,
        *,
        code: str,
        detail: str,
        result: Mapping[str, Any] | None = None,
    ) -> QueueRequest:
        """Fail a running request. Raises NotFound, and Fenced for another claim's token."""
        return self._failed(self._owned(request_id, token), code, detail, result)

    def put_back(self, request_id: str, token: int) -> QueueRequest:
        """Undo a claim before its delivery: the request waits in its old place."""
        request = replace(self._owned(request_id, token), started_at=None)
        return self._moved(request, RequestState.ACCEPTED, {"epoch": request.epoch})

    def cancel(
        self,
        request_id: str,
        *,
        code: str = "cancelled",
        detail: str = "it was cancelled before it was started",
    ) -> QueueRequest:
        """Cancel a waiting request. Raises NotFound, and ImpossibleTransition for another."""
        return self._failed(self._waiting(check_id(request_id, "request id")), code, detail, None)

    def readmit(self, request_id: str, *, epoch: int) -> QueueRequest:
        """Move a waiting request to another epoch, in its place. Raises as `cancel`."""
        request = replace(self._waiting(request_id), epoch=epoch)
        return self._moved(request, RequestState.ACCEPTED, {"epoch": epoch})

    def abandon_running(self, *, code: str, detail: Mapping[Receipt, str]) -> list[QueueRequest]:
        """Fail everything that runs, as its runner is gone; `detail` goes by how far it got."""
        running = self.running()
        ended = [self._failed(one, code, detail[one.receipt], None) for one in running]
        # A damaged request cannot be ended; but nobody works on it, and it must not keep the slot.
        self.head = replace(self.head, running=0, slot=None)
        return ended

    def running(self) -> list[QueueRequest]:
        return self._in_state(RequestState.RUNNING)

    def stale(self, epoch: int) -> list[QueueRequest]:
        """The waiting requests of earlier epochs, in order."""
        return [one for one in self._in_state(RequestState.ACCEPTED) if one.epoch < epoch]

    def _in_state(self, state: RequestState) -> list[QueueRequest]:
        found = self._tx.find(REQUESTS, "state", (self._queue, state.value), damaged=self.damaged)
        return [row.record for row in found]

    def finish(self) -> None:
        """Write the head, and wake those that wait for the queue."""
        if self.head != self._before:
            self._tx.put(HEADS, self._queue, self.head)
        if self._changed:
            self._tx.notify(topic_of(self._queue))
        if self._express_changed:
            self._tx.notify(express_topic_of(self._queue))

    def known(self, draft: Draft) -> QueueRequest | None:
        """The request that has a draft's idempotency key. Raises Collision when it differs."""
        if draft.idempotency_key is None:
            return None
        key = self._tx.get(KEYS, self._key_of(draft.idempotency_key))
        if key is None:
            return None
        found = self._tx.get(REQUESTS, key_of(self._queue, key.record.request_id))
        if found is None:
            return None
        request = found.record
        if (request.kind, request.payload) != (draft.kind, draft.payload):
            raise Collision(
                f"the idempotency key belongs to request {request.request_id}, which is not the "
                "same: use a key of its own for each request",
                request_id=request.request_id,
            )
        return request

    def _existing(self, request_id: str) -> QueueRequest:
        row = self._tx.get(REQUESTS, key_of(self._queue, request_id))
        if row is None:
            raise no_such(self._queue, request_id)
        return row.record

    def _owned(self, request_id: str, token: int) -> QueueRequest:
        request = self._existing(request_id)
        if request.state is not RequestState.RUNNING or request.token != token:
            raise Fenced(
                f"token {token} is not that of the current claim on request {request_id}, which "
                f"is {request.state.value}: stop work on it",
                request_id=request_id,
                token=token,
                current=request.token,
            )
        return request

    def _waiting(self, request_id: str) -> QueueRequest:
        request = self._existing(request_id)
        if request.state is not RequestState.ACCEPTED:
            hint = (
                "interrupt it instead" if request.state is RequestState.RUNNING else "it has ended"
            )
            raise ImpossibleTransition(
                f"request {request_id} is {request.state.value}, and only a waiting one can be "
                f"changed: {hint}",
                request_id=request_id,
                state=request.state.value,
            )
        return request

    def _failed(
        self, request: QueueRequest, code: str, detail: str, result: Mapping[str, Any] | None
    ) -> QueueRequest:
        kept = None if result is None else _bounded(result)
        code, detail = cut(code, LABEL_JSON_BYTES_MAX), cut(detail, REQUEST_DETAIL_BYTES_MAX)
        ended = replace(request, error_code=code, error_detail=detail, result=kept)
        return self._moved(
            ended, RequestState.FAILED, {"code": code, "receipt": request.receipt.value}
        )

    def _moved(
        self, request: QueueRequest, state: RequestState, data: dict[str, Any]
    ) -> QueueRequest:
        before = request.state
        assert state in TRANSITIONS[before], (before, state)
        changes: dict[str, Any] = {"state": state}
        if state is not RequestState.RUNNING:
            changes["token"] = None
        if state in ENDED:
            changes["finished_at"] = self._tx.now
        moved = replace(request, **changes)
        self._put(moved)
        word = "readmitted" if state is RequestState.ACCEPTED else state.value
        revision = self._journal.append(
            self._tx,
            kind=f"request.{word}",
            subject=moved.request_id,
            data={"agent": self._queue, **data},
        )
        self._count(moved, before)
        if state in ENDED and crc32(b"%d" % revision) % QUEUE_TRIM_EVERY == 0:
            self.trim()
        return moved

    def _count(self, request: QueueRequest, before: RequestState) -> None:
        waits = (request.state is RequestState.ACCEPTED) - (before is RequestState.ACCEPTED)
        runs = (request.state is RequestState.RUNNING) - (before is RequestState.RUNNING)
        slot = self.head.slot
        if not request.express and request.state is RequestState.RUNNING:
            slot = request.request_id
        elif slot == request.request_id:
            slot = None
        self.head = replace(
            self.head,
            accepted=self.head.accepted + waits,
            express=self.head.express + (waits if request.express else 0),
            running=self.head.running + runs,
            slot=slot,
        )

    def trim(
        self,
        *,
        keep: int = QUEUE_KEEP_REQUESTS,
        keep_s: float = QUEUE_KEEP_S,
        keep_least: int = QUEUE_KEEP_LEAST,
        spare_s: float = 0,
        start: int = 0,
        age_given: bool = False,
    ) -> Trimmed:
        """Drop finished requests beyond the bounds, of the first QUEUE_TRIM_MAX from arrival
        `start` on. What ended less than `spare_s` ago stays, unless that is 0. The last
        `keep_least` stay at any age: a clock may have been set forward, unless `age_given`:
        the caller named the age.
        """
        counts = [self._tx.count(REQUESTS, "state", (self._queue, one.value)) for one in ENDED]
        ended = sum(counts)
        before = retention_limit(self._journal, self._tx, keep_s, age_given=age_given)
        spared = retention_limit(self._journal, self._tx, spare_s, age_given=age_given)
        oldest = in_order(
            self._tx, self._queue, ENDED, limit=QUEUE_TRIM_MAX, start=start, damaged=[]
        )[:QUEUE_TRIM_MAX]
        dropped = 0
        for request in oldest:
            # By their end, not by their place: one that waited long ends late.
            at = request.finished_at or request.accepted_at
            old = dropped < ended - keep_least and at < before
            if (spare_s and at >= spared) or (dropped >= ended - keep and not old):
                continue
            self._drop(request)
            dropped += 1
        if dropped:
            data = {"agent": self._queue, "removed": dropped}
            self._journal.append(self._tx, kind="request.pruned", subject=self._queue, data=data)
        return Trimmed(dropped, oldest[-1].arrival + 1 if oldest else None)

    def _drop(self, request: QueueRequest) -> None:
        self._tx.delete(REQUESTS, key_of(self._queue, request.request_id))
        if request.idempotency_key is not None:
            self._tx.delete(KEYS, self._key_of(request.idempotency_key))

    def _put(self, request: QueueRequest) -> None:
        self._changed = True
        self._express_changed = self._express_changed or request.express
        self._tx.put(REQUESTS, key_of(self._queue, request.request_id), request)

    def _key_of(self, idempotency_key: str) -> str:
        # A digest, since a key may be any text.
        return f"{self._queue}/{hashlib.sha256(idempotency_key.encode()).hexdigest()}"


def in_order(
    tx: ReadTx,
    queue: str,
    states: Iterable[RequestState],
    *,
    limit: int,
    newest: bool = False,
    start: int = 0,
    damaged: Damage | None = None,
) -> list[QueueRequest]:
    """The oldest or newest requests in some states, from arrival `start` on: `limit` or more."""
    found = [
        row.record
        for state in states
        for row in tx.find(
            REQUESTS,
            "state",
            (queue, state.value),
            start=(start,),
            reverse=newest,
            limit=limit,
            damaged=damaged,
        )
    ]
    return sorted(found, key=lambda request: request.arrival)


def _bounded(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result within its bound. A larger one gets the field `cut` and keeps its smallest values;
    the first that does not fit is cut if it is text. Raises InvalidValue for what is no JSON.
    """
    if json_bytes(result) <= REQUEST_RESULT_BYTES_MAX:
        return dict(result)
    kept: dict[str, Any] = {"cut": True}
    for size, name in sorted((json_bytes(value), name) for name, value in result.items()):
        room = REQUEST_RESULT_BYTES_MAX - json_bytes(kept) - json_bytes(name) - 2
        if size <= room:
            kept[name] = result[name]
            continue
        if isinstance(result[name], str) and room > json_bytes(CUT):
            kept[name] = cut(result[name], room)
        break
    return kept


def key_of(queue: str, request_id: str) -> str:
    return f"{queue}/{request_id}"


def topic_of(queue: str) -> str:
    """The topic of every change of a queue."""
    return f"queue/{queue}"


def express_topic_of(queue: str) -> str:
    """The topic of changes of express requests alone."""
    return f"queue/{queue}/express"


def no_such(queue: str, request_id: str) -> NotFound:
    return NotFound(
        f"{queue} has no request {request_id}: `holdfast gateway requests {queue}` lists its "
        "requests",
        request_id=request_id,
    )
