"""Trims the journal of one file, in steps of bounded length inside the gate.

SQLite cannot tell how many rows a table has without reading all of them. So each trim notes in the
table `meta` how many entries it left, and up to which revision; the next one counts only those
that came since. The note also has the oldest entry. If that is gone, a program that knows no notes
has trimmed the journal, and its entries are counted anew.
"""

from holdfast.kernel.limits import JOURNAL_TRIM_MAX
from holdfast.stores.sql import SqlTx

_OLDEST, _COUNTED, _ENTRIES = (f"journal {what} " for what in ("oldest", "counted", "entries"))
_NOTE = "SELECT name, number FROM meta WHERE name IN (?, ?, ?)"
_KEEP_NOTE = "INSERT OR REPLACE INTO meta (name, number) VALUES (?, ?), (?, ?), (?, ?)"
_HAS = "SELECT 1 FROM journal WHERE revision = ? AND ns = ?"
_ALL = "SELECT count(*), min(revision), max(revision) FROM journal WHERE ns = ?"
_SINCE = "SELECT count(*), max(revision) FROM journal WHERE revision > ? AND ns = ?"
_FIRST = "SELECT revision FROM journal WHERE revision >= ? AND ns = ? ORDER BY revision LIMIT 1"
_DROP = (
    "DELETE FROM journal WHERE revision IN (SELECT revision FROM ("
    "SELECT revision, at, row_number() OVER (ORDER BY revision) AS place FROM journal "
    "WHERE revision >= ? AND ns = ? ORDER BY revision LIMIT ?) "
    "WHERE place <= ? OR (at < ? AND place <= ?))"
)


def trim(tx: SqlTx, namespace: str, *, keep: int, before: int, least: int) -> int:
    """Drop as the port says; `before` is in microseconds since 1970. Return how many."""
    names = [f"{what}{namespace}" for what in (_OLDEST, _COUNTED, _ENTRIES)]
    note = dict(tx.rows(_NOTE, names))
    oldest, counted, entries = (note.get(name, 0) for name in names)
    if tx.rows(_HAS, (oldest, namespace)):
        more, newest = tx.rows(_SINCE, (counted, namespace))[0]
        entries, newest = entries + more, newest or counted
    else:
        entries, oldest, newest = tx.rows(_ALL, (namespace,))[0]
        if not entries:
            return 0
    places = max(entries - max(keep, 1), 0), before, entries - max(least, 1)
    dropped = tx.change(_DROP, (oldest, namespace, JOURNAL_TRIM_MAX, *places))
    if dropped:
        oldest = tx.rows(_FIRST, (oldest, namespace))[0][0]
    kept = (oldest, newest, entries - dropped)
    tx.change(_KEEP_NOTE, [part for pair in zip(names, kept, strict=True) for part in pair])
    return dropped
