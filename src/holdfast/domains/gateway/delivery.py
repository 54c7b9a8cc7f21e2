"""The worker of a gateway: each request from its claim to its end, and interrupts beside it.

It has three threads. One claims requests in order and waits for their answers. One sends
interrupts, which must not wait behind the request that they are to stop. One looks at the agent and
renews the gateway's lease. The first two touch the agent only while they hold `_terminal`, so that
an interrupt never comes into the middle of a delivery. All three survive every error of an adapter.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.domains.gateway.adapter import Answer, Delivery, Observation
from holdfast.domains.gateway.gateway import Gateway
from holdfast.domains.gateway.records import INTERRUPTED_BY_RESTART
from holdfast.domains.gateway.request import named
from holdfast.domains.gateway.state import AgentState
from holdfast.kernel import faults
from holdfast.kernel.errors import Fenced, HoldfastError, Unavailable
from holdfast.kernel.lease import renew_every_s
from holdfast.kernel.limits import (
    ANSWER_CHARS_MAX,
    GATEWAY_INSPECT_EVERY_S,
    GATEWAY_LEASE_S,
    GATEWAY_STOP_S,
)
from holdfast.primitives.queue import QueueRequest
from holdfast.primitives.queue.records import Receipt
from holdfast.primitives.queue.transaction import express_topic_of, topic_of

_RETRY_S = 0.5
_NOT_READY_S = 0.1
_log = logging.getLogger("holdfast.gateway")


class DeliveryWorker:
    """Carries out what a gateway has accepted. `on_lost` is called when another gateway has taken
    over.
    """

    def __init__(
        self,
        gateway: Gateway,
        *,
        inspect_every_s: float = GATEWAY_INSPECT_EVERY_S,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._gateway = gateway
        self._adapter = gateway.adapter
        self._inspect_every_s = inspect_every_s
        self._on_lost = on_lost
        self._terminal = threading.Lock()
        self._current: QueueRequest | None = None
        self._handed_over = False
        self._interrupted = False
        # The lanes (express or not) in which a claim may have been committed and not answered.
        self._unanswered: set[bool] = set()
        self._stopping = threading.Event()
        self._look_now = threading.Event()
        self._give_up = threading.Event()
        self._wake_fds: list[int] = []
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads. The gateway must be attached, and must have looked at its agent."""
        agent = self._gateway.agent
        for name, target in (
            ("slot", partial(self._loop, self._slot_step, topic_of(agent), self._wake_fd())),
            (
                "interrupts",
                partial(self._loop, self._interrupt_step, express_topic_of(agent), self._wake_fd()),
            ),
            ("watch", self._watch),
        ):
            thread = threading.Thread(target=target, name=f"holdfast-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._adapter.listen(self._look_now.set)

    def cease(self) -> None:
        """Claim nothing more; may be called in any thread. A running request goes on until it ends
        or `stop` gives it up.
        """
        self._stopping.set()
        self._look_now.set()

    def stop(self, grace_s: float = GATEWAY_STOP_S) -> None:
        """Claim nothing more, wait for the running request, give it up after `grace_s`, and return
        when all threads have ended.
        """
        self.cease()
        self._wake()
        deadline = time.monotonic() + grace_s
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))
        self._give_up.set()
        self._wake()
        for thread in self._threads:
            thread.join()
        for wake_fd in self._wake_fds:
            os.close(wake_fd)
        self._threads, self._wake_fds = [], []

    def _wake_fd(self) -> int:
        """An eventfd that wakes one sleeping thread when the worker stops."""
        self._wake_fds.append(wake_fd := os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        return wake_fd

    def _wake(self) -> None:
        for wake_fd in self._wake_fds:
            os.eventfd_write(wake_fd, 1)

    def _loop(self, step: Callable[[], float | None], topic: str, wake_fd: int) -> None:
        """Repeat a step. When it returns a pause, sleep so long or until the topic is notified."""
        while not self._stopping.is_set():
            try:
                with self._gateway.queue.store.listen([topic]) as listener:
                    while not self._stopping.is_set():
                        if (pause_s := step()) is not None:
                            listener.wait(pause_s, also=[wake_fd])
            except Exception as error:  # noqa: BLE001 - without this thread accepted requests would wait for ever
                self._survive(error)

    def _watch(self) -> None:
        renewed_s = time.monotonic()
        while not self._stopping.is_set():
            self._look_now.wait(self._inspect_every_s)
            self._look_now.clear()
            if self._stopping.is_set():
                return
            try:
                self._gateway.look()
                if time.monotonic() - renewed_s > renew_every_s(GATEWAY_LEASE_S):
                    self._gateway.renew()
                    renewed_s = time.monotonic()
            except Exception as error:  # noqa: BLE001 - as above
                self._survive(error)

    def _survive(self, error: Exception) -> None:
        if isinstance(error, Fenced):
            _log.error("taken over agent=%s: %s", self._gateway.agent, error.message)
            self._stopping.set()
            self._on_lost()
            return
        _log.warning(
            "worker goes on agent=%s after %s: %s", self._gateway.agent, type(error).__name__, error
        )
        self._stopping.wait(_RETRY_S)

    def _slot_step(self) -> float | None:
        """Carry out one request. Returns a pause when there is nothing to do."""
        self._undo_unanswered(express=False)
        head = self._gateway.queue.head()
        nothing_waits = head.accepted == head.express
        if nothing_waits or head.slot is not None or self._gateway.attachment.reconciling:
            return self._inspect_every_s
        seen = self._gateway.look()
        if seen.instance_id is None:
            return self._inspect_every_s
        if seen.state not in (AgentState.READY, AgentState.UNKNOWN):
            return _NOT_READY_S
        with self._terminal:
            request = self._claim(express=False)
            if request is None:
                return self._inspect_every_s
            self._current, self._handed_over, self._interrupted = request, False, False
        faults.reach("gateway.claimed")
        try:
            self._carry_out(request)
        except Fenced:
            raise
        except Exception as error:  # noqa: BLE001 - or the request would keep the slot for ever
            failure = failed_by(error, delivered="unknown")
            self._fail(request, failure.code or "", failure.detail, failure.facts)
        finally:
            self._current = None
        return None

    def _claim(self, *, express: bool) -> QueueRequest | None:
        try:
            return self._gateway.claim(express=express)
        except Unavailable:
            self._unanswered.add(express)
            raise

    def _undo_unanswered(self, *, express: bool) -> None:
        """Put back a claim whose commit was not answered: it would keep the slot for ever. Each
        thread does so for its own lane, while nothing of that lane runs.
        """
        if express in self._unanswered:
            self._gateway.put_back_unknown(express=express)
            self._unanswered.discard(express)

    def _carry_out(self, request: QueueRequest) -> None:
        with self._terminal:
            outcome = self._deliver(request)
        if isinstance(outcome, Delivery):
            try:
                outcome = self._adapter.answer(outcome, self._give_up)
            except Exception as error:  # noqa: BLE001 - an adapter's failure fails one request only
                outcome = failed_by(error, delivered="yes")
        with self._terminal:
            # From here on, an interrupt for this request is a no-op: the request has ended.
            self._current, interrupted = None, self._interrupted
        if outcome is None:
            self._persist(partial(self._gateway.put_back, request))
        else:
            self._end(request, outcome, interrupted)

    def _deliver(self, request: QueueRequest) -> Delivery | Answer | None:
        """The delivery of a request, or how it failed; None when nothing was delivered and the
        request must wait, because it was not meant for the present instance or the store is away.
        """
        if self._interrupted:
            return Answer(known=False)
        try:
            seen = self._gateway.look()
        except Unavailable:
            return None
        if not self._meant_for(request, seen):
            return None
        assert seen.instance_id is not None
        faults.reach("gateway.delivery.before")
        try:
            # The last check before the delivery: this process may have been stopped for longer than
            # its lease, and another gateway may serve by now.
            self._gateway.check_serving()
        except Unavailable:
            return None
        try:
            delivery = self._adapter.deliver(self._text_of(request), seen.instance_id)
        except Fenced:
            # Another instance came since the look. The next look records it, and the request waits
            # for an operator.
            return None
        except Exception as error:  # noqa: BLE001 - an adapter's failure fails one request only
            return failed_by(error, delivered="unknown")
        self._handed_over = True
        faults.reach("gateway.delivery.after")
        with contextlib.suppress(Unavailable):
            self._gateway.delivered(request)
        return delivery

    def _text_of(self, request: QueueRequest) -> str:
        prompt: str = request.payload["prompt"]
        if not self._gateway.name_sender:
            return prompt
        return named(prompt, request.sender, claimed=request.sender_claimed)

    def _meant_for(self, request: QueueRequest, seen: Observation) -> bool:
        return seen.instance_id is not None and self._gateway.attachment.epoch == request.epoch

    def _end(self, request: QueueRequest, answer: Answer, interrupted: bool) -> None:
        faults.reach("gateway.end.before")
        result = result_of(answer, self._handed_over)
        code, detail = answer.code, _storable(answer.detail)
        if interrupted:
            code, detail = "interrupted", "an interrupt stopped it"
            if not self._handed_over:
                detail += " before it was delivered"
        elif code is not None and self._give_up.is_set():
            code = INTERRUPTED_BY_RESTART
            detail = (
                "the gateway was stopped while this ran; it was delivered, and its outcome is "
                "unknown"
            )
        if code is not None:
            self._fail(request, code, detail, result)
        else:
            receipt = Receipt.ANSWERED if answer.known else Receipt.DELIVERED
            self._persist(partial(self._gateway.complete, request, result, receipt))
        faults.reach("gateway.end.after")

    def _interrupt_step(self) -> float | None:
        """Send all waiting interrupts as one. Returns a pause when there is none."""
        self._undo_unanswered(express=True)
        if not self._gateway.queue.head().express or self._gateway.attachment.reconciling:
            return self._inspect_every_s
        with self._terminal:
            first = self._claim(express=True)
            if first is None:
                return self._inspect_every_s
            adjacent: list[QueueRequest] = []
            # The interrupts that were claimed are sent even if the store goes away now.
            with contextlib.suppress(Unavailable):
                adjacent.extend(iter(lambda: self._claim(express=True), None))
            result, error = self._interrupt(first)
        for request in [first, *adjacent]:
            mine = dict(result)
            if request is not first:
                mine["coalesced_with"] = first.request_id
            if error is not None:
                self._fail(request, error.code or "", error.detail, mine)
            else:
                self._persist(partial(self._gateway.complete, request, mine, Receipt.DELIVERED))
        return None

    def _interrupt(self, request: QueueRequest) -> tuple[dict[str, Any], Answer | None]:
        current = self._current
        if (why := needless(request, current)) is not None:
            return {"disposition": "no_op", "detail": why}, None
        stopping = {} if current is None else {"stopped": current.request_id}
        if current is not None and not self._handed_over:
            # Claimed and not delivered yet: it never will be.
            self._interrupted = True
            return {"disposition": "accepted", **stopping}, None
        try:
            seen = self._gateway.look()
            if not self._meant_for(request, seen):
                return {}, Answer(
                    code="upstream_unavailable",
                    detail="the agent is not there, or was replaced: not delivered",
                )
            assert seen.instance_id is not None
            with contextlib.suppress(Unavailable):
                self._gateway.check_serving()
            stopped = self._adapter.interrupt(seen.instance_id)
        except Exception as error:  # noqa: BLE001 - an adapter's failure fails one request only
            return {}, failed_by(error, delivered="unknown")
        self._interrupted = self._interrupted or (stopped and current is not None)
        return {"disposition": "accepted" if stopped else "no_op", **stopping}, None

    def _fail(self, request: QueueRequest, code: str, detail: str, result: dict[str, Any]) -> None:
        self._persist(partial(self._gateway.fail, request, code, detail, result))

    def _persist(self, write: Callable[[], object]) -> None:
        """Store how a request ended, however long the store is away: a delivered request must not
        look as if it had not been delivered.
        """
        unsure = False
        while True:
            try:
                write()
                return
            except Unavailable as error:
                unsure = True
                _log.warning("end not stored yet agent=%s: %s", self._gateway.agent, error.message)
                if self._give_up.wait(_RETRY_S):
                    return
            except Fenced:
                # When the fate of the last commit is unknown, Fenced means that it succeeded: the
                # request has ended, and its token no longer counts.
                if unsure:
                    return
                raise


def needless(request: QueueRequest, current: QueueRequest | None) -> str | None:
    """Why an interrupt is not sent: the request that it was meant to stop has ended, or the running
    one came after it. None: it is sent.
    """
    if request.beside is not None and (current is None or current.request_id != request.beside):
        return f"request {request.beside}, which ran when this came, has ended by itself"
    if current is not None and current.arrival > request.arrival:
        return f"request {current.request_id}, which runs now, came after this"
    return None


def failed_by(error: Exception, *, delivered: str) -> Answer:
    """What an adapter's error means for its request. `delivered` is assumed where the error does
    not say it.
    """
    if isinstance(error, HoldfastError):
        delivered = {"none": "no", "unknown": "unknown"}.get(
            error.fields.get("outcome", ""), delivered
        )
        code, detail = error.code, error.message
    else:
        _log.warning("adapter failed: %s: %s", type(error).__name__, error)
        code, detail = "adapter_failed", f"{type(error).__name__}: {error}"[:1000]
    return Answer(code=code, detail=detail, known=False, facts={"delivered": delivered})


def result_of(answer: Answer, handed_over: bool) -> dict[str, Any]:
    """What is stored of an answer. A long text keeps its end only; surrogates are replaced, as no
    encoding can carry them.
    """
    if answer.known and answer.code is None:
        receipt = "answered"
    else:
        receipt = "delivered" if handed_over else "accepted"
    facts = {
        name: _storable(fact) if isinstance(fact, str) else fact
        for name, fact in answer.facts.items()
    }
    result: dict[str, Any] = {"receipt": receipt, **facts}
    if receipt == "delivered" and answer.code is None:
        result["end_unknown"] = True
    text = _storable(answer.text)
    if text or answer.source:
        result |= {
            "text": text[-ANSWER_CHARS_MAX:],
            "source": answer.source,
            "truncated": len(text) > ANSWER_CHARS_MAX,
        }
    return result


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
