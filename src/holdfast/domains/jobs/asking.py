"""What a new job is to be, checked before anything is stored."""

import os
from base64 import b64encode, urlsafe_b64encode
from datetime import datetime

from holdfast.domains.jobs.bounds import check_prompt_size, check_registered
from holdfast.domains.jobs.broker import Broker
from holdfast.domains.jobs.reach import check_broker
from holdfast.domains.jobs.record import JOBS, Job, default_prefix
from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import Collision, InvalidValue
from holdfast.kernel.limits import JOB_ATTEMPTS_MAX, JOB_TIMEOUT_MAX_S, PATH_CHARS_MAX
from holdfast.kernel.names import check_id, check_label, check_new_label, check_text
from holdfast.kernel.store import Tx

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
            raise InvalidValue(f"max_attempts is {self.max_attempts}: give 1 to {JOB_ATTEMPTS_MAX}", field="max_attempts")
        check_broker(self.broker)
        if self.topic_prefix is not None:
            _check_topic(self.topic_prefix)
        return self


def new_job(tx: Tx, wish: Wish, about: datetime) -> Job:
    """The job of a wish, pending, inside the transaction that registers it `about` this time. Raises Collision when its id is
    taken, and InvalidValue when it is too large."""
    # Not the transaction's time: to know that, a store may first have to begin.
    job_id = wish.job_id or _new_id(about)
    while tx.get(JOBS, job_id, expected=False) is not None:
        if wish.job_id is not None:
            raise Collision(f"there is a job {job_id} already: choose another id or leave it out", job_id=job_id)
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
    """An id of four characters that grow with time, and begin anew after four hours and a half, and four that are random.

    So jobs that come one after the other are neighbours in a store: a change of a few of them writes a page or two and not one
    for each, and a new one goes where the last one went.
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
            f"{field} is {seconds:g}: give a number of seconds above 0 and up to {JOB_TIMEOUT_MAX_S:.0f}, which is ten years",
            field=field,
        )


def _check_path(path: str, what: str) -> None:
    # Those of artifacts are told a line each.
    if not isinstance(path, str) or not path.strip() or len(path) > PATH_CHARS_MAX or any(ord(one) < 32 for one in path):
        raise InvalidValue(
            f"{ascii(path)[:80]} cannot be the path of the {what}: use 1 to {PATH_CHARS_MAX} characters without control "
            "characters",
            field=what,
        )
    check_text(path, what)


def _check_topic(prefix: str) -> None:
    check_label(prefix, "topic prefix")
    if _WILDCARDS & set(prefix) or prefix.startswith("/") or prefix.endswith("/"):
        raise InvalidValue(
            f"{prefix!r} cannot begin a job's topics: use words with / between them, without + # and $", field="topic_prefix"
        )
