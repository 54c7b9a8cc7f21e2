"""Workloads recorded for the simulation of a power loss."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.stores.sqlite.store import SqliteStore
from proof.powerloss import Recording, Trace, record
from tests.hazards.powerloss_changes import STORE, StoreCheck

WORKERS = ["one", "two", "three", "threads", "reader"]
SEED = int(os.environ.get("HOLDFAST_POWERLOSS_SEED", "20261"))


def run(
    folder: Path, planted: str, *, rounds: int, changes: int, alone: int = 3
) -> tuple[Trace, StoreCheck]:
    counts = {"rounds": rounds, "changes": changes, "alone": alone, "checkpoint_frames": 50}
    plan = {"planted": planted, "workers": WORKERS, **counts}
    recording = recorded("tests.hazards.powerloss_workload", folder, json.dumps(plan))
    trace = recording.trace(mapped=["-shm", ".sqlite-gate"])
    with contextlib.closing(SqliteStore(recording.root / STORE, boot_id="end")) as store:
        return trace, StoreCheck.of(store)


def recorded(module: str, folder: Path, *plan: str) -> Recording:
    try:
        return record([sys.executable, "-m", module, *plan], folder=folder)
    except subprocess.CalledProcessError as error:
        pytest.fail(f"the workload failed:\n{error.stderr}")
