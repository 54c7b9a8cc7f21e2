"""Each promise and each hazard names tests that exist, and no test of a hazard is left out."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TESTS = ROOT / "tests"
FILES = {str(path.relative_to(TESTS)) for path in TESTS.rglob("test_*.py")}


def rows(page: str) -> list[str]:
    """The rows of a page's tables, but for their heads."""
    lines = (ROOT / "docs" / page).read_text().splitlines()
    heads = {at - 1 for at, line in enumerate(lines) if line.startswith("| ---")}
    return [
        line
        for at, line in enumerate(lines)
        if line.startswith("| ") and at not in heads and "| ---" not in line
    ]


def named(row: str) -> list[str]:
    return re.findall(r"`((?:\w+/)?test_\w+\.py)`", row)


@pytest.mark.parametrize("page", ["guarantees.md", "hazards.md"])
def test_every_test_that_is_named_exists(page: str) -> None:
    short = {Path(name).name for name in FILES}
    missing = [
        name
        for row in rows(page)
        for name in named(row)
        if name not in (FILES if "/" in name else short)
    ]
    assert missing == []


@pytest.mark.parametrize("page", ["guarantees.md", "hazards.md"])
def test_every_row_names_what_holds_it(page: str) -> None:
    assert [
        row
        for row in rows(page)
        if not named(row) and "conformance" not in row and "make " not in row
    ] == []


def test_every_test_of_a_hazard_is_in_the_table() -> None:
    documented = {Path(name).name for row in rows("hazards.md") for name in named(row)}
    hazards = {Path(name).name for name in FILES if name.startswith("hazards/")}
    # The tests of the simulator itself belong to no hazard.
    assert hazards - documented == {"test_power_loss_model.py"}


def test_no_section_appears_twice() -> None:
    for page in ("guarantees.md", "hazards.md"):
        titles = re.findall(r"^## (.*)$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
        assert len(titles) == len(set(titles)), page
