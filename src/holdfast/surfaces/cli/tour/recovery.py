"""The recovery chapter: a worker is killed while it has a job, a lock and a lease."""

import signal
import time

from holdfast.domains.jobs import JobStatus
from holdfast.kernel.errors import Fenced
from holdfast.kernel.limits import AGENT_LEASE_S, LOCK_LEASE_S
from holdfast.surfaces.cli.tour.steps import REPORTING, BrokenStep, Tour, was_woken

_LABEL, _BOARD, _NAME = "tmux:night", "board-7", "tour-night"

_WORKER = """
import sys, signal, holdfast
url, label, board, name, manifest = sys.argv[1:]
hf = holdfast.connect(url)
me = hf.processes.current()
job = hf.jobs.pick_pending(label, holder=me)
grant = hf.locks.acquire(board, by=job.job_id)
hf.agents.publish(name, backend="command", tool="python", manifest_path=manifest, holder=me)
print(job.job_id, job.token, flush=True)
signal.pause()
"""

_SUCCESSOR = f"""
import sys, time, holdfast
{REPORTING}
url, label, board, name, manifest = sys.argv[1:]
real = holdfast.connect(url)
hf = holdfast.connect(url)
hf.store = Reporting(hf.store)
me = hf.processes.current()
job = hf.jobs.pick_pending(label, holder=me, wait_s=20)
had_job = time.monotonic()
grant = real.locks.acquire(board, by=job.job_id)
had_lock = time.monotonic()
agent = real.agents.publish(
    name, backend="command", tool="python", manifest_path=manifest, holder=me
)
print("has", job.attempt, had_job, had_lock, time.monotonic(), flush=True)
result = "done at the second attempt"
real.jobs.update_status(job.job_id, "completed", token=job.token, result=result)
grant.release()
real.agents.remove(agent.agent_id, agent.generation_id)
"""


def recovery_chapter(tour: Tour) -> None:
    jobs = tour.hf.jobs
    job_id = jobs.register_job("flash the board", agent="python", agent_session=_LABEL).job_id
    words = (_LABEL, _BOARD, _NAME, str(tour.folder / "night.json"))
    worker = tour.start_script(_WORKER, *words)
    picked, _, token = tour.line(worker).partition(" ")
    if picked != job_id:
        raise BrokenStep("a worker has the job, the lock and the name")
    tour.say(
        f"a worker has job {job_id}, the lock on {_BOARD} and, for the next 24 hours, the name "
        f"{_NAME}; a second worker sleeps"
    )
    successor = tour.start_script(_SUCCESSOR, *words)
    asleep = tour.line(successor) == "asleep"
    tour.say("the first worker is killed with -9")
    killed_s = time.monotonic()
    worker.send_signal(signal.SIGKILL)
    status, printed = tour.outcome(successor)
    has = [line.split()[1:] for line in printed.splitlines() if line.startswith("has ")]
    if not has:
        raise BrokenStep("the second worker got the job, the lock and the name")
    attempt, *times = has[0]
    job_ms, lock_ms, lease_ms = ((float(at_s) - killed_s) * 1000 for at_s in times)
    tour.check(
        asleep and status == 0 and was_woken(printed),
        f"the second had the job {job_ms:.0f} ms later, as attempt {attempt}",
    )
    tour.check(
        lock_ms < LOCK_LEASE_S * 1000,
        f"it had the lock on {_BOARD} after {lock_ms:.0f} ms: nobody removed a lock file",
    )
    tour.check(
        lease_ms < AGENT_LEASE_S * 1000,
        f"it had the name after {lease_ms:.0f} ms: the lease of 24 hours ended with its process",
    )
    done = jobs.get_job(job_id)
    late = tour.refusal(Fenced, jobs.update_status, job_id, JobStatus.ERROR, token=int(token))
    tour.check(
        done.status is JobStatus.COMPLETED and late is not None,
        "the work is done once: a late verdict with the first worker's token is refused",
    )
