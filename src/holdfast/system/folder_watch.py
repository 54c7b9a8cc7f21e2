"""inotify(7) on one folder: which names any program has changed."""

import contextlib
import ctypes
import os
import struct
import weakref
from pathlib import Path

_MODIFY, _ATTRIB, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
_ONLY_A_FOLDER = 0x01000000
_EVENTS = _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _ONLY_A_FOLDER

_UNMOUNTED, _OVERFLOW, _IGNORED = 0x2000, 0x4000, 0x8000
_LOST = _UNMOUNTED | _OVERFLOW | _IGNORED
"""After these events the kernel may have left out others."""

_HEAD = struct.Struct("iIII")
_READ_BYTES = 1 << 16

FolderIdentity = tuple[int, int]
"""A folder's device and inode."""


class FolderWatch:
    """The names in a folder that any program changed since the last `changed()`. Not thread-safe.

    The kernel does not report writes through a memory map, nor through a hard link in another
    folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._identity: FolderIdentity | None = None
        self._fd = -1
        self._close: weakref.finalize[..., FolderWatch] | None = None

    def changed(self) -> set[str] | None:
        """The names changed since the last call. None when any may have changed: at the first call,
        after an overflow of the kernel's queue, when another folder is in this one's place, and
        where inotify is not available.
        """
        identity = _identity_of(self._folder)
        if identity is None or identity != self._identity:
            self._start(identity)
            return None
        names: set[str] = set()
        with contextlib.suppress(BlockingIOError):
            while events := os.read(self._fd, _READ_BYTES):
                at = 0
                while at < len(events):
                    _, what, _, length = _HEAD.unpack_from(events, at)
                    at += _HEAD.size + length
                    if what & _LOST:
                        self._start(identity)
                        return None
                    names.add(os.fsdecode(events[at - length : at].rstrip(b"\0")))
        return names

    def fileno(self) -> int:
        """A descriptor that is readable when `changed()` has something to say; -1 where inotify is
        not available.
        """
        return self._fd if self._identity is not None else -1

    def stop(self) -> None:
        """Stop watching; the next `changed()` returns None."""
        self._identity = None
        if self._close is not None:
            self._close()
            self._close = None

    def _start(self, identity: FolderIdentity | None) -> None:
        self.stop()
        libc = ctypes.CDLL(None)
        fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC) if identity is not None else -1
        if fd < 0:
            # Users have a limit of inotify instances. Then every file is checked.
            return
        # Closed with the last reference, because another thread may be reading: a closed number is
        # soon another file's.
        self._fd, self._close = fd, weakref.finalize(self, os.close, fd)
        # The identity is read again: the folder may have been replaced before the watch was added.
        if (
            libc.inotify_add_watch(fd, os.fsencode(self._folder), _EVENTS) >= 0
            and _identity_of(self._folder) == identity
        ):
            self._identity = identity


def _identity_of(folder: Path) -> FolderIdentity | None:
    try:
        found = os.stat(folder)
    except OSError:
        return None
    return found.st_dev, found.st_ino
