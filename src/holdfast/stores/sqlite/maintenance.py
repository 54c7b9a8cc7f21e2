"""Check, backup and restore of a SQLite store, through SQLite's own means.

A database that others have open must not be copied or opened as a file: only SQLite knows which
part of it is in the log.
"""

import contextlib
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.kernel import faults, token
from holdfast.kernel.clock import Clock, SystemClock
from holdfast.kernel.errors import (
    Corrupt,
    InvalidValue,
    NotFound,
    SchemaTooNew,
    StoreCorrupt,
    StoreUnavailable,
)
from holdfast.kernel.limits import TRANSACT_TIMEOUT_S
from holdfast.kernel.space import Space
from holdfast.kernel.store import Administration
from holdfast.stores.checks import no_record
from holdfast.stores.copy import StoredRecord, record_problem
from holdfast.stores.journal import entry_problem
from holdfast.stores.sql import table_of
from holdfast.stores.sqlite import handles, schema
from holdfast.stores.sqlite.errors import opening_failed, translated
from holdfast.stores.sqlite.filesystem import check_database, make_empty
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.stores.sqlite.users import Users
from holdfast.stores.sqlite.wal import log_path
from holdfast.system.access import Access, access_like, make_folder, match_owner
from holdfast.system.folder_walk import resolve
from holdfast.system.sync import sync_path


class SqliteAdministration(Administration):
    """Check and backup of the durable file; the volatile one ends with the boot."""

    def __init__(self, store: SqliteStore) -> None:
        super().__init__(store.kind)
        self._store = store

    def check(self, spaces: Sequence[Space[Any]]) -> list[str]:
        """Finds damaged pages, records that do not decode, indexes that disagree with their record,
        revisions beyond the counter, and damaged journal entries.
        """
        with self._store.durable.lend() as connection:
            raw = connection.raw
            raw.execute("BEGIN")
            try:
                found = [
                    f"database: {row[0]}"
                    for row in raw.execute("PRAGMA integrity_check")
                    if row[0] != "ok"
                ]
                last = raw.execute(schema.LAST_REVISION).fetchone()[0]
                present = {row[0] for row in raw.execute("SELECT name FROM spaces")}
                for space in spaces:
                    if space.name in present and not space.volatile:
                        for record, places in stored_records(raw, space):
                            if wrong := record_problem(record, places, last):
                                found.append(wrong)
                rows = raw.execute("SELECT revision, data FROM journal")
                found += [wrong for row in rows if (wrong := entry_problem(*row))]
            finally:
                raw.execute("ROLLBACK")
        return found

    def content(self, space: Space[Any], key: str) -> bytes:
        store, found = self._store, None
        with store.durable.lend() as connection:
            if not schema.outdated(connection.raw, [space]):
                sql = table_of(space, schema.DIALECT).get
                found = connection.raw.execute(sql, (store.namespace, key)).fetchone()
        if found is None:
            raise no_record(space, key, store.namespace)
        return _bytes_of(found[0])

    def backup(
        self,
        spaces: Sequence[Space[Any]],  # noqa: ARG002 - the whole file is copied
        target: Path,
        complete: Callable[[sqlite3.Connection], None] | None = None,
    ) -> None:
        """Blocks no writer. `complete` may put more into the copy before it is in its place."""
        if os.path.lexists(target):
            raise InvalidValue(
                f"{target} exists: choose a new file for the backup", path=str(target)
            )
        if not target.absolute().parent.is_dir():
            raise InvalidValue(
                f"there is no folder {target.parent}: make it first, or choose another",
                path=str(target),
            )
        with self._store.durable.lend() as connection, whole(target) as temporary:
            _copy(connection.raw, temporary)
            if complete is not None:
                with handles.opened(temporary) as raw, raw:
                    complete(raw)


class Saving(NamedTuple):
    """What is saved together with a store that a restore replaces."""

    complete: Callable[[sqlite3.Connection], None] = lambda _: None
    """Puts more into the copy of a sound store."""
    set_aside: Callable[[Path], None] = lambda _: None
    """Saves more beside a damaged store, whose saved file it gets."""


_STORE_ALONE = Saving()


def restore(
    path: Path,
    source: Path,
    *,
    boot_id: str,
    clock: Clock | None = None,
    saving: Saving | None = _STORE_ALONE,
) -> Path | None:
    """Put a backup in the store's place, whole or not at all, in a new era. Return where the
    replaced store is saved; None if there was none.

    The replaced store is saved first, beside it as `<name>.replaced-<time>`: a sound one as a
    backup, a damaged one as it is, with its log. When it cannot be saved, nothing is changed
    (StoreUnavailable). `saving=None` saves nothing. No token given before or after the backup was
    made is ever given again. Processes that have a sound store open go on with the restored state;
    a damaged or missing one is replaced only while nobody has it open (else Held). Raises NotFound,
    StoreCorrupt or SchemaTooNew when the source is no sound backup.
    """
    path = Path(resolve(path))
    time_ = clock or SystemClock()
    with _sound_backup(source) as backup_:
        try:
            make_folder(path.parent)
            check_database(path, access_like(path))
        except OSError as error:
            raise opening_failed(path, error) from None
        live = _live(path, boot_id, time_)
        if live is None:
            return _replace(path, backup_, time_, saving)
        with closing(live), _temporary(path) as prepared:
            _copy(backup_, prepared)
            return _overwrite(live, prepared, time_, saving)


def stored_records(
    raw: sqlite3.Connection, space: Space[Any]
) -> Iterator[tuple[StoredRecord, list[bytes | None]]]:
    """The records of a space in all namespaces, each with its places in the indexes."""
    table = table_of(space, schema.DIALECT)
    sql = f"SELECT {', '.join(table.names)} FROM {table.name} ORDER BY ns, key"
    for ns, key, rev, value, *places in raw.execute(sql):
        yield StoredRecord(space, ns, key, rev, _bytes_of(value)), places


def _bytes_of(value: Any) -> bytes:
    # Another program may have written it as text.
    return value if isinstance(value, bytes) else str(value).encode()


def refuse_missing(source: Path) -> None:
    """Raise NotFound when a backup does not exist."""
    if not source.is_file():
        raise NotFound(
            f"there is no backup {source}: give a file that `holdfast store backup` made",
            path=str(source),
        )


@contextmanager
def _sound_backup(source: Path) -> Iterator[sqlite3.Connection]:
    refuse_missing(source)
    with handles.opened(source, mode="ro", isolation_level=None) as raw:
        try:
            if schema.layout_of(raw, source) == 0:
                raise StoreCorrupt(f"{source} is no backup of a Holdfast store", path=str(source))
            wrong = [row[0] for row in raw.execute("PRAGMA integrity_check(1)") if row[0] != "ok"]
        except sqlite3.Error as error:
            raise StoreCorrupt(
                f"{source} is damaged or is no backup ({error}): use another one", path=str(source)
            ) from None
        if wrong:
            raise StoreCorrupt(
                f"{source} is damaged ({wrong[0]}): use another backup", path=str(source)
            )
        yield raw


def _live(path: Path, boot_id: str, clock: Clock) -> SqliteStore | None:
    """The store in place, if SQLite can write it."""
    if not path.exists():
        return None
    try:
        store = SqliteStore(path, boot_id=boot_id, clock=clock)
    except SchemaTooNew:
        raise
    except Corrupt:
        return None
    try:
        with store.durable.lend() as connection:
            schema.last_era(connection.raw)
    except Corrupt:
        store.close()
        return None
    return store


def _overwrite(
    live: SqliteStore, prepared: Path, clock: Clock, saving: Saving | None
) -> Path | None:
    """Replace the whole database in one write transaction, so that those who have it open see all
    of it or nothing.

    The store is saved inside the gate, so the copy has every change that was ever acknowledged. The
    new era is begun there too, beyond the last one of the store.
    """
    live.durable.repair_log()
    with live.durable.lend() as connection:

        def work() -> Path | None:
            deadline = time.monotonic() + TRANSACT_TIMEOUT_S

            def in_time(status: int, *_: int) -> None:
                # Python's backup would wait for another program's lock for ever.
                locked = status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
                if locked and time.monotonic() > deadline:
                    raise StoreUnavailable(
                        f"{live.path} is locked by another program: close it there and try again",
                        outcome="none",
                    )

            before = schema.last_era(connection.raw)
            _begin_era(
                prepared,
                clock,
                before,
                schema.journal_number(connection.raw),
                schema.boot_of(connection.raw),
            )
            saved = None if saving is None else _save(live.path, connection.raw, clock, saving)
            faults.reach("sqlite.restore.before")
            try:
                with handles.opened(prepared) as source:
                    source.backup(connection.raw, progress=in_time, sleep=0.05)
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    if saved is not None and schema.last_era(connection.raw) == before:
                        # Nothing was replaced. On a full disk each try would leave one more copy.
                        saved.unlink()
                raise
            faults.reach("sqlite.restore.after")
            return saved

        saved = live.durable.run_alone(work)
        live.durable.sync(connection)
    return saved


def _save(path: Path, raw: sqlite3.Connection, clock: Clock, saving: Saving) -> Path:
    """Write a backup of a sound store beside it. Raises StoreUnavailable, and then the store must
    not be replaced.
    """
    saved = _unused(path, clock)
    try:
        with whole(saved) as temporary:
            _copy(raw, temporary)
            with handles.opened(temporary) as copy, copy:
                saving.complete(copy)
            match_owner(temporary, path)
            faults.reach("sqlite.restore.saving")
    except (StoreUnavailable, sqlite3.Error, OSError) as error:
        raise _unsaved(path, error) from None
    return saved


def _unsaved(path: Path, error: Exception) -> StoreUnavailable:
    return StoreUnavailable(
        f"{path} could not be saved, so it was not replaced ({error}): free space in "
        f"{path.parent}, or make it writable; nothing was changed",
        path=str(path),
        outcome="none",
    )


def _unused(path: Path, clock: Clock) -> Path:
    """A name for the replaced store that nothing has, nor its log."""
    mark = f"{path.name}.replaced-{clock.now():%Y%m%dT%H%M%SZ}"
    names = (path.with_name(mark if number == 1 else f"{mark}-{number}") for number in count(1))
    return next(name for name in names if not any(map(os.path.lexists, (name, log_path(name)))))


def _replace(
    path: Path, backup_: sqlite3.Connection, clock: Clock, saving: Saving | None
) -> Path | None:
    """Put a new file in the place of a damaged or missing one, while nobody has it open."""
    users = Users(path, access_like(path))
    try:
        users.exclude_others()
        with _temporary(path) as prepared:
            _copy(backup_, prepared)
            _begin_era(prepared, clock, _era_of_remains(path), None if path.exists() else 0)
            if path.exists():
                match_owner(prepared, path)
            saved = None if saving is None else _set_aside(path, clock, saving)
            faults.reach("sqlite.restore.before")
            # The old log must be gone before the new database is there, or SQLite would apply it.
            for leftover in (log_path(path), path.with_name(path.name + "-shm")):
                leftover.unlink(missing_ok=True)
            _sync(path.parent)
            os.rename(prepared, path)
            _sync(path.parent)
            faults.reach("sqlite.restore.after")
            return saved
    except OSError as error:
        raise opening_failed(path, error) from None
    finally:
        users.close()


def _era_of_remains(path: Path) -> int:
    """The last era of what is in place, as far as it can still be read; 0 otherwise."""
    if path.exists():
        # A damaged file may also lack the numbers.
        with contextlib.suppress(sqlite3.Error, TypeError), handles.opened(path, mode="ro") as raw:
            return schema.last_era(raw)
    return 0


def _begin_era(
    prepared: Path, clock: Clock, known: int, journal: int | None, boot_id: str | None = None
) -> None:
    """Bring a private copy into a new era, and sync it.

    `known` is the last era of the store in place, and `journal` the number of its journal; None
    where it cannot be read. With another number the copy begins a new journal: its cursors must not
    pass for those of the store that the backup was made of. `boot_id` names the volatile file with
    which those who have the store open go on.
    """
    with handles.opened(prepared, isolation_level=None) as raw:
        raw.execute("BEGIN IMMEDIATE")
        era = schema.begin_era(raw, clock, known=known)
        raw.execute(schema.KEEP_REVISION, (token.first(era),))
        if journal is not None and journal != schema.journal_number(raw):
            schema.begin_journal(raw)
        schema.keep_boot(raw, boot_id)
        raw.execute("COMMIT")
    _sync(prepared)


def _set_aside(path: Path, clock: Clock, saving: Saving) -> Path | None:
    """Save a damaged file and its log under new names that belong together for SQLite. None if
    there is neither.
    """
    there = [old for old in (path, log_path(path)) if old.exists()]
    if not there:
        return None
    saved = _unused(path, clock)
    links = {path: saved, log_path(path): log_path(saved)}
    try:
        for old in there:
            os.link(old, links[old])
            _sync(links[old])
        saving.set_aside(saved)
        _sync(path.parent)
    except (StoreUnavailable, OSError) as error:
        for old in there:
            links[old].unlink(missing_ok=True)
        raise _unsaved(path, error) from None
    return links[there[0]]


def _copy(source: sqlite3.Connection, target: Path) -> None:
    """Copy a database into an empty file, as a single file without a log."""
    try:
        with handles.opened(target, isolation_level=None) as raw:
            source.backup(raw)
            raw.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise translated(target, error) from None


@contextmanager
def whole(target: Path, access: Access | None = None) -> Iterator[Path]:
    """A temporary file that takes the target's name at the end, synced, unless the block raises."""
    with _temporary(target, access) as temporary:
        yield temporary
        try:
            _sync(temporary)
            os.link(temporary, target)
            _sync(target.parent)
        except FileExistsError:
            raise InvalidValue(
                f"{target} exists: choose a new file for the backup", path=str(target)
            ) from None
        except OSError as error:
            raise opening_failed(target, error) from None


@contextmanager
def _temporary(beside: Path, access: Access | None = None) -> Iterator[Path]:
    """An empty file beside another, removed at the end. Without `access` it gets the owner and
    group of the other, if that exists.
    """
    temporary = beside.with_name(f".{beside.name}.{secrets.token_hex(4)}.tmp")
    try:
        make_empty(temporary, access or access_like(beside))
    except OSError as error:
        raise opening_failed(beside, error) from None
    try:
        yield temporary
    finally:
        for name in (temporary, temporary.with_name(temporary.name + "-journal")):
            name.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Sync a file that no connection has open, or a folder."""
    try:
        sync_path(path)
    except OSError as error:
        raise StoreUnavailable(
            f"{path} could not be synced: {os.strerror(error.errno or 0)}", outcome="none"
        ) from None
