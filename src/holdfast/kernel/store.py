"""The store port: what every store promises, so that the rules above it are written once.

`Store.transact` checks and acts, all or nothing; `Store.listen` sleeps until something changed. A
store has no rules: it knows spaces (kernel/space.py) and bytes. What differs between stores is a
method or a property here: no code above decides by a store's kind.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

from msgspec import Struct

from holdfast.kernel.clock import MonotonicTime
from holdfast.kernel.codec import Instant, Value
from holdfast.kernel.errors import Corrupt, InvalidValue
from holdfast.kernel.limits import JOURNAL_READ_MAX, TRANSACT_TIMEOUT_S
from holdfast.kernel.order import Parts
from holdfast.kernel.space import R, Rows, Space

T = TypeVar("T")

Scope = Sequence[Space[Any] | Rows]
Cursor = str
"""A place in the journal; only the store that gave it can read it."""

Damage = list[Corrupt]
"""Collects the records that cannot be decoded."""

BEGINNING: Cursor = ""
JOURNAL_TOPIC = "journal"
"""The store notifies it after each transaction that appended an entry."""


class Row(Struct, Generic[R], frozen=True):
    """A stored record, with the revision of the transaction that last put it."""

    key: str
    record: R
    revision: int


class Entry(Value, frozen=True, kw_only=True):
    """One journal entry."""

    revision: int
    at: Instant
    actor: str
    kind: str
    subject: str
    data: dict[str, Any]


class Batch(Struct, frozen=True):
    """Journal entries, and the cursor behind the last one."""

    entries: list[Entry]
    cursor: Cursor

    def behind(self, revision: int) -> list[Entry]:
        """The entries behind a revision; all of them when it is not among them."""
        revisions = [entry.revision for entry in self.entries]
        return self.entries[revisions.index(revision) + 1 if revision in revisions else 0 :]


class ReadTx(Protocol):
    """One consistent view of the store."""

    @property
    def now(self) -> datetime:
        """The store's clock when the view was taken."""

    def get(self, space: Space[R], key: str, *, expected: bool = True) -> Row[R] | None:
        """The record of a key. `expected` False, for one that is likely missing, is cheaper."""

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
        """Records with `prefix`, in the order of their keys by code points, from `start` up to but
        not including `stop`. A damaged record raises, or is noted in the list `damaged`.
        """

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
        """Records in the order of an index, then of their keys: those whose tuple begins with
        `match` and continues from `start` up to but not including `stop`; see `range`.
        """

    def count(self, space: Space[Any], index: str | None = None, match: Parts = ()) -> int:
        """The number of records, or of those that `find` would return."""


class Tx(ReadTx, Protocol):
    """One transaction. It sees its own changes."""

    @property
    def revision(self) -> int:
        """The token of what is granted here, greater than any before it on the same records."""

    def put(self, space: Space[R], key: str, record: R) -> None:
        """Write a record, new or not."""

    def delete(self, space: Space[Any], key: str) -> bool:
        """Remove a record; False when there is none."""

    def will_take(self, space: Space[Any], index: str, match: Parts = ()) -> None:
        """Announce a `take_first` that will follow the next `get`, before anything is changed. A
        store over a network then asks for both at once.
        """

    def take_first(
        self,
        space: Space[R],
        index: str,
        match: Parts = (),
        *,
        but_for: Collection[str] = (),
        damaged: Damage | None = None,
    ) -> Row[R] | None:
        """The first record of an index that no other transaction is taking at this moment, except
        the keys in `but_for`. A damaged record raises, or is skipped and noted in `damaged`.
        """

    def append(
        self, *, actor: str, kind: str, subject: str, data: dict[str, Any] | None = None
    ) -> int:
        """Append a journal entry, which commits with the transaction; return its revision."""

    def trim(self, *, keep: int, before: datetime, least: int = 1) -> int:
        """Drop journal entries older than `before`, and the oldest above `keep`; return how many.
        The newest `least` of those within `keep` stay at any age, and the newest entry always.
        One call checks only the JOURNAL_TRIM_MAX oldest: other writers wait for it.
        """

    def token(self) -> int:
        """A token for one of several grants of this transaction: greater than any before it on the
        same records, and no other grant or journal entry has it.
        """

    def notify(self, topic: str) -> None:
        """Wake the listeners of the topic after the commit."""


class Woken(Struct, frozen=True):
    """Why a wait ended: a notice, or these readable descriptors. Neither: check again."""

    notified: bool
    ready: frozenset[int]


class Listener(AbstractContextManager["Listener"], Protocol):
    """Listens to topics from before the caller's check until the end of its `with` block."""

    @property
    def address(self) -> str:
        """A topic of this listener alone. A waiter stores it in its record, to be woken by it."""

    def outlive(self) -> tuple[int, ...]:
        """Descriptors by which this process can go on listening after execve(2): a notice makes the
        first one readable, and the others keep the store in use. Empty where the store cannot
        notify the program that this process executes.
        """

    def wait(self, timeout_s: float | None, *, also: Sequence[int] = ()) -> Woken:
        """Sleep until a topic is notified, a descriptor of `also` is readable, or the time is up.

        Callers check again in a loop. Returns after WAIT_RECHECK_S at the latest, as the sender of
        a notice may be killed between commit and notice; every other notice sent after `listen`
        returned arrives. It may also return for a notice to an earlier listener.
        """


class SessionContender(Protocol):
    """One contender for a session lock, which may hold it until it is closed."""

    def try_take(self) -> bool:
        """Take the lock without waiting; True if this contender has it now."""

    def has_it(self) -> bool:
        """True while this contender has the lock, and its connection or file is there."""

    def watch(self, lost: Callable[[], None]) -> None:
        """Call `lost` once, from another thread, if the lock is gone before `close`."""

    def close(self) -> None:
        """Release the lock. A second call is harmless."""


class SessionLock(Protocol):
    """A lock that ends with its holder's process. Neither a forked child nor a program that was
    started meanwhile keeps it. Contenders get it in any order.
    """

    def contender(self) -> SessionContender:
        """A new contender, which does not hold the lock yet. Raises StoreUnavailable."""

    def is_held(self) -> bool:
        """True when some contender has the lock now. Raises StoreUnavailable."""


class LongTransaction(Struct, frozen=True):
    """A session of a database server that has been inside one transaction for long."""

    pid: int
    seconds: float
    state: str
    client: str


class Administration:
    """Maintenance of a store as a whole. These are the answers of a store that offers none."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def facts(self) -> dict[str, str]:
        """Facts about the store's server, for people."""
        return {}

    def check(self, spaces: Sequence[Space[Any]]) -> list[str]:  # noqa: ARG002 - nothing to look at
        """The defects of the store, a line each. Changes nothing and blocks no writer."""
        return []

    def content(self, space: Space[Any], key: str) -> bytes:  # noqa: ARG002 - it keeps no bytes
        """A record's bytes as they are stored, damaged or not. Raises NotFound."""
        raise self.no_backups()

    def backup(self, spaces: Sequence[Space[Any]], target: Path) -> None:  # noqa: ARG002 - it has none
        """Copy the store to a new file, whole or not at all. Raises InvalidValue."""
        raise self.no_backups()

    def begin_era(self) -> int:
        """Begin a new era of tokens, and return it. InvalidValue: the store does so itself."""
        raise InvalidValue(
            f"a {self._kind} store begins its eras itself: `holdfast store restore` puts a backup "
            "back"
        )

    def long_transactions(self, seconds: float) -> list[LongTransaction]:  # noqa: ARG002 - no server
        """The server's sessions that block the same records for longer."""
        return []

    def strangers(self) -> list[str]:
        """The server's roles that may block all writers though they may not use the store."""
        return []

    def no_backups(self) -> InvalidValue:
        """The error for a store whose backups are not made by Holdfast."""
        return InvalidValue(
            f"backups of a {self._kind} store are made by its own tools: for PostgreSQL pg_dump "
            "and pg_restore"
        )


class Leftover(Struct, frozen=True):
    """A folder without its record, or something that is no folder, unchanged for `age_s`."""

    key: str
    kind: Literal["no_record", "link", "unreadable"]
    age_s: float


@runtime_checkable
class Debris(Protocol):
    """Leftovers among the folders of a space. Links are never followed."""

    def leftovers(self, space: Space[Any]) -> list[Leftover]:
        """All that is no record. What cannot be read is listed as unreadable."""

    def remove_leftover(self, space: Space[Any], key: str, *, older_than_s: float) -> bool:
        """Remove a folder that still has no record and is old enough, or a link of any age, in one
        step. False when it has changed. Raises HoldfastError when it cannot be removed.
        """


class Store(Debris, Protocol):
    """Where records live. Safe for threads; safe after fork; `close` ends it.

    Every method may raise StoreUnavailable, LockTimeout (its turn did not come in time),
    StoreCorrupt, RecordInvalid or SchemaTooNew, and never a driver's exception.
    """

    @property
    def kind(self) -> str:
        """memory, sqlite, files or postgres: to be shown, never to decide by."""

    @property
    def namespace(self) -> str:
        """The part of the store that this object sees."""

    @property
    def embedded(self) -> bool:
        """True when only this machine can use the store: then another boot proves a death."""

    @property
    def ephemeral(self) -> bool:
        """True when only this process sees the store, and it ends with the process."""

    @property
    def anchor(self) -> Path | None:
        """The store's file or folder, whose owner and group everything beside it gets; or None."""

    def side_folder(self, purpose: str) -> Path | None:
        """The folder for the store's files that are no records, made or not; None without one."""

    def layout_folder(self, name: str) -> Path | None:
        """The folder of a layout's files, which other programs may read; None without any."""

    def may_have_records(self, space: Space[Any]) -> bool:
        """False when nothing was ever put there (since the boot, if volatile). Makes no file."""

    def session_lock(self, name: str) -> SessionLock:
        """The lock of that name in this namespace, for all processes that use the store."""

    @property
    def administration(self) -> Administration:
        """Maintenance of the store as a whole."""

    def boot_in_use(self, boot_id: str) -> bool:
        """True when that boot has not ended: one of its processes may have this store open."""

    def now(self) -> datetime:
        """The store's clock, which may go back. A database is asked once a minute: then this is the
        time of its last answer plus the time since, whatever this machine's clock says.
        """

    def monotonic(self) -> MonotonicTime:
        """The time on a clock of this machine that nobody can set."""

    def transact(
        self,
        body: Callable[[Tx], T],
        *,
        scope: Scope,
        durable: bool = True,
        timeout_s: float = TRANSACT_TIMEOUT_S,
    ) -> T:
        """Run `body` as one serialisable step over the spaces in `scope`; return its result.

        All or nothing, also if the process is killed at any instruction or the power fails. After
        the return a durable change survives both, another one the kill alone. `body` may run more
        than once and must touch nothing but `tx`. If it raises, nothing is changed and the
        exception comes through.

        A space in `scope` is latched whole; of `rows(space)` only the records that the body gets or
        takes, and it must decide by nothing else of that space. All spaces of a scope are volatile,
        or none is. With an empty scope a body may append to the journal and trim it.

        Raises LockTimeout (nothing changed) when its turn did not come within `timeout_s`, and
        StoreUnavailable with `outcome` "unknown" when the fate of the commit is unknown.
        """

    def read(
        self, body: Callable[[ReadTx], T], *, scope: Scope, timeout_s: float = TRANSACT_TIMEOUT_S
    ) -> T:
        """Run `body` on a consistent snapshot of the spaces in `scope`. Blocks nobody. Retries for
        `timeout_s` while the store does not answer.
        """

    def get(
        self, space: Space[R], key: str, *, timeout_s: float = TRANSACT_TIMEOUT_S
    ) -> Row[R] | None:
        """The record of a key: `read` of one record, in one statement."""

    def put_new(
        self,
        space: Space[R],
        items: Sequence[tuple[str, R]],
        *,
        timeout_s: float = TRANSACT_TIMEOUT_S,
    ) -> int | None:
        """Insert all items and return their revision; if any key exists, insert nothing and return
        None.
        """

    def delete_if(
        self,
        space: Space[Any],
        keys: Sequence[str],
        token: int,
        *,
        timeout_s: float = TRANSACT_TIMEOUT_S,
    ) -> int:
        """Delete those of the keys whose record has the revision `token`; return how many."""

    def listen(self, topics: Sequence[str] = ()) -> Listener:
        """Begin to listen. Call it before the transaction that checks, and wait after it."""

    def journal(
        self, cursor: Cursor = BEGINNING, *, limit: int = JOURNAL_READ_MAX, reverse: bool = False
    ) -> Batch:
        """Entries behind the cursor, oldest first; none is skipped or returned twice. `reverse`:
        newest first, and the cursor is the journal's end.
        """

    def close(self) -> None:
        """Close everything. A second call is harmless."""
