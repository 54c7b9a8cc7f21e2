"""strace's output as a list of calls: entry and return joined, without failed calls except syncs."""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

TRACED = (
    "?open,openat,?openat2,?creat,close,?dup,?dup2,dup3,fcntl,lseek,read,chdir,fchdir,"
    "write,pwrite64,writev,pwritev,pwritev2,ftruncate,?truncate,fallocate,mmap,"
    "fsync,fdatasync,sync,syncfs,"
    "?rename,?renameat,renameat2,?unlink,unlinkat,?link,linkat,?symlink,symlinkat,"
    "?mkdir,mkdirat,?rmdir,?mknod,mknodat,"
    "copy_file_range,sendfile,splice,"
    "clone,?clone3,?fork,?vfork"
)
"""The recorded calls. A question mark: only if the machine has that call."""

FORKS = frozenset({"clone", "clone3", "fork", "vfork"})
SYNCS = frozenset({"fsync", "fdatasync"})
"""Calls on one file that matter even if they fail."""
_WITHOUT_PATH = FORKS | {"read", "sync"}

_WHOLE = re.compile(r"(\d+) +(\w+)\((.*)\) += (\S+)", re.DOTALL)
_ENTRY = re.compile(r"(\d+) +(\w+)\((.*) <unfinished \.\.\.>$", re.DOTALL)
_RETURN = re.compile(r"(\d+) +<\.\.\. (\w+) resumed>(.*)\) += (\S+)", re.DOTALL)
_RESULT = re.compile(r"0x[0-9a-f]+|-?\d+")
_DESCRIPTOR = re.compile(r"(\d+|AT_FDCWD)<((?:\\x[0-9a-f]{2})*)>")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')


class TraceError(Exception):
    """The recording contains something that the model does not follow, so its states would prove
    nothing.
    """


@dataclass(frozen=True, slots=True)
class Call:
    """One system call that succeeded, or a sync that failed, whose result is negative. `begun` and
    `done` are the lines of its entry and its return.
    """

    pid: int
    name: str
    arguments: str
    result: int
    begun: int
    done: int

    def words(self) -> list[str]:
        """The arguments one by one. With -xx no string holds a comma; a list is not kept
        together.
        """
        return self.arguments.split(", ")

    def data(self) -> bytes:
        """The data of a write. Raises TraceError if the recording cut it."""
        strings = _STRING.findall(self.arguments)
        if any(cut for _, cut in strings):
            raise self.error("the recording cut what was written")
        return b"".join(unescaped(text) for text, _ in strings)[: self.result]

    def error(self, why: str) -> TraceError:
        return TraceError(f"line {self.begun + 1}, {self.name} of {self.pid}: {why}")


def parse(lines: Iterable[str], *, about: Sequence[str]) -> list[Call]:
    """The calls that name one of the paths `about`, and those that can name none, in the order of
    their entry.

    The lines are those of `strace -f -y -xx -e raw=read`. Calls that had not returned when the
    recording ended are left out.
    """
    marks = [escaped(path) for path in about]
    calls: list[Call] = []
    entered: dict[int, tuple[int, str]] = {}

    def keep(pid: str, name: str, arguments: str, result: str, begun: int, done: int) -> None:
        value = _RESULT.match(result)
        if value is None or (value[0].startswith("-") and name not in SYNCS):
            return
        if name in _WITHOUT_PATH or any(mark in arguments for mark in marks):
            calls.append(Call(int(pid), name, arguments, int(value[0], 0), begun, done))

    for number, line in enumerate(lines):
        if whole := _WHOLE.match(line):
            keep(whole[1], whole[2], whole[3], whole[4], number, number)
        elif entry := _ENTRY.match(line):
            entered[int(entry[1])] = number, entry[3]
        elif (back := _RETURN.match(line)) and int(back[1]) in entered:
            begun, arguments = entered.pop(int(back[1]))
            keep(back[1], back[2], arguments + back[3], back[4], begun, number)
    return sorted(calls, key=lambda call: call.begun)


def descriptor(word: str) -> tuple[int, str]:
    """The number and the path that a word shows, as in `5</a/path>`; -1 and "" if it shows none."""
    shown = _DESCRIPTOR.match(word)
    if shown is None:
        return -1, ""
    return int(shown[1]) if shown[1].isdecimal() else -1, unescaped(shown[2]).decode(
        errors="replace"
    )


def path(words: list[str]) -> tuple[str, list[str]]:
    """The path with which the words begin, with or without a folder's descriptor before it, and the
    words behind it.

    A path of one of the old calls, without a folder, is taken for an absolute one.
    """
    base = "/"
    if not words[0].startswith('"'):
        base, words = descriptor(words[0])[1], words[1:]
    shown = _STRING.match(words[0])
    name = unescaped(shown[1]).decode(errors="replace") if shown else ""
    return os.path.normpath(os.path.join(base, name)), words[1:]


def escaped(text: str) -> str:
    """A string as strace -xx shows it."""
    return "".join(f"\\x{byte:02x}" for byte in text.encode())


def unescaped(text: str) -> bytes:
    """The bytes of a string as strace -xx shows it."""
    return bytes.fromhex(text.replace("\\x", ""))
