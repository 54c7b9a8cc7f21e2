"""RegistryManager: the registry of hosts, routers and neighbours with a configuration of its own.

    manager = holdfast.RegistryManager({"registry_dir": "/dev/shm/lab"})
    with manager.router_lock("router-1", "job-7"):
        ...

`connect().network` is the same on the connected store.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from holdfast.adapters.journal_mirror import JournalMirror, transaction_log
from holdfast.domains.network import Registry, RegistryConfig, configured
from holdfast.domains.network.wire import LOCKS_FOLDER
from holdfast.primitives.locks import Locks
from holdfast.runtime.configuration import access_in, load_settings
from holdfast.runtime.connection import Holdfast, connect, connected
from holdfast.stores.url import StoreUrl
from holdfast.system.access import Access, access_for, make_folder, unusable


class RegistryManager(Registry):
    """Hosts, their leases, routers and neighbour entries, by one configuration. A context manager
    that closes it.

    `config` is a dict of the keys that docs/network.md lists, or one with that dict under
    `registry_manager`. With `registry_dir` everything is in plain files there, and `lock_dir` is
    there too; without, in the store of `connect()`. One manager a process is enough, and any number
    of threads may use it; it is safe after fork. For what the calls promise see `Registry`.

    Raises InvalidValue for a wrong configuration, and what `connect` raises.
    """

    def __init__(self, config: Mapping[str, Any], logger: logging.Logger | None = None) -> None:
        chosen = configured(config)
        self._connection = connection = _connect(chosen)
        label = connection.settings.actor or ""
        lock_settings = connection.settings.locks
        if chosen.logs_all:
            lock_settings = replace(lock_settings, journal="all")
        self._own_locks = Locks(
            connection.store, connection.log, connection.processes, lock_settings, label=label
        )
        logger = logger or logging.getLogger("holdfast.network")
        self._log = _transaction_log(chosen, connection, logger)
        super().__init__(
            connection.store,
            connection.log,
            connection.processes,
            self._own_locks,
            chosen,
            label=label,
            logger=logger,
            enabled=chosen.enabled,
            after_change=lambda: None if self._log is None else self._log.catch_up(),
        )

    def __enter__(self) -> "RegistryManager":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store. Nothing is released: the claims of this process end with it. Calling it
        again is harmless.
        """
        super().close()
        self._own_locks.close()
        if self._log is not None:
            self._log.catch_up()
            self._log = None
        self._connection.close()


def _connect(chosen: RegistryConfig) -> Holdfast:
    if not chosen.enabled:
        # A registry that is switched off creates no files.
        return connect("memory:")
    if chosen.registry_dir is None:
        return connect()
    settings = load_settings(store=f"files:{os.path.expanduser(chosen.registry_dir)}")
    # The configured folders count only for the configured store. Another store in the same
    # folders would not wait for the first one's transactions.
    same = _root(load_settings().store) == _root(settings.store)
    folders = dict(settings.files.folders) if same else {}
    if chosen.lock_dir is not None:
        path = os.path.abspath(os.path.expanduser(chosen.lock_dir))
        # Before the store is opened, which then sees whether another store uses it.
        _make_lock_folder(Path(path), access_for(settings.group))
        folders[LOCKS_FOLDER] = path
    files = replace(
        settings.files,
        folders=folders,
        retry_attempts=chosen.retry_attempts,
        retry_delay_s=chosen.retry_delay,
    )
    connection = connected(replace(settings, files=files))
    if (locks := connection.store.layout_folder(LOCKS_FOLDER)) is not None:
        _make_lock_folder(locks, access_in(connection.settings, connection.store))
    return connection


def _make_lock_folder(folder: Path, access: Access) -> None:
    """Make the folder of lock files now: other programs look there before any router is locked.
    Raises StoreUnavailable.
    """
    try:
        make_folder(folder, access)
    except OSError as error:
        raise unusable(folder, error, "check the path of lock_dir and its permissions") from None


def _root(store: str | None) -> str | None:
    path = StoreUrl(store or "").path
    return None if path is None else os.path.realpath(path)


def _transaction_log(
    chosen: RegistryConfig, connection: Holdfast, logger: logging.Logger
) -> JournalMirror | None:
    if not (chosen.enabled and chosen.logs_all and chosen.transaction_log_path is not None):
        return None
    # All processes of the registry write it, so it gets the registry's access.
    access = access_in(connection.settings, connection.store)
    log = transaction_log(
        Path(os.path.expanduser(chosen.transaction_log_path)),
        connection.log,
        logger,
        access,
        boot_id=connection.processes.here().boot_id,
    )
    connection._mirrors.append(log)
    return log
