"""A note of a process that was begun here, by which the next one to come finds and ends it."""

import contextlib
import json
import os
import select
import signal
from pathlib import Path

from holdfast.access import in_private_folder, make_folder, read_private_file, remove_file, replace_file_in
from holdfast.kernel.errors import StoreUnavailable
from holdfast.processes.procfs import Procfs

_KILLED_S = 2.0
"""How long the kernel has to end what it was told to kill; only a disk that does not answer takes longer."""


class ProcessNote:
    """A file that names one process, the leader of its group, so that no other that has its number later is taken for it."""

    def __init__(self, path: Path, processes: Procfs) -> None:
        self._path = path
        self._processes = processes

    def write(self, pid: int) -> None:
        """Name it. Raises OSError, and NotFound when it has ended already."""
        holder = self._processes.of(pid)
        words = json.dumps({"pid": pid, "start_ticks": holder.start_ticks, "boot_id": holder.boot_id})
        make_folder(self._path.parent)
        in_private_folder(self._path, lambda folder, name: replace_file_in(folder, name, words.encode()))

    def remove(self) -> None:
        """It has ended."""
        remove_file(self._path)

    def end_named(self) -> int | None:
        """Kill the group of the process that is named, and see it end. Its number, if it lives all the same: then the note
        stays."""
        named = self._named()
        if named is not None:
            pid, pidfd = named
            try:
                signal_group(pid, signal.SIGKILL)
                if not ended_within(pidfd, _KILLED_S):
                    return pid
            finally:
                os.close(pidfd)
        self.remove()
        return None

    def _named(self) -> tuple[int, int] | None:
        """The process that is named and a descriptor of it, if it lives. A note that is not whole names nobody: its writer was
        killed, or had no space for it, before it had let anything begin."""
        try:
            said = json.loads(read_private_file(self._path))
            pid, start_ticks, boot_id = int(said["pid"]), said["start_ticks"], said["boot_id"]
            pidfd = os.pidfd_open(pid)
        except (OSError, StoreUnavailable, ValueError, KeyError, TypeError, OverflowError):
            return None
        # Only now does the descriptor stand for what is seen: the number may have been given to another before.
        seen = self._processes.sight(pid)
        if seen is not None and not seen.zombie and seen.start_ticks == start_ticks and boot_id == self._processes.boot_id():
            return pid, pidfd
        os.close(pidfd)
        return None


def ended_within(pidfd: int, wait_s: float) -> bool:
    """Has a process ended, by now or before so much time has passed?"""
    # Not by `select`, which takes no descriptor beyond the first thousand.
    waiting = select.poll()
    waiting.register(pidfd, select.POLLIN)
    return bool(waiting.poll(wait_s * 1000))


def signal_group(pid: int, number: int) -> None:
    """Signal the group that a process leads, if there is anybody who can be."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
