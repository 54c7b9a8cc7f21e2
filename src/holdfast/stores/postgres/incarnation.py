"""Lives of a server: between two of them it may have lost its last transactions, and gives their
numbers again.

After a crash a server may give a transaction the number of one that was lost, and the sequence of
revisions may have gone back to where it was last written. A standby that took over, or a database
made of a backup, knows less still. So neither `pg_xact_status` nor a place in the journal means the
same before and after. An ordinary stop and start loses nothing, and is not the end of a life.

Table `holdfast.life` is unlogged: the server empties it whenever it has recovered from anything. A
dump restored elsewhere brings its row along, which then names another origin. Whoever finds no row
of this server begins a new life, in a new era, before anything else is done over its connection.
"""

from datetime import datetime

from holdfast.kernel import token
from holdfast.stores.postgres import latches, schema
from holdfast.stores.postgres.connections import Connection

_ORIGIN = (
    "(SELECT system_identifier::text FROM pg_control_system()) || '/' || "
    "'holdfast.life'::regclass::oid::text"
)
_FIND = f"SELECT number FROM holdfast.life WHERE origin = {_ORIGIN}"
_JOURNAL = "SELECT number FROM holdfast.meta WHERE name = 'journal'"
_STATUS = "SELECT pg_xact_status(%s::xid8)"
_BEFORE = "SELECT %s::xid8 < xid FROM holdfast.life"
_EVER_GIVEN = "SELECT pg_snapshot_xmax(pg_current_snapshot()) > %s::xid8"


def join(raw: Connection) -> None:
    """Learn which life of the server this connection is in, and begin a new one if the last has
    ended.

    Raises StoreUnavailable for a standby, which cannot tell.
    """
    schema.refuse_standby(raw)
    raw.life = _found(raw) or _begin(raw)
    raw.journal = int(raw.execute(_JOURNAL).fetchall()[0][0])


def advance(raw: Connection, known: int = 0) -> int:
    """Bring the sequence of revisions into a new era, beyond its last and a known one; return the
    era. No token of the eras before is given again.
    """
    last, micros = raw.execute(
        f"SELECT last_value, {latches.NOW} FROM holdfast.revision"
    ).fetchall()[0]
    now: datetime = schema.instant(micros)
    era = token.next_era(max(known, token.era(last)), now)
    raw.execute("SELECT setval('holdfast.revision', %s)", (token.first(era),))
    return era


def fate(raw: Connection, xid: str, life: int) -> str | None:
    """How a transaction of a life ended: committed, aborted, or anything else while that cannot be
    told.

    Not promised when its life has ended, another program of the same server wrote before the first
    connection of the next life, and the transaction was lost and its number given to that
    program's.
    """
    status: str | None
    if raw.life == life:
        status = raw.execute(_STATUS, (xid,)).fetchall()[0][0]
        return status
    # Nothing of an earlier life is still running, and numbers from the beginning of this one on are
    # others'.
    if not all(raw.execute(sql, (xid,)).fetchall()[0][0] for sql in (_BEFORE, _EVER_GIVEN)):
        return "aborted"
    status = raw.execute(_STATUS, (xid,)).fetchall()[0][0]
    return "aborted" if status == "in progress" else status


def settle(raw: Connection) -> None:
    """Return once everything that was committed before is as safe as this server's settings make
    it.

    A transaction can be committed on a server whose standby has not confirmed it: the session that
    waited for that was lost. One commit that waits covers all before it.
    """
    raw.execute("UPDATE holdfast.meta SET number = number WHERE name = 'layout'")


def _found(raw: Connection) -> int:
    found = raw.execute(_FIND).fetchone()
    return int(found[0]) if found else 0


def _begin(raw: Connection) -> int:
    raw.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
    raw.execute(*latches.exclusive([latches.migration_key()]))
    number = _found(raw)
    if not number:
        number = advance(raw)
        raw.execute("DELETE FROM holdfast.life")
        raw.execute(f"INSERT INTO holdfast.life (number, origin) VALUES (%s, {_ORIGIN})", (number,))
    raw.execute("COMMIT")
    return number
