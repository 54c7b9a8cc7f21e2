"""This machine and this user: the settings, the packages that they need, and who else may read or
write the files.

Folders are made 0700 and files 0600, or 2775 and 0660 for a group that the settings name; the check
of permissions finds what became wider since.
"""

import glob
import os
import re
import shlex
import stat
from collections.abc import Iterable, Iterator
from importlib import metadata
from itertools import islice
from pathlib import Path

from holdfast.kernel.settings import Settings
from holdfast.kernel.text import counted, installing
from holdfast.processes.procfs import Procfs
from holdfast.runtime.configuration import gateway_root, store_origin
from holdfast.runtime.connection import Holdfast
from holdfast.runtime.doctor.finding import Finding, fail, ok, warn
from holdfast.runtime.doctor.store import store_path
from holdfast.runtime.maintenance import Upkeep
from holdfast.stores.url import StoreUrl
from holdfast.system.access import Access, access_for, access_like

_CHECKED_MAX = 2000
_REPORTED_MAX = 10
_GROUP, _OTHERS = 0o070, 0o007
_MARKS = ("-gate", "-users")
"""The suffixes of the files beside a store that was ever used."""


def settings(found: Settings, *, chosen_by: str | None = None) -> list[Finding]:
    """What the settings mean."""
    # The driver of a database may not be installed, which is a finding of its own.
    store = Upkeep(found).facts()["store"] if StoreUrl(found.store or "").embedded else "PostgreSQL"
    origin = chosen_by or store_origin()
    return [ok(f"understood: {store}, namespace {found.namespace}, chosen by {origin}")]


def machine(found: Settings | None) -> Iterator[Finding]:
    """Whether this machine can be distinguished from others, and its boot from earlier ones."""
    here = Procfs(host_id=found.host_id if found else None).here()
    if here.host_id == os.uname().nodename:
        # Without a machine id its name is used, and containers and clones share names.
        yield warn(
            f"it has no /etc/machine-id, so it is known by its name {here.host_id[:40]} alone",
            "set host_id in holdfast.toml or HOLDFAST_HOST_ID, different on each machine that "
            "shares a store",
        )
    else:
        yield ok(f"host {here.host_id[:40]}, boot {here.boot_id[:8]}, pid namespace {here.pid_ns}")


def extras(found: Settings) -> list[Finding]:
    """Whether the packages that the settings need are installed."""
    needed = {
        StoreUrl(found.store or "").extra: "the store is PostgreSQL",
        "mqtt": "MQTT_BROKER is set" if os.environ.get("MQTT_BROKER") else "",
    }
    lacking = [
        fail(f"{why}, and {', '.join(missing)} is not installed", installing(extra), "unavailable")
        for extra, why in needed.items()
        if extra and why and (missing := not_installed(extra))
    ]
    absent = [extra for extra in ("server", "mqtt", "postgres", "mcp") if not_installed(extra)]
    also = f"; not: {', '.join(absent)}" if absent else ""
    return lacking or [ok(f"all that is needed is installed{also}")]


def not_installed(extra: str) -> list[str]:
    try:
        required = metadata.requires("holdfast") or []
    except metadata.PackageNotFoundError:
        # Run from a folder: a missing package is reported when it is used.
        return []
    return [
        name
        for requirement in required
        if re.search(rf"extra == ['\"]{extra}['\"]", requirement)
        and not _installed(name := re.split(r"[\s\[<>=!~;(]", requirement, maxsplit=1)[0])
    ]


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def permissions(settings: Settings) -> list[Finding]:
    """Everything of a store on this machine: its files, what lies beside them, gateways, keys."""
    # A member's settings need not name the group: the modes of the store's gate show who shares it.
    path = store_path(settings)
    named = settings.group is not None or path is None
    access = access_for(settings.group) if named else access_like(f"{path}{_MARKS[0]}")
    paths = list(islice(dict(_paths(settings)).items(), _CHECKED_MAX))
    judged = (_judge(path, chosen, access) for path, chosen in paths)
    found = [finding for finding in judged if finding is not None]
    if len(found) > _REPORTED_MAX:
        more = counted(len(found) - _REPORTED_MAX, "more is", "more are")
        return [*found[:_REPORTED_MAX], warn(f"{more} too wide", "fix those above and check again")]
    closed = counted(len(paths), "file or folder is", "files and folders are")
    return found or [ok(f"{closed} closed to others")]


def strangers(hf: Holdfast) -> list[Finding]:
    """Roles that may connect to a store's database and are not its users. PostgreSQL lets each of
    them take advisory locks, and so stop all writers.
    """
    names = hf.store.administration.strangers()
    if not names:
        return []
    return [
        warn(
            f"{counted(len(names), 'role', 'roles')} may connect to this database and take its "
            f"advisory locks: {', '.join(names[:3])}",
            "REVOKE CONNECT ON DATABASE ... FROM PUBLIC, and GRANT it to those who use the store",
        )
    ]


def _judge(path: Path, chosen: bool, access: Access) -> Finding | None:
    """What is wrong with a path. A path that the user chose may be seen by others, but not changed;
    a path with the modes that the settings give to a group is right.
    """
    try:
        there = os.lstat(path)
    except OSError:
        return None
    mode = stat.S_IMODE(there.st_mode)
    closed = not mode & (_GROUP | _OTHERS) or (chosen and not mode & 0o022)
    if closed or stat.S_ISLNK(there.st_mode):
        return None
    is_folder = stat.S_ISDIR(there.st_mode)
    if there.st_gid == access.gid and mode == (access.folder if is_folder else access.file):
        return None
    if chosen and not mode & (0o002 | stat.S_ISGID) and _is_alone(there.st_gid):
        # As in a project under umask 002, where each user has a group of the same name.
        return None
    if chosen and is_folder and mode & stat.S_ISVTX:
        # As /tmp: others add names there, and cannot remove those of this user.
        return None
    says = f"{path} has mode {mode:04o}: {_who(mode)} it"
    fix = f"chmod {'700' if is_folder else '600'} {shlex.quote(str(path))}"
    if not mode & _OTHERS and (mode & stat.S_ISGID or not is_folder):
        # A laboratory may share its files with a group on purpose: the folder then has setgid.
        return warn(says, f"{fix}, unless that group is meant to")
    return fail(says, fix, "refused")


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
    """Who, apart from the owner, has the widest access to a file, and what access that is."""
    for bit, may in ((0o002, "write"), (0o004, "read"), (0o001, "enter")):
        if mode & bit:
            return f"others may {may}"
        if mode & bit << 3:
            return f"its group may {may}"
    return "its owner may use"


def _paths(settings: Settings) -> Iterator[tuple[Path, bool]]:
    """The paths to check, and whether the user chose each."""
    path = store_path(settings)
    if path is not None and path.is_dir():
        # Other programs may share the folder, but not the store's own part of it.
        yield path, True
        yield from ((one, False) for one in _below(path / ".holdfast"))
    elif path is not None:
        # A user who may write the folder could replace the store's file.
        yield path.parent, True
        yield from ((one, False) for one in _beside(path))
    yield from ((one, False) for one in _below(gateway_root(settings, "x").parent))
    if key := os.environ.get("MQTT_KEYFILE"):
        yield Path(key), False


def _beside(path: Path) -> Iterable[Path]:
    """The store's file, and all whose names begin with its; nothing for a file that is no store."""
    # A mistyped path may lead to any file, and we must not advise to close that. The file is not
    # opened to find out: closing it would end the locks that SQLite has on it in this process.
    if not path.is_file() or not any(Path(f"{path}{mark}").exists() for mark in _MARKS):
        return
    for one in sorted(path.parent.glob(f"{glob.escape(path.name)}*")):
        yield one
        if one.is_dir() and not one.is_symlink():
            yield from _below(one)


def _below(folder: Path) -> Iterator[Path]:
    if not folder.is_dir() or folder.is_symlink():
        return
    yield folder
    for root, folders, files in os.walk(folder):
        yield from (Path(root, name) for name in sorted(folders + files))
