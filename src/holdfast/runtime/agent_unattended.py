"""An agent behind a protocol that nobody watches: its gateway starts it, talks to it and ends it.

The process that hosts gateways was started by another command, with another environment, and may be
replaced by the next one after a kill or a reboot. So the environment of the agent is in a file of
its own (`agent_environment.py`). Its record names no process: the gateway may start it again at any
time, and renews the record's lease while it sees the agent.
"""

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from holdfast.adapters.agent_environment import write_environment
from holdfast.adapters.agent_tool import TOKEN_VARIABLE
from holdfast.adapters.command import ProcessNote
from holdfast.adapters.gateway_client import GatewayClient
from holdfast.adapters.gateway_folder import Detached, GatewayFolder
from holdfast.domains.agents import Agent
from holdfast.domains.agents.runs import AgentExit, AgentRun, RestartedAgent, StoppedAgent
from holdfast.kernel.agent_profile import Profile
from holdfast.kernel.errors import (
    AgentEnded,
    HoldfastError,
    InvalidValue,
    Lost,
    NotFound,
    Refused,
    StoreUnavailable,
    TargetUnknown,
    Unavailable,
)
from holdfast.kernel.holder import Liveness, probe
from holdfast.kernel.limits import PROTOCOL_START_S, TREE_GRACE_S
from holdfast.processes.procfs import Procfs
from holdfast.processes.scan import GUARDIAN, MARK
from holdfast.processes.signals import EXIT_SIGNALLED
from holdfast.runtime.agent_launch import Launch
from holdfast.runtime.agent_pane import environment_of_agent
from holdfast.runtime.connection import Holdfast
from holdfast.runtime.gateway_identity import gateway_folder
from holdfast.runtime.host_process import ensure_hosted
from holdfast.system.access import PRIVATE

_POLL_S = 0.05
_GATEWAY_END_S = 10.0
"""How long a gateway may take to end beside its agent."""
_STARTED = ("ready", "asking", "working")
_OF_CALLER = (
    MARK,
    GUARDIAN,
    TOKEN_VARIABLE,
    "HOLDFAST_WORKFLOW",
    "HOLDFAST_WORKFLOW_TOKEN",
    "HOLDFAST_LOCK_BY",
)
"""Variables about the process that starts the agent, which the agent must not take for its own."""


def protocol_of(profile: Profile, words: Sequence[str], kind: str | None) -> tuple[str, list[str]]:
    """The kind of adapter and the command of an unattended agent: `words`, or what the profile
    says. Raises InvalidValue when that says nothing.
    """
    launch = profile.launch
    if words:
        return kind or (launch.protocol_kind if launch.protocol else "acp"), list(words)
    if not launch.protocol or kind not in (None, launch.protocol_kind):
        spoken = "" if kind is None else f" {kind}"
        raise InvalidValue(
            f"the profile {profile.name} has no command that speaks a protocol{spoken}: give one "
            "behind --",
            field="tool",
        )
    return launch.protocol_kind, list(launch.protocol)


def start_unattended(hf: Holdfast, launch: Launch, command: Sequence[str]) -> Agent:
    """Start an agent that its gateway runs; return its record when it takes prompts. It begins a
    new conversation, unless its adapter's settings name one.

    Raises InvalidValue for a store in memory and for a command that is not there, Held when the id
    is taken, AgentEnded when the agent does not start, with the reason, and Unavailable when its
    gateway does not come up. Nothing is left of it then.
    """
    return _start(hf, launch, command, goes_on=False)


def _start(hf: Holdfast, launch: Launch, command: Sequence[str], *, goes_on: bool) -> Agent:
    if hf.store.ephemeral:
        raise InvalidValue(
            "an agent's gateway is another process, and cannot share a memory: store",
            field="store",
        )
    program = command[0]
    if os.sep in program:
        program = os.path.join(launch.folder, program)
    if shutil.which(program) is None:
        raise InvalidValue(
            f"there is no command {command[0]}: install it, or give its path", field="command"
        )
    agent = launch.publish(None, reserve=False)
    try:
        folder = gateway_folder(hf, agent)
        # Of an earlier generation, which lost the id.
        _end_gateway(hf, agent, folder)
        folder.remove_program_end()
        if not goes_on:
            folder.remove_conversation()
        # A gateway reads it as soon as there is a manifest.
        _write_environment(hf, launch, agent)
        launch.write_manifest()
        launch.note(agent)
        ensure_hosted(hf, agent.agent_id)
        _await_ready(agent, folder)
        return hf.agents.get(agent.agent_id)
    except BaseException:
        with suppress(HoldfastError):
            stop_unattended(hf, agent, grace_s=TREE_GRACE_S)
        launch.clear_away()
        raise


def _write_environment(hf: Holdfast, launch: Launch, agent: Agent) -> None:
    """Write the environment of this process, without what is about its terminal and itself."""
    left_out = {name.encode() for name in _OF_CALLER}
    own = {
        "HOLDFAST_AGENT_ID": agent.agent_id,
        "HOLDFAST_AGENT_NAME": agent.agent_name,
        "HOLDFAST_AGENT_GENERATION": agent.generation_id,
        "HOLDFAST_AGENT_TOKEN": str(agent.token),
        "HOLDFAST_AGENT_MANIFEST": launch.manifest_path,
    }
    around = environment_of_agent(hf).items()
    variables = {name: value for name, value in around if name not in left_out}
    variables |= {name.encode(): os.fsencode(value) for name, value in own.items()}
    try:
        write_environment(launch.environment_path, variables)
    except (OSError, StoreUnavailable) as error:
        raise Unavailable(
            f"{launch.environment_path} cannot be written ({error}): name another folder with "
            "--session-root",
            outcome="none",
        ) from None


def _await_ready(agent: Agent, folder: GatewayFolder) -> None:
    """Return when the agent takes prompts. Raises AgentEnded when it does not start."""
    client = GatewayClient(folder.root.name, root=folder.root)
    deadline, state = time.monotonic() + PROTOCOL_START_S, "unknown"
    while time.monotonic() < deadline:
        end = folder.program_end()
        if end is not None:
            raise AgentEnded(
                f"{agent.agent_name} does not start: {end.why}. Its record is removed",
                agent_id=agent.agent_id,
                exit_status=_shell_status(end.exit_status),
            )
        with suppress(Unavailable, NotFound):
            state = str(client.status()["agent_state"])
        # Published too, where everybody else looks.
        seen = folder.state()
        if state in _STARTED and seen is not None and seen.agent_state.value in _STARTED:
            return
        # Its gateway's status says it, and this process is not notified of that.
        time.sleep(_POLL_S)
    raise AgentEnded(
        f"{agent.agent_name} was not ready within {PROTOCOL_START_S:g} s: it is {state}. Its "
        "record is removed",
        agent_id=agent.agent_id,
    )


def stop_unattended(hf: Holdfast, agent: Agent, *, grace_s: float) -> StoppedAgent:
    """End an agent that its gateway runs, its gateway and its record.

    Raises InvalidValue for a caller that is a part of the agent, Refused for another user's, and
    TargetUnknown when its processes cannot be ended: then its record stays.
    """
    folder = gateway_folder(hf, agent)
    _check_may_end(agent, folder)
    was_running = _end_gateway(hf, agent, folder, grace_s=grace_s)
    end = folder.program_end()
    status = None if end is None else _shell_status(end.exit_status)
    hf.agents.note_end(agent, status, "" if end is None else end.why)
    with suppress(NotFound, Lost):
        hf.agents.remove(agent.agent_id, agent.generation_id, token=agent.token)
        hf.agents.clear_after(agent)
    run = hf.agents.last_run(agent.agent_id)
    same = run is not None and run.agent.generation_id == agent.generation_id
    return StoppedAgent(
        agent_name=agent.agent_name,
        agent_id=agent.agent_id,
        generation_id=agent.generation_id,
        was_running=was_running,
        exited=(run.end if run is not None and same else None) or AgentExit(),
    )


def _end_gateway(
    hf: Holdfast, agent: Agent, folder: GatewayFolder, *, grace_s: float = TREE_GRACE_S
) -> bool:
    """End the gateway of an agent, and all processes of the agent. No host starts it again for this
    generation. Returns whether there was anything to end. Raises TargetUnknown.
    """
    processes = Procfs(host_id=hf.settings.host_id)
    processes.find_trees(lambda: folder.trees, lambda: PRIVATE)
    note = ProcessNote(folder.agent_process, processes)
    instance, had_note = folder.instance(), note.exists()
    if instance is None and not had_note:
        return False
    folder.write_detached(Detached(generation_id=agent.generation_id))

    def serves() -> bool:
        now = folder.instance()
        return now is not None and (
            now.process is None or probe(now.process, processes, embedded=True) is Liveness.ALIVE
        )

    served = serves()
    if served:
        with suppress(HoldfastError):
            GatewayClient(folder.root.name, root=folder.root).detach()
        deadline = time.monotonic() + grace_s + _GATEWAY_END_S
        # It ends its agent behind its status, and this process is not notified of that.
        while (serves() or note.exists()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if serves():
            pid = folder.instance()
            raise TargetUnknown(
                f"the gateway of {agent.agent_name} (process {pid.pid if pid else '?'}) does not "
                "end: end that process. Its record stays",
                agent_id=agent.agent_id,
            )
    if left := note.end_named(grace_s):
        pids = ", ".join(map(str, left))
        raise TargetUnknown(
            f"process {pids} of {agent.agent_name} does not end: end it by hand. Its record stays",
            agent_id=agent.agent_id,
        )
    return served or had_note


def _check_may_end(agent: Agent, folder: GatewayFolder) -> None:
    tree = ProcessNote(folder.agent_process, Procfs()).tree()
    if tree is not None and tree in os.environ.get(MARK, "").split(":"):
        raise InvalidValue(
            f"{agent.agent_name} cannot stop itself: stop it from a terminal", field="agent"
        )
    try:
        owner: int | None = os.stat(agent.runtime.manifest_path).st_uid
    except PermissionError:
        owner = None
    except OSError:
        return
    if os.geteuid() not in (0, owner):
        who = "another user" if owner is None else f"user {owner}"
        raise Refused(
            f"{agent.agent_name} runs as {who}: that user can stop it",
            agent_id=agent.agent_id,
            uid=owner,
        )


def restart_unattended(
    hf: Holdfast, run: AgentRun, *, fresh: bool, conversation: str | None, grace_s: float
) -> RestartedAgent:
    """Stop an agent that its gateway runs, if it does, and start it again with its conversation.
    Raises as `stop_unattended` and `start_unattended`.
    """
    # Loaded here: the module of all restarts loads this one.
    from holdfast.runtime.agent_stop import stop_agent

    chosen = run.choices
    settings: dict[str, Any] = dict(chosen.adapter)
    if fresh or conversation is not None:
        settings.pop("session_id", None)
    if conversation is not None:
        settings["session_id"] = conversation
    launch = unattended_launch(
        hf,
        list(run.command),
        kind=run.agent.identity.backend,
        adapter=settings,
        name=run.agent.agent_name,
        agent_id=run.agent.agent_id,
        tool=chosen.tool,
        session_root=chosen.session_root,
        agent_def_dir=chosen.agent_def_dir,
        lease_s=chosen.lease_s,
        take_over=False,
        folder=run.working_directory,
        started_by=run.started_by,
    )
    stop_agent(hf, run.agent.agent_id, grace_s=grace_s)
    folder = gateway_folder(hf, run.agent)
    before = folder.conversation()
    agent = _start(hf, launch, run.command, goes_on=not fresh)
    after = folder.conversation()
    wanted = conversation or settings.get("session_id")
    if wanted is not None:
        return RestartedAgent(agent=agent, conversation=str(wanted))
    if fresh:
        return RestartedAgent(agent=agent, conversation=None, why="as asked")
    if before is None or not before.prompted:
        why = "in the last one nothing was said"
        return RestartedAgent(agent=agent, conversation=None, why=why)
    if after is None or after.session_id != before.session_id:
        why = "the agent has lost the last one"
        return RestartedAgent(agent=agent, conversation=None, why=why)
    return RestartedAgent(agent=agent, conversation=after.session_id)


def unattended_launch(
    hf: Holdfast,
    command: list[str],
    *,
    kind: str,
    adapter: Mapping[str, Any],
    **more: Any,
) -> Launch:
    """The launch of an agent that its gateway runs; `more` is what Launch takes beside it. Raises
    as that.
    """
    return Launch(hf, command, session_name=None, adapter=adapter, protocol={"kind": kind}, **more)


def _shell_status(status: int | None) -> int | None:
    """An exit status as a shell gives it."""
    return status if status is None or status >= 0 else EXIT_SIGNALLED - status
