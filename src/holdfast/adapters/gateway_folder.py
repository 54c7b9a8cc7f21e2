"""A gateway's folder: what lies there for people and programs to read, and how it is written.

    queue.sqlite                  the queue, where it does not live in a shared database
    token                         the bearer token, for its owner alone
    run/current-instance.json     which process serves, and where
    run/vouched.json              the instance the last gateway vouched for in the registry
    run/agent-process.json        which process tree a program for one prompt runs in
    run/trees/                    the FIFO of that tree
    state.json                    the last status
    events.jsonl                  what happened, a line an event

Folders are 0700 and files 0600 whatever the umask, also where a group shares the store: whoever may
write here has the agent do what he likes. A file that is replaced is never seen half written.

The note of the process tree that a gateway runs, by which the next gateway finds it and ends it.

    {"pid": 4711, "start_ticks": 123456, "boot_id": "...", "tree": "1000-0123456789abcdef"}

A note without `tree` is of a version that ran programs in a process group alone.
"""

import contextlib
import json
import os
import select
import signal
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from holdfast.domains.gateway.records import Status
from holdfast.kernel.codec import Plain, to_json
from holdfast.kernel.errors import EnvironmentUnavailable, StoreUnavailable
from holdfast.kernel.holder import Liveness
from holdfast.processes.procfs import Procfs
from holdfast.system.access import (
    PRIVATE,
    Access,
    in_private_folder,
    make_folder,
    make_private_folder,
    open_file,
    open_file_in,
    read_private_file,
    remove_file,
    replace_file_in,
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


class Vouched(Plain, frozen=True, kw_only=True):
    """Which instance of the agent was there when a generation was first seen: what comes in its
    place is another agent.
    """

    schema_version: int = 1
    generation_id: str
    token: int
    instance_id: str


class GatewayFolder:
    """The folder of one agent's gateway."""

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
        self.state_path = root / "state.json"

    def prepare(self, around: Access = PRIVATE) -> None:
        """Make the folders; `around` says for whom those of all gateways are. Raises
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
        """Say who serves."""
        _replace(self._instance, msgspec.json.format(to_json(instance), indent=2))

    def remove_instance(self) -> None:
        """Say that nobody serves any more."""
        remove_file(self._instance)

    def instance(self) -> CurrentInstance | None:
        """Who serves, or served last and was killed; None when nobody does."""
        return _read(self._instance, CurrentInstance)

    def write_vouched(self, vouched: Vouched) -> None:
        """Remember which instance is vouched for."""
        _replace(self._vouched, msgspec.json.format(to_json(vouched), indent=2))

    def vouched(self) -> Vouched | None:
        """Which instance was vouched for last."""
        return _read(self._vouched, Vouched)

    def write_state(self, status: Status) -> None:
        """Keep the status for whoever looks."""
        _replace(self.state_path, msgspec.json.format(to_json(status), indent=2))

    def state(self) -> Status | None:
        """The last status that was kept."""
        return _read(self.state_path, Status)

    def append_events(self, lines: list[bytes], *, bytes_max: int) -> None:
        """Add lines to the events, all or none; when they are too many, the older ones move to
        `events.jsonl.1`.

        Raises OSError.
        """
        with contextlib.suppress(FileNotFoundError):
            if self.events.stat().st_size > bytes_max:
                os.replace(self.events, self.root / "events.jsonl.1")
        fd = in_private_folder(
            self.events,
            lambda folder, name: open_file_in(
                folder, name, os.O_WRONLY | os.O_APPEND, shown=self.events
            ),
        )
        try:
            _append_all(fd, b"".join(line + b"\n" for line in lines))
        finally:
            os.close(fd)

    def last_event(self) -> dict[str, Any] | None:
        """The last whole line of the events. What was half written behind it, by a process that was
        killed, is cut off.
        """
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


def _append_all(fd: int, data: bytes) -> None:
    size = os.fstat(fd).st_size
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError:
        # The disk is full. What comes again later must not stand behind half of itself.
        os.ftruncate(fd, size)
        raise


def _replace(path: Path, data: bytes) -> None:
    in_private_folder(path, lambda folder, name: replace_file_in(folder, name, data + b"\n"))


def _read(path: Path, model: type[T]) -> T | None:
    try:
        return msgspec.json.decode(read_private_file(path), type=model)
    except (OSError, msgspec.DecodeError):
        # Not there, or of another version: whoever asks does without.
        return None


_KILLED_S = 2.0
"""How long the kernel has to end what was killed; only a disk that does not answer takes longer."""


class ProcessNote:
    """A file that names one process tree and its first process."""

    def __init__(self, path: Path, processes: Procfs) -> None:
        self._path = path
        self._processes = processes

    def write(self, pid: int, tree: str) -> None:
        """Name a tree. Raises OSError and StoreUnavailable, and NotFound when its first process has
        ended already.
        """
        holder = self._processes.of(pid)
        said = {
            "pid": pid,
            "start_ticks": holder.start_ticks,
            "boot_id": holder.boot_id,
            "tree": tree,
        }
        make_folder(self._path.parent)
        in_private_folder(
            self._path,
            lambda folder, name: replace_file_in(folder, name, json.dumps(said).encode()),
        )

    def remove(self) -> None:
        """Forget a tree that has ended."""
        remove_file(self._path)

    def end_named(self, grace_s: float) -> list[int]:
        """End the tree that the note names, and return when it is gone. Processes that do not end
        are returned: then the note stays.
        """
        try:
            said = json.loads(read_private_file(self._path))
            pid, start_ticks, boot_id, tree = (
                int(said["pid"]),
                said["start_ticks"],
                said["boot_id"],
                said.get("tree"),
            )
        except (OSError, StoreUnavailable, ValueError, KeyError, TypeError, AttributeError):
            # There is none, or its writer was killed or had no space for it, before it let anything
            # begin.
            self.remove()
            return []
        left: list[int] = []
        if boot_id == self._processes.boot_id():
            left = (
                self._end_group(pid, start_ticks)
                if tree is None
                else self._end_tree(pid, str(tree), grace_s)
            )
        if not left:
            self.remove()
        return left

    def _end_tree(self, pid: int, tree: str, grace_s: float) -> list[int]:
        trees = self._processes.trees
        # A tree of which nothing can be seen, as where /proc hides some processes, cannot be waited
        # for.
        if not self._lives(tree) or trees.end(tree, grace_s) or not self._lives(tree):
            return []
        return [one.pid for one in trees.survivors(tree)] or [pid]

    def _lives(self, tree: str) -> bool:
        return self._processes.trees.liveness(tree, in_sight=True) is Liveness.ALIVE

    def _end_group(self, pid: int, start_ticks: object) -> list[int]:
        try:
            pidfd = os.pidfd_open(pid)
        except (OSError, OverflowError):
            return []
        try:
            # Only now does the descriptor stand for what is seen: the pid may have been given to
            # another before.
            seen = self._processes.sight(pid)
            if seen is None or seen.zombie or seen.start_ticks != start_ticks:
                return []
            signal_group(pid, signal.SIGKILL)
            return [] if _ended_within(pidfd, _KILLED_S) else [pid]
        finally:
            os.close(pidfd)


def signal_group(pid: int, number: int) -> None:
    """Signal the process group that a process leads, if any of it can be signalled."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _ended_within(pidfd: int, wait_s: float) -> bool:
    # Not by `select`, which takes no descriptor beyond the first thousand.
    waiting = select.poll()
    waiting.register(pidfd, select.POLLIN)
    return bool(waiting.poll(wait_s * 1000))
