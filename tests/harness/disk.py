"""A small file system for tests."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[Path]:
    """Mount a tmpfs in a new folder for the block. Skips the test where the user may not mount."""
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", ",".join(options), "none", str(folder)]
    if subprocess.run(words, capture_output=True, check=False).returncode != 0:
        pytest.skip("cannot mount a tmpfs here: be root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
