"""The sqlite store through power losses: nothing acknowledged is lost, and what would lose it is
found.
"""

import contextlib
import os
from collections import Counter
from pathlib import Path

import pytest

from holdfast.stores.sqlite.store import SqliteStore
from proof.powerloss import Report, Trace, examine, why_not
from proof.powerloss.operations import Acknowledged, Named, Synced, SyncFailed, Written
from tests.harness.requirements import skip_or_fail
from tests.hazards.powerloss_changes import STORE, StoreCheck
from tests.hazards.powerloss_recording import SEED, recorded, run

STATES = int(os.environ.get("HOLDFAST_POWERLOSS_STATES", "3000"))
LOG = f"{STORE}-wal"


@pytest.fixture(scope="module", autouse=True)
def _tracer() -> None:
    if reason := why_not():
        skip_or_fail(reason)


def assert_meets_every_danger(trace: Trace) -> None:
    """A run that never reset a log, deleted one or shared a sync would prove nothing."""
    logs = {number for number, name in trace.names.items() if name == LOG}
    written = [op for op in trace.operations if isinstance(op, Written)]
    beginnings = Counter(op.file for op in written if op.file in logs and op.offset == 0)
    assert len(beginnings) >= 4, "the log was not made anew by those who came after the last close"
    assert sum(times - 1 for times in beginnings.values()) >= 5, (
        "the log was not begun anew in place"
    )
    removed = [
        op
        for op in trace.operations
        if isinstance(op, Named)
        for entry in op.entries
        if (entry.name, entry.item) == (Path(LOG).name, None)
    ]
    assert len(removed) >= 3, "the last close did not delete the log"
    database = next(number for number, name in trace.names.items() if name == str(STORE))
    assert sum(isinstance(op, Synced) and op.item == database for op in trace.operations) >= 5, (
        "no checkpoints"
    )
    assert len({op.pid for op in written if op.file in logs}) >= 6, (
        "too few processes and threads wrote"
    )
    assert shared_syncs(trace, logs) >= 3, "no sync covered another's commit"
    assert overlaps(trace) >= 20, "the processes did not run at once"


def shared_syncs(trace: Trace, logs: set[int]) -> int:
    """Syncs that made another's writes last."""
    shared = 0
    since: set[int] = set()
    for op in trace.operations:
        if isinstance(op, Written) and op.file in logs:
            since.add(op.pid)
        elif isinstance(op, Synced) and op.item in logs:
            shared += bool(since - {op.pid})
            since.clear()
    return shared


def overlaps(trace: Trace) -> int:
    return sum(op.begun != op.done for op in trace.operations)


def lost(report: Report) -> list[str]:
    return [
        wrong
        for failure in report.failures
        for wrong in failure.wrong
        if "acknowledged changes are lost" in wrong
    ]


@pytest.mark.prove
def test_what_was_acknowledged_survives_a_power_loss_at_any_instant(tmp_path: Path) -> None:
    # A process that is alone for so many changes resets its log twice; with several it is a matter
    # of luck.
    trace, check = run(tmp_path, "nothing", rounds=4, changes=24, alone=18)
    assert_meets_every_danger(trace)
    report = examine(trace, check, states=STATES, seed=SEED)
    print(report.summary())
    assert not report.failures, f"{report.summary()}\nrecorded in {tmp_path}"
    assert report.states == STATES
    assert report.lossy > STATES // 2
    assert report.torn > STATES // 10
    assert report.unnamed > STATES // 10
    assert report.seen["lost an unacknowledged change"] > STATES // 200
    assert report.seen["integrity checked"] > STATES // 20
    assert report.seen["used"] > STATES // 20


def test_a_short_run_survives_too(tmp_path: Path) -> None:
    """The quick one: the same with fewer changes and states."""
    trace, check = run(tmp_path, "nothing", rounds=2, changes=12)
    report = examine(trace, check, states=300, seed=SEED)
    assert not report.failures, f"{report.summary()}\nrecorded in {tmp_path}"
    assert report.lossy > 100


@pytest.mark.prove
@pytest.mark.parametrize(
    "planted", ["lost_sync", "kept_descriptor", "unsynced_reader", "unsynced_names"]
)
def test_a_planted_bug_is_found(planted: str, tmp_path: Path) -> None:
    trace, check = run(tmp_path, planted, rounds=3, changes=24)
    assert any(isinstance(op, Acknowledged) for op in trace.operations)
    report = examine(trace, check, states=500, seed=SEED)
    print(report.summary())
    assert lost(report), f"{planted} was not found: {report.summary()}"


def test_what_is_acknowledged_after_a_failed_sync_survives_a_power_loss(tmp_path: Path) -> None:
    """It lay in the log behind what the failed sync had not put on disk, where nobody would have
    found it.
    """
    recording = recorded("tests.hazards.powerloss_failed_sync", tmp_path)
    trace = recording.trace(mapped=["-shm", ".sqlite-gate"])
    assert sum(isinstance(op, SyncFailed) for op in trace.operations) == 1
    with contextlib.closing(SqliteStore(recording.root / STORE, boot_id="end")) as store:
        check = StoreCheck.of(store)
    report = examine(trace, check, states=300, seed=SEED)
    assert not report.failures, f"{report.summary()}\nrecorded in {tmp_path}"
    assert report.lossy > 100


def test_a_failure_is_built_again_from_its_seed(tmp_path: Path) -> None:
    trace, check = run(tmp_path, "lost_sync", rounds=1, changes=9)
    report = examine(trace, check, states=200, seed=SEED, jobs=2)
    assert report.failures
    again = examine(
        trace,
        check,
        states=200,
        seed=SEED,
        only=[failure.state for failure in report.failures],
        jobs=1,
    )
    assert again.failures == report.failures
    assert f"seed {SEED}" in report.summary()
