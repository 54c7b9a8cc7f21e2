"""The one place where a store, a clock, adapters and domains are wired together."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.adapters.procfs import Procfs
from holdfast.kernel import settings as settings_
from holdfast.kernel.clock import Clock
from holdfast.kernel.errors import InvalidName, InvalidValue, NotFound
from holdfast.kernel.names import check_label
from holdfast.kernel.settings import Settings
from holdfast.kernel.space import Space
from holdfast.kernel.store import Store, Tx
from holdfast.primitives.journal import Journal
from holdfast.stores.opening import open_store, sqlite_path, there

if TYPE_CHECKING:
    from holdfast.domains.jobs import Jobs
    from holdfast.domains.workflows import Workflows
    from holdfast.domains.workflows.swap_lock import SwapLock
    from holdfast.primitives.holds import Holds
    from holdfast.primitives.locks import Locks
    from holdfast.stores.sqlite.store import SqliteStore


class Holdfast:
    """A connection: the domains on one store. Thread-safe, safe after fork, and a context manager that closes it."""

    def __init__(self, store: Store, settings: Settings, processes: Procfs) -> None:
        self.store = store
        self.settings = settings
        self.processes = processes

    def __enter__(self) -> "Holdfast":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def log(self) -> Journal:
        """The journal."""
        return Journal(self.store, actor=self.settings.actor or _actor(), keep=self.settings.journal)

    @cached_property
    def jobs(self) -> "Jobs":
        """Delegated work."""
        from holdfast.domains.jobs import Jobs

        return Jobs(self.store, self.log)

    @cached_property
    def locks(self) -> "Locks":
        """Locks on resources of any name."""
        from holdfast.primitives.locks import Locks

        return Locks(self.store, self.log, self.processes, self.settings.locks, label=self.settings.actor or "")

    @cached_property
    def holds(self) -> "Holds":
        """Counted holds on subjects of any name."""
        from holdfast.primitives.holds import Holds

        return Holds(self.store, self.log, self.processes, label=self.settings.actor or "")

    @cached_property
    def workflows(self) -> "Workflows":
        """Workflows and model swaps."""
        from holdfast.adapters.signal_files import SignalFiles
        from holdfast.domains.workflows import Workflows

        return Workflows(
            self.store,
            self.log,
            self.processes,
            swap_lock=swap_lock_of(self.store),
            signals=SignalFiles(signal_folder_of(self.store)),
            label=self.settings.actor or "",
        )

    def check_token(self, resource: str, token: int) -> None:
        """Is this the token of a grant that is in force on the resource? Raises Fenced when it is not."""
        self.locks.check_token(resource, token)

    def close(self) -> None:
        """Let go of the store. Calling it again is harmless."""
        for part in ("locks", "holds"):
            if part in self.__dict__:
                self.__dict__[part].close()
        self.store.close()


class Upkeep:
    """Looking after a store as a whole. Works where connecting would fail: a damaged store can be checked and restored."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._url = settings.store or default_store(os.environ)

    def facts(self) -> dict[str, str]:
        """Where the store is, and which part of it is used. A database's URL is told without its password.

        Raises InvalidValue for what is no store's URL.
        """
        return {"store": self._shown(), "namespace": self._settings.namespace}

    def check(self) -> list[str]:
        """What is wrong with the store, a line each."""
        from holdfast.stores.sqlite import upkeep

        with self._sqlite() as store:
            return upkeep.check(store, all_spaces())

    def backup(self, target: Path) -> None:
        """Copy the store to a new file."""
        from holdfast.stores.sqlite import upkeep

        with self._sqlite() as store:
            upkeep.backup(store, target)

    def restore(self, source: Path) -> None:
        """Put a backup in the store's place, in a new era."""
        from holdfast.stores.sqlite import upkeep

        upkeep.restore(self._path(), source, boot_id=Procfs().boot_id())

    def remove(self, space_name: str, key: str) -> str:
        """Take a record out, damaged or not, and return what it held. The journal keeps the first 16 kB of it.

        Raises NotFound, and InvalidValue for an unknown space.
        """
        from holdfast.stores.sqlite import upkeep

        spaces = {space.name: space for space in all_spaces() if not space.volatile}
        if space_name not in spaces:
            raise InvalidValue(f"there is no space {space_name[:40]}: there are {', '.join(spaces)}", space=space_name[:40])
        space = spaces[space_name]
        with self._sqlite() as store:
            held = upkeep.content(store, space, key).decode(errors="backslashreplace")
            journal = Journal(store, actor=self._settings.actor or _actor(), keep=self._settings.journal)

            def body(tx: Tx) -> None:
                tx.delete(space, key)
                journal.append(tx, kind="store.record_removed", subject=f"{space_name}/{key}", data={"held": held[:16384]})

            store.transact(body, scope=[space])
        return held

    @contextmanager
    def _sqlite(self) -> Iterator["SqliteStore"]:
        from holdfast.stores.sqlite.store import SqliteStore

        path = self._path()
        if not there(path):
            raise NotFound(f"there is no store {path} yet: any command that writes makes it", path=str(path))
        with closing(SqliteStore(path, boot_id=Procfs().boot_id(), namespace=self._settings.namespace)) as store:
            yield store

    def _path(self) -> Path:
        kind, _, path = self._url.partition(":")
        if kind != "sqlite":
            raise InvalidValue(f"a {kind} store is looked after by its own tools: for PostgreSQL pg_dump and pg_restore")
        return sqlite_path(path)

    def _shown(self) -> str:
        kind, _, rest = self._url.partition(":")
        if kind == "sqlite" and rest:
            return f"sqlite:{sqlite_path(rest)}"
        if kind in ("postgresql", "postgres") and rest.startswith("//"):
            return _database(self._url)
        # Opening says what is wrong with any other.
        open_store(self._url, namespace=self._settings.namespace, boot_id="").close()
        return self._url


def all_spaces() -> list[Space[Any]]:
    """The spaces of every domain."""
    from holdfast.domains.jobs.record import JOBS
    from holdfast.domains.workflows.spaces import CURRENT_RECIPE, SWAP_MARKER, WORKFLOWS
    from holdfast.primitives.holds import HOLDS
    from holdfast.primitives.locks.lasting import LASTING_GRANTS, TABLE_BEGUN
    from holdfast.primitives.locks.record import LOCK_WAITS, LOCKS
    from holdfast.primitives.locks.statistics import LOCK_STATISTICS

    workflows: list[Space[Any]] = [WORKFLOWS, SWAP_MARKER, CURRENT_RECIPE]
    return [JOBS, HOLDS, LASTING_GRANTS, LOCKS, LOCK_WAITS, LOCK_STATISTICS, TABLE_BEGUN, *workflows]


def swap_lock_of(store: Store) -> "SwapLock":
    """The lock of a store's swaps, which dies with its process: a flock beside a file, a session of a database, or a lock among
    the threads that share a memory. Raises InvalidValue for a store that has none."""
    if store.kind == "postgres":
        from holdfast.stores.postgres.store import PostgresStore

        assert isinstance(store, PostgresStore)
        return store.session_lock("swap")
    path = getattr(store, "path", None)
    if path is not None:
        from holdfast.adapters.flock import FlockLock

        return FlockLock(path.with_name(f"{path.name}-swap-{store.namespace}.lock"))
    if store.kind != "memory":
        # A lock among threads would let two processes swap at once.
        raise InvalidValue(f"a {store.kind} store has no swap lock: use sqlite, postgresql or memory", store=store.kind)
    from holdfast.adapters.thread_lock import ThreadLock

    return ThreadLock()


def signal_folder_of(store: Store) -> Path:
    """Where signal files lie whose owners chose no place: beside a file, else in the user's state folder."""
    path = getattr(store, "path", None)
    if path is not None:
        return Path(path.with_name(f"{path.name}-signals")) / store.namespace
    return state_folder(os.environ) / "signals" / store.namespace


def connect(
    store: str | None = None, *, namespace: str | None = None, clock: Clock | None = None, create: bool = True
) -> Holdfast:
    """Connect to a store: `sqlite:PATH`, `postgresql://...` or `memory:`.

    Without one: HOLDFAST_STORE, else the nearest holdfast.toml upwards from the working folder, else a SQLite file in the
    user's state folder. A SQLite file that is not there is made, unless `create` is False: then it is read as an empty
    store, and a change raises NotFound. Raises InvalidValue for wrong settings, StoreUnavailable, StoreCorrupt or
    SchemaTooNew.
    """
    settings = load_settings(store=store, namespace=namespace)
    processes = Procfs(host_id=settings.host_id)
    opened = open_store(
        settings.store or default_store(os.environ),
        namespace=settings.namespace,
        boot_id=processes.boot_id(),
        clock=clock,
        create=create,
    )
    _tell("connected store=%s namespace=%s", opened.kind, opened.namespace)
    return Holdfast(opened, settings, processes)


def load_settings(*, store: str | None = None, namespace: str | None = None) -> Settings:
    """The settings in force here, with what the caller gave before everything else.

    Raises InvalidValue for wrong ones, an empty text from the caller included: it is more often a variable that was not set
    than a wish for the default.
    """
    for name, value in (("store", store), ("namespace", namespace)):
        if value == "":
            raise InvalidValue(f"the {name} given is empty: name one, or leave it out for the default", field=name)
    path = _nearest_file()
    document: dict[str, Any] = {} if path is None else _read(path)
    if path is not None and isinstance(document.get("store"), str):
        document["store"] = _from_folder(document["store"], path.parent)
    return settings_.resolve(
        given={"store": store, "namespace": namespace},
        environment=os.environ,
        document=document,
        source=str(path or settings_.FILE_NAME),
    )


def store_origin() -> str:
    """What chooses the store here when the caller does not: a variable, a file's path, or `default`."""
    if os.environ.get("HOLDFAST_STORE"):
        return "HOLDFAST_STORE"
    path = _nearest_file()
    return str(path) if path is not None and "store" in _read(path) else "default"


def default_store(environment: Mapping[str, str]) -> str:
    """The SQLite file in the user's state folder. Raises InvalidValue without a home."""
    return f"sqlite:{state_folder(environment) / 'store.sqlite'}"


def state_folder(environment: Mapping[str, str]) -> Path:
    """The user's state folder, by the platform's convention. Raises InvalidValue without a home."""
    state = environment.get("XDG_STATE_HOME", "")
    # The convention says that a relative path there is to be ignored.
    if not os.path.isabs(state):
        state = "~/.local/state"
    return sqlite_path(state) / "holdfast"


def _nearest_file() -> Path | None:
    try:
        folder = Path.cwd()
    except OSError as error:
        raise InvalidValue(f"the working folder cannot be used ({error.strerror}): cd to one that is there") from None
    for parent in (folder, *folder.parents):
        path = parent / settings_.FILE_NAME
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise InvalidValue(
                f"cannot look for {path} ({error.strerror}): cd to a folder whose parents you may enter", source=str(path)
            ) from None
        if path.is_file():
            return path
    return None


def _read(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidValue(f"{path} cannot be read: {error}", source=str(path)) from None
    except RecursionError:
        raise InvalidValue(f"{path} cannot be read: it is nested too deeply", source=str(path)) from None


def _from_folder(url: str, folder: Path) -> str:
    """A relative path in a file means relative to that file, wherever the command is run."""
    scheme, _, rest = url.partition(":")
    if scheme == "sqlite" and rest and not rest.startswith(("/", "~")):
        return f"sqlite:{folder / rest}"
    return url


def _database(url: str) -> str:
    try:
        from holdfast.stores.postgres.address import Address
    except ImportError:
        return "PostgreSQL, whose driver is not installed"
    return str(Address(url))


def _actor() -> str:
    """Who the journal says did it: the user and process."""
    for name in (os.environ.get("USER"), os.environ.get("LOGNAME")):
        if name:
            try:
                return check_label(f"{name[:64]}/{os.getpid()}")
            except InvalidName:
                continue
    return f"uid-{os.getuid()}/{os.getpid()}"


def _tell(event: str, *fields: str) -> None:
    """Log one event. Nobody can be listening who has not loaded `logging`, and loading it costs a short command dear."""
    if "logging" in sys.modules:
        sys.modules["logging"].getLogger("holdfast.app").info(event, *fields)
