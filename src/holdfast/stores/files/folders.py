"""Where a files store keeps everything: its root, its own folder, the folder of each layout, the
names of files, and folders without a record.

A folder outside of the root has a mark with the store that owns it. Two stores do not lock each
other out, so a folder must not belong to both.

The name of a record's file stands for its key: a plain id is its own name, so that folders of other
programs are read as they are; any other key is percent-encoded (kernel/names.py); a key that is too
long for a file system is named by a hash, which only the store can map back to the key.
"""

import contextlib
import os
import re
import shutil
import stat
import time
from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

from holdfast.kernel.errors import Held, InvalidValue, StoreUnavailable
from holdfast.kernel.layout import FilePerRecord, OneFile
from holdfast.kernel.names import check_id, path_component
from holdfast.kernel.settings import DEFAULT_NAMESPACE
from holdfast.kernel.space import Space
from holdfast.kernel.store import Leftover
from holdfast.stores.sqlite.errors import opening_failed
from holdfast.system.access import Access, access_like, dress, in_folder, read_file, replace_file
from holdfast.system.folder_walk import resolve
from holdfast.system.sync import sync_path

OWN = ".holdfast"
"""The folder below the root for everything that no layout has a file for."""


class StoreFolders:
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


def lock_path(folders: StoreFolders, layout: OneFile[Any] | FilePerRecord[Any]) -> Path | None:
    """The file that other programs lock while they change this layout's files, if there is one."""
    return None if layout.lock is None else folders.of(layout.folder) / layout.lock


def lock_paths(folders: StoreFolders, spaces: Iterable[Space[Any]]) -> tuple[Path, ...]:
    """The lock files of these spaces, in the order in which they are to be taken."""
    layouts = (layout for space in spaces if (layout := file_layout(space)) is not None)
    paths = (lock_path(folders, layout) for layout in layouts)
    return tuple(sorted({path for path in paths if path is not None}))


NAME_BYTES_MAX = 160
"""Longest encoded key in a file's name. With a layout's prefix and suffix and the endings of
copies, the name stays below the 255 bytes of common file systems.
"""

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_HASHED = "%~"


def name_of(key: str) -> str:
    """The name of a key: one path component, never `.` or `..`, unique to the key."""
    name = key if _PLAIN.match(key) else path_component(key)
    return name if len(name) <= NAME_BYTES_MAX else _HASHED + sha256(key.encode()).hexdigest()


def key_of(name: str, known: Iterable[str]) -> str | None:
    """The key of a name; None for a name of no key. The key of a hash is looked up in `known`."""
    if is_hashed(name):
        return next((key for key in known if name_of(key) == name), None)
    key = name if _PLAIN.match(name) else unquote(name, errors="replace")
    return key if key and name_of(key) == name else None


def is_hashed(name: str) -> bool:
    return name.startswith(_HASHED)


class Pattern(NamedTuple):
    """A layout's file name, split at its key: `base/prefix{key}suffix/rest`. Base and rest may be
    empty. The component is the part between the slashes that holds the key.
    """

    base: str
    prefix: str
    suffix: str
    rest: str

    def path(self, key: str) -> str:
        """The path of a key's file below the base."""
        return self.path_of_component(self.component(key))

    def component(self, key: str) -> str:
        return f"{self.prefix}{name_of(key)}{self.suffix}"

    def path_of_component(self, component: str) -> str:
        return f"{component}/{self.rest}" if self.rest else component

    def name_in(self, component: str) -> str | None:
        """The name of the key in a component; None when the component does not match."""
        if not (component.startswith(self.prefix) and component.endswith(self.suffix)):
            return None
        return component[len(self.prefix) : len(component) - len(self.suffix)] or None


@lru_cache(maxsize=256)
def pattern_of(name: str) -> Pattern:
    """Split a name. Raises InvalidValue unless it has `{key}` once and stays below its folder."""
    if name.count("{key}") != 1 or not _is_below(name):
        raise InvalidValue(
            f"{name!r} cannot name the files of a space: it needs {{key}} once, and must stay "
            "below its folder"
        )
    parts = name.split("/")
    at = next(number for number, part in enumerate(parts) if "{key}" in part)
    prefix, _, suffix = parts[at].partition("{key}")
    return Pattern("/".join(parts[:at]), prefix, suffix, "/".join(parts[at + 1 :]))


def check_file_name(name: str) -> str:
    """Return the name of a layout's file. Raises InvalidValue for one that leaves its folder."""
    if _is_below(name):
        return name
    raise InvalidValue(f"{name!r} cannot name the file of a space: it leaves its folder")


def _is_below(name: str) -> bool:
    return (
        not name.startswith("/") and "\0" not in name and not {"", ".", ".."} & set(name.split("/"))
    )


MARK = ".holdfast-store"
"""The file in such a folder that names the root of the owning store."""


def claim_all(folders: StoreFolders, names: Iterable[str], access: Access) -> None:
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
    sync_path(place)


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


def find_leftovers(folders: StoreFolders, space: Space[Any]) -> list[Leftover]:
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


def remove_leftover(
    folders: StoreFolders, space: Space[Any], key: str, *, older_than_s: float
) -> bool:
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


def _record_folders(folders: StoreFolders, space: Space[Any]) -> tuple[Path, Pattern] | None:
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
