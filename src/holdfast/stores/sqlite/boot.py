"""Which volatile file is the current one, and the end of those of earlier boots.

All processes that have the store open use the same volatile file, whatever their boot ids are: a
container may have a boot id of its own. The durable file keeps the boot id that names it, which
changes only while nobody uses the volatile file.
"""

import contextlib
import os
import sqlite3
from pathlib import Path

from holdfast.kernel.clock import Clock
from holdfast.stores.sqlite import schema
from holdfast.stores.sqlite.database import Connection, Database, retry
from holdfast.stores.sqlite.errors import corrupt, translated
from holdfast.stores.sqlite.users import Users


def volatile_path(durable: Path, boot_id: str) -> Path:
    return durable.with_name(f"{durable.name}.locks-{boot_id}.sqlite")


def join(durable: Database, users: Users, boot_id: str, clock: Clock) -> str:
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

        retry(None, schema.refuse_gutted, connection.raw, durable.path)
        # Once this process is a user the name stays, so it is read again.
        if (
            retry(None, schema.boot_of, connection.raw) == boot_id
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
