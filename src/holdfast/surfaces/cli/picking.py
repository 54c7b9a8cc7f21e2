"""`holdfast jobs pick`: the one command that two parsers share."""

from holdfast.app import Holdfast
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import EXIT_DONE, EXIT_NOTHING_TO_TAKE


def pick(hf: Holdfast, agent_session: str, *, wait_s: float, pid: int | None, as_json: bool) -> int:
    """Claim a job; print its id, or all of it as JSON. The process is recorded only if it was named."""
    holder = None if pid is None else hf.processes.of(pid, agent_session)
    job = hf.jobs.pick_pending(agent_session, wait_s=wait_s, holder=holder)
    if job is None:
        return EXIT_NOTHING_TO_TAKE
    print(to_json(job).decode() if as_json else job.job_id)
    return EXIT_DONE
