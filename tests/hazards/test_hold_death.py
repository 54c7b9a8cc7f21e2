"""Holders that are killed, stopped or forked: a count is always that of the live holders, and none
leaks.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

import holdfast
from holdfast.kernel.errors import NotFound
from holdfast.kernel.store import Entry
from holdfast.primitives.holds import HOLDS, Holds
from holdfast.runtime.connection import Holdfast
from holdfast.testing import faults
from tests.harness.children import Child
from tests.harness.errors import raises
from tests.harness.stopped_processes import stop_outside
from tests.harness.stores import store_url
from tests.harness.timeouts import PATIENCE_S
from tests.hazards.postgres_sessions import outlived
from tests.unit.hold_world import BRISK_S, names, replay

SUBJECTS = ("s", "t", "u")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.prove)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return store_url(request, tmp_path)


@pytest.fixture
def hf(url: str) -> Iterator[Holdfast]:
    with holdfast.connect(url) as connected:
        yield connected


def take(url: str, *subjects: str, by: str) -> None:
    """Hold some subjects by a connection of this process's own, which is left open."""
    connection = holdfast.connect(url)
    for subject in subjects:
        connection.holds.take(subject, by=by)


def entries_of(hf: Holdfast) -> list[Entry]:
    return [entry for batch in hf.log.since() for entry in batch.entries]


def stored(hf: Holdfast) -> dict[str, set[str]]:
    """Who is in the records, gone or not."""
    rows = hf.store.read(lambda tx: tx.range(HOLDS), scope=[HOLDS])
    return {row.key: {hold.by for hold in row.record.holds} for row in rows}


def test_a_killed_holder_does_not_count_and_is_swept(hf: Holdfast, url: str) -> None:
    child = Child(lambda: take(url, "s", "t", by="child"))
    assert hf.holds.take("s", by="parent") == 2
    assert names(hf.holds, "s") == ["child", "parent"]
    child.kill()
    assert names(hf.holds, "s") == ["parent"]
    assert hf.holds.subjects() == {"s": 1}
    assert hf.holds.sweep() == 2
    assert stored(hf) == {"s": {"parent"}}
    swept = [
        entry.subject
        for entry in entries_of(hf)
        if entry.kind == "hold.swept" and entry.data["by"] == "child"
    ]
    assert swept == ["s", "t"]


def test_a_killed_holder_is_dead_though_nobody_reaped_it(hf: Holdfast, url: str) -> None:
    child = Child(lambda: take(url, "s", by="child"))
    os.kill(child.pid, signal.SIGKILL)
    # A zombie: its parent has not waited for it, but nothing of it runs.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert names(hf.holds) == []
    child.kill()


def test_a_stopped_holder_counts(hf: Holdfast, url: str) -> None:
    child = Child(lambda: take(url, "s", by="child"))
    stop_outside(child.pid, url)
    assert hf.holds.sweep() == 0
    assert names(hf.holds) == ["child"]
    child.kill()
    assert names(hf.holds) == []


@pytest.mark.prove
@pytest.mark.usefixtures("untrimmed")
@pytest.mark.parametrize("verb", ["take", "drop"])
def test_killed_at_every_point_of_a_change(tmp_path: Path, verb: str) -> None:
    """It has happened whole or not at all, and the journal says which."""
    url = f"sqlite:{tmp_path}/store.sqlite"
    with holdfast.connect(url) as hf:
        # The holder is the test, so that a released hold differs from one that died with its holder.
        holder = hf.processes.current()

        def change(connected: Holdfast, by: str, verb: str = verb) -> None:
            if verb == "take":
                connected.holds.take("s", by=by, process=holder)
            else:
                connected.holds.drop("s", by=by)

        change(hf, "first", "take")
        points = faults.recorded(lambda: change(hf, "first"))
        runs = [f"run-{at}" for at in range(len(points))]
        for by in ["last", *(runs if verb == "drop" else [])]:
            change(hf, by, "take")
        for at, by in enumerate(runs):

            def work(by: str = by) -> None:
                with holdfast.connect(url) as mine:
                    change(mine, by)

            reached = _killed(work, at)
            now = stored(hf)["s"]
            changed = (by in now) == (verb == "take")
            assert changed == ("sqlite.commit.after" in reached), (
                f"killed behind {reached}, and not as in {points}"
            )
            assert replay(entries_of(hf)) == {"s": now}
            assert hf.holds.count("s") == len(now)
        assert {
            "sqlite.gate.before",
            "sqlite.write",
            "sqlite.commit.before",
            "sqlite.sync.after",
        } <= set(points)


def _killed(work: Callable[[], None], at: int) -> list[str]:
    """Do it in a child that is killed at this point of it; return the points that it reached."""
    hearing, telling = os.pipe()

    def reached(point: str) -> None:
        os.write(telling, f"{point}\n".encode())

    child = os.fork()
    if child == 0:
        try:
            with faults.armed(
                at=at,
                action=faults.kill,
                passing=reached,
            ):
                work()
        finally:
            os._exit(1)
    os.close(telling)
    with open(hearing) as reported:
        points = reported.read().split()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    return points


def _take_and_drop(task: tuple[str, int, int]) -> dict[str, set[str]]:
    """Take and drop at random; return what is held in the end by each name of this process's."""
    url, seed, turns = task
    dice, mine = Random(seed), {subject: set[str]() for subject in SUBJECTS}
    with holdfast.connect(url) as hf:
        for _ in range(turns):
            subject, by = dice.choice(SUBJECTS), f"run-{seed}-{dice.randrange(2)}"
            if by in mine[subject]:
                hf.holds.drop(subject, by=by)
                mine[subject].remove(by)
            else:
                assert hf.holds.take(subject, by=by, process=None, ttl_s=3600) > len(mine[subject])
                mine[subject].add(by)
    return mine


@pytest.mark.prove
def test_processes_that_take_and_drop_never_make_a_count_wrong(hf: Holdfast, url: str) -> None:
    processes, turns = 4, 60
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        ended = pool.map_async(
            _take_and_drop, [(url, seed, turns) for seed in range(processes)], chunksize=1
        ).get(PATIENCE_S)
    expected = {subject: set().union(*(mine[subject] for mine in ended)) for subject in SUBJECTS}
    entries = entries_of(hf)
    assert len(entries) == processes * turns
    assert (
        replay(entries)
        == stored(hf)
        == {subject: held for subject, held in expected.items() if held}
    )
    assert hf.holds.subjects() == {subject: len(held) for subject, held in expected.items() if held}


@pytest.mark.prove
def test_twenty_holders_killed_at_random_moments_leave_nothing(hf: Holdfast, url: str) -> None:
    """Each takes and drops until it is killed from outside, at whatever instruction that is."""
    for turn in range(10):
        readable, telling = os.pipe()
        children = [_busy(url, f"run-{turn}-{number}", readable, telling) for number in range(2)]
        for _ in range(1 + turn % 4):
            assert os.read(readable, 1)
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        os.close(readable)
        os.close(telling)
        outlived(hf, url)
        assert hf.holds.subjects() == {}
        # Who was killed with a hold is in the record still, and the journal says the same.
        assert replay(entries_of(hf)) == stored(hf)
    left = sum(len(held) for held in stored(hf).values())
    assert hf.holds.sweep() == left
    assert stored(hf) == {}
    assert replay(entries_of(hf)) == {}


def _busy(url: str, by: str, readable: int, telling: int) -> int:
    child = os.fork()
    if child:
        return child
    try:
        # Without a reader, which is the parent alone, it ends.
        os.close(readable)
        dice, mine = Random(by), set[str]()
        connection = holdfast.connect(url)
        while True:
            subject = dice.choice(SUBJECTS)
            if subject in mine:
                connection.holds.drop(subject, by=by)
            else:
                connection.holds.take(subject, by=by)
            mine ^= {subject}
            os.write(telling, b".")
    finally:
        os._exit(1)


# --- fork ---


def test_a_forked_child_holds_for_itself_and_keeps_what_is_its_own(hf: Holdfast) -> None:
    """It inherits an object that believes to keep the parent's holds, and a thread that is not
    there.
    """
    holds = Holds(hf.store, hf.log, hf.processes, lease_s=BRISK_S)
    kept, telling = os.pipe()
    renew = holds._renewer._keeper._renew

    def noted(mine: list) -> list:  # type: ignore[type-arg]
        gone = renew(mine)
        os.write(telling, f"{os.getpid()} {' '.join(sorted(one.by for one in mine))}\n".encode())
        return gone

    holds._renewer._keeper._renew = noted
    holds.take("s", by="parent")
    with open(kept, "rb") as pipe:
        _until_kept(pipe, os.getpid(), "parent")
        child = Child(lambda: holds.take("s", by="child"))
        assert names(holds) == ["parent", "child"]
        _until_kept(pipe, child.pid, "child")
        _until_kept(pipe, os.getpid(), "parent")
        child.kill()
        assert names(holds) == ["parent"]
        # The first that is read now may have been there before the kill.
        for _ in range(2):
            _until_kept(pipe, os.getpid(), "parent")
        holds.close()
        os.close(telling)


def _until_kept(pipe, pid: int, by: str) -> None:  # type: ignore[no-untyped-def]
    """Until the background of a process has kept what that process holds, which must be nothing but
    this.
    """
    while True:
        who, _, what = pipe.readline().decode().strip().partition(" ")
        if int(who) == pid:
            assert what == by
            return


def test_a_child_that_closes_takes_nothing_from_its_parent(hf: Holdfast) -> None:
    hf.holds.take("s", by="parent")
    child = Child(hf.close)
    assert names(hf.holds) == ["parent"]
    child.kill()
    assert names(hf.holds) == ["parent"]
    assert hf.holds.drop("s", by="parent") == 0


def test_a_child_may_drop_what_its_parent_holds_once(hf: Holdfast) -> None:
    """The same name is the same holder."""
    hf.holds.take("s", by="run")
    Child(lambda: hf.holds.drop("s", by="run")).kill()
    assert names(hf.holds) == []
    with raises(NotFound, subject="s", by="run", count=0):
        hf.holds.drop("s", by="run")
