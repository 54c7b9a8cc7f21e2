"""The one place where a store, a clock, adapters and domains are wired together."""

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.adapters.procfs import Procfs
from holdfast.kernel import settings as settings_
from holdfast.kernel.clock import Clock
from holdfast.kernel.errors import InvalidValue, NotFound
from holdfast.kernel.settings import Settings
from holdfast.kernel.space import Space
from holdfast.kernel.store import Store
from holdfast.primitives.journal import Journal
from holdfast.stores.opening import open_store

if TYPE_CHECKING:
    from holdfast.domains.jobs import Jobs
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

    def close(self) -> None:
        """Let go of the store. Calling it again is harmless."""
        self.store.close()


class Upkeep:
    """Looking after a store as a whole. Works where connecting would fail: a damaged store can be checked and restored."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._url = settings.store or default_store(os.environ)

    def facts(self) -> dict[str, str]:
        """Where the store is, and which part of it is used."""
        kind, _, _ = self._url.partition(":")
        where = self._url if kind in ("sqlite", "memory") else f"{kind}:..."
        return {"store": where, "namespace": self._settings.namespace}

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

    @contextmanager
    def _sqlite(self) -> Iterator["SqliteStore"]:
        from holdfast.stores.sqlite.store import SqliteStore

        path = self._path()
        if not path.exists():
            raise NotFound(f"there is no store {path} yet: any command that writes makes it", path=str(path))
        with closing(SqliteStore(path, boot_id=Procfs().boot_id(), namespace=self._settings.namespace)) as store:
            yield store

    def _path(self) -> Path:
        kind, _, path = self._url.partition(":")
        if kind != "sqlite":
            raise InvalidValue(f"a {kind} store is looked after by its own tools: for PostgreSQL pg_dump and pg_restore")
        return Path(path).expanduser()


def all_spaces() -> list[Space[Any]]:
    """The spaces of every domain."""
    from holdfast.domains.jobs.record import JOBS

    return [JOBS]


def connect(store: str | None = None, *, namespace: str | None = None, clock: Clock | None = None) -> Holdfast:
    """Connect to a store: `sqlite:PATH`, `postgresql://...` or `memory:`.

    Without one: HOLDFAST_STORE, else the nearest holdfast.toml upwards from the working folder, else a SQLite file in the
    user's state folder. Raises InvalidValue for wrong settings, StoreUnavailable, StoreCorrupt or SchemaTooNew.
    """
    settings = load_settings(store=store, namespace=namespace)
    processes = Procfs(host_id=settings.host_id)
    opened = open_store(
        settings.store or default_store(os.environ),
        namespace=settings.namespace,
        boot_id=processes.boot_id(),
        clock=clock,
    )
    return Holdfast(opened, settings, processes)


def load_settings(*, store: str | None = None, namespace: str | None = None) -> Settings:
    """The settings in force here, with what the caller gave before everything else."""
    path = _nearest_file(Path.cwd())
    document: dict[str, Any] = {} if path is None else _read(path)
    if path is not None and isinstance(document.get("store"), str):
        document["store"] = _from_folder(document["store"], path.parent)
    return settings_.resolve(
        given={"store": store, "namespace": namespace},
        environment=os.environ,
        document=document,
        source=str(path or settings_.FILE_NAME),
    )


def default_store(environment: Mapping[str, str]) -> str:
    """The SQLite file in the user's state folder, by the platform's convention."""
    state = environment.get("XDG_STATE_HOME") or "~/.local/state"
    return f"sqlite:{Path(state).expanduser() / 'holdfast' / 'store.sqlite'}"


def _nearest_file(folder: Path) -> Path | None:
    for parent in (folder, *folder.parents):
        if (parent / settings_.FILE_NAME).is_file():
            return parent / settings_.FILE_NAME
    return None


def _read(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidValue(f"{path} cannot be read: {error}", source=str(path)) from None


def _from_folder(url: str, folder: Path) -> str:
    """A relative path in a file means relative to that file, wherever the command is run."""
    scheme, _, rest = url.partition(":")
    if scheme == "sqlite" and rest and not rest.startswith(("/", "~")):
        return f"sqlite:{folder / rest}"
    return url


def _actor() -> str:
    """Who the journal says did it: the user and process."""
    name = os.environ.get("USER") or os.environ.get("LOGNAME") or f"uid-{os.getuid()}"
    return f"{name[:64]}/{os.getpid()}"
