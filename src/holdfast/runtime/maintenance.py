"""Maintenance of a store as a whole: what it is, whether it is sound, copies of it."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.kernel.codec import cut
from holdfast.kernel.errors import Held, InvalidValue, NotFound, StoreUnavailable
from holdfast.kernel.settings import Settings
from holdfast.kernel.space import Space
from holdfast.kernel.store import Administration, Store, Tx
from holdfast.kernel.text import counted
from holdfast.primitives.journal import Journal
from holdfast.processes.procfs import Procfs
from holdfast.runtime.configuration import actor_here, placed, store_url
from holdfast.stores.url import open_store, restore, there
from holdfast.system.access import access_for

if TYPE_CHECKING:
    from holdfast.stores.copy import Contents


_HELD_BYTES_MAX = 16 << 10
"""How much of a removed record the journal keeps, as JSON."""


def all_spaces() -> list[Space[Any]]:
    """Every kind of record that the program keeps."""
    from holdfast.domains.agents.records import AGENTS
    from holdfast.domains.gateway.records import ATTACHMENTS
    from holdfast.domains.jobs.events import JOB_EVENTS
    from holdfast.domains.jobs.records import JOBS
    from holdfast.domains.network.wire import HOST_LEASES, HOSTS, NEIGHBOR_LEASES
    from holdfast.domains.workflows.wire import (
        CURRENT_RECIPE,
        SWAP_MARKER,
        UNKNOWN_RECIPE,
        WORKFLOWS,
    )
    from holdfast.primitives.holds import HOLDS
    from holdfast.primitives.locks.grant import LASTING_GRANTS, TABLE_BEGUN
    from holdfast.primitives.locks.records import LOCK_WAITS, LOCKS
    from holdfast.primitives.locks.statistics import LOCK_STATISTICS
    from holdfast.primitives.queue.records import HEADS, KEYS, REQUESTS
    from holdfast.primitives.steady_clock import CLOCK_SIGHTINGS

    network: list[Space[Any]] = [HOSTS, HOST_LEASES, NEIGHBOR_LEASES]
    workflows: list[Space[Any]] = [WORKFLOWS, SWAP_MARKER, CURRENT_RECIPE, UNKNOWN_RECIPE]
    locks: list[Space[Any]] = [LASTING_GRANTS, LOCKS, LOCK_WAITS, LOCK_STATISTICS, TABLE_BEGUN]
    queues: list[Space[Any]] = [ATTACHMENTS, HEADS, KEYS, REQUESTS]
    return [AGENTS, JOBS, JOB_EVENTS, *network, *workflows, *queues, HOLDS, *locks, CLOCK_SIGHTINGS]


class Upkeep:
    """Maintenance of a store as a whole. Works where connecting would fail: a damaged store can be
    checked and restored.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._url = store_url(settings)

    def facts(self) -> dict[str, str]:
        """Where the store is, and which part of it is used, without the password of a database.

        Raises InvalidValue for what is no store's URL.
        """
        facts = {"store": self._url.shown(), "namespace": self._settings.namespace}
        if self._url.embedded:
            return facts
        try:
            with self._opened() as store:
                return {**facts, **store.administration.facts()}
        except StoreUnavailable as error:
            return {**facts, "server": error.message}

    def check(self) -> list[str]:
        """What is wrong with the store, a line each."""
        with self._opened() as store:
            return store.administration.check(all_spaces())

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
            counts = everything.counts
            if held := sum(
                counts.get(space.name, 0) for space in (LOCKS, LOCK_WAITS, LASTING_GRANTS)
            ):
                are = counted(held, "lock is", "locks are")
                raise Held(
                    f"{are} held or waited for: copy when nobody works (`holdfast locks status`)",
                    locks=held,
                )
            if counts.get(SWAP_MARKER.name):
                # Its lock stays behind: in the copy it would count as dead while it loads.
                raise Held(
                    "a swap is under way: copy when it has ended (`holdfast swap reconcile` "
                    "clears what a dead one left)"
                )
            return queues.through(everything)

        processes, files = Procfs(host_id=self._settings.host_id), placed(self._settings.files)
        with (
            self._opened() as store,
            Queues(self._settings, self._url.text, target, processes, now=store.now()) as queues,
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
        """Begin a new era of tokens, and return it: for a database whose files were restored."""
        if self._url.embedded:
            return Administration(self._url.kind).begin_era()
        with self._opened() as store:
            return store.administration.begin_era()

    def backup(self, target: Path) -> None:
        with self._opened() as store:
            store.administration.backup(all_spaces(), target)

    def exists(self) -> bool:
        """Is there a store that a restore would replace? Raises InvalidValue for a kind of store
        that has no restore.
        """
        return there(self._path())

    def restore(self, source: Path) -> Path | None:
        """Replace the store with a backup, in a new era. Return where the replaced store is saved;
        None if there was none.

        The replaced store is saved first: after a kill at any moment, the old or the new one is in
        place, and the saved one is whole. Raises StoreUnavailable when it cannot be saved; then
        nothing was changed.
        """
        self._path()
        return restore(
            self._url,
            source,
            all_spaces(),
            boot_id=Procfs().boot_id(),
            namespace=self._settings.namespace,
            files=placed(self._settings.files),
            access=access_for(self._settings.group),
        )

    def remove(self, space_name: str, key: str) -> str:
        """Remove a record, damaged or not, and return what it held. The journal keeps the first 16
        kB of it.

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
            held = store.administration.content(space, key).decode(errors="backslashreplace")
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

    @contextmanager
    def _opened(self) -> Iterator[Store]:
        """The existing store. Raises NotFound where there is none yet."""
        if self._url.embedded and not there(path := self._path()):
            raise NotFound(
                f"there is no store {path} yet: any command that writes makes it", path=str(path)
            )
        with closing(
            open_store(
                self._url.text,
                namespace=self._settings.namespace,
                boot_id=Procfs().boot_id(),
                files=lambda: placed(self._settings.files),
                access=access_for(self._settings.group),
            )
        ) as store:
            yield store

    def _path(self) -> Path:
        if (path := self._url.path) is None:
            raise Administration(self._url.kind).no_backups()
        return path
