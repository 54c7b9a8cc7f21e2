"""Damage in files: a damaged file of several records is restored from its previous version, and a
folder without a record is found and removed.
"""

import contextlib
import os
import shutil
import stat
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from holdfast.kernel.errors import StoreCorrupt, StoreUnavailable
from holdfast.kernel.layout import FilePerRecord, OneFile
from holdfast.kernel.space import Space
from holdfast.kernel.store import Leftover
from holdfast.stores.files.disk import (
    NO_LINKS,
    Disk,
    FileContent,
    Location,
    UnusableFile,
    backup_of,
)
from holdfast.stores.files.documents import (
    DamagedFile,
    ParsedFile,
    Pattern,
    documents_of,
    key_of,
    pattern_of,
)
from holdfast.stores.files.folders import Folders
from holdfast.system.access import match_owner

GONE = "it is gone"


def restore_file(disk: Disk, damage: DamagedFile, now: datetime) -> StoreCorrupt | None:
    """At the latch: restore a damaged file from its previous version. Return the error that its
    reader must see once; None when the file turns out to be sound.

    Changes since the previous version are lost from the records; the damaged file stays, under
    another name. Without a sound previous version nothing is changed, and the error says so. Raises
    OSError or StoreUnavailable.
    """
    location, layout = damage.location, damage.layout
    # A person's editor may be in the middle of saving it.
    if disk.retry_until_found(lambda: _sound(disk, location, layout)) is not None:
        return None
    kept = location.sibling(backup_of)
    previous = None if location.path.is_symlink() else _sound(disk, kept, layout)
    if previous is None:
        return _lost(damage, kept)
    # Under a name of its own, because nothing can be staged over a folder.
    restored = location.sibling(lambda name: f".{name}.restored")
    disk.stage(restored, previous.data)
    disk.place(restored, keep=False)
    match_owner(restored.path, kept.path)
    aside = _set_aside(location, now)
    os.replace(restored.path, location.path)
    disk.settle(location)
    where = f"kept as {aside}" if aside else "not to be found"
    return StoreCorrupt(
        f"{location.path} was damaged ({damage.why}). It was restored from {kept.path}, the "
        f"version before the last change, and the damaged file is {where}: compare the two, then "
        "go on. This is reported once",
        path=str(location.path),
        aside=aside,
        restored=True,
        why=damage.why,
    )


def _lost(damage: DamagedFile, kept: Location) -> StoreCorrupt:
    path = damage.location.path
    if damage.why != GONE:
        advice = (
            f"and there is no sound {kept.path.name} to restore it from: correct it, or move it "
            "away to continue without its records"
        )
    elif damage.location.folder.is_dir():
        advice = (
            f"and so is {kept.path.name}: its records are lost. From now on it counts as empty, "
            "without another warning"
        )
    else:
        advice = (
            "with its folder: mount it or put it back, or make an empty folder to continue without "
            "its records"
        )
    return StoreCorrupt(
        f"{path} is damaged ({damage.why}), {advice}",
        path=str(path),
        aside=None,
        restored=False,
        why=damage.why,
    )


def _sound(disk: Disk, location: Location, layout: OneFile[Any]) -> FileContent | None:
    try:
        found = disk.read(location)
        if found is not None:
            documents_of(layout, ParsedFile(found.data))
        return found
    except (UnusableFile, ValueError):
        return None


def _set_aside(location: Location, now: datetime) -> str | None:
    """Keep a damaged file under another name. By a link, so that its place is never empty."""
    stem = f"{location.path}.corrupt-{now:%Y%m%dT%H%M%SZ}"
    aside = next(
        name
        for name in (stem, *(f"{stem}-{n}" for n in range(2, 1000)))
        if not os.path.lexists(name)
    )
    with contextlib.suppress(FileNotFoundError):
        if location.path.is_dir():
            os.rename(location.path, aside)
            return aside
        try:
            os.link(location.path, aside, follow_symlinks=False)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            # Killed before the next rename, the file is missing, and is restored all the same.
            os.rename(location.path, aside)
        return aside
    return None


def find_leftovers(folders: Folders, space: Space[Any]) -> list[Leftover]:
    """The entries among the record folders of a space that hold no record. Only for a layout with a
    folder for each record, such as `{key}/record.json`. Raises StoreUnavailable.
    """
    place = _record_folders(folders, space)
    if place is None:
        return []
    base, pattern = place
    try:
        names = sorted(os.listdir(base))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _no_access(base, "read", error) from None
    found = []
    for component in names:
        name = pattern.name_in(component)
        key = None if name is None else key_of(name, ())
        if key is not None and (left := _inspect(base / component, pattern.rest)) is not None:
            found.append(Leftover(key, *left))
    return found


def remove_leftover(folders: Folders, space: Space[Any], key: str, *, older_than_s: float) -> bool:
    """At the latch: remove a folder that has no record and is old enough, or a link in the place of
    one. The link's target stays. Raises StoreUnavailable.
    """
    place = _record_folders(folders, space)
    if place is None:
        return False
    base, pattern = place
    path = base / pattern.component(key)
    left = _inspect(path, pattern.rest)
    if (
        left is None
        or left[0] == "unreadable"
        or (left[0] == "no_record" and left[1] < older_than_s)
    ):
        return False
    try:
        if left[0] == "link":
            # rmtree refuses a link; unlink refuses a folder that has taken the link's place.
            os.unlink(path)
        else:
            shutil.rmtree(path)
    except OSError as error:
        raise _no_access(path, "removed", error) from None
    return True


def _record_folders(folders: Folders, space: Space[Any]) -> tuple[Path, Pattern] | None:
    layout = space.layout
    if not isinstance(layout, FilePerRecord):
        return None
    pattern = pattern_of(layout.name)
    return (folders.of(layout.folder) / pattern.base, pattern) if pattern.rest else None


def _inspect(
    path: Path, rest: str
) -> tuple[Literal["no_record", "link", "unreadable"], float] | None:
    """What is wrong with a record's folder, and its age in seconds; None for one with a record."""
    try:
        found = os.lstat(path)
        age_s = max(time.time() - found.st_mtime, 0.0)
        if stat.S_ISLNK(found.st_mode):
            return "link", age_s
        if not stat.S_ISDIR(found.st_mode):
            return None
        if not found.st_mode & stat.S_IRUSR:
            # Root could read it, but its owner has closed it.
            return "unreadable", age_s
        os.listdir(path)
        return None if os.path.lexists(path / rest) else ("no_record", age_s)
    except FileNotFoundError:
        return None
    except OSError:
        return "unreadable", 0.0


def _no_access(path: Path, done: str, error: OSError) -> StoreUnavailable:
    return StoreUnavailable(
        f"{path} cannot be {done} ({os.strerror(error.errno or 0)}): check its permissions",
        path=str(path),
        outcome="none",
    )
