"""An agent that is to run: its names, its folder, and the manifest in it."""

import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import click

from holdfast.adapters.agent_files import GenerationFolders, ManifestFiles
from holdfast.adapters.tmux import socket_path
from holdfast.domains.agents import Agent, Manifest
from holdfast.domains.agents.manifest import (
    FILE_NAME,
    Adapter,
    CommandAdapter,
    TmuxHandle,
    as_json,
    tmux_adapter,
)
from holdfast.domains.agents.records import canonical, id_of
from holdfast.kernel.errors import HoldfastError, InvalidValue, Unavailable
from holdfast.kernel.holder import Holder
from holdfast.kernel.limits import AGENT_RESERVED_S
from holdfast.runtime.configuration import state_folder
from holdfast.runtime.connection import Holdfast
from holdfast.system.access import access_for


class Wish(NamedTuple):
    """What the user said of the agent."""

    name: str
    command: list[str]
    agent_id: str | None
    generation_id: str | None
    tool: str | None
    session_name: str | None
    session_root: str | None
    agent_def_dir: str | None
    lease_s: float | None
    take_over: bool
    adapter: Mapping[str, Any]
    """How it is reached in tmux, as far as that was said; as a manifest calls it."""
    leftovers: str
    """What becomes of processes that the command leaves."""


def command_of(words: tuple[str, ...], verb: str) -> list[str]:
    """The command's words. Raises UsageError when there are none."""
    if not words:
        raise click.UsageError(f"no command is given: say `holdfast agents {verb} NAME -- COMMAND`")
    return list(words)


class Launch:
    """One generation of an agent before, while and after it runs. Raises InvalidName for names that
    cannot be, and InvalidValue for settings of its adapter that cannot be.
    """

    def __init__(self, hf: Holdfast, wish: Wish) -> None:
        self._hf = hf
        self._wish = wish
        self.name = canonical(wish.name, hf.settings.agents.prefix)
        self.agent_id = id_of(self.name) if wish.agent_id is None else wish.agent_id
        self.generation_id = str(uuid.uuid4()) if wish.generation_id is None else wish.generation_id
        if wish.session_root is not None and not wish.session_root.strip():
            raise InvalidValue(
                "session_root is blank: name a folder, or leave it out", field="session_root"
            )
        self._adapter = _adapter(wish)
        self._folders = GenerationFolders(lambda: state_folder(os.environ))
        self.root = os.path.abspath(
            wish.session_root or self._folders.of(self.agent_id, self.generation_id)
        )

    @property
    def tool(self) -> str:
        """What it is, in a word."""
        command = self._wish.command[0]
        return (
            (os.path.basename(command) or command) if self._wish.tool is None else self._wish.tool
        )

    @property
    def manifest_path(self) -> str:
        """Where its manifest is."""
        return os.path.join(self.root, FILE_NAME)

    def reserve(self, *, take_over: bool) -> Agent:
        """Publish it without a process yet, for as long as it may take to begin. What a dead one
        before it left goes.
        """
        return self._publish(None, AGENT_RESERVED_S, take_over=take_over)

    def publish(self, holder: Holder, *, take_over: bool) -> Agent:
        """Publish it as the process that it will be. What a dead one before it left goes."""
        return self._publish(holder, self._wish.lease_s, take_over=take_over)

    def write_manifest(self) -> None:
        """Write down how it is reached. Raises Unavailable when that cannot be done, InvalidValue
        for what cannot be said.
        """
        wish = self._wish
        manifest = Manifest(
            agent_id=self.agent_id,
            agent_name=self.name,
            generation_id=self.generation_id,
            backend=self._backend,
            tool=self.tool,
            working_directory=os.getcwd(),
            agent_def_dir=wish.agent_def_dir,
            tmux=TmuxHandle(session_name=wish.session_name)
            if wish.session_name is not None
            else None,
            adapter=self._adapter,
        )
        try:
            ManifestFiles(access_for(self._hf.settings.group)).write(
                self.manifest_path, as_json(manifest)
            )
        except OSError as error:
            raise Unavailable(
                f"the manifest {self.manifest_path} cannot be written ({error.strerror}): name "
                "another folder with "
                "--session-root",
                outcome="none",
            ) from None

    def clear_away(self) -> None:
        """Remove the folder, if it is one of its own making; one that the user named stays."""
        self._folders.remove(self.root, self.agent_id, self.generation_id)

    def _publish(self, holder: Holder | None, lease_s: float | None, *, take_over: bool) -> Agent:
        wish = self._wish
        before = self._present()
        agent = self._hf.agents.publish(
            wish.name,
            backend=self._backend,
            tool=self.tool,
            manifest_path=self.manifest_path,
            session_name=wish.session_name,
            session_root=self.root,
            agent_def_dir=wish.agent_def_dir,
            holder=holder,
            agent_id=self.agent_id,
            generation_id=self.generation_id,
            lease_s=lease_s,
            take_over=take_over,
        )
        if before is not None and before.generation_id != agent.generation_id:
            self._hf.agents.clear_after(before)
        return agent

    def _present(self) -> Agent | None:
        with suppress(HoldfastError):
            return self._hf.agents.get(self.agent_id)
        return None

    @property
    def _backend(self) -> str:
        return "command" if self._wish.session_name is None else "local_interactive"


def _adapter(wish: Wish) -> Adapter:
    if wish.session_name is not None:
        # It need not be the server that others find by themselves.
        return tmux_adapter({"socket_path": socket_path(), **wish.adapter})
    if wish.adapter:
        raise InvalidValue(
            f"{' and '.join(sorted(wish.adapter))}: only an agent in tmux has that. Use `holdfast "
            "agents start`, or name its "
            "--tmux-session",
            field="adapter",
        )
    return CommandAdapter(command=tuple(wish.command))
