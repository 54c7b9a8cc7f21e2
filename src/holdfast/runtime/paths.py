"""What lies beside a store: the folders of its files, the lock of its swaps, signal files, the
audit log of jobs, gateways, its server's folder.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from holdfast.kernel import settings as settings_
from holdfast.kernel.errors import InvalidValue, StoreUnavailable
from holdfast.kernel.layout import Sign
from holdfast.kernel.settings import FilesSettings, Settings
from holdfast.kernel.space import Space
from holdfast.kernel.store import Store
from holdfast.runtime.configuration import default_store, state_folder
from holdfast.stores.factory import sqlite_path
from holdfast.system.access import Access, access_for, access_like
from holdfast.system.folder_walk import resolve

if TYPE_CHECKING:
    from holdfast.domains.workflows.ports import SwapLock
    from holdfast.stores.files.folders import Folders


PLACES = {"agents": ".", "network": ".", "network_locks": "locks", "workflows": "."}
"""Where a files store has the folders of layouts, from its root on; every other has one of its own
name there.
"""


def placed(files: FilesSettings) -> FilesSettings:
    """The settings of a files store with those folders in their places, unless it is said that they
    are elsewhere.
    """
    return replace(files, folders={**PLACES, **files.folders})


def shown_in_files() -> Mapping[Space[Any], Sign[Any]]:
    """What of the lock table is shown to people who read the folder. Locks are a primitive's, and
    routers a domain's.
    """
    from holdfast.domains.network.wire import ROUTER_SIGN
    from holdfast.primitives.locks.records import LOCKS

    return {LOCKS: ROUTER_SIGN}


def swap_lock_of(store: Store) -> "SwapLock":
    """The lock of a store's swaps, which dies with its process: a flock beside a file, a session of
    a database, or a lock among the threads that share a memory. Raises InvalidValue for a store
    that has none.
    """
    if store.kind == "postgres":
        from holdfast.stores.postgres.store import PostgresStore

        assert isinstance(store, PostgresStore)
        return store.session_lock("swap")
    path = getattr(store, "path", None)
    if path is not None:
        from holdfast.system.flock import FlockLock

        return FlockLock(
            path.with_name(f"{path.name}-swap-{store.namespace}.lock"), access_like(path)
        )
    if store.kind != "memory":
        # A lock among threads would let two processes swap at once.
        raise InvalidValue(
            f"a {store.kind} store has no swap lock: use sqlite, postgresql or memory",
            store=store.kind,
        )
    from holdfast.system.flock import ThreadLock

    return ThreadLock()


def workflow_folder(folders: "Folders", namespace: str) -> Path:
    """Where a files store has what the layout of workflows has no place for."""
    return folders.own / "workflows" / namespace


def signal_folder_of(store: Store) -> Path:
    """Where signal files lie whose owners chose no place: beside a file, else in the user's state
    folder.
    """
    path = getattr(store, "path", None)
    if path is not None:
        return Path(path.with_name(f"{path.name}-signals")) / store.namespace
    return state_folder(os.environ) / "signals" / store.namespace


def tree_folder_of(store: Store) -> Path | None:
    """Where the FIFOs of process trees lie: beside the store's files, else in the user's state
    folder; nowhere for memory.
    """
    path = getattr(store, "path", None)
    if path is not None:
        return Path(path.with_name(f"{path.name}-trees"))
    own = getattr(getattr(store, "folders", None), "own", None)
    if own is not None:
        return Path(own) / "trees"
    return None if store.kind == "memory" else state_folder(os.environ) / "trees"


def job_logs(settings: Settings, store: Store, jobs_folder: Path | None) -> Path | None:
    """Where the audit log of jobs lies: as the environment or the settings say, else beside the
    store, or beside a folder of jobs where programs that share such folders look for it.
    """
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


def access_in(settings: Settings, store: Store) -> Access:
    """For whom that is which is made beside a store: as the store itself or, where it has no files,
    as the settings say.
    """
    path = getattr(store, "path", None) or getattr(getattr(store, "folders", None), "own", None)
    return access_for(settings.group) if path is None else access_like(path)


def gateway_agent(agent: str) -> str:
    """What an agent's gateway is kept under: of all forms of one name the same, or one agent could
    have two gateways. Raises InvalidName.
    """
    from holdfast.domains.agents.records import inner

    return inner(agent)


def gateway_root(settings: Settings, agent: str) -> Path:
    """The folder of an agent's gateway. Raises InvalidName."""
    return _gateways(settings) / gateway_agent(agent)


def gateways_here(settings: Settings) -> list[str]:
    """The agents that have, or had, a gateway on this machine, by name."""
    try:
        with os.scandir(_gateways(settings)) as found:
            return sorted(folder.name for folder in found if folder.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreUnavailable(
            f"the folder of the gateways cannot be read: {error}", outcome="none"
        ) from None


def server_root(settings: Settings) -> Path:
    """The folder of a store's server: beside a file or a folder, else in the user's state
    folder.
    """
    url = settings.store or default_store(os.environ)
    kind, _, rest = url.partition(":")
    if kind in ("sqlite", "files"):
        path = sqlite_path(rest).absolute()
        return path.with_name(f"{path.name}-server") / settings.namespace
    return state_folder(os.environ) / "server" / _part_of(url) / settings.namespace


def gateways_folder(settings: Settings) -> Path:
    """The folder of all gateways of one store, in all its namespaces: `gateway_root`, else beside
    the SQLite store, else in the user's state folder. Agents of one name in two stores are two
    agents.
    """
    if settings.gateway_root is not None:
        return sqlite_path(settings.gateway_root).absolute()
    url = settings.store or default_store(os.environ)
    if url.startswith("sqlite:"):
        path = _real(url)
        return path.with_name(f"{path.name}-gateways")
    return state_folder(os.environ) / "gateways" / _part_of(url)


def _part_of(url: str) -> str:
    """What a store that has no place of its own for it has its things under in the user's state
    folder.
    """
    kind = url.partition(":")[0]
    if kind == "memory":
        return kind
    from hashlib import sha256

    if kind == "files":
        return f"files-{sha256(bytes(_real(url))).hexdigest()[:12]}"
    from holdfast.stores.postgres.address import Address

    # One folder a database, whoever connects to it: its password is no part of that.
    return f"postgres-{sha256(str(Address(url)).encode()).hexdigest()[:12]}"


def _real(url: str) -> Path:
    """Where a file or folder is, by whatever way it is named."""
    return Path(resolve(sqlite_path(url.partition(":")[2])))


def _gateways(settings: Settings) -> Path:
    return gateways_folder(settings) / settings.namespace
