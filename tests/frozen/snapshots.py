"""Compares the output with the snapshots in `data/`, or rewrites them."""

import os
from collections.abc import Mapping
from difflib import unified_diff
from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"
REWRITE = "FROZEN_REWRITE"
"""Set by `python -m tests.frozen`: snapshots are written instead of compared."""


def frozen(name: str) -> str:
    """Return a snapshot, or an empty text if there is none."""
    path = DATA / name
    return path.read_text() if path.exists() else ""


def check(made: Mapping[str, str], *, folder: str | None = None) -> None:
    """Compare texts with the snapshots of the same names; write them when they are to be rewritten.

    Every snapshot in `folder` must have been made. Fails the test with a unified diff of all
    that differ.
    """
    stale = (
        {str(path.relative_to(DATA)) for path in (DATA / folder).glob("*")} - set(made)
        if folder
        else set()
    )
    if REWRITE in os.environ:
        for name in stale:
            (DATA / name).unlink()
        for name, text in made.items():
            path = DATA / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return
    whole = {**made, **dict.fromkeys(stale, "")}
    diffs = [_diff(name, text) for name, text in sorted(whole.items())]
    said = "\n".join(diff for diff in diffs if diff)
    if said:
        # The diff is the message; a traceback through this module would only bury it.
        pytest.fail(f"what users see has changed; `make frozen` accepts it:\n{said}", pytrace=False)


def _diff(name: str, text: str) -> str:
    before, after = frozen(name).splitlines(), text.splitlines()
    shown = f"tests/frozen/data/{name}"
    return "\n".join(unified_diff(before, after, shown, f"{shown} (now)", lineterm=""))
