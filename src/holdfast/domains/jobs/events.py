"""An event of a job: its form on the wire, its signature, and its space.

    {"schema_version": 1, "seq": 3, "job_id": "abc12345", "event": "completed", "timestamp": "...Z",
    "detail": "", "sig": "..."}

The signature is an HMAC-SHA256, in hexadecimal, by the job's key over the event without `sig` as
JSON: keys sorted, no spaces, UTF-8. Without the key nobody can make or change an event.
"""

import enum
import hmac
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.domains.jobs.records import Job, JobStatus
from holdfast.kernel.codec import Instant, Plain, Record, cut, json_bytes, to_plain
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.limits import JOB_EVENT_BYTES_MAX
from holdfast.kernel.names import check_text
from holdfast.kernel.space import Space

WIRE_VERSION = 1
_SEQ_DIGITS = 12
SEQ_MAX = 10**_SEQ_DIGITS - 1
"""Greatest number of an event: keys with more digits would not be in order."""
SIGNATURE_BYTES_MAX = 128
"""What a signature adds to an event."""


class EventKind(enum.StrEnum):
    """What an event reports."""

    STARTED = "started"
    PERMISSION_REQUIRED = "permission_required"
    PROGRESS = "progress"
    COMPLETED = "completed"
    ERROR = "error"
    CANCELLED = "cancelled"


MOVES: Mapping[EventKind, JobStatus] = {
    EventKind.STARTED: JobStatus.RUNNING,
    EventKind.COMPLETED: JobStatus.COMPLETED,
    EventKind.ERROR: JobStatus.ERROR,
    EventKind.CANCELLED: JobStatus.CANCELLED,
}
"""The status that an event moves its job to."""


class Event(Plain, frozen=True, kw_only=True):
    """An event as it is sent."""

    schema_version: int = WIRE_VERSION
    seq: int
    job_id: str
    event: EventKind
    timestamp: Instant
    detail: str = ""
    data: Any | msgspec.UnsetType = msgspec.UNSET
    sig: str | msgspec.UnsetType = msgspec.UNSET


class JobEvent(Record, frozen=True, kw_only=True):
    """An event as it is stored, and whether the broker has it. Stores have it as `told`."""

    event: Event = msgspec.field(name="told")
    sent: bool = False


JOB_EVENTS = Space(
    "job_events",
    JobEvent,
    indexes={
        "unsent": lambda stored: None if stored.sent else (stored.event.job_id, stored.event.seq)
    },
)


def event_key(job_id: str, seq: int) -> str:
    """The key of an event: those of a job are together and in order."""
    return f"{job_id}/{seq:0{_SEQ_DIGITS}d}"


def kind_named(value: EventKind | str) -> EventKind:
    """The kind of that name. Raises InvalidValue."""
    try:
        return EventKind(value)
    except ValueError:
        possible = ", ".join(kind.value for kind in EventKind)
        raise InvalidValue(
            f"{ascii(value)[:60]} is not a job event: use one of {possible}", field="event"
        ) from None


def bounded(event: Event) -> Event:
    """The event within its bound. If it moves its job, its words are cut: no end of work is refused
    for its length. Raises InvalidValue for any other that is too large, and for data that is no
    JSON.
    """
    check_text(event.detail, "detail")
    try:
        size = json_bytes(event)
    except InvalidValue as error:
        raise InvalidValue(f"the event's data is wrong: {error.message}", field="data") from None
    if size > JOB_EVENT_BYTES_MAX and event.event in MOVES:
        detail_max = json_bytes(event.detail) - size + JOB_EVENT_BYTES_MAX
        event = msgspec.structs.replace(event, detail=cut(event.detail, detail_max))
        size = json_bytes(event)
    if size > JOB_EVENT_BYTES_MAX:
        raise InvalidValue(
            f"the event has {size} bytes and may have {JOB_EVENT_BYTES_MAX}: put large content "
            "into a file and give its path",
            bytes=size,
        )
    return event


def signed(event: Event, job: Job) -> Event:
    if job.auth_token is None:
        return event
    return msgspec.structs.replace(event, sig=signature(to_plain(event), job.auth_token))


def signature(document: Mapping[str, Any], key: str) -> str:
    """The signature of an event, given as plain JSON, by a key."""
    unsigned = {name: value for name, value in document.items() if name != "sig"}
    content = msgspec.json.encode(unsigned, order="sorted")
    return hmac.new(key.encode(), content, "sha256").hexdigest()


def genuine(document: Mapping[str, Any], key: str) -> bool:
    sig = document.get("sig")
    return isinstance(sig, str) and hmac.compare_digest(
        sig.encode(), signature(document, key).encode()
    )
