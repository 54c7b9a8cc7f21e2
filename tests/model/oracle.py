"""The port in plain Python, with nothing of Holdfast's own in it: dicts, lists and tuples, sorted
by Python.

A store is right when it answers as this does. Revisions are the oracle's own numbers: those of a
store must have the same order and be equal where these are (see `Numbers`).
"""

from bisect import bisect_left
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple


class OracleRow(NamedTuple):
    key: str
    record: Any
    revision: int


class OracleEntry(NamedTuple):
    revision: int
    at: datetime
    subject: str
    data: dict[str, Any]


Index = Callable[[Any], tuple[Any, ...] | None]


class Numbers:
    """Which number of a store stands for which of the oracle: one for one, and in the same
    order.
    """

    def __init__(self) -> None:
        self._ours: list[int] = []
        self._theirs: list[int] = []

    def match(self, ours: int, theirs: int) -> None:
        at = bisect_left(self._ours, ours)
        if at < len(self._ours) and self._ours[at] == ours:
            assert self._theirs[at] == theirs, f"revision {theirs} was {self._theirs[at]} before"
            return
        assert at == 0 or self._theirs[at - 1] < theirs, "a later revision is not greater"
        assert at == len(self._theirs) or theirs < self._theirs[at], (
            "an earlier revision is not smaller"
        )
        self._ours.insert(at, ours)
        self._theirs.insert(at, theirs)

    def theirs(self, ours: int) -> int | None:
        """The store's number, when it has been seen."""
        at = bisect_left(self._ours, ours)
        return self._theirs[at] if self._ours[at : at + 1] == [ours] else None


class State:
    """What one transaction reads and replaces."""

    def __init__(self) -> None:
        self.records: dict[str, dict[str, OracleRow]] = {}
        self.journals: dict[str, list[OracleEntry]] = {}
        self.last = 0

    def copy(self) -> "State":
        """Another with dicts and lists of its own; what is in them does not change."""
        twin = State()
        twin.records = {name: dict(shelf) for name, shelf in self.records.items()}
        twin.journals = {name: list(entries) for name, entries in self.journals.items()}
        twin.last = self.last
        return twin


class Oracle:
    """`journal_of` says in which journal a residence tells of itself: a store may have one for
    each.
    """

    def __init__(self, journal_of: Callable[[bool], str]) -> None:
        self.state = State()
        self.journal_of = journal_of

    def transact(self, body: Callable[["OracleTx"], Any], *, now: datetime, volatile: bool) -> Any:
        state = self.state.copy()
        result = body(OracleTx(state, now, self.journal_of(volatile)))
        self.state = state
        return result

    def put_new(self, space: Any, items: list[tuple[str, Any]], now: datetime) -> int | None:
        def insert(tx: "OracleTx") -> int | None:
            if any(tx.get(space, key) for key, _ in items):
                return None
            for key, record in items:
                tx.put(space, key, record)
            return tx.revision

        revision: int | None = self.transact(insert, now=now, volatile=space.volatile)
        return revision

    def delete_if(self, space: Any, keys: list[str], token: int, now: datetime) -> int:
        def remove(tx: "OracleTx") -> int:
            found = [
                key for key in set(keys) if (row := tx.get(space, key)) and row.revision == token
            ]
            return sum(tx.delete(space, key) for key in found)

        removed: int = self.transact(remove, now=now, volatile=space.volatile)
        return removed


class OracleTx:
    """The verbs of a transaction."""

    def __init__(self, state: State, now: datetime, journal: str) -> None:
        self.now = now
        self._state = state
        self._journal = state.journals.setdefault(journal, [])
        self._revision: int | None = None
        self._appended = False

    @property
    def revision(self) -> int:
        if self._revision is None:
            self._state.last += 1
            self._revision = self._state.last
        return self._revision

    def get(self, space: Any, key: str) -> OracleRow | None:
        return self._shelf(space).get(key)

    def put(self, space: Any, key: str, record: Any) -> None:
        self._shelf(space)[key] = OracleRow(key, record, self.revision)

    def delete(self, space: Any, key: str) -> bool:
        return self._shelf(space).pop(key, None) is not None

    def range(
        self,
        space: Any,
        *,
        prefix: str = "",
        start: str | None = None,
        stop: str | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> list[OracleRow]:
        keys = sorted(self._shelf(space), reverse=reverse)
        found = [
            self._shelf(space)[key]
            for key in keys
            if key.startswith(prefix)
            and (start is None or key >= start)
            and (stop is None or key < stop)
        ]
        return found[:limit]

    def find(
        self,
        space: Any,
        index: str,
        match: tuple[Any, ...] = (),
        *,
        start: tuple[Any, ...] | None = None,
        stop: tuple[Any, ...] | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> list[OracleRow]:
        of: Index = space.indexes[index]
        placed = [
            (place, row)
            for row in self._shelf(space).values()
            if (place := of(row.record)) is not None
        ]
        placed.sort(key=lambda item: (item[0], item[1].key), reverse=reverse)
        found = []
        for place, row in placed:
            head, rest = place[: len(match)], place[len(match) :]
            if head == match and (start is None or rest >= start) and (stop is None or rest < stop):
                found.append(row)
        return found[:limit]

    def count(self, space: Any, index: str | None = None, match: tuple[Any, ...] = ()) -> int:
        return len(self._shelf(space)) if index is None else len(self.find(space, index, match))

    def take_first(self, space: Any, index: str, match: tuple[Any, ...] = ()) -> OracleRow | None:
        return next(iter(self.find(space, index, match)), None)

    def append(
        self, *, actor: str, kind: str, subject: str, data: dict[str, Any] | None = None
    ) -> int:
        if self._appended:
            self._state.last += 1
            revision = self._state.last
        else:
            revision = self.revision
        self._appended = True
        self._journal.append(OracleEntry(revision, self.now, subject, data or {}))
        return revision

    def trim(self, *, keep: int, before: datetime, least: int = 1) -> int:
        entries = self._journal
        newest = enumerate(reversed(entries))
        kept = [
            one
            for age, one in newest
            if age == 0 or (age < keep and (age < least or one.at >= before))
        ]
        dropped = len(entries) - len(kept)
        entries[:] = reversed(kept)
        return dropped

    def _shelf(self, space: Any) -> dict[str, OracleRow]:
        return self._state.records.setdefault(space.name, {})
