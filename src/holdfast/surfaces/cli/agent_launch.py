"""An agent that is to run: its names, its folder, and the manifest in it."""

import os
import uuid
from contextlib import suppress
from typing import Annotated

import click

from holdfast.adapters.agent_files import GenerationFolders, ManifestFiles
from holdfast.adapters.tmux import socket_path
from holdfast.domains.agents import Agent, Manifest
from holdfast.domains.agents.manifest import (
    FILE_NAME,
    TmuxHandle,
    as_json,
    tmux_adapter,
)
from holdfast.domains.agents.records import canonical, id_of
from holdfast.kernel.agent_adapter import AgentAdapter, CommandAdapter
from holdfast.kernel.errors import HoldfastError, InvalidValue, Unavailable
from holdfast.kernel.holder import Holder
from holdfast.kernel.limits import AGENT_RESERVED_S
from holdfast.operations.agents import DefDir, IdOption, Lease, SessionRoot, TakeOver
from holdfast.operations.operation import Flag, Positional, Request
from holdfast.runtime.configuration import state_folder
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.cli.tmux_settings import TmuxSettings
from holdfast.system.access import access_for

words_argument = click.argument(
    "words", metavar="-- COMMAND [ARGUMENT]...", nargs=-1, type=click.UNPROCESSED
)


class LaunchAgent(Request, frozen=True, kw_only=True):
    """What `run` and `start` have in common."""

    name: Annotated[str, Positional()]
    agent_id: IdOption = None
    tool: Annotated[
        str | None,
        Flag(
            "--tool",
            metavar="NAME",
            help="Which tool the agent is, such as claude.  [default: the command's name]",
        ),
    ] = None
    session_root: SessionRoot = None
    agent_def_dir: DefDir = None
    lease_s: Lease = None
    take_over: TakeOver = False
    tmux: TmuxSettings = TmuxSettings()


def command_of(words: tuple[str, ...], verb: str) -> list[str]:
    """The command's words. Raises UsageError when there are none."""
    if not words:
        raise click.UsageError(f"no command is given: say `holdfast agents {verb} NAME -- COMMAND`")
    return list(words)


class Launch:
    """One generation of an agent before, while and after it runs.

    Raises InvalidName for impossible names, and InvalidValue for impossible adapter settings.
    """

    def __init__(
        self,
        hf: Holdfast,
        request: LaunchAgent,
        command: list[str],
        *,
        session_name: str | None,
        generation_id: str | None = None,
    ) -> None:
        self._hf = hf
        self._request = request
        self._command = command
        self._session_name = session_name
        self.name = canonical(request.name, hf.settings.agents.prefix)
        self.agent_id = id_of(self.name) if request.agent_id is None else request.agent_id
        self.generation_id = str(uuid.uuid4()) if generation_id is None else generation_id
        if request.session_root is not None and not request.session_root.strip():
            raise InvalidValue(
                "session_root is blank: name a folder, or leave it out", field="session_root"
            )
        self._adapter = self._make_adapter()
        self._folders = GenerationFolders(lambda: state_folder(os.environ))
        own_root = self._folders.of(self.agent_id, self.generation_id)
        self.root = os.path.abspath(request.session_root or own_root)
        self.manifest_path = os.path.join(self.root, FILE_NAME)
        program = command[0]
        given = request.tool
        self.tool = (os.path.basename(program) or program) if given is None else given
        self._backend = "command" if session_name is None else "local_interactive"

    def reserve(self) -> Agent:
        """Publish it without a process yet, for as long as it may take to begin.

        Removes what a dead one before it left.
        """
        return self._publish(None, AGENT_RESERVED_S)

    def publish(self, holder: Holder) -> Agent:
        """Publish it as the process that it will be. Removes what a dead one before it left."""
        return self._publish(holder, self._request.lease_s)

    def write_manifest(self) -> None:
        """Write down how it is reached. Raises Unavailable when that fails, and InvalidValue."""
        manifest = Manifest(
            agent_id=self.agent_id,
            agent_name=self.name,
            generation_id=self.generation_id,
            backend=self._backend,
            tool=self.tool,
            working_directory=os.getcwd(),
            agent_def_dir=self._request.agent_def_dir,
            tmux=None
            if self._session_name is None
            else TmuxHandle(session_name=self._session_name),
            adapter=self._adapter,
        )
        try:
            access = access_for(self._hf.settings.group)
            ManifestFiles(access).write(self.manifest_path, as_json(manifest))
        except OSError as error:
            raise Unavailable(
                f"the manifest {self.manifest_path} cannot be written ({error.strerror}): "
                "name another folder with --session-root",
                outcome="none",
            ) from None

    def clear_away(self) -> None:
        """Remove the folder, if it is one of its own making; one that the user named stays."""
        self._folders.remove(self.root, self.agent_id, self.generation_id)

    def _publish(self, holder: Holder | None, lease_s: float | None) -> Agent:
        before = None
        with suppress(HoldfastError):
            before = self._hf.agents.get(self.agent_id)
        agent = self._hf.agents.publish(
            self._request.name,
            backend=self._backend,
            tool=self.tool,
            manifest_path=self.manifest_path,
            session_name=self._session_name,
            session_root=self.root,
            agent_def_dir=self._request.agent_def_dir,
            holder=holder,
            agent_id=self.agent_id,
            generation_id=self.generation_id,
            lease_s=lease_s,
            take_over=self._request.take_over,
        )
        if before is not None and before.generation_id != agent.generation_id:
            self._hf.agents.clear_after(before)
        return agent

    def _make_adapter(self) -> AgentAdapter:
        settings = self._request.tmux.in_manifest()
        if self._session_name is not None:
            # It need not be the tmux server that others find by themselves.
            return tmux_adapter({"socket_path": socket_path(), **settings})
        if settings:
            raise InvalidValue(
                f"{' and '.join(sorted(settings))}: only an agent in tmux has that. "
                "Use `holdfast agents start`, or name its --tmux-session",
                field="adapter",
            )
        return CommandAdapter(command=tuple(self._command))
