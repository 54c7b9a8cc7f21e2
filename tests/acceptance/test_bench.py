"""The benchmark still runs: one short round of the families that need only Holdfast. The figures
are not judged here.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.timeouts import PATIENCE_S

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.prove
@pytest.mark.parametrize(
    "family",
    [
        *("agents", "cold", "durable", "read", "threads", "volatile", "fairness"),
        *("scale-agents", "scale-http", "scale-jobs", "scale-journal", "scale-locks"),
    ],
)
def test_a_short_round_gives_results(family: str) -> None:
    """An agents' row broke with a constructor that had changed, and nothing noticed before the next
    whole run.
    """
    words = [sys.executable, "-m", "bench", "--only", family, "--quick"]
    done = subprocess.run(
        words, cwd=CHECKOUT, capture_output=True, text=True, timeout=5 * PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "holdfast" in done.stdout.lower() and "is left as it is" in done.stdout
