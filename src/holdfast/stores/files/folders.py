"""Where everything lies: the root, what is the store's own in it, and the folder of each layout."""

from collections.abc import Mapping
from pathlib import Path

from holdfast.kernel.names import check_id
from holdfast.kernel.settings import DEFAULT_NAMESPACE
from holdfast.system.folder_walk import resolve

OWN = ".holdfast"
"""The folder below the root for what the layouts have no place for."""


class Folders:
    """The places of one store in one namespace.

    A layout's folder lies below the root under its own name, unless `given` says where; a path
    given there may be relative to the root. Other namespaces than the default have folders of their
    own below the store's.
    """

    def __init__(self, root: Path, namespace: str, given: Mapping[str, str | Path]) -> None:
        self.root = Path(resolve(root))
        self.own = self.root / OWN
        self._namespace = namespace
        self._given = {
            check_id(name, "folder"): resolve(self.root / path) for name, path in given.items()
        }

    def of(self, folder: str) -> Path:
        """The folder of that name. Raises InvalidValue for what cannot be one."""
        check_id(folder, "folder")
        if self._namespace != DEFAULT_NAMESPACE:
            return self.own / "namespaces" / self._namespace / folder
        return Path(self._given.get(folder) or self.root / folder)

    def told(self, path: Path) -> str:
        """A path as a redo record keeps it: relative below the root, so that the whole may be
        moved.
        """
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)

    def found(self, told: str) -> Path:
        """The same back again."""
        return self.root / told
