"""Where a files store keeps everything: its root, its own folder, and the folder of each layout.

A folder outside of the root has a mark with the store that owns it. Two stores do not lock each
other out, so a folder must not belong to both.
"""

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from holdfast.kernel.errors import Held, StoreUnavailable
from holdfast.kernel.layout import FilePerRecord, OneFile
from holdfast.kernel.names import check_id
from holdfast.kernel.settings import DEFAULT_NAMESPACE
from holdfast.kernel.space import Space
from holdfast.stores.files.disk import sync_folder
from holdfast.stores.sqlite.errors import opening_failed
from holdfast.system.access import Access, access_like, dress, in_folder, read_file, replace_file
from holdfast.system.folder_walk import resolve

OWN = ".holdfast"
"""The folder below the root for everything that no layout has a file for."""


class Folders:
    """The folders of one store in one namespace.

    A layout's folder is below the root, unless `given` says where; a given path may be relative to
    the root. Namespaces other than the default have their folders below the store's own.
    """

    def __init__(self, root: Path, namespace: str, given: Mapping[str, str | Path]) -> None:
        self.root = Path(resolve(root))
        self.own = self.root / OWN
        self._namespace = namespace
        self._given = {
            check_id(name, "folder"): resolve(self.root / path) for name, path in given.items()
        }

    def of(self, folder: str) -> Path:
        """The path of a layout's folder. Raises InvalidName for a name that cannot be one."""
        check_id(folder, "folder")
        if self._namespace != DEFAULT_NAMESPACE:
            return self.own / "namespaces" / self._namespace / folder
        return Path(self._given.get(folder) or self.root / folder)

    def to_text(self, path: Path) -> str:
        """A path for a redo record: relative below the root, so that a store can be moved."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)

    def from_text(self, text: str) -> Path:
        return self.root / text


def file_layout(space: Space[Any]) -> OneFile[Any] | FilePerRecord[Any] | None:
    """The layout of a space that is kept in files; None for one in the inner store."""
    layout = space.layout
    return layout if isinstance(layout, OneFile | FilePerRecord) and not space.volatile else None


def lock_path(folders: Folders, layout: OneFile[Any] | FilePerRecord[Any]) -> Path | None:
    """The file that other programs lock while they change this layout's files, if there is one."""
    return None if layout.lock is None else folders.of(layout.folder) / layout.lock


def lock_paths(folders: Folders, spaces: Iterable[Space[Any]]) -> tuple[Path, ...]:
    """The lock files of these spaces, in the order in which they are to be taken."""
    layouts = (layout for space in spaces if (layout := file_layout(space)) is not None)
    paths = (lock_path(folders, layout) for layout in layouts)
    return tuple(sorted({path for path in paths if path is not None}))


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
