"""Which file each descriptor of each process stands for, across forks, threads and dup."""

from dataclasses import dataclass

from proof.powerloss.calls import Call
from proof.powerloss.tree import Item


@dataclass(eq=False, slots=True)
class OpenFile:
    """The result of an `open`: descriptors copied from one share its place in the file."""

    item: Item
    appends: bool
    place: int = 0


class Descriptors:
    """The descriptors of all processes that stand for something below the root.

    An `exec` is not followed: what it closed is still here, and nobody can use it.
    """

    def __init__(self) -> None:
        self._tables: dict[int, dict[int, OpenFile]] = {}

    def opened(self, pid: int, fd: int, what: OpenFile) -> None:
        self._table(pid)[fd] = what

    def copied(self, pid: int, fd: int, to: int) -> None:
        """`to` becomes a copy of `fd`, which may be a descriptor of something else."""
        table = self._table(pid)
        if fd in table:
            table[to] = table[fd]
        else:
            table.pop(to, None)

    def closed(self, pid: int, fd: int) -> None:
        self._table(pid).pop(fd, None)

    def at(self, pid: int, fd: int) -> OpenFile | None:
        return self._table(pid).get(fd)

    def forked(self, call: Call) -> None:
        """A process or thread was made. Call this at the entry of the call: the child may run
        before it returns.
        """
        table = self._table(call.pid)
        self._tables[call.result] = table if "CLONE_FILES" in call.arguments else dict(table)

    def _table(self, pid: int) -> dict[int, OpenFile]:
        return self._tables.setdefault(pid, {})
