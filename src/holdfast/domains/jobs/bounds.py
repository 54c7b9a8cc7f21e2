"""Room in a job's record: a job that was registered fits in every later state.

JOB_REGISTERED_BYTES_MAX bounds what registering writes, and each field that attempts add has a bound of its own. The words of a
verdict have none: they are cut, with a visible mark, to the room that the record has left. So no verdict is ever too long to be
written, and no work runs again for that.
"""

from msgspec.structs import replace

from holdfast.domains.jobs.record import Job
from holdfast.kernel.codec import cut, json_bytes
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.limits import (
    JOB_CLAIM_BYTES_MAX,
    JOB_LATE_BYTES_MAX,
    JOB_PROMPT_BYTES_MAX,
    JOB_REGISTERED_BYTES_MAX,
    JOB_VERDICT_BYTES_MIN,
    LABEL_JSON_BYTES_MAX,
    RECORD_BYTES_MAX,
)

_ENDED_GROWTH_BYTES_MAX = 2 * JOB_LATE_BYTES_MAX + 4 * LABEL_JSON_BYTES_MAX + JOB_CLAIM_BYTES_MAX
"""What may be added to a job that has ended: a late result, and times."""

_FIELD_NAMES_BYTES_MAX = 32
"""What `result` and `error` take beside their words."""


def check_prompt_size(prompt: str) -> None:
    """Raises InvalidValue for a prompt that is too long."""
    if (size := json_bytes(prompt)) > JOB_PROMPT_BYTES_MAX:
        raise InvalidValue(
            f"the prompt has {size} bytes as JSON and may have {JOB_PROMPT_BYTES_MAX}: put long input into a file and pass its "
            "path",
            field="prompt",
            bytes=size,
            bytes_max=JOB_PROMPT_BYTES_MAX,
        )


def check_registered(job: Job) -> None:
    """Raises InvalidValue for a new job whose record would leave too little room for its attempts."""
    if (size := json_bytes(job)) > JOB_REGISTERED_BYTES_MAX:
        prompt, artifacts = json_bytes(job.prompt), json_bytes(job.expected_artifacts)
        raise InvalidValue(
            f"the job has {size} bytes as JSON and may have {JOB_REGISTERED_BYTES_MAX} (its prompt has {prompt}, its expected "
            f"artifacts {artifacts}): put long input into a file and pass its path",
            field="prompt" if prompt > artifacts else "expected_artifacts",
            bytes=size,
            bytes_max=JOB_REGISTERED_BYTES_MAX,
        )


def fitted(job: Job) -> Job:
    """The job as its record can be written. The words of its verdict are cut to the room that is left, and one that an earlier
    version registered too large also forgets its oldest past attempts. Such a job may still not fit."""
    if job.result is not None or job.error is not None:
        silent = replace(job, result=None, error=None)
        room = RECORD_BYTES_MAX - _ENDED_GROWTH_BYTES_MAX - json_bytes(replace(silent, late_result=None))
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
    """Can a pending job be claimed? Only one that an earlier version registered may have no room for it."""
    return json_bytes(job) + JOB_CLAIM_BYTES_MAX <= RECORD_BYTES_MAX


def _with_words_in(job: Job, room: int) -> Job:
    """The job with its result and error in so many bytes together; the result has what the error leaves of it."""
    if json_bytes(job.result) + json_bytes(job.error) <= room:
        return job
    error = None if job.error is None else cut(job.error, room if job.result is None else room // 2)
    result = None if job.result is None else cut(job.result, room - json_bytes(error))
    return replace(job, result=result, error=error)


def no_room(job: Job) -> str:
    """Why a pending job cannot be claimed."""
    return (
        f"its record has {json_bytes(job)} bytes and no room for a claim, as an earlier version registered it: register "
        "it again with its long input in a file"
    )
