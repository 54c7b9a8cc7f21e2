"""The store chapter: a writer that is killed in a transaction, the journal, a restore."""

import os
import signal
import tempfile
import time
from pathlib import Path

from holdfast.domains.jobs.records import JOBS
from holdfast.kernel.settings import Settings
from holdfast.runtime.maintenance import Upkeep
from holdfast.surfaces.cli.tour.steps import Tour

_UNFINISHED = """
import sys, signal, holdfast
from holdfast.domains.jobs.records import JOBS
hf = holdfast.connect(sys.argv[1])
def delete_all(tx):
    for row in tx.range(JOBS):
        tx.delete(JOBS, row.key)
    tx.append(actor="tour", kind="tour.destroyed", subject="everything")
    print("inside", flush=True)
    signal.pause()
hf.store.transact(delete_all, scope=[JOBS])
"""


def store_chapter(tour: Tour) -> None:
    _kill(tour)
    _journal(tour)
    _restore(tour)


def _kill(tour: Tour) -> None:
    before = len(tour.hf.jobs.list_jobs())
    tour.say(
        "a process deletes every job in one transaction, and is killed with -9 before it commits"
    )
    writer = tour.start_script(_UNFINISHED)
    inside = tour.line(writer) == "inside"
    began_s = time.monotonic()
    os.kill(writer.pid, signal.SIGKILL)
    count = tour.hf.store.transact(lambda tx: tx.count(JOBS), scope=[JOBS])
    waited_ms = (time.monotonic() - began_s) * 1000
    tour.outcome(writer)
    tour.check(inside and count == before, f"all {before} jobs are there, and none is damaged")
    tour.check(
        waited_ms < 5000,
        f"the next writer got in {waited_ms:.0f} ms after the kill: a dead process blocks nobody",
    )


def _journal(tour: Tour) -> None:
    entries, _ = tour.hf.log.tail(1000)
    tour.check(
        all(entry.kind != "tour.destroyed" for entry in entries),
        "the journal has no entry for what was not committed",
    )
    # Those of locks are numbered apart, in the file that ends with the boot.
    of_locks = [entry.revision for entry in entries if entry.kind.startswith("lock.")]
    others = [entry.revision for entry in entries if not entry.kind.startswith("lock.")]
    tour.check(
        all(found == sorted(set(found)) for found in (of_locks, others)),
        f"its {len(entries)} entries show every change, in order (`holdfast log`)",
    )


def _restore(tour: Tour) -> None:
    upkeep, jobs = Upkeep(Settings(store=tour.url)), tour.hf.jobs
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "backup.sqlite"
        upkeep.backup(saved)
        lost = jobs.register_job("after the backup", agent="a", agent_session="tmux:late")
        tour.say("the store is backed up, used, and restored from the backup while it is open")
        upkeep.restore(saved)
    again = jobs.register_job("after the restore", agent="a", agent_session="tmux:late")
    tour.check(
        again.arrival > lost.arrival,
        "numbers given out after the backup are never given out again: a new era began",
    )
    tour.check(upkeep.check() == [], "`holdfast store check` finds no damage")
