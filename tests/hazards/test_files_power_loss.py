"""The files store through power losses: nothing acknowledged is lost, no file is torn, and what
would lose it is found.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.stores.files.store import FilesStore
from holdfast.stores.files.transaction import scope_of
from proof.powerloss import Report, Trace, examine, why_not
from tests.harness.requirements import skip_or_fail
from tests.hazards.powerloss_files import STATE, FilesCheck, lay_out, take_back
from tests.hazards.powerloss_recording import SEED, recorded

WORKERS = ["one", "two", "threads", "reader"]
STATES = int(os.environ.get("HOLDFAST_POWERLOSS_STATES", "3000")) // 5


@pytest.fixture(scope="module", autouse=True)
def _ready() -> Iterator[None]:
    if reason := why_not():
        skip_or_fail(reason)
    lay_out()
    scope_of.cache_clear()
    yield
    take_back()
    scope_of.cache_clear()


def run(folder: Path, planted: str, *, rounds: int, changes: int) -> tuple[Trace, FilesCheck]:
    plan = {
        "planted": planted,
        "rounds": rounds,
        "changes": changes,
        "checkpoint_frames": 200,
        "workers": WORKERS,
    }
    recording = recorded("tests.hazards.powerloss_files", folder, json.dumps(plan))
    trace = recording.trace(mapped=["-shm", ".sqlite-gate"])
    with contextlib.closing(FilesStore(recording.root / STATE, boot_id="end")) as store:
        return trace, FilesCheck.of(store)


def lost(report: Report) -> list[str]:
    return [wrong for failure in report.failures for wrong in failure.wrong]


@pytest.mark.prove
def test_what_was_acknowledged_survives_a_power_loss_at_any_instant(tmp_path: Path) -> None:
    trace, check = run(tmp_path, "nothing", rounds=2, changes=8)
    report = examine(trace, check, states=STATES, seed=SEED)
    print(report.summary())
    assert not report.failures, f"{report.summary()}\nrecorded in {tmp_path}"
    assert report.lossy > STATES // 2
    assert report.torn > STATES // 20
    assert report.unnamed > STATES // 20
    assert report.seen["used"] > STATES // 10


@pytest.mark.prove
@pytest.mark.parametrize("planted", ["lost_file_sync", "lost_folder_sync", "lost_sync"])
def test_a_planted_bug_is_found(planted: str, tmp_path: Path) -> None:
    trace, check = run(tmp_path, planted, rounds=2, changes=8)
    report = examine(trace, check, states=300, seed=SEED)
    print(report.summary())
    assert lost(report), f"{planted} was not found: {report.summary()}"
