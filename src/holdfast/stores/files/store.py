"""The store port on plain files: records with a layout in files that people read, all others in an
inner SQLite store.

The order of a change, each step at the latch:
1. stage: write and sync the new files under temporary names;
2. commit: the inner store gets the revisions, the journal entries and a redo record of the files;
3. apply: rename the files into place and sync their folders;
4. clear: remove the redo record.
A failure before 2 leaves everything as it was. A process killed between 2 and 4 leaves the redo
record, and the next process at the latch does 3 and 4.
"""

import contextlib
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from holdfast.kernel.clock import Clock
from holdfast.kernel.errors import HoldfastError, InvalidValue, StoreUnavailable
from holdfast.kernel.layout import Sign
from holdfast.kernel.limits import (
    FILES_RETRY_ATTEMPTS,
    FILES_RETRY_DELAY_S,
    TRANSACT_TIMEOUT_S,
)
from holdfast.kernel.space import R, Space
from holdfast.kernel.store import (
    Administration,
    Batch,
    Cursor,
    Leftover,
    ReadTx,
    Row,
    SessionLock,
    Tx,
)
from holdfast.stores.checks import closed
from holdfast.stores.files import folders as places
from holdfast.stores.files.cache import FileCache
from holdfast.stores.files.disk import Disk, Location, UnusableFile
from holdfast.stores.files.documents import GONE, DamagedFile, restore_file
from holdfast.stores.files.folders import StoreFolders, claim_all, file_layout, lock_paths
from holdfast.stores.files.latch import Latch, append_entry, remove_redo, warn
from holdfast.stores.files.redo import (
    GENERATIONS,
    FileChange,
    apply_changes,
    revision_space,
    with_before,
    write_redo,
)
from holdfast.stores.files.signs import Signs
from holdfast.stores.files.transaction import (
    FilesChanged,
    FilesScope,
    FilesTx,
    NewFile,
    SnapshotReader,
    new_files,
    scope_of,
)
from holdfast.stores.listener import FdListener
from holdfast.stores.port import EmbeddedStore, Plan
from holdfast.stores.sqlite.database import left_s
from holdfast.stores.sqlite.errors import opening_failed
from holdfast.stores.sqlite.filesystem import refuse_network
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.stores.sqlite.transaction import SqliteTx
from holdfast.system.access import PRIVATE, Access, make_folder

T = TypeVar("T")

_READS_MAX = 8
"""How often a reader whose files change meanwhile reads again before it takes the latch."""


class _Committed(NamedTuple):
    result: Any
    files: list[NewFile]
    changes: list[FileChange]
    shown: Mapping[Space[Any], Iterable[str]]


class FilesStore(EmbeddedStore):
    """A store in the files of a folder, for the processes of one machine.

    Records with a layout are in its files as of the last transaction, or will be when the next one
    begins. A change that a person makes to a file is seen. A program that takes a layout's lock may
    change its files at the same time; for one that does not, nothing is promised.
    """

    kind = "files"
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
        super().__init__(namespace, clock)
        self._given = dict(folders or {})
        make_root(Path(root), access)
        self._boot_id = boot_id
        self.folders = StoreFolders(Path(root), namespace, self._given)
        self.root, self.anchor = self.folders.root, self.folders.own
        self.inner = SqliteStore(
            self.folders.own / "store.sqlite",
            boot_id=boot_id,
            namespace=namespace,
            clock=self._clock,
            access=access,
        )
        self.access = self.inner.access
        self.disk = Disk(max(retry_attempts, 1), retry_delay_s, self.access)
        self.cache = FileCache(self.folders, self.disk)
        self._reader = SnapshotReader(self.cache, self.inner)
        self._lock_paths: dict[tuple[Space[Any], ...], tuple[Path, ...]] = {}
        with contextlib.ExitStack() as on_error:
            on_error.callback(self.inner.close)
            for name in self._given:
                place = self.folders.of(name)
                with contextlib.suppress(OSError):
                    refuse_network(next(path for path in (place, *place.parents) if path.is_dir()))
            claim_all(self.folders, self._given, self.access)
            self._latch = Latch(self.folders, self.inner, self.disk, self.access)
            on_error.callback(self._latch.close)
            self._signs = Signs(self.inner, self.folders, shown or {}, self.access)
            on_error.pop_all()
        self._signs.update_all()
        self._closed = False
        _stores.add(self)

    def boot_in_use(self, boot_id: str) -> bool:
        return self.inner.boot_in_use(boot_id)

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

    def _transact(
        self, body: Callable[[Tx], T], plan: Plan, deadline: float, durable: bool = True
    ) -> T:
        scope = scope_of(plan.scope)
        if not scope.spaces:
            return self._transact_inner(body, plan, deadline, durable)
        return self.exclusively(
            lambda: self._transact_files(body, scope, deadline),
            left_s(deadline),
            self._locks_of(scope.spaces),
        )

    def _read(self, body: Callable[[ReadTx], T], plan: Plan, deadline: float) -> T:
        scope = scope_of(plan.scope)
        if not scope.spaces:
            return self.inner.read(body, scope=plan.scope, timeout_s=left_s(deadline))
        for attempt in range(_READS_MAX):
            try:
                return self._reader.read(body, scope, deadline, eager=attempt > 0, guarded=True)
            except FilesChanged:
                continue
            except DamagedFile as damage:
                repair_it = partial(self._repair, damage)
                self.exclusively(repair_it, left_s(deadline), self._locks_of((damage.space,)))
        return self.exclusively(
            lambda: self._reader.read(body, scope, deadline, eager=False, guarded=False),
            left_s(deadline),
        )

    def _get(self, space: Space[R], key: str, deadline: float) -> Row[R] | None:
        if file_layout(space) is None:
            return self.inner.get(space, key, timeout_s=left_s(deadline))
        return super()._get(space, key, deadline)

    def _put_new(
        self, space: Space[R], items: Sequence[tuple[str, R]], deadline: float
    ) -> int | None:
        if file_layout(space) is not None:
            return super()._put_new(space, items, deadline)
        token = self.inner.put_new(space, items, timeout_s=left_s(deadline))
        if token is not None and self._signs.of(space) is not None:
            self._signs.update({space: [key for key, _ in items]})
        return token

    def _delete_if(
        self, space: Space[Any], keys: Sequence[str], token: int, deadline: float
    ) -> int:
        if file_layout(space) is not None:
            return super()._delete_if(space, keys, token, deadline)
        deleted = self.inner.delete_if(space, keys, token, timeout_s=left_s(deadline))
        if deleted and self._signs.of(space) is not None:
            self._signs.update({space: keys})
        return deleted

    def listen(self, topics: Sequence[str] = ()) -> FdListener:
        return self.inner.listen(topics)

    def _journal(self, cursor: Cursor, limit: int, reverse: bool) -> Batch:
        return self.inner.journal(cursor, limit=limit, reverse=reverse)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.cache.forget()
            self._latch.close()
            self._signs.close()
            self.inner.close()

    def after_fork(self) -> None:
        """In a forked child: drop the parent's latch, and what its threads were changing."""
        # Closed until it is done: a store that fails half-way must not be used.
        was_closed, self._closed = self._closed, True
        self._latch.abandon()
        self._reader.forget()
        if not was_closed:
            self._latch.reopen()
            self._signs.after_fork()
            self._closed = False

    def exclusively(
        self, work: Callable[[], T], timeout_s: float, locks: tuple[Path, ...] = ()
    ) -> T:
        """As `Latch.run`. Raises StoreUnavailable for a closed store."""
        if self._closed:
            raise closed()
        return self._latch.run(work, timeout_s, locks)

    def leftovers(self, space: Space[Any]) -> list[Leftover]:
        """Entries among the folders of a space that hold no record; see kernel/store.py."""
        return places.find_leftovers(self.folders, space)

    def remove_leftover(self, space: Space[Any], key: str, *, older_than_s: float) -> bool:
        """Remove such an entry, if it still holds no record; see kernel/store.py."""
        return self.exclusively(
            lambda: places.remove_leftover(self.folders, space, key, older_than_s=older_than_s),
            TRANSACT_TIMEOUT_S,
            self._locks_of((space,)),
        )

    def folders_of(self, namespace: str) -> StoreFolders:
        return StoreFolders(self.root, namespace, self._given)

    def inner_of(self, namespace: str) -> SqliteStore:
        """The inner store in another namespace, which the caller closes."""
        return SqliteStore(
            self.inner.path, boot_id=self._boot_id, namespace=namespace, clock=self._clock
        )

    def _transact_inner(
        self, body: Callable[[Tx], T], plan: Plan, deadline: float, durable: bool
    ) -> T:
        if not any(self._signs.of(space) for space in plan.spaces):
            return self.inner.transact(
                body, scope=plan.scope, durable=durable, timeout_s=left_s(deadline)
            )

        def noting(tx: Tx) -> tuple[T, FilesTx]:
            mine = FilesTx(cast(SqliteTx, tx), plan.names, {}, self._signs.of)
            return body(mine), mine

        result, mine = self.inner.transact(
            noting, scope=plan.scope, durable=durable, timeout_s=left_s(deadline)
        )
        if mine.shown:
            self._signs.update(mine.shown)
        return result

    def _transact_files(self, body: Callable[[Tx], T], scope: FilesScope, deadline: float) -> T:
        """At the latch: commit the change with its redo record, then apply that to the files."""
        process = os.getpid()
        staged: list[Location] = []
        try:
            done = self.inner.transact(
                lambda tx: self._run(tx, body, scope, staged),
                scope=scope.inner,
                timeout_s=left_s(deadline),
            )
        except DamagedFile as damage:
            self._repair(damage)
            return self._transact_files(body, scope, deadline)
        except StoreUnavailable as error:
            # Only when nothing was committed: an unknown outcome may need the staged files.
            if error.fields.get("outcome") == "none" and os.getpid() == process:
                for location in staged:
                    self.disk.unstage(location)
            raise
        if os.getpid() != process:
            raise StoreUnavailable(
                "this process was forked inside a transaction: leave that to its parent",
                outcome="none",
            )
        if done.changes:
            self._apply(done, deadline)
        if done.shown:
            self._signs.update(done.shown)
        result: T = done.result
        return result

    def _run(
        self, tx: Tx, body: Callable[[Tx], Any], plan: FilesScope, staged: list[Location]
    ) -> _Committed:
        views = self._reader.views(tx, plan, {}, lambda: None)
        mine = FilesTx(cast(SqliteTx, tx), plan.names, views, self._signs.of)
        try:
            result = body(mine)
            files = new_files(mine.mark_changed(), self.cache)
        finally:
            mine.end()
        decided = with_before(self.disk, (file.change for file in files))
        changes = self._stage(decided, staged)
        write_redo(tx, self.folders, changes)
        return _Committed(result, files, changes, mine.shown)

    def _stage(self, changes: Iterable[FileChange], staged: list[Location]) -> list[FileChange]:
        """Stage the files, and return the changes with the stamps of their staged files. Before the
        commit, so that a full disk, or a file that cannot be removed, leaves everything as it was.
        """
        stamped = []
        try:
            for change in changes:
                if change.data is None:
                    self.disk.check_removable(change.location)
                    stamped.append(change)
                else:
                    staged.append(change.location)
                    time_ns = self.disk.stage(change.location, change.data)
                    stamped.append(change._replace(stamp=(time_ns, len(change.data))))
            return stamped
        except StoreUnavailable as error:
            raise StoreUnavailable(
                f"{error.message}; nothing was changed", **error.fields
            ) from None

    def _apply(self, done: _Committed, deadline: float) -> None:
        """Apply a committed change to the files. It never fails the change: the next process at the
        latch does what is left.
        """
        try:
            apply_changes(self.disk, done.changes, staged=True)
            remove_redo(self.inner, deadline)
        except (OSError, UnusableFile, HoldfastError) as error:
            self.cache.forget()
            warn("files are not up to date, the next change completes them: %s", error)
            return
        for file in done.files:
            file.remember()

    def _repair(self, damage: DamagedFile) -> None:
        """At the latch: restore a damaged file, and raise the error that its reader must see.
        Return when the file is sound after all.
        """
        try:
            error = restore_file(self.disk, damage, self.now())
        except OSError as failure:
            raise StoreUnavailable(
                f"{damage.location.path} is damaged ({damage.why}), and cannot be restored "
                f"({failure}): correct that and try again",
                path=str(damage.location.path),
                outcome="none",
            ) from None
        self.cache.forget()
        if error is None:
            return
        restored = error.fields["restored"]
        lost = damage.why == GONE and damage.location.folder.is_dir() and not restored
        if lost:
            # Without generation and revisions the space counts as new.
            revisions = revision_space(damage.space)

            def forget(tx: Tx) -> None:
                tx.delete(GENERATIONS, revisions.name)
                for row in tx.range(revisions):
                    tx.delete(revisions, row.key)

            self.inner.transact(forget, scope=[GENERATIONS, revisions])
        if lost or restored:
            # In the journal too: the error reaches one caller, which may be a thread whose errors
            # nobody sees.
            facts = {name: error.fields[name] for name in ("restored", "aside", "why")}
            append_entry(self.inner, "store.repaired", damage.location.path.name, facts)
        raise error

    def _locks_of(self, spaces: tuple[Space[Any], ...]) -> tuple[Path, ...]:
        known = self._lock_paths.get(spaces)
        if known is None:
            known = self._lock_paths[spaces] = lock_paths(self.folders, spaces)
        return known


def make_root(root: Path, access: Access) -> None:
    """Make the folder of a store. Raises StoreUnavailable."""
    try:
        make_folder(root, access)
    except OSError as error:
        raise opening_failed(root, error) from None


_stores: weakref.WeakSet[FilesStore] = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_stores):
        # A store that fails, in whatever way, stays closed; the next one must still drop its
        # parent's latch.
        with contextlib.suppress(Exception):
            store.after_fork()


os.register_at_fork(after_in_child=_after_fork)
