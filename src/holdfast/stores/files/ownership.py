"""The owner of a folder outside its store's root. Two stores do not lock each other out, so that a
folder must not belong to both.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from holdfast.kernel.errors import Held, StoreUnavailable
from holdfast.stores.files.disk import sync_folder
from holdfast.stores.files.folders import OWN, Folders
from holdfast.stores.sqlite.errors import opening_failed
from holdfast.system.access import Access, access_like, dress, in_folder, read_file, replace_file

MARK = ".holdfast-store"
"""The file in such a folder that names the root of the owning store."""


def claim_all(folders: Folders, names: Iterable[str], access: Access) -> None:
    """Claim the folders outside the root for this store, and check that no folder inside belongs
    to another.

    A folder that does not exist is claimed when a store is next opened on it. Raises Held, which
    names the owning store, or StoreUnavailable.
    """
    root = folders.root
    for place in {folders.of(name) for name in names}:
        if place.is_dir() and not place.is_relative_to(root):
            # It may be the root of another store, or a layout's folder below one.
            for owner in (place, place.parent):
                if owner != root and _is_store(owner):
                    raise _owned(place, owner, "or give that store")
            _claim(place, root, access)
    try:
        with os.scandir(root) as found:
            inside = [Path(entry.path) for entry in found if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        raise opening_failed(root, error) from None
    for place in (root, *inside):
        _refuse_claimed(place, root)


def _claim(place: Path, root: Path, access: Access) -> None:
    mark = place / MARK
    try:
        in_folder(mark, lambda folder, name: _write_mark(folder, name, root, access))
    except FileExistsError:
        _refuse_claimed(place, root)
        with contextlib.suppress(OSError):
            if not _is_store(Path(_read_mark(mark))):
                # The owning store was deleted or moved.
                replace_file(mark, os.fsencode(root), access)
        return
    except OSError as error:
        raise opening_failed(mark, error) from None
    sync_folder(place)


def _write_mark(folder: int, name: str, root: Path, access: Access) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        dress(fd, access)
        os.write(fd, os.fsencode(root))
        os.fsync(fd)
    finally:
        os.close(fd)


def _refuse_claimed(place: Path, root: Path) -> None:
    owner = _read_mark(place / MARK)
    if owner and Path(owner) != root and _is_store(Path(owner)):
        raise _owned(place, Path(owner), f"or remove {place / MARK} if that store is not in use")


def _owned(place: Path, owner: Path, alternative: str) -> Held:
    return Held(
        f"{place} belongs to the store files:{owner}, and two stores on one folder would "
        f"overwrite each other: give this one another folder, {alternative}",
        path=str(place),
        holder=f"files:{owner}",
    )


def _is_store(root: Path) -> bool:
    return (root / OWN / "store.sqlite").exists()


def _read_mark(mark: Path) -> str:
    try:
        return os.fsdecode(read_file(mark, access_like(mark.parent)))
    except (OSError, StoreUnavailable):
        return ""
