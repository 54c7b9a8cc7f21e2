"""The history of a queue through a power loss: what is found after it must follow from what was
answered before it.
"""

import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.stores.sqlite.store import SqliteStore
from proof.crowd.calls import seen_in
from proof.histories import FifoSpecification, Operation, check
from proof.histories.recorder import parsed
from proof.powerloss import Report, Verdict, examine, record, why_not
from tests.harness.requirements import skip_or_fail
from tests.hazards.powerloss_queue import QUEUE, STORE, queue_in

pytestmark = pytest.mark.prove

SEED = int(os.environ.get("HOLDFAST_POWERLOSS_SEED", "20261"))


class HistoryCheck:
    """Checks the queue as after a reboot: do the calls and answers before explain its state?"""

    def __call__(self, root: Path, acknowledged: Sequence[bytes], rng: random.Random) -> Verdict:
        before = parsed(line for message in acknowledged for line in message.splitlines())
        with contextlib.closing(SqliteStore(root / STORE, boot_id="after")) as store:
            seen = seen_in(queue_in(store))
        last = max((max(one.begin, 0.0 if one.pending else one.end) for one in before), default=0.0)
        look = Operation("look", "after", "look", (QUEUE,), {}, last + 1, last + 2, seen)
        return Verdict(
            check([*before, look], FifoSpecification()).wrong,
            ["something waits"] if seen["waiting"] else [],
        )


def examined(folder: Path, planted: str, *, states: int) -> Report:
    if reason := why_not():
        skip_or_fail(reason)
    plan = {"planted": planted, "seed": SEED, "changes": 8, "processes": 3}
    try:
        command = [sys.executable, "-m", "tests.hazards.powerloss_queue", json.dumps(plan)]
        recording = record(command, folder=folder)
    except subprocess.CalledProcessError as error:
        pytest.fail(f"the workload failed:\n{error.stderr}")
    report = examine(
        recording.trace(mapped=["-shm", ".sqlite-gate"]), HistoryCheck(), states=states, seed=SEED
    )
    print(report.summary())
    return report


def test_what_is_found_after_a_power_loss_follows_from_what_was_answered_before(
    tmp_path: Path,
) -> None:
    report = examined(tmp_path, "nothing", states=200)
    assert not report.failures, report.summary()
    assert report.lossy > 50
    assert report.seen["something waits"] > 20


def test_a_lost_sync_is_found(tmp_path: Path) -> None:
    report = examined(tmp_path, "lost_sync", states=100)
    assert any(
        "no order of the operations" in wrong
        for failure in report.failures
        for wrong in failure.wrong
    )
