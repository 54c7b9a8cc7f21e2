"""What an agent shows, or showed last, and how it ended."""

from msgspec.structs import replace

from holdfast.domains.agents import Agent, Target
from holdfast.domains.agents.liveness import process_liveness
from holdfast.domains.agents.ports import TmuxAddress
from holdfast.domains.agents.records import bare, run_by_gateway
from holdfast.domains.agents.runs import AgentExit
from holdfast.kernel.clock import render
from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import NotFound, NotTmuxBacked, TmuxSessionGone
from holdfast.kernel.holder import Liveness
from holdfast.runtime.connection import Holdfast


class AgentScreen(Plain, frozen=True, kw_only=True):
    """The last lines of an agent. `exited` is None for one that runs."""

    agent_name: str
    agent_id: str
    generation_id: str
    text: str
    exited: AgentExit | None = None


def last_record(hf: Holdfast, asked: str) -> tuple[Agent, AgentExit | None]:
    """The record of an agent by its name or id, fresh or not; of one that has ended and has no
    record any more, its last one. And how it ended; None while it may run.

    Raises NotFound, Ambiguous, and RecordInvalid.
    """
    run = None
    try:
        agent = hf.agents.get(hf.agents.resolve(asked).known_id())
    except NotFound:
        run = hf.agents.last_run(asked)
        if run is None:
            raise
        return run.last_record(), run.end or AgentExit()
    alive = process_liveness(agent, hf.processes, embedded=hf.store.embedded)
    if alive is not Liveness.DEAD:
        return agent, None
    run = hf.agents.last_run(agent.agent_id)
    known = run is not None and run.agent.generation_id == agent.generation_id
    return agent, (run.end if run is not None and known else None) or AgentExit()


def running_target(hf: Holdfast, asked: str) -> Target:
    """The target of an agent that runs in tmux. Raises as `Agents.control_target` does; of an agent
    that has ended, NotFound says how.
    """
    agent, exited = last_record(hf, asked)
    if exited is None:
        if run_by_gateway(agent):
            raise NotTmuxBacked(
                f"{agent.agent_name} draws no screen, as its gateway runs it: `holdfast agents "
                f"send {bare(agent.agent_name)} TEXT` prompts it",
                agent_id=agent.agent_id,
            )
        return hf.agents.control_target(asked)
    how = "" if exited.exit_status is None else f" with exit status {exited.exit_status}"
    raise NotFound(
        f"{agent.agent_name} has ended{how}: `holdfast agents logs {agent.agent_name}` shows its "
        "last screen, and `holdfast agents restart` starts it again",
        agent_id=agent.agent_id,
    )


def screen_of(hf: Holdfast, asked: str, lines: int) -> AgentScreen:
    """The last lines of an agent by its name or id: of its pane or, when it has ended, as far as
    they were kept.

    Raises NotFound, Ambiguous, Untrusted where its pane is not certain, and UpstreamUnavailable.
    """
    agent, exited = last_record(hf, asked)
    found = AgentScreen(
        agent_name=agent.agent_name,
        agent_id=agent.agent_id,
        generation_id=agent.generation_id,
        text="",
        exited=exited,
    )
    if exited is not None:
        run = hf.agents.last_run(agent.agent_id)
        text = "" if run is None or run.agent.generation_id != agent.generation_id else run.screen
        return replace(found, text="\n".join(text.split("\n")[-lines:]))
    if run_by_gateway(agent):
        return replace(found, text=_without_screen(hf, agent))
    # Loaded here, as few commands look at a pane.
    from holdfast.adapters.tmux_pane import TmuxServer

    target = hf.agents.control_target(agent.agent_id)
    server = TmuxServer(target.manifest.tmux_server or TmuxAddress())
    shown = server.last_lines(target.session_name, lines)
    if shown is None:
        raise TmuxSessionGone(
            f"the pane of {agent.agent_name} is gone from tmux session {target.session_name}: ask "
            "again",
            agent_id=agent.agent_id,
        )
    return replace(found, text=shown)


def _without_screen(hf: Holdfast, agent: Agent) -> str:
    """What there is to say of a live agent that its gateway runs."""
    # Loaded here, as few commands look at a gateway's folder.
    from holdfast.runtime.gateway_identity import gateway_folder

    name = bare(agent.agent_name)
    words = f"it draws no screen: `holdfast gateway requests {name}` shows its prompts"
    end = gateway_folder(hf, agent).program_end()
    if end is None:
        return words
    return f"{words}\nits last process ended at {render(end.ended_at)}: {end.why}"
