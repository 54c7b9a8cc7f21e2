"""The rules of a gateway: attachment, epochs, admission, reconciliation, recovery."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from msgspec.structs import replace

from holdfast.domains.gateway.adapter import Adapter, Observation
from holdfast.domains.gateway.records import (
    ATTACHMENTS,
    INTERRUPTED_BY_RESTART,
    LOST_TO_A_RESTART,
    Attachment,
    GatewayStatus,
    ReconcileAction,
    Reconciled,
    Server,
    attachment_in,
    state_of,
    status_of,
)
from holdfast.domains.gateway.request import (
    Submission,
    away,
    check_admission,
    check_reconcilable,
    check_serving,
    choose_stale,
    find_question,
    served_by,
    with_owner,
)
from holdfast.domains.gateway.state import Question
from holdfast.kernel import errors, faults
from holdfast.kernel import lease as leases
from holdfast.kernel.clock import SystemClock
from holdfast.kernel.holder import Liveness, Processes, probe
from holdfast.kernel.limits import GATEWAY_GLANCE_S, GATEWAY_LEASE_S, QUESTION_CHARS
from holdfast.kernel.names import check_new_label
from holdfast.kernel.space import rows
from holdfast.kernel.store import Tx
from holdfast.kernel.text import clipped
from holdfast.primitives.journal import Journal
from holdfast.primitives.queue import Queue, QueueRequest
from holdfast.primitives.queue.queue import new_id
from holdfast.primitives.queue.records import Receipt
from holdfast.primitives.queue.transaction import QueueTransaction
from holdfast.primitives.steady_clock import steady_clock

T = TypeVar("T")

_ATTACHMENT = (rows(ATTACHMENTS),)
_NOT_LOOKED = Observation(None, detail="the gateway did not look at the agent yet")
_log = logging.getLogger("holdfast.gateway")


class Gateway:
    """One agent's gateway, in the process that serves it.

    Guaranteed: accepted requests begin in order, one at a time, and only at the instance that they
    were accepted for; another instance blocks admission until an operator decides; a second gateway
    of the same agent is refused, and a gateway that counted as dead changes nothing any more.

    Not guaranteed: that the agent does what it is asked; and whether a prompt arrived when the
    gateway was killed while the prompt ran. Such a prompt is never delivered again, and its end
    says that the delivery is unknown.
    """

    def __init__(
        self,
        queue: Queue,
        journal: Journal,
        adapter: Adapter,
        processes: Processes,
        *,
        name_sender: bool = False,
    ) -> None:
        self.queue = queue
        self.name_sender = name_sender
        """The agent gets each prompt behind the name of its sender."""
        self.agent = queue.name
        self.adapter = adapter
        self.on_change: Callable[[], None] = lambda: None
        self.served_at: tuple[str, int] | None = None
        self._journal = journal
        self._processes = processes
        self._token = 0
        self._since: datetime | None = None
        self._clock = SystemClock()
        # Guards the next two, so that an epoch is recorded by one look at a time.
        self._looking = threading.Lock()
        self.seen = _NOT_LOOKED
        """What the last inspection found."""
        self.attachment = Attachment()
        """What is recorded of the agent, as far as this process knows."""
        self._unsure = False

    def attach(self, owner: str | None = None) -> list[QueueRequest]:
        """Become the gateway that serves this agent. Fails the requests that another gateway left
        running, and returns them. `owner` is the agent that the queue belongs to, if known.

        Raises Held while another gateway of the agent is alive, and when the queue belongs to
        another agent.
        """
        steady = steady_clock(self.queue.store)
        steady.compare()
        # The process is probed before the transaction, which must not wait for it.
        before = self._recorded().server
        liveness = Liveness.DEAD
        if before is not None:
            liveness = probe(before.process, self._processes, embedded=self.queue.store.embedded)

        def body(tx: Tx, line: QueueTransaction) -> tuple[Attachment, list[QueueRequest]]:
            attachment = attachment_in(tx, self.agent)
            server = attachment.server
            # The probe counts only for the server that was probed.
            known = liveness if server == before else Liveness.ALIVE
            if server is not None and not steady.reclaimable(server.lease, known, tx.now):
                raise served_by(self.agent, server)
            attachment = with_owner(attachment, self.agent, owner)
            lease = leases.grant(tx.now, GATEWAY_LEASE_S)
            mine = Server(process=self._processes.current(), lease=lease, token=tx.revision)
            attachment = replace(attachment, server=mine)
            tx.put(ATTACHMENTS, self.agent, attachment)
            self._append(tx, "gateway.attached", epoch=attachment.epoch, token=mine.token)
            return attachment, line.abandon_running(
                code=INTERRUPTED_BY_RESTART, detail=LOST_TO_A_RESTART
            )

        self.attachment, ended = self._change(body)
        assert self.attachment.server is not None
        self._token = self.attachment.server.token
        return ended

    def detach(self) -> None:
        """Stop serving. Epoch and instance stay recorded. Does nothing after a takeover."""

        def body(tx: Tx, line: QueueTransaction) -> None:
            attachment = self._own(tx)
            line.abandon_running(code=INTERRUPTED_BY_RESTART, detail=LOST_TO_A_RESTART)
            tx.put(ATTACHMENTS, self.agent, replace(attachment, server=None))
            self._append(tx, "gateway.detached", epoch=attachment.epoch)

        try:
            self._change(body)
        except errors.Fenced:
            _log.warning("detach after another took over agent=%s", self.agent)

    def renew(self) -> None:
        """Renew the lease. Raises Fenced when another gateway has taken over: this one must end."""

        def body(tx: Tx, _: QueueTransaction) -> None:
            attachment = self._own(tx)
            assert attachment.server is not None
            lease = leases.renew(attachment.server.lease, tx.now, GATEWAY_LEASE_S)
            server = replace(attachment.server, lease=lease)
            tx.put(ATTACHMENTS, self.agent, replace(attachment, server=server))

        steady_clock(self.queue.store).compare()
        self._change(body)

    def belong(self, owner: str) -> None:
        """Record which agent the queue belongs to. Raises Held when it belongs to another agent,
        and Fenced.
        """

        def body(tx: Tx, _: QueueTransaction) -> None:
            tx.put(ATTACHMENTS, self.agent, with_owner(self._own(tx), self.agent, owner))

        if self._recorded().owner != owner:
            self._change(body)

    def check_serving(self) -> None:
        """Raises Fenced when another gateway has taken over, and Unavailable when the store does
        not answer.
        """
        check_serving(self._recorded(), self.agent, self._token)

    def look(self) -> Observation:
        """Look at the agent, and record another instance than before. An adapter's errors are part
        of the result; only Held is raised, at the first look, when another gateway uses the same
        agent under another name.
        """
        with self._looking:
            return self._look()

    def glance(self) -> Observation:
        """Look at the agent; while another look takes long, return the last result."""
        if not self._looking.acquire(timeout=GATEWAY_GLANCE_S):
            return self.seen
        try:
            return self._look()
        finally:
            self._looking.release()

    def accept(
        self, submissions: Sequence[Submission]
    ) -> list[QueueRequest | errors.HoldfastError]:
        """Accept requests in one durable commit. Each gets its own result: Full, Blocked, Refused
        (another epoch), Collision (its key) and UpstreamUnavailable are values here. Raises Fenced
        when another gateway serves.
        """
        return self.accept_counted(submissions)[0]

    def accept_counted(
        self, submissions: Sequence[Submission]
    ) -> tuple[list[QueueRequest | errors.HoldfastError], int]:
        """`accept`, and how many requests have not ended by then."""
        seen = self.seen
        named = [(one, new_id()) for one in submissions]

        def body(
            tx: Tx, line: QueueTransaction
        ) -> tuple[list[QueueRequest | errors.HoldfastError], int]:
            attachment = self._own(tx)
            answers: list[QueueRequest | errors.HoldfastError] = []
            for (draft, expected_epoch), request_id in named:
                try:
                    # Before the admission check: a retry gets the answer of its first try, even if
                    # admission is blocked by now.
                    if (known := line.known(draft)) is None:
                        check_admission(self.agent, attachment, seen, expected_epoch)
                        known = line.accept(draft, request_id, epoch=attachment.epoch)
                    answers.append(known)
                except (errors.Refused, errors.Unavailable, errors.Corrupt) as error:
                    # A damaged stored request fails only the new request with the same key, not the
                    # others of this commit.
                    answers.append(error)
            return answers, line.head.depth

        accepted = self._change(body)
        faults.reach("gateway.accepted")
        return accepted

    def claim(self, *, express: bool = False) -> QueueRequest | None:
        """Begin the next request; None when there is none, or while an operator must decide."""

        def body(tx: Tx, line: QueueTransaction) -> tuple[QueueRequest | None, list[str]]:
            attachment = self._own(tx)
            if attachment.reconciling:
                return None, []
            claimed = line.claim(epoch=attachment.epoch, express=express)
            return claimed, [error.message for error in line.damaged]

        claimed, damaged = self._change(body)
        for message in damaged:
            _log.warning("passed over agent=%s: %s", self.agent, message)
        return claimed

    def put_back(self, request: QueueRequest) -> None:
        """Undo a claim when nothing was delivered. If an operator decided about all waiting
        requests meanwhile, this one waits for a decision too.
        """
        self._put_back(lambda _: [request])

    def put_back_unknown(self, *, express: bool) -> None:
        """Undo the claims whose commit was not answered: nobody works on them."""
        self._put_back(lambda line: [one for one in line.running() if one.express == express])

    def _put_back(self, which: Callable[[QueueTransaction], list[QueueRequest]]) -> None:
        def body(tx: Tx, line: QueueTransaction) -> Attachment:
            attachment = self._own(tx)
            for request in which(line):
                line.put_back(request.request_id, request.token or 0)
                if request.epoch < attachment.epoch and not attachment.reconciling:
                    attachment = replace(attachment, reconciling=True)
                    tx.put(ATTACHMENTS, self.agent, attachment)
            return attachment

        with self._looking:
            self.attachment = self._change(body)

    def delivered(self, request: QueueRequest) -> None:
        """Record that a request was delivered. Not durable by itself: a loss makes only a later
        report less exact.
        """
        key, token = request.request_id, request.token or 0
        self._change(lambda _, line: line.deliver(key, token), durable=False)

    def complete(
        self, request: QueueRequest, result: Mapping[str, Any], receipt: Receipt
    ) -> QueueRequest:
        key, token = request.request_id, request.token or 0
        return self._change(lambda _, line: line.complete(key, token, result, receipt=receipt))

    def fail(
        self, request: QueueRequest, code: str, detail: str, result: Mapping[str, Any] | None = None
    ) -> QueueRequest:
        key, token = request.request_id, request.token or 0
        return self._change(
            lambda _, line: line.fail(key, token, code=code, detail=detail, result=result)
        )

    def reconcile(
        self, action: ReconcileAction, *, epoch: int, requests: Sequence[str] | None = None
    ) -> Reconciled:
        """Decide what becomes of the waiting requests of earlier epochs: all, or the given ones.

        `replay` accepts them for the current instance, in their old order; `discard` fails them
        with the code `discarded`. When none is left, admission opens. Raises Refused when `epoch`
        is not the current one or there is nothing to decide, and NotFound for a request that does
        not wait for a decision.
        """
        if action not in ("replay", "discard"):
            raise errors.InvalidValue(
                f"{action!a} is not a way to reconcile: use replay or discard", field="action"
            )

        def body(tx: Tx, line: QueueTransaction) -> Reconciled:
            attachment = self._own(tx)
            check_reconcilable(attachment, epoch)
            stale = [request.request_id for request in line.stale(epoch)]
            chosen = stale if requests is None else choose_stale(requests, stale)
            discarded = f"it was discarded when epoch {epoch} began"
            for request_id in chosen:
                if action == "replay":
                    line.readmit(request_id, epoch=epoch)
                else:
                    line.cancel(request_id, code="discarded", detail=discarded)
            left = [request_id for request_id in stale if request_id not in set(chosen)]
            if not left:
                tx.put(ATTACHMENTS, self.agent, replace(attachment, reconciling=False))
            counts = {"requests": len(chosen), "left": len(left)}
            self._append(tx, "gateway.reconciled", action=action, epoch=epoch, **counts)
            return Reconciled(action=action, epoch=epoch, requests=list(chosen), left=left)

        return self._decide(body)

    def cancel(self, request_id: str) -> QueueRequest:
        """End a waiting request; see `Queue.cancel`. When no request is left to decide about,
        admission opens.
        """

        def body(tx: Tx, line: QueueTransaction) -> QueueRequest:
            ended = line.cancel(request_id)
            attachment = self._own(tx)
            if attachment.reconciling and not line.head.accepted:
                tx.put(ATTACHMENTS, self.agent, replace(attachment, reconciling=False))
            return ended

        return self._decide(body)

    def _decide(self, body: Callable[[Tx, QueueTransaction], T]) -> T:
        with self._looking:
            done = self._change(body)
            self.attachment = self._recorded()
        self.on_change()
        return done

    def status(self) -> GatewayStatus:
        """The status of gateway and agent, by the last look."""
        backend, head = self.adapter.backend, self.queue.head()
        return status_of(
            self.agent, backend, self.attachment, self.seen, head, self.served_at, self._since
        )

    def reply(
        self, question_id: str, reply: str, *, by: str = "", claimed: bool = False
    ) -> Question:
        """Answer a question of the agent with the name of a choice, or with a text where the
        question takes one; return the question. The journal notes `by`, and whether only the caller
        says so.

        Raises NotFound when there is no such question any more, InvalidValue for an answer that it
        does not take, InvalidName, UpstreamUnavailable when the agent is away, and Fenced.
        """
        if by:
            check_new_label(by, "by")
        self.check_serving()
        seen = self.look()
        if seen.instance_id is None:
            raise away(self.agent, seen)
        question = find_question(seen.questions, question_id, reply)
        self.adapter.reply(question_id, reply, seen.instance_id)
        self._note(
            "gateway.question_answered",
            question_id=question_id,
            subject=clipped(question.subject, QUESTION_CHARS),
            reply=clipped(reply, QUESTION_CHARS),
            by=by,
            **({"claimed": True} if claimed else {}),
        )
        self.look()
        return question

    def _change(self, body: Callable[[Tx, QueueTransaction], T], *, durable: bool = True) -> T:
        try:
            return self.queue.change(body, also=_ATTACHMENT, durable=durable)
        except errors.Unavailable:
            # The change may have been committed: the next look reads the attachment again.
            self._unsure = True
            raise

    def _recorded(self) -> Attachment:
        row = self.queue.store.get(ATTACHMENTS, self.agent)
        return Attachment() if row is None else row.record

    def _own(self, tx: Tx) -> Attachment:
        return check_serving(attachment_in(tx, self.agent), self.agent, self._token)

    def _look(self) -> Observation:
        if self._unsure:
            self.attachment = self._recorded()
            self._unsure = False
        before, seen = self.seen, self._inspect()
        rebound = seen.instance_id not in (None, self.attachment.instance_id)
        if rebound:
            self.attachment = self._rebind(str(seen.instance_id))
        if state_of(seen) is not state_of(before) or self._since is None:
            self._since = self._clock.now()
        self._note_questions(before, seen)
        if (seen.instance_id is None) != (before.instance_id is None) and before is not _NOT_LOOKED:
            gone = seen.instance_id is None
            kind = "gateway.agent_unavailable" if gone else "gateway.agent_returned"
            self._note(kind, detail=seen.detail[:1000])
        self.seen = seen
        if rebound or seen != before:
            self.on_change()
        return seen

    def _note_questions(self, before: Observation, seen: Observation) -> None:
        known = {question.question_id for question in before.questions}
        asked = [one for one in seen.questions if one.question_id not in known]
        for question in asked:
            self._note(
                "gateway.question_asked",
                question_id=question.question_id,
                question=question.kind,
                subject=clipped(question.subject, QUESTION_CHARS),
            )

    def _inspect(self) -> Observation:
        try:
            return self.adapter.inspect()
        except errors.HoldfastError as error:
            if isinstance(error, errors.Held) and self.seen is _NOT_LOOKED:
                raise
            return Observation(None, detail=error.message)
        except Exception as error:  # noqa: BLE001 - the gateway survives every error of an adapter
            _log.warning("inspection failed agent=%s: %s", self.agent, error)
            why = f"the agent cannot be inspected: {type(error).__name__}: {error}"
            return Observation(None, detail=why)

    def _rebind(self, instance_id: str) -> Attachment:
        """Record the instance that was seen; any but the first one begins a new epoch."""

        def body(tx: Tx, line: QueueTransaction) -> Attachment:
            before = self._own(tx)
            if before.instance_id == instance_id:
                return before
            kind, after = "gateway.instance_seen", replace(before, instance_id=instance_id)
            if before.instance_id is not None:
                kind = "gateway.instance_replaced"
                # When nothing waits, there is nothing to decide. If a running request is put back
                # later, `put_back` asks for a decision.
                waiting = line.head.accepted > 0
                after = replace(after, epoch=before.epoch + 1, reconciling=waiting)
            tx.put(ATTACHMENTS, self.agent, after)
            self._append(
                tx, kind, epoch=after.epoch, instance_id=instance_id, before=before.instance_id
            )
            return after

        return self._change(body)

    def _note(self, kind: str, **data: Any) -> None:
        """Journal what the agent did. A loss of the entry does no harm."""
        self._change(lambda tx, _: self._append(tx, kind, **data), durable=False)

    def _append(self, tx: Tx, kind: str, **data: Any) -> None:
        self._journal.append(tx, kind=kind, subject=self.agent, data={"agent": self.agent, **data})
