"""Tables, versions and eras of one database file.

    meta      name -> number: `revision` (last given without entry), `era` (last begun), `journal`
              (identifies the journal in its cursors), and `boot <id>` (the era in which the boot
              began that last used the file)
    spaces    name -> schema version and indexes, as the program that last wrote it declared them
    journal   one row an entry; its revision is the row's id
    s_<space> one row a record

The next revision is one more than the greater of the journal's last and `meta.revision`, so a
transaction that appends an entry, as nearly all do, writes no counter row. In a volatile file that
greater one is the bound of all revisions given; the last one given is in shared memory
(SharedCounter).
"""

import os
import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from holdfast.kernel import token
from holdfast.kernel.clock import Clock
from holdfast.kernel.errors import RecordInvalid, SchemaTooNew, StoreCorrupt, StoreUnavailable
from holdfast.kernel.space import Space
from holdfast.stores.journal import new_journal
from holdfast.stores.sql import Dialect, is_declared, table_of
from holdfast.stores.sqlite import handles
from holdfast.stores.sqlite.errors import translated
from holdfast.stores.sqlite.filesystem import check_database
from holdfast.system.access import Access, access_like

APPLICATION_ID = 0x484F4C44
LAYOUT_VERSION = 1

_MAGIC = b"SQLite format 3\0"

# A bytearray is bound at once. For bytes and None the driver first asks whether anything adapts
# them, which costs as much as a third of a small statement.
DIALECT = Dialect(mark="?", schema="", dump=bytearray)

_LAST = (
    "max((SELECT number FROM meta WHERE name = 'revision'), "
    "(SELECT coalesce(max(revision), 0) FROM journal))"
)
LAST_REVISION = f"SELECT {_LAST}"
KEEP_REVISION = "UPDATE meta SET number = ? WHERE name = 'revision'"
APPEND = (
    "INSERT INTO journal (revision, ns, at, actor, kind, subject, data) "
    "VALUES (?, ?, ?, ?, ?, ?, ?)"
)

_TABLES = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE spaces (name TEXT PRIMARY KEY, schema_version INTEGER NOT NULL, "
    "indexes TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE journal (revision INTEGER PRIMARY KEY, ns TEXT NOT NULL, at INTEGER NOT NULL, "
    "actor TEXT NOT NULL, kind TEXT NOT NULL, subject TEXT NOT NULL, data BLOB NOT NULL)",
)


def layout_of(connection: sqlite3.Connection, path: Path) -> int:
    """The file's layout version, 0 for a new file. Raises StoreCorrupt for another program's file,
    SchemaTooNew for a newer layout.
    """
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version == LAYOUT_VERSION:
        return version
    # In this order: another process may be making the tables now, and then the id that is read
    # after them is ours.
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    application = int(connection.execute("PRAGMA application_id").fetchone()[0])
    if application != APPLICATION_ID and (application or version or tables):
        raise StoreCorrupt(
            f"{path} is another program's SQLite database: give --store a path of its own",
            path=str(path),
        )
    if version > LAYOUT_VERSION:
        raise SchemaTooNew(
            f"{path} has layout {version} and this program knows up to {LAYOUT_VERSION}: use a "
            "newer holdfast",
            path=str(path),
            version=version,
        )
    return version


def sound_boot_of(connection: sqlite3.Connection, path: Path) -> str | None:
    """The boot id that names the current volatile file. Raises StoreCorrupt for a file of ours that
    lacks a table or a number that every store has.
    """
    tables = "sqlite_master WHERE type = 'table' AND name IN ('meta', 'spaces', 'journal')"
    numbers = "meta WHERE name IN ('revision', 'era')"
    count = "SELECT count(*) FROM"
    if (
        connection.execute(f"{count} {tables}").fetchone()[0] == 3
        and connection.execute(f"{count} {numbers}").fetchone()[0] == 2
    ):
        return boot_of(connection)
    raise StoreCorrupt(
        f"{path} lacks what every store has: put a backup in its place with `holdfast store "
        "restore FILE`",
        path=str(path),
    )


def refuse_foreign(path: Path, access: Access) -> None:
    """Refuse a file that is no store of ours, before anything is put beside it. Raises StoreCorrupt
    or SchemaTooNew, OSError, and StoreUnavailable for files that others put there.
    """
    # A gate beside the file shows that a store was opened here before.
    if os.path.exists(f"{path}-gate") or os.stat(path).st_size == 0:
        return
    check_database(path, access)
    try:
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
    except OSError:
        head = _MAGIC  # SQLite says better why it cannot be read.
    if not _MAGIC.startswith(head):
        # Not an error of SQLite's: that would advise to restore a backup over this file.
        raise StoreCorrupt(
            f"{path} is not a Holdfast store, nor any other database: give --store a path of its "
            "own",
            path=str(path),
        )
    try:
        with handles.opened(path, mode="ro") as connection:
            layout_of(connection, path)
    except sqlite3.Error as error:
        found = translated(path, error)
        if isinstance(found, StoreCorrupt):
            raise found from None


def create(connection: sqlite3.Connection, era: int) -> None:
    """Make the tables of a new file, inside a transaction. Its tokens start at the era."""
    for statement in _TABLES:
        connection.execute(statement)
    numbers = [("revision", token.first(era)), ("era", era), ("journal", new_journal())]
    connection.executemany("INSERT INTO meta (name, number) VALUES (?, ?)", numbers)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {LAYOUT_VERSION}")


def begin_era(
    connection: sqlite3.Connection, clock: Clock, *, known: int = 0, carried: int = 0
) -> int:
    """Record and return a new era, inside a transaction of the durable file.

    It passes `known`, another era that is certain, and `carried`. That one was read from a file
    that was never synced, so it counts within bounds only.
    """
    last = max(last_era(connection), known)
    era = token.next_era(max(last, min(carried, last + token.STRIDE)), clock.now())
    connection.execute("UPDATE meta SET number = ? WHERE name = 'era'", (era,))
    return era


def boot_of(connection: sqlite3.Connection) -> str | None:
    """The boot id that names the current volatile file; None for a new store."""
    found = connection.execute(
        "SELECT name FROM meta WHERE name LIKE 'boot %' ORDER BY number DESC LIMIT 1"
    ).fetchone()
    return None if found is None else str(found[0]).removeprefix("boot ")


def keep_boot(connection: sqlite3.Connection, boot_id: str | None) -> None:
    """Inside a transaction: record the boot id that names the current volatile file."""
    connection.execute("DELETE FROM meta WHERE name LIKE 'boot %'")
    if boot_id is not None:
        connection.execute(
            "INSERT INTO meta (name, number) VALUES (?, ?)",
            (f"boot {boot_id}", last_era(connection)),
        )


def begin_boot(connection: sqlite3.Connection, boot_id: str, clock: Clock) -> None:
    """Go on in a new era, inside a transaction of the durable file.

    A power loss may have undone the last revisions, which readers had seen before they were
    synced. A new era never gives them again.
    """
    era = begin_era(connection, clock)
    connection.execute(KEEP_REVISION, (token.first(era),))
    if not journal_number(connection):
        begin_journal(connection)
    keep_boot(connection, boot_id)


def journal_number(connection: sqlite3.Connection) -> int:
    """The number that identifies the journal in its cursors; 0 in a file from before there were
    such numbers.
    """
    found = connection.execute("SELECT number FROM meta WHERE name = 'journal'").fetchone()
    return 0 if found is None else int(found[0])


def begin_journal(connection: sqlite3.Connection) -> None:
    """Inside a transaction: make every cursor given so far one of another journal."""
    connection.execute(
        "INSERT OR REPLACE INTO meta (name, number) VALUES ('journal', ?)", (new_journal(),)
    )


def last_era(connection: sqlite3.Connection) -> int:
    """The last era that this file knows: of its own tokens, or begun for another file."""
    begun = connection.execute("SELECT number FROM meta WHERE name = 'era'").fetchone()[0]
    return int(max(begun, token.era(connection.execute(LAST_REVISION).fetchone()[0])))


def carried_era(path: Path) -> int:
    """The era that the counter of a volatile file got to; 0 if the file cannot be read."""
    try:
        check_database(path, access_like(path))
        # mode=rw makes no file: a new one would have the modes of the umask, and become the
        # store's own.
        with handles.opened(path, mode="rw") as old:
            return last_era(old)
    except (sqlite3.Error, StoreUnavailable, OSError, TypeError, ValueError):
        # A power loss may have left anything of it, and others may have put anything there.
        return 0


def outdated(connection: sqlite3.Connection, spaces: Sequence[Space[Any]]) -> list[Space[Any]]:
    """The spaces whose tables are not as this program declares them. Raises SchemaTooNew when a
    newer program wrote one.
    """
    found, late = {}, []
    for name, *declared in connection.execute("SELECT name, schema_version, indexes FROM spaces"):
        found[name] = declared
    for space in spaces:
        if not is_declared(space, found.get(space.name)):
            late.append(space)
    return late


def declare(connection: sqlite3.Connection, space: Space[Any]) -> None:
    """Make the space's table, or bring its indexes up to date, inside a transaction."""
    table = table_of(space, DIALECT)
    columns = "".join(f", {column} BLOB" for column in table.columns)
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS {table.name} (ns TEXT NOT NULL, key TEXT NOT NULL, rev "
        f"INTEGER NOT NULL, value BLOB NOT NULL{columns}, PRIMARY KEY (ns, key)) WITHOUT ROWID"
    )
    present = {row[1] for row in connection.execute(f"PRAGMA table_info({table.name})")}
    for column in table.columns:
        if column not in present:
            connection.execute(f"ALTER TABLE {table.name} ADD COLUMN {column} BLOB")
        connection.execute(
            f"CREATE INDEX IF NOT EXISTS {table.name}_{column} ON {table.name} (ns, {column}) "
            f"WHERE {column} IS NOT NULL"
        )
    if table.columns:
        sets = ", ".join(f"{column} = ?" for column in table.columns)
        rows = connection.execute(f"SELECT ns, key, value FROM {table.name}").fetchall()
        for ns, key, value in rows:
            try:
                places = space.index_keys(space.decode(key, value))
            except RecordInvalid:
                # It stays where `holdfast store check` finds it, and hides no other.
                continue
            connection.execute(
                f"UPDATE {table.name} SET {sets} WHERE ns = ? AND key = ?", (*places, ns, key)
            )
    connection.execute(
        "INSERT OR REPLACE INTO spaces (name, schema_version, indexes) VALUES (?, ?, ?)",
        (space.name, space.schema_version, ",".join(space.indexes)),
    )


@lru_cache(maxsize=1024)
def put_new(space: Space[Any], items: int) -> str:
    """Insert that many new records of a volatile space if the file still has the bound of their
    revision (SharedCounter). Takes namespace, revision and bound, then each record's key, value and
    places in the indexes.

    Violates NOT NULL where the bound is another, and the primary key where a key is taken.
    """
    table = table_of(space, DIALECT)
    revision, rows = f"CASE {_LAST} WHEN ?3 THEN ?2 END", []
    columns = 2 + len(table.columns)
    for first in range(4, 4 + items * columns, columns):
        key, *rest = map("?{}".format, range(first, first + columns))
        rows.append(f"(?1, {key}, {revision}, {', '.join(rest)})")
        revision = "?2"
    # ROLLBACK ends the statement's own transaction: no other is open here.
    return (
        f"INSERT OR ROLLBACK INTO {table.name} ({', '.join(table.names)}) VALUES {', '.join(rows)}"
    )


@lru_cache(maxsize=1024)
def delete_if(space: Space[Any], keys: int) -> str:
    """Delete that many keys if they have a revision."""
    return table_of(space, DIALECT).delete_if(keys)
