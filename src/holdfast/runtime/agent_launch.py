"""An agent that is about to run: its names, its tool, its folder, its manifest, and its record."""

import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from holdfast.adapters.agent_files import GenerationFolders, ManifestFiles
from holdfast.adapters.agent_tool import ToolLaunch, prepare_tool, tool_adapter
from holdfast.adapters.profiles import profile_for, profile_named, profiles_folder
from holdfast.adapters.tmux import socket_path
from holdfast.domains.agents import Agent, Manifest, houmao_record
from holdfast.domains.agents.manifest import (
    FILE_NAME,
    TmuxHandle,
    as_json,
    encode,
    tmux_adapter,
)
from holdfast.domains.agents.records import canonical, id_of
from holdfast.kernel.agent_adapter import CommandAdapter
from holdfast.kernel.errors import HoldfastError, InvalidValue, Unavailable
from holdfast.kernel.holder import Holder
from holdfast.kernel.limits import AGENT_RESERVED_S
from holdfast.runtime.configuration import state_folder
from holdfast.runtime.connection import Holdfast
from holdfast.system.access import access_for


class Launch:
    """One generation of an agent before, while and after it runs. `tool` is the name of a profile;
    None: the command's name says it. `adapter` has the settings of a tmux adapter that were given,
    by their names in a manifest.

    Raises InvalidName for impossible names, NotFound for an unknown tool, and InvalidValue for
    impossible settings.
    """

    def __init__(
        self,
        hf: Holdfast,
        command: list[str],
        *,
        name: str,
        session_name: str | None,
        agent_id: str | None,
        generation_id: str | None = None,
        tool: str | None,
        session_root: str | None,
        agent_def_dir: str | None,
        lease_s: float | None,
        take_over: bool,
        adapter: Mapping[str, Any],
    ) -> None:
        self._hf = hf
        self._given_name = name
        self._lease_s = lease_s
        self._take_over = take_over
        self.session_name = session_name
        self.name = canonical(name, hf.settings.agents.prefix)
        self.agent_id = id_of(self.name) if agent_id is None else agent_id
        self.generation_id = str(uuid.uuid4()) if generation_id is None else generation_id
        if session_root is not None and not session_root.strip():
            raise InvalidValue(
                "session_root is blank: name a folder, or leave it out", field="session_root"
            )
        if session_name is None and adapter:
            raise InvalidValue(
                f"{' and '.join(sorted(adapter))}: only an agent in tmux has that. "
                "Use `holdfast agents start`, or name its --tmux-session",
                field="adapter",
            )
        self._folders = GenerationFolders(lambda: state_folder(os.environ))
        own_root = self._folders.of(self.agent_id, self.generation_id)
        self.root = os.path.abspath(session_root or own_root)
        self.manifest_path = os.path.join(self.root, FILE_NAME)
        folder = profiles_folder(os.environ)
        self.profile = profile_for(command, folder) if tool is None else profile_named(tool, folder)
        self.tool = (os.path.basename(command[0]) or command[0]) if tool is None else tool
        self._command = command
        self._manifest = Manifest(
            agent_id=self.agent_id,
            agent_name=self.name,
            generation_id=self.generation_id,
            backend="command" if session_name is None else "local_interactive",
            tool=self.tool,
            working_directory=os.getcwd(),
            agent_def_dir=agent_def_dir,
            tmux=None if session_name is None else TmuxHandle(session_name=session_name),
            adapter=CommandAdapter(command=tuple(command))
            if session_name is None
            # The agent need not be in the tmux server that others find by themselves.
            else tmux_adapter(
                {
                    "socket_path": socket_path(),
                    **tool_adapter(self.profile, self.root),
                    **adapter,
                }
            ),
        )
        # Refused before anything is published.
        encode(self._manifest)

    def publish(self, holder: Holder | None) -> Agent:
        """Publish it as the process that it will be; without one, for as long as its start may
        take. Removes what a dead agent of this id left.
        """
        before = None
        with suppress(HoldfastError):
            before = self._hf.agents.get(self.agent_id)
        agent = self._hf.agents.publish(
            self._given_name,
            backend=self._manifest.backend,
            tool=self.tool,
            manifest_path=self.manifest_path,
            session_name=self.session_name,
            session_root=self.root,
            agent_def_dir=self._manifest.agent_def_dir,
            holder=holder,
            agent_id=self.agent_id,
            generation_id=self.generation_id,
            lease_s=AGENT_RESERVED_S if holder is None else self._lease_s,
            take_over=self._take_over,
        )
        if before is not None and before.generation_id != agent.generation_id:
            self._hf.agents.clear_after(before)
        return agent

    def write_manifest(self) -> None:
        """Write how it is reached. Raises Unavailable when that fails, and InvalidValue."""
        try:
            access = access_for(self._hf.settings.group)
            foreign = self._hf.settings.agents.record_version == houmao_record.VERSION
            since = self._hf.store.now() if foreign else None
            data = as_json(self._manifest, houmao_since=since)
            ManifestFiles(access).write(self.manifest_path, data)
        except OSError as error:
            raise Unavailable(
                f"the manifest {self.manifest_path} cannot be written ({error.strerror}): "
                "name another folder with --session-root",
                outcome="none",
            ) from None

    def prepare(self) -> ToolLaunch:
        """Write what the tool's hooks need, and return how it is started. Outside of tmux the
        command is started as it is: nobody types into it, so nobody needs its reports.

        Raises InvalidValue and Unavailable.
        """
        if self.session_name is None:
            return ToolLaunch(self._command, {})
        return prepare_tool(self.profile, self._command, root=self.root)

    def clear_away(self) -> None:
        """Remove the folder, if it is one of its own making; one that the user named stays."""
        self._folders.remove(self.root, self.agent_id, self.generation_id)


def is_reserved(agent: Agent) -> bool:
    """Is it about to be started, so that its record names no process yet?"""
    return agent.holder is None and agent.lease_s == AGENT_RESERVED_S
