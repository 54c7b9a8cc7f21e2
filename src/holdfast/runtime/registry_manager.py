"""RegistryManager: the registry of hosts, routers and neighbours by a configuration of its own, as
its users know it.

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
from holdfast.domains.network import Registry, RegistryConfig, Room, configured
from holdfast.domains.network.wire import LOCKS_FOLDER
from holdfast.kernel.errors import StoreUnavailable
from holdfast.kernel.settings import Settings
from holdfast.primitives.locks import Locks
from holdfast.runtime.configuration import load_settings
from holdfast.runtime.connection import Holdfast, connect, connected
from holdfast.runtime.paths import access_in
from holdfast.stores.url import StoreUrl
from holdfast.system.access import Access, access_for, make_folder


class RegistryManager(Registry):
    """Hosts, their leases, routers and neighbour entries, by one configuration. A context manager
    that closes it.

    `config` is a dict of the keys that docs/network.md lists, or one with that dict under
    `registry_manager`. With `registry_dir` everything lies in plain files there, and `lock_dir` is
    there too; without, in the store of `connect()`. One manager a process is enough, and any number
    of threads may use it; it is safe after fork. What the calls promise stands at `Registry`.

    Raises InvalidValue for a wrong configuration, and what `connect` raises.
    """

    def __init__(self, config: Mapping[str, Any], logger: logging.Logger | None = None) -> None:
        chosen = configured(config)
        self._connection = _connected(chosen)
        settings = self._connection.settings
        journal = "all" if chosen.logs else settings.locks.journal
        self._own_locks = Locks(
            self._connection.store,
            self._connection.log,
            self._connection.processes,
            replace(settings.locks, journal=journal),
            label=settings.actor or "",
        )
        logger = logger or logging.getLogger("holdfast.network")
        self._log = _transaction_log(chosen, self._connection, logger)
        room = Room(
            self._connection.store,
            self._connection.log,
            self._connection.processes,
            chosen,
            label=settings.actor or "",
        )
        super().__init__(
            room,
            self._own_locks,
            logger=logger,
            enabled=chosen.enabled,
            after_change=lambda: None if self._log is None else self._log.catch_up(),
        )

    def __enter__(self) -> "RegistryManager":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the store. Nothing is released: what this process holds ends with it. Calling
        it again is harmless.
        """
        super().close()
        self._own_locks.close()
        if self._log is not None:
            self._log.catch_up()
            self._log = None
        self._connection.close()


def _connected(chosen: RegistryConfig) -> Holdfast:
    if not chosen.enabled:
        # Nothing is made anywhere for what is switched off.
        return connect("memory:")
    if chosen.registry_dir is None:
        return connect()
    settings = load_settings(store=f"files:{os.path.expanduser(chosen.registry_dir)}")
    places = (
        {}
        if chosen.lock_dir is None
        else {LOCKS_FOLDER: os.path.abspath(os.path.expanduser(chosen.lock_dir))}
    )
    for path in places.values():
        # Before the store is opened, which then sees whether another store has it.
        _make(Path(path), access_for(settings.group))
    files = replace(
        settings.files,
        folders={**_own_folders(settings), **places},
        retry_attempts=chosen.retry_attempts,
        retry_delay_s=chosen.retry_delay,
    )
    connection = connected(replace(settings, files=files))
    if (locks := connection.store.layout_folder(LOCKS_FOLDER)) is not None:
        _make(locks, access_in(connection.settings, connection.store))
    return connection


def _make(folder: Path, access: Access) -> None:
    """Make the folder of lock files: other programs look there before any router is locked. Raises
    StoreUnavailable.
    """
    try:
        make_folder(folder, access)
    except OSError as error:
        raise StoreUnavailable(
            f"cannot make lock_dir {folder} ({error.strerror}): check its path and permissions",
            path=str(folder),
            outcome="none",
        ) from None


def _own_folders(settings: Settings) -> dict[str, str]:
    """The folders that are configured here, if they are of this very store. Those of another would
    bring two stores, which do not wait for each other, to the same files.
    """
    return settings.files.folders if _root(load_settings()) == _root(settings) else {}


def _root(settings: Settings) -> str | None:
    path = StoreUrl(settings.store or "").path
    return None if path is None else os.path.realpath(path)


def _transaction_log(
    chosen: RegistryConfig, connection: Holdfast, logger: logging.Logger
) -> JournalMirror | None:
    if not (chosen.enabled and chosen.logs and chosen.transaction_log_path is not None):
        return None
    # The registry's processes all write it, so it is for whom the registry is.
    access = access_in(connection.settings, connection.store)
    return transaction_log(
        Path(os.path.expanduser(chosen.transaction_log_path)), connection.log, logger, access
    )
