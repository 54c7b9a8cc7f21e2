"""Starting cold: the cost of a script that calls the command line in a loop."""

import os
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import count, repeat
from pathlib import Path

import holdfast
from bench import rows_agents, work
from bench.measure import Contender, Lab, Sample, find, ratio
from bench.report import Row, Verdict
from holdfast.domains.jobs.records import JOBS
from holdfast.kernel.space import rows

NAME = "cold"

_REPETITIONS = 40
_QUICK_REPETITIONS = 3

_BARE = "python -c pass"
_STARTS = "python -c that starts `true`"
_FLOCK = "flock(1), and starts `true`"
_AT_MOST = {
    "holdfast jobs pick": 4,
    "holdfast jobs status": 5,
    "holdfast locks run": 5,
    "holdfast locks acquire": 5,
    "holdfast agents resolve": 5,
}
"""Times the cost of a bare interpreter."""
_SPAWN = "import os; os.waitpid(os.posix_spawn('/bin/true', ['true'], os.environ), 0)"
_FINISHED = "finished"
"""The queue of the jobs that `jobs status` completes."""


def measure(lab: Lab) -> list[Row]:
    repetitions = _QUICK_REPETITIONS if lab.quick else _REPETITIONS
    with lab.folder() as folder:
        running = _fill(folder, repetitions + 1)
        contenders = [_contender(name, words) for name, words in _commands(folder, running).items()]
        # The first turn fills the caches of the file system, and is not kept.
        lab.interleave(contenders, rounds=1, shared=folder)
        series = lab.interleave(contenders, rounds=repetitions, shared=folder)
    bare, starts = find(series, _BARE), find(series, _STARTS)
    assert bare is not None
    assert starts is not None
    verdicts = []
    for one in series:
        if one.contender.name.startswith("holdfast"):
            took = ratio(one, bare, lambda sample: sample.p50_s)
            most = _AT_MOST.get(one.contender.name)
            verdicts.append(
                Verdict(
                    "time, command to `python -c pass`",
                    f"at most {most}" if most else "",
                    took,
                    took.median <= most if most else None,
                    _MODULES,
                    variant=f"`{one.contender.name}`",
                )
            )
    ran = find(series, "holdfast locks run")
    assert ran is not None
    verdicts.append(
        Verdict(
            "time, `holdfast locks run` to a bare interpreter that starts `true` too",
            "",
            ratio(ran, starts, lambda sample: sample.p50_s),
            None,
        )
    )
    return [
        Row(
            name="cold",
            title="Cold start",
            says="From the start to the end of the process, with the same interpreter, "
            f"{repetitions} times each in turn, on an existing store. `jobs pick` durably claims a "
            "pending job, `jobs status` completes a running one, `locks acquire` takes a free lock "
            "for a process, `agents resolve` finds a live agent. `locks run NAME -- true` takes a "
            "free lock, starts `true`, waits for its end and releases: its time includes that of "
            "`true`. flock(1) is a small program in C with one system call. The libraries that "
            "most commands need are shown for comparison.",
            series=series,
            verdicts=verdicts,
            kind="time",
        )
    ]


_MODULES = (
    "An interpreter that imports sqlite3 and msgspec alone takes more than half of it; the rest is "
    "loading the command's own modules, opening the store, and the work itself."
)


def _fill(folder: Path, count_of_each: int) -> list[str]:
    """A store with pending jobs, an agent, and jobs that run: the ids of those."""
    url = work.url_of(folder)
    with holdfast.connect(url) as hf:
        for number in range(count_of_each):
            pending = work.change(f"job-{number}")
            hf.store.transact(pending, scope=[rows(JOBS)], durable=False)
        running = []
        for _ in range(count_of_each):
            hf.jobs.register_job(work.PROMPT, agent="claude", agent_session=_FINISHED)
            picked = hf.jobs.pick_pending(_FINISHED)
            assert picked is not None
            running.append(picked.job_id)
        rows_agents.put(hf.store, [rows_agents.agent(0)])
    return running


def _commands(folder: Path, running: list[str]) -> Mapping[str, Iterator[list[str]]]:
    """The command lines of each contender, one for each turn."""
    program = str(Path(sys.executable).with_name("holdfast"))
    store = ["--store", work.url_of(folder)]
    python = [sys.executable, "-c"]

    def ours(*words: str) -> list[str]:
        return [program, *words]

    return {
        "holdfast jobs pick": repeat(ours("jobs", "pick", "--queue", work.SESSION, *store)),
        "holdfast jobs status": (
            ours("jobs", "status", "--job", job, "--set", "completed", *store) for job in running
        ),
        "holdfast locks run": repeat(
            ours("locks", "run", "--quiet", *store, "one", "--", "/bin/true")
        ),
        "holdfast locks acquire": (
            ours("locks", "acquire", f"n-{number}", "--by", "me", "--pid", str(os.getpid()), *store)
            for number in count()
        ),
        "holdfast agents resolve": repeat(
            ours("agents", "resolve", rows_agents.agent(0).agent_name, *store)
        ),
        "holdfast --version": repeat(ours("--version")),
        "python -c 'import sqlite3, msgspec'": repeat([*python, "import sqlite3, msgspec"]),
        _FLOCK: repeat(["/usr/bin/flock", str(folder / "file"), "/bin/true"]),
        _STARTS: repeat([*python, _SPAWN]),
        _BARE: repeat([*python, "pass"]),
    }


_LASTING = {"holdfast jobs pick": work.FULL, "holdfast jobs status": work.FULL}


def _contender(name: str, words: Iterator[list[str]]) -> Contender:
    limit = name in (_BARE, _STARTS, _FLOCK)
    return Contender(name, _LASTING.get(name, ""), lambda _: timed(next(words)), limit)


def timed(command: list[str]) -> Sample:
    """The time of a command from its start to its end. Raises RuntimeError if it fails."""
    quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    before = time.perf_counter()
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=quiet)
    _, status = os.waitpid(pid, 0)
    took = time.perf_counter() - before
    if status:
        ended = os.waitstatus_to_exitcode(status)
        raise RuntimeError(f"{' '.join(command)} ended with {ended}")
    return Sample(rate=1 / took, p50_s=took, worst_s=took, share=1.0)
