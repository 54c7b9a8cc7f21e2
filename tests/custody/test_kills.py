"""Every set of kills among wrapper, guardian and command, with a grandchild that keeps mark and FIFO, one of them, or none."""

from itertools import combinations

import pytest

from tests.custody.trees import KEPT, deaths, fifos, guardian_of, parent, quiet, report
from tests.surfaces.locking import Bench, end, line

pytestmark = pytest.mark.slow

ROLES = ("wrapper", "guardian", "command")
KILLS = [kill for size in range(len(ROLES) + 1) for kill in combinations(ROLES, size)]
# The documented limit: the only two processes that know of such a grandchild are gone, and it lost both signs.
CASES = [
    pytest.param(kills, kept, id=f"{'+'.join(kills) or 'nobody'}-{kept}")
    for kills in KILLS
    for kept in KEPT
    if not (kept == "none" and {"wrapper", "guardian"} <= {*kills})
]


@pytest.mark.parametrize(("kills", "kept"), CASES)
def test_the_next_holder_begins_when_the_last_process_is_gone(bench: Bench, kills: tuple[str, ...], kept: str) -> None:
    first = bench.run("r", "--by", "one", "--", *parent(kept))
    command, grandchild = map(int, line(first).split())
    guardian = guardian_of(first)
    with deaths([first.pid, guardian, command, grandchild]) as (wrapper, guard, head, last):
        second = bench.run("r", "--by", "two", "-q", "--", *report([command, grandchild]))
        bench.waiting("r", "two")
        named = {"wrapper": wrapper, "guardian": guard, "command": head}
        for role in kills:
            named[role].kill()
        if "command" not in kills:
            quiet(first)
            head.wait()
        # The one process that is left keeps the lock: from the one who waits, and from one who comes now.
        assert bench("locks", "run", "-n", "r", "--", "true").status == 5
        assert [hold.by for hold in bench.hf.locks.status("r").holds] == ["one"]
        last.kill()
        assert end(second) == (0, "[]\n", "")
        if "wrapper" not in kills:
            first.wait()
    assert bench.nothing_left()
    bench.hf.processes.trees.sweep(older_than_s=0)
    assert fifos(bench.hf) == []


@pytest.mark.parametrize("kept", KEPT)
def test_leftovers_that_a_killed_guardian_had_are_ended(bench: Bench, kept: str) -> None:
    first = bench.run("r", "--leftovers", "end", "--", *parent(kept))
    command, grandchild = map(int, line(first).split())
    with deaths([guardian_of(first), command, grandchild]) as (guard, head, last):
        guard.kill()
        quiet(first)
        head.wait()
        last.wait()
        first.wait()
    assert bench.nothing_left()
