"""A queue whose steps are transactions of their own. A domain takes them together with its own
changes instead: see `Queue.change`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.kernel.errors import Refused
from holdfast.primitives.queue import Draft, Queue, QueueRequest
from holdfast.primitives.queue.queue import FIRST_EPOCH, check_draft, new_id
from holdfast.primitives.queue.records import Receipt
from holdfast.primitives.queue.transaction import QueueTransaction


class SteppedQueue(Queue):
    def accept(
        self, drafts: Sequence[Draft], *, epoch: int = FIRST_EPOCH
    ) -> list[QueueRequest | Refused]:
        """Accept several requests in one commit; one refusal does not refuse the others."""
        for draft in drafts:
            check_draft(draft)
        named = [(draft, new_id()) for draft in drafts]

        def accepted(line: QueueTransaction, draft: Draft, name: str) -> QueueRequest | Refused:
            try:
                return line.accept(draft, name, epoch=epoch)
            except Refused as error:
                return error

        return self.change(lambda _, line: [accepted(line, draft, name) for draft, name in named])

    def claim(self, *, epoch: int = FIRST_EPOCH, express: bool = False) -> QueueRequest | None:
        return self.change(lambda _, line: line.claim(epoch=epoch, express=express))

    def complete(
        self,
        request_id: str,
        token: int,
        result: Mapping[str, Any],
        *,
        receipt: Receipt = Receipt.ANSWERED,
    ) -> QueueRequest:
        return self.change(
            lambda _, line: line.complete(request_id, token, result, receipt=receipt)
        )

    def fail(self, request_id: str, token: int, *, code: str, detail: str) -> QueueRequest:
        return self.change(lambda _, line: line.fail(request_id, token, code=code, detail=detail))

    def cancel(self, request_id: str) -> QueueRequest:
        return self.change(lambda _, line: line.cancel(request_id))
