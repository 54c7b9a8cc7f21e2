"""Starting cold: the cost of a script that calls the command line in a loop."""

import os
import sys
import time
from pathlib import Path

from bench import work
from bench.measure import Contender, Lab, Sample, ratio
from bench.report import Row, Verdict
from holdfast.domains.jobs.records import JOBS
from holdfast.kernel.space import rows

NAME = "cold"

_REPETITIONS = 40
_QUICK_REPETITIONS = 5


def measure(lab: Lab) -> list[Row]:
    repetitions = _QUICK_REPETITIONS if lab.quick else _REPETITIONS
    with lab.folder() as folder:
        store = work.open_store(folder)
        for number in range(repetitions + 1):
            store.transact(work.change(f"job-{number}"), scope=[rows(JOBS)], durable=False)
        store.close()
        contenders = _contenders(folder)
        # The first turn fills the caches of the file system, and is not kept.
        lab.interleave(contenders, rounds=1, shared=folder)
        series = lab.interleave(contenders, rounds=repetitions, shared=folder)
    picked, version, _, bare = series
    took = ratio(picked, bare, lambda sample: sample.p50_s)
    shown = ratio(version, bare, lambda sample: sample.p50_s)
    return [
        Row(
            name="cold",
            title="Cold start",
            says="From the start to the end of the process, with the same interpreter, "
            f"{repetitions} times each in turn. `jobs pick` durably claims a pending job of an "
            "existing store each time. The libraries that it needs are shown for comparison.",
            series=series,
            verdicts=[
                Verdict(
                    "time, `holdfast jobs pick` to `python -c pass`",
                    "at most 5 (aim 4)",
                    took,
                    took.median <= 5,
                ),
                Verdict("time, `holdfast --version` to `python -c pass`", "", shown, None),
            ],
            kind="time",
        )
    ]


def _contenders(folder: Path) -> list[Contender]:
    program = str(Path(sys.executable).with_name("holdfast"))
    pick = [
        program,
        "jobs",
        "pick",
        "--queue",
        work.SESSION,
        "--store",
        f"sqlite:{folder / work.STORE}",
    ]
    return [
        _contender("holdfast jobs pick", pick, durability=work.FULL),
        _contender("holdfast --version", [program, "--version"]),
        _contender(
            "python -c 'import sqlite3, msgspec'", [sys.executable, "-c", "import sqlite3, msgspec"]
        ),
        _contender("python -c pass", [sys.executable, "-c", "pass"], limit=True),
    ]


def _contender(
    name: str, command: list[str], *, durability: str = "", limit: bool = False
) -> Contender:
    return Contender(name, durability, lambda _: timed(command), limit)


def clean_environment() -> dict[str, str]:
    """As installed for use: with compiled files, and without the caller's settings for Python."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def timed(command: list[str]) -> Sample:
    """The time of a command from its start to its end. Raises RuntimeError if it fails."""
    quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    before = time.perf_counter()
    pid = os.posix_spawn(command[0], command, clean_environment(), file_actions=quiet)
    _, status = os.waitpid(pid, 0)
    took = time.perf_counter() - before
    if status:
        raise RuntimeError(f"{command[0]} ended with {os.waitstatus_to_exitcode(status)}")
    return Sample(rate=1 / took, p50_s=took, worst_s=took, share=1.0)
