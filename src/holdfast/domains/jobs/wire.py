"""A job as a file of a registry folder: `<job_id>.json`, as other programs know it.

The known fields keep their names, a job's own ones are beside them, and unknown fields are kept.
"""

from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.domains.jobs.records import Broker, Job, everything
from holdfast.kernel import token
from holdfast.kernel.errors import InvalidName
from holdfast.kernel.layout import Document
from holdfast.kernel.names import check_job_id

_ORIGIN = datetime(2025, 1, 1, tzinfo=UTC)
_OWN_OF_BROKER = ("password_env", "store_password")
_SECONDS = ("timeout_sec", "idle_timeout_sec")


def write(job: Job) -> Document:
    """The document of a job, with its secrets, as its record has them."""
    document = everything(job)
    document.update(document.pop("extra"))
    broker = document["broker"]
    broker.update(broker.pop("extra"))
    for name in _OWN_OF_BROKER:
        if getattr(job.broker, name) == getattr(_PLAIN, name):
            del broker[name]
    for name in _SECONDS:
        if document[name] is not None and float(document[name]).is_integer():
            document[name] = int(document[name])
    return document


def read(key: str, document: Document) -> Job:
    """The job of a document. Raises ValueError for one that is not a job, or whose id is not its
    file's name.

    A job that another program registered has no arrival. It gets the place of its `created_at`
    among revisions, which grow with the seconds since 2025 too: before what is registered from now
    on.
    """
    if document.get("job_id") != key:
        raise ValueError(f"its job_id is {document.get('job_id')!r}, which is not its file's name")
    try:
        check_job_id(key)
    except InvalidName as error:
        # No command could name it, so none may pick it.
        raise ValueError(error.message) from None
    known = {name: value for name, value in document.items() if name in _FIELDS}
    known["extra"] = {name: value for name, value in document.items() if name not in _FIELDS}
    known["broker"] = _broker(document.get("broker") or {})
    known.setdefault("updated_at", known.get("created_at"))
    # A null is a missing value; but in a job of ours a null idle limit is no limit.
    values = {name: value for name, value in known.items() if value is not None}
    if "arrival" in known and known.get("idle_timeout_sec", 0) is None:
        values["idle_timeout_sec"] = None
    job = msgspec.convert(values, Job, str_keys=True)
    if "arrival" in known:
        return job
    seconds = int((job.created_at - _ORIGIN).total_seconds())
    return msgspec.structs.replace(job, arrival=token.first(seconds))


def _broker(document: dict[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, value in document.items():
        (known if name in _BROKER_FIELDS else extra)[name] = value
    return {**{name: value for name, value in known.items() if value is not None}, "extra": extra}


_PLAIN = Broker()
_FIELDS = frozenset(Job.__struct_fields__) - {"extra"}
_BROKER_FIELDS = frozenset(Broker.__struct_fields__) - {"extra"}
