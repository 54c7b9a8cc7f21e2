"""The model of a disk: for each file and folder what was synced, and what changed since."""

from collections.abc import Mapping

from proof.powerloss.operations import (
    ROOT,
    Entry,
    Named,
    Operation,
    Resized,
    Synced,
    SyncFailed,
    Written,
)
from proof.powerloss.tree import Kind


class FileOnDisk:
    """A file's synced content, and the writes and cuts that may or may not have reached the disk,
    in order.
    """

    __slots__ = ("pending", "synced")

    def __init__(self) -> None:
        self.synced = bytearray()
        self.pending: list[Written | Resized] = []

    def sync(self, before: int) -> None:
        """Changes before that place are now synced."""
        later: list[Written | Resized] = []
        for change in self.pending:
            if change.done < before:
                put(self.synced, change)
            else:
                later.append(change)
        self.pending = later

    def fail(self, before: int) -> None:
        """Data written before that place is lost, though the running programs still see it. Lengths
        are kept by the file system itself.
        """
        self.pending = [
            change
            for change in self.pending
            if change.done >= before or isinstance(change, Resized)
        ]


class FolderOnDisk:
    """A folder's synced names, and the later changes to them, of which a power loss leaves a
    prefix.
    """

    __slots__ = ("pending", "synced")

    def __init__(self) -> None:
        self.synced: dict[str, int] = {}
        self.pending: list[tuple[int, tuple[Entry, ...]]] = []

    def sync(self, before: int) -> None:
        """Changes before that place are now synced, and earlier changes in order too."""
        covered = max(
            (i + 1 for i, (done, _) in enumerate(self.pending) if done < before), default=0
        )
        for _, entries in self.pending[:covered]:
            rename(self.synced, entries)
        del self.pending[:covered]


class Disk:
    """All files and folders below the root. `apply` moves it one operation on."""

    def __init__(self, kinds: Mapping[int, Kind]) -> None:
        self.files: dict[int, FileOnDisk] = {}
        self.folders: dict[int, FolderOnDisk] = {ROOT: FolderOnDisk()}
        self.kinds = kinds

    def apply(self, operation: Operation) -> None:
        if isinstance(operation, Written | Resized):
            self.file(operation.file).pending.append(operation)
        elif isinstance(operation, Named):
            folders = dict.fromkeys(entry.folder for entry in operation.entries)
            for number in folders:
                mine = tuple(entry for entry in operation.entries if entry.folder == number)
                self.folder(number).pending.append((operation.done, mine))
        elif isinstance(operation, Synced):
            self._sync(operation)
        elif isinstance(operation, SyncFailed) and self.kinds[operation.item] == "file":
            self.file(operation.item).fail(operation.begun)

    def file(self, number: int) -> FileOnDisk:
        return self.files.setdefault(number, FileOnDisk())

    def folder(self, number: int) -> FolderOnDisk:
        return self.folders.setdefault(number, FolderOnDisk())

    def _sync(self, operation: Synced) -> None:
        if operation.item is None:
            for file in self.files.values():
                file.sync(operation.begun)
            for folder in self.folders.values():
                folder.sync(operation.begun)
        elif self.kinds[operation.item] == "folder":
            self.folder(operation.item).sync(operation.begun)
        else:
            self.file(operation.item).sync(operation.begun)


def put(content: bytearray, change: Written | Resized) -> None:
    """Apply a change to a file's content."""
    if isinstance(change, Written):
        write(content, change.offset, change.data)
    elif change.size < len(content):
        del content[change.size :]
    else:
        content.extend(bytes(change.size - len(content)))


def write(content: bytearray, offset: int, data: bytes) -> None:
    """Put data at an offset; a gap before it is zeros."""
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def rename(names: dict[str, int], entries: tuple[Entry, ...]) -> None:
    """Apply a change to a folder's names."""
    for entry in entries:
        if entry.item is None:
            names.pop(entry.name, None)
        else:
            names[entry.name] = entry.item
