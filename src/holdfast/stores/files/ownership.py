"""Whose a folder is that lies outside of its store's root: two stores do not wait for each
other, so that none may have two.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from holdfast.kernel.errors import Held, StoreUnavailable
from holdfast.stores.files.disk import sync
from holdfast.stores.files.folders import OWN, Folders
from holdfast.stores.sqlite.errors import opening_failed
from holdfast.system.access import Access, access_like, dress, in_folder, read_file, replace_file

MARK = ".holdfast-store"
"""The file in such a folder that names the root of the store it belongs to."""


def claim_all(folders: Folders, names: Iterable[str], access: Access) -> None:
    """Take the folders that lie elsewhere for this store, and see that none of its own is
    another's.

    A folder that is not there yet is taken when a store is next opened on it. Raises Held, naming
    the store that has it, or StoreUnavailable.
    """
    root = folders.root
    for place in {folders.of(name) for name in names}:
        if place.is_dir() and not place.is_relative_to(root):
            _refuse_inner(place, root)
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
            if not _lives(Path(_text(mark))):
                # That store is gone, or was moved.
                replace_file(mark, os.fsencode(root), access)
        return
    except OSError as error:
        raise opening_failed(mark, error) from None
    sync(place)


def _write_mark(folder: int, name: str, root: Path, access: Access) -> None:
    fd = os.open(
        name,
        os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
        0o600,
        dir_fd=folder,
    )
    try:
        dress(fd, access)
        os.write(fd, os.fsencode(root))
        os.fsync(fd)
    finally:
        os.close(fd)


def _refuse_claimed(place: Path, root: Path) -> None:
    owner = _text(place / MARK)
    if owner and Path(owner) != root and _lives(Path(owner)):
        raise _taken(place, Path(owner), f"or remove {place / MARK} if that store is used no more")


def _refuse_inner(place: Path, root: Path) -> None:
    """A folder may be the root of another store, or the place that one has below its root."""
    for owner in (place, place.parent):
        if owner != root and _lives(owner):
            raise _taken(place, owner, "or give that store")


def _taken(place: Path, owner: Path, else_: str) -> Held:
    return Held(
        f"{place} belongs to the store files:{owner}, and two stores on one folder would "
        "overwrite each other: give this one "
        f"another folder, {else_}",
        path=str(place),
        holder=f"files:{owner}",
    )


def _lives(root: Path) -> bool:
    return (root / OWN / "store.sqlite").exists()


def _text(mark: Path) -> str:
    try:
        return os.fsdecode(read_file(mark, access_like(mark.parent)))
    except (OSError, StoreUnavailable):
        return ""
