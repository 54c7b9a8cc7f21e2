"""Which processes have a store open: locks on a side file, which the kernel releases when a process
ends, however it ends.

Each process has a shared flock, so the store's files are never replaced under a user. Each also has
read locks on single bytes of the same file: one says that it uses the current volatile file, and
one stands for its boot id. A container may have its own boot id, so a different id does not prove
that a boot has ended; a lock proves that it has not, and that its holder runs on this kernel.

All processes that have the store open use the same volatile file, whatever their boot ids are. The
durable file keeps the boot id that names it, which changes only while nobody uses it.
"""

import contextlib
import errno
import fcntl
import os
import sqlite3
import struct
import weakref
from pathlib import Path
from zlib import crc32

from holdfast.kernel.clock import Clock
from holdfast.kernel.errors import Held, HoldfastError, StoreUnavailable
from holdfast.stores.sqlite import schema
from holdfast.stores.sqlite.database import Connection, Database, retry
from holdfast.stores.sqlite.errors import corrupt, opening_failed, translated
from holdfast.stores.sqlite.filesystem import open_side_file
from holdfast.system.access import Access
from holdfast.system.folder_walk import Folder

_FLOCK = "hhqqi"
"""struct flock: type, whence, start, length and pid."""
_VOLATILE = 0
_BOOTS = 1


class Users:
    """The locks by which this process has a store open, under a boot id."""

    def __init__(
        self, database: Path, access: Access, boot_id: str = "", folder: Folder | None = None
    ) -> None:
        self._path = path = database.with_name(database.name + "-users")
        self._fd = open_side_file(path, access, folder)
        self._database = database
        self._pid = os.getpid()
        _all_users.add(self)
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

    def exclude_others(self) -> None:
        """Keep every other process out until `close`. Raises Held when one has the store open."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Held(
                f"{self._database} is open in another process: stop whatever uses it (`fuser "
                f"{self._database}` lists it) and try again",
                path=str(self._database),
            ) from None
        except OSError as error:
            raise opening_failed(self._database, error) from None

    def has_boot(self, boot_id: str) -> bool:
        """Has another process with that boot id the store open? True where the kernel does not
        say.
        """
        try:
            asked = fcntl.fcntl(
                self._fd, fcntl.F_OFD_GETLK, _request(_byte(boot_id), fcntl.F_WRLCK)
            )
        except (OSError, ValueError):
            return True
        return int(struct.unpack_from(_FLOCK, asked)[0]) != fcntl.F_UNLCK

    def share_volatile(self) -> bool:
        """Become a user of the current volatile file. False while somebody begins another one."""
        return self._lock(_VOLATILE, fcntl.F_RDLCK)

    def own_volatile(self) -> bool:
        """Keep all others from using the volatile file. False when somebody uses it."""
        return self._lock(_VOLATILE, fcntl.F_WRLCK)

    def leave_volatile(self) -> None:
        self._lock(_VOLATILE, fcntl.F_UNLCK)

    def keep(self) -> int:
        """A descriptor that keeps the locks after `close`. Raises StoreUnavailable."""
        try:
            return os.dup(self._fd)
        except OSError as error:
            raise opening_failed(self._path, error) from None

    def close(self) -> None:
        """Release the locks, once. A forked child that closes its copy leaves its parent's."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _lock(self, byte: int, kind: int) -> bool:
        """Lock a byte; False when others are in the way. Raises StoreUnavailable.

        The lock belongs to the descriptor: a lock of the process would be dropped as soon as any
        descriptor of the file is closed.
        """
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _request(byte, kind))
        except (BlockingIOError, PermissionError):
            return False
        except OSError as error:
            # A sandbox with a kernel of its own may lack such locks. Nobody outside of it can share
            # its store, so boot ids alone decide there.
            if error.errno != errno.EINVAL:
                raise opening_failed(self._path, error) from None
        return True


def _byte(boot_id: str) -> int:
    # Two boots with one checksum pass for each other: neither counts as ended while one has users.
    return _BOOTS + crc32(boot_id.encode())


def _request(byte: int, kind: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, byte, 1, 0)


_all_users: weakref.WeakSet[Users] = weakref.WeakSet()


def close_inherited() -> None:
    """In a forked child, once its stores have locks of their own: close the parent's descriptors,
    also of a store that another thread was just opening.
    """
    for users in list(_all_users):
        if users._pid != os.getpid():
            with contextlib.suppress(OSError):
                users.close()


def volatile_path(durable: Path, boot_id: str) -> Path:
    return durable.with_name(f"{durable.name}.locks-{boot_id}.sqlite")


def join_volatile(durable: Database, users: Users, boot_id: str, clock: Clock) -> str:
    """Become a user of the current volatile file; return the boot id that names it."""
    with durable.lend() as connection:

        def begin() -> str:
            found = schema.boot_of(connection.raw)
            # The locks of users prove that they run on this kernel, so a file with users is as good
            # as one of this boot.
            if found is not None and found != boot_id and not users.own_volatile():
                return found
            if found != boot_id:
                schema.begin_boot(connection.raw, boot_id, clock)
            return boot_id

        # Once this process is a user the name stays, so it is read again.
        if (
            retry(None, schema.sound_boot_of, connection.raw, durable.path) == boot_id
            and users.share_volatile()
            and retry(None, schema.boot_of, connection.raw) == boot_id
        ):
            return boot_id
        users.leave_volatile()
        durable.repair_log()
        try:
            current = durable.write(
                connection,
                begin,
                sleepy=True,
                # Still inside the gate: the next process there must find this one among the users.
                committed=lambda _: users.share_volatile(),
            )
        except BaseException:
            users.leave_volatile()
            raise
        durable.sync(connection)
        return current


def create_volatile(
    raw: sqlite3.Connection,
    path: Path,
    durable: Database,
    connection: Connection,
    clock: Clock,
    deadline: float,
) -> None:
    """Fill a new volatile file, after a durable era has begun for its tokens. `connection` is one
    to the durable file.
    """
    carried = _end_other_boots(durable.path, path)
    try:
        era = durable.write(
            connection,
            lambda: schema.begin_era(connection.raw, clock, carried=carried),
            deadline,
            sleepy=True,
        )
        durable.sync(connection)
    except sqlite3.DatabaseError as error:
        if corrupt(error):
            # Reported here, or the new file would be reported as the damaged one.
            raise translated(durable.path, error) from None
        raise
    schema.create(raw, era)


def _end_other_boots(durable: Path, current: Path) -> int:
    """Remove the volatile files of earlier boots, which nobody has open. Return the last era of
    their tokens: their counters may have run beyond the era that they began in.
    """
    # Needed once a boot.
    import glob

    known = 0
    for path in sorted(durable.parent.glob(f"{glob.escape(durable.name)}.locks-*")):
        if path.name.startswith(current.name):
            continue
        if path.suffix == ".sqlite":
            known = max(known, schema.carried_era(path))
        with contextlib.suppress(OSError):
            os.unlink(path)
    return known
