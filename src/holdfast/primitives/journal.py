"""The journal: every change appends an entry in its own transaction."""

import time
from binascii import crc32
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from itertools import chain, islice
from typing import Any, NamedTuple

from holdfast.kernel import clock
from holdfast.kernel.limits import (
    JOURNAL_KEEP_LEAST,
    JOURNAL_LAG_SCAN_MAX,
    JOURNAL_READ_MAX,
    JOURNAL_SEARCHED_MAX,
    JOURNAL_TRIM_EVERY,
)
from holdfast.kernel.names import check_label
from holdfast.kernel.settings import JournalSettings
from holdfast.kernel.store import BEGINNING, JOURNAL_TOPIC, Batch, Cursor, Entry, Store, Tx
from holdfast.primitives.steady_clock import steady_clock

SECRET_ENDINGS = (
    *("password", "passwd", "passphrase", "secret", "credential", "credentials", "authorization"),
    *("api_key", "apikey", "private_key", "auth_token", "access_token", "refresh_token"),
)
"""How the names of secret fields end. A plain `token` is a claim's number, not a secret."""

REDACTED = "[redacted]"


class Lag(NamedTuple):
    """How far a follower is behind: its missing entries, and the time of the first of them."""

    entries: int
    since: datetime | None


class Journal:
    """The journal of one store, written under one actor's name and kept within its bounds."""

    def __init__(self, store: Store, *, actor: str, keep: JournalSettings | None = None) -> None:
        self._store = store
        self.actor = check_label(actor, "actor")
        self._keep = keep or JournalSettings()

    def append(
        self, tx: Tx, *, kind: str, subject: str, data: Mapping[str, Any] | None = None
    ) -> int:
        """Append an entry in the transaction of its change; return its revision. Redacts secrets,
        and now and then trims the journal to its bounds.
        """
        revision = tx.append(
            actor=self.actor, kind=kind, subject=subject, data=redacted(data or {})
        )
        # A checksum picks the revisions that trim: plain counts start again with each era, and
        # namespaces share them.
        if crc32(b"%d" % revision) % JOURNAL_TRIM_EVERY == 0:
            self.trim(tx)
        return revision

    def trim(self, tx: Tx, *, keep_entries: int | None = None, keep_s: float | None = None) -> int:
        """Drop entries beyond the bounds, by default the configured ones; return how many. Of a
        journal that is far beyond them, only the oldest.

        By the configured bounds the last JOURNAL_KEEP_LEAST entries stay at any age. No entry is
        dropped for its age after a jump of the store's clock, nor before the clocks are compared.
        """
        age_s = self._keep.keep_s if keep_s is None else keep_s
        keep = self._keep.keep_entries if keep_entries is None else keep_entries
        before = retention_limit(self, tx, age_s, age_given=keep_s is not None)
        return tx.trim(keep=keep, before=before, least=JOURNAL_KEEP_LEAST if keep_s is None else 1)

    def tail(self, limit: int) -> tuple[list[Entry], Cursor]:
        """The last entries, oldest first, and the cursor to follow on from."""
        batch = self._store.journal(limit=limit, reverse=True)
        return batch.entries[::-1], batch.cursor

    def since(self, cursor: Cursor = BEGINNING) -> Iterator[Batch]:
        """The present entries behind the cursor, in batches."""
        found = JOURNAL_READ_MAX
        # A shorter batch is the last one, and asking for the next costs as much as reading it.
        while found == JOURNAL_READ_MAX and (batch := self._store.journal(cursor)).entries:
            yield batch
            found, cursor = len(batch.entries), batch.cursor

    def chosen(
        self, *, begin: datetime | None = None, subject: str | None = None, limit: int | None = None
    ) -> tuple[list[Entry], Cursor]:
        """The last entries that match, oldest first, and the cursor to follow on from.

        They are searched from the end, a few hundred entries further than the first that is older
        than `begin`: a clock that was set back may have mixed some. What is not among the last
        JOURNAL_SEARCHED_MAX is searched from the beginning.
        """
        if limit and begin is None and subject is None:
            return self.tail(limit)
        page = JOURNAL_READ_MAX
        while page <= JOURNAL_SEARCHED_MAX and (limit or begin is not None):
            entries, cursor = self.tail(page)
            found = [entry for entry in entries if matches(entry, begin, subject)]
            if len(entries) < page or (limit and len(found) >= limit):
                return found[-limit:] if limit else found, cursor
            if begin is not None and all(entry.at < begin for entry in entries[: page // 4]):
                return found, cursor
            page *= 4
        kept: deque[Entry] = deque(maxlen=limit)
        cursor = BEGINNING
        for batch in self.since():
            kept.extend(entry for entry in batch.entries if matches(entry, begin, subject))
            cursor = batch.cursor
        return list(kept), cursor

    def follow(
        self, cursor: Cursor = BEGINNING, *, timeout_s: float | None = None
    ) -> Iterator[Batch]:
        """The entries behind the cursor, and then new ones as they come, in batches, until
        `timeout_s` passes. A follower resumes from the cursor of the last batch that it processed;
        then no entry is skipped or repeated.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._store.listen([JOURNAL_TOPIC]) as listener:
            while True:
                for batch in self.since(cursor):
                    yield batch
                    cursor = batch.cursor
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return
                listener.wait(left_s)

    def lag(self, cursor: Cursor, tells: Callable[[Entry], bool]) -> Lag:
        """How far a follower at a cursor is behind, in entries that it handles."""
        behind = chain.from_iterable(batch.entries for batch in self.since(cursor))
        missing = [entry.at for entry in islice(behind, JOURNAL_LAG_SCAN_MAX) if tells(entry)]
        return Lag(len(missing), missing[0] if missing else None)

    def oldest(self) -> Entry | None:
        """The oldest entry; None for an empty journal."""
        return next(iter(self._store.journal(limit=1).entries), None)

    def prune(self, *, keep_entries: int | None = None, keep_s: float | None = None) -> int:
        """Trim the journal to its bounds, in short transactions; return how many entries were
        dropped.
        """
        steady_clock(self._store).compare()
        total = 0
        while dropped := self._store.transact(
            lambda tx: self.trim(tx, keep_entries=keep_entries, keep_s=keep_s), scope=[]
        ):
            total += dropped
        return total


def retention_limit(journal: Journal, tx: Tx, age_s: float, *, age_given: bool = False) -> datetime:
    """The instant before which records are removed for their age."""
    now = steady_clock(journal._store).for_retention(tx.now, age_given=age_given)
    return clock.BEGINNING if now is None else clock.ago(now, age_s)


def matches(entry: Entry, begin: datetime | None, subject: str | None) -> bool:
    """True when an entry is not before an instant, and about a subject."""
    return (begin is None or entry.at >= begin) and subject in (None, entry.subject)


def redacted(data: Any) -> Any:
    """The data with the values of secret fields replaced."""
    if type(data) in _SCALARS:
        return data
    if isinstance(data, _MAPPINGS):
        if _SCALARS.issuperset(map(type, data.values())) and not _has_secret(tuple(data)):
            # As in most entries: nothing to go into, and nothing to replace.
            return dict(data)
        return {
            key: REDACTED
            if value is not None and _names_a_secret(str(key))
            # Most values are scalars, and a call for each would cost more than this check.
            else (value if type(value) in _SCALARS else redacted(value))
            for key, value in data.items()
        }
    if isinstance(data, list | tuple):
        return [redacted(item) for item in data]
    return data


_MAPPINGS = (dict, Mapping)
"""dict first: an isinstance check for Mapping costs ten times as much."""
_SCALARS = frozenset((str, int, float, bool, type(None)))


# The same few names come with every entry, in the same few combinations.
@lru_cache(maxsize=256)
def _has_secret(keys: tuple[Any, ...]) -> bool:
    return any(_names_a_secret(str(key)) for key in keys)


@lru_cache(maxsize=256)
def _names_a_secret(key: str) -> bool:
    return key.lower().replace("-", "_").endswith(SECRET_ENDINGS)
