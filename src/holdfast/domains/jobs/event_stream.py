"""Events of jobs: publish one, which also moves the job, and receive one, if it is genuine.

An event is stored in the transaction that makes its change, and sent afterwards by a process that
reaches the broker. So none is lost while the broker is away, and none reports what did not happen.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.domains.jobs import transitions
from holdfast.domains.jobs.broker_address import chosen
from holdfast.domains.jobs.events import (
    JOB_EVENTS,
    MOVES,
    SEQ_MAX,
    SIGNATURE_BYTES_MAX,
    WIRE_VERSION,
    Event,
    EventKind,
    JobEvent,
    bounded,
    event_key,
    genuine,
    kind_named,
    signed,
)
from holdfast.domains.jobs.leftovers import Leftovers
from holdfast.domains.jobs.records import JOBS, Job, JobStatus
from holdfast.domains.jobs.transitions import ExtraChange, LateRefusal, Verdict
from holdfast.kernel.codec import json_bytes, to_plain
from holdfast.kernel.errors import (
    Corrupt,
    ImpossibleTransition,
    InvalidName,
    InvalidValue,
    NotFound,
)
from holdfast.kernel.holder import Processes
from holdfast.kernel.limits import (
    JOB_EVENT_BYTES_MAX,
    JOB_EVENTS_KEEP,
    JOURNAL_READ_MAX,
    REPLY_BYTES_MAX,
)
from holdfast.kernel.names import check_job_id, check_new_label, check_text
from holdfast.kernel.order import Parts
from holdfast.kernel.space import rows
from holdfast.kernel.store import Damage, ReadTx, Store, Tx
from holdfast.primitives.journal import Journal

ANSWER_FIELD = "answer"
"""The field of an event's data that has the answer to a job that asked for a permission."""

_log = logging.getLogger("holdfast.jobs")
_SCOPE = [rows(JOBS), rows(JOB_EVENTS)]
_MESSAGE_BYTES_MAX = 2 * JOB_EVENT_BYTES_MAX


class Published(NamedTuple):
    """An event that was stored, and its job after it."""

    job: Job
    event: Event


class Received(NamedTuple):
    """The event of a message if it is genuine, or why it was dropped. `news` is true if this
    registry did not know the event.
    """

    event: Event | None
    dropped: str | None
    news: bool = False


class WaitingJob(NamedTuple):
    """A job that waits for a permission, and the event that asks for it."""

    job: Job
    event: Event


class Unsent(NamedTuple):
    """An event that waits for the broker of its job."""

    job: Job
    event: Event


class JobEvents:
    """The events of the jobs of one store."""

    def __init__(self, store: Store, journal: Journal, processes: Processes) -> None:
        self._store = store
        self._journal = journal
        self._leftovers = Leftovers(processes, embedded=store.embedded)
        self.unlogged = False
        """Did this change jobs since the audit log was last brought up to date?"""

    def publish(
        self,
        job_id: str,
        event: EventKind | str,
        *,
        detail: str = "",
        data: Any = None,
        token: int | None = None,
    ) -> Published:
        """Store an event to be sent, and move the job as it says: started, completed, error and
        cancelled do.

        A worker shows the token of its attempt. Raises NotFound, Fenced, ImpossibleTransition for
        what the job's status does not allow, and InvalidValue; then nothing is changed.
        """
        check_job_id(job_id)
        kind = kind_named(event)
        seen: list[Job] = []

        def body(tx: Tx) -> Published | LateRefusal:
            job = transitions.existing(tx, job_id)
            seen[:] = [job]
            verdict = _verdict(kind, detail)
            if kind in (EventKind.COMPLETED, EventKind.ERROR):
                late = transitions.check_verdict(tx, self._journal, job, token, verdict)
                if late is not None:
                    return late
            else:
                transitions.check_token(job, token)
            after = _moved(job, kind, verdict, tx, by_operator=token is None)
            after, stored = self._store_event(tx, after, kind, detail, data)
            return Published(self._write(tx, job, after), stored)

        published = self._store.transact(body, scope=_SCOPE)
        self.unlogged = True
        self._end_if_cancelled(kind, seen)
        if isinstance(published, LateRefusal):
            raise published.error
        return published

    def waiting(self) -> list[WaitingJob]:
        """The jobs that wait for a permission, the longest first. Damaged ones are skipped."""

        def read(tx: ReadTx) -> list[WaitingJob]:
            running = [row.record for row in tx.find(JOBS, "running", damaged=[])]
            found = []
            for job in running:
                row = tx.get(JOB_EVENTS, event_key(job.job_id, job.last_seq))
                if job.waiting_since is not None and row is not None:
                    found.append(WaitingJob(job, row.record.event))
            return found

        found = self._store.read(read, scope=[JOBS, JOB_EVENTS])
        return sorted(found, key=lambda one: (one.event.timestamp, one.job.job_id))

    def answer(self, job_id: str, seq: int, reply: str, *, by: str, claimed: bool = False) -> Event:
        """Answer the event `seq` of a job, which asks for a permission. The answer is an event of
        the job: progress, whose data are ANSWER_FIELD, the number of the question and who answers.
        With `claimed` only the caller says who that is.

        Raises NotFound when the job does not ask that any more, InvalidName and InvalidValue.
        """
        check_job_id(job_id)
        check_new_label(by, "by")
        check_text(reply, "reply")
        if not reply.strip() or len(reply.encode()) > REPLY_BYTES_MAX:
            raise InvalidValue(
                f"the reply has {len(reply.encode())} bytes: write 1 to {REPLY_BYTES_MAX}",
                field="reply",
            )
        data = {ANSWER_FIELD: reply, "question": seq, "by": by}
        if claimed:
            data["claimed"] = True

        def body(tx: Tx) -> Event:
            row = tx.get(JOBS, job_id)
            if row is None or row.record.waiting_since is None or row.record.last_seq != seq:
                raise NotFound(
                    f"job {job_id} does not ask for this permission any more: it was answered, or "
                    "its worker went on",
                    job_id=job_id,
                    question=seq,
                )
            detail = f"{by} answers: {reply}"
            after, event = self._store_event(tx, row.record, EventKind.PROGRESS, detail, data)
            self._write(tx, row.record, after)
            return event

        answered = self._store.transact(body, scope=_SCOPE)
        self.unlogged = True
        return answered

    def answer_to(self, job_id: str, seq: int) -> dict[str, Any] | None:
        """The data of the answer to the event `seq` of a job, if there is one."""
        for event in self.of_job(job_id, after_seq=seq):
            data = event.data
            if isinstance(data, dict) and ANSWER_FIELD in data and data.get("question") == seq:
                return data
        return None

    def with_step(self, event: EventKind, *, detail: str = "", data: Any = None) -> ExtraChange:
        """The event of a step of the registry, for its `also`: stored in the same transaction."""
        return ExtraChange(
            _SCOPE, lambda tx, job: self._store_event(tx, job, event, detail, data)[0]
        )

    def of_job(self, job_id: str, *, after_seq: int = 0) -> list[Event]:
        """The stored events of a job behind a number. Damaged ones are skipped."""
        damaged: list[Corrupt] = []
        prefix, start = f"{job_id}/", event_key(job_id, after_seq + 1)
        found = self._store.read(
            lambda tx: tx.range(JOB_EVENTS, prefix=prefix, start=start, damaged=damaged),
            scope=[JOB_EVENTS],
        )
        return [row.record.event for row in found]

    def ended_by_event(self, attempt: Job) -> bool:
        """Did an event of this very attempt report the job's end? Then the command may have sent
        it, and may finish. False for a cancelled job, even if an event cancelled it: its worker
        must stop. Raises Corrupt for a damaged record.
        """

        def read(tx: ReadTx) -> bool:
            row = tx.get(JOBS, attempt.job_id)
            if row is None or row.record.attempt != attempt.attempt or not row.record.status.ended:
                return False
            # No event can follow the one that ended its job, so that one is the last.
            last = tx.get(JOB_EVENTS, event_key(attempt.job_id, row.record.last_seq))
            ends = (EventKind.COMPLETED, EventKind.ERROR)
            return last is not None and last.record.event.event in ends

        return self._store.read(read, scope=[JOBS, JOB_EVENTS])

    def unsent(self, job_id: str | None = None) -> list[Unsent]:
        """Events that wait for the broker, of one job or of all, in order."""
        return [one for page in self.unsent_pages(job_id) for one in page]

    def unsent_pages(self, job_id: str | None = None) -> Iterator[list[Unsent]]:
        """`unsent` in pages, each read when it is needed."""
        match = () if job_id is None else (job_id,)
        start: Parts | None = ()
        while start is not None:
            read = partial(_unsent_page, match=match, start=start)
            page, start = self._store.read(read, scope=[JOBS, JOB_EVENTS])
            yield page

    def unsent_count(self) -> int:
        return self._store.read(lambda tx: tx.count(JOB_EVENTS, "unsent"), scope=[JOB_EVENTS])

    def sendable(self, environment: Mapping[str, str]) -> bool:
        """Did anybody choose a broker for events that wait? Reads the first thousand. Events
        without a chosen broker are only kept: no receiver expects them.
        """
        waiting = next(self.unsent_pages(), [])
        jobs = {one.job.job_id: one.job for one in waiting}
        return any(chosen(job.broker, environment) for job in jobs.values())

    def sent(self, events: Sequence[Event]) -> None:
        """Record that the broker has these events."""

        def body(tx: Tx) -> None:
            for event in events:
                key = event_key(event.job_id, event.seq)
                row = tx.get(JOB_EVENTS, key)
                if row is not None and not row.record.sent:
                    tx.put(JOB_EVENTS, key, replace(row.record, sent=True))

        if events:
            # Not durable: an event that is sent again is harmless, its receiver knows its number.
            self._store.transact(body, scope=[rows(JOB_EVENTS)], durable=False)

    def receive(self, payload: bytes, *, topic: str | None = None) -> Received:
        """Take an event that arrived. A message is dropped and logged if it is not an event, has
        another version, names an unknown job, came on the topic of another job, has no genuine
        signature, or repeats a number.

        A genuine event that this registry did not know moves the job as publishing it would. The
        event of a job without a key cannot be verified, so it changes nothing. Never raises for
        the content of a message.
        """
        document = _document(payload)
        if isinstance(document, str):
            return _drop("?", document)
        try:
            event = msgspec.convert(document, Event, str_keys=True)
            row = self._store.get(JOBS, check_job_id(event.job_id))
        except (msgspec.ValidationError, InvalidName, Corrupt):
            return _drop("?", "it is not a job event")
        if row is None:
            return _drop(event.job_id, "there is no such job here")
        job = row.record
        if topic is not None and topic != job.events_topic:
            return _drop(event.job_id, "it is not on its job's topic")
        if job.auth_token is None:
            return Received(event, "its job has no key, so nothing proves it")
        if not genuine(document, job.auth_token):
            return _drop(event.job_id, "its signature is missing or not genuine")
        if json_bytes(event) > JOB_EVENT_BYTES_MAX + SIGNATURE_BYTES_MAX or event.seq > SEQ_MAX:
            # Checked again after decoding: a short text such as 1e99 may stand for a long number.
            return _drop(event.job_id, "it is too large, or its number is")
        return self._take(event)

    def _take(self, event: Event) -> Received:
        """Take a genuine event, if it is news."""
        seen: list[Job] = []

        def body(tx: Tx) -> Received:
            seen.clear()
            row = tx.get(JOBS, event.job_id)
            if row is None:
                return _drop(event.job_id, "its job was removed")
            job = row.record
            if event.seq <= job.last_seq:
                known = tx.get(JOB_EVENTS, event_key(event.job_id, event.seq))
                if known is not None and known.record.event == event:
                    return Received(event, None)
                return _drop(event.job_id, f"its number {event.seq} is not beyond {job.last_seq}")
            verdict = _verdict(event.event, event.detail)
            try:
                after = _moved(job, event.event, verdict, tx, by_operator=True)
            except ImpossibleTransition as error:
                transitions.keep_late(tx, self._journal, job, None, verdict)
                return _drop(event.job_id, error.message)
            after = _noted(after, event, tx)
            _put(tx, JobEvent(event=event, sent=True))
            self._journal.append(
                tx, kind="job.received", subject=event.job_id, data=to_plain(event)
            )
            self._write(tx, job, after)
            seen[:] = [job]
            return Received(event, None, news=True)

        received = self._store.transact(body, scope=_SCOPE)
        self.unlogged = True
        self._end_if_cancelled(event.event, seen)
        return received

    def _end_if_cancelled(self, kind: EventKind, seen: Sequence[Job]) -> None:
        """End what a dead worker left of a running job that an event cancelled. A command that
        reports another end of its job may finish.
        """
        for job in seen:
            if kind is EventKind.CANCELLED and job.status is JobStatus.RUNNING:
                self._leftovers.end_of_dead_worker(job)

    def _store_event(
        self, tx: Tx, job: Job, kind: EventKind, detail: str, data: Any
    ) -> tuple[Job, Event]:
        """Number, sign, store and journal an event; return the job with the number taken."""
        event = Event(
            seq=job.last_seq + 1,
            job_id=job.job_id,
            event=kind,
            timestamp=tx.now,
            detail=detail,
            data=msgspec.UNSET if data is None else data,
        )
        event = signed(bounded(event), job)
        _put(tx, JobEvent(event=event))
        self._journal.append(tx, kind="job.published", subject=job.job_id, data=to_plain(event))
        return _noted(job, event, tx), event

    def _write(self, tx: Tx, before: Job, after: Job) -> Job:
        if after.status is before.status:
            tx.put(JOBS, after.job_id, after)
            return after
        after = transitions.write(tx, self._journal, before, after)
        if after.status is JobStatus.CANCELLED:
            # The worker ends the command at once. After any other end the command may finish: it
            # may have reported that end itself.
            tx.notify(transitions.job_topic(after.job_id))
        return after


def _put(tx: Tx, stored: JobEvent) -> None:
    """Store an event in the place of the oldest one beyond the bound."""
    job_id, seq = stored.event.job_id, stored.event.seq
    tx.put(JOB_EVENTS, event_key(job_id, seq), stored)
    if seq > JOB_EVENTS_KEEP:
        tx.delete(JOB_EVENTS, event_key(job_id, seq - JOB_EVENTS_KEEP))


def _unsent_page(tx: ReadTx, *, match: Parts, start: Parts) -> tuple[list[Unsent], Parts | None]:
    """A page of events that wait, and where to go on; None behind the last. Damaged ones are
    skipped.
    """
    size, full = JOURNAL_READ_MAX, True
    events: list[Event] = []
    while full and not events:
        damaged: Damage = []
        found = tx.find(
            JOB_EVENTS, "unsent", match, start=start or None, limit=size, damaged=damaged
        )
        events = [row.record.event for row in found]
        full = len(events) + len(damaged) == size
        # If all of a page is damaged, the place behind it is unknown.
        size *= 2
    jobs = {job_id: tx.get(JOBS, job_id) for job_id in {event.job_id for event in events}}
    page = [
        Unsent(job.record, event) for event in events if (job := jobs[event.job_id]) is not None
    ]
    return page, (events[-1].job_id, events[-1].seq + 1)[len(match) :] if full else None


def _verdict(kind: EventKind, detail: str) -> Verdict:
    """The step that an event is; RUNNING for one that ends nothing."""
    status, words = MOVES.get(kind, JobStatus.RUNNING), detail or None
    if status is JobStatus.COMPLETED:
        return Verdict(status, result=words)
    return Verdict(status, error=words if status.ended else None)


def _moved(job: Job, kind: EventKind, verdict: Verdict, tx: Tx, *, by_operator: bool) -> Job:
    if kind not in MOVES or verdict.status is job.status is JobStatus.RUNNING:
        if job.status.ended:
            raise ImpossibleTransition(
                f"job {job.job_id} is {job.status.value}: it takes no more events than its end",
                job_id=job.job_id,
                status=job.status.value,
                wanted=kind.value,
            )
        return job
    return transitions.moved(job, verdict, now=tx.now, token=tx.revision, by_operator=by_operator)


def _noted(job: Job, event: Event, tx: Tx) -> Job:
    """The job with the number of an event taken, and the event as its last sign of life."""
    waits = tx.now if event.event is EventKind.PERMISSION_REQUIRED else None
    return replace(
        job, last_seq=event.seq, last_event_at=tx.now, updated_at=tx.now, waiting_since=waits
    )


def _document(payload: bytes) -> dict[str, Any] | str:
    """The JSON object of a message, or what is wrong with it."""
    if len(payload) > _MESSAGE_BYTES_MAX:
        return "it is too large"
    try:
        document = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return "it cannot be decoded"
    if not isinstance(document, dict):
        return "it is not a JSON object"
    version = document.get("schema_version")
    if version != WIRE_VERSION or isinstance(version, bool):
        return "its schema version is not known"
    return document


def _drop(job_id: str, why: str) -> Received:
    # The log gets nothing of its content.
    _log.warning("event dropped job=%s: %s", job_id, why)
    return Received(None, why)
