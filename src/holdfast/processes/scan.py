"""The processes of a tree, found by the mark in their environment.

A plain walk over /proc misses processes: one that forks and exits during the walk leaves a child
with a pid that the walk has passed already, and a process has no environment for an instant while
it executes another program. So the scan begins behind the last pid that the kernel gave out, wraps
around, and then follows new pids until it has caught up: a child always lies ahead of its parent.
An empty environment is read again until the process has one or is gone.
"""

from __future__ import annotations

import os
import time

# Type checkers know this name. Importing `typing` takes as long as everything else in a guardian.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MARK = "HOLDFAST_CUSTODY"
"""The environment variable with the trees of a process, outermost first, colon-separated."""
GUARDIAN = "HOLDFAST_GUARDIAN"
"""The environment variable that only a guardian has. It names its tree, behind the shared tree
around it if there is one.
"""

_PF_KTHREAD = 0x00200000
_NS_GET_USERNS = 0xB701
_EMPTY_TRIES = 400
_EMPTY_PAUSE_S = 0.0005
_FOLLOWED_MAX = 200_000
_READ_BYTES = 1 << 17
_PAGE_BYTES = 4096


class Stat:
    """What /proc/PID/stat says about a process."""

    def __init__(self, raw: bytes) -> None:
        # A program may put spaces and brackets into its name: the fields begin behind the last
        # bracket.
        name, _, rest = raw.rpartition(b")")
        fields = rest.split()
        self.name = name.partition(b"(")[2].decode(errors="replace")
        self.state = fields[0].decode()
        self._parent = int(fields[1])
        self.flags = int(fields[6])
        self.threads = int(fields[17])
        self.start_ticks = int(fields[19])
        self.bare = 0 < int(fields[47]) == int(fields[48])
        """It has memory, and no environment in it."""

    @property
    def parent(self) -> int:
        """The pid of its parent in this process's namespace; 0 for one outside of it."""
        level = _level()
        return self._parent if level == 0 else next(iter(_pids_of(self._parent)[level:]), 0)

    @property
    def ended(self) -> bool:
        """Is it a zombie? The other threads of a process may go on after its first one has
        ended.
        """
        return self.state in "ZXx" and self.threads <= 1


class Marked:
    """A process of a tree; `guardian` says whether it is the tree's guardian."""

    def __init__(self, pid: int, name: str, *, guardian: bool) -> None:
        self.pid = pid
        self.name = name
        self.guardian = guardian


class Found:
    """The result of a scan. `hidden` says that a process of the tree's user could not be read."""

    def __init__(self, marked: list[Marked], *, hidden: bool) -> None:
        self.marked = marked
        self.hidden = hidden


def shows_own_pids() -> bool:
    """Does /proc show the pid namespace of this process? In one that kept its parent's /proc, a
    number there means another process than in system calls.
    """
    return _level() == 0


def stat(pid: int | str) -> Stat | None:
    """What the kernel says about a process, or about `self`; None when there is none, or it is
    hidden.
    """
    return _stat_of(pid if isinstance(pid, str) or _level() == 0 else _shown_number(pid))


def scan(
    tree: str, user: int, since_ticks: int, each: Callable[[Marked], None] | None = None
) -> Found:
    """Find every process with the mark of a tree that `user` began at `since_ticks`. `each` is
    called for each process as soon as it is found.
    """
    if not shows_own_pids():
        return Found([], hidden=True)
    marked: dict[int, Marked] = {}
    hidden = False
    for pid in _pids():
        if pid in marked:
            continue
        environment = _environment(pid)
        if environment is None:
            hidden = hidden or _may_belong(pid, user, since_ticks)
        elif (guardian := _marked_as(environment, tree)) is not None and _is_process(pid):
            seen = stat(pid)
            marked[pid] = one = Marked(pid, "" if seen is None else seen.name, guardian=guardian)
            if each is not None:
                each(one)
    return Found(list(marked.values()), hidden=hidden)


def carries(pid: int, tree: str) -> bool:
    """Has this process the mark of a tree?"""
    environment = _environment(pid) if shows_own_pids() else None
    return environment is not None and _marked_as(environment, tree) is not None


def descendants(roots: list[int]) -> list[int]:
    """The live processes below some, parents before their children."""
    level = _level()
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and (seen := _stat_of(name)) is not None and not seen.ended:
            own = int(name) if level == 0 else next(iter(_pids_of(name)[level:]), 0)
            children.setdefault(seen.parent, []).append(own)
    found = list(roots)
    for pid in found:
        found += children.get(pid, [])
    return found[len(roots) :]


_levels: dict[int, int] = {}


def _level() -> int:
    """How many pid namespaces this process is below that of /proc. Kept by pid: a forked child may
    be in another one.
    """
    me = os.getpid()
    if me not in _levels:
        _levels[me] = max(len(_pids_of("self")) - 1, 0)
    return _levels[me]


def _pids_of(shown: int | str) -> list[int]:
    """The pids of a process: in the namespace of /proc, and in each one down to its own."""
    try:
        return _status(shown, b"NSpid:")
    except OSError:
        return []


def _shown_number(pid: int) -> int:
    """The number under which another namespace's /proc shows a process of this one; 0 for none."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return 0
    try:
        # The kernel shows the number in the information on a pidfd.
        with open(f"/proc/self/fdinfo/{fd}", "rb") as file:
            return max(
                next((int(line.split()[1]) for line in file if line.startswith(b"Pid:")), 0), 0
            )
    finally:
        os.close(fd)


def _stat_of(shown: int | str) -> Stat | None:
    try:
        fd = os.open(f"/proc/{shown}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return Stat(os.read(fd, 4096))
    except OSError:
        return None
    finally:
        os.close(fd)


def _status(shown: int | str, field: bytes) -> list[int]:
    """The numbers of a field of /proc/PID/status. Raises OSError."""
    with open(f"/proc/{shown}/status", "rb") as file:
        for line in file:
            if line.startswith(field):
                return list(map(int, line.split()[1:]))
    return []


def _pids() -> Iterator[int]:
    """The pids to read, in an order in which a child never comes before its parent. Some have
    no process any more.
    """
    first = last = _last_pid()
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())
    yield from (pid for pid in pids if pid > first)
    yield from (pid for pid in pids if pid <= first)
    followed = 0
    while (newest := _last_pid()) != last and followed < _FOLLOWED_MAX:
        new = (
            range(last + 1, newest + 1)
            if newest > last
            else (*range(last + 1, _pid_max() + 1), *range(1, newest + 1))
        )
        yield from new
        followed += len(new)
        last = newest


def _last_pid() -> int:
    with open("/proc/loadavg", "rb", buffering=0) as file:
        return int(file.read(128).split()[4])


def _pid_max() -> int:
    with open("/proc/sys/kernel/pid_max", "rb", buffering=0) as file:
        return int(file.read(32))


def _environment(pid: int) -> bytes | None:
    """The environment of a process: empty when it has none or is gone, None when it may not be
    read.
    """
    for _ in range(_EMPTY_TRIES):
        raw = _read_environment(pid)
        if raw is None or raw:
            return raw
        seen = stat(pid)
        if seen is None or seen.ended or seen.flags & _PF_KTHREAD:
            return b""
        if seen.state in "ZXx":
            # The first thread has ended and shows no memory any more. Another thread does.
            return _environment_of_threads(pid)
        if seen.bare:
            return b""
        # It is about to execute another program, or to end.
        time.sleep(_EMPTY_PAUSE_S)
    return b""


def _environment_of_threads(pid: int) -> bytes | None:
    try:
        threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return b""
    for thread in threads:
        raw = _read_environment(thread) if thread != pid else b""
        if raw is None or raw:
            return raw
    return b""


def _read_environment(pid: int) -> bytes | None:
    try:
        fd = os.open(f"/proc/{pid}/environ", os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        return None
    except OSError:
        return b""
    try:
        raw = os.read(fd, _READ_BYTES)
        # The kernel hands it out in pages.
        if raw and len(raw) % _PAGE_BYTES == 0:
            while more := os.read(fd, _READ_BYTES):
                raw += more
        return raw
    except PermissionError:
        return None
    except OSError:
        return b""
    finally:
        os.close(fd)


def _marked_as(environment: bytes, tree: str) -> bool | None:
    """None without the mark of the tree; otherwise whether it is the tree's guardian."""
    wanted = tree.encode()
    if wanted not in environment:
        return None
    variables = dict(one.partition(b"=")[::2] for one in environment.split(b"\0"))
    if wanted not in variables.get(MARK.encode(), b"").split(b":"):
        return None
    return wanted in variables.get(GUARDIAN.encode(), b"").split(b":")


def _may_belong(pid: int, user: int, since_ticks: int) -> bool:
    """Could a process whose environment may not be read be one of the tree's?"""
    seen = stat(pid)
    if seen is not None and (
        seen.ended or seen.flags & _PF_KTHREAD or seen.start_ticks < since_ticks
    ):
        # Root with fewer capabilities than pid 1 may read neither pid 1 nor kernel threads.
        return False
    try:
        # The real, effective, saved and file system user. For a set-user-id program the first is
        # the user who started it, while its folder in /proc is root's.
        users = _status(pid, b"Uid:")
    except PermissionError:
        return True
    except OSError:
        return False
    # A command of root can become any user's, as by su(1). Root without CAP_SYS_PTRACE, as in most
    # containers, may not read it.
    return user in users or user == 0 or not _users_are_comparable()


def _users_are_comparable() -> bool:
    """Do the numbers of users mean the same to all processes of this pid namespace? Not if this
    process is in a user namespace that its pid namespace does not belong to: users outside of it
    have other numbers here, or none.
    """
    import fcntl

    try:
        fd = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # The kernel refuses this where the owner is not in the caller's user namespace or below it.
        os.close(fcntl.ioctl(fd, _NS_GET_USERNS))
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _is_process(pid: int) -> bool:
    """Not a thread, which /proc shows under its own number too."""
    try:
        return _status(pid, b"Tgid:") == [pid]
    except OSError:
        return False
