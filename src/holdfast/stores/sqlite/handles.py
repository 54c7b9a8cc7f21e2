"""The SQLite handles of this process. None may be open while it forks.

SQLite keeps its locks in a table of the process. A child would inherit the table but not the locks,
and take them for its own for ever: each of its connections to the same file would trust locks
that the kernel has not given, and others would delete the log under it. SQLite's mutexes may also
be held by a thread that the child lacks, and then any call of SQLite hangs, whatever file it is
for.

So a process that forks closes its idle handles and waits for the rest. A child that is born while a
handle is open uses no SQLite at all, nor do its own children: every open is refused, until another
program is begun by exec.
"""

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident
from typing import Any

from holdfast.kernel.errors import LockTimeout, StoreUnavailable

FORK_WAIT_S = 2.0
"""How long a fork waits for the handles that are in use."""

NOBODY = 0
"""No thread has this id."""

_LOOK_AGAIN_S = 0.001


class Handle:
    """A connection, from before it is opened until after it is closed."""

    __slots__ = ("admitted", "cursor", "owner", "raw")

    def __init__(self) -> None:
        # The thread that uses it; NOBODY while it is idle. A fork does not wait for handles of its
        # own thread, so it must not mistake one that another thread has just picked up for its own.
        self.owner = get_ident()
        # True once its thread may call SQLite. Before that, the handle makes no child unsound.
        self.admitted = False
        self.raw: sqlite3.Connection | None = None
        # Freeing a cursor resets its statement, so it is kept as long as its connection.
        self.cursor: sqlite3.Cursor | None = None

    def begin(self, path: Path, timeout_s: float) -> None:
        """Before the connection is opened: wait while this process forks. The caller closes the
        handle, also after an error. Raises LockTimeout when a fork takes too long, and
        StoreUnavailable as `check` does.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            check()
            # Added first, then looked: of a thread that opens and one that forks, one sees the
            # other.
            _open.add(self)
            # The fork waits for a thread that has one open already, so that one must not wait.
            if not _forking or _count_of(self.owner) > 1:
                self.admitted = True
                return
            _open.discard(self)
            if not _forked.wait(max(deadline - time.monotonic(), 0)):
                raise LockTimeout(
                    f"{path} could not be opened within {timeout_s:g} s: this process is forking",
                    outcome="none",
                )

    def is_ours(self) -> bool:
        """Is it open, and not one that a forked child inherited?"""
        return self in _open

    def close(self) -> None:
        """Close the connection. A forked child that inherited it leaves it alone."""
        # In this order: a fork takes an empty set as proof that no thread is inside SQLite.
        if self in _open:
            try:
                if self.cursor is not None:
                    # SQLite keeps a closed connection, with its locks, while a cursor has a
                    # statement that did not end.
                    self.cursor.close()
            finally:
                try:
                    if self.raw is not None:
                        self.raw.close()
                finally:
                    _open.discard(self)


_open: set[Handle] = set()
_unsound = False
_process = os.getpid()
_fork = threading.RLock()
_forking = False
_forked = threading.Event()
_inherited: list[set[Handle]] = []


def check() -> None:
    """Raise StoreUnavailable in a process that must not use SQLite."""
    if _process != os.getpid():
        # A C library has forked without Python's hooks, and nothing was closed before.
        _after_fork_in_child()
    if _unsound:
        raise refusal()


def refusal() -> StoreUnavailable:
    """The error in a process that was forked while SQLite was in use."""
    return StoreUnavailable(
        "this process was forked while a thread of its parent was using the store, so SQLite "
        "cannot be used here: begin it by `spawn` or `forkserver` "
        "(multiprocessing.set_start_method), or as a program of its own; nothing was changed",
        outcome="none",
        forked=True,
    )


@contextmanager
def opened(path: Path, *, mode: str | None = None, **options: Any) -> Iterator[sqlite3.Connection]:
    """A connection for the block, outside of the connections of a store. `mode` is that of a SQLite
    URI. Does not wait while this process forks, since a connection of a store may be waiting for
    it. Raises sqlite3.Error, and StoreUnavailable as `check` does.
    """
    check()
    handle = Handle()
    handle.admitted = True
    try:
        _open.add(handle)
        name = str(path) if mode is None else f"{path.absolute().as_uri()}?mode={mode}"
        handle.raw = sqlite3.connect(name, uri=mode is not None, **options)
        yield handle.raw
    finally:
        handle.close()


def begin_fork(close_idle: Callable[[], None]) -> None:
    """Before this process forks: let nobody open a handle, and wait a short while until none is
    open. `close_idle` closes those that nobody uses.
    """
    global _forking
    _fork.acquire()
    _forked.clear()
    _forking = True
    deadline = time.monotonic() + FORK_WAIT_S
    while True:
        close_idle()
        if not _open:
            return
        # What this thread itself uses, inside a transaction, is not closed by waiting.
        if time.monotonic() > deadline or _count_of(get_ident()):
            break
        # Nobody is notified of a closed handle, and a fork waits for it once.
        time.sleep(_LOOK_AGAIN_S)
    # For the child, which must not import it while a thread that it lacks may be importing.
    import ctypes  # noqa: F401


def _count_of(thread: int) -> int:
    while True:
        try:
            return sum(handle.owner == thread for handle in _open)
        except RuntimeError:
            # Another thread has just opened or closed one.
            continue


def _after_fork_in_parent() -> None:
    global _forking
    if not _forking:
        # No store was ever opened, so nothing began the fork here.
        return
    _forking = False
    _forked.set()
    _fork.release()


def _after_fork_in_child() -> None:
    # First of all, and without needing memory or anything else that can fail.
    global _unsound, _forking, _open, _fork, _forked, _process
    for handle in _open:
        if handle.admitted:
            _unsound = True
    _forking = False
    _process = os.getpid()
    inherited = _open
    _open = set()
    _fork = threading.RLock()
    _forked = threading.Event()
    if inherited:
        # Never freed, not even when the interpreter ends: closing a connection of the parent's
        # would do harm, or hang.
        _inherited.append(inherited)
        import ctypes

        for handle in inherited:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))


# Hooks of children run in the order of their registration: this one comes before those of the
# stores.
os.register_at_fork(after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
