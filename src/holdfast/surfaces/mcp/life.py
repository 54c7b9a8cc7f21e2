"""The start and stop of other agents, where the operator has switched it on."""

from contextlib import suppress
from typing import Annotated

from msgspec import Meta
from msgspec.structs import asdict

from holdfast.kernel.codec import to_plain
from holdfast.kernel.errors import HoldfastError
from holdfast.kernel.limits import PATH_CHARS_MAX
from holdfast.operations.fields import AgentName
from holdfast.runtime.agent_start import start_tool, stop_as
from holdfast.surfaces.mcp.call import Call
from holdfast.surfaces.mcp.claims import Session
from holdfast.surfaces.mcp.tool import HandleText, ToolResult, behind, tool

_ToolName = Annotated[
    str, Meta(min_length=1, max_length=60, description="A tool that the operator allows.")
]
_Folder = Annotated[
    str,
    Meta(min_length=1, max_length=PATH_CHARS_MAX, description="Where it works: absolute path."),
]

_Unattended = Annotated[bool, Meta(description="Behind its protocol, with a gateway, not in tmux.")]


@tool()
def start_agent(
    session: Session,
    call: Call,
    *,
    name: AgentName,
    tool: _ToolName,
    folder: _Folder,
    unattended: _Unattended = False,
) -> ToolResult:
    """Start another agent: a tool in a folder, in a tmux session of its own, as your own user. It
    takes prompts when it has a gateway."""
    hf, me = session.hf, starter_of(session)
    agent = start_tool(
        hf, name=name, tool=tool, folder=folder, started_by=me, unattended=unattended
    )

    def undo() -> None:
        with suppress(HoldfastError):
            stop_as(hf, agent.agent_id, me)

    call.undo_by(undo)
    handle = f"agent:{agent.agent_id}"
    shown = {"agent_name": agent.agent_name, "tmux_session": agent.session_name}
    words = "send_request with this handle, once find_agents shows a gateway; stop_agent ends it"
    return {"handle": handle, "agent_id": agent.agent_id, **shown, "next": words}


@tool(repeatable=True)
def stop_agent(session: Session, call: Call, *, agent: HandleText) -> ToolResult:
    """End an agent that you have started, with all its processes; its conversation is kept. The
    operator may allow you to end any."""
    done = stop_as(session.hf, behind(agent, "agent"), starter_of(session))
    return {**to_plain(asdict(done)), "next": ""}


def starter_of(session: Session) -> str:
    """Who starts agents through this session: its agent, which may come back, or this process."""
    me = session.me
    return me.by if me.agent is None else f"agent {me.agent.agent_id}"
