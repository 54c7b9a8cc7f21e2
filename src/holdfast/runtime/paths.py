"""What lies beside a store: the folders of its files, signal files, the audit log of jobs,
gateways, its server's folder.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from holdfast.kernel import settings as settings_
from holdfast.kernel.errors import EnvironmentUnavailable
from holdfast.kernel.layout import Sign
from holdfast.kernel.settings import FilesSettings, Settings
from holdfast.kernel.space import Space
from holdfast.kernel.store import Store
from holdfast.runtime.configuration import state_folder, store_url
from holdfast.stores.url import user_path
from holdfast.system.access import Access, access_for, access_like

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


def signal_folder_of(store: Store) -> Path:
    """Where signal files lie whose owners chose no place: beside the store, else in the user's
    state folder.
    """
    return (store.side_folder("signals") or state_folder(os.environ) / "signals") / store.namespace


def tree_folder_of(store: Store) -> Path | None:
    """Where the FIFOs of process trees lie: beside the store, else in the user's state folder;
    nowhere for a store that ends with its process.
    """
    if store.ephemeral:
        return None
    return store.side_folder("trees") or state_folder(os.environ) / "trees"


def job_logs(settings: Settings, store: Store, jobs_folder: Path | None) -> Path | None:
    """Where the audit log of jobs lies: as the environment or the settings say, else beside the
    store, or beside a folder of jobs where programs that share such folders look for it.
    """
    chosen = os.environ.get("DELEGATE_JOB_LOGS_DIR") or settings.jobs.logs
    if chosen:
        return user_path(chosen)
    if jobs_folder is not None:
        return jobs_folder.parent / "delegate_job_logs"
    url = store_url(settings)
    if url.ephemeral:
        return None
    suffix = "" if store.namespace == settings_.DEFAULT_NAMESPACE else f".{store.namespace}"
    return url.job_logs(suffix) or state_folder(os.environ) / f"job-logs{suffix}"


def access_in(settings: Settings, store: Store) -> Access:
    """Who may use what is made beside a store: those who may use the store or, where it has no
    files, those whom the settings name.
    """
    return access_for(settings.group) if store.anchor is None else access_like(store.anchor)


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
        raise EnvironmentUnavailable(
            f"the folder of the gateways cannot be read: {error}", outcome="none"
        ) from None


def server_root(settings: Settings) -> Path:
    """The folder of a store's server: beside a file or a folder, else in the user's state
    folder.
    """
    url = store_url(settings)
    folder = url.server_folder() or state_folder(os.environ) / "server" / url.state_name()
    return folder / settings.namespace


def gateways_folder(settings: Settings) -> Path:
    """The folder of all gateways of one store, in all its namespaces: `gateway_root`, else beside
    the SQLite store, else in the user's state folder. Agents of one name in two stores are two
    agents.
    """
    if settings.gateway_root is not None:
        return user_path(settings.gateway_root).absolute()
    url = store_url(settings)
    return url.gateways_folder() or state_folder(os.environ) / "gateways" / url.state_name()


def _gateways(settings: Settings) -> Path:
    return gateways_folder(settings) / settings.namespace
