"""From a live record to a target that may be controlled.

Every pointer of the record is checked again. A wrong one raises an error with its own code, and
never leads to another target.
"""

import os
from collections.abc import Collection
from typing import Any

from holdfast.domains.agents import manifest as manifests
from holdfast.domains.agents.liveness import process_liveness, survivors_of
from holdfast.domains.agents.manifest import Manifest
from holdfast.domains.agents.ports import AgentPorts, Files, TmuxAddress
from holdfast.domains.agents.records import AGENTS, Agent, bare, tmux_backed
from holdfast.domains.agents.resolution import Reason, resolve
from holdfast.kernel import errors
from holdfast.kernel.codec import Plain
from holdfast.kernel.holder import Liveness, Processes, survivors_named
from holdfast.kernel.store import Store

_ANCESTORS_MAX = 64


def _pointer(record: Agent) -> dict[str, Any]:
    return {"agent_id": record.agent_id, "manifest_path": record.runtime.manifest_path}


class Target(Plain, frozen=True, kw_only=True):
    """What may be controlled: the record, the manifest that agrees with it, and the definition
    folder, if one is needed.
    """

    record: Agent
    manifest: Manifest
    session_name: str
    agent_def_dir: str | None = None


def control_target(
    store: Store,
    ports: AgentPorts,
    asked: str,
    prefix: str,
    *,
    agent_def_dir: str | None,
    needs_agent_def_dir: bool,
) -> Target:
    """Resolve a name or an id, and check everything that the record points at. Raises as
    `Agents.control_target` says.
    """
    resolution = resolve(store, asked, prefix)
    if resolution.reason is Reason.MISSING:
        _refuse_session_names(store, asked)
    record = resolution.unwrap()
    try:
        manifest = manifests.from_json(manifest_in(ports.files, record))
    except errors.InvalidValue as error:
        raise not_trusted(record, error.message) from None
    check_own(record, manifest.agent_id, manifest.agent_name)
    check_generation(record, manifest.generation_id)
    if not tmux_backed(manifest.backend):
        raise errors.NotTmuxBacked(
            f"{record.agent_name} runs on {manifest.backend}, which is not in tmux: use its "
            "gateway",
            agent_id=record.agent_id,
            backend=manifest.backend,
        )
    session_name = check_session(record, manifest.session_name)
    folder = record.runtime.agent_def_dir if agent_def_dir is None else agent_def_dir
    if needs_agent_def_dir or manifest.agent_def_dir is not None or folder is not None:
        folder = _checked_folder(ports.files, record, folder)
    check_process(record, session_name, manifest.tmux_server, ports)
    return Target(record=record, manifest=manifest, session_name=session_name, agent_def_dir=folder)


def claimants(store: Store, session_name: str) -> list[Agent]:
    """The readable records that name a tmux session, fresh or not."""
    rows = store.read(
        lambda tx: tx.find(AGENTS, "tmux_session", (session_name,), damaged=[]), scope=[AGENTS]
    )
    return [row.record for row in rows]


def _refuse_session_names(store: Store, asked: str) -> None:
    """An agent's name is never inferred from a tmux session. Raises NameNotStated when the text
    names a session only.
    """
    if found := claimants(store, asked):
        names = ", ".join(f"{agent.agent_name} ({agent.agent_id})" for agent in found)
        raise errors.NameNotStated(
            f"{asked} names a tmux session and no agent, and an agent's name is not inferred from "
            f"that: use {names}",
            asked=asked,
            agent_ids=[agent.agent_id for agent in found],
        )


def manifest_in(files: Files, record: Agent) -> bytes:
    """The content of the record's manifest, unchecked. Raises ManifestPathRelative,
    ManifestMissing and ManifestInvalid.
    """
    path = record.runtime.manifest_path
    if not os.path.isabs(path):
        raise errors.ManifestPathRelative(
            f"the manifest of {record.agent_name} is at {path}, which could be anywhere: publish "
            "it with an absolute path",
            **_pointer(record),
        )
    try:
        data = files.read(path)
    except OSError as error:
        raise errors.ManifestInvalid(
            f"the manifest {path} cannot be read: {error.strerror}", **_pointer(record)
        ) from None
    if data is None:
        raise errors.ManifestMissing(
            f"the manifest {path} of {record.agent_name} is gone: start the agent again, or "
            "publish where it is now",
            **_pointer(record),
        )
    return data


def not_trusted(record: Agent, why: str) -> errors.ManifestInvalid:
    path = record.runtime.manifest_path
    return errors.ManifestInvalid(f"the manifest {path} is invalid: {why}", **_pointer(record))


def check_own(record: Agent, agent_id: str, agent_name: str) -> None:
    """Check that a manifest with this id and name is the record's own. Raises ManifestMismatch."""
    if agent_id != record.agent_id or bare(agent_name) != bare(record.agent_name):
        raise errors.ManifestMismatch(
            f"the manifest {record.runtime.manifest_path} is that of {agent_name} ({agent_id}), "
            f"not of {record.agent_name} ({record.agent_id}): publish each agent with its own",
            **_pointer(record),
        )


def check_generation(record: Agent, generation_id: str) -> None:
    """Check that a manifest of this generation is the record's. Raises GenerationMismatch."""
    if generation_id != record.generation_id:
        raise errors.GenerationMismatch(
            f"the manifest {record.runtime.manifest_path} is that of generation {generation_id}, "
            f"and {record.agent_name} is published by generation {record.generation_id}: start the "
            "agent again, or publish it with its own manifest",
            **_pointer(record),
            published=record.generation_id,
            manifest=generation_id,
        )


def check_session(record: Agent, session_name: str | None) -> str:
    """The tmux session that record and manifest agree on. Raises TmuxSessionMismatch."""
    if session_name is None or session_name != record.session_name:
        raise errors.TmuxSessionMismatch(
            f"{record.agent_name} is published in tmux session {record.session_name or 'none'}, "
            f"and its manifest says {session_name or 'none'}: neither is touched. Start the agent "
            "again, or publish the right one",
            agent_id=record.agent_id,
            published=record.session_name,
            manifest=session_name,
        )
    return session_name


def check_process(
    record: Agent, session_name: str, server: TmuxAddress | None, ports: AgentPorts
) -> None:
    """Check that the process in the record is alive, and that it or one of its ancestors is the
    process of a pane of the tmux session.

    A session's name proves nothing: a stranger may have made a session of the same name. For a
    record that names no process, only the tmux session must exist. Raises ProcessDead,
    TmuxSessionGone, ProcessNotInSession, and TargetUnknown where it cannot be seen.
    """
    holder, name, embedded = record.holder, record.agent_name, ports.embedded
    facts: dict[str, Any] = {
        "agent_id": record.agent_id,
        "session_name": session_name,
        "pid": None if holder is None else holder.pid,
    }
    if holder is None and not embedded:
        raise errors.TargetUnknown(
            f"{name} names no process, and its tmux session {session_name} may be on any machine "
            "of this store: publish it with --pid, or start it with `holdfast agents start`",
            **facts,
        )
    # Only the process itself counts: the programs that it started must not get the agent's keys.
    alive = process_liveness(record, ports.processes, embedded=embedded) or Liveness.ALIVE
    who = f"process {facts['pid']} of {name}"
    if alive is Liveness.DEAD:
        survivors = survivors_of(record, ports.processes, embedded=embedded)
        left, then = "", ""
        if survivors:
            left = f", though processes that it started are alive ({survivors_named(survivors)})"
            then = " when they have ended"
        raise errors.ProcessDead(
            f"{who} is dead{left}. Whatever is in tmux session {session_name} now is not touched: "
            f"start the agent again{then}",
            **facts,
        )
    if alive is Liveness.UNKNOWN:
        raise errors.TargetUnknown(
            f"{who} cannot be seen from here, so nobody knows whether it is in tmux session "
            f"{session_name}: ask on its own machine, outside of other containers",
            **facts,
        )
    panes = ports.sessions.panes(session_name, server)
    if panes is None:
        raise errors.TargetUnknown(
            f"tmux does not say what is in tmux session {session_name} of {name}: check whether "
            "its server is stopped, or belongs to another user",
            **facts,
        )
    if not panes:
        raise errors.TmuxSessionGone(
            f"there is no tmux session {session_name} with a live pane, where {name} was "
            "published: start it again, or publish where it is now",
            **facts,
        )
    if holder is not None and not _is_within(holder.pid, panes, ports.processes):
        raise errors.ProcessNotInSession(
            f"{who} is not in tmux session {session_name}, which belongs to another program now: "
            "start the agent again, or publish where it is now",
            **facts,
        )


def _is_within(pid: int, panes: Collection[int], processes: Processes) -> bool:
    """Is it a pane's process or a descendant of one, such as a command in the pane's shell?"""
    for _ in range(_ANCESTORS_MAX):
        if pid in panes:
            return True
        seen = processes.process_stat(pid)
        if seen is None or not seen.parent_pid:
            break
        pid = seen.parent_pid
    return False


def _checked_folder(files: Files, record: Agent, folder: str | None) -> str:
    facts = {"agent_id": record.agent_id, "agent_def_dir": folder}
    hint = "give one with --agent-def-dir"
    if folder is None:
        raise errors.AgentDefDirMissing(
            f"{record.agent_name} needs an agent definition folder and names none: {hint}", **facts
        )
    if not os.path.isabs(folder):
        raise errors.AgentDefDirRelative(
            f"the agent definition folder {folder} is not an absolute path: {hint}", **facts
        )
    if not files.is_folder(folder):
        raise errors.AgentDefDirGone(
            f"the agent definition folder {folder} does not exist: {hint} that does", **facts
        )
    return folder
