"""A damaged file is set aside and restored from the version before it; or left where it is, if
there is no sound one.

What lies among the folders of a space and is no record: told, and removed at the latch.

Only for a layout that gives each record a folder of its own, as `{key}/record.json` does.
"""

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from holdfast.kernel.errors import StoreCorrupt, StoreUnavailable
from holdfast.kernel.layout import FilePerRecord, OneFile
from holdfast.kernel.space import Space
from holdfast.kernel.store import Leftover
from holdfast.stores.files import documents
from holdfast.stores.files.cache import Cabinet
from holdfast.stores.files.disk import NO_LINKS, Disk, Found, Spot, Unfit, backup_of
from holdfast.stores.files.documents import Sheet, Unsound, documents_of
from holdfast.system.access import match_owner

GONE = "it is gone"


def mend(disk: Disk, unsound: Unsound, now: datetime) -> StoreCorrupt | None:
    """At the latch: restore a file, and return what its caller is to be told; None if it is sound
    after all.

    What the file held beyond its previous version is lost from the records, and lies in the file
    set aside. Raises OSError or StoreUnavailable.
    """
    spot, layout = unsound.spot, unsound.layout
    # Somebody may be in the middle of saving it.
    if disk.eventually(lambda: _sound(disk, spot, layout)) is not None:
        return None
    kept = Spot(spot.folder, _beside(spot.name, backup_of))
    previous = None if spot.path.is_symlink() else _sound(disk, kept, layout)
    if previous is None:
        return _lost(unsound, kept)
    restored = _prepare(disk, spot, kept, previous.data)
    aside = _set_aside(spot, now)
    os.replace(restored, spot.path)
    disk.settle(spot)
    where = f"kept as {aside}" if aside else "not to be found"
    return StoreCorrupt(
        f"{spot.path} was damaged ({unsound.why}). It was restored from {kept.path}, the version "
        "before the last change, and "
        f"what it held is {where}: compare the two, then go on. This is told once",
        path=str(spot.path),
        aside=aside,
        restored=True,
        why=unsound.why,
    )


def _lost(unsound: Unsound, kept: Spot) -> StoreCorrupt:
    path = unsound.spot.path
    if unsound.why != GONE:
        advice = (
            f"and there is no sound {kept.path.name} to restore it from: mend it, or move it away "
            "to go on without its records"
        )
    elif unsound.spot.folder.is_dir():
        advice = (
            f"and so is {kept.path.name}: its records are lost. From now on it counts as empty, "
            "without another warning"
        )
    else:
        advice = (
            "with its folder: mount it or put it back, or make the folder to go on without its "
            "records"
        )
    return StoreCorrupt(
        f"{path} is damaged ({unsound.why}), {advice}",
        path=str(path),
        aside=None,
        restored=False,
        why=unsound.why,
    )


def _sound(disk: Disk, spot: Spot, layout: OneFile[Any]) -> Found | None:
    """The file at a place, if it is what its layout says."""
    try:
        found = disk.read(spot)
        if found is not None:
            documents_of(layout, Sheet(found.data))
        return found
    except (Unfit, ValueError):
        return None


def _set_aside(spot: Spot, now: datetime) -> str | None:
    """Keep what is in a file's place under another name, in such a way that the place is never
    empty if it can be helped.
    """
    stem = f"{spot.path}.corrupt-{now:%Y%m%dT%H%M%SZ}"
    aside = next(
        name
        for name in (stem, *(f"{stem}-{n}" for n in range(2, 1000)))
        if not os.path.lexists(name)
    )
    with contextlib.suppress(FileNotFoundError):
        if spot.path.is_dir():
            os.rename(spot.path, aside)
            return aside
        try:
            os.link(spot.path, aside, follow_symlinks=False)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            # Killed before the next rename, the file is gone and is restored all the same.
            os.rename(spot.path, aside)
        return aside
    return None


def _prepare(disk: Disk, spot: Spot, kept: Spot, data: bytes) -> Path:
    """The previous version under a name of its own, since nothing may be staged over a folder."""
    restored = Spot(spot.folder, _beside(spot.name, lambda name: f".{name}.restored"))
    disk.stage(restored, data)
    disk.place(restored, keep=False)
    match_owner(restored.path, kept.path)
    return restored.path


def _beside(name: str, of: Callable[[str], str]) -> str:
    head, slash, last = name.rpartition("/")
    return f"{head}{slash}{of(last)}"


Kind = Literal["no_record", "link", "unreadable"]


def leftovers(cabinet: Cabinet, space: Space[Any]) -> list[Leftover]:
    """What is there beside records. Raises StoreUnavailable when the folder of all cannot be looked
    at.
    """
    place = _place(cabinet, space)
    if place is None:
        return []
    base, pattern = place
    found = []
    for component in sorted(_names(base)):
        inner = pattern.inner(component)
        key = None if inner is None else documents.key_of(inner, ())
        if key is not None and (left := _left(base / component, pattern.rest)) is not None:
            found.append(Leftover(key, *left))
    return found


def remove(cabinet: Cabinet, space: Space[Any], key: str, *, older_than_s: float) -> bool:
    """At the latch: remove a folder that has no record and is old enough, or a link in the place of
    one. Its target stays.
    """
    place = _place(cabinet, space)
    if place is None:
        return False
    base, pattern = place
    path = base / pattern.path(key).partition("/")[0]
    left = _left(path, pattern.rest)
    if (
        left is None
        or left[0] == "unreadable"
        or (left[0] == "no_record" and left[1] < older_than_s)
    ):
        return False
    try:
        if left[0] == "link":
            # Not by rmtree, which refuses a link. A folder that came in its place is refused here.
            os.unlink(path)
        else:
            shutil.rmtree(path)
    except OSError as error:
        raise StoreUnavailable(
            f"{path} cannot be removed ({os.strerror(error.errno or 0)}): look at its permissions",
            path=str(path),
            outcome="none",
        ) from None
    return True


def _place(cabinet: Cabinet, space: Space[Any]) -> tuple[Path, documents.Pattern] | None:
    layout = space.layout
    if not isinstance(layout, FilePerRecord):
        return None
    pattern = documents.pattern_of(layout.name)
    return (cabinet.folders.of(layout.folder) / pattern.base, pattern) if pattern.rest else None


def _left(path: Path, rest: str) -> tuple[Kind, float] | None:
    """What is wrong with a record's folder, and how long it has been so; None for one with a record
    in it.
    """
    try:
        found = os.lstat(path)
        age_s = max(time.time() - found.st_mtime, 0.0)
        if stat.S_ISLNK(found.st_mode):
            return "link", age_s
        if not stat.S_ISDIR(found.st_mode):
            return None
        if not found.st_mode & stat.S_IRUSR:
            # Root could look all the same; whoever closed it did not mean us to.
            return "unreadable", age_s
        os.listdir(path)
        return None if os.path.lexists(path / rest) else ("no_record", age_s)
    except FileNotFoundError:
        return None
    except OSError:
        return "unreadable", 0.0


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreUnavailable(
            f"{folder} cannot be looked at ({os.strerror(error.errno or 0)}): look at its "
            "permissions",
            path=str(folder),
            outcome="none",
        ) from None
