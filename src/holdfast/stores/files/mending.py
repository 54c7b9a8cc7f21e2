"""A damaged file is set aside and restored from the version before it; or left where it is, if there is no sound one."""

import contextlib
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from holdfast.access import match_owner
from holdfast.kernel.errors import StoreCorrupt
from holdfast.kernel.layout import OneFile
from holdfast.stores.files.disk import NO_LINKS, Disk, Found, Spot, Unfit, backup_of
from holdfast.stores.files.sheet import Sheet, Unsound, documents_of

GONE = "it is gone"


def mend(disk: Disk, unsound: Unsound, now: datetime) -> StoreCorrupt | None:
    """At the latch: restore a file, and return what its caller is to be told; None if it is sound after all.

    What the file held beyond its previous version is lost from the records, and lies in the file set aside. Raises OSError or
    StoreUnavailable.
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
        f"{spot.path} was damaged ({unsound.why}). It was restored from {kept.path}, the version before the last change, and "
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
            f"and there is no sound {kept.path.name} to restore it from: mend it, or move it away to go on without its records"
        )
    elif unsound.spot.folder.is_dir():
        advice = f"and so is {kept.path.name}: its records are lost. From now on it counts as empty, without another warning"
    else:
        advice = "with its folder: mount it or put it back, or make the folder to go on without its records"
    return StoreCorrupt(
        f"{path} is damaged ({unsound.why}), {advice}", path=str(path), aside=None, restored=False, why=unsound.why
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
    """Keep what is in a file's place under another name, in such a way that the place is never empty if it can be helped."""
    stem = f"{spot.path}.corrupt-{now:%Y%m%dT%H%M%SZ}"
    aside = next(name for name in (stem, *(f"{stem}-{n}" for n in range(2, 1000))) if not os.path.lexists(name))
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
