"""`python -m bench [--only NAME] [--quick] [--rounds N] [--table FILE]`: measure, print the verdicts,
write docs/benchmarks.md. `--again TABLE` writes the page of an earlier run from its table.

Ends with 0 whether or not a target is reached: a figure of one machine is never a test. Ends with 1
if a row could not be measured.
"""

import argparse
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from bench import (
    environment,
    machine,
    measure,
    report,
    results,
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
    rows_scale_agents,
    rows_scale_http,
    rows_scale_jobs,
    rows_scale_journal,
    rows_scale_locks,
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
    rows_scale_agents,
    rows_scale_http,
    rows_scale_jobs,
    rows_scale_journal,
    rows_scale_locks,
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
    if options.again:
        report.write(
            results.read(options.again), page=options.page, folder=options.page.parent / "pictures"
        )
        return
    environment.restart_clean(sys.argv[1:])
    environment.compile_bytecode()
    root = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=_CHECKOUT))
    try:
        run = _run(options, root)
    finally:
        shutil.rmtree(root)
    print("\n".join(report.lines(run)))
    if options.table:
        results.write(run, options.table)
    if options.page:
        report.write(run, page=options.page, folder=options.page.parent / "pictures")
        print(f"wrote {options.page}")
    else:
        print("docs/benchmarks.md is left as it is: only a whole run writes it")
    sys.exit(1 if run.failures else 0)


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
        "--rounds",
        type=int,
        default=None,
        help=f"rounds of each contender (default {measure.ROUNDS}, and up to "
        f"{measure.MOST_ROUNDS} for a row whose judged ratio spreads widely)",
    )
    parser.add_argument("--table", type=Path, help="also write every figure here, as JSON")
    parser.add_argument(
        "--page",
        type=Path,
        default=None,
        help="write this page, and its pictures beside it (default: docs/benchmarks.md, if the run "
        "is whole)",
    )
    parser.add_argument(
        "--again",
        type=Path,
        metavar="TABLE",
        help="write the page from this table; measure nothing",
    )
    parser.add_argument("--cleared", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if not (options.page or options.quick or options.only):
        options.page = _CHECKOUT / "docs" / "benchmarks.md"
    return options


def _run(options: argparse.Namespace, root: Path) -> report.Run:
    begun = time.monotonic()
    rounds = options.rounds or (1 if options.quick else measure.ROUNDS)
    most = rounds if options.rounds or options.quick else measure.MOST_ROUNDS
    lab = Lab(root, rounds=rounds, most_rounds=most, quick=options.quick)
    facts = machine.facts(lab, cleared=options.cleared)
    rows: list[report.Row] = []
    took_s: dict[str, float] = {}
    for name in options.only or FAMILIES:
        before = time.monotonic()
        for family in lab.rows({name: partial(FAMILIES[name], lab)}):
            rows += family
        took_s[name] = time.monotonic() - before
    total_s = time.monotonic() - begun
    return report.Run(rows, facts, took_s, total_s, lab.failures, rounds=rounds, most_rounds=most)


if __name__ == "__main__":
    main()
