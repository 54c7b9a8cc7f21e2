"""The revisions of a volatile file: counted in memory that all its processes share, below a bound
that the file keeps.

To write every revision into the file would cost a second page with each change. So the file keeps a
bound instead: it is what LAST_REVISION says, and no revision beyond it was given. The last one
given is in the gate's side file, mapped into memory, and is touched inside the gate alone.

That memory proves nothing by itself: the side file may be new, or a program that does not know it
may have gone on from the bound. It therefore says for which bound it counts, and every statement or
transaction that uses a revision of it makes sure, in itself, that the file's bound is that one. The
bound only grows, so memory that counts for another is never believed again.
"""

import os
from pathlib import Path
from time import monotonic_ns

from holdfast.kernel.errors import StoreUnavailable
from holdfast.stores.sqlite.errors import opening_failed
from holdfast.system.access import Access, open_file

STRIDE = 1024
"""How far the bound is moved beyond the last revision given when the next would pass it."""

_BYTES = 24

_WANTED_MS = 20
"""How long after somebody found the gate shut those that leave it give way. Long enough for the one
who wants in to get the processor; where nobody does, giving way would only give it to strangers.
"""


class SharedCounter:
    """Numbers that every process which maps the file sees at once: the last revision and the bound,
    which are used inside the gate alone, and when somebody last found the gate shut, which is a
    hint.
    """

    def __init__(self, path: Path, access: Access) -> None:
        # Most programs never open a volatile file.
        import mmap

        try:
            # A descriptor of its own: one that shared the gate's lock would keep it, in a child,
            # beyond its holder's death.
            fd = open_file(path, os.O_RDWR, access)
            try:
                # Never overwrites, and leaves no hole that a full disk would make a signal of.
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
        """The next revision, which is given from here on whether or not its statement succeeds, and
        the bound that the statement must find in the file. The revision is greater than the bound
        when there is none left below it.
        """
        numbers = self._numbers
        revision, bound = numbers[0] + 1, numbers[1]
        if revision <= bound:
            numbers[0] = revision
        return revision, bound

    def next(self, bound: int) -> int:
        """The next revision for whoever has just read the file's bound; one beyond the bound when
        there is none below it. It is not given before `give`.
        """
        given, known = self._numbers[0], self._numbers[1]
        return given + 1 if known == bound and given < bound else bound + 1

    def give(self, last: int) -> None:
        """Before the commit: all revisions up to this one are given."""
        self._numbers[0] = last

    def begin(self, last: int, bound: int) -> None:
        """After the commit of a new bound: count on below it from the last revision given."""
        # In this order: killed in between, it counts for an old bound, which is never believed
        # again.
        self._numbers[0] = last
        self._numbers[1] = bound

    def want(self) -> None:
        """Say that the gate is wanted. This clock is the same for all processes of a machine."""
        self._numbers[2] = monotonic_ns() // 1_000_000

    def wanted(self) -> bool:
        """Did somebody find the gate shut a short while ago?"""
        return 0 <= monotonic_ns() // 1_000_000 - self._numbers[2] <= _WANTED_MS

    def close(self) -> None:
        """Let go of the memory; others go on counting in it."""
        self._numbers.release()
        self._memory.close()
