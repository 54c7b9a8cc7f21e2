"""The queues of gateways, when a store is copied.

Beside an embedded store each gateway has its queue in a file of its own; in PostgreSQL all of them
live in the database. So on the way from one to the other they are taken in or put apart, and what
was accepted is there for whoever serves the agent next.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from datetime import datetime
from heapq import merge
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.adapters.gateway_folder import GatewayFolder
from holdfast.domains.gateway.records import ATTACHMENTS
from holdfast.kernel import lease as leases
from holdfast.kernel.errors import Collision, Held
from holdfast.kernel.holder import probe
from holdfast.kernel.names import check_id
from holdfast.kernel.settings import Settings
from holdfast.kernel.space import Space
from holdfast.primitives.queue.records import HEADS, KEYS, REQUESTS
from holdfast.primitives.steady_clock import CLOCK_SIGHTINGS
from holdfast.processes.procfs import Procfs
from holdfast.runtime.paths import gateways_folder
from holdfast.stores.copy import Contents, StoredEntry, StoredRecord
from holdfast.stores.url import StoreUrl
from holdfast.system.folder_walk import resolve

QUEUE_SPACES: Sequence[Space[Any]] = (ATTACHMENTS, HEADS, KEYS, REQUESTS)
_FILE_SPACES: Sequence[Space[Any]] = (*QUEUE_SPACES, CLOCK_SIGHTINGS)
"""What the file of a queue holds: it is a store of its own, and so has its own word on how its
clock runs.
"""


class _Whose(NamedTuple):
    namespace: str
    agent: str


class Queues:
    """The queues that go from one store to another, for the block.

    Promised: every request that was accepted is in the copy, or nothing was copied. A queue that
    lies in one folder for both stores stays where it is. What was seen of a store's clock goes
    along only from one embedded store to another, for both go by the machine's: a database has its
    own, which would seem to have been set. Raises Held for a gateway that serves, Collision for a
    queue that is already where one would go.
    """

    def __init__(
        self, settings: Settings, source: str, target: str, processes: Procfs, *, now: datetime
    ) -> None:
        self._from = _folder(settings, source)
        self._to = _folder(settings, target)
        self._processes = processes
        self._embedded = self._from is not None
        self._one_clock = self._from is not None and self._to is not None
        self._now = now
        self._open = ExitStack()
        self._era = 0
        self._queues: dict[_Whose, Contents] = {}
        self._apart: dict[_Whose, tuple[list[StoredRecord], list[StoredEntry]]] = {}
        self._placed: list[Path] = []

    def __enter__(self) -> "Queues":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()
        if error is not None:
            for path in self._placed:
                path.unlink(missing_ok=True)

    def through(self, everything: Contents) -> Contents:
        """What goes into the other store itself, of what one holds; the queues beside it are read,
        or put apart.
        """
        everything = everything._replace(records=self._checked(everything.records))
        if not self._one_clock:
            everything = everything._replace(counts={**everything.counts, CLOCK_SIGHTINGS.name: 0})
        if self._from == self._to:
            return everything
        self._era = everything.era
        if self._from is None:
            return everything._replace(
                records=self._kept(everything.records), journal=self._told(everything.journal)
            )
        self._queues = dict(self._found(self._from))
        counted = everything._replace(counts=self._counts(everything))
        return counted if self._to is not None else self._taken_in(counted)

    def place(self) -> None:
        """Put the queues where the gateways of the other store look for them."""
        for whose, (records, told) in self._apart.items():
            self._queues[whose] = Contents(self._era, {}, iter(records), iter(told))
        for whose, queue in self._queues.items():
            if self._to is not None:
                self._place(self._to, whose, queue)

    def _place(self, folder: Path, whose: _Whose, queue: Contents) -> None:
        from holdfast.stores.sqlite import copy

        own = GatewayFolder(folder / whose.namespace / whose.agent)
        if os.path.lexists(own.queue):
            raise Collision(
                f"{own.queue} is there already, and the queue of gateway {whose.agent} is to be "
                "copied to it: move it away if "
                "all of its requests are done, or lie in the store that is copied",
                path=str(own.queue),
            )
        own.prepare()
        copy.fill(own.queue, queue, _FILE_SPACES)
        self._placed.append(own.queue)

    def _found(self, folder: Path) -> Iterator[tuple[_Whose, Contents]]:
        """The queues in a folder, each as of one moment."""
        from holdfast.stores.sqlite import copy
        from holdfast.stores.sqlite.store import SqliteStore

        boot_id = self._processes.boot_id()
        for path in sorted(folder.glob("*/*/queue.sqlite")):
            whose = _Whose(check_id(path.parent.parent.name, "namespace"), path.parent.name)
            store = self._open.enter_context(
                closing(SqliteStore(path, boot_id=boot_id, namespace=whose.namespace))
            )
            self._processes.watch_boots(store.boot_in_use)
            found = self._open.enter_context(copy.contents(store, _FILE_SPACES))
            yield whose, found._replace(records=self._checked(found.records))

    def _counts(self, everything: Contents) -> dict[str, int]:
        counts = dict(everything.counts)
        for queue in self._queues.values():
            for space in QUEUE_SPACES:
                counts[space.name] = counts.get(space.name, 0) + queue.counts.get(space.name, 0)
        return counts

    def _taken_in(self, everything: Contents) -> Contents:
        parts = [everything, *self._queues.values()]
        return Contents(
            era=max(part.era for part in parts),
            counts=everything.counts,
            records=chain.from_iterable(part.records for part in parts),
            journal=_distinct(merge(*(part.journal for part in parts))),
        )

    def _kept(self, records: Iterable[StoredRecord]) -> Iterator[StoredRecord]:
        """All but the records of queues, which are put apart."""
        for kept in records:
            if kept.space in QUEUE_SPACES:
                self._of(_Whose(kept.namespace, _agent_of(kept)))[0].append(kept)
            else:
                yield kept

    def _told(self, journal: Iterable[StoredEntry]) -> Iterator[StoredEntry]:
        """All entries; those that tell of a queue go to it too."""
        for told in journal:
            agent = msgspec.json.decode(told.data, type=dict[str, Any]).get("agent")
            if (whose := _Whose(told.namespace, str(agent))) in self._apart:
                self._of(whose)[1].append(told)
            yield told

    def _of(self, whose: _Whose) -> tuple[list[StoredRecord], list[StoredEntry]]:
        return self._apart.setdefault(whose, ([], []))

    def _checked(self, records: Iterable[StoredRecord]) -> Iterator[StoredRecord]:
        """The records that go along, as long as none of them is of a gateway that would go on
        accepting requests into the store it has.
        """
        for kept in records:
            if kept.space is CLOCK_SIGHTINGS and not self._one_clock:
                continue
            if kept.space is ATTACHMENTS:
                self._refuse_served(kept)
            yield kept

    def _refuse_served(self, kept: StoredRecord) -> None:
        server = ATTACHMENTS.decode(kept.key, kept.value).server
        if server is None:
            return
        alive = probe(server.process, self._processes, embedded=self._embedded)
        if not leases.reclaimable(server.lease, alive, self._now):
            raise Held(
                f"the gateway of {kept.key} runs, as pid {server.process.pid} on "
                f"{server.process.host_id}: stop it with "
                f"`holdfast gateway detach {kept.key}`, so that no request is accepted behind the "
                "copy's back",
                agent=kept.key,
                pid=server.process.pid,
                host_id=server.process.host_id,
            )


def _folder(settings: Settings, url: str) -> Path | None:
    """Where the queues of a store are files; None: they live in the database."""
    if not StoreUrl(url).embedded:
        return None
    return Path(resolve(gateways_folder(replace(settings, store=url))))


def _agent_of(kept: StoredRecord) -> str:
    if kept.space is REQUESTS:
        return REQUESTS.decode(kept.key, kept.value).queue
    return kept.key.partition("/")[0]


def _distinct(journal: Iterable[StoredEntry]) -> Iterator[StoredEntry]:
    """Entries in the order of their revisions. Stores that were made in one moment may have given
    the same ones: the later of two gets the next that is free.
    """
    last = 0
    for told in journal:
        last = max(told.revision, last + 1)
        yield told._replace(revision=last)
