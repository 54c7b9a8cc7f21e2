"""The registry of jobs: each operation is one transaction, and its journal entry commits with it."""

import time
from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from holdfast.domains.jobs.record import IDLE_TIMEOUT_S, JOB_ID_CHARS, JOBS, TIMEOUT_S, TRANSITIONS, Job, JobStatus
from holdfast.kernel.errors import Collision, Corrupt, Fenced, ImpossibleTransition, InvalidValue, NotFound
from holdfast.kernel.holder import Holder
from holdfast.kernel.limits import LIST_MAX
from holdfast.kernel.names import check_id, check_label
from holdfast.kernel.space import rows
from holdfast.kernel.store import Damage, Store, Tx
from holdfast.primitives.journal import Journal


class Jobs:
    """Delegated work on one store.

    Promised: a job is picked by one worker at a time, in order of priority, then arrival; a verdict that shows a token
    counts only while that attempt is the current one; a damaged job holds up no other. Not promised: that work is done
    once; a job that was put back is done again. Time limits, expected artifacts and the worker's process are recorded, and
    nothing acts on them yet: a dead worker's job stays running until somebody sets it to pending.
    """

    def __init__(self, store: Store, journal: Journal) -> None:
        self._store = store
        self._journal = journal

    def register_job(
        self,
        prompt: str,
        *,
        agent: str,
        agent_session: str,
        timeout_sec: float = TIMEOUT_S,
        idle_timeout_sec: float = IDLE_TIMEOUT_S,
        expected_artifacts: Sequence[str] = (),
        priority: int = 0,
        job_id: str | None = None,
    ) -> Job:
        """Register work for whoever picks for `agent_session`, and return it, pending.

        Raises Collision when a given `job_id` is taken; InvalidName and InvalidValue before anything is stored.
        """
        check_label(agent, "agent")
        check_label(agent_session, "agent session")
        if job_id is not None:
            check_id(job_id, "job id")
        if not prompt.strip():
            raise InvalidValue("the prompt is empty: say what is to be done", field="prompt")
        _positive(timeout_sec, "timeout_sec")
        _positive(idle_timeout_sec, "idle_timeout_sec")

        def body(tx: Tx) -> Job:
            chosen = job_id or _new_id()
            if tx.get(JOBS, chosen) is not None:
                raise Collision(f"there is a job {chosen} already: choose another id or leave it out", job_id=chosen)
            job = Job(
                job_id=chosen,
                created_at=tx.now,
                updated_at=tx.now,
                prompt=prompt,
                agent=agent,
                agent_session=agent_session,
                priority=priority,
                arrival=tx.revision,
                timeout_sec=float(timeout_sec),
                idle_timeout_sec=float(idle_timeout_sec),
                expected_artifacts=tuple(expected_artifacts),
            )
            tx.put(JOBS, chosen, job)
            self._journal.append(tx, kind="job.registered", subject=chosen, data={"agent_session": agent_session})
            tx.notify(_topic(agent_session))
            return job

        # A row that is not there cannot be latched; a random id needs none, a given one the whole space.
        return self._store.transact(body, scope=[rows(JOBS) if job_id is None else JOBS])

    def pick_pending(self, agent_session: str, *, wait_s: float = 0, holder: Holder | None = None) -> Job | None:
        """Claim the next pending job of a label and return it, running; None when there is none within `wait_s`.

        Two callers never get one job. The returned job's token is what a verdict must show. `holder` is the process that
        works on it, and is recorded; a one-shot command gives none. Raises InvalidName, and InvalidValue for a `wait_s` that
        is no number.
        """
        check_label(agent_session, "agent session")
        if wait_s != wait_s:
            raise InvalidValue("wait_s is not a number: give the seconds to wait", field="wait_s")
        if wait_s <= 0:
            return self._pick(agent_session, holder)
        deadline = time.monotonic() + wait_s
        with self._store.listen([_topic(agent_session)]) as ears:
            while True:
                job = self._pick(agent_session, holder)
                left_s = deadline - time.monotonic()
                if job is not None or left_s <= 0:
                    return job
                ears.wait(left_s)

    def update_status(
        self,
        job_id: str,
        status: JobStatus | str,
        *,
        token: int | None = None,
        result: str | None = None,
        error: str | None = None,
    ) -> Job:
        """Move a job to another status and return it.

        A worker shows the token of its attempt, and gets Fenced when that is no longer the current one; an operator may
        leave it out. Raises NotFound, ImpossibleTransition for a step that TRANSITIONS does not have, and InvalidValue for
        what is no status. Nothing is changed in any of these cases.
        """
        check_id(job_id, "job id")
        wanted = _status(status)

        def body(tx: Tx) -> Job:
            job = _existing(tx, job_id)
            if token is not None and token != job.token:
                raise _fenced(job, token)
            if wanted not in TRANSITIONS[job.status]:
                allowed = ", ".join(sorted(step.value for step in TRANSITIONS[job.status])) or "nothing: it has ended"
                raise ImpossibleTransition(
                    f"job {job_id} is {job.status.value} and cannot become {wanted.value}; possible: {allowed}",
                    job_id=job_id,
                    status=job.status.value,
                    wanted=wanted.value,
                )
            moved = _moved(job, wanted, tx.now, tx.revision)
            if result is not None or error is not None:
                moved = replace(moved, result=result, error=error)
            self._write(tx, job, moved)
            return moved

        return self._store.transact(body, scope=[rows(JOBS)])

    def get_job(self, job_id: str) -> Job:
        """Return a job. Raises NotFound."""
        row = self._store.get(JOBS, check_id(job_id, "job id"))
        if row is None:
            raise _no_such(job_id)
        return row.record

    def list_jobs(
        self,
        *,
        status: JobStatus | str | None = None,
        agent_session: str | None = None,
        limit: int = LIST_MAX,
        damaged: Damage | None = None,
    ) -> list[Job]:
        """Return jobs in the order they arrived, the newest `limit` of those that match.

        A damaged record raises, unless `damaged` is a list to tell of it in. Raises InvalidValue for what is no status, and
        for a negative limit.
        """
        wanted = None if status is None else _status(status)
        if limit < 0:
            raise InvalidValue(f"limit is {limit}: give 0 or more", field="limit")
        found = [
            row.record
            for row in self._store.read(lambda tx: tx.range(JOBS, damaged=damaged), scope=[JOBS])
            if wanted in (None, row.record.status) and agent_session in (None, row.record.agent_session)
        ]
        in_order = sorted(found, key=lambda job: (job.arrival, job.created_at, job.job_id))
        return in_order[max(len(in_order) - limit, 0) :]

    def _pick(self, agent_session: str, holder: Holder | None) -> Job | None:
        def body(tx: Tx) -> tuple[Job | None, Damage]:
            damaged: Damage = []
            row = tx.take_first(JOBS, "turn", (agent_session,), damaged=damaged)
            if row is None:
                return None, damaged
            job = replace(_moved(row.record, JobStatus.RUNNING, tx.now, tx.revision), claimed_by=holder)
            self._write(tx, row.record, job)
            return job, damaged

        job, damaged = self._store.transact(body, scope=[rows(JOBS)])
        for error in damaged:
            _warn(error)
        return job

    def _write(self, tx: Tx, before: Job, after: Job) -> None:
        tx.put(JOBS, after.job_id, after)
        change = {"from": before.status.value, "to": after.status.value, "attempt": after.attempt, "token": after.token}
        self._journal.append(tx, kind="job.status_changed", subject=after.job_id, data=change)
        if after.status is JobStatus.PENDING:
            tx.notify(_topic(after.agent_session))


def _moved(job: Job, status: JobStatus, now: datetime, revision: int) -> Job:
    """The job after a step; only a running job has a token."""
    if status is JobStatus.RUNNING:
        return replace(
            job, status=status, updated_at=now, started_at=now, attempt=job.attempt + 1, token=revision, claimed_by=None
        )
    ended = now if status is not JobStatus.PENDING else None
    return replace(job, status=status, updated_at=now, finished_at=ended, token=None, claimed_by=None)


def _warn(error: Corrupt) -> None:
    # Loaded here, since a pick mostly has nothing to warn of and must start fast.
    import logging

    logging.getLogger("holdfast.jobs").warning("passed over space=jobs key=%s: %s", error.fields.get("key"), error.message)


def _existing(tx: Tx, job_id: str) -> Job:
    row = tx.get(JOBS, job_id)
    if row is None:
        raise _no_such(job_id)
    return row.record


def _no_such(job_id: str) -> NotFound:
    return NotFound(f"there is no job {job_id}: `holdfast jobs list` shows those there are", job_id=job_id)


def _fenced(job: Job, token: int) -> Fenced:
    if job.token is None:
        message = (
            f"job {job.job_id} is {job.status.value}; token {token} no longer counts: stop work on it. If you are repeating "
            f"your own verdict, `holdfast jobs get --job {job.job_id}` shows whether it arrived"
        )
    else:
        message = (
            f"token {token} is not the one of job {job.job_id}'s current attempt ({job.token}): stop work on it, another has "
            "taken over"
        )
    return Fenced(message, job_id=job.job_id, token=token, current=job.token)


def _status(value: JobStatus | str) -> JobStatus:
    try:
        return JobStatus(value)
    except ValueError:
        possible = ", ".join(status.value for status in JobStatus)
        raise InvalidValue(f"{ascii(value)[:60]} is no status of a job: use one of {possible}", field="status") from None


def _topic(agent_session: str) -> str:
    return f"jobs/{agent_session}"


def _new_id() -> str:
    # Here, since it is not cheap to load and picking needs none.
    import secrets

    while True:
        # 6 bytes are 8 characters; a leading - or _ would not be an id.
        job_id = secrets.token_urlsafe(6)
        if job_id[0].isalnum():
            return job_id[:JOB_ID_CHARS]


def _positive(seconds: float, field: str) -> None:
    if not 0 < seconds < float("inf"):
        raise InvalidValue(f"{field} is {seconds}: give a positive number of seconds", field=field)
