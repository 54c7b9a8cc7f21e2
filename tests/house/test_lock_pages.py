"""The pages about locks and holds say what there is: every state, command and setting."""

import re
from pathlib import Path

import pytest
from msgspec.structs import fields

from holdfast.kernel.limits import (
    BACKFILL_MAX,
    LABEL_CHARS_MAX,
    LOCK_LEASE_S,
    LOCK_NAMES_MAX,
    LOCK_PRIORITY_AGE_S,
    LOCK_TIMEOUT_S,
)
from holdfast.kernel.settings import LockSettings
from holdfast.primitives.locks.records import WaitOutcome

ROOT = Path(__file__).parents[2]
PRIMITIVES = ROOT / "src" / "holdfast" / "primitives"


def _page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def _section(title: str) -> str:
    found = _page("state_machines.md").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    assert found, f"there is no section {title}"
    return found


@pytest.mark.parametrize(
    ("sections", "sources", "prefix"),
    [
        (["A request for locks", "A grant"], sorted((PRIMITIVES / "locks").glob("*.py")), "lock"),
        (["A counted hold"], [PRIMITIVES / "holds.py"], "hold"),
    ],
    ids=["locks", "holds"],
)
def test_every_journalled_step_is_drawn(
    sections: list[str], sources: list[Path], prefix: str
) -> None:
    documented = {
        kind for source in sources for kind in re.findall(rf'"({prefix}\.\w+)"', source.read_text())
    }
    steps = [
        line for section in sections for line in _section(section).splitlines() if "-->" in line
    ]
    assert {
        kind
        for line in steps
        for kind in re.findall(rf"\b{prefix}\.\w+", line)
        if kind != "locks.journal"
    } == documented


def test_every_outcome_that_waits_to_be_read_is_named() -> None:
    section = _section("A request for locks")
    assert [outcome.value for outcome in WaitOutcome if f"`{outcome.value}`" not in section] == []


def test_every_state_that_is_reached_ends() -> None:
    for title in ("A request for locks", "A grant", "A counted hold"):
        steps = re.findall(r"^ *(\S+) --> ([^:\s]+)", _section(title), re.MULTILINE)
        assert {after for _, after in steps} - {"[*]"} == {before for before, _ in steps} - {
            "[*]"
        }, title


def test_the_guide_shows_every_command_and_no_other() -> None:
    from holdfast.surfaces.cli.locks import locks

    assert set(re.findall(r"holdfast locks (\w+)", _page("locks.md"))) == set(locks.commands)


def test_every_setting_of_locks_is_explained() -> None:
    pages = _page("settings.md"), _page("locks.md")
    for field in fields(LockSettings):
        assert f"`locks.{field.name}`" in pages[0]
        assert f"\n{field.name} = " in pages[1].partition("[locks]")[2]


@pytest.mark.parametrize(
    "words",
    [
        f"up to {LABEL_CHARS_MAX} characters",
        f"A set may have {LOCK_NAMES_MAX} names",
        f"up to {LOCK_TIMEOUT_S:g} seconds",
        f"{LOCK_LEASE_S:g} s after their last sign of life",
        {10: "ten seconds of waiting"}[int(LOCK_PRIORITY_AGE_S)],
        {4: "at most four times"}[BACKFILL_MAX],
    ],
)
def test_the_bounds_that_the_guide_names_are_those_of_the_program(words: str) -> None:
    assert words in " ".join(_page("locks.md").split())
