"""Incarnations of a server: between two of them it may have lost its last transactions, and it
gives their numbers again.

After a crash a server may give a transaction the number of one that was lost, and the sequence of
revisions may have gone back to where it was last written. A standby that took over, or a database
made of a backup, knows less still. So neither `pg_xact_status` nor a place in the journal means the
same before and after. An ordinary stop and start loses nothing, and starts no new incarnation.

Table `holdfast.life` is unlogged: the server empties it whenever it has recovered from anything. A
dump restored elsewhere brings its row along, which then names another origin. A connection that
finds no row of this server starts a new incarnation, in a new era, before anything else.
"""

from holdfast.kernel import token
from holdfast.stores.postgres import latches, schema
from holdfast.stores.postgres.connection import Connection

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
    """Find the server's incarnation, and start a new one if the last has ended. Raises
    StoreUnavailable for a standby, which cannot know.
    """
    schema.refuse_standby(raw)
    raw.incarnation = _found(raw) or _begin(raw)
    raw.journal = int(raw.value(_JOURNAL))


def advance_era(raw: Connection, known: int = 0) -> int:
    """Bring the sequence of revisions into a new era, beyond its last and a known one; return the
    era. No token of the eras before is given again.
    """
    last, micros = raw.execute(
        f"SELECT last_value, {latches.NOW} FROM holdfast.revision"
    ).fetchall()[0]
    era = token.next_era(max(known, token.era(last)), schema.instant(micros))
    raw.execute("SELECT setval('holdfast.revision', %s)", (token.first(era),))
    return era


def fate(raw: Connection, xid: str, incarnation: int) -> str | None:
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


def confirm_commits(raw: Connection) -> None:
    """Return once everything committed so far is as safe as this server's settings make it.

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
        number = advance_era(raw)
        raw.execute("DELETE FROM holdfast.life")
        raw.execute(f"INSERT INTO holdfast.life (number, origin) VALUES (%s, {_ORIGIN})", (number,))
    raw.execute("COMMIT")
    return number
