"""The revisions of a volatile file, counted in memory that all its processes share.

Writing every revision into the file would cost a second page with each change. So the file keeps a
bound (LAST_REVISION), and no revision beyond the bound is given. The last revision given is in the
gate's side file, mapped into memory, and is touched only inside the gate.

The memory alone proves nothing: the side file may be new, or a program that does not know it may
have continued from the bound. So the memory says for which bound it counts, and each statement or
transaction that uses a revision checks in itself that the file still has that bound. The bound only
grows, so memory that counts for another bound is never believed again.
"""

import os
from pathlib import Path
from time import monotonic_ns

from holdfast.kernel.errors import StoreUnavailable
from holdfast.stores.sqlite.errors import opening_failed
from holdfast.stores.sqlite.filesystem import open_side_file
from holdfast.system.access import Access
from holdfast.system.folder_walk import Folder

STRIDE = 1024
"""How far the bound moves beyond the last revision given when the next one would pass it."""

_BYTES = 24

_WANTED_MS = 20
"""How long those that leave the gate yield after somebody found it shut: long enough for the waiter
to get the processor. Where nobody waits, yielding would only give time to strangers.
"""


class SharedCounter:
    """Three numbers that all processes see at once: the last revision and the bound, used only
    inside the gate, and when somebody last found the gate shut, which is a hint.
    """

    def __init__(self, path: Path, access: Access, folder: Folder | None = None) -> None:
        # Most programs never open a volatile file.
        import mmap

        try:
            # A descriptor of its own: one that shared the gate's lock would keep it, in a child,
            # beyond its holder's death.
            fd = open_side_file(path, access, folder)
            try:
                # Never overwrites, and leaves no hole: on a full disk that would become a SIGBUS.
                os.posix_fallocate(fd, 0, _BYTES)
                self._memory = mmap.mmap(fd, _BYTES)
                self._numbers = memoryview(self._memory).cast("q")
            finally:
                os.close(fd)
        except OSError as error:
            raise opening_failed(path, error) from None
        except ValueError:
            raise StoreUnavailable(
                f"{path} was truncated while it was opened: try again", outcome="none"
            ) from None

    def take(self) -> tuple[int, int]:
        """The next revision, given from here on even if its statement fails, and the bound that the
        statement must find in the file. A revision beyond the bound means that none is left.
        """
        numbers = self._numbers
        revision, bound = numbers[0] + 1, numbers[1]
        if revision <= bound:
            numbers[0] = revision
        return revision, bound

    def next(self, bound: int) -> int:
        """The next revision, for a caller that has just read this bound in the file; one beyond the
        bound when none is left. It counts as given after `give`.
        """
        given, known = self._numbers[0], self._numbers[1]
        return given + 1 if known == bound and given < bound else bound + 1

    def give(self, last: int) -> None:
        """Before the commit: all revisions up to this one are given."""
        self._numbers[0] = last

    def begin(self, last: int, bound: int) -> None:
        """After the commit of a new bound: count below it, from the last revision given."""
        # In this order: killed in between, the memory counts for an old bound, which is never
        # believed again.
        self._numbers[0] = last
        self._numbers[1] = bound

    def want(self) -> None:
        """Say that the gate is wanted. This clock is the same for all processes of a machine."""
        self._numbers[2] = monotonic_ns() // 1_000_000

    def wanted(self) -> bool:
        """Did somebody find the gate shut a short while ago?"""
        return 0 <= monotonic_ns() // 1_000_000 - self._numbers[2] <= _WANTED_MS

    def close(self) -> None:
        """Unmap the memory; others go on counting in it."""
        self._numbers.release()
        self._memory.close()
