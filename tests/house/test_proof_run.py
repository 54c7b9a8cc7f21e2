"""`python -m proof` tells bad luck from a fault."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.timeouts import PATIENCE_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

UNLUCKY = """
from pathlib import Path

def test_unlucky():
    seen = Path(__file__).with_name("seen")
    if not seen.exists():
        seen.touch()
        SEED, lasts_s = 4711, 2
        raise AssertionError(f"lost the race, seed={SEED}, after {lasts_s} s")

class TestGroup:
    def test_sound(self):
        pass
"""
BROKEN = """
import pytest

class TestGroup:
    @pytest.mark.parametrize("name", ["one", "a b/c"])
    def test_broken(self, name):
        assert name == "one"
"""


def _proved(folder: Path, text: str) -> tuple[int, str]:
    (folder / "test_case.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "proof", "-p", "no:cacheprovider"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    return done.returncode, done.stdout


def test_a_case_that_passes_alone_is_flaky_and_its_seed_is_printed(tmp_path: Path) -> None:
    status, output = _proved(tmp_path, UNLUCKY)
    assert status == 0
    flaky = [line for line in output.splitlines() if line.startswith("FLAKY")]
    assert len(flaky) == 1
    assert "test_case.py::test_unlucky" in flaky[0]
    assert flaky[0].endswith("seed: 4711")


def test_a_case_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    status, output = _proved(tmp_path, BROKEN)
    assert status == 1
    assert "FAILED twice: test_case.py::TestGroup::test_broken[a b/c]" in output
    assert "FLAKY" not in output


def test_many_failures_are_not_tried_again(tmp_path: Path) -> None:
    many = "\n".join(f"def test_{number}(): assert False" for number in range(9))
    status, output = _proved(tmp_path, many)
    assert status == 1
    assert "twice" not in output


def test_a_run_that_cannot_start_keeps_its_status(tmp_path: Path) -> None:
    status, _ = _proved(tmp_path, "this is not python")
    assert status == 2
