"""An agent that is about to run: its names, its tool, its folder, its manifest, its record, and
the note of how it was started.
"""

import os
import sys
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from holdfast.adapters.agent_environment import ENVIRONMENT_FILE, ENVIRONMENT_FOLDER
from holdfast.adapters.agent_files import GenerationFolders, ManifestFiles
from holdfast.adapters.agent_runs import AgentRunFiles
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
from holdfast.domains.agents.ports import TmuxAddress
from holdfast.domains.agents.records import canonical, id_of
from holdfast.domains.agents.runs import AgentConversation, AgentRun, LaunchChoices
from holdfast.kernel.agent_adapter import (
    AcpAdapter,
    AgentAdapter,
    AppServerAdapter,
    CommandAdapter,
    convert_settings,
)
from holdfast.kernel.errors import HoldfastError, InvalidValue, Unavailable
from holdfast.kernel.holder import Holder
from holdfast.kernel.limits import AGENT_RESERVED_S
from holdfast.runtime.configuration import agent_runs_folder, state_folder
from holdfast.runtime.connection import Holdfast
from holdfast.system.access import access_for

_PROGRAM = "holdfast.surfaces.cli.entry"
_ADAPTER_OPTIONS = {
    "interrupt": "--interrupt-key",
    "quiet_ms": "--quiet-ms",
    "ready_regex": "--ready-regex",
    "settle_s": "--settle",
    "answer_timeout_s": "--answer-timeout",
    "question_timeout_s": "--question-timeout",
}
"""The options of `agents run`, by the names of a tmux adapter's settings."""


def tool_program(tool: str) -> tuple[str, ...]:
    """The program of a tool, by its profile; empty for a tool of any program. Raises NotFound, and
    InvalidValue for a profile that is wrong.
    """
    return profile_named(tool, profiles_folder(os.environ)).programs[:1]


class Launch:
    """One generation of an agent before, while and after it runs.

    `tool` is the name of a profile; None: the command's name says it. `adapter` has the settings of
    a tmux adapter that were given, by their names in a manifest. The agent works in `folder`; None:
    the current one. `conversation` is that with which the tool goes on. Without `hooked` it runs
    already, and its tool's hooks report nothing. `own_session`: its tmux
    session is made for it, on the tmux server with the socket `server_path`, or the one around this
    process. `started_by` is the agent that starts it. `protocol` has the adapter's settings of an
    agent that its gateway runs, with its kind; such an agent has no tmux session.

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
        leftovers: str = "wait",
        folder: str | None = None,
        conversation: str | None = None,
        hooked: bool = True,
        own_session: bool = False,
        server_path: str | None = None,
        started_by: str | None = None,
        protocol: Mapping[str, Any] | None = None,
    ) -> None:
        self._hf = hf
        self._given_name = name
        self._lease_s = lease_s
        self._take_over = take_over
        self.session_name = session_name
        self.name = canonical(name, hf.settings.agents.prefix)
        self.agent_id = id_of(self.name) if agent_id is None else agent_id
        self.generation_id = str(uuid.uuid4()) if generation_id is None else generation_id
        for what, given in (("session_root", session_root), ("tool", tool)):
            if given is not None and not given.strip():
                raise InvalidValue(f"{what} is blank: name one, or leave it out", field=what)
        if session_name is None and protocol is None and adapter:
            raise InvalidValue(
                f"{' and '.join(sorted(adapter))}: only an agent in tmux has that. "
                "Use `holdfast agents start`, or name its --tmux-session",
                field="adapter",
            )
        self.folder = os.getcwd() if folder is None else folder
        self.server = None if server_path is None else TmuxAddress(socket_path=server_path)
        self._conversation = conversation
        self._hooked = hooked and session_name is not None
        self.own_session = own_session
        self._started_by = started_by
        runs = AgentRunFiles(lambda: agent_runs_folder(hf.settings))
        self._folders = GenerationFolders(lambda: state_folder(os.environ), runs)
        own_root = self._folders.of(self.agent_id, self.generation_id)
        self.root = os.path.abspath(session_root or own_root)
        self.manifest_path = os.path.join(self.root, FILE_NAME)
        profiles = profiles_folder(os.environ)
        self.profile = (
            profile_for(command, profiles) if tool is None else profile_named(tool, profiles)
        )
        self.tool = (os.path.basename(command[0]) or command[0]) if tool is None else tool
        self._command = command
        self._choices = LaunchChoices(
            tool=tool,
            session_root=None if self.root == own_root else self.root,
            agent_def_dir=agent_def_dir,
            lease_s=lease_s,
            leftovers=leftovers,
            adapter=dict(adapter),
        )
        self._socket_path = None if session_name is None else server_path or socket_path()
        self._manifest = Manifest(
            agent_id=self.agent_id,
            agent_name=self.name,
            generation_id=self.generation_id,
            backend=self._backend(session_name, protocol),
            tool=self.tool,
            working_directory=self.folder,
            agent_def_dir=agent_def_dir,
            tmux=None if session_name is None else TmuxHandle(session_name=session_name),
            adapter=self._adapter(adapter, protocol, hooked=hooked),
        )
        # Refused before anything is published.
        encode(self._manifest)

    def _backend(self, session_name: str | None, protocol: Mapping[str, Any] | None) -> str:
        if protocol is not None:
            return str(protocol["kind"])
        return "command" if session_name is None else "local_interactive"

    def _adapter(
        self, given: Mapping[str, Any], protocol: Mapping[str, Any] | None, *, hooked: bool
    ) -> AgentAdapter:
        if protocol is not None:
            places = {"command": self._command, "environment": self.environment_path}
            settings = {**protocol, **places, **given}
            if protocol["kind"] == "codex_app_server":
                return convert_settings(settings, AppServerAdapter)
            return convert_settings(settings, AcpAdapter)
        if self.session_name is None:
            return CommandAdapter(command=tuple(self._command))
        # The agent need not be in the tmux server that others find by themselves.
        return tmux_adapter(
            {
                "socket_path": self._socket_path,
                **tool_adapter(self.profile, self.root, hooked=hooked),
                **given,
            }
        )

    @property
    def environment_path(self) -> str:
        """The file with the variables of an agent that its gateway starts."""
        return os.path.join(self.root, ENVIRONMENT_FOLDER, ENVIRONMENT_FILE)

    def publish(self, holder: Holder | None, *, reserve: bool = True) -> Agent:
        """Publish it as the process that it will be; without one, with `reserve`, for as long as
        its start may take. Removes what a dead agent of this id left.
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
            lease_s=AGENT_RESERVED_S if holder is None and reserve else self._lease_s,
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

    def note(self, agent: Agent) -> None:
        """Keep how this agent, which was published, is started."""
        words = tuple(self._command)
        try:
            "".join(words).encode()
        except UnicodeEncodeError:
            # No JSON has such a word, and another one would be another command.
            words = ()
        resumed = self._conversation
        self._hf.agents.note_run(
            AgentRun(
                agent=agent,
                command=words,
                working_directory=self.folder,
                choices=self._choices,
                hooked=self._hooked,
                own_session=self.own_session,
                socket_path=self._socket_path,
                started_by=self._started_by,
                # Until the tool has reported it itself.
                conversation=None if resumed is None else AgentConversation(session_id=resumed),
            )
        )

    def pane_command(self, exit_status_to: str) -> list[str]:
        """The command of the agent's pane: the same agent, in the foreground. It reports its exit
        status by a FIFO.
        """
        chosen = self._choices
        options = {
            "--id": self.agent_id,
            "--generation": self.generation_id,
            "--tmux-session": self.session_name,
            "--session-root": self.root,
            "--tool": chosen.tool,
            "--agent-def-dir": chosen.agent_def_dir,
            "--lease": None if chosen.lease_s is None else repr(chosen.lease_s),
            "--leftovers": chosen.leftovers,
            "--exit-status-to": exit_status_to,
            "--resume": self._conversation,
            "--started-by": self._started_by,
        }
        words = [
            word
            for option, value in options.items()
            if value is not None
            for word in (option, value)
        ]
        words += [f"{_ADAPTER_OPTIONS[name]}={value}" for name, value in chosen.adapter.items()]
        run = [sys.executable, "-m", _PROGRAM, "agents", "run", self.name]
        return [*run, *words, "--", *self._command]

    def prepare(self) -> ToolLaunch:
        """Write what the tool's hooks need, and return how it is started. Outside of tmux the
        command is started as it is: nobody types into it, so nobody needs its reports.

        Raises InvalidValue and Unavailable.
        """
        if self.session_name is None:
            return ToolLaunch(self._command, {})
        return prepare_tool(
            self.profile, self._command, root=self.root, session_id=self._conversation
        )

    def clear_away(self) -> None:
        """Remove the folder, if it is one of its own making; one that the user named stays."""
        self._folders.remove(self.root, self.agent_id, self.generation_id)


def is_reserved(agent: Agent) -> bool:
    """Is it about to be started, so that its record names no process yet?"""
    in_tmux = agent.terminal is not None
    return agent.holder is None and in_tmux and agent.lease_s == AGENT_RESERVED_S
