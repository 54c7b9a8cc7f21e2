"""The queues of gateways, when a store is copied.

Beside an embedded store each gateway has its queue in a file of its own; in PostgreSQL all queues
live in the database. A copy from one to the other merges or separates them, so that the next
gateway of an agent finds every accepted request.
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
from holdfast.runtime.configuration import gateways_folder
from holdfast.stores.copy import Contents, StoredEntry, StoredRecord
from holdfast.stores.url import StoreUrl
from holdfast.system.folder_walk import resolve

QUEUE_SPACES: Sequence[Space[Any]] = (ATTACHMENTS, HEADS, KEYS, REQUESTS)
_FILE_SPACES: Sequence[Space[Any]] = (*QUEUE_SPACES, CLOCK_SIGHTINGS)
"""What the file of a queue holds: it is a store of its own, with its own sightings of the clock."""


class _QueueKey(NamedTuple):
    namespace: str
    agent: str


class Queues:
    """The queues that go from one store to another, for the block.

    Every accepted request is in the copy, or nothing was copied. A queue that lies in one folder
    for both stores stays where it is. Sightings of the clock are copied only between embedded
    stores, which both use the machine's clock: a database has its own, which would seem to have
    been set. Raises Held for a gateway that serves, Collision for a queue that is already where one
    would go.
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
        self._queues: dict[_QueueKey, Contents] = {}
        self._apart: dict[_QueueKey, tuple[list[StoredRecord], list[StoredEntry]]] = {}
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
        """What goes into the other store itself. The queues beside the store are merged into it,
        and those inside it are set apart where they become files.
        """
        everything = everything._replace(records=self._checked(everything.records))
        if not self._one_clock:
            everything = everything._replace(counts={**everything.counts, CLOCK_SIGHTINGS.name: 0})
        if self._from == self._to:
            return everything
        self._era = everything.era
        if self._from is None:
            return everything._replace(
                records=self._set_apart(everything.records),
                journal=self._copied(everything.journal),
            )
        self._queues = dict(self._found(self._from))
        counts = dict(everything.counts)
        for queue in self._queues.values():
            for space in QUEUE_SPACES:
                counts[space.name] = counts.get(space.name, 0) + queue.counts.get(space.name, 0)
        everything = everything._replace(counts=counts)
        if self._to is not None:
            return everything
        parts = [everything, *self._queues.values()]
        return Contents(
            era=max(part.era for part in parts),
            counts=counts,
            records=chain.from_iterable(part.records for part in parts),
            journal=_distinct(merge(*(part.journal for part in parts))),
        )

    def place(self) -> None:
        """Write the queues where the gateways of the other store expect them."""
        from holdfast.stores.sqlite import copy

        if self._to is None:
            return
        for key, (records, journal) in self._apart.items():
            self._queues[key] = Contents(self._era, {}, iter(records), iter(journal))
        for key, queue in self._queues.items():
            own = GatewayFolder(self._to / key.namespace / key.agent)
            if os.path.lexists(own.queue):
                raise Collision(
                    f"{own.queue} is there already, and the queue of gateway {key.agent} is to be "
                    "copied to it: move it away if all of its requests are done, or are in the "
                    "store that is copied",
                    path=str(own.queue),
                )
            own.prepare()
            copy.fill(own.queue, queue, _FILE_SPACES)
            self._placed.append(own.queue)

    def _found(self, folder: Path) -> Iterator[tuple[_QueueKey, Contents]]:
        """The queues in a folder, each as of one moment."""
        from holdfast.stores.sqlite import copy
        from holdfast.stores.sqlite.store import SqliteStore

        boot_id = self._processes.boot_id()
        for path in sorted(folder.glob("*/*/queue.sqlite")):
            key = _QueueKey(check_id(path.parent.parent.name, "namespace"), path.parent.name)
            store = self._open.enter_context(
                closing(SqliteStore(path, boot_id=boot_id, namespace=key.namespace))
            )
            self._processes.watch_boots(store.boot_in_use)
            found = self._open.enter_context(copy.contents(store, _FILE_SPACES))
            yield key, found._replace(records=self._checked(found.records))

    def _set_apart(self, records: Iterable[StoredRecord]) -> Iterator[StoredRecord]:
        """All but the records of queues, which are set apart."""
        for record in records:
            if record.space not in QUEUE_SPACES:
                yield record
                continue
            agent = record.key.partition("/")[0]
            if record.space is REQUESTS:
                agent = REQUESTS.decode(record.key, record.value).queue
            queue = self._apart.setdefault(_QueueKey(record.namespace, agent), ([], []))
            queue[0].append(record)

    def _copied(self, journal: Iterable[StoredEntry]) -> Iterator[StoredEntry]:
        """All entries; those about a queue are copied to it too."""
        for entry in journal:
            agent = msgspec.json.decode(entry.data, type=dict[str, Any]).get("agent")
            if queue := self._apart.get(_QueueKey(entry.namespace, str(agent))):
                queue[1].append(entry)
            yield entry

    def _checked(self, records: Iterable[StoredRecord]) -> Iterator[StoredRecord]:
        """The records that are copied. Raises Held for a gateway that would go on accepting
        requests into the copied store.
        """
        for record in records:
            if record.space is CLOCK_SIGHTINGS and not self._one_clock:
                continue
            is_attachment = record.space is ATTACHMENTS
            server = ATTACHMENTS.decode(record.key, record.value).server if is_attachment else None
            if server is not None:
                process = server.process
                alive = probe(process, self._processes, embedded=self._embedded)
                if not leases.reclaimable(server.lease, alive, self._now):
                    raise Held(
                        f"the gateway of {record.key} runs, as pid {process.pid} on "
                        f"{process.host_id}: stop it with `holdfast gateway detach {record.key}`; "
                        "the copy would miss the requests that it still accepts",
                        agent=record.key,
                        pid=process.pid,
                        host_id=process.host_id,
                    )
            yield record


def _folder(settings: Settings, url: str) -> Path | None:
    """The folder of a store's queues; None when they live in the database."""
    if not StoreUrl(url).embedded:
        return None
    return Path(resolve(gateways_folder(replace(settings, store=url))))


def _distinct(journal: Iterable[StoredEntry]) -> Iterator[StoredEntry]:
    """Entries in the order of their revisions. Two stores may have given the same revision: the
    later entry gets the next free one.
    """
    last = 0
    for entry in journal:
        last = max(entry.revision, last + 1)
        yield entry._replace(revision=last)
