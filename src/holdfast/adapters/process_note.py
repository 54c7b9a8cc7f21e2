"""The note of the process tree that a gateway runs. By it the next gateway finds and ends the tree.

    {"pid": 4711, "start_ticks": 123456, "boot_id": "...", "tree": "1000-0123456789abcdef"}

A note without `tree` was written by a version that ran programs in a process group alone.
"""

import contextlib
import json
import os
import select
import signal
from pathlib import Path

from holdfast.kernel.errors import StoreUnavailable
from holdfast.kernel.holder import Liveness
from holdfast.processes.procfs import Procfs
from holdfast.system.access import make_folder, read_file, remove_file, replace_file

_KILLED_S = 2.0
"""How long the kernel may take to end a killed process; only a disk that hangs takes longer."""


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
        document = {
            "pid": pid,
            "start_ticks": holder.start_ticks,
            "boot_id": holder.boot_id,
            "tree": tree,
        }
        make_folder(self._path.parent)
        replace_file(self._path, json.dumps(document).encode(), private=True)

    def remove(self) -> None:
        remove_file(self._path)

    def end_named(self, grace_s: float) -> list[int]:
        """End the tree in the note and wait until it is gone. Returns the pids that do not end:
        then the note stays.
        """
        try:
            document = json.loads(read_file(self._path, private=True))
            pid, tree = int(document["pid"]), document.get("tree")
            start_ticks, boot_id = document["start_ticks"], document["boot_id"]
        except (OSError, StoreUnavailable, ValueError, KeyError, TypeError, AttributeError):
            # There is no note, or its writer was killed or had no disk space. A program begins only
            # after its note is written, so none runs.
            self.remove()
            return []
        left: list[int] = []
        if boot_id == self._processes.boot_id():
            if tree is None:
                left = self._end_group(pid, start_ticks)
            else:
                left = self._end_tree(pid, str(tree), grace_s)
        if not left:
            self.remove()
        return left

    def _end_tree(self, pid: int, tree: str, grace_s: float) -> list[int]:
        trees = self._processes.trees

        def is_alive() -> bool:
            return trees.liveness(tree, in_sight=True) is Liveness.ALIVE

        # A tree that cannot be seen, as where /proc hides other users' processes, cannot be waited
        # for.
        if not is_alive() or trees.end(tree, grace_s) or not is_alive():
            return []
        return [one.pid for one in trees.survivors(tree)] or [pid]

    def _end_group(self, pid: int, start_ticks: object) -> list[int]:
        try:
            pidfd = os.pidfd_open(pid)
        except (OSError, OverflowError):
            return []
        try:
            # Checked after the pidfd was opened: before that, another process may have got the
            # pid.
            seen = self._processes.sight(pid)
            if seen is None or seen.zombie or seen.start_ticks != start_ticks:
                return []
            signal_group(pid, signal.SIGKILL)
            # Not `select`, which takes no descriptor above 1023.
            waiting = select.poll()
            waiting.register(pidfd, select.POLLIN)
            return [] if waiting.poll(_KILLED_S * 1000) else [pid]
        finally:
            os.close(pidfd)


def signal_group(pid: int, number: int) -> None:
    """Signal the process group that a process leads, if any of it can be signalled."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
