"""The process trees of commands that run under claims on one store: is a tree alive, when does it
end, what is left of it.

The id of a tree tells the user and the process, by its pid and start, that began it: the wrapper,
which has the orphans of the tree as children if the guardian is killed. So a tree lives as long as
its wrapper, unless it ended in order. Its FIFO lies in a folder beside the store, or in the user's
state folder for a database.
"""

import os
import re
import select
import signal
import stat
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from holdfast.kernel.holder import Liveness, Survivor
from holdfast.processes import cgroup, fifo
from holdfast.processes import kill as killing
from holdfast.processes.scan import MARK, Found, Marked, carries, descendants, scan, shows_own_pids
from holdfast.processes.scan import stat as process_stat
from holdfast.system.access import LACKING, Access, make_folder, make_node, unusable

_ID = re.compile(
    r"(?P<user>[0-9]{1,10})-(?P<pid>[0-9]{1,10})-(?P<start>[0-9]{1,20})-[0-9a-f]{16}(?P<attempt>\.[0-9]{1,20})?\Z"
)
"""With the token of an attempt, it is a part of a worker's tree: see `kernel.holder.attempt_tree`.
"""
_SWEEP_AGE_S = 60.0
KILLED_S = 5.0
"""How long the kernel has to end what was killed; only a disk that does not answer takes longer."""

_KILLED_AGAIN_S = 0.2


def new_id() -> str:
    """The id of a tree that this process begins."""
    me = process_stat(os.getpid())
    return (
        f"{os.geteuid()}-{os.getpid()}-{0 if me is None else me.start_ticks}-{os.urandom(8).hex()}"
    )


class Trees:
    """The trees of one store. `folder` says None for a store in memory, whose trees are found by
    their mark alone. Both are asked for with the first tree.
    """

    def __init__(self, folder: Callable[[], Path | None], access: Callable[[], Access]) -> None:
        self._folder_of = folder
        self._access_of = access
        self._asked_s: dict[str, float] = {}

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
            make_folder(self._folder, access)
            make_node(path, stat.S_IFIFO, access)
            return os.fspath(path)
        except OSError as error:
            raise unusable(path, error) from None

    def liveness(self, tree: str, *, in_sight: bool) -> Liveness:
        """Does any process of a tree live? `in_sight` says that its pid namespace is this
        process's. Raises StoreUnavailable when the question cannot be answered for want of
        descriptors or memory.
        """
        if not _ID.match(tree):
            return Liveness.UNKNOWN
        kept = self._kept(tree)
        if kept is not None:
            return Liveness.ALIVE if kept else Liveness.DEAD
        if not in_sight:
            return Liveness.UNKNOWN
        if _wrapper_of(tree) is not None:
            return Liveness.ALIVE
        # Before the scan, which takes longer and sees less.
        groups = _groups(tree)
        if any(map(cgroup.processes, groups)):
            return Liveness.ALIVE
        found = self._scan(tree)
        if found.marked:
            return Liveness.ALIVE
        if found.hidden or _is_out_of_view(tree):
            return Liveness.UNKNOWN
        for group in groups:
            cgroup.remove(group)
        return Liveness.DEAD

    def kept(self, tree: str) -> int | None:
        """A descriptor of the tree's FIFO that is hung up when no process keeps it any more; None
        when none does, or there is no FIFO. The caller closes it.
        """
        fd = self._observed(tree) if _ID.match(tree) else None
        if fd is None or (not fifo.has_ended(fd) and fifo.is_kept(fd)):
            return fd
        os.close(fd)
        return None

    def watch(self, tree: str) -> int | None:
        """A descriptor that becomes readable, or is hung up, when the tree may have ended; None
        when there is none to wait for. The caller closes it.
        """
        fd = self.kept(tree)
        if fd is not None or not _ID.match(tree):
            return fd
        if self._kept(tree) is False:
            # The wrapper of a tree that ended may live for long, as when it is stopped.
            return None
        if (wrapper := _wrapper_of(tree)) is not None:
            try:
                return os.pidfd_open(wrapper)
            except OSError:
                return None
        # The oldest first: a loop in a shell begins a new process every moment, and each end of one
        # would wake the caller.
        for pid in sorted(
            _grouped(tree) or [one.pid for one in self._scan(tree).marked], key=_start
        ):
            try:
                pidfd = os.pidfd_open(pid)
            except OSError:
                continue
            # Not by /proc: what keeps the claim must be waited for where /proc hides it, too.
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
        if tree in self._asked_s:
            return time.monotonic() - self._asked_s[tree]
        if path is not None and (at := fifo.asked_at(path)) is not None:
            return max(time.time() - at, 0.0)
        self._ask(tree)
        self._asked_s[tree] = time.monotonic()
        if path is not None:
            # Behind the signals: a process that dies before it sent them has asked nobody.
            fifo.note_ask(path)
        return 0.0

    def end(self, tree: str, grace_s: float) -> bool:
        """End a tree: SIGTERM to all of its processes, SIGKILL to those that are left after the
        grace. True when it is gone, False also for a tree that this process cannot end: see `ask`.
        """
        if not _may_end(tree):
            return False

        def belongs(pid: int) -> bool:
            return self._belongs(tree, pid)

        guarded = self._ask(tree)
        if self.wait_for_end(tree, grace_s + (KILLED_S if guarded else 0.0)):
            return True
        deadline_s = time.monotonic() + KILLED_S
        while time.monotonic() < deadline_s:
            for group in _groups(tree):
                cgroup.kill(group)
            # Each is stopped as soon as it is found: what is stopped forks no more.
            scan(tree, _user(tree), _start_of(tree), lambda one: _stop(one, belongs))
            killing.kill(lambda: [one.pid for one in self._members(tree)], belongs)
            if self.wait_for_end(tree, _KILLED_AGAIN_S):
                return True
            if self.liveness(tree, in_sight=True) is Liveness.UNKNOWN:
                # What is left, if anything, cannot be seen, and so not be killed.
                return False
        return False

    def wait_for_end(self, tree: str, timeout_s: float | None) -> bool:
        """Sleep until a tree is gone, or the time is up, or the tree cannot be seen any more. True
        when it is gone.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while (seen := self.liveness(tree, in_sight=True)) is not Liveness.DEAD:
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if seen is Liveness.UNKNOWN or (left_s is not None and left_s <= 0):
                return False
            fd = self.watch(tree)
            if fd is None:
                # It ended in between.
                continue
            waiting = select.poll()
            waiting.register(fd, select.POLLIN)
            waiting.poll(None if left_s is None else left_s * 1000)
            os.close(fd)
        return True

    def sweep(self, older_than_s: float = _SWEEP_AGE_S) -> int:
        """Remove the FIFOs of trees that have ended, and whose wrapper was killed; return how many
        there were. Removes control groups whose guardians were killed too.
        """
        cgroup.sweep(time.time() - older_than_s)
        if self._folder is None:
            return 0
        removed = 0
        try:
            names = [name for name in os.listdir(self._folder) if _ID.match(name)]
        except OSError:
            return 0
        for name in names:
            try:
                path = self._folder / name
                old = time.time() - path.stat().st_ctime >= older_than_s
                if old and self.liveness(name, in_sight=True) is Liveness.DEAD:
                    path.unlink()
                    removed += 1
            except OSError:
                continue
        return removed

    def _ask(self, tree: str) -> bool:
        """Send SIGTERM to a tree's guardian, or to all of its processes if there is none; say
        whether there is one.
        """
        members = self._members(tree)
        guardians = [one.pid for one in members if one.guardian]
        # A guardian asks, waits and kills by itself, and misses none.
        killing.ask(guardians or [one.pid for one in members], lambda pid: self._belongs(tree, pid))
        return bool(guardians)

    def _kept(self, tree: str) -> bool | None:
        """True while a process keeps the FIFO, False when the tree ended in order; None when the
        FIFO does not tell.
        """
        fd = self._observed(tree)
        if fd is None:
            return None
        try:
            if fifo.has_ended(fd):
                return False
            return True if fifo.is_kept(fd) else None
        finally:
            os.close(fd)

    def _observed(self, tree: str) -> int | None:
        if self._folder is None:
            return None
        try:
            return fifo.observe(os.fspath(self._folder / tree))
        except OSError as error:
            if error.errno in LACKING:
                # It says nothing of the tree.
                raise unusable(self._folder / tree, error) from None
            return None

    def _scan(self, tree: str) -> Found:
        try:
            return scan(tree, _user(tree), _start_of(tree))
        except OSError as error:
            if error.errno in LACKING:
                raise unusable("/proc", error) from None
            return Found([], hidden=True)

    def _members(self, tree: str) -> list[Marked]:
        """Those with the mark, those that have the FIFO, those in the control group, and the
        descendants of any.
        """
        found = {one.pid: one for one in self._scan(tree).marked} if _ID.match(tree) else {}
        for pid in (*self._heirs(tree), *_grouped(tree)):
            found.setdefault(pid, _named(pid))
        for pid in descendants([*found]):
            found.setdefault(pid, _named(pid))
        found.pop(os.getpid(), None)
        return list(found.values())

    def _belongs(self, tree: str, pid: int) -> bool:
        """Is it, or is a process above it, one of those with the mark or the FIFO, or in the
        control group?
        """
        wanted = self._identity(tree)
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
        wanted = self._identity(tree)
        if wanted is None:
            return []
        return [
            int(name)
            for name in os.listdir("/proc")
            if name.isdecimal() and _inherited(int(name), wanted)
        ]

    def _identity(self, tree: str) -> tuple[int, int] | None:
        try:
            found = (
                os.stat(self._folder / tree)
                if self._folder is not None and shows_own_pids()
                else None
            )
        except OSError:
            return None
        return None if found is None else (found.st_dev, found.st_ino)


def _groups(tree: str) -> list[str]:
    return cgroup.find(tree, _user(tree)) if _ID.match(tree) else []


def _grouped(tree: str) -> list[int]:
    return [pid for group in _groups(tree) for pid in cgroup.processes(group)]


def _user(tree: str) -> int:
    return int(tree.partition("-")[0])


def _start_of(tree: str) -> int:
    return int(tree.split("-")[2])


def _wrapper_of(tree: str) -> int | None:
    """The pid of the process that began a tree, if it lives, and if its life says anything. To the
    wrapper itself it does not. The attempts of a worker end before the worker does.
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
    if not _ID.match(tree) or os.geteuid() not in (0, _user(tree)) or not shows_own_pids():
        return False
    return tree not in os.environ.get(MARK, "").split(":") and not cgroup.contains(
        tree, os.getpid()
    )


def _is_out_of_view(tree: str) -> bool:
    """Could a process of the tree's user live here without being seen? As with another user's, or
    where /proc hides some.
    """
    if os.geteuid() not in (0, _user(tree)):
        return True
    return process_stat(1) is None


def _start(pid: int) -> int:
    seen = process_stat(pid)
    return 0 if seen is None else seen.start_ticks


def _named(pid: int) -> Marked:
    seen = process_stat(pid)
    return Marked(pid, "" if seen is None else seen.name, guardian=False)


def _stop(one: Marked, belongs: Callable[[int], bool]) -> None:
    if not one.guardian:
        killing.send(one.pid, belongs, signal.SIGSTOP)


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
