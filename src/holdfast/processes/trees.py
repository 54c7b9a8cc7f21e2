"""The process trees of commands that run under claims on one store: is a tree alive, when does it
end, what is left of it.

The id of a tree names the user and the process (pid and start) that began it. That process is the
wrapper: if the guardian is killed, the orphans of the tree become the wrapper's children. So a tree
lives as long as its wrapper, unless it ended in order. The FIFO of a tree lies in a folder beside
the store, or in the user's state folder for a database.
"""

import os
import re
import stat
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from holdfast.kernel.errors import StoreUnavailable
from holdfast.kernel.holder import Liveness, Survivor
from holdfast.processes import cgroup, fifo, syscalls
from holdfast.processes.scan import MARK, Found, Marked, carries, descendants, scan, shows_own_pids
from holdfast.processes.scan import stat as process_stat
from holdfast.system.access import LACKING, Access, make_node, open_made_folder, unusable

# USER-PID-START-RANDOM. A part of a worker's tree has the token of an attempt behind it: see
# `kernel.holder.attempt_tree`.
_ID = r"[0-9]{1,10}-[0-9]{1,10}-[0-9]{1,20}-[0-9a-f]{16}(\.[0-9]{1,20})?\Z"
_SWEEP_AGE_S = 60.0
KILLED_S = 5.0
"""How long the kernel has to end what was killed. Only a disk that does not answer takes longer."""
_KILLED_AGAIN_S = 0.2


def new_id() -> str:
    """The id of a tree that this process begins."""
    me = process_stat("self")
    began = 0 if me is None else me.start_ticks
    return f"{os.geteuid()}-{os.getpid()}-{began}-{os.urandom(8).hex()}"


class Trees:
    """The trees of one store. `folder` returns None for a store in memory, whose trees are found by
    their mark alone. `folder` and `access` are called for the first tree.
    """

    def __init__(self, folder: Callable[[], Path | None], access: Callable[[], Access]) -> None:
        self._folder_of = folder
        self._access_of = access
        self._terminated_s: dict[str, float] = {}

    @cached_property
    def _folder(self) -> Path | None:
        return self._folder_of()

    def begin(self, tree: str) -> str | None:
        """Make the FIFO of a new tree; return its path. Raises StoreUnavailable."""
        if self._folder is None:
            return None
        path = self._folder / tree
        try:
            access = self._access_of()
            folder = open_made_folder(self._folder, access)
            try:
                make_node(folder, tree, stat.S_IFIFO, access)
            finally:
                os.close(folder)
            return os.fspath(path)
        except OSError as error:
            raise unusable(path, error) from None

    def liveness(self, tree: str, *, in_sight: bool) -> Liveness:
        """Does any process of a tree live? `in_sight` says that its pid namespace is this
        process's. Raises StoreUnavailable when descriptors or memory are exhausted, since then
        nothing is known about the tree.
        """
        if not re.match(_ID, tree):
            return Liveness.UNKNOWN
        kept = self._is_kept(tree)
        if kept is not None:
            return Liveness.ALIVE if kept else Liveness.DEAD
        if not in_sight:
            return Liveness.UNKNOWN
        if _live_wrapper(tree) is not None:
            return Liveness.ALIVE
        # Before the scan, which takes longer and sees less.
        groups = _groups(tree)
        if any(map(cgroup.processes, groups)):
            return Liveness.ALIVE
        found = self._scan(tree)
        if found.marked:
            return Liveness.ALIVE
        # Another user's processes, and those of a /proc that hides some, may live without being
        # seen.
        if found.hidden or os.geteuid() not in (0, _user(tree)) or process_stat(1) is None:
            return Liveness.UNKNOWN
        for group in groups:
            cgroup.remove(group)
        return Liveness.DEAD

    def kept(self, tree: str) -> int | None:
        """A descriptor of the tree's FIFO that hangs up when no process keeps the FIFO any more;
        None when none does, or there is no FIFO. The caller closes it.
        """
        fd = self._observe(tree) if re.match(_ID, tree) else None
        if fd is None or (not fifo.has_ended(fd) and fifo.is_kept(fd)):
            return fd
        os.close(fd)
        return None

    def watch(self, tree: str) -> int | None:
        """A descriptor that becomes readable, or hangs up, when the tree may have ended; None when
        there is nothing to wait for. The caller closes it.
        """
        fd = self.kept(tree)
        if fd is not None or not re.match(_ID, tree):
            return fd
        if self._is_kept(tree) is False:
            # The wrapper of a tree that ended may live for long, as when it is stopped.
            return None
        if (wrapper := _live_wrapper(tree)) is not None:
            try:
                pidfd = os.pidfd_open(wrapper)
            except OSError:
                return None
            # Checked after the opening: the kernel may give the pid to another process in between.
            if _live_wrapper(tree) is not None:
                return pidfd
            os.close(pidfd)
        # The oldest first: a loop in a shell begins a new process every moment, and the end of each
        # would wake the caller.
        pids = _grouped(tree) or [one.pid for one in self._scan(tree).marked]
        for pid in sorted(pids, key=_start_ticks):
            try:
                pidfd = os.pidfd_open(pid)
            except OSError:
                continue
            # The group is checked besides /proc: a process that keeps the claim must be waited for
            # also where /proc hides it.
            if pid in _grouped(tree) or carries(pid, tree):
                return pidfd
            os.close(pidfd)
        return None

    def survivors(self, tree: str) -> list[Survivor]:
        """The live processes of a tree that can be seen, without its guardian."""
        return [Survivor(one.pid, one.name) for one in self._members(tree) if not one.guardian]

    def ask(self, tree: str) -> float | None:
        """Send SIGTERM to every process of a tree, unless a process did so before; return how many
        seconds ago that was. None for a tree that this process cannot end: another user's, or one
        that it belongs to.
        """
        if not _may_end(tree):
            return None
        path = None if self._folder is None else os.fspath(self._folder / tree)
        if tree in self._terminated_s:
            return time.monotonic() - self._terminated_s[tree]
        if path is not None and (at := fifo.terminated_at(path)) is not None:
            return max(time.time() - at, 0.0)
        self._terminate(tree)
        self._terminated_s[tree] = time.monotonic()
        if path is not None:
            # After the signals: a process that dies before it sent them must not be recorded.
            fifo.note_termination(path)
        return 0.0

    def end(self, tree: str, grace_s: float) -> bool:
        """End a tree: SIGTERM to all of its processes, SIGKILL to those that are left after the
        grace. True when it is gone, False also for a tree that this process cannot end: see `ask`.
        """
        if not _may_end(tree):
            return False

        def belongs(pid: int) -> bool:
            return self._belongs(tree, pid)

        def stop(one: Marked) -> None:
            if not one.guardian:
                syscalls.stop(one.pid, belongs)

        guarded = self._terminate(tree)
        if self.wait_for_end(tree, grace_s + (KILLED_S if guarded else 0.0)):
            return True
        deadline_s = time.monotonic() + KILLED_S
        while time.monotonic() < deadline_s:
            for group in _groups(tree):
                cgroup.kill(group)
            # Each is stopped as soon as it is found: a stopped process forks no more.
            scan(tree, _user(tree), _began_ticks(tree), stop)
            syscalls.kill(lambda: [one.pid for one in self._members(tree)], belongs)
            if self.wait_for_end(tree, _KILLED_AGAIN_S):
                return True
            if self.liveness(tree, in_sight=True) is Liveness.UNKNOWN:
                # If a process is left, it cannot be seen, and so not be killed.
                return False
        return False

    def wait_for_end(self, tree: str, timeout_s: float | None) -> bool:
        """Sleep until a tree is gone, the time is up, or the tree cannot be seen any more. True
        when it is gone.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while (seen := self.liveness(tree, in_sight=True)) is not Liveness.DEAD:
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if seen is Liveness.UNKNOWN or (left_s is not None and left_s <= 0):
                return False
            # Without a descriptor it ended in between.
            if (fd := self.watch(tree)) is not None:
                syscalls.readable(fd, left_s)
                os.close(fd)
        return True

    def sweep(self, older_than_s: float = _SWEEP_AGE_S) -> int:
        """Remove the FIFOs of dead trees whose wrapper was killed; return their number. Also
        removes control groups whose guardian was killed.
        """
        cgroup.sweep(time.time() - older_than_s)
        if self._folder is None:
            return 0
        removed = 0
        try:
            names = [name for name in os.listdir(self._folder) if re.match(_ID, name)]
        except OSError:
            return 0
        for name in names:
            try:
                path = self._folder / name
                old = time.time() - path.stat().st_ctime >= older_than_s
                if old and self.liveness(name, in_sight=True) is Liveness.DEAD:
                    path.unlink()
                    removed += 1
            except (OSError, StoreUnavailable):
                # Too few descriptors, for one. The command that has begun must not suffer by that.
                continue
        return removed

    def _terminate(self, tree: str) -> bool:
        """Send SIGTERM to a tree's guardian, or to all of its processes if there is none; say
        whether there is a guardian.
        """
        members = self._members(tree)
        guardians = [one.pid for one in members if one.guardian]
        # A guardian sends SIGTERM, waits and kills by itself, and misses no process.
        syscalls.terminate(
            guardians or [one.pid for one in members], lambda pid: self._belongs(tree, pid)
        )
        return bool(guardians)

    def _is_kept(self, tree: str) -> bool | None:
        """True while a process keeps the FIFO, False when the tree ended in order; None when the
        FIFO says neither.
        """
        fd = self._observe(tree)
        if fd is None:
            return None
        try:
            if fifo.has_ended(fd):
                return False
            return True if fifo.is_kept(fd) else None
        finally:
            os.close(fd)

    def _observe(self, tree: str) -> int | None:
        if self._folder is None:
            return None
        try:
            return fifo.observe(os.fspath(self._folder / tree))
        except OSError as error:
            if error.errno in LACKING:
                # It says nothing about the tree.
                raise unusable(self._folder / tree, error) from None
            return None

    def _scan(self, tree: str) -> Found:
        try:
            return scan(tree, _user(tree), _began_ticks(tree))
        except OSError as error:
            if error.errno in LACKING:
                raise unusable("/proc", error) from None
            return Found([], hidden=True)

    def _members(self, tree: str) -> list[Marked]:
        """The processes with the mark, with the FIFO or in the control group, and all descendants
        of these.
        """
        found = {one.pid: one for one in self._scan(tree).marked} if re.match(_ID, tree) else {}

        def add(pids: list[int]) -> None:
            for pid in pids:
                if pid not in found:
                    seen = process_stat(pid)
                    found[pid] = Marked(pid, "" if seen is None else seen.name, guardian=False)

        add(self._heirs(tree) + _grouped(tree))
        add(descendants([*found]))
        found.pop(os.getpid(), None)
        return list(found.values())

    def _belongs(self, tree: str, pid: int) -> bool:
        """Has it, or a process above it, the mark or the FIFO, or is it in the control group?"""
        wanted = self._inode(tree)
        while pid > 1:
            if (
                cgroup.contains(tree, pid)
                or carries(pid, tree)
                or (wanted is not None and _inherited(pid, wanted))
            ):
                return True
            seen = process_stat(pid)
            pid = 0 if seen is None else seen.parent
        return False

    def _heirs(self, tree: str) -> list[int]:
        """The processes that inherited the FIFO."""
        wanted = self._inode(tree)
        if wanted is None:
            return []
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
        return [pid for pid in pids if _inherited(pid, wanted)]

    def _inode(self, tree: str) -> tuple[int, int] | None:
        """Device and inode of the FIFO; None without it, and where /proc is another namespace's."""
        if self._folder is None or not shows_own_pids():
            return None
        try:
            found = os.stat(self._folder / tree)
        except OSError:
            return None
        return found.st_dev, found.st_ino


class SharedTree:
    """The tree of a process that runs several commands: each command's tree is a part of it. A
    claim can name it before it is known which command will run. It lives as long as this process
    and its commands. Raises StoreUnavailable when its FIFO cannot be made.
    """

    def __init__(self, trees: Trees) -> None:
        self.id = new_id()
        self.path = trees.begin(self.id)
        trees.sweep()
        self.parts: set[str] = set()
        """The trees of commands that may have live processes."""

    def close(self) -> None:
        """Remove the FIFO. While a part still lives, the guardian of that part removes it."""
        if self.path is not None and not self.parts:
            fifo.remove(self.path)


def _groups(tree: str) -> list[str]:
    return cgroup.find(tree, _user(tree)) if re.match(_ID, tree) else []


def _grouped(tree: str) -> list[int]:
    return [pid for group in _groups(tree) for pid in cgroup.processes(group)]


def _user(tree: str) -> int:
    return int(tree.partition("-")[0])


def _began_ticks(tree: str) -> int:
    return int(tree.split("-")[2])


def _start_ticks(pid: int) -> int:
    seen = process_stat(pid)
    return 0 if seen is None else seen.start_ticks


def _live_wrapper(tree: str) -> int | None:
    """The pid of the process that began a tree, if it lives and its life proves that the tree does.
    It proves nothing to the wrapper itself, nor for the attempts of a worker, which end before the
    worker.
    """
    if "." in tree:
        return None
    _, pid, start_ticks, _ = tree.split("-")
    if int(pid) == os.getpid():
        return None
    seen = process_stat(int(pid))
    return None if seen is None or seen.ended or seen.start_ticks != int(start_ticks) else int(pid)


def _may_end(tree: str) -> bool:
    """Can this process end a tree? Not another user's, not one that this process itself belongs to,
    and none where /proc is another pid namespace's.
    """
    if not re.match(_ID, tree) or os.geteuid() not in (0, _user(tree)) or not shows_own_pids():
        return False
    return tree not in os.environ.get(MARK, "").split(":") and not cgroup.contains(
        tree, os.getpid()
    )


def _inherited(pid: int, wanted: tuple[int, int]) -> bool:
    """Has a process the FIFO as its tree does? Observers have it for reading alone."""
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            found = os.stat(f"/proc/{pid}/fd/{fd}")
            if (found.st_dev, found.st_ino) == wanted and _mode(pid, fd) != os.O_RDONLY:
                return True
    except OSError:
        return False
    return False


def _mode(pid: int, fd: str) -> int:
    with open(f"/proc/{pid}/fdinfo/{fd}", "rb", buffering=0) as file:
        flags = next(
            line.split()[1] for line in file.read(256).splitlines() if line.startswith(b"flags:")
        )
    return int(flags, 8) & os.O_ACCMODE
