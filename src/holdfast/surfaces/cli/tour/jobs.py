"""The jobs chapter."""

import time

from holdfast.domains.jobs import Job, JobStatus
from holdfast.kernel.errors import EXIT_NOTHING_TO_TAKE, Fenced, ImpossibleTransition
from holdfast.surfaces.cli.tour.stage import TELLING, BrokenStep, Stage, was_woken

LABEL = "tmux:claude"

_WAITER = f"""
import sys, time, holdfast
{TELLING}
hf = holdfast.connect(sys.argv[1])
hf.store = Telling(hf.store)
job = hf.jobs.pick_pending(sys.argv[2], wait_s=20)
print(time.monotonic(), job.job_id)
"""


def jobs_chapter(stage: Stage) -> None:
    """Six workers and four jobs; a worker that is too late; one that waits."""
    _race(stage)
    _stale_verdict(stage)
    _waiting(stage)


def _race(stage: Stage) -> None:
    jobs = stage.hf.jobs
    ids = [
        jobs.register_job(f"task {n}", agent="claude-code", agent_session=LABEL).job_id
        for n in range(4)
    ]
    stage.say(
        f"4 jobs are registered for {LABEL}; 6 worker processes run `holdfast jobs pick` at once"
    )
    outcomes = [
        stage.outcome(worker)
        for worker in [stage.start("jobs", "pick", "--agent-session", LABEL) for _ in range(6)]
    ]
    picked = [printed for status, printed in outcomes if status == 0]
    stage.holds(sorted(picked) == sorted(ids), "each job went to exactly one worker")
    empty = [status for status, _ in outcomes if status != 0]
    stage.holds(
        empty == [EXIT_NOTHING_TO_TAKE] * 2,
        "the two workers that came too late got exit status 3: nothing to take",
    )


def _stale_verdict(stage: Stage) -> None:
    jobs = stage.hf.jobs
    job_id = jobs.register_job("fix the build", agent="claude-code", agent_session=LABEL).job_id
    first = _claim(stage)
    stage.say(
        f"worker A has job {job_id}; it hangs, so an operator puts the job back and worker B "
        "picks it"
    )
    jobs.update_status(job_id, JobStatus.PENDING)
    second = _claim(stage)
    stage.holds(
        (second.token or 0) > (first.token or 0),
        f"B's token is greater than A's: {second.token} > {first.token}",
    )
    refused = False
    try:
        jobs.update_status(job_id, JobStatus.COMPLETED, token=first.token, result="done, says A")
    except Fenced:
        refused = True
    stage.holds(refused, "A wakes up and reports success: refused, its token is stale")
    done = jobs.update_status(
        job_id, JobStatus.COMPLETED, token=second.token, result="done, says B"
    )
    stage.holds(done.result == "done, says B", "B's verdict counts")
    impossible = False
    try:
        jobs.update_status(job_id, JobStatus.RUNNING)
    except ImpossibleTransition:
        impossible = True
    stage.holds(impossible, "nobody can start a completed job again")


def _claim(stage: Stage) -> Job:
    job = stage.hf.jobs.pick_pending(LABEL)
    if job is None:
        raise BrokenStep("there is a job to pick")
    return job


def _waiting(stage: Stage) -> None:
    label = "tmux:waiter"
    stage.say("a worker waits for work: asleep, not polling")
    worker = stage.start_script(_WAITER, label)
    # It has looked and found nothing, so that from here on it is woken, or looks again by itself.
    asleep = stage.line(worker) == "asleep"
    before = time.monotonic()
    job = stage.hf.jobs.register_job("now", agent="claude-code", agent_session=label)
    status, printed = stage.outcome(worker)
    woke_at, picked = printed.split()[-2:] if status == 0 else ("inf", "")
    took_ms = (float(woke_at) - before) * 1000
    stage.holds(
        asleep and picked == job.job_id and was_woken(printed),
        f"it had the job {took_ms:.0f} ms after it was registered",
    )
