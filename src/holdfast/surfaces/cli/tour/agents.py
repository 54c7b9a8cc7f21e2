"""The agents chapter."""

import os
import signal
from contextlib import suppress

from holdfast.domains.agents import Agent
from holdfast.kernel.errors import Held, status_of
from holdfast.surfaces.cli.tour.stage import PATIENCE_S, BrokenStep, Process, Stage

_NAME = "tour-gpu"
_LIVING = ("sh", "-c", "echo up; exec sleep 600")


def agents_chapter(stage: Stage) -> None:
    """An agent that runs past its lease, a second one that is refused, and a kill."""
    stage.say(
        f"`holdfast agents run {_NAME}` runs a program as an agent, with a lease of two seconds"
    )
    runner = stage.start("agents", "run", _NAME, "--lease", "2", "--", *_LIVING)
    try:
        stage.holds(stage.line(runner) == "up", "it is published before its program begins")
        first = stage.hf.agents.resolve(_NAME).unwrap()
        _outlive(stage, first)
        _refused(stage)
        _killed(stage, first, runner.pid)
    finally:
        _end(stage, runner)


def _outlive(stage: Stage, first: Agent) -> None:
    for batch in stage.hf.log.follow(timeout_s=PATIENCE_S):
        if (
            any(entry.kind == "agent.refreshed" for entry in batch.entries)
            and stage.hf.store.now() > first.lease_expires_at
        ):
            break
    live = stage.hf.agents.resolve_live_agent_record(f"HOLDFAST-{_NAME}")
    stage.holds(
        live is not None and live.token == first.token,
        "it is still resolved after its first lease is over",
    )


def _refused(stage: Stage) -> None:
    status, _ = stage.outcome(stage.start("agents", "run", _NAME, "--", "true"))
    stage.holds(
        status == status_of(Held("")).exit,
        "a second one of that name is refused, as the first one lives",
    )


def _killed(stage: Stage, first: Agent, runner: int) -> None:
    if first.holder is None:
        raise BrokenStep("the agent's process is known")
    stage.say("the agent and its runner are killed with -9")
    for pid in (runner, first.holder.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    stage.hf.processes.trees.wait_for_end(first.holder.tree or "", PATIENCE_S)
    status, printed = stage.outcome(
        stage.start("agents", "run", _NAME, "--lease", "600", "--", "echo", "successor")
    )
    stage.holds(
        (status, printed) == (0, "successor"),
        "the next one takes over at once: its process is dead, that is proved",
    )
    gone = stage.hf.agents.resolve(_NAME).reason
    stage.holds(
        gone is not None and gone.value == "missing", "and when it ends, it leaves nothing behind"
    )


def _end(stage: Stage, runner: Process) -> None:
    """End the runner and, if the chapter was cut short, its agent, which outlives it."""
    left = stage.hf.agents.resolve(_NAME).record
    runner.kill()
    runner.wait()
    if left is not None and left.holder is not None:
        with suppress(ProcessLookupError):
            os.kill(left.holder.pid, signal.SIGKILL)
