"""`make soak`: the command line of the soak."""

import argparse
import contextlib
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from proof.soak.outcome import Outcome, Plan
from proof.soak.supervisor import Supervisor

_SETTINGS = """
[journal]
keep_entries = 100_000_000

[jobs]
keep_finished = 100_000_000

[locks]
standby_after_s = 0.05
"""
"""At the end the soak reads everything that was ever logged or registered, so none of it may be
dropped. Wrappers of commands that run for a second go on standby too.
"""


def soaked(plan: Plan) -> Outcome:
    """Run one soak in a folder of its own, which is kept after a violation."""
    folder = Path(tempfile.mkdtemp(prefix=f"holdfast-soak-{plan.store}-"))
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    (folder / "holdfast.toml").write_text(_SETTINGS)
    with contextlib.chdir(folder):
        outcome = Supervisor(plan, folder).run()
    if outcome.violations:
        print(f"its files are in {folder}", flush=True)
    else:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
    return outcome


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m proof.soak")
    parser.add_argument("--minutes", type=float, default=10.0, help="minutes on each store")
    parser.add_argument(
        "--seed",
        type=int,
        default=None,
        help="the seed of the kills; a random one is chosen and printed",
    )
    parser.add_argument(
        "--store",
        choices=["sqlite", "postgres", "files"],
        action="append",
        help="a store to use; default: sqlite and postgres",
    )
    parser.add_argument(
        "--pause", type=float, default=0.2, help="seconds between two kills or stops, on average"
    )
    parser.add_argument(
        "--share", type=float, default=1.0, help="share of the processes of each part"
    )
    parser.add_argument("--part", action="append", default=[], help="a part to run; default: all")
    parser.add_argument("--plant", default="", help="a bug of proof/bugs.py to plant")
    chosen = parser.parse_args(arguments)
    seed = random.randrange(1_000_000) if chosen.seed is None else chosen.seed
    failed = False
    for store in chosen.store or ["sqlite", "postgres"]:
        parts = tuple(chosen.part)
        outcome = soaked(
            Plan(store, chosen.minutes * 60, seed, chosen.pause, chosen.share, parts, chosen.plant)
        )
        print(outcome, flush=True)
        failed = failed or bool(outcome.violations)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
