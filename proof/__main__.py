"""`make prove`: run what is long or statistical, and tell bad luck from a fault.

    python -m proof [pytest's arguments]

A case that fails is run once more, alone. If it passes then, it is printed as FLAKY with the seed
that its report names, and the run goes on: luck neither blocks a change nor stays hidden. A case
that fails twice fails the run. So does a run with many failures, which luck does not explain.

To repeat what failed:

    python -m proof -m '' 'tests/hazards/test_soak.py::CASE'    one case, by its node id
    python -m proof.soak --store sqlite --seed 4711              a soak, with the seed that it printed
    python -m proof.mutation --only 'RULE'                       a rule, broken again
"""

import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

RERUN_MAX = 8
"""More failures than this are not bad luck."""
_SEED = re.compile(r"\bseed\W{1,3}(\d\w*)", re.IGNORECASE)


class Failure(NamedTuple):
    """A failed case: its node id, and the report of its failure."""

    case: str
    report: str

    @property
    def seed(self) -> str:
        found = _SEED.search(self.report)
        return found[1] if found else "none named"


def main(arguments: Sequence[str]) -> int:
    """Run pytest with the arguments and return an exit status."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "report.xml")
        report = ["-o", "junit_family=xunit1", f"--junitxml={path}"]
        status = subprocess.call([sys.executable, "-m", "pytest", *report, *arguments])
        if status != 1:
            return status
        failures = failures_in(path)
    if not 0 < len(failures) <= RERUN_MAX:
        return status
    failed = [one for one in failures if not _passes_alone(one)]
    for one in failed:
        print(f"FAILED twice: {one.case}")
    return 1 if failed else 0


def failures_in(path: Path) -> list[Failure]:
    """The failed cases that a JUnit report names."""
    found = []
    for case in ET.parse(path).iter("testcase"):
        reports = [*case.findall("failure"), *case.findall("error")]
        if reports:
            report = "".join(one.text or "" for one in reports)
            found.append(Failure(_node_id(case), report))
    return found


def _node_id(case: ET.Element) -> str:
    """The node id of a case: xunit1 names its file, and classes follow the module's dotted name."""
    file, name = case.get("file", ""), case.get("name", "")
    module = file.removesuffix(".py").replace("/", ".")
    classes = case.get("classname", "").removeprefix(module).strip(".")
    return "::".join([file, *classes.split(".")] if classes else [file]) + f"::{name}"


def _passes_alone(failure: Failure) -> bool:
    command = [sys.executable, "-m", "pytest", "-n", "0", "-m", "", failure.case]
    if subprocess.call(command) != 0:
        return False
    print(f"FLAKY: {failure.case} failed once and passed alone; seed: {failure.seed}")
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
