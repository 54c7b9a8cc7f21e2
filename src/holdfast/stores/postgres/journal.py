"""Reading the journal so that nothing is skipped and nothing is read twice.

Transactions commit in another order than that of their revisions. So entries are read in the order of the transactions that
wrote them, and only those below the oldest transaction still running: nothing can appear before them any more. A server that
lost its last transactions gives their numbers again, so that the order begins with its life (life.py). A cursor is the place
of an entry in that order.
"""

from typing import Any

from holdfast.kernel.store import BEGINNING, Batch, Cursor, Entry
from holdfast.stores.contents import entry_data
from holdfast.stores.postgres import schema
from holdfast.stores.postgres.connections import Connection
from holdfast.stores.scoping import check_limit, cursor_at, no_cursor, places_of

# What an earlier life of the server wrote is all there is of it.
_SELECT = (
    "SELECT j.life, j.xid::text, revision, (extract(epoch FROM at) * 1000000)::bigint, actor, kind, subject, data "
    "FROM holdfast.journal AS j WHERE ns = %s AND (j.life < %s OR j.xid < pg_snapshot_xmin(pg_current_snapshot()))"
)
# A bare `xid` in ORDER BY would mean the text that is selected, in which 999 comes after 1000.
_FORWARD = _SELECT + " AND (j.life, j.xid, revision) > (%s, %s::xid8, %s) ORDER BY j.life, j.xid, revision LIMIT %s"
_BACKWARD = _SELECT + " ORDER BY j.life DESC, j.xid DESC, revision DESC LIMIT %s"


def read(raw: Connection, namespace: str, cursor: Cursor, limit: int, *, reverse: bool) -> Batch:
    """The entries behind a cursor (life, transaction and revision), or the last ones. Raises InvalidValue for one that this
    journal did not give, RecordInvalid for a damaged entry."""
    check_limit(limit)
    places = places_of(cursor, 3, raw.journal)
    if places[0] > raw.life:
        # That life began on another server, with a copy of this one's files or dump.
        raise no_cursor(cursor)
    here = (namespace, raw.life)
    if reverse:
        rows = raw.execute(_BACKWARD, (*here, limit)).fetchall()
        return Batch([_entry(row) for row in rows], cursor_at(raw.journal, rows[0][:3]) if rows else BEGINNING)
    life, xid, revision = places
    rows = raw.execute(_FORWARD, (*here, life, str(xid), revision, limit)).fetchall()
    return Batch([_entry(row) for row in rows], cursor_at(raw.journal, rows[-1][:3] if rows else places))


def _entry(row: tuple[Any, ...]) -> Entry:
    _, _, revision, at, actor, kind, subject, data = row
    return Entry(
        revision=revision,
        at=schema.instant(at),
        actor=actor,
        kind=kind,
        subject=subject,
        data=entry_data(revision, data),
    )
