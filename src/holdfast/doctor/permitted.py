"""Who else may read or write what is kept. Folders are made 0700 and files 0600; here is what became wider since."""

import os
import shlex
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.doctor.finding import Finding, fail, ok, warn
from holdfast.doctor.stored import store_path
from holdfast.kernel.settings import Settings
from holdfast.places import gateway_root

_LOOKED_AT_MAX = 2000
_TOLD_MAX = 10
_GROUP, _OTHERS = 0o070, 0o007
_BEGINNING = b"SQLite format 3\0"


def permissions(settings: Settings) -> list[Finding]:
    """Everything of a store on this machine: its files, what lies beside them, gateways, keys."""
    looked, found = 0, []
    for path, given in _paths(settings):
        looked += 1
        if (finding := _judged(path, given)) is not None:
            found.append(finding)
        if looked >= _LOOKED_AT_MAX:
            break
    if len(found) > _TOLD_MAX:
        more = warn("permissions", f"{len(found) - _TOLD_MAX} more are too wide", "mend those above and look again")
        return [*found[:_TOLD_MAX], more]
    return found or [ok("permissions", f"{looked} files and folders are closed to others")]


def _judged(path: Path, given: bool) -> Finding | None:
    """What is wrong with a path. One that the user chose may be seen by others, and not changed."""
    try:
        there = os.lstat(path)
    except OSError:
        return None
    mode = stat.S_IMODE(there.st_mode)
    if stat.S_ISLNK(there.st_mode) or not mode & (_GROUP | _OTHERS) or (given and not mode & 0o022):
        return None
    is_folder = stat.S_ISDIR(there.st_mode)
    if is_folder and mode & stat.S_ISVTX and given:
        # As of /tmp: others add names there and take none away.
        return None
    right = "700" if is_folder else "600"
    says = f"{path} has mode {mode:04o}: {'others' if mode & _OTHERS else 'its group'} may {_may(mode)} it"
    mend = f"chmod {right} {shlex.quote(str(path))}"
    if not mode & _OTHERS and (mode & stat.S_ISGID or not is_folder):
        # A laboratory may share its files with a group on purpose; then the folder hands its group on.
        return warn("permissions", says, f"{mend}, unless that group is meant to")
    return fail("permissions", says, mend, "refused")


def _may(mode: int) -> str:
    wide = mode | mode >> 3
    return "write" if wide & 0o002 else "read" if wide & 0o004 else "enter"


def _paths(settings: Settings) -> Iterator[tuple[Path, bool]]:
    """What is to be looked at, and whether the user chose it."""
    path = store_path(settings)
    if path is not None:
        if path.is_dir():
            # Plain files: another program may share the folder, but not what is the store's own in it.
            yield path, True
            yield from ((one, False) for one in _below(path / ".holdfast"))
        else:
            # What lies in it is closed by itself. Whoever may write there could put another file in its place.
            yield path.parent, True
            yield from ((one, False) for one in _beside(path))
    yield from ((one, False) for one in _below(gateway_root(settings, "x").parent))
    if key := os.environ.get("MQTT_KEYFILE"):
        yield Path(key), False


def _is_database(path: Path) -> bool:
    """A path that was mistyped may lead to any file, which must not be closed on our word."""
    try:
        with open(path, "rb") as file:
            return file.read(len(_BEGINNING)) in (b"", _BEGINNING)
    except OSError:
        return True


def _beside(path: Path) -> Iterable[Path]:
    """The store's own file, and all whose names begin with its; nothing of a file that is no store."""
    if not path.is_file() or not _is_database(path):
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
