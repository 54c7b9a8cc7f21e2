"""The store port on plain files: a layout's records in files that people read, all else in an inner
SQLite store.
"""

import contextlib
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from holdfast.kernel import faults
from holdfast.kernel.clock import Clock, Passing, SystemClock
from holdfast.kernel.errors import HoldfastError, InvalidValue, StoreCorrupt, StoreUnavailable
from holdfast.kernel.layout import Sign
from holdfast.kernel.limits import (
    FILES_RETRY_ATTEMPTS,
    FILES_RETRY_DELAY_S,
    JOURNAL_READ_MAX,
    TRANSACT_TIMEOUT_S,
)
from holdfast.kernel.space import R, Space
from holdfast.kernel.store import (
    BEGINNING,
    Administration,
    Batch,
    Cursor,
    Leftover,
    ReadTx,
    Row,
    Scope,
    SessionLock,
    Tx,
)
from holdfast.stores import plain
from holdfast.stores.checks import plan_of
from holdfast.stores.files import apply, ownership, redo, repair
from holdfast.stores.files.cache import Cabinet
from holdfast.stores.files.disk import Disk, Spot, Unfit
from holdfast.stores.files.documents import Unsound
from holdfast.stores.files.folder_lock import FolderLocks, locks_of
from holdfast.stores.files.folders import Folders
from holdfast.stores.files.redo import GENERATIONS, REDO, laid_out, shadow_of
from holdfast.stores.files.repair import GONE, mend
from holdfast.stores.files.signs import NotingTx, Signs
from holdfast.stores.files.snapshot import InFiles, Moved, Picture, scope_of
from holdfast.stores.files.transaction import FilesTx
from holdfast.stores.listener import FdListener
from holdfast.stores.sqlite.errors import opening_failed
from holdfast.stores.sqlite.filesystem import refuse_network
from holdfast.stores.sqlite.gate import Gate
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.system.access import PRIVATE, Access, make_folder

T = TypeVar("T")

_LOOKS_MAX = 8
"""How often a reader looks again before it asks for a turn at the latch."""


class _Done(NamedTuple):
    result: Any
    plan: apply.Plan
    changes: list[redo.Change]
    touched: Mapping[Space[Any], Iterable[str]]


class _Unlocked(Exception):
    """What is to be brought up lies in folders whose locks were not taken."""

    def __init__(self, paths: Iterable[Path]) -> None:
        super().__init__(", ".join(map(str, paths)))
        self.paths = tuple(paths)


class FilesStore:
    """A store in the files of a folder, for one machine.

    Promised: the port, for every process of this machine that opens the same folder; and that
    records with a layout lie in its files as of the last transaction, or are there when the next
    one begins. A file that a person has changed is seen. A program that takes the lock of a layout,
    where it has one, may change its files at the same time. Not promised: anything about another
    that changes them at once.
    """

    kind = "files"
    embedded = True
    ephemeral = False

    def __init__(
        self,
        root: Path,
        *,
        boot_id: str,
        namespace: str = "default",
        clock: Clock | None = None,
        folders: Mapping[str, str | Path] | None = None,
        shown: Mapping[Space[Any], Sign[Any]] | None = None,
        retry_attempts: int = FILES_RETRY_ATTEMPTS,
        retry_delay_s: float = FILES_RETRY_DELAY_S,
        access: Access = PRIVATE,
    ) -> None:
        if os.path.lexists(root) and not os.path.isdir(root):
            raise InvalidValue(
                f"{root} is not a folder: give --store files:DIR the path of one", path=str(root)
            )
        self._clock = clock or SystemClock()
        self._given = dict(folders or {})
        make(Path(root), access)
        self._boot_id = boot_id
        self.folders = Folders(Path(root), namespace, self._given)
        self.root, self.anchor = self.folders.root, self.folders.own
        self.inner = SqliteStore(
            self.folders.own / "store.sqlite",
            boot_id=boot_id,
            namespace=namespace,
            clock=self._clock,
            access=access,
        )
        self.access = self.inner.access
        self.namespace = namespace
        self.disk = Disk(max(retry_attempts, 1), retry_delay_s, self.access)
        self.cabinet = Cabinet(self.folders, self.disk)
        self._picture = Picture(self.cabinet, self.inner)
        self._folder_locks = FolderLocks(self.access)
        self._lock_paths: dict[tuple[Space[Any], ...], tuple[Path, ...]] = {}
        with contextlib.ExitStack() as undone:
            undone.callback(self.inner.close)
            self._refuse_networks()
            ownership.claim_all(self.folders, self._given, self.access)
            self._latch = Gate(self.folders.own / "latch", self.access)
            undone.callback(self._latch.close)
            self._signs = Signs(self.inner, self.folders, shown or {}, self.access)
            undone.pop_all()
        self._signs.begin()
        self._closed = False
        _stores.add(self)

    def now(self) -> datetime:
        return self._clock.now()

    def boot_in_use(self, boot_id: str) -> bool:
        return self.inner.boot_in_use(boot_id)

    def passing(self) -> Passing:
        return self._clock.passing()

    def side_folder(self, purpose: str) -> Path:
        return self.folders.own / purpose

    def layout_folder(self, name: str) -> Path:
        return self.folders.of(name)

    def may_have_records(self, space: Space[Any]) -> bool:
        return self.inner.may_have_records(space)

    def session_lock(self, name: str) -> SessionLock:
        return self.inner.session_lock(name)

    @property
    def administration(self) -> Administration:
        from holdfast.stores.files.maintenance import FilesAdministration

        return FilesAdministration(self)

    def transact(
        self,
        body: Callable[[Tx], T],
        *,
        scope: Scope,
        durable: bool = True,
        timeout_s: float = TRANSACT_TIMEOUT_S,
    ) -> T:
        plan = scope_of(tuple(scope))
        if not plan.laid:
            return self._transact_inner(body, scope, durable, timeout_s)
        deadline = time.monotonic() + timeout_s
        return self.alone(
            lambda: self._transact(body, plan, deadline), timeout_s, self._locks_of(plan.laid)
        )

    def read(
        self, body: Callable[[ReadTx], T], *, scope: Scope, timeout_s: float = TRANSACT_TIMEOUT_S
    ) -> T:
        plan = scope_of(tuple(scope))
        if not plan.laid:
            return self.inner.read(body, scope=scope, timeout_s=timeout_s)
        for look in range(_LOOKS_MAX):
            try:
                return self._picture.look(body, plan, eager=look > 0, guarded=True)
            except Moved:
                continue
            except Unsound as unsound:
                mend = partial(self._mend, unsound)
                self.alone(mend, timeout_s, self._locks_of((unsound.space,)))
        return self.alone(
            lambda: self._picture.look(body, plan, eager=False, guarded=False), timeout_s
        )

    def get(
        self, space: Space[R], key: str, *, timeout_s: float = TRANSACT_TIMEOUT_S
    ) -> Row[R] | None:
        if laid_out(space) is None:
            return self.inner.get(space, key, timeout_s=timeout_s)
        return self.read(lambda tx: tx.get(space, key), scope=[space], timeout_s=timeout_s)

    def put_new(
        self,
        space: Space[R],
        items: Sequence[tuple[str, R]],
        *,
        timeout_s: float = TRANSACT_TIMEOUT_S,
    ) -> int | None:
        if laid_out(space) is not None:
            return plain.put_new(self, space, items, timeout_s)
        token = self.inner.put_new(space, items, timeout_s=timeout_s)
        if token is not None and self._signs.of(space) is not None:
            self._signs.follow({space: [key for key, _ in items]})
        return token

    def delete_if(
        self,
        space: Space[Any],
        keys: Sequence[str],
        token: int,
        *,
        timeout_s: float = TRANSACT_TIMEOUT_S,
    ) -> int:
        if laid_out(space) is not None:
            return plain.delete_if(self, space, keys, token, timeout_s)
        deleted = self.inner.delete_if(space, keys, token, timeout_s=timeout_s)
        if deleted and self._signs.of(space) is not None:
            self._signs.follow({space: keys})
        return deleted

    def listen(self, topics: Sequence[str] = ()) -> FdListener:
        return self.inner.listen(topics)

    def journal(
        self, cursor: Cursor = BEGINNING, *, limit: int = JOURNAL_READ_MAX, reverse: bool = False
    ) -> Batch:
        return self.inner.journal(cursor, limit=limit, reverse=reverse)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.cabinet.forget()
            self._latch.close()
            self._folder_locks.close()
            self._signs.close()
            self.inner.close()

    def after_fork(self) -> None:
        """In a forked child: let go of the parent's latch, and of what its threads may have been in
        the middle of.
        """
        closed, self._closed = self._closed, True
        self._latch.abandon()
        self._folder_locks.after_fork()
        self._picture.forget()
        if not closed:
            self._latch = Gate(self.folders.own / "latch", self.access)
            self._signs.after_fork()
            self._closed = False

    def alone(self, work: Callable[[], T], timeout_s: float, locks: tuple[Path, ...] = ()) -> T:
        """Do the work at the latch: no other process or thread changes the files meanwhile. What a
        killed one has left is brought up first. `locks` are those of the folders that the work
        changes, in their order: other programs that take them do not change those either. Raises
        LockTimeout when the turn does not come in time.
        """
        if self._closed:
            raise StoreUnavailable(
                "the store is closed: connect again", outcome="none", closed=True
            )
        faults.reach("files.latch.before")

        def in_turn() -> T:
            faults.reach("files.latch.after")
            self._recover(deadline, locks)
            return work()

        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return self._folder_locks.run(
                    locks, lambda: self._latch.run(in_turn, _left(deadline), sleepy=True), deadline
                )
            except _Unlocked as unlocked:
                # Not at the latch: nobody waits there for another program.
                locks = tuple(sorted({*locks, *unlocked.paths}))

    def leftovers(self, space: Space[Any]) -> list[Leftover]:
        """What lies among the folders of a space and is no record; see kernel/store.py."""
        return repair.leftovers(self.cabinet, space)

    def remove_leftover(self, space: Space[Any], key: str, *, older_than_s: float) -> bool:
        """Remove such a thing, if it is still one; see kernel/store.py."""
        return self.alone(
            lambda: repair.remove(self.cabinet, space, key, older_than_s=older_than_s),
            TRANSACT_TIMEOUT_S,
            self._locks_of((space,)),
        )

    def folders_of(self, namespace: str) -> Folders:
        """Where the files of a namespace lie."""
        return Folders(self.root, namespace, self._given)

    def elsewhere(self, namespace: str) -> tuple[Cabinet, SqliteStore]:
        """The files and the part of the inner store that belong to another namespace; the caller
        closes the latter.
        """
        cabinet = Cabinet(self.folders_of(namespace), self.disk)
        return cabinet, SqliteStore(
            self.inner.path, boot_id=self._boot_id, namespace=namespace, clock=self._clock
        )

    def _transact_inner(
        self, body: Callable[[Tx], T], scope: Scope, durable: bool, timeout_s: float
    ) -> T:
        if not any(self._signs.of(space) for space in plan_of(tuple(scope)).spaces):
            return self.inner.transact(body, scope=scope, durable=durable, timeout_s=timeout_s)

        def noting(tx: Tx) -> tuple[T, NotingTx]:
            mine = NotingTx(tx, self._signs)
            return body(mine), mine

        result, noted = self.inner.transact(
            noting, scope=scope, durable=durable, timeout_s=timeout_s
        )
        if noted.touched:
            self._signs.follow(noted.touched)
        return result

    def _transact(self, body: Callable[[Tx], T], plan: InFiles, deadline: float) -> T:
        """At the latch: commit the change with its redo record, then bring the files up."""
        process = os.getpid()
        staged: list[Spot] = []
        try:
            done = self.inner.transact(
                lambda tx: self._run(tx, body, plan, staged),
                scope=plan.inner,
                timeout_s=_left(deadline),
            )
        except Unsound as unsound:
            self._mend(unsound)
            return self._transact(body, plan, deadline)
        except StoreUnavailable as error:
            if error.fields.get("outcome") == "none" and os.getpid() == process:
                for spot in staged:
                    self.disk.unstage(spot)
            raise
        if os.getpid() != process:
            raise StoreUnavailable(
                "this process was forked inside of a transaction: leave that to its parent",
                outcome="none",
            )
        if done.changes:
            self._bring_up(done, deadline)
        if done.touched:
            self._signs.follow(done.touched)
        result: T = done.result
        return result

    def _run(self, tx: Tx, body: Callable[[Tx], Any], plan: InFiles, staged: list[Spot]) -> _Done:
        rooms = self._picture.rooms(tx, plan, {}, lambda: None)
        noting = NotingTx(tx, self._signs)
        mine = FilesTx(noting, plan.names, rooms)
        try:
            result = body(mine)
            changed = apply.plan_of(mine.changed(), self.cabinet)
        finally:
            mine.end()
        changes = apply.found_before(self.disk, changed.changes(self.cabinet))
        changes = self._stage(changes, staged)
        redo.keep(tx, self.folders, changes)
        return _Done(result, changed, changes, noting.touched)

    def _stage(self, changes: Iterable[redo.Change], staged: list[Spot]) -> list[redo.Change]:
        """Before the commit, so that a full disk, or what cannot be removed, leaves everything as
        it was. Returns the changes with what tells their staged files from others.
        """
        stamped = []
        try:
            for change in changes:
                if change.data is None:
                    self.disk.check_removable(change.spot)
                    stamped.append(change)
                else:
                    staged.append(change.spot)
                    time_ns = self.disk.stage(change.spot, change.data)
                    stamped.append(change._replace(stamp=(time_ns, len(change.data))))
            return stamped
        except StoreUnavailable as error:
            raise StoreUnavailable(
                f"{error.message}; nothing was changed", **error.fields
            ) from None

    def _bring_up(self, done: _Done, deadline: float) -> None:
        """The change is made, whatever happens here: what is left to do, the next one at the latch
        does.
        """
        try:
            apply.bring_up(self.disk, done.changes, staged=True)
            self._clear(deadline)
        except (OSError, Unfit, HoldfastError) as error:
            self.cabinet.forget()
            _warn("files are behind, the next change brings them up: %s", error)
            return
        done.plan.remember(self.cabinet)

    def _recover(self, deadline: float, locks: tuple[Path, ...]) -> None:
        """At the latch: bring up what somebody who was killed has committed and not brought up. A
        file that another program has changed since stays as it is: the lock ended with the dead
        process, and by what that program saw it may have begun work. Raises _Unlocked for files
        whose lock is not among these.
        """
        if self.inner.get(REDO, redo.FIRST) is None:
            return
        # In a durable transaction: whoever was killed may not have come as far as the sync, and no
        # file may be ahead of it.
        left = self.inner.transact(
            lambda tx: redo.pending(tx, self.folders), scope=[REDO], timeout_s=_left(deadline)
        )
        if unlocked := {
            change.lock for change in left.values() if change.lock is not None
        }.difference(locks):
            raise _Unlocked(unlocked)
        try:
            overtaken = apply.bring_up(self.disk, left.values(), staged=False)
        except (OSError, Unfit, StoreUnavailable) as error:
            raise StoreUnavailable(
                f"files of {self.root} cannot be brought up to the last change ({error}): mend "
                "that and try again; nothing was "
                "changed by this call",
                path=str(self.root),
                outcome="none",
            ) from None
        for spot in overtaken:
            _warn(
                "%s was changed by another program before a change of a killed process reached "
                "it: it stays",
                spot.path,
            )
            self._tell("store.conflict", spot.path.name, {"path": str(spot.path)})
        self._clear(deadline)

    def _clear(self, deadline: float) -> None:
        faults.reach("files.clear.before")
        self.inner.transact(redo.clear, scope=[REDO], durable=False, timeout_s=_left(deadline))
        faults.reach("files.clear.after")

    def _mend(self, unsound: Unsound) -> None:
        """At the latch: put a damaged file right, and raise what is to be told; return if it is
        sound after all.
        """
        try:
            told = mend(self.disk, unsound, self.now())
        except OSError as error:
            raise StoreUnavailable(
                f"{unsound.spot.path} is damaged ({unsound.why}), and cannot be restored "
                f"({error}): mend that and try again",
                path=str(unsound.spot.path),
                outcome="none",
            ) from None
        self.cabinet.forget()
        if told is None:
            return
        if unsound.why == GONE and unsound.spot.folder.is_dir() and not told.fields["restored"]:
            self._begin_anew(unsound)
            self._note(told)
        elif told.fields["restored"]:
            self._note(told)
        raise told

    def _note(self, told: StoreCorrupt) -> None:
        """Put what is told once into the journal: whoever is told may be a thread that nobody
        listens to.
        """
        facts = {
            "restored": told.fields["restored"],
            "aside": told.fields["aside"],
            "why": told.fields["why"],
        }
        self._tell("store.mended", os.path.basename(told.fields["path"]), facts)

    def _tell(self, kind: str, subject: str, facts: dict[str, Any]) -> None:
        with contextlib.suppress(HoldfastError):
            self.inner.transact(
                lambda tx: tx.append(actor="holdfast", kind=kind, subject=subject, data=facts),
                scope=[],
            )

    def _locks_of(self, spaces: tuple[Space[Any], ...]) -> tuple[Path, ...]:
        known = self._lock_paths.get(spaces)
        if known is None:
            known = self._lock_paths[spaces] = locks_of(self.folders, spaces)
        return known

    def _begin_anew(self, unsound: Unsound) -> None:
        """Forget that records were ever written that are lost."""
        shadow = shadow_of(unsound.space)

        def forget(tx: Tx) -> None:
            tx.delete(GENERATIONS, shadow.name)
            for key, _, _ in tx.range(shadow):
                tx.delete(shadow, key)

        self.inner.transact(forget, scope=[GENERATIONS, shadow])

    def _refuse_networks(self) -> None:
        for name in self._given:
            place = self.folders.of(name)
            with contextlib.suppress(OSError):
                refuse_network(next(path for path in (place, *place.parents) if path.is_dir()))


def make(root: Path, access: Access) -> None:
    """Make the folder of a store. Raises StoreUnavailable."""
    try:
        make_folder(root, access)
    except OSError as error:
        raise opening_failed(root, error) from None


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.0)


def _warn(event: str, *fields: object) -> None:
    if "logging" in sys.modules:
        sys.modules["logging"].getLogger("holdfast.stores.files").warning(event, *fields)


_stores: weakref.WeakSet[FilesStore] = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_stores):
        # One store that fails, in whatever way, stays closed, and must not leave the next with its
        # parent's latch.
        with contextlib.suppress(Exception):
            store.after_fork()


os.register_at_fork(after_in_child=_after_fork)
