"""The paths beside a store: folders of its files, signal files, the audit log of jobs, gateways,
and its server's folder.
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
"""Where a files store has the folders of layouts, relative to its root. Any other layout has a
folder of its own name.
"""


def placed(files: FilesSettings) -> FilesSettings:
    """The settings of a files store with the default folders, where they name no others."""
    return replace(files, folders={**PLACES, **files.folders})


def shown_in_files() -> Mapping[Space[Any], Sign[Any]]:
    """The records of the lock table that are also files, for people who read the folder. It is here
    because locks are a primitive's, and routers a domain's.
    """
    from holdfast.domains.network.wire import ROUTER_SIGN
    from holdfast.primitives.locks.records import LOCKS

    return {LOCKS: ROUTER_SIGN}


def signal_folder_of(store: Store) -> Path:
    """The default folder of signal files: beside the store, else in the user's state folder."""
    return (store.side_folder("signals") or state_folder(os.environ) / "signals") / store.namespace


def tree_folder_of(store: Store) -> Path | None:
    """The folder of the FIFOs of process trees: beside the store, else in the user's state folder;
    None for a store that ends with its process.
    """
    if store.ephemeral:
        return None
    return store.side_folder("trees") or state_folder(os.environ) / "trees"


def job_logs(settings: Settings, store: Store, jobs_folder: Path | None) -> Path | None:
    """The folder of the audit log of jobs: as the environment or the settings say, else beside the
    store, or beside a shared folder of jobs, where other programs expect it.
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
    """Who may use new files beside a store: the users of the store; for a store without files, the
    users that the settings name.
    """
    return access_for(settings.group) if store.anchor is None else access_like(store.anchor)


def gateway_agent(agent: str) -> str:
    """The name of an agent's gateway, the same for all forms of the agent's name: otherwise one
    agent could have two gateways. Raises InvalidName.
    """
    from holdfast.domains.agents.records import inner

    return inner(agent)


def gateway_root(settings: Settings, agent: str) -> Path:
    """The folder of an agent's gateway. Raises InvalidName."""
    return gateways_folder(settings) / settings.namespace / gateway_agent(agent)


def gateways_here(settings: Settings) -> list[str]:
    """The agents that have, or had, a gateway on this machine, by name."""
    try:
        with os.scandir(gateways_folder(settings) / settings.namespace) as found:
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
