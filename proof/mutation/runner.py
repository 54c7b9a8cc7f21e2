"""Break each rule of the kernel and the primitives, one at a time, and check that a test fails.

    python -m proof.mutation                 run all mutants; write docs/mutation.md
    python -m proof.mutation --left          run those that are not on that page, and its survivors
    python -m proof.mutation --only lease    run those with that text in their rule or file
    python -m proof.mutation --list          break nothing: list the mutants, and check their texts

Each mutant is made in a copy of the project. The tests nearest to it run until the first failure.
A mutant without a failure is a survivor, and the exit status is 1. The exit status is 2, and no
mutant runs, if the text of a mutant is not in its file exactly once, or if a test fails in a copy
without a mutant.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from proof.mutation import MUTANTS, TESTS, Mutant

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "mutation.md"
_COPIED = (
    "src",
    "tests",
    "proof",
    "tools",
    "docs",
    "bench",
    "pyproject.toml",
    "Makefile",
    "README.md",
    "CHANGELOG.md",
)
_TIMEOUT_S = 1200.0
_SOONEST_FIRST = ("not postgres and not sqlite", "sqlite and not postgres")
"""Most rules fail soonest on the store in memory. Those about processes need a store that processes
share.
"""
_NO_TESTS = 5
"""pytest's exit status when it selected no test."""


class Outcome(NamedTuple):
    """The result of a mutant: `noticed` is the test that failed, "" for a survivor."""

    mutant: Mutant
    noticed: str
    took_s: float


def nearest(mutant: Mutant) -> Sequence[str]:
    """The tests that must fail for it, the nearest first."""
    return TESTS[mutant.file]


def broken(mutant: Mutant, code: str) -> str:
    """The code with its rule broken. Raises ValueError unless its text occurs exactly once."""
    exact = re.escape(mutant.text)
    found = list(re.finditer(exact if mutant.text in code else _pattern(mutant.text), code))
    if len(found) != 1:
        raise ValueError(
            f"{mutant.rule}: its text is {len(found)} times in {mutant.file}, not once"
        )
    return code[: found[0].start()] + mutant.instead + code[found[0].end() :]


def _pattern(text: str) -> str:
    """Match a mutant's text wherever the formatter broke its lines."""
    out = []
    for part in re.split(r"(\s+|[()\[\]{}])", text):
        if part.isspace():
            out.append(r"\s+")
        elif part and part in "([{":
            out.append(re.escape(part) + r"\s*")
        elif part and part in ")]}":
            out.append(r",?\s*" + re.escape(part))
        else:
            out.append(re.escape(part))
    return "".join(out)


def unmakeable(mutants: Sequence[Mutant]) -> list[str]:
    """The mutants that cannot be made, each with the reason."""
    reported = []
    for mutant in mutants:
        try:
            broken(mutant, (ROOT / "src" / "holdfast" / mutant.file).read_text(encoding="utf-8"))
        except (ValueError, FileNotFoundError) as error:
            reported.append(str(error))
    return reported


def failing(
    mutants: Sequence[Mutant], free: "SimpleQueue[Path]", pool: ThreadPoolExecutor
) -> list[str]:
    """The tests nearest to some mutants that fail without a mutant."""
    tests = sorted({test for mutant in mutants for test in nearest(mutant)})
    return [failed for failed in pool.map(lambda test: _unbroken(test, free), tests) if failed]


def _unbroken(test: str, free: "SimpleQueue[Path]") -> str:
    copy = free.get()
    try:
        return next(filter(None, (_noticed(copy, test, which) for which in _SOONEST_FIRST)), "")
    finally:
        free.put(copy)


@contextmanager
def copies(number: int) -> Iterator["SimpleQueue[Path]"]:
    """Yield `number` copies of the project."""
    with tempfile.TemporaryDirectory(prefix="holdfast-mutants-") as folder:
        free: SimpleQueue[Path] = SimpleQueue()
        for at in range(number):
            copy = Path(folder) / str(at)
            copy.mkdir()
            for name in _COPIED:
                source = ROOT / name
                leave = shutil.ignore_patterns("__pycache__")
                shutil.copytree(
                    source, copy / name, ignore=leave
                ) if source.is_dir() else shutil.copy(source, copy / name)
            free.put(copy)
        yield free


def tried(mutant: Mutant, free: "SimpleQueue[Path]") -> Outcome:
    """Make a mutant in a copy, and run its tests in it."""
    copy = free.get()
    path = copy / "src" / "holdfast" / mutant.file
    code = path.read_text(encoding="utf-8")
    began_s = time.monotonic()
    try:
        _write(path, broken(mutant, code))
        tests = nearest(mutant)
        noticed = next(
            filter(
                None, (_noticed(copy, test, which) for which in _SOONEST_FIRST for test in tests)
            ),
            "",
        )
    finally:
        _write(path, code)
        free.put(copy)
    return Outcome(mutant, noticed, time.monotonic() - began_s)


def _write(path: Path, code: str) -> None:
    path.write_text(code, encoding="utf-8")
    # Python compares a compiled file by time and size, and two mutants may have the same of both.
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()


def _noticed(copy: Path, test: str, which: str) -> str:
    """The first test of a file that fails, of those that `which` selects; "" when all pass."""
    # Loading unneeded plugins takes longer than most of these tests.
    more = ["-x", "-q", "-p", "pytest_timeout", "--timeout=180", "-k", which]
    command = [sys.executable, "-m", "pytest", *more, test]
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy / "src"),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    try:
        ran = subprocess.run(
            command,
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{test}: did not end"
    if ran.returncode in (0, _NO_TESTS):
        return ""
    failed = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if failed:
        return failed[0].split(" ", 1)[1].split(" - ")[0]
    return f"{test}: {(ran.stdout + ran.stderr).strip().splitlines()[-1][:80]}"


def known() -> dict[str, str]:
    """The results on docs/mutation.md: of each rule the test that failed, "" for a survivor."""
    if not PAGE.exists():
        return {}
    rows = [
        line.split(" | ")
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ")
    ]
    return {
        row[0].removeprefix("| "): "" if "**" in row[2] else row[2].removesuffix(" |").strip("`")
        for row in rows[2:]
    }


def page(noticed: Mapping[str, str]) -> str:
    """The text of docs/mutation.md, from the test that failed for each rule."""
    tried_ones = [one for one in MUTANTS if one.rule in noticed]
    survived = sum(not noticed[one.rule] for one in tried_ones)
    lines = [
        "# Mutation",
        "",
        "Each row is a rule of the kernel or the primitives. `make mutate` breaks it in a copy of",
        "the project, runs the tests nearest to it, and writes down the first that fails.",
        "",
        f"{len(tried_ones)} rules were broken: a test failed for {len(tried_ones) - survived}, and "
        f"{survived} survived.",
        "",
        "| rule | file | first test that fails |",
        "| --- | --- | --- |",
    ]
    for mutant in tried_ones:
        by = f"`{noticed[mutant.rule]}`" if noticed[mutant.rule] else "**nothing**"
        lines.append(f"| {mutant.rule} | `{mutant.file}` | {by} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m proof.mutation")
    parser.add_argument(
        "--only", default="", help="run the mutants with this text in their rule or file"
    )
    parser.add_argument(
        "--left", action="store_true", help="run those that are not on the page, and its survivors"
    )
    parser.add_argument("--jobs", type=int, default=2, help="how many run at once")
    parser.add_argument("--list", action="store_true", help="list the mutants, and run none")
    chosen = parser.parse_args(arguments)
    noticed = known() if chosen.only or chosen.left else {}
    mutants = [one for one in MUTANTS if chosen.only in f"{one.rule} {one.file}"]
    mutants = [one for one in mutants if not (chosen.left and noticed.get(one.rule))]
    if chosen.list:
        print("\n".join(f"{one.file}: {one.rule}" for one in mutants))
    if lost := unmakeable(mutants):
        print("\n".join(["these cannot be made:", *lost]))
        return 2
    return 0 if chosen.list else _all_tried(mutants, noticed, chosen.jobs)


def _all_tried(mutants: Sequence[Mutant], noticed: dict[str, str], jobs: int) -> int:
    survived = 0
    with copies(jobs) as free, ThreadPoolExecutor(jobs) as pool:
        if failed := failing(mutants, free, pool):
            print("\n".join(["these fail without a mutant:", *failed]))
            return 2
        for done in as_completed([pool.submit(tried, mutant, free) for mutant in mutants]):
            outcome = done.result()
            print(
                f"{outcome.took_s:6.1f} s  {outcome.mutant.rule}: {outcome.noticed or 'SURVIVED'}",
                flush=True,
            )
            noticed[outcome.mutant.rule] = outcome.noticed.removeprefix("tests/").replace("|", "/")
            survived += not outcome.noticed
            PAGE.write_text(page(noticed), encoding="utf-8")
    print(f"{len(mutants)} rules were broken, {survived} survived")
    return 1 if survived else 0
