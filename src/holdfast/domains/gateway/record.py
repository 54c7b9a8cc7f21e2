"""What is remembered of an agent, through every restart: its epoch, its last instance, and who serves it."""

from holdfast.kernel.codec import Plain, Record
from holdfast.kernel.holder import Holder
from holdfast.kernel.lease import Lease
from holdfast.kernel.space import Space
from holdfast.primitives.queue.queue import FIRST_EPOCH


class Server(Plain, frozen=True, kw_only=True):
    """The process that serves an agent's queue. What it writes counts only while `token` is the one recorded."""

    process: Holder
    lease: Lease
    token: int


class Attachment(Record, frozen=True, kw_only=True):
    """An agent as its gateway knows it.

    `epoch` grows by one with each other instance that is seen; it never goes back, and a clean stop forgets neither it nor the
    instance. `reconciling` says that an operator must decide what becomes of the requests of earlier epochs. `owner` says whose
    queue it is, once that is known: one agent's id may be another's name.
    """

    epoch: int = FIRST_EPOCH
    instance_id: str | None = None
    reconciling: bool = False
    server: Server | None = None
    owner: str | None = None


ATTACHMENTS = Space("gateways", Attachment)
