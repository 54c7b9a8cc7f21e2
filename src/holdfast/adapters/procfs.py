"""Linux's process table, read from /proc: who this process is, and what is known of another.

`start_ticks` is field 22 of /proc/<pid>/stat, in clock ticks since boot. It is read after the last `)`, since a program may
put spaces and brackets into its own name.
"""

import os
from pathlib import Path
from typing import NamedTuple

from holdfast.kernel.errors import NotFound, StoreUnavailable
from holdfast.kernel.holder import Holder, Place, Sighting

_ZOMBIE_STATES = frozenset((b"Z", b"X", b"x"))
_STOPPED_STATES = frozenset((b"T", b"t"))
_STAT_BYTES_MAX = 4096
_ANCESTORS_MAX = 64
_PID_MAX = (1 << 31) - 1
"""A record may say more, or less than 1, which the kernel takes for a group of processes or for all."""


class TerminalUse(NamedTuple):
    """How a process is tied to a terminal: its start, its parent, its process group, the number of its controlling terminal (0
    when it has none), and the group that has that terminal's foreground."""

    start_ticks: int
    parent: int
    group: int
    terminal: int
    foreground: int

    @property
    def in_foreground(self) -> bool:
        """Does it get what is typed?"""
        return self.terminal != 0 and self.group == self.foreground


class Procfs:
    """The processes of this machine, as seen from this process's pid namespace.

    `host_id` replaces the machine's own id where one is configured. Raises StoreUnavailable at once where there is no /proc
    to read: Holdfast runs on Linux.
    """

    def __init__(self, *, host_id: str | None = None, root: Path = Path("/proc")) -> None:
        self._root = root
        self._host_id = host_id
        self._here: tuple[int, Place] | None = None

    def here(self) -> Place:
        # Kept by pid: a forked child may be in another pid namespace.
        if self._here is None or self._here[0] != os.getpid():
            self._here = (os.getpid(), self._look_around())
        return self._here[1]

    def boot_id(self) -> str:
        """The kernel's id of this boot."""
        return self._read("sys/kernel/random/boot_id")

    def sight(self, pid: int) -> Sighting | None:
        if not 0 < pid <= _PID_MAX:
            return None
        try:
            fields = self._stat(pid)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            # A /proc mounted with hidepid shows nothing of others' processes.
            return Sighting(start_ticks=None, zombie=False) if _exists(pid) else None
        # The first thread's state is shown as the process's. The others may go on without it, and one that was killed has its
        # files and locks until the last of them is gone.
        ended = fields[0] in _ZOMBIE_STATES and int(fields[17]) <= 1
        return Sighting(
            start_ticks=int(fields[19]), zombie=ended, stopped=fields[0] in _STOPPED_STATES, parent_pid=int(fields[1])
        )

    def terminal_use(self, pid: int) -> TerminalUse | None:
        """How a live process is tied to a terminal; None when there is no such process, or it is hidden from us."""
        if not 0 < pid <= _PID_MAX:
            return None
        try:
            fields = self._stat(pid)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return None
        if fields[0] in _ZOMBIE_STATES and int(fields[17]) <= 1:
            return None
        parent, group, terminal, foreground = int(fields[1]), int(fields[2]), int(fields[4]), int(fields[5])
        return TerminalUse(int(fields[19]), parent, group, terminal, foreground)

    def current(self, label: str = "") -> Holder:
        return self.of(os.getpid(), label)

    def of(self, pid: int, label: str = "") -> Holder:
        seen = self.sight(pid)
        if seen is None or seen.zombie or seen.start_ticks is None:
            raise NotFound(f"there is no live process {pid}: give the pid of a process that runs here", pid=pid)
        place = self.here()
        return Holder(
            host_id=place.host_id,
            boot_id=place.boot_id,
            pid_ns=place.pid_ns,
            pid=pid,
            start_ticks=seen.start_ticks,
            label=label,
        )

    def ancestors(self) -> list[Holder]:
        """The processes above this one, its parent first, as far as they can be seen."""
        found: list[Holder] = []
        pid = os.getppid()
        while pid > 0 and len(found) < _ANCESTORS_MAX:
            try:
                found.append(self.of(pid))
                pid = int(self._stat(pid)[1])
            except (NotFound, OSError):
                break
        return found

    def words(self, pid: int) -> bytes:
        """The words of a process's command line, each with a zero behind it; empty for one that is gone or hidden. A child
        has its parent's until it becomes another program."""
        try:
            return Path(self._root, str(pid), "cmdline").read_bytes()
        except OSError:
            return b""

    def catches(self, pid: int, signal_number: int) -> bool:
        """Has a process a handler for a signal, so that it is not simply ended by it? False when that cannot be seen."""
        try:
            lines = (self._root / str(pid) / "status").read_text(errors="replace").splitlines()
        except OSError:
            return False
        caught = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
        return bool(int(caught, 16) >> (signal_number - 1) & 1)

    def death(self, holder: Holder) -> int | None:
        if holder.place != self.here() or not 0 < holder.pid <= _PID_MAX:
            return None
        try:
            pidfd = os.pidfd_open(holder.pid)
        except (OSError, OverflowError):
            return None
        try:
            seen = self.sight(holder.pid)
        except OSError:
            # Too many files are open, and the first was one more.
            seen = None
        # Only now does the descriptor stand for what was seen: the pid may have been given to another in between.
        if seen is None or seen.zombie or seen.start_ticks != holder.start_ticks:
            os.close(pidfd)
            return None
        return pidfd

    def _stat(self, pid: int) -> list[bytes]:
        """The fields of /proc/PID/stat behind the program's name: the third of the kernel's count is the first here."""
        # Not by pathlib, which costs twice what the kernel needs: a waiter looks here once for each one ahead of it.
        fd = os.open(f"{self._root}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, _STAT_BYTES_MAX).rpartition(b")")[2].split()
        finally:
            os.close(fd)

    def _look_around(self) -> Place:
        host_id = self._host_id or self._machine_id()
        try:
            pid_ns = os.stat(self._root / "self/ns/pid").st_ino
        except OSError as error:
            raise _no_procfs(error) from None
        return Place(host_id=host_id, boot_id=self.boot_id(), pid_ns=pid_ns)

    def _machine_id(self) -> str:
        try:
            machine_id = Path("/etc/machine-id").read_text().strip()
        except OSError:
            machine_id = ""
        return machine_id or os.uname().nodename

    def _read(self, name: str) -> str:
        try:
            return (self._root / name).read_text().strip()
        except OSError as error:
            raise _no_procfs(error) from None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        # Another program's file may name any number.
        return False
    except PermissionError:
        return True
    return True


def _no_procfs(error: OSError) -> StoreUnavailable:
    return StoreUnavailable(f"cannot read {error.filename}: Holdfast needs Linux with /proc mounted", outcome="none")
