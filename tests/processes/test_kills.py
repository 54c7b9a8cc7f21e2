"""Every set of kills among wrapper, guardian and command, with a grandchild that keeps mark and
FIFO, one of them, or none.
"""

from itertools import combinations

import pytest

from tests.processes.trees import (
    KEPT,
    deaths,
    fifos,
    groups_of,
    guardian_of,
    needs_groups,
    needs_mounts,
    parent,
    quiet,
    report,
    tree_of,
    without_groups,
)
from tests.surfaces.locking import Bench, end, line, put_down

pytestmark = pytest.mark.prove

ROLES = ("wrapper", "guardian", "command")
KILLS = [kill for size in range(len(ROLES) + 1) for kill in combinations(ROLES, size)]
CASES = [
    pytest.param(
        kills,
        kept,
        id=f"{'+'.join(kills) or 'nobody'}-{kept}",
        # The only two processes that know of such a grandchild are gone, and it lost both signs.
        # Its control group is left.
        marks=[needs_groups] if kept == "none" and {"wrapper", "guardian"} <= {*kills} else [],
    )
    for kills in KILLS
    for kept in KEPT
]


@pytest.mark.parametrize(("kills", "kept"), CASES)
def test_the_next_holder_begins_when_the_last_process_is_gone(
    bench: Bench, kills: tuple[str, ...], kept: str
) -> None:
    first = bench.run("r", "--by", "one", "--", *parent(kept))
    command, grandchild = map(int, line(first).split())
    guardian = guardian_of(first)
    with deaths([first.pid, guardian, command, grandchild]) as (wrapper, guard, head, last):
        second = bench.run("r", "--by", "two", "-q", "--", *report([command, grandchild]))
        bench.waiting("r", "two")
        tree = tree_of(bench.hf, "r")
        named = {"wrapper": wrapper, "guardian": guard, "command": head}
        for role in kills:
            named[role].kill()
        if "command" not in kills:
            quiet(first)
            head.wait()
        # The one process that is left keeps the lock: from the one who waits, and from one who
        # comes now.
        assert bench("locks", "run", "-n", "r", "--", "true").status == 5
        assert [hold.by for hold in bench.hf.locks.status("r").holds] == ["one"]
        last.kill()
        assert end(second) == (0, "[]\n", "")
        if "wrapper" not in kills:
            first.wait()
    assert bench.nothing_left()
    bench.hf.processes.trees.sweep(older_than_s=0)
    assert fifos(bench.hf) == [] and groups_of(tree) == []


@pytest.mark.parametrize("kept", KEPT)
def test_leftovers_of_a_killed_guardian_are_ended(bench: Bench, kept: str) -> None:
    first = bench.run("r", "--leftovers", "end", "--", *parent(kept))
    command, grandchild = map(int, line(first).split())
    with deaths([guardian_of(first), command, grandchild]) as (guard, head, last):
        guard.kill()
        quiet(first)
        head.wait()
        last.wait()
        first.wait()
    assert bench.nothing_left()


@needs_mounts
@pytest.mark.parametrize(
    "kills", [kills for kills in KILLS if {"wrapper", "guardian"} <= {*kills}], ids="+".join
)
def test_without_a_control_group_a_survivor_that_lost_both_signs_is_not_found(
    bench: Bench, kills: tuple[str, ...]
) -> None:
    """The documented limit."""
    first = without_groups(bench, "r", "--by", "one", "--", *parent("none"))
    command, grandchild = map(int, line(first).split())
    guardian = guardian_of(first)
    with deaths([first.pid, guardian, command, grandchild]) as (wrapper, guard, head, _):
        assert groups_of(tree_of(bench.hf, "r")) == []
        second = bench.run("r", "--by", "two", "-q", "--", *report([command, grandchild]))
        bench.waiting("r", "two")
        wrapper.kill()
        guard.kill()
        if "command" in kills:
            head.kill()
        else:
            quiet(first)
        assert end(second) == (0, f"[{grandchild}]\n", "")
    put_down(first)
