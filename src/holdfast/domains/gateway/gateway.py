"""A gateway's rules: who serves, what is admitted, which epoch it is, and what an operator
decides.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from msgspec.structs import replace

from holdfast.domains.gateway.adapter import Adapter, Sighting
from holdfast.domains.gateway.records import ATTACHMENTS, Attachment, Server, Status, status_of
from holdfast.domains.gateway.request import (
    among,
    belonging,
    check_admission,
    check_reconcilable,
    served_by,
)
from holdfast.kernel import faults
from holdfast.kernel import lease as leases
from holdfast.kernel.codec import Value
from holdfast.kernel.errors import (
    Corrupt,
    Fenced,
    Held,
    HoldfastError,
    InvalidValue,
    Refused,
    Unavailable,
)
from holdfast.kernel.holder import Liveness, Processes, probe
from holdfast.kernel.limits import GATEWAY_GLANCE_S, GATEWAY_LEASE_S
from holdfast.kernel.space import rows
from holdfast.kernel.store import Tx
from holdfast.primitives.journal import Journal
from holdfast.primitives.queue import Draft, Queue, Request
from holdfast.primitives.queue.queue import new_id
from holdfast.primitives.queue.records import Receipt
from holdfast.primitives.queue.transaction import QueueTransaction
from holdfast.primitives.steady_clock import steady_clock

T = TypeVar("T")

Action = Literal["replay", "discard"]

INTERRUPTED_BY_RESTART = "interrupted_by_restart"
_LOST_TO_A_RESTART = {
    Receipt.ACCEPTED: "the gateway ended while this ran; delivery unknown: look at the agent "
    "before asking again",
    Receipt.DELIVERED: "the gateway ended while this ran; it was delivered, and what became of it "
    "is unknown",
    Receipt.ANSWERED: "the gateway ended while this ran; it was answered, and the answer was lost",
}
_NOT_LOOKED = Sighting(None, detail="the agent was not looked at yet")
_log = logging.getLogger("holdfast.gateway")


class Asked(NamedTuple):
    """A draft, and the epoch that its sender believes in, if it says so."""

    draft: Draft
    expected_epoch: int | None = None


class Reconciled(Value, frozen=True, kw_only=True):
    """What an operator's decision did. While some requests of earlier epochs are `left`, admission
    stays shut.
    """

    action: Action
    epoch: int
    requests: list[str]
    left: list[str]


class Gateway:
    """One agent's gateway, in the process that serves it.

    Promised: what was accepted is begun in order, one at a time, and only by the instance that it
    was accepted for; another instance shuts admission until an operator decides; a second gateway
    of the same agent is refused, and one that was taken for dead changes nothing any more. Not
    promised: that an agent does what it is asked, or that a prompt whose gateway was killed while
    it ran did not arrive: it is never delivered a second time, and its end says that this is
    unknown.
    """

    def __init__(
        self,
        queue: Queue,
        journal: Journal,
        adapter: Adapter,
        processes: Processes,
        *,
        lease_s: float = GATEWAY_LEASE_S,
    ) -> None:
        self.queue = queue
        self.agent = queue.name
        self.adapter = adapter
        self.on_change: Callable[[], None] = lambda: None
        self.served_at: tuple[str, int] | None = None
        self._journal = journal
        self._processes = processes
        self._lease_s = lease_s
        self._token = 0
        self._looking = threading.Lock()
        self._seen = _NOT_LOOKED
        self._attachment = Attachment()
        self._unsure = False

    @property
    def seen(self) -> Sighting:
        """What was last seen of the agent."""
        return self._seen

    @property
    def epoch(self) -> int:
        """The epoch that the last look belongs to."""
        return self._attachment.epoch

    @property
    def reconciling(self) -> bool:
        """Must an operator decide first? As far as this process has seen."""
        return self._attachment.reconciling

    def attach(self, owner: str | None = None) -> list[Request]:
        """Become the one that serves this agent, and end what another left running; return that.
        `owner` says whose queue it is, if that is known.

        Raises Held while another gateway of the agent lives, and when the queue is another's.
        """
        steady = steady_clock(self.queue.store)
        steady.look()
        before = self._recorded()
        verdict = Liveness.DEAD if before.server is None else self._probed(before.server)

        def body(tx: Tx, line: QueueTransaction) -> tuple[Attachment, list[Request]]:
            attachment = _attachment_in(tx, self.agent)
            server = attachment.server
            # A verdict is about the server that was looked at, and about no other.
            known = verdict if server == before.server else Liveness.ALIVE
            if server is not None and not steady.reclaimable(server.lease, known, tx.now):
                raise served_by(self.agent, server)
            attachment = belonging(attachment, self.agent, owner)
            lease = leases.grant(tx.now, self._lease_s)
            mine = Server(process=self._processes.current(), lease=lease, token=tx.revision)
            attachment = replace(attachment, server=mine)
            tx.put(ATTACHMENTS, self.agent, attachment)
            self._tell(tx, "gateway.attached", {"epoch": attachment.epoch, "token": mine.token})
            return attachment, line.abandon_running(
                code=INTERRUPTED_BY_RESTART, detail=_LOST_TO_A_RESTART
            )

        self._attachment, ended = self._change(body)
        assert self._attachment.server is not None
        self._token = self._attachment.server.token
        return ended

    def detach(self) -> None:
        """Serve no more. The epoch and the instance stay known. Harmless when another has taken
        over.
        """

        def body(tx: Tx, line: QueueTransaction) -> None:
            attachment = self._own(tx)
            line.abandon_running(code=INTERRUPTED_BY_RESTART, detail=_LOST_TO_A_RESTART)
            tx.put(ATTACHMENTS, self.agent, replace(attachment, server=None))
            self._tell(tx, "gateway.detached", {"epoch": attachment.epoch})

        try:
            self._change(body)
        except Fenced:
            _log.warning("detach after another took over agent=%s", self.agent)

    def renew(self) -> None:
        """Give a sign of life. Raises Fenced when another gateway has taken over: then this one
        must end.
        """

        def body(tx: Tx, _: QueueTransaction) -> None:
            attachment = self._own(tx)
            assert attachment.server is not None
            lease = leases.renew(attachment.server.lease, tx.now, self._lease_s)
            tx.put(
                ATTACHMENTS,
                self.agent,
                replace(attachment, server=replace(attachment.server, lease=lease)),
            )

        steady_clock(self.queue.store).look()
        self._change(body)

    def belong(self, owner: str) -> None:
        """Take note of whose queue it is, when that was not known before. Raises Held when it is
        another's, and Fenced.
        """

        def body(tx: Tx, _: QueueTransaction) -> None:
            tx.put(ATTACHMENTS, self.agent, belonging(self._own(tx), self.agent, owner))

        if self._recorded().owner != owner:
            self._change(body)

    def check_serving(self) -> None:
        """Raises Fenced when another gateway has taken over, and Unavailable when the store does
        not say.
        """
        _check_own(self._recorded(), self.agent, self._token)

    def look(self) -> Sighting:
        """Look at the agent, and record it when it is another instance than before. Never raises
        for what the adapter does; but Held at the first look, when another gateway has the same
        agent by another name.
        """
        with self._looking:
            return self._looked()

    def glance(self) -> Sighting:
        """Look at the agent; or, while another look takes long, what was last seen."""
        if not self._looking.acquire(timeout=GATEWAY_GLANCE_S):
            return self._seen
        try:
            return self._looked()
        finally:
            self._looking.release()

    def accept(self, asked: Sequence[Asked]) -> list[Request | HoldfastError]:
        """Accept requests in one commit, durably; each is answered by itself: Full, Blocked,
        Refused (another epoch), Collision (its key) and UpstreamUnavailable are values here. Raises
        Fenced when another gateway serves.
        """
        seen = self._seen
        named = [(one, new_id()) for one in asked]

        def body(tx: Tx, line: QueueTransaction) -> list[Request | HoldfastError]:
            attachment = self._own(tx)
            return [self._admitted(line, attachment, seen, one, name) for one, name in named]

        answers = self._change(body)
        faults.reach("gateway.accepted")
        return answers

    def claim(self, *, express: bool = False) -> Request | None:
        """Begin with the next request, if the gate is open for it."""

        def body(tx: Tx, line: QueueTransaction) -> tuple[Request | None, list[str]]:
            attachment = self._own(tx)
            if attachment.reconciling:
                return None, []
            claimed = line.claim(epoch=attachment.epoch, express=express)
            return claimed, [error.message for error in line.damaged]

        claimed, damaged = self._change(body)
        for message in damaged:
            _log.warning("passed over agent=%s: %s", self.agent, message)
        return claimed

    def put_back(self, request: Request) -> None:
        """Undo a claim of which nothing was delivered.

        An operator may have decided about all that waited while this one was claimed; then this one
        waits for a decision too.
        """

        self._put_back(lambda _: [request])

    def put_back_unknown(self, *, express: bool) -> None:
        """Undo the claims of which this process never learned, since their commit was not answered:
        nobody works on those.
        """
        self._put_back(
            lambda line: [request for request in line.running() if request.express == express]
        )

    def _put_back(self, which: Callable[[QueueTransaction], list[Request]]) -> None:
        def body(tx: Tx, line: QueueTransaction) -> Attachment:
            attachment = self._own(tx)
            for request in which(line):
                line.put_back(request.request_id, _token_of(request))
                if request.epoch < attachment.epoch and not attachment.reconciling:
                    attachment = replace(attachment, reconciling=True)
                    tx.put(ATTACHMENTS, self.agent, attachment)
            return attachment

        with self._looking:
            self._attachment = self._change(body)

    def delivered(self, request: Request) -> None:
        """Note that a request was delivered. Not synced by itself: losing it only makes a later
        report less exact.
        """
        self._change(
            lambda _, line: line.deliver(request.request_id, _token_of(request)), durable=False
        )

    def complete(self, request: Request, result: Mapping[str, Any], receipt: Receipt) -> Request:
        """End a request well."""
        return self._change(
            lambda _, line: line.complete(
                request.request_id, _token_of(request), result, receipt=receipt
            )
        )

    def fail(
        self, request: Request, code: str, detail: str, result: Mapping[str, Any] | None = None
    ) -> Request:
        """End a request badly."""
        return self._change(
            lambda _, line: line.fail(
                request.request_id, _token_of(request), code=code, detail=detail, result=result
            )
        )

    def reconcile(
        self, action: Action, *, epoch: int, requests: Sequence[str] | None = None
    ) -> Reconciled:
        """Decide what becomes of the waiting requests of earlier epochs: all, or those named.

        `replay` means them for the current instance, in their old order; `discard` ends them, with
        the code `discarded`. When none is left, admission opens. Raises Refused when `epoch` is not
        the current one or there is nothing to decide, and NotFound for a request that is not
        waiting for a decision.
        """
        if action not in ("replay", "discard"):
            raise InvalidValue(
                f"{action!a} is no way to reconcile: use replay or discard", field="action"
            )

        def body(tx: Tx, line: QueueTransaction) -> Reconciled:
            attachment = self._own(tx)
            check_reconcilable(attachment, epoch)
            stale = [request.request_id for request in line.stale(attachment.epoch)]
            chosen = stale if requests is None else among(requests, stale)
            for request_id in chosen:
                if action == "replay":
                    line.readmit(request_id, epoch=attachment.epoch)
                else:
                    line.cancel(
                        request_id,
                        code="discarded",
                        detail=f"it was discarded when epoch {attachment.epoch} began",
                    )
            left = [request_id for request_id in stale if request_id not in set(chosen)]
            if not left:
                tx.put(ATTACHMENTS, self.agent, replace(attachment, reconciling=False))
            told = {
                "action": action,
                "epoch": attachment.epoch,
                "requests": len(chosen),
                "left": len(left),
            }
            self._tell(tx, "gateway.reconciled", told)
            return Reconciled(
                action=action, epoch=attachment.epoch, requests=list(chosen), left=left
            )

        with self._looking:
            done = self._change(body)
            self._attachment = self._recorded()
        self.on_change()
        return done

    def cancel(self, request_id: str) -> Request:
        """End a request that waits; see `Queue.cancel`. When none is left to decide about,
        admission opens.
        """

        def body(tx: Tx, line: QueueTransaction) -> Request:
            ended = line.cancel(request_id)
            attachment = self._own(tx)
            if attachment.reconciling and not line.head.accepted:
                tx.put(ATTACHMENTS, self.agent, replace(attachment, reconciling=False))
            return ended

        with self._looking:
            ended = self._change(body)
            self._attachment = self._recorded()
        self.on_change()
        return ended

    def status(self) -> Status:
        """How gateway and agent are doing, by the last look."""
        status = status_of(
            self.agent, self.adapter.backend, self._attachment, self._seen, self.queue.head()
        )
        if self.served_at is None:
            return status
        return replace(status, gateway_host=self.served_at[0], gateway_port=self.served_at[1])

    def _change(self, body: Callable[[Tx, QueueTransaction], T], *, durable: bool = True) -> T:
        try:
            return self.queue.change(body, also=[rows(ATTACHMENTS)], durable=durable)
        except Unavailable:
            # It may have been committed all the same: what is recorded is read again with the next
            # look.
            self._unsure = True
            raise

    def _recorded(self) -> Attachment:
        row = self.queue.store.get(ATTACHMENTS, self.agent)
        return Attachment() if row is None else row.record

    def _own(self, tx: Tx) -> Attachment:
        return _check_own(_attachment_in(tx, self.agent), self.agent, self._token)

    def _probed(self, server: Server) -> Liveness:
        return probe(server.process, self._processes, embedded=self.queue.store.embedded)

    def _inspected(self) -> Sighting:
        try:
            return self.adapter.inspect()
        except HoldfastError as error:
            if isinstance(error, Held) and self._seen is _NOT_LOOKED:
                raise
            return Sighting(None, detail=error.message)
        except Exception as error:  # noqa: BLE001 - whatever an adapter does, the gateway lives on
            _log.warning("inspection failed agent=%s: %s", self.agent, error)
            return Sighting(
                None, detail=f"the agent cannot be inspected: {type(error).__name__}: {error}"
            )

    def _looked(self) -> Sighting:
        if self._unsure:
            self._attachment = self._recorded()
            self._unsure = False
        seen = self._inspected()
        before, rebound = self._seen, False
        if seen.instance_id is not None and seen.instance_id != self._attachment.instance_id:
            self._attachment = self._rebind(seen.instance_id)
            rebound = True
        if (seen.instance_id is None) != (before.instance_id is None) and before is not _NOT_LOOKED:
            self._tell_of_coming_and_going(seen)
        self._seen = seen
        if rebound or seen != before:
            self.on_change()
        return seen

    def _rebind(self, instance_id: str) -> Attachment:
        def body(tx: Tx, line: QueueTransaction) -> Attachment:
            before = self._own(tx)
            if before.instance_id == instance_id:
                return before
            if before.instance_id is None:
                after = replace(before, instance_id=instance_id)
            else:
                # Where nothing waits there is nothing to decide. What runs may be put back, and is
                # decided about then.
                waits = line.head.accepted > 0
                after = replace(
                    before, instance_id=instance_id, epoch=before.epoch + 1, reconciling=waits
                )
            tx.put(ATTACHMENTS, self.agent, after)
            kind = (
                "gateway.instance_seen"
                if before.instance_id is None
                else "gateway.instance_replaced"
            )
            self._tell(
                tx,
                kind,
                {"epoch": after.epoch, "instance_id": instance_id, "before": before.instance_id},
            )
            return after

        return self._change(body)

    def _tell_of_coming_and_going(self, seen: Sighting) -> None:
        kind = "gateway.agent_unavailable" if seen.instance_id is None else "gateway.agent_returned"
        self._change(
            lambda tx, _: self._tell(tx, kind, {"detail": seen.detail[:1000]}), durable=False
        )

    def _admitted(
        self,
        line: QueueTransaction,
        attachment: Attachment,
        seen: Sighting,
        asked: Asked,
        request_id: str,
    ) -> Request | HoldfastError:
        try:
            # Before anything else: a retry is answered as its first try was, whatever has happened
            # since.
            if (known := line.known(asked.draft)) is not None:
                return known
            check_admission(self.agent, attachment, seen, asked.expected_epoch)
            return line.accept(asked.draft, request_id, epoch=attachment.epoch)
        except (Refused, Unavailable, Corrupt) as error:
            # A damaged request, too, is the matter of the one whose key leads to it, and of no
            # other in the same commit.
            return error

    def _tell(self, tx: Tx, kind: str, data: dict[str, Any]) -> None:
        self._journal.append(tx, kind=kind, subject=self.agent, data={"agent": self.agent, **data})


def _attachment_in(tx: Tx, agent: str) -> Attachment:
    row = tx.get(ATTACHMENTS, agent)
    return Attachment() if row is None else row.record


def _check_own(attachment: Attachment, agent: str, token: int) -> Attachment:
    if attachment.server is None or attachment.server.token != token:
        raise Fenced(
            f"another gateway serves {agent} now: this one must end", agent=agent, token=token
        )
    return attachment


def _token_of(request: Request) -> int:
    assert request.token is not None
    return request.token
