"""The start of a tool as an agent by another agent, as far as the operator allows that: as the same
user, without arguments of the caller's choice.
"""

import os

from holdfast.adapters.profiles import profile_named, profiles_folder
from holdfast.domains.agents import Agent
from holdfast.domains.agents.records import canonical
from holdfast.domains.agents.runs import StoppedAgent
from holdfast.kernel.errors import InvalidValue, Refused
from holdfast.kernel.limits import AGENT_MOMENT_S, TREE_GRACE_S
from holdfast.runtime.agent_launch import Launch
from holdfast.runtime.agent_pane import check_command, start_in_tmux
from holdfast.runtime.agent_stop import stop_agent
from holdfast.runtime.connection import Holdfast


def start_tool(
    hf: Holdfast, *, name: str, tool: str, folder: str, started_by: str, unattended: bool = False
) -> Agent:
    """Start the tool of a profile in a folder, in a new tmux session or, `unattended`, behind its
    protocol; return its record.

    Raises Refused for a tool that the operator does not allow, InvalidValue for an impossible
    folder and for a tool that is not installed, and what `start_in_tmux` and `start_unattended`
    raise.
    """
    allowed = hf.settings.mcp.may_start
    if tool not in allowed:
        known = f"allowed are {', '.join(allowed)}" if allowed else "none is allowed"
        raise Refused(
            f"the operator does not allow agents to start {tool[:60]!a} (mcp.may_start): {known}",
            tool=tool[:60],
        )
    if not os.path.isabs(folder) or not os.path.isdir(folder):
        raise InvalidValue(
            f"{folder[:200]!a} is no folder here: give the absolute path of one", field="folder"
        )
    profile = profile_named(tool, profiles_folder(os.environ))
    if unattended:
        # Loaded here, as it brings the client of gateways.
        from holdfast.runtime.agent_unattended import (
            protocol_of,
            start_unattended,
            unattended_launch,
        )

        kind, command = protocol_of(profile, (), None)
        alone = unattended_launch(
            hf,
            command,
            kind=kind,
            adapter={"profile": profile.name},
            name=name,
            agent_id=None,
            tool=tool,
            session_root=None,
            agent_def_dir=None,
            lease_s=None,
            take_over=False,
            folder=folder,
            started_by=started_by,
        )
        return start_unattended(hf, alone, command)
    if not profile.programs:
        raise InvalidValue(
            f"the profile {tool} names no program that could be started", field="tool"
        )
    program = profile.programs[0]
    check_command(program)
    launch = Launch(
        hf,
        [program],
        name=name,
        session_name=canonical(name, hf.settings.agents.prefix),
        agent_id=None,
        tool=tool,
        session_root=None,
        agent_def_dir=None,
        lease_s=None,
        take_over=False,
        adapter={},
        folder=folder,
        own_session=True,
        started_by=started_by,
    )
    return start_in_tmux(hf, launch, watch_s=AGENT_MOMENT_S)


def stop_as(hf: Holdfast, asked: str, stopped_by: str) -> StoppedAgent:
    """Stop an agent for another one, if that has started it or the operator allows to stop any.
    Raises Refused, and what `stop_agent` raises.
    """
    run = hf.agents.last_run(asked)
    own = run is not None and run.started_by == stopped_by
    if not own and hf.settings.mcp.may_stop != "any":
        # An agent that never was is not found rather than refused.
        if run is None:
            hf.agents.get(hf.agents.resolve(asked).known_id())
        raise Refused(
            f"{asked} was not started by you, and the operator allows agents to stop only those "
            "that they have started (mcp.may_stop)",
            agent=asked,
        )
    return stop_agent(hf, asked, grace_s=TREE_GRACE_S)
