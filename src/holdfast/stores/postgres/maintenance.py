"""Check and copies of a PostgreSQL store. Backups are made by the server's own tools: pg_dump,
pg_basebackup.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from holdfast.kernel import faults, token
from holdfast.kernel.errors import Collision
from holdfast.kernel.limits import TRANSACT_TIMEOUT_S
from holdfast.kernel.space import Space
from holdfast.kernel.store import Administration, LongTransaction
from holdfast.stores.checks import no_record
from holdfast.stores.copy import (
    Contents,
    StoredEntry,
    StoredRecord,
    known_spaces,
    record_problem,
)
from holdfast.stores.journal import entry_problem
from holdfast.stores.postgres import attempt, latches, schema
from holdfast.stores.postgres.connection import CallDeadline, PostgresConnection
from holdfast.stores.postgres.errors import translated, unreachable
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sql import table_of

_LOOK = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_SPACES = "SELECT name FROM holdfast.spaces ORDER BY name"
_ENTRIES = (
    "SELECT revision, ns, (extract(epoch FROM at) * 1000000)::bigint, actor, kind, subject, data "
    "FROM holdfast.journal ORDER BY revision"
)
_LAST_REVISION = "SELECT last_value FROM holdfast.revision"
_BATCH = 500

_LONG = (
    "SELECT DISTINCT a.pid, extract(epoch FROM statement_timestamp() - a.xact_start)::float8, "
    "coalesce(a.state, ''), coalesce(host(a.client_addr), 'this machine') "
    "FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
    "WHERE l.locktype = 'advisory' AND l.granted AND a.datname = current_database() "
    "AND a.pid <> pg_backend_pid() "
    "AND a.xact_start < statement_timestamp() - make_interval(secs => %s) ORDER BY 2 DESC"
)
"""A session lock is held outside of transactions, and does not count here."""

_STRANGERS = (
    "SELECT rolname FROM pg_roles WHERE rolcanlogin "
    "AND has_database_privilege(oid, current_database(), 'CONNECT') "
    "AND NOT has_schema_privilege(oid, 'holdfast', 'USAGE') ORDER BY rolname"
)


class PostgresAdministration(Administration):
    def __init__(self, store: PostgresStore) -> None:
        super().__init__(store.kind)
        self._store = store

    def facts(self) -> dict[str, str]:
        def ask(raw: PostgresConnection) -> dict[str, str]:
            last = raw.value(_LAST_REVISION)
            standbys = raw.value("SHOW synchronous_standby_names")
            return {
                "server": f"PostgreSQL {raw.info.parameter_status('server_version')}",
                "layout": str(schema.LAYOUT_VERSION),
                "last_token": str(last),
                "synchronous_standby": standbys or "none",
            }

        return self._store.connections.run(ask)

    def long_transactions(self, seconds: float) -> list[LongTransaction]:
        rows = self._store.connections.run(lambda raw: raw.execute(_LONG, (seconds,)).fetchall())
        return [LongTransaction(*row) for row in rows]

    def strangers(self) -> list[str]:
        """The roles that may connect to the database and not use the store: by advisory locks they
        could stop all its writers.
        """
        rows = self._store.connections.run(lambda raw: raw.execute(_STRANGERS).fetchall())
        return [row[0] for row in rows]

    def check(self, spaces: Sequence[Space[Any]]) -> list[str]:
        """Checks every record, index and journal entry of every namespace. Pages are checked by the
        server's own tool, pg_amcheck.
        """
        found: list[str] = []
        with _snapshot(self._store) as raw:
            last = raw.value(_LAST_REVISION)
            present = {row[0] for row in raw.execute(_SPACES).fetchall()}
            for space in spaces:
                if space.name in present:
                    for record, places in _records(raw, space):
                        if wrong := record_problem(record, places, last):
                            found.append(wrong)
            for row in _all(raw, _ENTRIES):
                if wrong := entry_problem(row[0], row[6]):
                    found.append(wrong)
        return found

    def content(self, space: Space[Any], key: str) -> bytes:
        sql = table_of(space, schema.DIALECT).get.encode()
        namespace = self._store.namespace

        def fetch(raw: PostgresConnection) -> str | None:
            if not schema.is_current(raw, space):
                return None
            found = raw.execute(sql, (namespace, key)).fetchone()
            return None if found is None else str(found[0])

        value = self._store.connections.run(fetch)
        if value is None:
            raise no_record(space, key, namespace)
        return value.encode()

    def begin_era(self) -> int:
        """For a server whose files were restored from an earlier copy: it cannot notice that
        itself.
        """
        return self._store.connections.run(schema.advance_era)


@contextmanager
def contents(store: PostgresStore, spaces: Sequence[Space[Any]]) -> Iterator[Contents]:
    """What the store holds, as of one moment, for the block. Blocks no writer. Raises SchemaTooNew
    for an unknown space.
    """
    with _snapshot(store) as raw:
        found = known_spaces(spaces, (row[0] for row in raw.execute(_SPACES).fetchall()))
        durable = [space for space in found if not space.volatile]
        counts = {
            space.name: raw.value(f"SELECT count(*) FROM {table_of(space, schema.DIALECT).name}")
            for space in found
        }
        journal = (StoredEntry._make((*row[:6], row[6].encode())) for row in _all(raw, _ENTRIES))
        # A sequence has no snapshots: this is at least the last revision that the snapshot has.
        last = raw.value(_LAST_REVISION)
        records = (one for space in durable for one, _ in _records(raw, space))
        yield Contents(token.era(last), counts, records, journal)


def fill(store: PostgresStore, all_of: Contents, spaces: Sequence[Space[Any]]) -> None:
    """Put the contents of another store into this one, all or nothing, and go on in an era beyond
    theirs.

    Raises Collision when this one holds anything, RecordInvalid for a damaged record.
    """
    durable = [space for space in spaces if not space.volatile]
    store.declare(spaces)
    raw = store.connections.connect()
    try:
        schema.refuse_standby(raw)
        schema.join_incarnation(raw)
        raw.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
        raw.execute(*latches.exclusive([latches.migration_key()]))
        tables = [table_of(space, schema.DIALECT).name for space in spaces]
        raw.execute(
            f"LOCK TABLE {', '.join([*tables, 'holdfast.journal'])} "
            "IN SHARE ROW EXCLUSIVE MODE".encode()
        )
        for table in [*tables, "holdfast.journal"]:
            if raw.execute(f"SELECT 1 FROM {table} LIMIT 1".encode()).fetchone():
                raise Collision(
                    f"the target holds something in {table}: a copy goes to a new store",
                    table=table,
                )
        _write(raw, all_of, durable)
        schema.advance_era(raw, all_of.era)
        _commit(store, raw)
    except psycopg.Error as error:
        raise translated(store.connections.address, error) from None
    finally:
        raw.close()


def _commit(store: PostgresStore, raw: PostgresConnection) -> None:
    """Commit; if the connection is lost meanwhile, find out the outcome. Raises
    StoreUnavailable.
    """

    def commit() -> None:
        faults.reach("postgres.commit.before")
        raw.execute("COMMIT")
        faults.reach("postgres.commit.after")

    xid = raw.value(f"SELECT {schema.THIS_TRANSACTION}")
    doubt = attempt.try_commit(raw, None, xid, commit).doubt
    if doubt is None:
        return
    # Closed first: the server would wait for ever for a transaction that we keep open ourselves.
    raw.close()
    if not attempt.was_committed(store.connections, doubt, CallDeadline.after(TRANSACT_TIMEOUT_S)):
        raise unreachable(store.connections.address, "the connection was lost")


def _write(raw: PostgresConnection, all_of: Contents, spaces: Sequence[Space[Any]]) -> None:
    rows: dict[str, list[tuple[Any, ...]]] = {
        table_of(space, schema.DIALECT).insert: [] for space in spaces
    }
    for record in all_of.records:
        # Before it is decoded: a damaged record may be no text.
        places = record.places()
        row = (record.namespace, record.key, record.revision, record.value.decode(), *places)
        rows[table_of(record.space, schema.DIALECT).insert].append(row)
        _flush(raw, rows, _BATCH)
    _flush(raw, rows, 1)
    sql = (
        "INSERT INTO holdfast.journal (revision, life, xid, ns, at, actor, kind, subject, data) "
        "VALUES (%s, 0, '1', %s, to_timestamp(0) + %s * interval '1 microsecond', %s, %s, %s, %s)"
    )
    raw.cursor().executemany(sql, ((*entry[:6], entry.data.decode()) for entry in all_of.journal))


def _flush(raw: PostgresConnection, rows: dict[str, list[tuple[Any, ...]]], at_least: int) -> None:
    for sql, waiting in rows.items():
        if len(waiting) >= at_least:
            raw.cursor().executemany(sql.encode(), waiting)
            waiting.clear()


def _records(
    raw: PostgresConnection, space: Space[Any]
) -> Iterator[tuple[StoredRecord, list[bytes | None]]]:
    table = table_of(space, schema.DIALECT)
    sql = f"SELECT {', '.join(table.names)} FROM {table.name} ORDER BY ns, key"
    for ns, key, rev, value, *places in _all(raw, sql):
        yield StoredRecord(space, ns, key, rev, value.encode()), places


def _all(raw: PostgresConnection, sql: str) -> Iterator[tuple[Any, ...]]:
    """The rows of a statement, in batches: there may be more than fit into memory."""
    with raw.cursor(name=f"holdfast_{abs(hash(sql))}") as cursor:
        cursor.itersize = _BATCH
        cursor.execute(sql.encode())
        yield from cursor


@contextmanager
def _snapshot(store: PostgresStore) -> Iterator[PostgresConnection]:
    """A connection of its own that sees the store as of one moment."""
    raw = store.connections.connect()
    try:
        # The reader may take its time.
        raw.execute("SET idle_in_transaction_session_timeout = 0")
        raw.execute(_LOOK)
        yield raw
    except psycopg.Error as error:
        raise translated(store.connections.address, error) from None
    finally:
        raw.close()
