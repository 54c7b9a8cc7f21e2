"""`python -m bench [--only NAME] [--quick] [--rounds N]`: measure, print the verdicts, write
docs/benchmarks.md.

Ends with 0 whether or not a target is reached: a figure of one machine is never a test.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path

from bench import (
    machine,
    report,
    rows_agents,
    rows_cold,
    rows_custody,
    rows_durable,
    rows_fairness,
    rows_gateway,
    rows_locks,
    rows_locks_crowd,
    rows_locks_killed,
    rows_network,
    rows_postgres,
    rows_queue,
    rows_read,
    rows_scale_jobs,
    rows_threads,
    rows_volatile,
)
from bench.measure import Lab

_ROWS = (
    rows_locks,
    rows_locks_crowd,
    rows_locks_killed,
    rows_network,
    rows_durable,
    rows_fairness,
    rows_queue,
    rows_volatile,
    rows_read,
    rows_scale_jobs,
    rows_threads,
    rows_agents,
    rows_postgres,
    rows_gateway,
    rows_cold,
    rows_custody,
)
FAMILIES = {family.NAME: family.measure for family in _ROWS}

_CHECKOUT = Path(__file__).resolve().parent.parent
_TEMPORARY = ".bench-tmp-"
"""On the file system of the checkout: in a temporary folder in memory every sync would be free.
Each run has a folder of its own, as another run may just be ending.
"""


def main() -> None:
    """Run the benchmark."""
    options = _parse()
    root = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=_CHECKOUT))
    try:
        rows, facts = _measure(options, Lab(root, rounds=options.rounds, quick=options.quick))
    finally:
        shutil.rmtree(root)
    print("\n".join(report.lines(rows)))
    if options.quick or options.only:
        print("docs/benchmarks.md is left as it is: only a whole run writes it")
        return
    docs = _CHECKOUT / "docs"
    report.write(
        rows, facts, rounds=options.rounds, page=docs / "benchmarks.md", folder=docs / "pictures"
    )
    print("wrote docs/benchmarks.md")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--only",
        choices=FAMILIES,
        action="append",
        help="measure this family alone; may be repeated",
    )
    parser.add_argument(
        "--quick", action="store_true", help="a smoke test: one short round, nothing written"
    )
    parser.add_argument(
        "--rounds", type=int, default=None, help="rounds of each contender (default 5)"
    )
    options = parser.parse_args()
    if options.rounds is None:
        options.rounds = 1 if options.quick else 5
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


def _measure(options: argparse.Namespace, lab: Lab) -> tuple[list[report.Row], dict[str, str]]:
    facts = machine.facts(lab)
    rows: list[report.Row] = []
    for name in options.only or FAMILIES:
        before = time.monotonic()
        rows += FAMILIES[name](lab)
        print(f"{name}: {time.monotonic() - before:.0f} s", flush=True)
    return rows, facts


if __name__ == "__main__":
    main()
