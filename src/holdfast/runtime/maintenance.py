"""Looking after a store as a whole: what it is, whether it is sound, copies of it."""

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.kernel.codec import cut
from holdfast.kernel.errors import Held, InvalidValue, NotFound, StoreCorrupt, StoreUnavailable
from holdfast.kernel.settings import Settings
from holdfast.kernel.store import Store, Tx
from holdfast.kernel.text import counted
from holdfast.primitives.journal import Journal
from holdfast.processes.procfs import Procfs
from holdfast.runtime.configuration import actor_here, default_store
from holdfast.runtime.paths import placed
from holdfast.runtime.spaces import all_spaces
from holdfast.stores.factory import open_store, sqlite_path, there
from holdfast.system.access import access_for

if TYPE_CHECKING:
    from holdfast.stores.copy import Contents
    from holdfast.stores.files.store import FilesStore
    from holdfast.stores.sqlite.store import SqliteStore


_HELD_BYTES_MAX = 16 << 10
"""How much of a record that was taken out the journal keeps, as JSON."""


class Upkeep:
    """Looking after a store as a whole. Works where connecting would fail: a damaged store can be
    checked and restored.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._url = settings.store or default_store(os.environ)

    def facts(self) -> dict[str, str]:
        """Where the store is, and which part of it is used. A database's URL is told without its
        password.

        Raises InvalidValue for what is no store's URL.
        """
        facts = {"store": self._shown(), "namespace": self._settings.namespace}
        return {**facts, **self._server_facts()} if self._is_postgres() else facts

    def check(self) -> list[str]:
        """What is wrong with the store, a line each."""
        with self._opened() as store:
            found: list[str] = _upkeep_of(store).check(store, all_spaces())
            return found

    def copy(self, target: str) -> dict[str, int]:
        """Copy everything in the store to a new one, with its tokens, journal and eras; return how
        many records of each space there are.

        The queues of gateways come along (queue_copy.py). Raises Held while locks are held
        or waited for, or a swap is under way, as a lock is not copied; or while a gateway serves.
        For the rest see `holdfast.stores.copy`.
        """
        from holdfast.domains.workflows.wire import SWAP_MARKER
        from holdfast.primitives.locks.grant import LASTING_GRANTS
        from holdfast.primitives.locks.records import LOCK_WAITS, LOCKS
        from holdfast.runtime.queue_copy import Queues
        from holdfast.stores.copy import copy

        def through(everything: "Contents") -> "Contents":
            refuse(everything.counts)
            return queues.through(everything)

        def refuse(counts: Mapping[str, int]) -> None:
            if held := sum(
                counts.get(space.name, 0) for space in (LOCKS, LOCK_WAITS, LASTING_GRANTS)
            ):
                are = counted(held, "lock is", "locks are")
                raise Held(
                    f"{are} held or waited for: copy when nobody works (`holdfast locks status`)",
                    locks=held,
                )
            if counts.get(SWAP_MARKER.name):
                # Its lock stays behind, so that in the copy it would count as dead while it loads.
                raise Held(
                    "a swap is under way: copy when it has ended (`holdfast swap reconcile` "
                    "clears what a dead one left)"
                )

        processes, files = Procfs(host_id=self._settings.host_id), placed(self._settings.files)
        with (
            self._opened() as store,
            Queues(self._settings, self._url, target, processes, now=store.now()) as queues,
        ):
            return copy(
                store,
                target,
                all_spaces(),
                boot_id=processes.boot_id(),
                files=files,
                access=access_for(self._settings.group),
                through=through,
                ready=queues.place,
            )

    def begin_era(self) -> int:
        """Go on with tokens of a new era, and return it: for a database whose files were put back
        as they once were.
        """
        if not self._is_postgres():
            raise InvalidValue(
                f"a {self._kind()} store begins its eras itself: `holdfast store restore` puts a "
                "backup back"
            )
        from holdfast.stores.postgres import maintenance

        with self._opened() as store:
            return maintenance.begin_era(store)  # type: ignore[arg-type]

    def backup(self, target: Path) -> None:
        """Copy the store to a new file."""
        if self._kind() == "files":
            from holdfast.stores.files import maintenance as files

            with self._files() as opened:
                files.backup(opened, all_spaces(), target)
                return
        from holdfast.stores.sqlite import maintenance

        with self._sqlite() as store:
            maintenance.backup(store, target)

    def exists(self) -> bool:
        """Is there a store that a restore would replace? Raises InvalidValue for a kind of store
        that has no restore.
        """
        return there(self._path())

    def restore(self, source: Path) -> Path | None:
        """Put a backup in the store's place, in a new era, for everybody who uses it. Return where
        the replaced store is saved; None if there was none.

        The replaced store is saved first: killed at any moment, the old or the new one is in place,
        and the saved one is whole. Raises StoreUnavailable when it cannot be saved; then nothing
        was changed.
        """
        from holdfast.stores.sqlite import maintenance

        if self._kind() != "files":
            return maintenance.restore(self._path(), source, boot_id=Procfs().boot_id())
        from holdfast.stores.files import maintenance as files

        save = self.exists()
        try:
            with self._files(create=True) as opened:
                return files.restore(
                    opened, all_spaces(), source, boot_id=Procfs().boot_id(), save=save
                )
        except StoreCorrupt as error:
            inner = self._path() / ".holdfast" / "store.sqlite"
            if error.fields.get("path") != str(inner.resolve()):
                raise
            # What cannot even be opened is replaced first; then the files follow.
            folders = placed(self._settings.files).folders
            saved = files.replace_inner(
                self._path(), folders, all_spaces(), source, boot_id=Procfs().boot_id()
            )
            with self._files() as opened:
                files.restore(opened, all_spaces(), source, boot_id=Procfs().boot_id(), save=False)
            return saved

    def remove(self, space_name: str, key: str) -> str:
        """Take a record out, damaged or not, and return what it held. The journal keeps the first
        16 kB of it.

        Raises NotFound, and InvalidValue for an unknown space.
        """
        spaces = {space.name: space for space in all_spaces() if not space.volatile}
        if space_name not in spaces:
            raise InvalidValue(
                f"there is no space {space_name[:40]}: there are {', '.join(spaces)}",
                space=space_name[:40],
            )
        space = spaces[space_name]
        with self._opened() as store:
            held: str = (
                _upkeep_of(store).content(store, space, key).decode(errors="backslashreplace")
            )
            journal = Journal(
                store, actor=self._settings.actor or actor_here(), keep=self._settings.journal
            )

            def body(tx: Tx) -> None:
                tx.delete(space, key)
                journal.append(
                    tx,
                    kind="store.record_removed",
                    subject=f"{space_name}/{key}",
                    data={"held": cut(held, _HELD_BYTES_MAX)},
                )

            store.transact(body, scope=[space])
        return held

    def _is_postgres(self) -> bool:
        return self._url.startswith(("postgresql://", "postgres://"))

    def _server_facts(self) -> dict[str, str]:
        try:
            with self._opened() as store:
                facts: dict[str, str] = _upkeep_of(store).facts(store)
                return facts
        except StoreUnavailable as error:
            return {"server": error.message}

    @contextmanager
    def _opened(self) -> Iterator[Store]:
        if self._is_postgres():
            with closing(
                open_store(self._url, namespace=self._settings.namespace, boot_id="")
            ) as store:
                yield store
        else:
            with self._files() if self._kind() == "files" else self._sqlite() as embedded:
                yield embedded

    def _kind(self) -> str:
        return self._url.partition(":")[0]

    @contextmanager
    def _files(self, *, create: bool = False) -> Iterator["FilesStore"]:
        from holdfast.stores.files.store import FilesStore

        path = self._path()
        if not create and not there(path):
            raise NotFound(
                f"there is no store {path} yet: any command that writes makes it", path=str(path)
            )
        opened = open_store(
            self._url,
            namespace=self._settings.namespace,
            boot_id=Procfs().boot_id(),
            files=placed(self._settings.files),
            access=access_for(self._settings.group),
        )
        assert isinstance(opened, FilesStore)
        with closing(opened):
            yield opened

    @contextmanager
    def _sqlite(self) -> Iterator["SqliteStore"]:
        from holdfast.stores.sqlite.store import SqliteStore

        path = self._path()
        if not there(path):
            raise NotFound(
                f"there is no store {path} yet: any command that writes makes it", path=str(path)
            )
        with closing(
            SqliteStore(path, boot_id=Procfs().boot_id(), namespace=self._settings.namespace)
        ) as store:
            yield store

    def _path(self) -> Path:
        kind, _, path = self._url.partition(":")
        if kind not in ("sqlite", "files"):
            raise InvalidValue(
                f"backups of a {kind} store are made by its own tools: for PostgreSQL pg_dump and "
                "pg_restore"
            )
        return sqlite_path(path)

    def _shown(self) -> str:
        kind, _, rest = self._url.partition(":")
        if kind in ("sqlite", "files") and rest:
            return f"{kind}:{sqlite_path(rest)}"
        if kind in ("postgresql", "postgres") and rest.startswith("//"):
            return _database(self._url)
        # Opening says what is wrong with any other.
        open_store(self._url, namespace=self._settings.namespace, boot_id="").close()
        return self._url


def _upkeep_of(store: Store) -> Any:
    """The module that looks after stores of this kind."""
    if store.kind == "postgres":
        from holdfast.stores.postgres import maintenance as postgres

        return postgres
    if store.kind == "files":
        from holdfast.stores.files import maintenance as files

        return files
    from holdfast.stores.sqlite import maintenance as sqlite

    return sqlite


def _database(url: str) -> str:
    try:
        from holdfast.stores.postgres.address import Address
    except ImportError:
        return "PostgreSQL, whose driver is not installed"
    return str(Address(url))
