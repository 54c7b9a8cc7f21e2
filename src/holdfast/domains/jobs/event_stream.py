"""Events of jobs: publishing one also moves the job, and one that arrives is believed only if it
can be.

An event is kept in the transaction that makes its change, and sent afterwards by whoever reaches
the broker. So no event is lost while the broker is away, and none tells of what did not happen.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.domains.jobs import transitions
from holdfast.domains.jobs.broker_address import chosen
from holdfast.domains.jobs.change import job_topic, write
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
from holdfast.domains.jobs.registry import Also, existing
from holdfast.domains.jobs.transitions import Kept, Verdict, check_verdict, keep
from holdfast.kernel.codec import json_bytes, to_plain
from holdfast.kernel.errors import Corrupt, ImpossibleTransition, InvalidName
from holdfast.kernel.holder import Processes
from holdfast.kernel.limits import JOB_EVENT_BYTES_MAX, JOB_EVENTS_KEEP, JOURNAL_READ_MAX
from holdfast.kernel.names import check_job_id
from holdfast.kernel.order import Parts
from holdfast.kernel.space import rows
from holdfast.kernel.store import Damage, ReadTx, Store, Tx
from holdfast.primitives.journal import Journal

_log = logging.getLogger("holdfast.jobs")
_SCOPE = [rows(JOBS), rows(JOB_EVENTS)]
_MESSAGE_BYTES_MAX = 2 * JOB_EVENT_BYTES_MAX
_VERDICTS = (EventKind.COMPLETED, EventKind.ERROR)


class Published(NamedTuple):
    """An event that was kept, and its job after it."""

    job: Job
    event: Event


class Received(NamedTuple):
    """What became of a message: the event if it is genuine, and otherwise why it was dropped."""

    event: Event | None
    dropped: str | None
    news: bool = False
    """Whether this registry did not know the event yet."""


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
        """Keep an event to be sent, and move the job as it says: started, completed, error and
        cancelled do.

        A worker shows the token of its attempt. Raises NotFound, Fenced, ImpossibleTransition for
        what the job's status does not allow, and InvalidValue; then nothing is changed.
        """
        check_job_id(job_id)
        kind = kind_named(event)
        cancelled: list[Job] = []

        def body(tx: Tx) -> Published | Kept:
            job = existing(tx, job_id)
            cancelled[:] = _cancelled_by(kind, job)
            verdict = _verdict(kind, detail)
            if verdict is None:
                transitions.check_token(job, token)
            elif (late := check_verdict(tx, self._journal, job, token, verdict)) is not None:
                return late
            after, moved = _after(job, kind, tx, detail, by_operator=token is None)
            kept, told = self._keep(tx, after, kind, detail, data)
            return Published(self._write(tx, job, kept, moved=moved), told)

        self.unlogged = True
        published = self._store.transact(body, scope=_SCOPE)
        self._end_left(cancelled)
        return published.fail() if isinstance(published, Kept) else published

    def with_step(self, event: EventKind, *, detail: str = "", data: Any = None) -> Also:
        """The event that belongs to a step of the registry, for its `also`: kept in the same
        transaction.
        """
        return Also(_SCOPE, lambda tx, job: self._keep(tx, job, event, detail, data)[0])

    def of_job(self, job_id: str, *, after_seq: int = 0) -> list[Event]:
        """The events of a job that are kept, behind a number. Damaged ones are passed over."""
        damaged: list[Corrupt] = []
        prefix = f"{job_id}/"
        start = event_key(job_id, after_seq + 1)
        found = self._store.read(
            lambda tx: tx.range(JOB_EVENTS, prefix=prefix, start=start, damaged=damaged),
            scope=[JOB_EVENTS],
        )
        return [row.record.told for row in found]

    def told_end(self, attempt: Job) -> bool:
        """Was it an event of this very attempt that said how the job ended? Then its command may
        have told it, and may finish.

        False for a job that was cancelled, by an event too: its worker must stop. Raises Corrupt
        for a damaged record.
        """
        return self._store.read(lambda tx: _ended_by_event(tx, attempt), scope=[JOBS, JOB_EVENTS])

    def unsent(self, job_id: str | None = None) -> list[Unsent]:
        """Events that wait for the broker, of one job or of all, in order."""
        return [one for page in self.unsent_pages(job_id) for one in page]

    def unsent_pages(self, job_id: str | None = None) -> Iterator[list[Unsent]]:
        """The same in pages, each read when it is asked for."""
        match = () if job_id is None else (job_id,)
        start: Parts | None = ()
        while start is not None:
            page, start = self._store.read(
                partial(_waiting, match=match, start=start), scope=[JOBS, JOB_EVENTS]
            )
            yield page

    def unsent_count(self) -> int:
        """How many events wait for a broker."""
        return self._store.read(lambda tx: tx.count(JOB_EVENTS, "unsent"), scope=[JOB_EVENTS])

    def sendable(self, environment: Mapping[str, str]) -> bool:
        """Did anybody choose a broker for events that wait? Looked for among the first thousand.
        Otherwise they are kept for whoever asks, and wait for nobody.
        """
        waiting = next(self.unsent_pages(), [])
        return any(
            chosen(job.broker, environment)
            for job in {one.job.job_id: one.job for one in waiting}.values()
        )

    def sent(self, events: Sequence[Event]) -> None:
        """Take note that the broker has these."""

        def body(tx: Tx) -> None:
            for event in events:
                key = event_key(event.job_id, event.seq)
                row = tx.get(JOB_EVENTS, key)
                if row is not None and not row.record.sent:
                    tx.put(JOB_EVENTS, key, replace(row.record, sent=True))

        if events:
            # A repeat is harmless: whoever gets it has seen its number.
            self._store.transact(body, scope=[rows(JOB_EVENTS)], durable=False)

    def receive(self, payload: bytes, *, topic: str | None = None) -> Received:
        """Take an event that arrived. Dropped, and logged, are: what is no event, of another
        version, of a job that is not here or on a topic that is not its own, without a genuine
        signature, or with a number that was there before.

        A genuine one that this registry did not know moves the job as publishing it would. Without
        a key nothing can be believed, so such an event changes nothing. Never raises for what a
        message says.
        """
        document = _document(payload)
        if isinstance(document, str):
            return _drop("?", document)
        try:
            event = msgspec.convert(document, Event, str_keys=True)
            row = self._store.get(JOBS, check_job_id(event.job_id))
        except (msgspec.ValidationError, InvalidName, Corrupt):
            return _drop("?", "it is no event of a job")
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
            # A few characters may stand for a long number.
            return _drop(event.job_id, "it is too large, or its number is")
        return self._take(event)

    def _take(self, event: Event) -> Received:
        cancelled: list[Job] = []

        def body(tx: Tx) -> Received:
            cancelled.clear()
            row = tx.get(JOBS, event.job_id)
            if row is None:
                return _drop(event.job_id, "its job was removed")
            job = row.record
            if event.seq <= job.last_seq:
                known = tx.get(JOB_EVENTS, event_key(event.job_id, event.seq))
                if known is not None and known.record.told == event:
                    return Received(event, None)
                return _drop(event.job_id, f"its number {event.seq} is not beyond {job.last_seq}")
            try:
                after, moved = _after(job, event.event, tx, event.detail, by_operator=True)
            except ImpossibleTransition as error:
                if (verdict := _verdict(event.event, event.detail)) is not None:
                    keep(tx, self._journal, job, None, verdict)
                return _drop(event.job_id, error.message)
            after = replace(after, last_seq=event.seq, last_event_at=tx.now, updated_at=tx.now)
            _put(tx, JobEvent(told=event, sent=True))
            self._journal.append(
                tx, kind="job.received", subject=event.job_id, data=to_plain(event)
            )
            self._write(tx, job, after, moved=moved)
            cancelled[:] = _cancelled_by(event.event, job)
            return Received(event, None, news=True)

        self.unlogged = True
        received = self._store.transact(body, scope=_SCOPE)
        self._end_left(cancelled)
        return received

    def _end_left(self, cancelled: Sequence[Job]) -> None:
        for job in cancelled:
            self._leftovers.end_of_dead_worker(job)

    def _keep(self, tx: Tx, job: Job, kind: EventKind, detail: str, data: Any) -> tuple[Job, Event]:
        """Number, sign, keep and journal an event; return the job with the number taken."""
        seq = job.last_seq + 1
        extra = {} if data is None else {"data": data}
        event = signed(
            bounded(
                Event(
                    seq=seq, job_id=job.job_id, event=kind, timestamp=tx.now, detail=detail, **extra
                )
            ),
            job,
        )
        _put(tx, JobEvent(told=event))
        self._journal.append(tx, kind="job.published", subject=job.job_id, data=to_plain(event))
        waits = tx.now if kind is EventKind.PERMISSION_REQUIRED else None
        return replace(
            job, last_seq=seq, last_event_at=tx.now, updated_at=tx.now, waiting_since=waits
        ), event

    def _write(self, tx: Tx, before: Job, after: Job, *, moved: bool) -> Job:
        if not moved:
            tx.put(JOBS, after.job_id, after)
            return after
        after = write(tx, self._journal, before, after)
        if after.status is JobStatus.CANCELLED:
            # Its worker ends the command at once. Other ends may be told by the command itself,
            # which may finish.
            tx.notify(job_topic(after.job_id))
        return after


def _cancelled_by(kind: EventKind, job: Job) -> list[Job]:
    """The job if it runs and an event cancels it. A command that tells any other end of its job may
    finish.
    """
    return [job] if kind is EventKind.CANCELLED and job.status is JobStatus.RUNNING else []


def _put(tx: Tx, kept: JobEvent) -> None:
    """Keep an event, in the place of the one that is too many by now."""
    job_id, seq = kept.told.job_id, kept.told.seq
    tx.put(JOB_EVENTS, event_key(job_id, seq), kept)
    if seq > JOB_EVENTS_KEEP:
        tx.delete(JOB_EVENTS, event_key(job_id, seq - JOB_EVENTS_KEEP))


def _ended_by_event(tx: ReadTx, attempt: Job) -> bool:
    row = tx.get(JOBS, attempt.job_id)
    if row is None or (row.record.attempt, row.record.status.ended) != (attempt.attempt, True):
        return False
    # Nothing can be told after an event that ended its job, so that one is the last.
    last = tx.get(JOB_EVENTS, event_key(attempt.job_id, row.record.last_seq))
    return last is not None and last.record.told.event in _VERDICTS


def _waiting(tx: ReadTx, *, match: Parts, start: Parts) -> tuple[list[Unsent], Parts | None]:
    """A page of events that wait, and where to go on, None behind the last. Damaged ones are passed
    over.
    """
    size, full = JOURNAL_READ_MAX, True
    events: list[Event] = []
    while full and not events:
        damaged: Damage = []
        found = tx.find(
            JOB_EVENTS, "unsent", match, start=start or None, limit=size, damaged=damaged
        )
        events = [row.record.told for row in found]
        full = len(events) + len(damaged) == size
        # All of a page may be damaged, and no place is known behind it.
        size *= 2
    jobs = {job_id: tx.get(JOBS, job_id) for job_id in {event.job_id for event in events}}
    page = [
        Unsent(job.record, event) for event in events if (job := jobs[event.job_id]) is not None
    ]
    return page, (events[-1].job_id, events[-1].seq + 1)[len(match) :] if full else None


def _verdict(kind: EventKind, detail: str) -> Verdict | None:
    """What an event says of how its job ended; None for any other."""
    if kind is EventKind.COMPLETED:
        return Verdict(JobStatus.COMPLETED, result=detail or None)
    return Verdict(JobStatus.ERROR, error=detail or None) if kind is EventKind.ERROR else None


def _after(
    job: Job, kind: EventKind, tx: Tx, detail: str, *, by_operator: bool
) -> tuple[Job, bool]:
    """The job after an event, and whether that moved it. Raises ImpossibleTransition."""
    status = MOVES.get(kind)
    if status is None or (status is JobStatus.RUNNING and job.status is JobStatus.RUNNING):
        if job.status.ended:
            raise ImpossibleTransition(
                f"job {job.job_id} is {job.status.value}: nothing more can be told of it than how "
                "it ended",
                job_id=job.job_id,
                status=job.status.value,
                wanted=kind.value,
            )
        waits = tx.now if kind is EventKind.PERMISSION_REQUIRED else None
        return replace(job, waiting_since=waits), False
    verdict = _verdict(kind, detail) or Verdict(
        status, error=detail or None if status is JobStatus.CANCELLED else None
    )
    return transitions.moved(
        job, *verdict, now=tx.now, token=tx.revision, by_operator=by_operator
    ), True


def _document(payload: bytes) -> dict[str, Any] | str:
    """The JSON object of a message, or what is wrong with it."""
    if len(payload) > _MESSAGE_BYTES_MAX:
        return "it is too large"
    try:
        document = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return "it cannot be decoded"
    if not isinstance(document, dict):
        return "it is no JSON object"
    if document.get("schema_version") != WIRE_VERSION or isinstance(
        document.get("schema_version"), bool
    ):
        return "its schema version is not known"
    return document


def _drop(job_id: str, why: str) -> Received:
    """Dropped and logged, without a word of what it said."""
    _log.warning("event dropped job=%s: %s", job_id, why)
    return Received(None, why)
