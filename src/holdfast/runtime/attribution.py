"""Who is behind a job that holds something: the worker that has the job, and the agent that works
there.
"""

from holdfast.domains.agents import Agents
from holdfast.domains.agents.records import bare
from holdfast.domains.jobs import Job, Jobs, JobStatus
from holdfast.kernel.errors import Corrupt, InvalidName
from holdfast.primitives.locks.records import root_of

_TMUX = "tmux:"
"""How the label of a worker begins that works in a tmux session."""


def behind(jobs: Jobs, agents: Agents, by: str) -> tuple[str, ...]:
    """From the job towards its process: `worker tmux:claude-a`, `agent gpu`. Empty for a job that
    is not registered here.

    Looks, and changes nothing: a job whose worker is dead may not be put back yet. Records that are
    damaged are passed over.
    """
    job = _job(jobs, by)
    if job is None:
        return ()
    if job.status is not JobStatus.RUNNING:
        return (f"no worker, as the job is {job.status.value}",)
    label = job.agent_session
    there = agents.in_tmux_session(label.removeprefix(_TMUX)) if label.startswith(_TMUX) else []
    return (f"worker {label}", *(f"agent {bare(agent.agent_name)}" for agent in there))


def _job(jobs: Jobs, by: str) -> Job | None:
    try:
        return jobs.peek(root_of(by))
    except (InvalidName, Corrupt):
        # A lock's job may have any name.
        return None
