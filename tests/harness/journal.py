"""Waiting for an entry of the journal."""

from collections.abc import Callable

from holdfast.kernel.store import Entry
from holdfast.runtime.connection import Holdfast
from tests.harness.timeouts import PATIENCE_S


def until_logged(
    hf: Holdfast, kind: str, wanted: Callable[[Entry], bool] = lambda _: True
) -> Entry:
    """Wait until the journal has an entry of this kind that is wanted, and return it."""
    for batch in hf.log.follow(timeout_s=PATIENCE_S):
        for entry in batch.entries:
            if entry.kind == kind and wanted(entry):
                return entry
    raise AssertionError(f"no such entry of {kind} in the journal")
