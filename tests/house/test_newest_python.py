"""Which Python `make test-newest` takes: the newest that runs, found by its name on the PATH or
through pyenv.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.timeouts import PATIENCE_S
from tools import newest_python


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder that is the whole PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def program(path: Path, *lines: str) -> Path:
    """A script of the shell, with nothing of the PATH."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(0o755)
    return path


def newest(programs: Path) -> "subprocess.CompletedProcess[str]":
    """Look for one where only these programs are."""
    return subprocess.run(
        [sys.executable, newest_python.__file__],
        env={**os.environ, "PATH": str(programs)},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )


def test_without_a_newer_one_it_says_what_is_skipped(programs: Path) -> None:
    program(programs / "python3.2", 'echo "2.9 $0"')
    done = newest(programs)
    assert done.stdout == ""
    assert (
        f"no Python newer than 3.{sys.version_info.minor}" in done.stderr
        and "skipped" in done.stderr
    )


def test_a_name_that_does_not_run_is_not_taken(programs: Path) -> None:
    # As pyenv's own programs do for a version that is not active.
    program(programs / "python3.98", 'echo "98.0 $0"', "exit 127")
    runs = program(programs / "python3.97", 'echo "97.1 $0"')
    assert newest(programs).stdout == f"{runs}\n"


def test_versions_are_compared_as_numbers(programs: Path) -> None:
    program(programs / "python3.99", 'echo "99.9 $0"')
    runs = program(programs / "python3.100", 'echo "100.0 $0"')
    program(programs / "python3.101", "true")  # not released: the probe prints nothing
    assert newest(programs).stdout == f"{runs}\n"


def test_what_pyenv_has_installed_is_asked_of_pyenv(programs: Path, tmp_path: Path) -> None:
    installed = tmp_path / "elsewhere"
    program(
        programs / "pyenv",
        'case $1 in versions) printf "%s\\n" 2.7.18 3.96.1 3.96.2 3.99.0t 3.99.0rc1 venv ;; *)',
        f'echo "{installed}/$2" ;; esac',
    )
    for version in ("3.96.1", "3.96.2", "3.99.0t", "3.99.0rc1"):
        program(
            installed / version / "bin" / "python", f'echo "{version.removeprefix("3.")[:4]} $0"'
        )
    assert newest(programs).stdout == f"{installed}/3.96.2/bin/python\n"


def test_an_interpreter_is_taken_only_with_the_modules_that_holdfast_needs() -> None:
    major, minor, micro, *_ = sys.version_info
    assert probe() == f"{minor}.{micro} {sys.executable}\n" and major == 3
    # As a Python that was built without SQLite.
    assert probe("import sys; sys.modules['_sqlite3'] = None\n") == ""


def probe(before: str = "") -> str:
    """What a real interpreter prints of itself."""
    return subprocess.run(
        [sys.executable, "-c", before + newest_python.PROBE],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    ).stdout
