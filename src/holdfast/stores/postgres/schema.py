"""Tables, versions and the sequence of revisions, all in schema `holdfast`.

    meta      name -> number: `layout`, and `journal`, which identifies the journal in its cursors
    spaces    name -> schema version and indexes, as the program that last wrote it declared them
    journal   one row an entry, with the transaction that wrote it
    revision  the sequence of all revisions and tokens; uncached, so that it grows across sessions
    life      the incarnation of the server
    calls     session -> its last call of one message (calls.py)
    s_<space> one row a record, of all namespaces; volatile spaces are tables like any other

Tables are made and changed inside a transaction that holds the migration lock.

Between two incarnations of a server it may have lost its last transactions, and it gives their
numbers again. After a crash a server may give a transaction the number of one that was lost, and
the sequence of revisions may have gone back to where it was last written. A standby that took over,
or a database made of a backup, knows even less. So neither `pg_xact_status` nor a place in the
journal means the same before and after. An ordinary stop and start loses nothing, and starts no new
incarnation.

Table `holdfast.life` is unlogged: the server empties it whenever it has recovered from anything. A
dump restored elsewhere brings its row along, which then names another origin. A connection that
finds no row of this server starts a new incarnation, in a new era, before anything else.
"""

from contextlib import suppress
from typing import Any

from holdfast.kernel import token
from holdfast.kernel.errors import RecordInvalid, SchemaTooNew, StoreUnavailable
from holdfast.kernel.space import Space
from holdfast.stores.journal import instant, new_journal
from holdfast.stores.postgres import latches
from holdfast.stores.postgres.connection import PostgresConnection
from holdfast.stores.sql import Dialect, is_declared, table_of

DIALECT = Dialect(
    mark="%s",
    schema="holdfast.",
    dump=lambda data: data.decode(),
    for_update=" FOR UPDATE",
    skip_locked=" FOR UPDATE SKIP LOCKED",
)

NEXT_REVISION = "nextval('holdfast.revision')"
THIS_TRANSACTION = "pg_current_xact_id()::text"
THIS_TRANSACTION_IF_ANY = "pg_current_xact_id_if_assigned()::text"

_SERVER_VERSION_MIN = 130000

_MIGRATIONS = (
    (
        "CREATE SCHEMA IF NOT EXISTS holdfast",
        "CREATE TABLE holdfast.meta (name text PRIMARY KEY, number bigint NOT NULL)",
        "INSERT INTO holdfast.meta (name, number) VALUES ('layout', 1)",
        "CREATE TABLE holdfast.spaces (name text PRIMARY KEY, schema_version integer NOT NULL, "
        "indexes text NOT NULL)",
        "CREATE TABLE holdfast.journal (revision bigint PRIMARY KEY, "
        "xid xid8 NOT NULL DEFAULT pg_current_xact_id(), "
        'ns text COLLATE "C" NOT NULL, at timestamptz NOT NULL, actor text NOT NULL, '
        "kind text NOT NULL, subject text NOT NULL, data text NOT NULL)",
        "CREATE INDEX journal_order ON holdfast.journal (ns, xid, revision)",
        "CREATE SEQUENCE holdfast.revision AS bigint NO CYCLE CACHE 1 START WITH {start} MINVALUE "
        "{start}",
    ),
    (
        "CREATE UNLOGGED TABLE holdfast.life (number bigint NOT NULL, origin text NOT NULL, "
        "xid xid8 NOT NULL DEFAULT pg_current_xact_id())",
        "ALTER TABLE holdfast.journal ADD COLUMN life bigint NOT NULL DEFAULT 0",
        "DROP INDEX holdfast.journal_order",
        "CREATE INDEX journal_order ON holdfast.journal (ns, life, xid, revision)",
        "UPDATE holdfast.meta SET number = 2 WHERE name = 'layout'",
    ),
    (
        "INSERT INTO holdfast.meta (name, number) VALUES ('journal', {journal})",
        "UPDATE holdfast.meta SET number = 3 WHERE name = 'layout'",
    ),
    (
        # Room for new versions of a row on its page.
        "CREATE TABLE IF NOT EXISTS holdfast.calls (session bigint PRIMARY KEY, "
        "number bigint NOT NULL, result bigint NOT NULL, closed boolean NOT NULL DEFAULT false, "
        "at timestamptz NOT NULL DEFAULT now()) WITH (fillfactor = 50)",
        "UPDATE holdfast.meta SET number = 4 WHERE name = 'layout'",
    ),
)
LAYOUT_VERSION = len(_MIGRATIONS)

_ORIGIN = (
    "(SELECT system_identifier::text FROM pg_control_system()) || '/' || "
    "'holdfast.life'::regclass::oid::text"
)
_FIND = f"SELECT number FROM holdfast.life WHERE origin = {_ORIGIN}"
_JOURNAL = "SELECT number FROM holdfast.meta WHERE name = 'journal'"
_FORGET_EVERY = 256
_FORGET = (
    "DELETE FROM holdfast.calls WHERE NOT closed AND at < clock_timestamp() - interval '1 day'"
)
"""Nobody asks any more how a call of yesterday ended. A closed row stays: it must be there however
late its message is read.
"""
_STATUS = "SELECT pg_xact_status(%s::xid8)"
_BEFORE = "SELECT %s::xid8 < xid FROM holdfast.life"
_EVER_GIVEN = "SELECT pg_snapshot_xmax(pg_current_snapshot()) > %s::xid8"


def migrate(raw: PostgresConnection) -> None:
    """Bring the layout up to this program's. Raises StoreUnavailable for a server that cannot be
    used, SchemaTooNew for a newer layout.
    """
    _refuse_unfit(raw)
    if _layout(raw) == LAYOUT_VERSION:
        return
    with raw.transaction():
        raw.execute(*latches.exclusive([latches.migration_key()]))
        found = _layout(raw)
        now = raw.value(f"SELECT {latches.NOW}")
        start = token.first(token.next_era(0, instant(now))) + 1
        journal = new_journal()
        for statements in _MIGRATIONS[found:]:
            for statement in statements:
                raw.execute(statement.format(start=start, journal=journal).encode())


def is_current(raw: PostgresConnection, space: Space[Any]) -> bool:
    """Is the space's table as this program declares it? Raises SchemaTooNew when a newer program
    wrote it.
    """
    found = raw.execute(
        "SELECT schema_version, indexes FROM holdfast.spaces WHERE name = %s", (space.name,)
    ).fetchone()
    return is_declared(space, found)


def declare(raw: PostgresConnection, space: Space[Any]) -> None:
    """Make the space's table, or bring its indexes up to date."""
    table = table_of(space, DIALECT)
    bare = table.name.removeprefix(DIALECT.schema)
    raw.execute(
        f'CREATE TABLE IF NOT EXISTS {table.name} (ns text COLLATE "C" NOT NULL, '
        'key text COLLATE "C" NOT NULL, rev bigint NOT NULL, value text NOT NULL, '
        "PRIMARY KEY (ns, key))".encode()
    )
    # Writers of all namespaces wait until the indexes are true again; readers do not.
    raw.execute(f"LOCK TABLE {table.name} IN SHARE ROW EXCLUSIVE MODE".encode())
    for column in table.columns:
        raw.execute(f"ALTER TABLE {table.name} ADD COLUMN IF NOT EXISTS {column} bytea".encode())
        raw.execute(
            f"CREATE INDEX IF NOT EXISTS {bare}_{column} ON {table.name} (ns, {column}, key) "
            f"WHERE {column} IS NOT NULL".encode()
        )
    if table.columns:
        sets = ", ".join(f"{column} = %s" for column in table.columns)
        rows = raw.execute(f"SELECT ns, key, value FROM {table.name}".encode()).fetchall()
        placed = []
        for ns, key, value in rows:
            # A damaged record stays where `holdfast store check` finds it, and hides no other.
            with suppress(RecordInvalid):
                placed.append((*space.index_keys(space.decode(key, value)), ns, key))
        raw.cursor().executemany(
            f"UPDATE {table.name} SET {sets} WHERE ns = %s AND key = %s".encode(), placed
        )
    raw.execute(
        "INSERT INTO holdfast.spaces (name, schema_version, indexes) VALUES (%s, %s, %s) "
        "ON CONFLICT (name) DO UPDATE SET schema_version = excluded.schema_version, "
        "indexes = excluded.indexes",
        (space.name, space.schema_version, ",".join(space.indexes)),
    )


def refuse_standby(raw: PostgresConnection) -> None:
    """Raise StoreUnavailable if the server is a standby."""
    says = raw.info.parameter_status("in_hot_standby")
    # Before version 14 the server has to be asked.
    if says == "on" or (says is None and raw.value("SELECT pg_is_in_recovery()")):
        raise StoreUnavailable(
            "the server is a standby, which only reads: give the URL of the primary, or of all "
            "with a comma between the hosts",
            outcome="none",
        )


def _refuse_unfit(raw: PostgresConnection) -> None:
    refuse_standby(raw)
    encoding = raw.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreUnavailable(
            f"the database's encoding is {encoding}, and Holdfast's text is UTF-8: create one "
            "with ENCODING 'UTF8'",
            outcome="none",
        )
    if raw.info.server_version < _SERVER_VERSION_MIN:
        raise StoreUnavailable(
            "PostgreSQL 13 is the oldest that Holdfast works with: upgrade the server",
            outcome="none",
        )


def _layout(raw: PostgresConnection) -> int:
    # Not by to_regclass: it may use what the session knew before it waited for another session that
    # made the tables.
    if not raw.execute(
        "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = 'holdfast' AND tablename = 'meta'"
    ).fetchall():
        return 0
    found = int(raw.value("SELECT number FROM holdfast.meta WHERE name = 'layout'"))
    if found > LAYOUT_VERSION:
        raise SchemaTooNew(
            f"schema holdfast has layout {found} and this program knows up to {LAYOUT_VERSION}: "
            "use a newer holdfast",
            version=found,
        )
    return found


def join_incarnation(raw: PostgresConnection) -> None:
    """Find the server's incarnation, and start a new one if the last has ended. Raises
    StoreUnavailable for a standby, which cannot know.
    """
    refuse_standby(raw)
    raw.incarnation = _found(raw) or _begin(raw)
    raw.journal = int(raw.value(_JOURNAL))
    if raw.session % _FORGET_EVERY == 0:
        raw.execute(_FORGET)


def advance_era(raw: PostgresConnection, known: int = 0) -> int:
    """Bring the sequence of revisions into a new era, beyond its last and a known one; return the
    era. No token of the eras before is given again.
    """
    last, micros = raw.execute(
        f"SELECT last_value, {latches.NOW} FROM holdfast.revision"
    ).fetchall()[0]
    era = token.next_era(max(known, token.era(last)), instant(micros))
    raw.execute("SELECT setval('holdfast.revision', %s)", (token.first(era),))
    return era


def fate(raw: PostgresConnection, xid: str, incarnation: int) -> str | None:
    """How a transaction of an incarnation ended: committed, aborted, or anything else while the
    server cannot say.

    Not promised if all of this came together: its incarnation has ended, the transaction was lost,
    and another program of the same server got its number before the first connection of the next
    incarnation.
    """
    earlier = raw.incarnation != incarnation
    # Nothing of an earlier incarnation still runs, and numbers from the start of this one on belong
    # to others.
    if earlier and not all(raw.value(sql, (xid,)) for sql in (_BEFORE, _EVER_GIVEN)):
        return "aborted"
    status: str | None = raw.value(_STATUS, (xid,))
    return "aborted" if earlier and status == "in progress" else status


def confirm_commits(raw: PostgresConnection) -> None:
    """Return once everything committed so far is as safe as this server's settings make it.

    A transaction can be committed on a server whose standby has not confirmed it: the session that
    waited for that was lost. One commit that waits covers all before it.
    """
    raw.execute("UPDATE holdfast.meta SET number = number WHERE name = 'layout'")


def _found(raw: PostgresConnection) -> int:
    found = raw.execute(_FIND).fetchone()
    return int(found[0]) if found else 0


def _begin(raw: PostgresConnection) -> int:
    raw.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
    raw.execute(*latches.exclusive([latches.migration_key()]))
    number = _found(raw)
    if not number:
        number = advance_era(raw)
        raw.execute("DELETE FROM holdfast.life")
        raw.execute(f"INSERT INTO holdfast.life (number, origin) VALUES (%s, {_ORIGIN})", (number,))
    raw.execute("COMMIT")
    return number
