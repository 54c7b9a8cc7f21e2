"""The one place where a store, a clock, adapters and domains are wired together."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from holdfast.adapters.procfs import Procfs
from holdfast.kernel import settings as settings_
from holdfast.kernel.clock import Clock
from holdfast.kernel.errors import Held, InvalidName, InvalidValue, NotFound, StoreCorrupt, StoreUnavailable
from holdfast.kernel.layout import Sign
from holdfast.kernel.names import check_agent_name, check_label
from holdfast.kernel.settings import FilesSettings, Settings
from holdfast.kernel.space import Space
from holdfast.kernel.store import Store, Tx
from holdfast.primitives.journal import Journal
from holdfast.stores.opening import open_store, sqlite_path, there

if TYPE_CHECKING:
    from holdfast.adapters.gateway_client import GatewayClient
    from holdfast.adapters.joblog import JobLog
    from holdfast.domains.agents import Agents
    from holdfast.domains.jobs import Jobs
    from holdfast.domains.jobs.telling import JobEvents
    from holdfast.domains.network import Registry
    from holdfast.domains.workflows import Workflows
    from holdfast.domains.workflows.swap_lock import SwapLock
    from holdfast.primitives.holds import Holds
    from holdfast.primitives.locks import Locks
    from holdfast.stores.files.store import FilesStore
    from holdfast.stores.sqlite.store import SqliteStore


class Holdfast:
    """A connection: the domains on one store. Thread-safe, safe after fork, and a context manager that closes it."""

    def __init__(self, store: Store, settings: Settings, processes: Procfs, *, jobs_folder: Path | None = None) -> None:
        self.store = store
        self.settings = settings
        self.processes = processes
        self._jobs_folder = jobs_folder

    def __enter__(self) -> "Holdfast":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def log(self) -> Journal:
        """The journal."""
        return Journal(self.store, actor=self.settings.actor or actor_here(), keep=self.settings.journal)

    @cached_property
    def jobs(self) -> "Jobs":
        """Delegated work."""
        from holdfast.domains.jobs import Jobs

        return Jobs(self.store, self.log, self.processes, self.settings.jobs)

    @cached_property
    def job_events(self) -> "JobEvents":
        """What jobs tell of themselves."""
        from holdfast.domains.jobs.telling import JobEvents

        return JobEvents(self.store, self.log)

    @cached_property
    def job_log(self) -> "JobLog | None":
        """The audit log of jobs; None for a store that keeps nothing."""
        folder = _job_logs(self.settings, self.store, self._jobs_folder)
        if folder is None:
            return None
        from holdfast.adapters.joblog import JobLog

        return JobLog(folder, store=f"{self.settings.store} {self.store.namespace}", beside=self._jobs_folder)

    @cached_property
    def agents(self) -> "Agents":
        """Live agents."""
        from holdfast.adapters.health import GatewayHealth
        from holdfast.adapters.manifests import ManifestFiles
        from holdfast.adapters.tmux import Tmux
        from holdfast.domains.agents import Agents
        from holdfast.domains.agents.outside import Outside
        from holdfast.kernel.debris import Debris

        outside = Outside(self.processes, Tmux(), ManifestFiles(), GatewayHealth())
        debris = self.store if isinstance(self.store, Debris) else None
        return Agents(self.store, self.log, outside, self.settings.agents, debris=debris)

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
    def network(self) -> "Registry":
        """Hosts, routers and neighbours of a network under test."""
        from holdfast.domains.network import Registry, Room

        room = Room(self.store, self.log, self.processes, self.settings.network, label=self.settings.actor or "")
        return Registry(room, self.locks)

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

    def gateway(self, agent: str, *, url: str | None = None, token: str | None = None) -> "GatewayClient":
        """An agent's gateway: found by its folder on this machine, or at an address with its token. Raises InvalidName."""
        from holdfast.adapters.gateway_client import GatewayClient

        return GatewayClient(agent, root=gateway_root(self.settings, agent), url=url, token=token)

    def check_token(self, resource: str, token: int) -> None:
        """Is this the token of a grant that is in force on the resource? Raises Fenced when it is not."""
        self.locks.check_token(resource, token)

    def close(self) -> None:
        """Let go of the store. Calling it again is harmless."""
        for part in ("network", "locks", "holds"):
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
        facts = {"store": self._shown(), "namespace": self._settings.namespace}
        return {**facts, **self._server_facts()} if self._is_postgres() else facts

    def check(self) -> list[str]:
        """What is wrong with the store, a line each."""
        with self._opened() as store:
            found: list[str] = _upkeep_of(store).check(store, all_spaces())
            return found

    def copy(self, target: str) -> dict[str, int]:
        """Copy everything in the store to a new one, with its tokens, journal and eras; return how many records of each space
        there are.

        Raises Held while locks are held or waited for: a lock is not copied. For the rest see `holdfast.stores.copying`.
        """
        from holdfast.primitives.locks.lasting import LASTING_GRANTS
        from holdfast.primitives.locks.record import LOCK_WAITS, LOCKS
        from holdfast.stores.copying import copy

        def refuse(counts: Mapping[str, int]) -> None:
            if held := sum(counts.get(space.name, 0) for space in (LOCKS, LOCK_WAITS, LASTING_GRANTS)):
                raise Held(f"{held} locks are held or waited for: copy when nobody works (`holdfast locks list`)", locks=held)

        with self._opened() as store:
            return copy(store, target, all_spaces(), boot_id=Procfs().boot_id(), refuse=refuse)

    def begin_era(self) -> int:
        """Go on with tokens of a new era, and return it: for a database whose files were put back as they once were."""
        if not self._is_postgres():
            raise InvalidValue("a SQLite store begins its eras itself: `holdfast store restore` puts a backup in place")
        from holdfast.stores.postgres import upkeep

        with self._opened() as store:
            return upkeep.begin_era(store)  # type: ignore[arg-type]

    def backup(self, target: Path) -> None:
        """Copy the store to a new file."""
        if self._kind() == "files":
            from holdfast.stores.files import upkeep as files

            with self._files() as opened:
                files.backup(opened, all_spaces(), target)
                return
        from holdfast.stores.sqlite import upkeep

        with self._sqlite() as store:
            upkeep.backup(store, target)

    def restore(self, source: Path) -> None:
        """Put a backup in the store's place, in a new era."""
        from holdfast.stores.sqlite import upkeep

        if self._kind() != "files":
            upkeep.restore(self._path(), source, boot_id=Procfs().boot_id())
            return
        from holdfast.stores.files import upkeep as files

        try:
            with self._files(create=True) as opened:
                files.restore(opened, all_spaces(), source, boot_id=Procfs().boot_id())
        except StoreCorrupt as error:
            inner = self._path() / ".holdfast" / "store.sqlite"
            if error.fields.get("path") != str(inner.resolve()):
                raise
            # What cannot even be opened is replaced first; then the files follow.
            upkeep.restore(inner, source, boot_id=Procfs().boot_id())
            with self._files() as opened:
                files.restore(opened, all_spaces(), source, boot_id=Procfs().boot_id())

    def remove(self, space_name: str, key: str) -> str:
        """Take a record out, damaged or not, and return what it held. The journal keeps the first 16 kB of it.

        Raises NotFound, and InvalidValue for an unknown space.
        """
        spaces = {space.name: space for space in all_spaces() if not space.volatile}
        if space_name not in spaces:
            raise InvalidValue(f"there is no space {space_name[:40]}: there are {', '.join(spaces)}", space=space_name[:40])
        space = spaces[space_name]
        with self._opened() as store:
            held: str = _upkeep_of(store).content(store, space, key).decode(errors="backslashreplace")
            journal = Journal(store, actor=self._settings.actor or actor_here(), keep=self._settings.journal)

            def body(tx: Tx) -> None:
                tx.delete(space, key)
                journal.append(tx, kind="store.record_removed", subject=f"{space_name}/{key}", data={"held": held[:16384]})

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
            with closing(open_store(self._url, namespace=self._settings.namespace, boot_id="")) as store:
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
            raise NotFound(f"there is no store {path} yet: any command that writes makes it", path=str(path))
        opened = open_store(
            self._url, namespace=self._settings.namespace, boot_id=Procfs().boot_id(), files=placed(self._settings.files)
        )
        assert isinstance(opened, FilesStore)
        with closing(opened):
            yield opened

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
        if kind not in ("sqlite", "files"):
            raise InvalidValue(f"backups of a {kind} store are made by its own tools: for PostgreSQL pg_dump and pg_restore")
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
        from holdfast.stores.postgres import upkeep as postgres

        return postgres
    if store.kind == "files":
        from holdfast.stores.files import upkeep as files

        return files
    from holdfast.stores.sqlite import upkeep as sqlite

    return sqlite


def gateway_root(settings: Settings, agent: str) -> Path:
    """The folder of an agent's gateway: under `gateway_root`, else beside the SQLite store, else in the user's state folder."""
    check_agent_name(agent)
    if settings.gateway_root is not None:
        return sqlite_path(settings.gateway_root) / settings.namespace / agent
    url = settings.store if settings.store and settings.store.startswith("sqlite:") else default_store(os.environ)
    beside = sqlite_path(url.removeprefix("sqlite:")).absolute().parent
    return beside / "gateways" / settings.namespace / agent


def all_spaces() -> list[Space[Any]]:
    """The spaces of every domain."""
    from holdfast.domains.agents.record import AGENTS
    from holdfast.domains.gateway.record import ATTACHMENTS
    from holdfast.domains.jobs.events import JOB_EVENTS
    from holdfast.domains.jobs.record import JOBS
    from holdfast.domains.network.spaces import HOST_LEASES, HOSTS, NEIGHBOR_LEASES
    from holdfast.domains.workflows.spaces import CURRENT_RECIPE, SWAP_MARKER, WORKFLOWS
    from holdfast.primitives.holds import HOLDS
    from holdfast.primitives.locks.lasting import LASTING_GRANTS, TABLE_BEGUN
    from holdfast.primitives.locks.record import LOCK_WAITS, LOCKS
    from holdfast.primitives.locks.statistics import LOCK_STATISTICS
    from holdfast.primitives.queue.record import HEADS, KEYS, REQUESTS

    network: list[Space[Any]] = [HOSTS, HOST_LEASES, NEIGHBOR_LEASES]
    workflows: list[Space[Any]] = [WORKFLOWS, SWAP_MARKER, CURRENT_RECIPE]
    locks: list[Space[Any]] = [LASTING_GRANTS, LOCKS, LOCK_WAITS, LOCK_STATISTICS, TABLE_BEGUN]
    queues: list[Space[Any]] = [ATTACHMENTS, HEADS, KEYS, REQUESTS]
    return [AGENTS, JOBS, JOB_EVENTS, *network, *workflows, *queues, HOLDS, *locks]


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
    store: str | None = None,
    *,
    namespace: str | None = None,
    clock: Clock | None = None,
    create: bool = True,
    folders: Mapping[str, str] | None = None,
) -> Holdfast:
    """Connect to a store: `sqlite:PATH`, `files:DIR`, `postgresql://...` or `memory:`.

    Without one: HOLDFAST_STORE, else the nearest holdfast.toml upwards from the working folder, else a SQLite file in the
    user's state folder. A file or folder that is not there is made, unless `create` is False: then it is read as an empty
    store, and a change raises NotFound. `folders` says where a files store has the files of a domain, from its root on, as
    `{"jobs": "."}`. Raises InvalidValue for wrong settings, StoreUnavailable, StoreCorrupt or SchemaTooNew.
    """
    return connected(load_settings(store=store, namespace=namespace), clock=clock, create=create, folders=folders)


def connected(
    settings: Settings, *, clock: Clock | None = None, create: bool = True, folders: Mapping[str, str] | None = None
) -> Holdfast:
    """Connect by settings that are put together already; see `connect`."""
    processes = Procfs(host_id=settings.host_id)
    url = settings.store or default_store(os.environ)
    opened = open_store(
        url,
        namespace=settings.namespace,
        boot_id=processes.boot_id(),
        clock=clock,
        create=create,
        folders=folders,
        files=placed(settings.files),
        shown=_shown_in_files() if url.startswith("files:") else {},
    )
    _tell("connected store=%s namespace=%s", opened.kind, opened.namespace)
    root = (settings.store or "").partition(":")[2]
    jobs_folder = Path(root, folders["jobs"]) if folders and "jobs" in folders else None
    return Holdfast(opened, settings, processes, jobs_folder=jobs_folder)


def _shown_in_files() -> Mapping[Space[Any], Sign[Any]]:
    """What of the lock table is shown to people who read the folder. Locks are a primitive's, and routers a domain's."""
    from holdfast.domains.network.wire import ROUTER_SIGN
    from holdfast.primitives.locks.record import LOCKS

    return {LOCKS: ROUTER_SIGN}


PLACES = {"agents": ".", "network": ".", "network_locks": "locks", "workflows": "."}
"""Where a files store has the folders of layouts, from its root on; every other has one of its own name there."""


def placed(files: FilesSettings) -> FilesSettings:
    """The settings of a files store with those folders in their places, unless it is said that they are elsewhere."""
    return replace(files, folders={**PLACES, **files.folders})


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
    if scheme in ("sqlite", "files") and rest and not rest.startswith(("/", "~")):
        return f"{scheme}:{folder / rest}"
    return url


def _job_logs(settings: Settings, store: Store, jobs_folder: Path | None) -> Path | None:
    """Where the audit log of jobs lies: as the environment or the settings say, else beside the store, or beside a folder of
    jobs where programs that share such folders look for it."""
    chosen = os.environ.get("DELEGATE_JOB_LOGS_DIR") or settings.jobs.logs
    if chosen:
        return sqlite_path(chosen)
    if jobs_folder is not None:
        return jobs_folder.parent / "delegate_job_logs"
    part = "" if store.namespace == settings_.DEFAULT_NAMESPACE else f".{store.namespace}"
    kind, _, rest = (settings.store or default_store(os.environ)).partition(":")
    if kind == "sqlite":
        path = sqlite_path(rest)
        return path.with_name(f"{path.name}-job-logs{part}")
    if kind == "files":
        return sqlite_path(rest) / f"job_logs{part}"
    if kind == "memory":
        return None
    return sqlite_path(default_store(os.environ).partition(":")[2]).with_name(f"job-logs{part}")


def _database(url: str) -> str:
    try:
        from holdfast.stores.postgres.address import Address
    except ImportError:
        return "PostgreSQL, whose driver is not installed"
    return str(Address(url))


def actor_here() -> str:
    """Whom the journal names unless told: the user and process."""
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
