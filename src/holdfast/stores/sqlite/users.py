"""Who has a store open: a shared flock for each process, so that its files are never replaced under someone."""

import fcntl
import os
from pathlib import Path

from holdfast.access import Access, open_file
from holdfast.kernel.errors import Held, StoreUnavailable
from holdfast.stores.sqlite.translate import opening_failed


class Users:
    """This process's mark that it has the store open; alone, it can also make sure that nobody else has."""

    def __init__(self, database: Path, access: Access) -> None:
        path = database.with_name(database.name + "-users")
        try:
            self._fd = open_file(path, os.O_RDWR, access)
        except OSError as error:
            raise opening_failed(path, error) from None
        self._database = database
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise StoreUnavailable(
                f"{database} is just being restored: try again", path=str(database), outcome="none"
            ) from None

    def be_alone(self) -> None:
        """Keep everyone else out until closed. Raises Held when somebody has the store open."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Held(
                f"{self._database} is open in another process: stop whatever uses it (`fuser {self._database}` tells) and try "
                "again",
                path=str(self._database),
            ) from None

    def close(self) -> None:
        """Take the mark away. A forked child that closes its copy leaves its parent's."""
        os.close(self._fd)
