"""Where a files store keeps everything: its root, its own folder, and the folder of each layout."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from holdfast.kernel.layout import FilePerRecord, OneFile
from holdfast.kernel.names import check_id
from holdfast.kernel.settings import DEFAULT_NAMESPACE
from holdfast.kernel.space import Space
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
