"""The jobs chapter: six workers and four jobs; a verdict that is too late; a worker that waits."""

import time

from holdfast.domains.jobs import Job, JobStatus
from holdfast.kernel.errors import EXIT_NOTHING_TO_TAKE, Fenced, ImpossibleTransition
from holdfast.surfaces.cli.tour.steps import REPORTING, BrokenStep, Tour, was_woken

_LABEL = "tmux:claude"

_WAITER = f"""
import sys, time, holdfast
{REPORTING}
hf = holdfast.connect(sys.argv[1])
hf.store = Reporting(hf.store)
job = hf.jobs.pick_pending(sys.argv[2], wait_s=20)
print(time.monotonic(), job.job_id)
"""


def jobs_chapter(tour: Tour) -> None:
    _race(tour)
    _stale_verdict(tour)
    _wait(tour)


def _race(tour: Tour) -> None:
    ids = [_registered(tour, f"task {number}", _LABEL) for number in range(4)]
    tour.say(
        f"4 jobs are registered for {_LABEL}; 6 worker processes run `holdfast jobs pick` at once"
    )
    workers = [tour.start("jobs", "pick", "--queue", _LABEL) for _ in range(6)]
    outcomes = [tour.outcome(worker) for worker in workers]
    picked = [printed for status, printed in outcomes if status == 0]
    tour.check(sorted(picked) == sorted(ids), "each job went to exactly one worker")
    empty = [status for status, _ in outcomes if status != 0]
    tour.check(
        empty == [EXIT_NOTHING_TO_TAKE] * 2,
        "the two workers that came too late got exit status 3: nothing to take",
    )


def _stale_verdict(tour: Tour) -> None:
    update = tour.hf.jobs.update_status
    job_id = _registered(tour, "fix the build", _LABEL)
    first = _picked(tour)
    tour.say(
        f"worker A has job {job_id} and hangs; an operator puts the job back, and worker B picks it"
    )
    update(job_id, JobStatus.PENDING)
    second = _picked(tour)
    tour.check(
        (second.token or 0) > (first.token or 0),
        f"B's token is greater than A's: {second.token} > {first.token}",
    )
    refused = tour.refusal(
        Fenced, update, job_id, JobStatus.COMPLETED, token=first.token, result="done by A"
    )
    tour.check(refused is not None, "A wakes up and reports success: refused, its token is stale")
    done = update(job_id, JobStatus.COMPLETED, token=second.token, result="done by B")
    tour.check(done.result == "done by B", "B's verdict counts")
    refused = tour.refusal(ImpossibleTransition, update, job_id, JobStatus.RUNNING)
    tour.check(refused is not None, "nobody can start a completed job again")


def _wait(tour: Tour) -> None:
    label = "tmux:waiter"
    tour.say("a worker waits for work: it sleeps, and does not poll")
    worker = tour.start_script(_WAITER, label)
    # It found nothing, so from here on it is woken, or its sleep times out.
    asleep = tour.line(worker) == "asleep"
    began_s = time.monotonic()
    job_id = _registered(tour, "now", label)
    status, printed = tour.outcome(worker)
    at_s, picked = printed.split()[-2:] if status == 0 else ("inf", "")
    tour.check(
        asleep and picked == job_id and was_woken(printed),
        f"it had the job {(float(at_s) - began_s) * 1000:.0f} ms after it was registered",
    )


def _registered(tour: Tour, prompt: str, label: str) -> str:
    return tour.hf.jobs.register_job(prompt, agent="claude-code", agent_session=label).job_id


def _picked(tour: Tour) -> Job:
    job = tour.hf.jobs.pick_pending(_LABEL)
    if job is None:
        raise BrokenStep("there is a job to pick")
    return job
