"""Rewrite the snapshots: `python -m tests.frozen [WORDS]`."""

import os
import sys
from pathlib import Path

import pytest

from tests.frozen.snapshots import REWRITE


def main(words: list[str]) -> int:
    """Make the snapshots that `words` choose, as `pytest -k` does, and write them over the data."""
    os.environ[REWRITE] = "1"
    chosen = ["-k", " ".join(words)] if words else []
    # One after the other: the files store is compared with what was just written for SQLite.
    return pytest.main(["-p", "no:xdist", *chosen, str(Path(__file__).parent)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
