"""What a program does to a disk, without descriptors and paths.

`begun` and `done` are places in the recording: the operation took effect somewhere between them. A
sync covers what was done before it had begun, and counts once it is done.
"""

from dataclasses import dataclass

ROOT = 0
"""The number of the folder in which everything happens. It was there, and empty, before the program
began.
"""


@dataclass(frozen=True, slots=True)
class Operation:
    """Something a process did."""

    pid: int
    begun: int
    done: int


@dataclass(frozen=True, slots=True)
class Written(Operation):
    """Bytes were put into a file."""

    file: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Resized(Operation):
    """A file was cut or made longer."""

    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A name in a folder, and what it stands for from now on: nothing if `item` is None."""

    folder: int
    name: str
    item: int | None


@dataclass(frozen=True, slots=True)
class Named(Operation):
    """Names were made, taken away or moved, all of `entries` at once."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Synced(Operation):
    """A file's content or a folder's names were synced; those of everything if `item` is None."""

    item: int | None


@dataclass(frozen=True, slots=True)
class SyncFailed(Operation):
    """A sync of a file or folder failed. Its earlier writes are not on disk, and no later sync will
    put them there, since the kernel marks those pages as written.
    """

    item: int


@dataclass(frozen=True, slots=True)
class Acknowledged(Operation):
    """The program acknowledged something."""

    message: bytes
