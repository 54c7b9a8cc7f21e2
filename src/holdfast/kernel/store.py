"""The store port: what every store promises, so that the rules above are written once.

    store.transact(body, scope=..., durable=True, timeout_s=...)   check and act, all or nothing
    store.read(body, scope=...)                                    a consistent snapshot
    store.get / put_new / delete_if                                hot paths, one statement each
    store.now()                                                    the store's clock, without asking
    store.listen(topics).wait(...)                                 sleep until something changed
    store.journal(cursor)                                          what happened, from a place on

A store holds no rule. It knows spaces (kernel/space.py) and bytes. In what else stores differ, the
port says too: nobody above asks for a store's kind, except to show it.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

from holdfast.kernel.clock import Passing
from holdfast.kernel.codec import Instant, Value
from holdfast.kernel.errors import Corrupt, InvalidValue
from holdfast.kernel.limits import JOURNAL_READ_MAX, TRANSACT_TIMEOUT_S
from holdfast.kernel.order import Parts
from holdfast.kernel.space import R, Rows, Space

T = TypeVar("T")

Scope = Sequence[Space[Any] | Rows]
Cursor = str
"""A place in the journal, opaque to everyone but the store that gave it."""

Damage = list[Corrupt]
"""Where a reader is told of records that cannot be decoded."""

BEGINNING: Cursor = ""
JOURNAL_TOPIC = "journal"
"""Notified by the store itself for each transaction that appended an entry."""


class Row(NamedTuple, Generic[R]):
    """A record as it is stored: `revision` is that of the transaction that last put it."""

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


class Batch(NamedTuple):
    """Journal entries, and the cursor behind the last of them."""

    entries: list[Entry]
    cursor: Cursor


class ReadTx(Protocol):
    """One consistent view of the store."""

    @property
    def now(self) -> datetime:
        """The store's clock when the view was taken."""
        ...

    def get(self, space: Space[R], key: str, *, expected: bool = True) -> Row[R] | None:
        """The record under a key. Where most likely there is none, say that it is not `expected`:
        the answer is the same, and some stores find it at half the cost.
        """
        ...

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
        """Records in the order of their keys (by code points), of those with `prefix` from `start`
        up to but not including `stop`. A damaged one raises, unless `damaged` is a list to tell of
        it in; then it hides no other.
        """
        ...

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
        """Records in the order of a declared index, then of their keys: those whose tuple begins
        with `match` and goes on from `start` up to but not including `stop`. For `damaged` see
        `range`.
        """
        ...

    def count(self, space: Space[Any], index: str | None = None, match: Parts = ()) -> int:
        """How many records there are, or how many of them `find` would return."""
        ...


class Tx(ReadTx, Protocol):
    """One transaction. It sees its own changes."""

    @property
    def revision(self) -> int:
        """This transaction's number: greater than that of every transaction before it that touched
        the same records. It serves as the token of whatever is granted here.
        """
        ...

    def put(self, space: Space[R], key: str, record: R) -> None:
        """Write a record, new or not."""
        ...

    def delete(self, space: Space[Any], key: str) -> bool:
        """Remove a record; False when there was none."""
        ...

    def take_first(
        self,
        space: Space[R],
        index: str,
        match: Parts = (),
        *,
        but_for: Collection[str] = (),
        damaged: Damage | None = None,
    ) -> Row[R] | None:
        """The first record of an index that no other transaction is taking at this moment,
        `but_for` those under some keys. A damaged one raises, unless `damaged` is a list to tell of
        it in; then it is passed over.
        """
        ...

    def append(
        self, *, actor: str, kind: str, subject: str, data: dict[str, Any] | None = None
    ) -> int:
        """Append a journal entry and return its revision. It commits with the transaction or not at
        all.
        """
        ...

    def trim(self, *, keep: int, before: datetime, least: int = 1) -> int:
        """Drop journal entries that are older than `before`, and the oldest above `keep`; return
        how many. Of those within `keep`, the newest `least` stay however old they are; and the
        newest entry always stays.
        """
        ...

    def notify(self, topic: str) -> None:
        """After the commit, wake whoever listens to the topic."""
        ...


class Woken(NamedTuple):
    """Why a wait ended: a topic was notified, or these of the descriptors watched beside became
    readable. Neither: it is time to look again.
    """

    notified: bool
    ready: frozenset[int]


class Listener(AbstractContextManager["Listener"], Protocol):
    """Ears that were open since before the caller looked; closed by leaving the `with` block."""

    @property
    def address(self) -> str:
        """A topic that only this listener hears, to be stored where the one who should wake it will
        find it.
        """
        ...

    def outlive(self) -> tuple[int, ...]:
        """Descriptors by which the next program of this process can go on listening. A notice makes
        the first one readable, and the others keep the store in use. Empty where notices reach only
        the program that listens.
        """
        ...

    def wait(self, timeout_s: float | None, *, also: Sequence[int] = ()) -> Woken:
        """Sleep until a topic is notified, a descriptor of `also` is readable, or the time is up.

        Returns early now and then (after at most WAIT_RECHECK_S), and may return for a notice meant
        for an earlier listener, so callers look again in a loop. Never loses a notice sent after
        `listen` returned, unless its sender was killed before sending it; that one costs at most
        WAIT_RECHECK_S.
        """
        ...


class SessionContender(Protocol):
    """One who wants a session lock, and maybe has it. Closing it lets go."""

    def try_take(self) -> bool:
        """Take the lock if nobody else has it; True also when it is ours already. Never waits for
        its holder. Raises StoreUnavailable when that cannot be known.
        """
        ...

    def has_it(self) -> bool:
        """Is the lock still ours? False as soon as what carried it is gone."""
        ...

    def watch(self, lost: Callable[[], None]) -> None:
        """Call back once, from another thread, when the lock that is ours is found to be gone.
        Until `close`; where it cannot be lost by a process that lives, never.
        """
        ...

    def close(self) -> None:
        """Let go of it. Calling it again is harmless."""
        ...


class SessionLock(Protocol):
    """A lock that ends with the process of its holder, however that ends. Neither a forked child
    nor a program that was started meanwhile keeps it. Not promised: any order among contenders.
    """

    def contender(self) -> SessionContender:
        """Get ready to ask for it. Raises StoreUnavailable."""
        ...

    def is_held(self) -> bool:
        """Has anybody got it at this moment? Raises StoreUnavailable."""
        ...


class LongTransaction(NamedTuple):
    """A session of a database server that has been inside one transaction for long."""

    pid: int
    seconds: float
    state: str
    client: str


class Administration:
    """Looking after a store as a whole. These are the answers of a store that has nothing of it."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def facts(self) -> dict[str, str]:
        """What is known of the store's server, in words."""
        return {}

    def check(self, spaces: Sequence[Space[Any]]) -> list[str]:  # noqa: ARG002 - nothing to look at
        """What is wrong with the store, a line each. Changes nothing and blocks no writer."""
        return []

    def content(self, space: Space[Any], key: str) -> bytes:  # noqa: ARG002 - it keeps no bytes
        """A record's bytes as they are stored, damaged or not. Raises NotFound."""
        raise self.no_backups()

    def backup(self, spaces: Sequence[Space[Any]], target: Path) -> None:  # noqa: ARG002 - it has none
        """Copy the store to a new file, whole or not at all. Raises InvalidValue where the target
        exists, or the store's backups are made by other tools; StoreUnavailable.
        """
        raise self.no_backups()

    def begin_era(self) -> int:
        """Go on with tokens of a new era, and return it. Raises InvalidValue for a store that
        begins its eras itself.
        """
        raise InvalidValue(
            f"a {self._kind} store begins its eras itself: `holdfast store restore` puts a backup "
            "back"
        )

    def long_transactions(self, seconds: float) -> list[LongTransaction]:  # noqa: ARG002 - no server
        """The sessions of the server that keep others from the same records for longer."""
        return []

    def strangers(self) -> list[str]:
        """The roles of the server that may stop all writers though they may not use the store."""
        return []

    def no_backups(self) -> InvalidValue:
        """The error for a store whose backups are not made by Holdfast."""
        return InvalidValue(
            f"backups of a {self._kind} store are made by its own tools: for PostgreSQL pg_dump "
            "and pg_restore"
        )


class Leftover(NamedTuple):
    """A folder that should have a record in it and has none, or what is no folder.

    `age_s` is how long ago it last changed, on the clock of its file system.
    """

    key: str
    kind: Literal["no_record", "link", "unreadable"]
    age_s: float


@runtime_checkable
class Debris(Protocol):
    """What lies among the folders of a space and is no record. Links are never followed: what one
    leads to stays as it is. A store without such folders has none.
    """

    def leftovers(self, space: Space[Any]) -> list[Leftover]:
        """What is there beside records. What cannot be looked at is told as unreadable, and hides
        nothing else.
        """
        ...

    def remove_leftover(self, space: Space[Any], key: str, *, older_than_s: float) -> bool:
        """Remove a folder that still has no record and did not change for so long, or a link itself
        however young, in one step with that check against whoever writes one. False when it is not
        so any more. Raises HoldfastError when it cannot be done.
        """
        ...


class NoLayouts:
    """What a store answers about files that people read if it has none."""

    def layout_folder(self, name: str) -> Path | None:  # noqa: ARG002 - it has none
        return None

    def leftovers(self, space: Space[Any]) -> list[Leftover]:  # noqa: ARG002 - it has no folders
        return []

    def remove_leftover(self, space: Space[Any], key: str, *, older_than_s: float) -> bool:  # noqa: ARG002
        return False


class Store(Debris, Protocol):
    """Where records live. Safe for threads; safe after fork; `close` ends it.

    Every method raises StoreUnavailable, LockTimeout (its turn did not come in time), StoreCorrupt,
    RecordInvalid or SchemaTooNew, and never a driver's own exception.
    """

    @property
    def kind(self) -> str:
        """memory, sqlite, files or postgres: to be shown, never to decide by."""
        ...

    @property
    def namespace(self) -> str:
        """The part of the store that this object sees."""
        ...

    @property
    def embedded(self) -> bool:
        """True when only this machine can use the store, so that another boot of it proves a
        holder's death.
        """
        ...

    @property
    def ephemeral(self) -> bool:
        """True when only this process sees the store, and it ends with the process."""
        ...

    @property
    def anchor(self) -> Path | None:
        """The file or folder of the store, whose owner and group everything has that is made beside
        it; None where the store has none on this machine.
        """
        ...

    def side_folder(self, purpose: str) -> Path | None:
        """Where what belongs to the store and is no record lies; None where the store has no place
        for it on this machine. Makes nothing.
        """
        ...

    def layout_folder(self, name: str) -> Path | None:
        """Where the records of a layout lie in files that other programs may read; None where they
        lie in none.
        """
        ...

    def may_have_records(self, space: Space[Any]) -> bool:
        """False when nothing was ever put into the space, or since the boot into a volatile one.
        Unlike a read, it never makes the file of a space.
        """
        ...

    def session_lock(self, name: str) -> SessionLock:
        """The lock of that name in this namespace, among all who use the store."""
        ...

    @property
    def administration(self) -> Administration:
        """Looking after the store as a whole."""
        ...

    def boot_in_use(self, boot_id: str) -> bool:
        """Has a process with that boot id this store open? Then that boot has not ended: a
        container may have a boot id of its own. True where it cannot be told.
        """
        ...

    def now(self) -> datetime:
        """The store's clock, as far as it can be known without asking for each answer.

        An embedded store's is exact. A database's is what its last answer with the time in it said
        and what has passed since, asked anew when that is more than a minute: within a round trip
        and a minute's drift of the database's clock, whatever this machine's says. May go back, as
        clocks do. The lease of what one statement grants begins here.
        """
        ...

    def passing(self) -> Passing:
        """How much time has passed on a clock of this machine that nobody sets, and which one: see
        primitives/steady_clock.
        """
        ...

    def transact(
        self,
        body: Callable[[Tx], T],
        *,
        scope: Scope,
        durable: bool = True,
        timeout_s: float = TRANSACT_TIMEOUT_S,
    ) -> T:
        """Run `body` as one serialisable step over the spaces in `scope`, and return what it
        returns.

        All or nothing, also when the process is killed at any instruction or the power goes. When
        it returns, a durable change survives both; one that is not `durable` survives the kill
        alone. `body` may run more than once and must touch nothing but `tx`. If it raises, nothing
        is changed and the exception comes through.

        A space in `scope` is latched whole. `rows(space)` latches only the records that the body
        gets or takes, so that claims do not queue behind each other; the body then promises to
        decide by nothing else of that space. All spaces of a scope are volatile, or none is. An
        empty scope may append to the journal and trim it.

        Raises LockTimeout (nothing changed) when its turn did not come within `timeout_s`;
        StoreUnavailable with `outcome` "unknown" when the commit's fate could not be learned.
        """
        ...

    def read(
        self, body: Callable[[ReadTx], T], *, scope: Scope, timeout_s: float = TRANSACT_TIMEOUT_S
    ) -> T:
        """Run `body` on a consistent snapshot of the spaces in `scope`. Takes no lock and blocks no
        one. A store that does not answer is asked again for `timeout_s`.
        """
        ...

    def get(
        self, space: Space[R], key: str, *, timeout_s: float = TRANSACT_TIMEOUT_S
    ) -> Row[R] | None:
        """The record under a key as of now: `read` of one record, in one statement."""
        ...

    def put_new(
        self,
        space: Space[R],
        items: Sequence[tuple[str, R]],
        *,
        timeout_s: float = TRANSACT_TIMEOUT_S,
    ) -> int | None:
        """Insert all items and return their revision, which is their token; or, if any key exists,
        nothing and None.
        """
        ...

    def delete_if(
        self,
        space: Space[Any],
        keys: Sequence[str],
        token: int,
        *,
        timeout_s: float = TRANSACT_TIMEOUT_S,
    ) -> int:
        """Delete those of the keys whose record's revision is `token`; return how many there
        were.
        """
        ...

    def listen(self, topics: Sequence[str] = ()) -> Listener:
        """Open ears for the topics. Call it before the transaction that looks, and wait after
        it.
        """
        ...

    def journal(
        self, cursor: Cursor = BEGINNING, *, limit: int = JOURNAL_READ_MAX, reverse: bool = False
    ) -> Batch:
        """Entries behind the cursor, oldest first; none is ever skipped or returned twice.
        `reverse` reads from the end of the journal instead, newest first, and its cursor is the
        journal's end.
        """
        ...

    def close(self) -> None:
        """Let go of everything. Calling it again is harmless."""
        ...


def spaces_of(scope: Scope) -> list[Space[Any]]:
    """The spaces of a scope in the one global order in which they are latched."""
    named = {s.space.name: s.space for s in scope if isinstance(s, Rows)}
    named.update({s.name: s for s in scope if isinstance(s, Space)})
    return sorted(named.values(), key=lambda space: space.order)
