"""The control group of a tree (cgroup v2): the kernel's own list of the tree's processes.

A process cannot leave its group by a double fork, by closed descriptors or by an empty environment.
So the group finds a survivor that lost FIFO and mark. Most users may not make groups: every failure
here means that the other signs decide. A missing or empty group says nothing about its tree.
"""

from __future__ import annotations

import os
import sys

from holdfast.processes import syscalls

_PREFIX = "holdfast-"
_SYS_CLONE3 = 435
_CLONE_INTO_CGROUP = 0x200000000
# Both numbers above are the same on every architecture that Holdfast is likely to run on, and so is
# this one. Importing `signal` takes too long.
_SIGCHLD = 17


def below_own(tree: str) -> str | None:
    """The folder of a tree's group if this process makes it, inside this process's own group; None
    without cgroup v2.
    """
    own = _own()
    return None if own is None else f"{own}/{_PREFIX}{tree}"


def fork(folder: str | None) -> int:
    """Fork, with the child in a new group where one can be made. Returns and raises as os.fork().

    Only for a process without other threads whose child soon executes a program: what Python and
    the C library do after a fork is left out.
    """
    fd = _make(folder)
    if fd is None or folder is None:
        return os.fork()
    # The child is not moved later: for that the kernel waits for an RCU grace period, 6 ms after a
    # quiet second and more on larger machines, and no process of the machine can fork or end
    # meanwhile.
    fields = (_CLONE_INTO_CGROUP, 0, 0, 0, _SIGCHLD, 0, 0, 0, 0, 0, fd)
    packed = b"".join(field.to_bytes(8, sys.byteorder) for field in fields)
    child = syscalls.call("syscall", _SYS_CLONE3, packed, len(packed))
    os.close(fd)
    if child >= 0:
        return child
    remove(folder)
    return os.fork()


def kill(folder: str) -> None:
    """Kill every process of a group and of the groups inside it, also those that fork at this
    moment. Needs Linux 5.14.
    """
    try:
        with open(f"{folder}/cgroup.kill", "wb", buffering=0) as file:
            file.write(b"1")
    except OSError:
        return


def remove(folder: str) -> None:
    """Remove a group and the groups inside it, as far as they have no processes."""
    for one in reversed(_walk(folder)):
        try:
            os.rmdir(one)
        except OSError:
            continue


def processes(folder: str) -> list[int]:
    """The live processes of a group and of the groups inside it, as far as this pid namespace has
    numbers for them.
    """
    # `populated` in cgroup.events counts groups inside as well, but names no process to wait for.
    return [
        pid
        for one in _walk(folder)
        for pid in map(int, _read(f"{one}/cgroup.procs").split())
        if pid
    ]


def contains(tree: str, pid: int) -> bool:
    """Is a process in the group of a tree, or in a group inside it?"""
    return any(_is_of(name, tree) for name in _path(pid).split("/"))


def find(tree: str, user: int) -> list[str]:
    """The groups of a tree and of its parts that `user` made, wherever they are mounted."""
    # The group is searched by name. A file beside the FIFO that names it could be removed by the
    # same program that removes the FIFO.
    found = []
    for _, point in _mounts():
        for one in _walk(point):
            try:
                if _is_of(os.path.basename(one), tree) and os.stat(one).st_uid == user:
                    found.append(one)
            except OSError:
                continue
    return found


def sweep(made_before: float) -> None:
    """Remove old, empty groups inside this process's own group. Their guardians were killed."""
    own = _own()
    for one in [] if own is None else _inside(own):
        try:
            old = os.stat(one).st_ctime <= made_before
        except OSError:
            continue
        if old and os.path.basename(one).startswith(_PREFIX) and not processes(one):
            remove(one)


def move_out(pid: int) -> None:
    """Move a process out of the groups of all trees, into the group around them. Without cgroup v2,
    or without the permission, it stays where it is.
    """
    own = _own()
    if own is None:
        return
    parts = own.split("/")
    first = next((at for at, name in enumerate(parts) if name.startswith(_PREFIX)), None)
    if first is None:
        return
    try:
        with open("/".join([*parts[:first], "cgroup.procs"]), "wb", buffering=0) as file:
            file.write(b"%d" % pid)
    except OSError:
        return


def _make(folder: str | None) -> int | None:
    try:
        if folder is None:
            return None
        os.mkdir(folder)
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None


def _own() -> str | None:
    """The folder of this process's own group; None where it is not mounted."""
    path = _path("self")
    for root, point in _mounts():
        # A mount may show only a part of the hierarchy, as in a container. A path that begins with
        # `/..` leads out of this process's cgroup namespace.
        inside = root.rstrip("/")
        if (path == root or path.startswith(f"{inside}/")) and "/.." not in path:
            return point + path[len(inside) :].rstrip("/")
    return None


def _path(pid: int | str) -> str:
    """The path of a process's group in the hierarchy of cgroup v2; empty when there is none."""
    for line in _read(f"/proc/{pid}/cgroup").splitlines():
        if line.startswith("0::"):
            return line[3:]
    return ""


def _mounts() -> list[tuple[str, str]]:
    """Each mount of cgroup v2: which part of the hierarchy it shows, and where."""
    mounts = []
    for line in _read("/proc/self/mountinfo").splitlines():
        if " - cgroup2 " in line:
            fields = line.split(" ")
            mounts.append((fields[3], fields[4]))
    return mounts


def _is_of(name: str, tree: str) -> bool:
    """Is it the name of the group of a tree, or of a part of it?"""
    return name.startswith(_PREFIX + tree) and name[len(_PREFIX + tree) :][:1] in ("", ".")


def _walk(top: str) -> list[str]:
    """A group and all inside it, parents before children."""
    found = [top]
    for one in found:
        found += _inside(one)
    return found


def _inside(folder: str) -> list[str]:
    try:
        # A folder has two links and one for each group inside. Most have none, and listing the
        # files of a group takes longer than this check.
        if os.stat(folder).st_nlink <= 2:
            return []
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return os.fsdecode(file.read())
    except OSError:
        return ""
