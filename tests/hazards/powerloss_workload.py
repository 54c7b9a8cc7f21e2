"""Several processes at one store, to be run under strace with a plan, the root and the
acknowledgements as arguments.

The first round makes the store, all at once. In each further one a process alone opens, writes and
closes it twice, so that the log is deleted and made again. Then all have it open and write at once,
one with threads, one only reading, with the log begun anew every few changes; then all close.
"""

import contextlib
import json
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.stores.sqlite import database, filesystem, wal
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.system.access import Access
from holdfast.system.folder_walk import Folder
from tests.harness.timeouts import PATIENCE_S
from tests.hazards.powerloss_changes import STORE, TOKENS, Acknowledgements, Part, change, look

THREADS = 3


class Worker:
    """One process of the workload, or one thread of it."""

    def __init__(self, root: str, acknowledgements: str, plan: dict[str, Any], name: str) -> None:
        self.path = Path(root) / STORE
        self.acknowledgements = Acknowledgements(acknowledgements)
        self.plan = plan
        self.name = name

    def open(self) -> SqliteStore:
        return SqliteStore(self.path, boot_id="before")

    def write(self, store: SqliteStore, name: str, changes: int) -> None:
        for number in range(changes):
            durable = number % 4 != 1
            revision = change(store, name, durable=durable)
            self.acknowledgements.tell(**{"safe" if durable else "loose": revision})

    def alone(self) -> None:
        with contextlib.closing(self.open()) as store:
            self.write(store, self.name, self.plan.get("alone", 3))
            if token := store.put_new(
                TOKENS, [(f"{self.name}-{os.urandom(4).hex()}", Part(number=1))]
            ):
                self.acknowledgements.tell(token=token)

    def together(self, store: SqliteStore) -> None:
        changes = self.plan["changes"]
        if self.name == "reader":
            for _ in range(changes):
                self.acknowledgements.tell(safe=look(store))
        elif self.name == "threads":
            share = max(changes // THREADS, 1)
            threads = [
                threading.Thread(target=self.write, args=(store, f"{self.name}{i}", share))
                for i in range(THREADS)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE_S)
        else:
            self.write(store, self.name, changes)


def work(worker: Worker, barrier: Any, lead: bool) -> None:
    PLANTED[worker.plan["planted"]](worker)
    for number in range(worker.plan["rounds"]):
        if lead and number:
            worker.alone()
            worker.alone()
        barrier.wait(PATIENCE_S)
        with contextlib.closing(worker.open()) as store:
            barrier.wait(PATIENCE_S)
            worker.together(store)
        barrier.wait(PATIENCE_S)


# --- bugs to be found ---


def nothing(worker: Worker) -> None:
    """The honest program."""


def lost_sync(worker: Worker) -> None:
    """A durable transaction returns without a sync."""
    database.Database.sync = lambda self, connection: None  # type: ignore[method-assign]


def kept_descriptor(worker: Worker) -> None:
    """The log's descriptor outlives its connection: after the last close it stands for a deleted
    file.
    """
    first: dict[Path, int] = {}
    opened = wal.Log.__init__

    def keep(self: wal.Log, path: Path, access: Access, folder: Folder) -> None:
        opened(self, path, access, folder)
        if path not in first:
            first[path] = os.dup(self._fd)
        os.dup2(first[path], self._fd, inheritable=False)

    wal.Log.__init__ = keep  # type: ignore[method-assign,assignment]


def unsynced_reader(worker: Worker) -> None:
    """A durable transaction that only reads does not sync, though what it saw may be another's
    unsynced commit.
    """
    if worker.name == "reader":
        lost_sync(worker)


def unsynced_names(worker: Worker) -> None:
    """The store's new folder is not synced into the one above it. This one was real."""
    filesystem.sync_names = lambda folder: None  # type: ignore[attr-defined]


PLANTED: dict[str, Callable[[Worker], None]] = {
    plant.__name__: plant
    for plant in (nothing, lost_sync, kept_descriptor, unsynced_reader, unsynced_names)
}


def main(plan: dict[str, Any], root: str, acknowledgements: str) -> None:
    database.CHECKPOINT_FRAMES = plan["checkpoint_frames"]
    context = multiprocessing.get_context("fork")
    names = plan["workers"]
    barrier = context.Barrier(len(names))
    processes = [
        context.Process(
            target=work, args=(Worker(root, acknowledgements, plan, name), barrier, i == 0)
        )
        for i, name in enumerate(names)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if failed := [process.exitcode for process in processes if process.exitcode]:
        raise SystemExit(f"workers ended with {failed}")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2], sys.argv[3])
