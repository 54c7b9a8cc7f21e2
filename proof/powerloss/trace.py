"""A recording as operations on a disk: descriptors and paths followed to the files they stand
for.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from proof.powerloss.calls import FORKS, Call, descriptor, parse, path
from proof.powerloss.descriptors import Descriptors, OpenFile
from proof.powerloss.operations import (
    Acknowledged,
    Entry,
    Named,
    Operation,
    Resized,
    Synced,
    SyncFailed,
    Written,
)
from proof.powerloss.tree import Item, Kind, Parts, Tree

_AT_ENTRY = FORKS | {
    "close",
    "write",
    "pwrite64",
    "writev",
    "pwritev",
    "pwritev2",
    "ftruncate",
    "fallocate",
}
"""Handled at their entry: data may reach the disk before a write returns, and a descriptor's number
may be reused before a close returns.
"""
_MAKERS = frozenset({"mkdir", "mkdirat", "mknod", "mknodat", "creat"})
_TWO_PATHS = frozenset({"rename", "renameat", "renameat2", "link", "linkat"})
_BY_PATH = _MAKERS | _TWO_PATHS | {"open", "openat"}
_NOT_FOLLOWED = ("O_TMPFILE", "O_SYNC", "O_DSYNC")


@dataclass(frozen=True)
class Trace:
    """What a program did, in order; and of each item its kind, its last name, and whether its
    content was not followed.
    """

    operations: list[Operation]
    kinds: dict[int, Kind]
    names: dict[int, str]
    noise: frozenset[int] = field(default_factory=frozenset)


def trace(
    lines: Iterable[str], *, root: str, acknowledgements: str, mapped: Sequence[str] = ()
) -> Trace:
    """Read a recording. `root` was empty when it began, and both paths are real ones; the names of
    files that are written through memory end in one of `mapped`. Raises TraceError for what the
    model does not follow.
    """
    reader = _Reader(root, acknowledgements, tuple(mapped))
    calls = parse(lines, about=(root, acknowledgements))
    left = sorted(calls, key=lambda call: call.begun if call.name in _AT_ENTRY else call.done)
    while left:
        reader.read(left.pop(_first(left, reader)))
    tree = reader.tree
    noise = frozenset(number for number, name in tree.names.items() if name.endswith(tuple(mapped)))
    return Trace(reader.operations, tree.kinds, tree.names, noise)


def _first(left: Sequence[Call], reader: "_Reader") -> int:
    """Which of the calls that are left took effect next: the first or, if that uses a path that is
    not there, the call that made the path. strace may write down the return of the maker's call
    after others have used what it made.
    """
    at, seen = 0, {0}
    while (lacking := reader.lacking(left[at])) is not None:
        done = left[at].done
        makers = (
            n
            for n, other in enumerate(left)
            if n not in seen and other.begun < done and reader.makes(other, lacking)
        )
        if (maker := next(makers, None)) is None:
            break
        at = maker
        seen.add(at)
    return at


class _Reader:
    def __init__(self, root: str, acknowledgements: str, mapped: tuple[str, ...]) -> None:
        self.operations: list[Operation] = []
        self.tree = Tree(root)
        self._acknowledgements = acknowledgements
        self._mapped = mapped
        self._descriptors = Descriptors()
        self._readers: dict[str, Callable[[Call, list[str]], None]] = {
            **dict.fromkeys(FORKS, lambda call, _: self._descriptors.forked(call)),
            **dict.fromkeys(("open", "openat", "creat"), self._open),
            **dict.fromkeys(("dup", "dup2", "dup3", "fcntl"), self._copy),
            **dict.fromkeys(("write", "writev", "pwrite64", "pwritev", "pwritev2"), self._write),
            **dict.fromkeys(("ftruncate", "fallocate"), self._resize),
            **dict.fromkeys(("fsync", "fdatasync", "sync", "syncfs"), self._sync),
            **dict.fromkeys(("rename", "renameat", "renameat2"), self._rename),
            **dict.fromkeys(("unlink", "unlinkat", "rmdir"), self._unlink),
            **dict.fromkeys(("link", "linkat"), self._link),
            **dict.fromkeys(("mkdir", "mkdirat", "mknod", "mknodat"), self._make),
            "close": lambda call, words: self._descriptors.closed(
                call.pid, descriptor(words[0])[0]
            ),
            "truncate": self._cut,
            "lseek": self._seek,
            "read": self._read,
            "mmap": self._map,
        }

    def read(self, call: Call) -> None:
        if call.name not in self._readers:
            raise call.error("it is not followed")
        try:
            self._readers[call.name](call, call.words())
        except LookupError as error:
            raise call.error(str(error)) from None

    def lacking(self, call: Call) -> Parts | None:
        """The path that must exist for a call, and does not yet."""
        if call.name not in _BY_PATH:
            return None
        parts, _ = self._parts(call.words())
        if parts is None:
            return None
        needed = parts[:-1] if self._target(call) == parts else parts
        return None if self.tree.find(needed) else needed

    def makes(self, call: Call, parts: Parts) -> bool:
        """Does a call make this path, or a folder on the way there?"""
        target = self._target(call) if call.name in _BY_PATH else None
        return target is not None and parts[: len(target)] == target

    def _target(self, call: Call) -> Parts | None:
        """The path that a call gives a name to."""
        parts, rest = self._parts(call.words())
        if call.name in _TWO_PATHS:
            return self._parts(rest)[0]
        return parts if call.name in _MAKERS or "O_CREAT" in call.arguments else None

    # --- descriptors ---

    def _open(self, call: Call, words: list[str]) -> None:
        parts, rest = self._parts(words)
        if parts is None:
            return
        flags = "O_WRONLY|O_CREAT|O_TRUNC" if call.name == "creat" else rest[0]
        if any(flag in flags for flag in _NOT_FOLLOWED):
            raise call.error(f"{flags} is not followed")
        item = self.tree.find(parts)
        if item is None:
            if "O_CREAT" not in flags:
                raise call.error("it was opened, and nobody had made it")
            item = self.tree.make("file")
            self._named(call, self.tree.put(parts, item))
        if "O_TRUNC" in flags and item.size:
            self._resized(call, item, 0)
        self._descriptors.opened(call.pid, call.result, OpenFile(item, "O_APPEND" in flags))

    def _copy(self, call: Call, words: list[str]) -> None:
        if call.name != "fcntl" or words[1].startswith("F_DUPFD"):
            self._descriptors.copied(call.pid, descriptor(words[0])[0], call.result)

    def _seek(self, call: Call, words: list[str]) -> None:
        if file := self._file(call, words[0]):
            file.place = call.result

    def _read(self, call: Call, words: list[str]) -> None:
        # Recorded without its path, so that reads are left out.
        if file := self._descriptors.at(call.pid, int(words[0], 0)):
            file.place += call.result

    def _map(self, call: Call, words: list[str]) -> None:
        file = self._file(call, words[4])
        if file is None or "MAP_SHARED" not in words[3] or "PROT_WRITE" not in words[2]:
            return
        name = self.tree.names[file.item.number]
        if not name.endswith(self._mapped):
            raise call.error(
                f"{name} is written through memory; name it in `mapped` if it may be lost"
            )

    # --- content ---

    def _write(self, call: Call, words: list[str]) -> None:
        if descriptor(words[0])[1] == self._acknowledgements:
            self.operations.append(Acknowledged(call.pid, call.begun, call.done, call.data()))
            return
        file = self._file(call, words[0])
        if file is None or file.item.kind != "file":
            return
        if file.appends:
            offset = file.item.size
        elif call.name.startswith("p"):
            offset = int(words[-2] if call.name == "pwritev2" else words[-1])
        else:
            offset, file.place = file.place, file.place + call.result
        self.operations.append(
            Written(call.pid, call.begun, call.done, file.item.number, offset, call.data())
        )
        file.item.size = max(file.item.size, offset + call.result)

    def _resize(self, call: Call, words: list[str]) -> None:
        file = self._file(call, words[0])
        if file is None:
            return
        if call.name == "ftruncate":
            self._resized(call, file.item, int(words[1]))
        elif words[1] == "0":
            self._resized(call, file.item, max(file.item.size, int(words[2]) + int(words[3])))
        elif words[1] != "FALLOC_FL_KEEP_SIZE":
            raise call.error(f"{words[1]} is not followed")

    def _cut(self, call: Call, words: list[str]) -> None:
        parts, rest = self._parts(words)
        if item := self.tree.find(parts):
            self._resized(call, item, int(rest[0]))

    def _resized(self, call: Call, item: Item, size: int) -> None:
        item.size = size
        self.operations.append(Resized(call.pid, call.begun, call.done, item.number, size))

    def _sync(self, call: Call, words: list[str]) -> None:
        if call.name in ("sync", "syncfs"):
            self.operations.append(Synced(call.pid, call.begun, call.done, None))
        elif file := self._file(call, words[0]):
            ended = SyncFailed if call.result < 0 else Synced
            self.operations.append(ended(call.pid, call.begun, call.done, file.item.number))

    # --- names ---

    def _rename(self, call: Call, words: list[str]) -> None:
        old, rest = self._parts(words)
        new, rest = self._parts(rest)
        item = self.tree.find(old)
        if (
            old is None
            or new is None
            or item is None
            or (rest and rest[0] not in ("0", "RENAME_NOREPLACE"))
        ):
            raise call.error("a rename into or out of the root, or an exchange, is not followed")
        self._named(call, self.tree.remove(old), self.tree.put(new, item))

    def _unlink(self, call: Call, words: list[str]) -> None:
        parts, _ = self._parts(words)
        if parts is not None:
            self._named(call, self.tree.remove(parts))

    def _link(self, call: Call, words: list[str]) -> None:
        old, rest = self._parts(words)
        new, _ = self._parts(rest)
        item = self.tree.find(old)
        if new is None or item is None:
            raise call.error("a link into or out of the root is not followed")
        self._named(call, self.tree.put(new, item))

    def _make(self, call: Call, words: list[str]) -> None:
        parts, rest = self._parts(words)
        if parts is not None:
            kind: Kind = (
                "folder"
                if call.name.startswith("mkdir")
                else "fifo"
                if "S_IFIFO" in rest[0]
                else "file"
            )
            self._named(call, self.tree.put(parts, self.tree.make(kind)))

    def _named(self, call: Call, *entries: Entry) -> None:
        self.operations.append(Named(call.pid, call.begun, call.done, entries))

    # --- arguments ---

    def _parts(self, words: list[str]) -> tuple[Parts | None, list[str]]:
        where, rest = path(words)
        return self.tree.parts(where), rest

    def _file(self, call: Call, word: str) -> OpenFile | None:
        """What a descriptor stands for, None if it is nothing below the root."""
        number, where = descriptor(word)
        if self.tree.parts(where) is None:
            return None
        file = self._descriptors.at(call.pid, number)
        if file is None:
            raise call.error(f"nobody is known to have opened descriptor {number}")
        return file
