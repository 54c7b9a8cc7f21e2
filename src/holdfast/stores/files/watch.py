"""Changes in a folder as the kernel tells them (inotify), so that ten thousand files need not be
looked at to find the one that was changed.
"""

import ctypes
import os
import struct
import weakref
from pathlib import Path

_MODIFY, _ATTRIB, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
_ONLY_A_FOLDER = 0x01000000
_TELL = _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _ONLY_A_FOLDER

_UNMOUNTED, _OVERFLOW, _IGNORED = 0x2000, 0x4000, 0x8000
_TOLD_NO_MORE = _UNMOUNTED | _OVERFLOW | _IGNORED

_HEAD = struct.Struct("iIII")
_READ_BYTES = 1 << 16

Identity = tuple[int, int]


class Watch:
    """The names in a folder that were changed by anybody, once `changed` was called. Not for
    several threads at once.

    Not told: what is written through a memory map, or through another link to the same file that
    lies elsewhere.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._identity: Identity | None = None
        self._fd = -1
        self._close: weakref.finalize[..., Watch] | None = None

    def changed(self) -> set[str] | None:
        """The names that were changed since the last call. None when it may be any: at the first
        call, after more than the kernel keeps, in another folder that has come into this one's
        place, and where the kernel tells nothing.
        """
        identity = _identity_of(self._folder)
        if identity is None or identity != self._identity:
            self._begin(identity)
            return None
        names: set[str] = set()
        while told := self._read():
            at = 0
            while at < len(told):
                _, what, _, length = _HEAD.unpack_from(told, at)
                at += _HEAD.size + length
                if what & _TOLD_NO_MORE:
                    self._begin(identity)
                    return None
                names.add(os.fsdecode(told[at - length : at].rstrip(b"\0")))
        return names

    def end(self) -> None:
        """Be told no more; the next `changed` begins anew."""
        self._identity = None
        if self._close is not None:
            self._close()
            self._close = None

    def _begin(self, identity: Identity | None) -> None:
        """Have changes told from here on. Where that is not to be had, as many watchers have
        their limits, it is left.
        """
        self.end()
        libc = ctypes.CDLL(None)
        fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC) if identity is not None else -1
        if fd < 0:
            return
        # Closed with the last reference: another thread may be reading, and a number that was
        # closed is soon another file's.
        self._fd, self._close = fd, weakref.finalize(self, os.close, fd)
        if (
            libc.inotify_add_watch(fd, os.fsencode(self._folder), _TELL) >= 0
            and _identity_of(self._folder) == identity
        ):
            self._identity = identity

    def _read(self) -> bytes:
        try:
            return os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return b""


def _identity_of(folder: Path) -> Identity | None:
    try:
        found = os.stat(folder)
    except OSError:
        return None
    return found.st_dev, found.st_ino
