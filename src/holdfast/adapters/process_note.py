"""The note of the process tree that a gateway runs, by which the next gateway finds it and ends it.

    {"pid": 4711, "start_ticks": 123456, "boot_id": "...", "tree": "1000-0123456789abcdef"}

A note without `tree` is of a version that ran programs in a process group alone.
"""

import contextlib
import json
import os
import select
import signal
from pathlib import Path

from holdfast.access import in_private_folder, make_folder, read_private_file, remove_file, replace_file_in
from holdfast.kernel.errors import StoreUnavailable
from holdfast.kernel.holder import Liveness
from holdfast.processes.procfs import Procfs

_KILLED_S = 2.0
"""How long the kernel has to end what was killed; only a disk that does not answer takes longer."""


class ProcessNote:
    """A file that names one process tree and its first process."""

    def __init__(self, path: Path, processes: Procfs) -> None:
        self._path = path
        self._processes = processes

    def write(self, pid: int, tree: str) -> None:
        """Name a tree. Raises OSError and StoreUnavailable, and NotFound when its first process has ended already."""
        holder = self._processes.of(pid)
        said = {"pid": pid, "start_ticks": holder.start_ticks, "boot_id": holder.boot_id, "tree": tree}
        make_folder(self._path.parent)
        in_private_folder(self._path, lambda folder, name: replace_file_in(folder, name, json.dumps(said).encode()))

    def remove(self) -> None:
        """Forget a tree that has ended."""
        remove_file(self._path)

    def end_named(self, grace_s: float) -> list[int]:
        """End the tree that the note names, and return when it is gone. Processes that do not end are returned: then the note
        stays."""
        try:
            said = json.loads(read_private_file(self._path))
            pid, start_ticks, boot_id, tree = int(said["pid"]), said["start_ticks"], said["boot_id"], said.get("tree")
        except (OSError, StoreUnavailable, ValueError, KeyError, TypeError, AttributeError):
            # There is none, or its writer was killed or had no space for it, before it let anything begin.
            self.remove()
            return []
        left: list[int] = []
        if boot_id == self._processes.boot_id():
            left = self._end_group(pid, start_ticks) if tree is None else self._end_tree(pid, str(tree), grace_s)
        if not left:
            self.remove()
        return left

    def _end_tree(self, pid: int, tree: str, grace_s: float) -> list[int]:
        trees = self._processes.trees
        # A tree of which nothing can be seen, as where /proc hides some processes, cannot be waited for.
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
            # Only now does the descriptor stand for what is seen: the pid may have been given to another before.
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
