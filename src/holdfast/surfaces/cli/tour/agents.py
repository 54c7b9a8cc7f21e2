"""The agents chapter: an agent that runs past its lease, a second one that is refused, a kill."""

import os
import signal
from contextlib import suppress

from holdfast.kernel.errors import Held, status_of
from holdfast.surfaces.cli.tour.steps import PATIENCE_S, BrokenStep, Tour

_NAME = "tour-gpu"
_PROGRAM = ("sh", "-c", "echo up; exec sleep 600")


def agents_chapter(tour: Tour) -> None:
    agents = tour.hf.agents
    tour.say(
        f"`holdfast agents run {_NAME}` runs a program as an agent, with a lease of two seconds"
    )
    runner = tour.start("agents", "run", _NAME, "--lease", "2", "--", *_PROGRAM)
    tour.check(tour.line(runner) == "up", "the agent is published before its program begins")
    first = agents.resolve(_NAME).unwrap()
    for batch in tour.hf.log.follow(timeout_s=PATIENCE_S):
        refreshed = any(entry.kind == "agent.refreshed" for entry in batch.entries)
        if refreshed and tour.hf.store.now() > first.lease_expires_at:
            break
    live = agents.resolve_live_agent_record(f"HOLDFAST-{_NAME}")
    tour.check(
        live is not None and live.token == first.token,
        "it is still found after its first lease is over",
    )
    status, _ = tour.run("agents", "run", _NAME, "--", "true")
    tour.check(
        status == status_of(Held("")).exit,
        "a second agent of that name is refused, since the first one lives",
    )
    if first.holder is None:
        raise BrokenStep("the agent's process is known")
    tour.say("the agent and its runner are killed with -9")
    for pid in (runner.pid, first.holder.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    tour.hf.processes.trees.wait_for_end(first.holder.tree or "", PATIENCE_S)
    ran = tour.run("agents", "run", _NAME, "--lease", "600", "--", "echo", "successor")
    tour.check(
        ran == (0, "successor"), "the next one takes over at once, since that process is dead"
    )
    gone = agents.resolve(_NAME).reason
    tour.check(
        gone is not None and gone.value == "missing", "when it ends, it leaves nothing behind"
    )
