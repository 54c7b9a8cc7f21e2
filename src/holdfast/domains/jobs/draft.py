"""What a new job is to be, checked before anything is stored.

Room in a job's record: a job that was registered fits in every later state.

JOB_REGISTERED_BYTES_MAX bounds what registering writes, and each field that attempts add has a
bound of its own. The words of a verdict have none: they are cut, with a visible mark, to the room
that the record has left. So no verdict is ever too long to be written, and no work runs again for
that.
"""

import os
from base64 import b64encode, urlsafe_b64encode
from datetime import datetime

from msgspec.structs import replace

from holdfast.domains.jobs.broker_address import check_broker
from holdfast.domains.jobs.records import JOBS, Broker, Job, default_prefix
from holdfast.kernel.codec import Plain, cut, json_bytes
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
    PATH_CHARS_MAX,
    RECORD_BYTES_MAX,
)
from holdfast.kernel.names import check_id, check_label, check_new_label, check_text
from holdfast.kernel.store import Tx

_ENDED_GROWTH_BYTES_MAX = 2 * JOB_LATE_BYTES_MAX + 4 * LABEL_JSON_BYTES_MAX + JOB_CLAIM_BYTES_MAX
"""What may be added to a job that has ended: a late result, and times."""

_FIELD_NAMES_BYTES_MAX = 32
"""What `result` and `error` take beside their words."""


def check_prompt_size(prompt: str) -> None:
    """Raises InvalidValue for a prompt that is too long."""
    if (size := json_bytes(prompt)) > JOB_PROMPT_BYTES_MAX:
        raise InvalidValue(
            f"the prompt has {size} bytes as JSON and may have {JOB_PROMPT_BYTES_MAX}: put long "
            "input into a file and pass its "
            "path",
            field="prompt",
            bytes=size,
            bytes_max=JOB_PROMPT_BYTES_MAX,
        )


def check_registered(job: Job) -> None:
    """Raises InvalidValue for a new job whose record would leave too little room for its
    attempts.
    """
    if (size := json_bytes(job)) > JOB_REGISTERED_BYTES_MAX:
        prompt, artifacts = json_bytes(job.prompt), json_bytes(job.expected_artifacts)
        raise InvalidValue(
            f"the job has {size} bytes as JSON and may have {JOB_REGISTERED_BYTES_MAX} (its "
            f"prompt has {prompt}, its expected "
            f"artifacts {artifacts}): put long input into a file and pass its path",
            field="prompt" if prompt > artifacts else "expected_artifacts",
            bytes=size,
            bytes_max=JOB_REGISTERED_BYTES_MAX,
        )


def fitted(job: Job) -> Job:
    """The job as its record can be written. The words of its verdict are cut to the room that is
    left, and one that an earlier version registered too large also forgets its oldest past
    attempts. Such a job may still not fit.
    """
    if job.result is not None or job.error is not None:
        silent = replace(job, result=None, error=None)
        room = (
            RECORD_BYTES_MAX
            - _ENDED_GROWTH_BYTES_MAX
            - json_bytes(replace(silent, late_result=None))
        )
        if room < JOB_VERDICT_BYTES_MIN:
            # An earlier version registered it: nothing can be kept free for later.
            room = RECORD_BYTES_MAX - _FIELD_NAMES_BYTES_MAX - json_bytes(silent)
        job = _with_words_in(job, room)
    while job.past_attempts and json_bytes(job) > RECORD_BYTES_MAX:
        job = replace(job, past_attempts=job.past_attempts[1:])
    return job


def too_large(job: Job) -> bool:
    """Is the job over the bound of a record? Only one that an earlier version registered can be."""
    return json_bytes(job) > RECORD_BYTES_MAX


def has_room(job: Job) -> bool:
    """Can a pending job be claimed? Only one that an earlier version registered may have no room
    for it.
    """
    return json_bytes(job) + JOB_CLAIM_BYTES_MAX <= RECORD_BYTES_MAX


def _with_words_in(job: Job, room: int) -> Job:
    """The job with its result and error in so many bytes together; the result has what the error
    leaves of it.
    """
    if json_bytes(job.result) + json_bytes(job.error) <= room:
        return job
    error = None if job.error is None else cut(job.error, room if job.result is None else room // 2)
    result = None if job.result is None else cut(job.result, room - json_bytes(error))
    return replace(job, result=result, error=error)


def no_room(job: Job) -> str:
    """Why a pending job cannot be claimed."""
    return (
        f"its record has {json_bytes(job)} bytes and no room for a claim, as an earlier version "
        "registered it: register "
        "it again with its long input in a file"
    )


AUTH_TOKEN_BYTES = 32
_FIRST = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_IN_ORDER = bytes.maketrans(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
    b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz",
)
"""From Base64 to what is safe in a URL, in the order in which stores compare it."""
_WILDCARDS = frozenset("+#$")


class Wish(Plain, frozen=True, kw_only=True):
    """A job as its registrant asks for it."""

    prompt: str
    agent: str
    agent_session: str
    timeout_sec: float
    idle_timeout_sec: float | None
    expected_artifacts: tuple[str, ...]
    workdir: str | None
    priority: int
    max_attempts: int
    broker: Broker
    topic_prefix: str | None
    signed: bool
    job_id: str | None

    def checked(self) -> "Wish":
        """Return it. Raises InvalidName and InvalidValue."""
        check_new_label(self.agent, "agent")
        check_new_label(self.agent_session, "agent session")
        if self.job_id is not None:
            # Stricter than what is read: a command would take a leading - for an option.
            check_id(self.job_id, "job id")
        if not self.prompt.strip():
            raise InvalidValue("the prompt is empty: say what is to be done", field="prompt")
        check_text(self.prompt, "prompt")
        check_prompt_size(self.prompt)
        for path in self.expected_artifacts:
            _check_path(path, "expected artifact")
        if self.workdir is not None:
            _check_path(self.workdir, "workdir")
        _seconds(self.timeout_sec, "timeout_sec")
        if self.idle_timeout_sec is not None:
            _seconds(self.idle_timeout_sec, "idle_timeout_sec")
        if not 0 < self.max_attempts <= JOB_ATTEMPTS_MAX:
            raise InvalidValue(
                f"max_attempts is {self.max_attempts}: give 1 to {JOB_ATTEMPTS_MAX}",
                field="max_attempts",
            )
        check_broker(self.broker)
        if self.topic_prefix is not None:
            _check_topic(self.topic_prefix)
        return self


def new_job(tx: Tx, wish: Wish, about: datetime) -> Job:
    """The job of a wish, pending, inside the transaction that registers it `about` this time.
    Raises Collision when its id is taken, and InvalidValue when it is too large.
    """
    # Not the transaction's time: to know that, a store may first have to begin.
    job_id = wish.job_id or _new_id(about)
    while tx.get(JOBS, job_id, expected=False) is not None:
        if wish.job_id is not None:
            raise Collision(
                f"there is a job {job_id} already: choose another id or leave it out", job_id=job_id
            )
        job_id = _new_id(tx.now)
    job = Job(
        job_id=job_id,
        created_at=tx.now,
        updated_at=tx.now,
        prompt=wish.prompt,
        agent=wish.agent,
        agent_session=wish.agent_session,
        priority=wish.priority,
        arrival=tx.revision,
        broker=wish.broker,
        topic_prefix=wish.topic_prefix or default_prefix(job_id),
        timeout_sec=float(wish.timeout_sec),
        idle_timeout_sec=None if wish.idle_timeout_sec is None else float(wish.idle_timeout_sec),
        expected_artifacts=wish.expected_artifacts,
        workdir=wish.workdir,
        max_attempts=wish.max_attempts,
        auth_token=_new_key() if wish.signed else None,
    )
    check_registered(job)
    return job


def _new_id(now: datetime) -> str:
    """An id of four characters that grow with time, and begin anew after four hours and a half, and
    four that are random.

    So jobs that come one after the other are neighbours in a store: a change of a few of them
    writes a page or two and not one for each, and a new one goes where the last one went.
    """
    moment = int(now.timestamp() * 1000)
    # A leading - or _ would not be an id.
    first = _FIRST[(moment >> 18) % len(_FIRST)]
    rest = (moment & 0x3FFFF).to_bytes(3, "big") + os.urandom(3)
    # Six bytes are eight characters, of which the first has the bits above those 18, all zero.
    return first + b64encode(rest).translate(_IN_ORDER)[1:].decode()


def _new_key() -> str:
    return urlsafe_b64encode(os.urandom(AUTH_TOKEN_BYTES)).rstrip(b"=").decode()


def _seconds(seconds: float, field: str) -> None:
    if not 0 < seconds <= JOB_TIMEOUT_MAX_S:
        raise InvalidValue(
            f"{field} is {seconds:g}: give a number of seconds above 0 and up to "
            f"{JOB_TIMEOUT_MAX_S:.0f}, which is ten years",
            field=field,
        )


def _check_path(path: str, what: str) -> None:
    # Those of artifacts are told a line each.
    if (
        not isinstance(path, str)
        or not path.strip()
        or len(path) > PATH_CHARS_MAX
        or any(ord(one) < 32 for one in path)
    ):
        raise InvalidValue(
            f"{ascii(path)[:80]} cannot be the path of the {what}: use 1 to {PATH_CHARS_MAX} "
            "characters without control "
            "characters",
            field=what,
        )
    check_text(path, what)


def _check_topic(prefix: str) -> None:
    check_label(prefix, "topic prefix")
    if _WILDCARDS & set(prefix) or prefix.startswith("/") or prefix.endswith("/"):
        raise InvalidValue(
            f"{prefix!r} cannot begin a job's topics: use words with / between them, without + # "
            "and $",
            field="topic_prefix",
        )
