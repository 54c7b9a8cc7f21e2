"""A gateway's folder: the files that people and programs read there, and how they are written.

    queue.sqlite                  the queue, where it does not live in a shared database
    token                         the bearer token, for its owner alone
    run/current-instance.json     which process serves, and where
    run/vouched.json              the instance that the last gateway vouched for in the registry
    run/detached.json             the generation whose gateway was stopped on request
    run/agent-process.json        the process tree of a program that the gateway runs
    run/trees/                    the FIFO of that tree
    run/conversation.json         the conversation of such a program, for the next one to resume
    run/program-end.json          how its last process ended
    state.json                    the last status
    events.jsonl                  one event a line

Folders are 0700 and files 0600 whatever the umask, also where a group shares the store: a user who
may write here controls the agent. A reader never sees a half-written file.
"""

import contextlib
import os
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from holdfast.adapters.durable_write import atomic_durable_write
from holdfast.domains.gateway.records import GatewayStatus, left_by
from holdfast.kernel.codec import Instant, Plain, to_json
from holdfast.kernel.errors import EnvironmentUnavailable
from holdfast.kernel.holder import Holder, Liveness, Processes, probe
from holdfast.system.access import (
    PRIVATE,
    Access,
    make_folder,
    make_private_folder,
    open_file,
    read_file,
    remove_file,
    replace_file,
)

T = TypeVar("T")

_TAIL_BYTES = 256 << 10


class CurrentInstance(Plain, frozen=True, kw_only=True):
    """The process that serves, and the agent's instance that it serves."""

    schema_version: int = 1
    pid: int
    host: str
    port: int
    managed_agent_instance_epoch: int
    managed_agent_instance_id: str | None = None
    process: Holder | None = None
    """The process of `pid`, as no later process with that pid is."""


class Vouched(Plain, frozen=True, kw_only=True):
    """The instance of the agent when its generation was first seen. A later instance is another
    agent.
    """

    schema_version: int = 1
    generation_id: str
    token: int
    instance_id: str


class Detached(Plain, frozen=True, kw_only=True):
    """The generation of the agent whose gateway somebody stopped. A host does not start it again
    before the next generation, or before somebody asks.
    """

    schema_version: int = 1
    generation_id: str


class Conversation(Plain, frozen=True, kw_only=True):
    """A conversation of an agent that the gateway runs, which outlives the agent's processes.
    `session_id` is the agent's own name of it; `prompted`: a prompt may have been sent in it.
    `program` and `folder` say whose it is.
    """

    schema_version: int = 1
    conversation_id: str
    session_id: str | None = None
    prompted: bool = False
    program: str
    folder: str | None = None


class ProgramEnd(Plain, frozen=True, kw_only=True):
    """How the last process of an agent ended that the gateway runs. `exit_status` is negative for a
    signal, and None where nobody saw it.
    """

    schema_version: int = 1
    ended_at: Instant
    why: str
    exit_status: int | None = None


class GatewayFolder:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.run = root / "run"
        self.token = root / "token"
        self.queue = root / "queue.sqlite"
        self.events = root / "events.jsonl"
        self.agent_process = self.run / "agent-process.json"
        self.trees = self.run / "trees"
        self._instance = self.run / "current-instance.json"
        self._vouched = self.run / "vouched.json"
        self._detached = self.run / "detached.json"
        self._conversation = self.run / "conversation.json"
        self._program_end = self.run / "program-end.json"
        self.state_path = root / "state.json"

    def prepare(self, around: Access = PRIVATE) -> None:
        """Make the folders; `around` is the access to the folder of all gateways. Raises
        EnvironmentUnavailable when that fails.
        """
        try:
            make_folder(self.root.parent, around)
            for folder in (self.root, self.run):
                make_private_folder(folder)
        except OSError as error:
            raise EnvironmentUnavailable(
                f"the gateway's folder {self.root} cannot be used: {error}", outcome="none"
            ) from None

    def write_instance(self, instance: CurrentInstance) -> None:
        _replace(self._instance, instance)

    def remove_instance(self) -> None:
        remove_file(self._instance)

    def instance(self) -> CurrentInstance | None:
        """The gateway that serves, or that served last and was killed; None when it has stopped."""
        return _read(self._instance, CurrentInstance)

    def write_vouched(self, vouched: Vouched) -> None:
        _replace(self._vouched, vouched)

    def vouched(self) -> Vouched | None:
        return _read(self._vouched, Vouched)

    def write_detached(self, detached: Detached) -> None:
        _replace(self._detached, detached)

    def remove_detached(self) -> None:
        remove_file(self._detached)

    def detached(self) -> Detached | None:
        return _read(self._detached, Detached)

    def write_conversation(self, conversation: Conversation) -> None:
        """Survives a power loss: without it the agent would begin another conversation."""
        atomic_durable_write(self._conversation, _encoded(conversation), access=PRIVATE)

    def conversation(self) -> Conversation | None:
        return _read(self._conversation, Conversation)

    def remove_conversation(self) -> None:
        remove_file(self._conversation)

    def write_program_end(self, end: ProgramEnd) -> None:
        _replace(self._program_end, end)

    def remove_program_end(self) -> None:
        remove_file(self._program_end)

    def program_end(self) -> ProgramEnd | None:
        return _read(self._program_end, ProgramEnd)

    def write_state(self, status: GatewayStatus) -> None:
        _replace(self.state_path, status)

    def state(self) -> GatewayStatus | None:
        return _read(self.state_path, GatewayStatus)

    def published(self, processes: Processes) -> GatewayStatus | None:
        """The last status or, when its gateway is dead, what remains true of it. It asks nobody: a
        gateway that hangs delays no reader, but its status may be old.
        """
        status = self.state()
        if status is None or status.gateway_health != "healthy":
            return status
        instance = self.instance()
        serves = instance is not None and (
            instance.process is None
            or probe(instance.process, processes, embedded=True) is not Liveness.DEAD
        )
        return status if serves else left_by(status)

    def append_events(self, lines: list[bytes], *, bytes_max: int) -> None:
        """Append lines to the events, all or none. A file above `bytes_max` is moved to
        `events.jsonl.1` first. Raises OSError.
        """
        with contextlib.suppress(FileNotFoundError):
            if self.events.stat().st_size > bytes_max:
                os.replace(self.events, self.root / "events.jsonl.1")
        fd = open_file(self.events, os.O_WRONLY | os.O_APPEND, private=True)
        try:
            size, data = os.fstat(fd).st_size, b"".join(line + b"\n" for line in lines)
            try:
                while data:
                    data = data[os.write(fd, data) :]
            except OSError:
                # The disk is full. The lines are written again later, and must not come behind a
                # part of themselves.
                os.ftruncate(fd, size)
                raise
        finally:
            os.close(fd)

    def last_event(self) -> dict[str, Any] | None:
        """The last complete event. A partial line behind it, from a killed process, is cut off."""
        for path in (self.events, self.root / "events.jsonl.1"):
            try:
                with open(open_file(path, os.O_RDWR, make=False), "r+b") as file:
                    size = file.seek(0, os.SEEK_END)
                    file.seek(max(size - _TAIL_BYTES, 0))
                    tail = file.read()
                    whole = tail[: tail.rfind(b"\n") + 1]
                    file.truncate(size - len(tail) + len(whole))
                for line in reversed(whole.splitlines()):
                    with contextlib.suppress(msgspec.DecodeError):
                        return msgspec.json.decode(line, type=dict[str, Any])
            except FileNotFoundError:
                continue
        return None


def _encoded(value: Plain) -> bytes:
    return msgspec.json.format(to_json(value), indent=2) + b"\n"


def _replace(path: Path, value: Plain) -> None:
    replace_file(path, _encoded(value), private=True)


def _read(path: Path, model: type[T]) -> T | None:
    try:
        return msgspec.json.decode(read_file(path, private=True), type=model)
    except (OSError, msgspec.DecodeError):
        # No file, or one of another version.
        return None
