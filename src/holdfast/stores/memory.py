"""A store in this process's memory: for tests, and as the oracle for other stores.

It has the port's semantics for the threads of one process, and ends with the process.
"""

import os
import weakref
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from threading import TIMEOUT_MAX
from time import monotonic
from typing import Any, NamedTuple, NoReturn, TypeVar

from holdfast.kernel import token
from holdfast.kernel.clock import Clock
from holdfast.kernel.errors import Corrupt, LockTimeout, NotFound
from holdfast.kernel.limits import JOURNAL_TRIM_MAX
from holdfast.kernel.order import Parts
from holdfast.kernel.space import R, Space
from holdfast.kernel.store import (
    BEGINNING,
    JOURNAL_TOPIC,
    Administration,
    Batch,
    Cursor,
    Damage,
    Entry,
    ReadTx,
    Row,
    Tx,
)
from holdfast.kernel.threads import owned_lock
from holdfast.stores.checks import (
    ENDED,
    check_key,
    check_texts,
    closed,
    has_ended,
    nested,
    out_of_scope,
)
from holdfast.stores.journal import check_entry, cursor_at, new_journal, places_of
from holdfast.stores.listener import FdListener, Switchboard
from holdfast.stores.port import EmbeddedStore, Plan
from holdfast.stores.query import Query, QueryTx, SortedIndexes, keys_between

T = TypeVar("T")


class ThreadLock:
    """A lock that ends with its process, since everything it protects does."""

    def __init__(self) -> None:
        self._owner: dict[None, ThreadContender] = {}
        """The contender that has it. Each change is a single step: no exception can split it."""

    def contender(self) -> "ThreadContender":
        """A new contender."""
        return ThreadContender(self._owner)

    def is_held(self) -> bool:
        """Whether any contender has it."""
        return bool(self._owner)


class ThreadContender:
    """One caller that wants the lock, and maybe has it."""

    def __init__(self, owner: "dict[None, ThreadContender]") -> None:
        self._owner = owner

    def try_take(self) -> bool:
        """Take it if it is free."""
        return self._owner.setdefault(None, self) is self

    def has_it(self) -> bool:
        """Whether it is ours."""
        return self._owner.get(None) is self

    def watch(self, lost: Callable[[], None]) -> None:
        """Nothing to watch: a live process cannot lose it."""

    def close(self) -> None:
        """Release it; again is harmless."""
        if self.has_it():
            del self._owner[None]


class _Stored(NamedTuple):
    data: bytes
    revision: int
    places: list[bytes | None]


class _Table(NamedTuple):
    records: dict[str, _Stored]
    indexes: SortedIndexes


class _State(NamedTuple):
    """The whole store at one revision, never changed: a commit replaces it."""

    tables: Mapping[str, _Table]
    journal: tuple[Entry, ...]
    revision: int


class MemoryStore(EmbeddedStore):
    kind = "memory"
    ephemeral = True
    anchor: Path | None = None

    def __init__(self, *, namespace: str = "default", clock: Clock | None = None) -> None:
        super().__init__(namespace, clock)
        self._gate = owned_lock()
        self._board = Switchboard()
        self._state = _State({}, (), token.first(token.next_era(0, self._clock.now())))
        self._journal_number = new_journal()
        self._session_locks: dict[str, ThreadLock] = {}
        self._closed = False
        _stores.add(self)

    def after_fork(self) -> None:
        """In a forked child: keep the committed state and make a new gate. A thread that does not
        exist here may have held it.
        """
        self._gate = owned_lock()
        self._board.after_fork()

    def boot_in_use(self, boot_id: str) -> bool:  # noqa: ARG002 - no other process sees it
        return False

    def side_folder(self, purpose: str) -> Path | None:  # noqa: ARG002 - it has no place for any
        return None

    def may_have_records(self, space: Space[Any]) -> bool:  # noqa: ARG002 - reading costs nothing
        return True

    def session_lock(self, name: str) -> ThreadLock:
        return self._session_locks.setdefault(name, ThreadLock())

    @property
    def administration(self) -> Administration:
        return Administration(self.kind)

    def _transact(
        self,
        body: Callable[[Tx], T],
        plan: Plan,
        deadline: float,
        durable: bool = True,  # noqa: ARG002 - nothing here survives the process either way
    ) -> T:
        self._check_open()
        gate = self._gate
        if gate._is_owned():
            raise nested()
        mine, timeout_s = False, max(deadline - monotonic(), 0)
        try:
            # As in the gate of SQLite files: an exception from a signal handler leaves nothing
            # locked, wherever it is raised.
            try:
                mine = gate.acquire(timeout=min(timeout_s, TIMEOUT_MAX))
                if not mine:
                    raise LockTimeout(
                        f"no turn to write within {timeout_s:.3g} s: another thread is in a "
                        "transaction",
                        outcome="none",
                    )
                tx = _MemoryTx(self._state, self._clock.now(), plan.names)
                try:
                    result = body(tx)
                    self._state = tx.state()
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

    def _read(self, body: Callable[[ReadTx], T], plan: Plan, deadline: float) -> T:  # noqa: ARG002 - nobody is waited for
        self._check_open()
        tx = _MemoryReadTx(self._state, self._clock.now(), plan.names)
        try:
            return body(tx)
        finally:
            tx.end()

    def listen(self, topics: Sequence[str] = ()) -> FdListener:
        self._check_open()
        return self._board.listen(topics)

    def _journal(self, cursor: Cursor, limit: int, reverse: bool) -> Batch:
        self._check_open()
        entries = self._state.journal
        if reverse:
            end = cursor_at(self._journal_number, [entries[-1].revision]) if entries else BEGINNING
            return Batch(list(entries[::-1][:limit]), end)
        begin = bisect_right(
            entries, places_of(cursor, 1, self._journal_number)[0], key=lambda entry: entry.revision
        )
        batch = list(entries[begin : begin + limit])
        return Batch(
            batch, cursor_at(self._journal_number, [batch[-1].revision]) if batch else cursor
        )

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise closed()


class AbsentStore(MemoryStore):
    """Stands for a SQLite file or a folder that does not exist: reading it makes nothing.

    It reads as an empty store, and does not notice when the store is made. Raises NotFound for a
    change, and for listening, which no process could end.
    """

    ephemeral = False

    def __init__(self, path: Path, *, namespace: str, kind: str) -> None:
        super().__init__(namespace=namespace)
        self.kind = kind
        self.path = self.anchor = path

    def side_folder(self, purpose: str) -> Path:
        return self.path.with_name(f"{self.path.name}-{purpose}")

    def _transact(self, *_: Any, **__: Any) -> NoReturn:
        raise self._not_found()

    def listen(self, *_: Any, **__: Any) -> NoReturn:
        raise self._not_found()

    def _not_found(self) -> NotFound:
        return NotFound(
            f"there is no store {self.path} yet: connect with create=True to make it",
            path=str(self.path),
        )


class _MemoryReadTx(QueryTx):
    def __init__(self, state: _State, now: datetime, names: frozenset[str]) -> None:
        self._tables = dict(state.tables)
        self._names = names
        self.now = now

    def get(self, space: Space[R], key: str, *, expected: bool = True) -> Row[R] | None:  # noqa: ARG002 - costs the same here
        stored = self._table(space).records.get(key)
        return None if stored is None else Row(key, space.decode(key, stored.data), stored.revision)

    def select(self, space: Space[R], query: Query, damaged: Damage | None) -> list[Row[R]]:
        return self._rows(space, self._keys(space, query), damaged)

    def count(self, space: Space[Any], index: str | None = None, match: Parts = ()) -> int:
        table = self._table(space)
        return len(table.records) if index is None else table.indexes.count(space, index, match)

    def end(self) -> None:
        """Refuse every further call: the records are the store's now."""
        self._names = ENDED

    def _table(self, space: Space[Any]) -> _Table:
        if space.name not in self._names:
            raise out_of_scope(space)
        return self._tables.get(space.name) or _Table({}, SortedIndexes(len(space.indexes)))

    def _keys(self, space: Space[Any], query: Query) -> Iterator[str]:
        table = self._table(space)
        if query.by is None:
            return keys_between(sorted(table.records), query)
        return table.indexes.keys(space, query)

    def _rows(self, space: Space[R], keys: Iterable[str], damaged: Damage | None) -> list[Row[R]]:
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
    def __init__(self, state: _State, now: datetime, names: frozenset[str]) -> None:
        super().__init__(state, now, names)
        self.topics: dict[str, None] = {}
        self._journal = state.journal
        self._last = state.revision
        self._own: set[str] = set()
        self._revision: int | None = None
        self._given = False

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

    def _take_first(
        self, space: Space[R], query: Query, but_for: Collection[str], damaged: Damage | None
    ) -> Row[R] | None:
        for key in self._keys(space, query):
            # One at a time: of a long queue only the first is decoded.
            if key not in but_for and (found := self._rows(space, [key], damaged)):
                return found[0]
        return None

    def append(
        self, *, actor: str, kind: str, subject: str, data: dict[str, Any] | None = None
    ) -> int:
        self._check_current()
        check_texts(actor, kind, subject)
        check_entry(data)
        revision = self.token()
        entry = Entry(
            revision=revision, at=self.now, actor=actor, kind=kind, subject=subject, data=data or {}
        )
        self._journal = (*self._journal, entry)
        self.notify(JOURNAL_TOPIC)
        return revision

    def token(self) -> int:
        self._check_current()
        revision = self._last + 1 if self._given else self.revision
        self._last, self._given = revision, True
        return revision

    def trim(self, *, keep: int, before: datetime, least: int = 1) -> int:
        self._check_current()
        entries = self._journal
        oldest = enumerate(entries[:JOURNAL_TRIM_MAX])
        # The newest stays, whatever age a stepped clock gives it.
        beyond = len(entries) - max(keep, 1)
        old = len(entries) - max(least, 1)
        kept = [e for at, e in oldest if at >= beyond and (at >= old or e.at >= before)]
        self._journal = (*kept, *entries[JOURNAL_TRIM_MAX:])
        return len(entries) - len(self._journal)

    def notify(self, topic: str) -> None:
        self.topics[topic] = None

    def state(self) -> _State:
        return _State(self._tables, self._journal, self._last)

    def _check_current(self) -> None:
        if self._names is ENDED:
            raise has_ended()

    def _set(self, space: Space[Any], key: str, stored: _Stored | None) -> _Stored | None:
        """Put a record, or remove it (None); return the previous one."""
        table = self._table(space)
        if space.name not in self._own:
            table = self._tables[space.name] = _Table(dict(table.records), table.indexes.copy())
            self._own.add(space.name)
        old = table.records.pop(key, None)
        if stored is not None:
            table.records[key] = stored
        table.indexes.move(key, old and old.places, stored and stored.places)
        return old


_stores: weakref.WeakSet[MemoryStore] = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_stores):
        store.after_fork()


os.register_at_fork(after_in_child=_after_fork)
