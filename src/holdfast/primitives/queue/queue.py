"""A queue on a store: each verb is one transaction, and its journal entries commit with it."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from holdfast.kernel.errors import InvalidValue, Refused
from holdfast.kernel.limits import LIST_MAX, QUEUE_DEPTH_MAX
from holdfast.kernel.names import check_agent_name, check_id, check_label
from holdfast.kernel.space import rows
from holdfast.kernel.store import Damage, ReadTx, Scope, Store, Tx
from holdfast.kernel.wording import counted
from holdfast.primitives.journal import Journal
from holdfast.primitives.queue.line import Line, in_order, key_of, no_such, topic_of
from holdfast.primitives.queue.record import ENDED, HEADS, KEYS, REQUESTS, Draft, Head, Receipt, Request, RequestState

T = TypeVar("T")

_ID_BYTES = 9
FIRST_EPOCH = 1


class Queue:
    """The queue of one name.

    Promised: what was accepted is kept until it has ended; at most one request has the slot; requests begin in the order they
    were accepted; each ends once, by whoever shows the token of its claim. Not promised: that what a request asks for is done
    once; that is up to whoever carries it out.
    """

    def __init__(self, store: Store, journal: Journal, name: str, *, depth_max: int = QUEUE_DEPTH_MAX) -> None:
        if depth_max < 1:
            raise InvalidValue(f"a queue of {counted(depth_max, 'request')} can take none: give 1 or more", field="depth_max")
        self.name = check_agent_name(name, "queue name")
        self.store = store
        self._journal = journal
        self._depth_max = depth_max

    def change(self, body: Callable[[Tx, Line], T], *, also: Scope = (), durable: bool = True) -> T:
        """Run `body` as one step on this queue, with `also` in its scope; see `Store.transact`."""

        def step(tx: Tx) -> T:
            line = Line(tx, self._journal, self.name, depth_max=self._depth_max)
            result = body(tx, line)
            line.finish()
            return result

        # By rows: whoever changes a queue has latched its head, so that nothing of it changes under the one that looks.
        scope = [rows(HEADS), rows(REQUESTS), rows(KEYS), *also]
        return self.store.transact(step, scope=scope, durable=durable)

    def accept(self, drafts: Sequence[Draft], *, epoch: int = FIRST_EPOCH) -> list[Request | Refused]:
        """Accept several requests in one commit; each is answered by itself, with what was accepted or why it was not.

        When this returns, what was accepted is durable. Raises InvalidName for a key that cannot be one.
        """
        for draft in drafts:
            check_draft(draft)
        named = [(draft, new_id()) for draft in drafts]
        return self.change(lambda _, line: [accepted(line, draft, name, epoch) for draft, name in named])

    def claim(self, *, epoch: int = FIRST_EPOCH, express: bool = False) -> Request | None:
        """Begin with the next request; see `Line.claim`."""
        return self.change(lambda _, line: line.claim(epoch=epoch, express=express))

    def complete(
        self, request_id: str, token: int, result: Mapping[str, Any], *, receipt: Receipt = Receipt.ANSWERED
    ) -> Request:
        """End a running request well; see `Line.complete`."""
        return self.change(lambda _, line: line.complete(request_id, token, result, receipt=receipt))

    def fail(self, request_id: str, token: int, *, code: str, detail: str) -> Request:
        """End a running request badly; see `Line.fail`."""
        return self.change(lambda _, line: line.fail(request_id, token, code=code, detail=detail))

    def cancel(self, request_id: str) -> Request:
        """End a request that waits, with the code `cancelled`; see `Line.cancel`."""
        check_id(request_id, "request id")
        return self.change(
            lambda _, line: line.cancel(request_id, code="cancelled", detail="it was cancelled before it was begun")
        )

    def get(self, request_id: str) -> Request:
        """Return a request. Raises NotFound."""
        row = self.store.get(REQUESTS, key_of(self.name, check_id(request_id, "request id")))
        if row is None:
            raise no_such(self.name, request_id)
        return row.record

    def wait(self, request_id: str, wait_s: float) -> Request:
        """Return a request when it has ended, or as it stands after `wait_s`. Raises NotFound."""
        deadline = time.monotonic() + wait_s
        with self.store.listen([topic_of(self.name)]) as ears:
            while True:
                request = self.get(request_id)
                left_s = deadline - time.monotonic()
                if request.state in ENDED or left_s <= 0:
                    return request
                ears.wait(left_s)

    def list(
        self, *, state: RequestState | None = None, limit: int = LIST_MAX, damaged: Damage | None = None
    ) -> "list[Request]":
        """Return requests in the order they came, the newest `limit` of those that match.

        A damaged record raises, unless `damaged` is a list to tell of it in.
        """

        def look(tx: ReadTx) -> list[Request]:
            wanted = RequestState if state is None else [state]
            return in_order(tx, self.name, wanted, limit=limit, newest=True, damaged=damaged)

        found = self.store.read(look, scope=[REQUESTS])
        return found[max(len(found) - limit, 0) :]

    def head(self) -> Head:
        """How many requests wait and run, and which has the slot."""
        row = self.store.get(HEADS, self.name)
        return Head() if row is None else row.record


def accepted(line: Line, draft: Draft, request_id: str, epoch: int) -> Request | Refused:
    """Accept a draft, or say why not, so that of several in one commit one refusal is not that of all."""
    try:
        return line.accept(draft, request_id, epoch=epoch)
    except Refused as error:
        return error


def check_draft(draft: Draft) -> None:
    """Refuse a draft that could not be kept. Raises InvalidName."""
    check_label(draft.kind, "kind of request")
    if draft.idempotency_key is not None:
        check_label(draft.idempotency_key, "idempotency key")


def new_id() -> str:
    """A new request's id."""
    import secrets

    while True:
        request_id = secrets.token_urlsafe(_ID_BYTES)
        if request_id[0].isalnum():
            return request_id
