"""A worker is killed with a job, a lock and a lease in its hands."""

import signal

from holdfast.domains.jobs import JobStatus
from holdfast.kernel.errors import Fenced
from holdfast.kernel.limits import AGENT_LEASE_S, LOCK_LEASE_S
from holdfast.surfaces.cli.tour.stage import TELLING, BrokenStep, Stage, was_woken

LABEL, BOARD, NAME = "tmux:night", "board-7", "tour-night"

_WORKER = """
import sys, signal, holdfast
url, label, board, name, manifest = sys.argv[1:]
hf = holdfast.connect(url)
me = hf.processes.current()
job = hf.jobs.pick_pending(label, holder=me)
grant = hf.locks.acquire(board, by=job.job_id)
hf.agents.publish(name, backend="command", tool="python", manifest_path=manifest, holder=me)
print(job.job_id, job.token, grant.token, flush=True)
signal.pause()
"""

_SUCCESSOR = f"""
import sys, time, holdfast
{TELLING}
url, label, board, name, manifest = sys.argv[1:]
real = holdfast.connect(url)
hf = holdfast.connect(url)
hf.store = Telling(hf.store)
me = hf.processes.current()
job = hf.jobs.pick_pending(label, holder=me, wait_s=20)
had_job = time.monotonic()
grant = real.locks.acquire(board, by=job.job_id)
had_lock = time.monotonic()
agent = real.agents.publish(
    name, backend="command", tool="python", manifest_path=manifest, holder=me
)
print("has", job.job_id, job.attempt, had_job, had_lock, time.monotonic(), flush=True)
result = "done at the second attempt"
real.jobs.update_status(job.job_id, "completed", token=job.token, result=result)
grant.release()
real.agents.remove(agent.agent_id, agent.generation_id)
"""


def recovery_chapter(stage: Stage) -> None:
    """One worker has everything, another sleeps; the first is killed."""
    manifest = str(stage.folder / "night.json")
    job = stage.hf.jobs.register_job("flash the board", agent="python", agent_session=LABEL)
    words = (LABEL, BOARD, NAME, manifest)
    worker = stage.start_script(_WORKER, *words)
    said = stage.line(worker).split()
    if said[:1] != [job.job_id]:
        raise BrokenStep("a worker has the job, the lock and the name")
    stage.say(
        f"a worker has job {job.job_id}, the lock on {BOARD} and, for the next 24 hours, the name "
        f"{NAME}; a second one sleeps"
    )
    successor = stage.start_script(_SUCCESSOR, *words)
    asleep = stage.line(successor) == "asleep"
    stage.say("the first one is killed with -9")
    killed_s = stage.monotonic()
    worker.send_signal(signal.SIGKILL)
    status, printed = stage.outcome(successor)
    _, _, attempt, *times = _has(printed)
    job_ms, lock_ms, lease_ms = ((float(at_s) - killed_s) * 1000 for at_s in times)
    stage.holds(
        asleep and status == 0 and was_woken(printed),
        f"the second had the job {job_ms:.0f} ms later, as attempt {attempt}",
    )
    stage.holds(
        lock_ms < LOCK_LEASE_S * 1000,
        f"the lock on {BOARD} after {lock_ms:.0f} ms: nobody removed a lock file",
    )
    stage.holds(
        lease_ms < AGENT_LEASE_S * 1000,
        f"and the name after {lease_ms:.0f} ms: its 24 hours died with the process",
    )
    _aftermath(stage, job.job_id, int(said[1]))


def _has(printed: str) -> list[str]:
    line = next((line.split() for line in printed.splitlines() if line.startswith("has ")), [])
    if len(line) != 6:
        raise BrokenStep("the second worker got the job, the lock and the name")
    return line


def _aftermath(stage: Stage, job_id: str, token: int) -> None:
    done = stage.hf.jobs.get_job(job_id)
    refused = False
    try:
        stage.hf.jobs.update_status(job_id, JobStatus.ERROR, token=token)
    except Fenced:
        refused = True
    stage.holds(
        done.status is JobStatus.COMPLETED and refused,
        "the work is done once; had the first one come back from a coma, its word would be refused",
    )
