"""A new job, checked before anything is stored, and the bounds of a job's record.

A job that was registered fits into its record in every later state: JOB_REGISTERED_BYTES_MAX bounds
what registering writes, and each field that attempts add has a bound of its own. The words of a
verdict are cut, with a visible mark, to the room that is left. So no verdict is too long to be
written, and no work runs again for that.
"""

import os

# Not by `base64`, which loads slowly; `jobs pick` loads this module too.
from binascii import b2a_base64
from datetime import datetime

from msgspec.structs import replace

from holdfast.domains.jobs.records import JOBS, NO_BROKER, Broker, Job, default_prefix
from holdfast.kernel.codec import cut, json_bytes
from holdfast.kernel.errors import Collision, InvalidValue
from holdfast.kernel.limits import (
    JOB_ATTEMPTS_MAX,
    JOB_CLAIM_BYTES_MAX,
    JOB_LATE_BYTES_MAX,
    JOB_PROMPT_BYTES_MAX,
    JOB_REGISTERED_BYTES_MAX,
    JOB_TIMEOUT_MAX_S,
    JOB_VERDICT_BYTES_MIN,
    LABEL_JSON_BYTES_MAX,
    LOCK_PRIORITY_MAX,
    PATH_CHARS_MAX,
    RECORD_BYTES_MAX,
)
from holdfast.kernel.names import check_id, check_label, check_new_label, check_text
from holdfast.kernel.store import Tx

PRIORITY_MAX = LOCK_PRIORITY_MAX
"""The same for jobs and locks, in both directions."""
AUTH_TOKEN_BYTES = 32

_ENDED_GROWTH_BYTES_MAX = 2 * JOB_LATE_BYTES_MAX + 4 * LABEL_JSON_BYTES_MAX + JOB_CLAIM_BYTES_MAX
"""What may be added to a job that has ended: a late result, and times."""
_FIELD_NAMES_BYTES_MAX = 32
"""What `result` and `error` take beside their words."""
_FIRST = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_IN_URLS = bytes.maketrans(b"+/", b"-_")
_IN_ORDER = bytes.maketrans(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
    b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz",
)
"""From Base64 to what is safe in a URL, in the order in which stores compare it."""


def check_draft(job: Job, job_id: str | None, topic_prefix: str | None) -> None:
    """Raises InvalidName and InvalidValue for a new job that may not be registered, with the id and
    the topic prefix that its registrant chose.
    """
    check_new_label(job.agent, "agent")
    check_new_label(job.agent_session, "agent session")
    if job_id is not None:
        # Stricter than what is read: a command would take a leading - for an option.
        check_id(job_id, "job id")
    if not job.prompt.strip():
        raise InvalidValue("the prompt is empty: say what is to be done", field="prompt")
    check_text(job.prompt, "prompt")
    if (size := json_bytes(job.prompt)) > JOB_PROMPT_BYTES_MAX:
        raise InvalidValue(
            f"the prompt has {size} bytes as JSON and may have {JOB_PROMPT_BYTES_MAX}: put long "
            "input into a file and pass its path",
            field="prompt",
            bytes=size,
            bytes_max=JOB_PROMPT_BYTES_MAX,
        )
    for path in job.expected_artifacts:
        _check_path(path, "expected artifact")
    if job.workdir is not None:
        _check_path(job.workdir, "workdir")
        if not os.path.isabs(job.workdir):
            # The worker may run in any folder.
            raise InvalidValue(
                f"workdir is {job.workdir[:80]!a}, which is not absolute: give the whole path",
                field="workdir",
            )
    _check_number("timeout_sec", job.timeout_sec, JOB_TIMEOUT_MAX_S)
    if job.idle_timeout_sec is not None:
        _check_number("idle_timeout_sec", job.idle_timeout_sec, JOB_TIMEOUT_MAX_S)
    _check_number("max_attempts", job.max_attempts, JOB_ATTEMPTS_MAX)
    if not isinstance(job.priority, int) or not -PRIORITY_MAX <= job.priority <= PRIORITY_MAX:
        raise InvalidValue(
            f"priority is {job.priority!r:.80}: give one from -{PRIORITY_MAX} to {PRIORITY_MAX}",
            field="priority",
        )
    if job.broker is not NO_BROKER:
        _check_broker(job.broker)
    if topic_prefix is not None:
        _check_topic(topic_prefix)


def new_job(tx: Tx, draft: Job, *, signed: bool) -> Job:
    """The job of a draft, inside the transaction that registers it; an empty id or topic prefix
    gets a value. Raises Collision when its id is taken, and InvalidValue when it is too large.
    """
    # Not the transaction's time: to know that, a store may have to begin first.
    job_id = draft.job_id or _new_id(draft.created_at)
    while tx.get(JOBS, job_id, expected=False) is not None:
        if draft.job_id:
            raise Collision(
                f"there is a job {job_id} already: choose another id or leave it out", job_id=job_id
            )
        job_id = _new_id(tx.now)
    key = b2a_base64(os.urandom(AUTH_TOKEN_BYTES), newline=False).translate(_IN_URLS)
    idle_s = draft.idle_timeout_sec
    job = replace(
        draft,
        job_id=job_id,
        created_at=tx.now,
        updated_at=tx.now,
        arrival=tx.revision,
        topic_prefix=draft.topic_prefix or default_prefix(job_id),
        timeout_sec=float(draft.timeout_sec),
        idle_timeout_sec=None if idle_s is None else float(idle_s),
        auth_token=key.rstrip(b"=").decode() if signed else None,
    )
    if (size := json_bytes(job)) > JOB_REGISTERED_BYTES_MAX:
        prompt, artifacts = json_bytes(job.prompt), json_bytes(job.expected_artifacts)
        raise InvalidValue(
            f"the job has {size} bytes as JSON and may have {JOB_REGISTERED_BYTES_MAX} (its prompt "
            f"has {prompt}, its expected artifacts {artifacts}): put long input into a file and "
            "pass its path",
            field="prompt" if prompt > artifacts else "expected_artifacts",
            bytes=size,
            bytes_max=JOB_REGISTERED_BYTES_MAX,
        )
    return job


def fitted(job: Job) -> Job:
    """The job as its record can be written: the words of its verdict are cut to the room that is
    left. A job that an earlier version registered too large also loses its oldest past attempts,
    and may still not fit.
    """
    if job.result is not None or job.error is not None:
        silent = replace(job, result=None, error=None)
        used = json_bytes(replace(silent, late_result=None))
        room = RECORD_BYTES_MAX - _ENDED_GROWTH_BYTES_MAX - used
        if room < JOB_VERDICT_BYTES_MIN:
            # An earlier version registered it: nothing can be kept free for later.
            room = RECORD_BYTES_MAX - _FIELD_NAMES_BYTES_MAX - json_bytes(silent)
        result, error = job.result, job.error
        if json_bytes(result) + json_bytes(error) > room:
            # The result gets what the error leaves.
            if error is not None:
                error = cut(error, room if result is None else room // 2)
            if result is not None:
                result = cut(result, room - json_bytes(error))
            job = replace(job, result=result, error=error)
    while job.past_attempts and json_bytes(job) > RECORD_BYTES_MAX:
        job = replace(job, past_attempts=job.past_attempts[1:])
    return job


def too_large(job: Job) -> bool:
    """Is the job over the bound of a record? Only one that an earlier version registered can be."""
    return json_bytes(job) > RECORD_BYTES_MAX


def has_room(job: Job) -> bool:
    """Has the record of a pending job room for a claim? Only one that an earlier version registered
    may have none.
    """
    return json_bytes(job) + JOB_CLAIM_BYTES_MAX <= RECORD_BYTES_MAX


def no_room(job: Job) -> str:
    """Why a pending job without room cannot be claimed."""
    return (
        f"its record has {json_bytes(job)} bytes and no room for a claim, as an earlier version "
        "registered it: register it again with its long input in a file"
    )


def _new_id(now: datetime) -> str:
    """An id of four characters that grow with time, and start again after four and a half hours,
    and four random ones.

    So jobs that come one after the other are neighbours in a store: a change of a few of them
    writes one or two pages and not one for each.
    """
    moment = int(now.timestamp() * 1000)
    # A leading - or _ would not be an id.
    first = _FIRST[(moment >> 18) % len(_FIRST)]
    rest = (moment & 0x3FFFF).to_bytes(3, "big") + os.urandom(3)
    # Six bytes are eight characters. The first has the bits above those 18, which are all zero.
    return first + b2a_base64(rest, newline=False).translate(_IN_ORDER)[1:].decode()


def _check_broker(broker: Broker) -> None:
    check_label(broker.host, "broker host")
    check_label(broker.password_env, "variable of the broker's password")
    if broker.username is not None:
        check_label(broker.username, "broker username")
    if not 0 < broker.port < 1 << 16:
        raise InvalidValue(
            f"the broker's port is {broker.port}: give one from 1 to 65535", field="broker.port"
        )
    if broker.password is not None and not broker.store_password:
        raise InvalidValue(
            "a job's record does not hold a password: put it into the variable "
            f"{broker.password_env}, or set store_password",
            field="broker.password",
        )


def _check_number(field: str, value: float, most: float) -> None:
    if not isinstance(value, int | float) or not 0 < value <= most:
        raise InvalidValue(
            f"{field} is {value!r:.80}: give a number above 0 and up to {most:.0f}", field=field
        )


def _check_path(path: str, what: str) -> None:
    # Control characters: a command gets artifacts one per line.
    if (
        not isinstance(path, str)
        or not path.strip()
        or len(path) > PATH_CHARS_MAX
        or any(ord(one) < 32 for one in path)
    ):
        raise InvalidValue(
            f"{ascii(path)[:80]} cannot be the path of the {what}: use 1 to {PATH_CHARS_MAX} "
            "characters without control characters",
            field=what,
        )
    check_text(path, what)


def _check_topic(prefix: str) -> None:
    check_label(prefix, "topic prefix")
    if set("+#$") & set(prefix) or prefix.startswith("/") or prefix.endswith("/"):
        raise InvalidValue(
            f"{prefix!r} cannot begin a job's topics: use words with / between them, without + # "
            "and $",
            field="topic_prefix",
        )
