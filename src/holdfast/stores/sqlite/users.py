"""Who has a store open: locks on a side file, which the kernel takes away from a process that ends,
however it ends.

A shared flock for each process, so that the files of the store are never replaced under someone.
And read locks on single bytes of the same file: one that says that its holder uses the volatile
file in use, and one for each boot id. A container may have a boot id of its own, so another id
alone does not say that a boot has ended; a lock says that it has not, and that its holder runs on
this kernel.
"""

import contextlib
import errno
import fcntl
import os
import struct
import weakref
from pathlib import Path
from zlib import crc32

from holdfast.kernel.errors import Held, HoldfastError, StoreUnavailable
from holdfast.stores.sqlite.errors import opening_failed
from holdfast.system.access import Access, open_file

_FLOCK = "hhqqi"
"""type, whence, start, length and pid, as the kernel lays them out."""
_VOLATILE = 0
_BOOTS = 1


class Users:
    """This process's mark that it has the store open, by a boot id; alone, it can also make sure
    that nobody else has.
    """

    def __init__(self, database: Path, access: Access, boot_id: str = "") -> None:
        self._path = path = database.with_name(database.name + "-users")
        try:
            self._fd = open_file(path, os.O_RDWR, access)
        except OSError as error:
            raise opening_failed(path, error) from None
        self._database = database
        self._pid = os.getpid()
        _marks.add(self)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._lock(_byte(boot_id), fcntl.F_RDLCK)
        except BlockingIOError:
            self.close()
            raise StoreUnavailable(
                f"{database} is just being restored: try again", path=str(database), outcome="none"
            ) from None
        except BaseException as error:
            self.close()
            if isinstance(error, OSError) and not isinstance(error, HoldfastError):
                raise opening_failed(path, error) from None
            raise

    def be_alone(self) -> None:
        """Keep everyone else out until closed. Raises Held when somebody has the store open."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Held(
                f"{self._database} is open in another process: stop whatever uses it (`fuser "
                f"{self._database}` tells) and try "
                "again",
                path=str(self._database),
            ) from None
        except OSError as error:
            raise opening_failed(self._database, error) from None

    def has_boot(self, boot_id: str) -> bool:
        """Has another process with that boot id the store open? True where that cannot be told."""
        try:
            asked = fcntl.fcntl(
                self._fd, fcntl.F_OFD_GETLK, _request(_byte(boot_id), fcntl.F_WRLCK)
            )
        except (OSError, ValueError):
            return True
        return int(struct.unpack_from(_FLOCK, asked)[0]) != fcntl.F_UNLCK

    def share_volatile(self) -> bool:
        """Be one of those that use the volatile file in use; they share it. False while somebody
        begins another one.
        """
        return self._lock(_VOLATILE, fcntl.F_RDLCK)

    def own_volatile(self) -> bool:
        """Keep all others from using the volatile file. False when somebody uses it."""
        return self._lock(_VOLATILE, fcntl.F_WRLCK)

    def leave_volatile(self) -> None:
        """Use no volatile file any more."""
        self._lock(_VOLATILE, fcntl.F_UNLCK)

    def keep(self) -> int:
        """A descriptor that keeps the marks after `close`. Raises StoreUnavailable."""
        try:
            return os.dup(self._fd)
        except OSError as error:
            raise opening_failed(self._path, error) from None

    def close(self) -> None:
        """Take the marks away; again is harmless. A forked child that closes its copy leaves its
        parent's.
        """
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _lock(self, byte: int, kind: int) -> bool:
        """Lock a byte, by the descriptor: closing another one of the same file would drop a lock of
        the process. False when others are in the way. Raises StoreUnavailable when the kernel
        cannot.
        """
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _request(byte, kind))
        except (BlockingIOError, PermissionError):
            return False
        except OSError as error:
            # A sandbox with a kernel of its own may not have such locks. Nobody outside of it can
            # share its store, so that boot ids alone decide there.
            if error.errno != errno.EINVAL:
                raise opening_failed(self._path, error) from None
        return True


def _byte(boot_id: str) -> int:
    """Two boots that share a checksum are taken for each other, and then neither for ended while
    one has users.
    """
    return _BOOTS + crc32(boot_id.encode())


def _request(byte: int, kind: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, byte, 1, 0)


_marks: weakref.WeakSet[Users] = weakref.WeakSet()


def leave_inherited() -> None:
    """In a forked child, once its stores have marks of their own: close those of the parent, also
    of a store that another thread was just opening.
    """
    for mark in list(_marks):
        if mark._pid != os.getpid():
            with contextlib.suppress(OSError):
                mark.close()
