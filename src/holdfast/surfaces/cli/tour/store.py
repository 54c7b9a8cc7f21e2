"""The store chapter."""

import os
import signal
import tempfile
import time
from pathlib import Path

from holdfast.domains.jobs.records import JOBS
from holdfast.kernel.settings import Settings
from holdfast.kernel.store import Tx
from holdfast.runtime.maintenance import Upkeep
from holdfast.surfaces.cli.tour.stage import Stage

_HALF_WAY = """
import sys, signal, holdfast
from holdfast.domains.jobs.records import JOBS
hf = holdfast.connect(sys.argv[1])
def half_way(tx):
    for row in tx.range(JOBS):
        tx.delete(JOBS, row.key)
    tx.append(actor="tour", kind="tour.destroyed", subject="everything")
    print("inside", flush=True)
    signal.pause()
hf.store.transact(half_way, scope=[JOBS])
"""


def store_chapter(stage: Stage) -> None:
    """A writer killed half-way; what the journal tells; a restore."""
    _kill_half_way(stage)
    _journal(stage)
    _restore(stage)


def _kill_half_way(stage: Stage) -> None:
    before = stage.hf.jobs.list_jobs()
    stage.say(
        "a process deletes every job, all in one transaction, and is killed with -9 before it "
        "commits"
    )
    writer = stage.start_script(_HALF_WAY)
    inside = stage.line(writer) == "inside"
    began = time.monotonic()
    os.kill(writer.pid, signal.SIGKILL)

    def look(tx: Tx) -> int:
        return tx.count(JOBS)

    count = stage.hf.store.transact(look, scope=[JOBS])
    waited_ms = (time.monotonic() - began) * 1000
    stage.outcome(writer)
    stage.holds(
        inside and count == len(before), f"all {len(before)} jobs are there, none half-deleted"
    )
    stage.holds(
        waited_ms < 5000,
        f"the next writer was in {waited_ms:.0f} ms after the kill: the dead hold nothing up",
    )


def _journal(stage: Stage) -> None:
    entries, _ = stage.hf.log.tail(1000)
    stage.holds(
        all(entry.kind != "tour.destroyed" for entry in entries),
        "the journal does not tell of what did not happen",
    )
    # Those of locks are in the file that ends with the boot, and numbered there.
    lasting = [entry.revision for entry in entries if not entry.kind.startswith("lock.")]
    passing = [entry.revision for entry in entries if entry.kind.startswith("lock.")]
    stage.holds(
        all(told == sorted(set(told)) for told in (lasting, passing)),
        f"its {len(entries)} entries tell of every change, in order (`holdfast log`)",
    )


def _restore(stage: Stage) -> None:
    upkeep = Upkeep(Settings(store=stage.url))
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "backup.sqlite"
        upkeep.backup(saved)
        lost = stage.hf.jobs.register_job("after the backup", agent="a", agent_session="tmux:late")
        stage.say(
            "the store is backed up, used, and then restored from the backup, all while it is open"
        )
        upkeep.restore(saved)
    again = stage.hf.jobs.register_job("after the restore", agent="a", agent_session="tmux:late")
    stage.holds(
        again.arrival > lost.arrival,
        "numbers given out after the backup are never given again: a new era began",
    )
    stage.holds(upkeep.check() == [], "`holdfast store check` finds the store sound")
