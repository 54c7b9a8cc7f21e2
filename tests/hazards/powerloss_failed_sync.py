"""Processes at one store of which the first meets a disk that fails its sync; under strace, with
the root and the acknowledgements as arguments.

One has the store open before that happens, and one opens it after; both go on, and so does the
first.
"""

import contextlib
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

from holdfast.kernel.errors import StoreUnavailable
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.stores.sqlite.wal import log_path
from tests.harness.timeouts import PATIENCE_S
from tests.hazards.powerloss_changes import STORE, Acknowledgements, change, look

CHANGES = 4


def opened(root: str) -> SqliteStore:
    return SqliteStore(Path(root) / STORE, boot_id="before")


def go_on(store: SqliteStore, name: str, acknowledgements: Acknowledgements) -> None:
    for _ in range(CHANGES):
        # Volatile data is there to be lost at any power loss.
        acknowledgements.tell(loose=change(store, name, durable=False))
        acknowledgements.tell(safe=change(store, name, durable=True))
    acknowledgements.tell(safe=look(store))


def other(root: str, log: str, name: str, barrier: Any, *, early: bool) -> None:
    with contextlib.ExitStack() as ended:
        if early:
            store = ended.enter_context(contextlib.closing(opened(root)))
            go_on(store, name, Acknowledgements(log))
        barrier.wait(PATIENCE_S)
        barrier.wait(PATIENCE_S)
        if not early:
            store = ended.enter_context(contextlib.closing(opened(root)))
        go_on(store, name, Acknowledgements(log))
        barrier.wait(PATIENCE_S)


@contextlib.contextmanager
def failing_syncs(root: str) -> Any:
    """The kernel itself refuses each sync of the log, which strace sees: a descriptor that stands
    for a path alone cannot be synced.
    """
    sync = os.fdatasync
    unfit = os.open(log_path(Path(root) / STORE), os.O_PATH)
    os.fdatasync = lambda fd: sync(unfit)
    try:
        yield
    finally:
        os.fdatasync = sync
        os.close(unfit)


def main(root: str, log: str) -> None:
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(3)
    others = [
        context.Process(
            target=other, args=(root, log, name, barrier), kwargs={"early": name == "early"}
        )
        for name in ("early", "late")
    ]
    for process in others:
        process.start()
    acknowledgements = Acknowledgements(log)
    with contextlib.closing(opened(root)) as store:
        go_on(store, "first", acknowledgements)
        barrier.wait(PATIENCE_S)
        with failing_syncs(root), contextlib.suppress(StoreUnavailable):
            change(store, "first", durable=True)
            raise SystemExit("a change was acknowledged whose sync had failed")
        barrier.wait(PATIENCE_S)
        go_on(store, "first", acknowledgements)
        barrier.wait(PATIENCE_S)
    for process in others:
        process.join()
    if failed := [process.exitcode for process in others if process.exitcode]:
        raise SystemExit(f"the others ended with {failed}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
