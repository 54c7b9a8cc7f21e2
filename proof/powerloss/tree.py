"""The files and folders below the root as running programs see them, before any power loss."""

from dataclasses import dataclass
from typing import Literal

from proof.powerloss.operations import ROOT, Entry

Kind = Literal["file", "folder", "fifo"]
Parts = tuple[str, ...]
"""A path from the root on."""


@dataclass(eq=False, slots=True)
class Item:
    """A file, folder or FIFO, whether it still has a name or not."""

    number: int
    kind: Kind
    entries: dict[str, "Item"]
    size: int = 0


class Tree:
    """Names and what they stand for. Raises LookupError where the recording and the tree do not
    agree.
    """

    def __init__(self, root: str) -> None:
        self.kinds: dict[int, Kind] = {ROOT: "folder"}
        self.names: dict[int, str] = {ROOT: ""}
        self._root = root
        self._top = Item(ROOT, "folder", {})

    def parts(self, path: str) -> Parts | None:
        """The path from the root on; None if it does not lead below it."""
        if path == self._root:
            return ()
        if not path.startswith(self._root + "/"):
            return None
        return tuple(path[len(self._root) + 1 :].split("/"))

    def find(self, parts: Parts | None) -> Item | None:
        """What a path stands for."""
        if parts is None:
            return None
        item = self._top
        for name in parts:
            if name not in item.entries:
                return None
            item = item.entries[name]
        return item

    def make(self, kind: Kind) -> Item:
        """Something new, without a name yet."""
        item = Item(len(self.kinds), kind, {})
        self.kinds[item.number] = kind
        self.names[item.number] = ""
        return item

    def put(self, parts: Parts, item: Item) -> Entry:
        """Give it a name, which may have been another's."""
        folder = self._folder(parts)
        folder.entries[parts[-1]] = item
        self.names[item.number] = "/".join(parts)
        return Entry(folder.number, parts[-1], item.number)

    def remove(self, parts: Parts) -> Entry:
        """Take the name away."""
        folder = self._folder(parts)
        if folder.entries.pop(parts[-1], None) is None:
            raise LookupError(f"{'/'.join(parts)} was removed, and nobody had made it")
        return Entry(folder.number, parts[-1], None)

    def _folder(self, parts: Parts) -> Item:
        folder = self.find(parts[:-1])
        if folder is None or not parts:
            raise LookupError(f"nobody had made the folder of {'/'.join(parts) or 'the root'}")
        return folder
