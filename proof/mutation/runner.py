"""Break each rule of kernel and primitives, one at a time, and see that the suite notices.

    python -m proof.mutation                 all mutants; writes docs/mutation.md
    python -m proof.mutation --left          those that are not on that page yet, and its survivors
    python -m proof.mutation --only lease    those whose rule or file has that in it; writes their rows anew
    python -m proof.mutation --list          breaks nothing: tells what would be tried, and what cannot be made any more

Each mutant is made in a copy of the project, and the tests nearest to it are run until the first
that fails. One that nothing notices is a survivor: the exit status is then 1. Before any is tried
each must be one that can be made, and the tests must pass in a copy with nothing broken, for else
they would notice everything: the exit status is then 2.
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
"""A rule is the same on every store, and in memory it is tried soonest; what is about processes
shows on a store they share.
"""
_NONE_MEANT = 5
"""pytest's exit status when it was left no test to run."""


class Outcome(NamedTuple):
    """What became of a mutant: `noticed` names the test that failed; "" is a survivor."""

    mutant: Mutant
    noticed: str
    took_s: float


def nearest(mutant: Mutant) -> Sequence[str]:
    """The tests that must notice it, the nearest first."""
    return TESTS[mutant.file]


def broken(mutant: Mutant, code: str) -> str:
    """The code with its rule broken. Raises ValueError unless the text is there once."""
    exact = re.escape(mutant.text)
    found = list(re.finditer(exact if mutant.text in code else _pattern(mutant.text), code))
    if len(found) != 1:
        raise ValueError(
            f"{mutant.rule}: its text is {len(found)} times in {mutant.file}, and must be once"
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
    """Why some of them cannot be made: their text is not there, or not once."""
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
    """The tests nearest to some mutants that fail with nothing broken."""
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
    """So many copies of the project."""
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
    """Make a mutant in a copy, and run its tests there."""
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
    # Python knows a compiled file by time and size, and two mutants may have the same of both.
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()


def _noticed(copy: Path, test: str, which: str) -> str:
    """The first test of a file that fails, of those that are meant; "" when all pass."""
    # Plugins that are not needed cost more than most of these tests.
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
        return f"{test}: it never ended"
    if ran.returncode in (0, _NONE_MEANT):
        return ""
    failed = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if failed:
        return failed[0].split(" ", 1)[1].split(" - ")[0]
    return f"{test}: {(ran.stdout + ran.stderr).strip().splitlines()[-1][:80]}"


def known() -> dict[str, str]:
    """What docs/mutation.md says of each rule already: the test that noticed, "" for a survivor."""
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
    """docs/mutation.md, by what noticed each rule's breaking."""
    tried_ones = [one for one in MUTANTS if one.rule in noticed]
    survived = sum(not noticed[one.rule] for one in tried_ones)
    lines = [
        "# Mutation",
        "",
        "Each rule of kernel and primitives, broken on purpose, and the first test that noticed. "
        "Written by `make mutate`,",
        "which makes each change of `proof/mutation` in a copy of the project, runs the tests "
        "nearest to it but for those on",
        "SQLite and PostgreSQL, and stops at the first failure. A rule that nothing notices is a "
        "survivor.",
        "",
        f"{len(tried_ones)} rules broken, {len(tried_ones) - survived} noticed, {survived} "
        "survived.",
        "",
        "| rule | where | noticed by |",
        "| --- | --- | --- |",
    ]
    for mutant in tried_ones:
        by = f"`{noticed[mutant.rule]}`" if noticed[mutant.rule] else "**nothing**"
        lines.append(f"| {mutant.rule} | `{mutant.file}` | {by} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m proof.mutation")
    parser.add_argument(
        "--only", default="", help="of the rules and files, those with this in them"
    )
    parser.add_argument(
        "--left", action="store_true", help="those that the page has not yet, and its survivors"
    )
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    parser.add_argument(
        "--list", action="store_true", help="tell what would be tried, and try nothing"
    )
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
            print("\n".join(["these fail with nothing broken:", *failed]))
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
    print(f"{len(mutants)} rules broken, {survived} survived")
    return 1 if survived else 0
