"""The pages about workflows and swaps say what there is: every state, event, command and bound."""

import re
from pathlib import Path

import pytest

from holdfast.domains.workflows.ports import EVENTS
from holdfast.domains.workflows.records import TRANSITIONS
from holdfast.kernel.limits import SWAP_GRACE_S, SWAP_TIMEOUT_S, WORKFLOW_TTL_S

ROOT = Path(__file__).parents[2]
DOMAIN = ROOT / "src" / "holdfast" / "domains" / "workflows"


def _page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def _section(title: str) -> str:
    found = _page("state_machines.md").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    assert found, f"there is no section {title}"
    return found


def test_every_transition_of_a_request_to_yield_is_drawn() -> None:
    drawn = re.findall(r"^ *(\S+) --> ([^:\s]+)", _section("A request to yield"), re.MULTILINE)
    steps = {
        (before.value, after.value) for before, steps in TRANSITIONS.items() for after in steps
    }
    assert sorted(drawn) == sorted(steps | {("[*]", "none")})


def test_every_journalled_step_is_drawn() -> None:
    documented = {
        kind
        for source in DOMAIN.glob("*.py")
        for kind in re.findall(r'"(workflow\.\w+)"', source.read_text())
    }
    steps = "".join(_section(title) for title in ("A workflow", "A request to yield", "A swap"))
    drawn = {
        kind
        for line in steps.splitlines()
        if "-->" in line
        for kind in re.findall(r"\b(?:swap|workflow)\.\w+", line)
    }
    assert drawn == documented | set(EVENTS)


@pytest.mark.parametrize("title", ["A workflow", "A swap"])
def test_every_state_that_is_reached_ends(title: str) -> None:
    steps = re.findall(r"^ *(\S+) --> ([^:\s]+)", _section(title), re.MULTILINE)
    assert {after for _, after in steps} - {"[*]"} == {before for before, _ in steps} - {"[*]"}


def test_the_guide_shows_every_command_and_no_other() -> None:
    from holdfast.surfaces.cli.swap import swap
    from holdfast.surfaces.cli.workflows import workflows

    page = _page("workflows.md")
    assert set(re.findall(r"holdfast workflows (\w+)", page)) == set(workflows.commands)
    assert set(re.findall(r"holdfast swap (\w+)", page)) == set(swap.commands)


@pytest.mark.parametrize(
    "words",
    [
        f"`--timeout` ({SWAP_TIMEOUT_S:g} s)",
        f"`--grace` ({SWAP_GRACE_S:g} s)",
        f"(`--ttl`, {WORKFLOW_TTL_S:g} s)",
    ],
)
def test_the_bounds_that_the_guide_names_are_those_of_the_program(words: str) -> None:
    assert words in " ".join(_page("workflows.md").split())
