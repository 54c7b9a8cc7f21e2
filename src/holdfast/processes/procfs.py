"""Linux's process table, read from /proc: who this process is, and what is known of another.

`start_ticks` is field 22 of /proc/<pid>/stat, in clock ticks since boot. It is read after the last
`)`, since a program may put spaces and brackets into its own name.

Two things can make /proc wrong about a pid or a start, and both are checked once in each process.
In a pid namespace that kept its parent's /proc, /proc/<pid> is another process: then a pidfd
translates the pid. In a time namespace the kernel adds the reader's own offset to every start: it
is subtracted again, so that all namespaces of a machine agree.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import UNSET, Struct, UnsetType

from holdfast.kernel.errors import EnvironmentUnavailable, NotFound, Unavailable
from holdfast.kernel.holder import Holder, Liveness, Place, ProcessStat, Survivor
from holdfast.processes.scan import shows_own_pids
from holdfast.system.access import LACKING, PRIVATE, Access, unusable

if TYPE_CHECKING:
    from holdfast.processes.trees import Trees

_ZOMBIE_STATES = frozenset((b"Z", b"X", b"x"))
_STOPPED_STATES = frozenset((b"T", b"t"))
_STAT_BYTES_MAX = 4096
_ANCESTORS_MAX = 64
# A record may name more, or less than 1, which system calls take for a process group or for all.
_PID_MAX = (1 << 31) - 1
_NS_A_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
# The inode of the machine's own time namespace. It is the same on every kernel and has no offset.
_INITIAL_TIME_NS = 0xEFFFFFFA


class View(Struct, frozen=True):
    """How this process sees /proc."""

    place: Place
    own: bool
    """/proc shows this process's own pid namespace, so its numbers are those of system calls."""
    shift_ticks: int
    """How much later than their true value /proc shows all starts to this process."""


class TerminalUse(Struct, frozen=True):
    """How a process is tied to a terminal. `terminal` is the number of its controlling terminal, 0
    for none, and `foreground` the process group in that terminal's foreground.
    """

    start_ticks: int
    parent: int
    group: int
    terminal: int
    foreground: int

    @property
    def in_foreground(self) -> bool:
        """Does it read what is typed?"""
        return self.terminal != 0 and self.group == self.foreground


class Procfs:
    """The processes of this machine, as seen from this process's pid namespace.

    `host_id` replaces the machine's own id where one is configured. Every method raises
    EnvironmentUnavailable where there is no /proc to read: Holdfast runs on Linux.
    """

    def __init__(self, *, host_id: str | None = None, root: Path = Path("/proc")) -> None:
        self._root = root
        self._host_id = host_id
        self._boots: list[Callable[[str], bool]] = []
        self._trees: Trees | None = None
        self.find_trees(lambda: None, lambda: PRIVATE)
        self._seen: tuple[int, View] | None = None

    @property
    def trees(self) -> "Trees":
        """The process trees of commands that run under claims."""
        if self._trees is None:
            # Loaded here: most programs meet no such tree.
            from holdfast.processes.trees import Trees

            self._trees = Trees(*self._trees_of)
        return self._trees

    def find_trees(self, folder: Callable[[], Path | None], access: Callable[[], Access]) -> None:
        """Say where the trees are. Both are called for the first one: see `Trees`."""
        self._trees_of = folder, access
        self._trees = None

    def here(self) -> Place:
        return self._view().place

    def _view(self) -> View:
        # Kept by pid: a forked child may be in other namespaces.
        pid = os.getpid()
        if self._seen is None or self._seen[0] != pid:
            self._seen = (pid, self._make_view())
        return self._seen[1]

    def boot_id(self) -> str:
        return self._read("sys/kernel/random/boot_id")

    def watch_boots(self, in_use: Callable[[str], bool]) -> None:
        """From here on, ask a store too whether processes that use it have a boot id."""
        self._boots.append(in_use)

    def boot_lives(self, boot_id: str) -> bool:
        return any(in_use(boot_id) for in_use in self._boots)

    def process_stat(self, pid: int) -> ProcessStat | None:
        if not 0 < pid <= _PID_MAX:
            return None
        view = self._view()
        try:
            fields = self._stat(pid, view)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            # A /proc mounted with hidepid shows no processes of other users.
            return ProcessStat(start_ticks=None, zombie=False) if _exists(pid) else None
        # The first thread's state is shown as the process's. The others may go on without it, and
        # a killed process has its files and locks until its last thread is gone.
        ended = fields[0] in _ZOMBIE_STATES and int(fields[17]) <= 1
        return ProcessStat(
            start_ticks=int(fields[19]) - view.shift_ticks,
            zombie=ended,
            stopped=fields[0] in _STOPPED_STATES,
            # In another namespace's /proc it is a number of that namespace.
            parent_pid=int(fields[1]) if view.own else 0,
        )

    def terminal_use(self, pid: int) -> TerminalUse | None:
        """None when there is no such live process, or it is hidden from us."""
        view = self._view()
        if not 0 < pid <= _PID_MAX or not view.own:
            return None
        try:
            fields = self._stat(pid, view)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return None
        if fields[0] in _ZOMBIE_STATES and int(fields[17]) <= 1:
            return None
        return TerminalUse(
            start_ticks=int(fields[19]) - view.shift_ticks,
            parent=int(fields[1]),
            group=int(fields[2]),
            terminal=int(fields[4]),
            foreground=int(fields[5]),
        )

    def tree_liveness(self, tree: str, *, in_sight: bool) -> Liveness:
        return self.trees.liveness(tree, in_sight=in_sight and self._view().own)

    def watch_tree(self, tree: str) -> int | None:
        return self.trees.watch(tree)

    def terminate_tree(self, tree: str) -> float | None:
        return self.trees.ask(tree)

    def end_tree(self, tree: str, grace_s: float) -> bool:
        return self.trees.end(tree, grace_s)

    def survivors(self, tree: str) -> list[Survivor]:
        return self.trees.survivors(tree)

    def current(self, label: str = "") -> Holder:
        return self.of(os.getpid(), label)

    def of(self, pid: int, label: str = "", tree: str | UnsetType = UNSET) -> Holder:
        seen = self.process_stat(pid)
        if seen is None or seen.zombie or seen.start_ticks is None:
            raise NotFound(
                f"there is no live process {pid}: give the pid of a process that runs here", pid=pid
            )
        place = self._view().place
        return Holder(
            host_id=place.host_id,
            boot_id=place.boot_id,
            pid_ns=place.pid_ns,
            pid=pid,
            start_ticks=seen.start_ticks,
            label=label,
            tree=tree,
        )

    def ancestors(self) -> list[Holder]:
        """The processes above this one, its parent first, as far as they can be seen."""
        found: list[Holder] = []
        pid = os.getppid()
        while pid > 0 and len(found) < _ANCESTORS_MAX:
            try:
                found.append(self.of(pid))
                seen = self.process_stat(pid)
            except (NotFound, OSError, Unavailable):
                break
            pid = 0 if seen is None else seen.parent_pid
        return found

    def words(self, pid: int) -> bytes:
        """The command line of a process, with a zero byte after each word; empty for one that is
        gone or hidden. A child has its parent's until it executes another program.
        """
        try:
            return Path(self._folder(pid), "cmdline").read_bytes()
        except OSError:
            return b""

    def catches(self, pid: int, signal_number: int) -> bool:
        """Has a process a handler for a signal? False when that cannot be seen."""
        return self._has_signal(pid, "SigCgt:", signal_number)

    def ignores(self, pid: int, signal_number: int) -> bool:
        """Does a process ignore a signal? False when that cannot be seen."""
        return self._has_signal(pid, "SigIgn:", signal_number)

    def _has_signal(self, pid: int, field: str, signal_number: int) -> bool:
        try:
            lines = Path(self._folder(pid), "status").read_text(errors="replace").splitlines()
        except OSError:
            return False
        signals = next((line.split()[1] for line in lines if line.startswith(field)), "0")
        return bool(int(signals, 16) >> (signal_number - 1) & 1)

    def death(self, holder: Holder) -> int | None:
        if (
            holder.tree
            and holder.place[:2] == self.here()[:2]
            and (fd := self.trees.kept(holder.tree)) is not None
        ):
            return fd
        if holder.place != self.here() or not 0 < holder.pid <= _PID_MAX:
            return None
        first = self._death_of_process(holder)
        return (
            self.trees.watch(holder.tree)
            if first is None and holder.tree and self._view().own
            else first
        )

    def _death_of_process(self, holder: Holder) -> int | None:
        try:
            pidfd = os.pidfd_open(holder.pid)
        except (OSError, OverflowError):
            return None
        try:
            seen = self.process_stat(holder.pid)
        except (OSError, Unavailable):
            # Too many files are open.
            seen = None
        except BaseException:
            os.close(pidfd)
            raise
        # The check comes after the opening: the kernel may give the pid to another process in
        # between.
        if seen is None or seen.zombie or seen.start_ticks != holder.start_ticks:
            os.close(pidfd)
            return None
        return pidfd

    def _stat(self, pid: int, view: View) -> list[bytes]:
        """The fields of /proc/PID/stat behind the program's name: number 3 of proc(5) is 0 here."""
        # Not by pathlib, which costs twice what the kernel needs: a waiter comes here once for each
        # waiter ahead of it.
        try:
            shown = pid if view.own else self._shown_pid(pid)
            fd = os.open(f"{self._root}/{shown}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in LACKING:
                # It says nothing about that process.
                raise unusable(error.filename, error) from None
            raise
        try:
            return os.read(fd, _STAT_BYTES_MAX).rpartition(b")")[2].split()
        finally:
            os.close(fd)

    def _folder(self, pid: int) -> str:
        """Where /proc shows a process. Raises ProcessLookupError when there is none,
        PermissionError when it is not shown.
        """
        return f"{self._root}/{pid if self._view().own else self._shown_pid(pid)}"

    def _shown_pid(self, pid: int) -> int:
        """The pid of a process in the namespace of /proc, which the kernel shows for a pidfd."""
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            raise
        except OSError as error:
            raise PermissionError(error.errno, "pidfd_open") from None
        try:
            info = Path(self._root, "self/fdinfo", str(pidfd)).read_text()
        finally:
            os.close(pidfd)
        shown = next((int(line[4:]) for line in info.splitlines() if line.startswith("Pid:")), 0)
        if shown < 0:
            raise ProcessLookupError(pid)
        if shown == 0:
            raise PermissionError(pid)
        return shown

    def _make_view(self) -> View:
        host_id = self._host_id or self._machine_id()
        try:
            pid_ns = os.stat(self._root / "self/ns/pid").st_ino
        except OSError as error:
            raise _no_procfs(error) from None
        offset_ns = self._start_offset_ns()
        if offset_ns % _NS_A_TICK:
            # The kernel rounds to ticks after it adds the offset: only a reader in the same time
            # namespace gets the same number.
            from zlib import crc32

            pid_ns = crc32(f"{pid_ns} {self._time_ns()}".encode())
        place = Place(host_id=host_id, boot_id=self.boot_id(), pid_ns=pid_ns)
        return View(place, shows_own_pids(), offset_ns // _NS_A_TICK)

    def _time_ns(self, which: str = "time") -> int:
        try:
            return os.stat(self._root / "self/ns" / which).st_ino
        except OSError:
            # A kernel without time namespaces.
            return _INITIAL_TIME_NS

    def _start_offset_ns(self) -> int:
        """What the kernel adds to every start that this process reads."""
        mine = self._time_ns()
        if mine == _INITIAL_TIME_NS:
            return 0
        if mine != self._time_ns("time_for_children"):
            # The kernel shows the offsets of the namespace that children will be in.
            raise EnvironmentUnavailable(
                "this process made a time namespace for its children, so its own clock offset is "
                "unknown: use Holdfast in a child process",
                outcome="none",
            )
        for line in self._read("self/timens_offsets").splitlines():
            name, seconds, nanoseconds = line.split()
            if name in ("boottime", "7"):
                return int(seconds) * 1_000_000_000 + int(nanoseconds)
        return 0

    def _machine_id(self) -> str:
        try:
            machine_id = Path("/etc/machine-id").read_text().strip()
        except OSError as error:
            if error.errno in LACKING:
                # Under another name this machine would not know its own processes.
                raise unusable("/etc/machine-id", error) from None
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
        # A file of another program may name any number.
        return False
    except PermissionError:
        return True
    return True


def _no_procfs(error: OSError) -> Unavailable:
    if error.errno in LACKING:
        return unusable(error.filename, error)
    return EnvironmentUnavailable(
        f"cannot read {error.filename}: Holdfast needs Linux with /proc mounted", outcome="none"
    )
