"""Records in this process's memory: for tests, and as the oracle that other stores are compared
with.

Promised: the port's semantics for the threads of one process. Not promised: anything after the
process ends, or in another.
"""

import os
import weakref
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import Any, NamedTuple, TypeVar

from holdfast.kernel import token
from holdfast.kernel.clock import Clock, Passing, SystemClock
from holdfast.kernel.errors import Corrupt, InvalidValue, LockTimeout
from holdfast.kernel.limits import JOURNAL_READ_MAX, TRANSACT_TIMEOUT_S
from holdfast.kernel.order import Parts, beyond_text, span
from holdfast.kernel.space import R, Space
from holdfast.kernel.store import (
    BEGINNING,
    JOURNAL_TOPIC,
    Administration,
    Batch,
    Cursor,
    Damage,
    Entry,
    NoLayouts,
    ReadTx,
    Row,
    Scope,
    Tx,
    spaces_of,
)
from holdfast.stores import plain
from holdfast.stores.checks import (
    ENDED,
    check_entry,
    check_key,
    check_limit,
    check_texts,
    closed,
    cursor_at,
    has_ended,
    index_number,
    new_journal,
    out_of_scope,
    places_of,
    same_residence,
)
from holdfast.stores.listener import FdListener, Switchboard
from holdfast.stores.owned_lock import owned_lock
from holdfast.stores.ranks import Ranks
from holdfast.system.flock import ThreadLock

T = TypeVar("T")


class _Stored(NamedTuple):
    data: bytes
    revision: int
    places: list[bytes | None]


class _Shelf(NamedTuple):
    """The records of a space, and their order."""

    records: dict[str, _Stored]
    ranks: Ranks


class _World(NamedTuple):
    """An immutable state of the whole store; a commit replaces it."""

    shelves: Mapping[str, _Shelf]
    journal: tuple[Entry, ...]
    revision: int


class MemoryStore(NoLayouts):
    """A store in memory."""

    kind = "memory"
    embedded = True
    ephemeral = True
    anchor: Path | None = None

    def __init__(self, *, namespace: str = "default", clock: Clock | None = None) -> None:
        self.namespace = namespace
        self._clock = clock or SystemClock()
        self._gate = owned_lock()
        self._board = Switchboard()
        self._world = _World({}, (), token.first(token.next_era(0, self._clock.now())))
        self._journal = new_journal()
        self._session_locks: dict[str, ThreadLock] = {}
        self._closed = False
        _stores.add(self)

    def after_fork(self) -> None:
        """In a forked child: go on with what was committed. A thread that the child lacks may have
        been inside, and be waited for.
        """
        self._gate = owned_lock()
        self._board.after_fork()

    def now(self) -> datetime:
        return self._clock.now()

    def boot_in_use(self, boot_id: str) -> bool:  # noqa: ARG002 - no other process sees it
        return False

    def passing(self) -> Passing:
        return self._clock.passing()

    def side_folder(self, purpose: str) -> Path | None:  # noqa: ARG002 - it has no place for any
        return None

    def may_have_records(self, space: Space[Any]) -> bool:  # noqa: ARG002 - to look costs nothing
        return True

    def session_lock(self, name: str) -> ThreadLock:
        return self._session_locks.setdefault(name, ThreadLock())

    @property
    def administration(self) -> Administration:
        return Administration(self.kind)

    def transact(
        self,
        body: Callable[[Tx], T],
        *,
        scope: Scope,
        durable: bool = True,  # noqa: ARG002 - nothing here outlives the process either way
        timeout_s: float = TRANSACT_TIMEOUT_S,
    ) -> T:
        spaces = spaces_of(scope)
        same_residence(spaces)
        self._check_open()
        gate = self._gate
        if gate._is_owned():
            raise InvalidValue(
                "a transaction cannot be begun inside another: do both in one, with both scopes"
            )
        mine = False
        try:
            # As in the gate of SQLite files: an exception out of a signal's handler leaves nothing
            # locked.
            try:
                mine = gate.acquire(timeout=min(max(timeout_s, 0), TIMEOUT_MAX))
                if not mine:
                    raise LockTimeout(
                        f"no turn to write within {timeout_s:.3g} s: another thread is in a "
                        "transaction",
                        outcome="none",
                    )
                tx = _MemoryTx(self._world, self._clock.now(), {space.name for space in spaces})
                try:
                    result = body(tx)
                    self._world = tx.world()
                finally:
                    tx.end()
            finally:
                if mine or gate._is_owned():
                    gate.release()
        except BaseException:
            if gate._is_owned():
                gate.release()
            raise
        for topic in tx.topics:
            self._board.notify(topic)
        return result

    def read(
        self,
        body: Callable[[ReadTx], T],
        *,
        scope: Scope,
        timeout_s: float = TRANSACT_TIMEOUT_S,  # noqa: ARG002 - nobody is waited for
    ) -> T:
        self._check_open()
        spaces = spaces_of(scope)
        same_residence(spaces)
        tx = _MemoryReadTx(self._world, self._clock.now(), {space.name for space in spaces})
        try:
            return body(tx)
        finally:
            tx.end()

    def get(
        self, space: Space[R], key: str, *, timeout_s: float = TRANSACT_TIMEOUT_S
    ) -> Row[R] | None:
        return self.read(lambda tx: tx.get(space, key), scope=[space], timeout_s=timeout_s)

    def put_new(
        self,
        space: Space[R],
        items: Sequence[tuple[str, R]],
        *,
        timeout_s: float = TRANSACT_TIMEOUT_S,
    ) -> int | None:
        return plain.put_new(self, space, items, timeout_s)

    def delete_if(
        self,
        space: Space[Any],
        keys: Sequence[str],
        token: int,
        *,
        timeout_s: float = TRANSACT_TIMEOUT_S,
    ) -> int:
        return plain.delete_if(self, space, keys, token, timeout_s)

    def listen(self, topics: Sequence[str] = ()) -> FdListener:
        self._check_open()
        return self._board.listen(topics)

    def journal(
        self, cursor: Cursor = BEGINNING, *, limit: int = JOURNAL_READ_MAX, reverse: bool = False
    ) -> Batch:
        self._check_open()
        check_limit(limit)
        entries = self._world.journal
        if reverse:
            end = cursor_at(self._journal, [entries[-1].revision]) if entries else BEGINNING
            return Batch(list(entries[::-1][:limit]), end)
        begin = bisect_right(
            entries, places_of(cursor, 1, self._journal)[0], key=lambda entry: entry.revision
        )
        batch = list(entries[begin : begin + limit])
        return Batch(batch, cursor_at(self._journal, [batch[-1].revision]) if batch else cursor)

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise closed()


class _MemoryReadTx:
    def __init__(self, world: _World, now: datetime, names: set[str]) -> None:
        self._shelves = dict(world.shelves)
        self._names = names
        self.now = now

    def get(self, space: Space[R], key: str, *, expected: bool = True) -> Row[R] | None:  # noqa: ARG002 - costs the same here
        stored = self._shelf(space).records.get(key)
        return None if stored is None else Row(key, space.decode(key, stored.data), stored.revision)

    def range(
        self,
        space: Space[R],
        *,
        prefix: str = "",
        start: str | None = None,
        stop: str | None = None,
        reverse: bool = False,
        limit: int | None = None,
        damaged: Damage | None = None,
    ) -> list[Row[R]]:
        check_limit(limit)
        check_texts(prefix, start, stop)
        low, high = max(prefix, start or ""), stop
        end = beyond_text(prefix)
        keys = sorted(
            (
                key
                for key in self._shelf(space).records
                if low <= key and (high is None or key < high) and (end is None or key < end)
            ),
            reverse=reverse,
        )
        return self._rows(space, keys[:limit], damaged)

    def find(
        self,
        space: Space[R],
        index: str,
        match: Parts = (),
        *,
        start: Parts | None = None,
        stop: Parts | None = None,
        reverse: bool = False,
        limit: int | None = None,
        damaged: Damage | None = None,
    ) -> list[Row[R]]:
        check_limit(limit)
        shelf = self._shelf(space)
        keys = shelf.ranks.keys(
            index_number(space, index), *span(match, start, stop), reverse=reverse
        )
        return self._rows(space, list(islice(keys, limit)), damaged)

    def count(self, space: Space[Any], index: str | None = None, match: Parts = ()) -> int:
        shelf = self._shelf(space)
        return (
            len(shelf.records)
            if index is None
            else shelf.ranks.count(index_number(space, index), *span(match))
        )

    def end(self) -> None:
        """From here on it can do nothing: its records are the store's."""
        self._names = ENDED

    def _shelf(self, space: Space[Any]) -> _Shelf:
        if space.name not in self._names:
            raise out_of_scope(space)
        return self._shelves.get(space.name) or _Shelf({}, Ranks(len(space.indexes)))

    def _rows(self, space: Space[R], keys: Sequence[str], damaged: Damage | None) -> list[Row[R]]:
        rows = []
        for key in keys:
            try:
                rows.append(self.get(space, key))
            except Corrupt as error:
                if damaged is None:
                    raise
                damaged.append(error)
        return [row for row in rows if row is not None]


class _MemoryTx(_MemoryReadTx):
    def __init__(self, world: _World, now: datetime, names: set[str]) -> None:
        super().__init__(world, now, names)
        self.topics: dict[str, None] = {}
        self._journal = world.journal
        self._last = world.revision
        self._own: set[str] = set()
        self._revision: int | None = None
        self._appended = False

    @property
    def revision(self) -> int:
        if self._revision is None:
            self._revision = self._last = self._last + 1
        return self._revision

    def put(self, space: Space[R], key: str, record: R) -> None:
        check_key(key)
        self._set(
            space, key, _Stored(space.encode(record), self.revision, space.index_keys(record))
        )

    def delete(self, space: Space[Any], key: str) -> bool:
        return self._set(space, key, None) is not None

    def take_first(
        self,
        space: Space[R],
        index: str,
        match: Parts = (),
        *,
        but_for: Collection[str] = (),
        damaged: Damage | None = None,
    ) -> Row[R] | None:
        for key in self._shelf(space).ranks.keys(index_number(space, index), *span(match)):
            # One at a time: of a long line only the first is wanted.
            if key not in but_for and (found := self._rows(space, [key], damaged)):
                return found[0]
        return None

    def append(
        self, *, actor: str, kind: str, subject: str, data: dict[str, Any] | None = None
    ) -> int:
        self._check_current()
        check_texts(actor, kind, subject)
        check_entry(data)
        revision = self._last + 1 if self._appended else self.revision
        self._last, self._appended = revision, True
        entry = Entry(
            revision=revision, at=self.now, actor=actor, kind=kind, subject=subject, data=data or {}
        )
        self._journal = (*self._journal, entry)
        self.notify(JOURNAL_TOPIC)
        return revision

    def trim(self, *, keep: int, before: datetime, least: int = 1) -> int:
        self._check_current()
        entries = self._journal
        # The newest stays whatever a stepped clock says of its age.
        newest = enumerate(entries[::-1])
        kept = tuple(
            e for age, e in newest if age == 0 or (age < keep and (age < least or e.at >= before))
        )[::-1]
        self._journal = kept
        return len(entries) - len(kept)

    def notify(self, topic: str) -> None:
        self.topics[topic] = None

    def world(self) -> _World:
        return _World(self._shelves, self._journal, self._last)

    def _check_current(self) -> None:
        if self._names is ENDED:
            raise has_ended()

    def _set(self, space: Space[Any], key: str, stored: _Stored | None) -> _Stored | None:
        """Put a record in, or take it out; return the one that was there."""
        shelf = self._shelf(space)
        if space.name not in self._own:
            shelf = self._shelves[space.name] = _Shelf(dict(shelf.records), shelf.ranks.copy())
            self._own.add(space.name)
        old = shelf.records.pop(key, None)
        if stored is not None:
            shelf.records[key] = stored
        shelf.ranks.move(key, old and old.places, stored and stored.places)
        return old


_stores: weakref.WeakSet[MemoryStore] = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_stores):
        store.after_fork()


os.register_at_fork(after_in_child=_after_fork)
