"""Who else may read or write what is kept. Folders are made 0700 and files 0600, or 2775 and 0660
for a group that the settings name; here is what became wider since.
"""

import os
import shlex
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.kernel.settings import Settings
from holdfast.kernel.text import counted
from holdfast.runtime.connection import Holdfast
from holdfast.runtime.doctor.finding import Finding, fail, ok, warn
from holdfast.runtime.doctor.store import store_path
from holdfast.runtime.paths import gateway_root
from holdfast.system.access import Access, access_for, access_like

_LOOKED_AT_MAX = 2000
_TOLD_MAX = 10
_GROUP, _OTHERS = 0o070, 0o007
_MARKS = ("-gate", "-users")
"""What lies beside a store that was ever used."""


def permissions(settings: Settings) -> list[Finding]:
    """Everything of a store on this machine: its files, what lies beside them, gateways, keys."""
    looked, found = 0, []
    # A member's settings need not name the group: the modes of the store's gate show who shares it.
    path = store_path(settings)
    named = settings.group is not None or path is None
    access = access_for(settings.group) if named else access_like(f"{path}{_MARKS[0]}")
    for path, given in dict(_paths(settings)).items():
        looked += 1
        if (finding := _judged(path, given, access)) is not None:
            found.append(finding)
        if looked >= _LOOKED_AT_MAX:
            break
    if len(found) > _TOLD_MAX:
        more = warn(
            "permissions",
            f"{counted(len(found) - _TOLD_MAX, 'more is', 'more are')} too wide",
            "mend those above and look again",
        )
        return [*found[:_TOLD_MAX], more]
    return found or [
        ok(
            "permissions",
            f"{counted(looked, 'file or folder is', 'files and folders are')} closed to others",
        )
    ]


def strangers(hf: Holdfast) -> list[Finding]:
    """Roles that may connect to a store's database and are not its users: PostgreSQL lets each of
    them stop all writers.
    """
    names = hf.store.administration.strangers()
    if not names:
        return []
    shown = ", ".join(names[:3])
    says = (
        f"{counted(len(names), 'role', 'roles')} may connect to this database and take its "
        f"advisory locks: {shown}"
    )
    return [
        warn(
            "permissions",
            says,
            "REVOKE CONNECT ON DATABASE ... FROM PUBLIC, and GRANT it to those who use the store",
        )
    ]


def _judged(path: Path, given: bool, access: Access) -> Finding | None:
    """What is wrong with a path. One that the user chose may be seen by others, and not changed;
    what the settings share with a group is as it should be.
    """
    try:
        there = os.lstat(path)
    except OSError:
        return None
    mode = stat.S_IMODE(there.st_mode)
    if stat.S_ISLNK(there.st_mode) or not mode & (_GROUP | _OTHERS) or (given and not mode & 0o022):
        return None
    is_folder = stat.S_ISDIR(there.st_mode)
    if there.st_gid == access.gid and mode == (access.folder if is_folder else access.file):
        return None
    if given and not mode & (0o002 | stat.S_ISGID) and _is_alone(there.st_gid):
        # As of a project under umask 002, where each user is a group.
        return None
    if is_folder and mode & stat.S_ISVTX and given:
        # As of /tmp: others add names there and take none away.
        return None
    right = "700" if is_folder else "600"
    says = f"{path} has mode {mode:04o}: {_who(mode)} it"
    mend = f"chmod {right} {shlex.quote(str(path))}"
    if not mode & _OTHERS and (mode & stat.S_ISGID or not is_folder):
        # A laboratory may share its files with a group on purpose; then the folder hands its group
        # on.
        return warn("permissions", says, f"{mend}, unless that group is meant to")
    return fail("permissions", says, mend, "refused")


def _is_alone(gid: int) -> bool:
    """Is a group the user's own, with nobody else in it?"""
    import grp
    import pwd

    try:
        me, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return me.pw_gid == gid and group.gr_name == me.pw_name and not set(group.gr_mem) - {me.pw_name}


def _who(mode: int) -> str:
    """Whoever may do most with it besides its owner, and what that is."""
    for bit, may in ((0o002, "write"), (0o004, "read"), (0o001, "enter")):
        if mode & bit:
            return f"others may {may}"
        if mode & bit << 3:
            return f"its group may {may}"
    return "its owner may use"


def _paths(settings: Settings) -> Iterator[tuple[Path, bool]]:
    """What is to be looked at, and whether the user chose it."""
    path = store_path(settings)
    if path is not None:
        if path.is_dir():
            # Plain files: another program may share the folder, but not what is the store's own in
            # it.
            yield path, True
            yield from ((one, False) for one in _below(path / ".holdfast"))
        else:
            # What lies in it is closed by itself. Whoever may write there could put another file in
            # its place.
            yield path.parent, True
            yield from ((one, False) for one in _beside(path))
    yield from ((one, False) for one in _below(gateway_root(settings, "x").parent))
    if key := os.environ.get("MQTT_KEYFILE"):
        yield Path(key), False


def _is_store(path: Path) -> bool:
    """A path that was mistyped may lead to any file, which must not be closed on our word. It is
    not opened to see: closing it would end the locks that SQLite has on it in this process.
    """
    return path.is_file() and any(path.with_name(path.name + mark).exists() for mark in _MARKS)


def _beside(path: Path) -> Iterable[Path]:
    """The store's own file, and all whose names begin with its; nothing of a file that is no
    store.
    """
    if not _is_store(path):
        return
    for one in sorted(path.parent.glob(f"{_escaped(path.name)}*")):
        yield one
        if one.is_dir() and not one.is_symlink():
            yield from _below(one)


def _below(folder: Path) -> Iterator[Path]:
    if not folder.is_dir() or folder.is_symlink():
        return
    yield folder
    for root, folders, files in os.walk(folder):
        yield from (Path(root, name) for name in sorted(folders + files))


def _escaped(name: str) -> str:
    import glob

    return glob.escape(name)
