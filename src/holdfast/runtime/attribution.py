"""Who is behind a job that holds a lock: its worker, and the agent that works there."""

from holdfast.domains.agents import Agents
from holdfast.domains.agents.records import bare
from holdfast.domains.jobs import Jobs, JobStatus
from holdfast.kernel.errors import Corrupt, InvalidName
from holdfast.primitives.locks.records import root_of

# The label of a worker in a tmux session begins so.
_TMUX = "tmux:"


def behind(jobs: Jobs, agents: Agents, by: str) -> tuple[str, ...]:
    """From the job towards its process: `worker tmux:claude-a`, `agent gpu`. Empty for a job that
    is not registered here.

    Only reads: a job whose worker is dead may not be requeued yet. Damaged records are left out.
    """
    try:
        job = jobs.peek(root_of(by))
    except (InvalidName, Corrupt):
        # The holder of a lock may have any name.
        return ()
    if job is None:
        return ()
    if job.status is not JobStatus.RUNNING:
        return (f"no worker, as the job is {job.status.value}",)
    label = job.agent_session
    there = agents.in_tmux_session(label.removeprefix(_TMUX)) if label.startswith(_TMUX) else []
    return (f"worker {label}", *(f"agent {bare(agent.agent_name)}" for agent in there))
