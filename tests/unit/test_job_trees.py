"""Jobs whose workers are process trees: what the reaper does about processes that a dead worker
left. On every store.
"""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.domains.jobs import Job, Jobs, JobStatus, reaper
from holdfast.domains.jobs.event_stream import JobEvents
from holdfast.domains.jobs.events import Event, EventKind, signed
from holdfast.kernel.codec import to_json
from holdfast.kernel.holder import Holder, Liveness, attempt_tree
from holdfast.kernel.limits import TREE_GRACE_S
from holdfast.testing.clock import ManualClock
from tests.harness.machine import Machine, ProcessTable, Trees
from tests.harness.stores import STORES, open_store
from tests.harness.timeouts import NEVER_S, PATIENCE_S
from tests.unit.job_world import LABEL, World

TREE = "0-7-1001-00112233445566ff"


class JobTrees(Trees):
    """The process trees of a machine, each asked to end at most once."""

    def __init__(self, *living: str) -> None:
        super().__init__(*living)
        self.asked_s: dict[str, float | None] = {}
        """How long ago each was probed; None for a tree that cannot be probed."""
        self.killed: list[str] = []
        self.searched: list[str] = []
        """The trees that /proc was searched for."""
        self.immortal = False


def set_when_called(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, called: threading.Event
) -> None:
    real = getattr(owner, name)

    def noting(tree: str) -> Any:
        result = real(tree)
        called.set()
        return result

    monkeypatch.setattr(owner, name, noting)


class JobTable(ProcessTable):
    """The process table of a machine that has process trees too."""

    def __init__(self, machine: Machine, pid: int, trees: JobTrees) -> None:
        super().__init__(machine, pid)
        self.trees = trees

    def tree_liveness(self, tree: str, *, in_sight: bool) -> Liveness:
        self.trees.searched += [tree] if in_sight else []
        return Liveness.ALIVE if self.trees.lives(tree) else Liveness.DEAD

    def watch_tree(self, tree: str) -> int | None:
        return self.trees.watch(tree)

    def terminate_tree(self, tree: str) -> float | None:
        self.trees.asked.append(tree)
        return self.trees.asked_s.setdefault(tree, 0.0)

    def end_tree(self, tree: str, grace_s: float) -> bool:
        self.trees.killed.append(tree)
        if not self.trees.immortal:
            self.trees.end(tree)
        return not self.trees.immortal

    def death(self, holder: Holder) -> int | None:
        first = super().death(holder)
        return (
            self.trees.watch(holder.tree)
            if first is None and holder.tree and holder.place == self.here()
            else first
        )


@pytest.fixture(params=[*STORES, "files"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    clock = ManualClock()
    with closing(open_store(request.param, tmp_path, clock, request)) as store:
        made = World(store, clock)
        yield made
        made.machine.close()


@pytest.fixture
def trees(world: World) -> JobTrees:
    made = JobTrees(TREE)
    world.jobs = registry(world, made)
    return made


def registry(world: World, trees: JobTrees, pid: int = 1, machine: Machine | None = None) -> Jobs:
    place = machine or world.machine
    place.begin(pid)
    return Jobs(world.store, world.journal, JobTable(place, pid, trees))


def orphaned(world: World, **more: Any) -> Job:
    """A job whose worker is dead, and whose tree lives."""
    world.register(**more)
    job = world.pick(replace(world.worker(7), tree=TREE))
    world.machine.end(7)
    return job


def test_the_store_keeps_the_tree_of_a_claim(world: World) -> None:
    world.register()
    holder = replace(world.worker(7), tree=TREE)
    job = world.pick(holder)
    assert world.jobs.get_job(job.job_id).claimed_by == holder
    back = world.jobs.requeue(job.job_id)
    assert world.jobs.get_job(job.job_id).past_attempts[-1].worker == holder
    assert back.claimed_by is None


def test_a_dead_workers_job_is_put_back_when_its_tree_is_gone(
    world: World, trees: JobTrees
) -> None:
    job = orphaned(world)
    assert world.jobs.reap() == []
    assert world.jobs.pick_pending(LABEL) is None
    assert (trees.asked[0], trees.killed) == (TREE, [])
    trees.end(TREE)
    again = world.pick(world.worker(8))
    assert (again.job_id, again.attempt, again.deaths) == (job.job_id, 2, 1)


def test_looking_at_what_is_abandoned_asks_no_tree(world: World, trees: JobTrees) -> None:
    orphaned(world)
    assert world.jobs.abandoned() == []
    assert trees.asked == []


@pytest.mark.parametrize("limits", [{}, {"timeout_sec": 1.0}], ids=["in time", "past its limit"])
def test_after_the_grace_the_tree_is_killed_and_the_job_put_back(
    world: World, trees: JobTrees, limits: dict[str, Any]
) -> None:
    orphaned(world, **limits)
    world.clock.advance(TREE_GRACE_S)
    assert world.jobs.reap() == []
    # As after a time in which nobody looked, or as another process asked.
    trees.asked_s[TREE] = TREE_GRACE_S
    [back] = world.jobs.reap()
    assert (trees.killed, back.status, back.deaths) == ([TREE], JobStatus.PENDING, 1)


def test_a_tree_that_cannot_be_killed_is_left_alone_for_a_while_and_its_job_ends_by_its_limit(
    world: World, trees: JobTrees
) -> None:
    orphaned(world, timeout_sec=60.0)
    trees.immortal = True
    trees.asked_s[TREE] = TREE_GRACE_S
    for _ in range(3):
        assert world.jobs.reap() == []
    # Each try takes seconds, and a busy worker tries every second.
    assert trees.killed == [TREE]
    world.clock.advance(61)
    [ended] = world.jobs.reap()
    assert (ended.status, ended.error_code) == (JobStatus.ERROR, "timed_out")


def test_a_tree_of_another_user_is_ended_by_nobody_and_its_job_by_its_limit(
    world: World, trees: JobTrees
) -> None:
    orphaned(world, timeout_sec=60.0)
    trees.asked_s[TREE] = None
    assert world.jobs.reap() == []
    world.clock.advance(61)
    assert [ended.error_code for ended in world.jobs.reap()] == ["timed_out"]
    assert trees.killed == []


def test_all_jobs_of_a_dead_worker_with_a_tree_are_put_back(
    world: World, trees: JobTrees, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper, "JOBS_OF_WORKERS_READ", 2)
    holder = replace(world.worker(7), tree=TREE)
    ids = {world.register().job_id for _ in range(5)}
    for _ in ids:
        world.pick(holder)
    world.machine.end(7)
    assert world.jobs.reap() == []
    # One check of each, however many jobs there are.
    assert trees.asked == [TREE]
    trees.end(TREE)
    assert {job.job_id for job in world.jobs.reap()} == ids


def test_a_live_worker_keeps_its_job_whatever_becomes_of_its_tree(
    world: World, trees: JobTrees
) -> None:
    world.register()
    world.pick(replace(world.worker(7), tree=TREE))
    trees.end(TREE)
    assert world.jobs.reap() == []
    assert trees.asked == []


def test_only_the_overdue_attempt_of_a_live_worker_is_asked_to_end(
    world: World, trees: JobTrees
) -> None:
    world.register(timeout_sec=10.0)
    job = world.pick(replace(world.worker(7), tree=TREE))
    world.clock.advance(11)
    assert [ended.error_code for ended in world.jobs.reap()] == ["timed_out"]
    assert trees.asked == [attempt_tree(TREE, job.token or 0)]


def test_from_another_machine_the_lease_decides_and_no_tree_is_asked(
    world: World, trees: JobTrees
) -> None:
    far = registry(world, JobTrees(), 3, Machine("host-2"))
    job = orphaned(world)
    assert far.reap() == []
    assert job.lease_s is not None
    world.clock.advance(job.lease_s + 1)
    assert [back.status for back in far.reap()] == [JobStatus.PENDING]
    assert trees.asked == []


@pytest.mark.parametrize("verb", ["cancel", "requeue"])
def test_taking_a_job_from_a_dead_worker_ends_its_tree(
    world: World, trees: JobTrees, verb: str
) -> None:
    job = orphaned(world)
    getattr(world.jobs, verb)(job.job_id)
    assert trees.killed == [TREE]


@pytest.mark.parametrize("verb", ["cancel", "requeue"])
def test_taking_a_job_from_a_live_worker_leaves_its_tree_to_it(
    world: World, trees: JobTrees, verb: str
) -> None:
    world.register()
    job = world.pick(replace(world.worker(7), tree=TREE))
    getattr(world.jobs, verb)(job.job_id)
    assert (trees.asked, trees.killed) == ([], [])


@pytest.mark.usefixtures("no_second_look")
def test_a_waiting_pick_is_woken_by_the_worker_s_death_and_again_by_the_tree_s_end(
    world: World, trees: JobTrees, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.register()
    world.pick(replace(world.worker(7), tree=TREE))
    was_asked = threading.Event()
    set_when_called(monkeypatch, world.jobs._reaper._processes, "terminate_tree", was_asked)
    got: list[Job | None] = []
    waiter = threading.Thread(
        target=lambda: got.append(world.jobs.pick_pending(LABEL, wait_s=NEVER_S)), daemon=True
    )
    waiter.start()
    world.machine.end(7)
    assert was_asked.wait(PATIENCE_S)
    assert got == []
    trees.end(TREE)
    waiter.join(PATIENCE_S)
    assert [job and job.attempt for job in got] == [2]


@pytest.mark.usefixtures("no_second_look")
def test_a_waiting_pick_comes_back_when_the_grace_is_over(world: World, trees: JobTrees) -> None:
    orphaned(world)
    trees.asked_s[TREE] = TREE_GRACE_S - 0.2
    seat = world.jobs._reaper._processes
    ask = seat.terminate_tree

    def later(tree: str) -> float | None:
        seconds = ask(tree)
        trees.asked_s[tree] = TREE_GRACE_S
        return seconds

    seat.terminate_tree = later  # type: ignore[method-assign]
    job = world.jobs.pick_pending(LABEL, wait_s=NEVER_S)
    assert job is not None and job.attempt == 2
    assert trees.killed == [TREE]


# --- earlier attempts whose worker lives ---


def taken_away(world: World, trees: JobTrees, **more: Any) -> tuple[Job, str]:
    """A job that was put back while its worker lives, and the tree of its first attempt, which
    lives too.
    """
    world.register(**more)
    job = world.pick(replace(world.worker(7), tree=TREE))
    tree = attempt_tree(TREE, job.token or 0)
    trees.begin(tree)
    world.jobs.requeue(job.job_id)
    return job, tree


def test_a_pick_passes_over_a_job_until_the_tree_of_its_earlier_attempt_is_gone(
    world: World, trees: JobTrees
) -> None:
    job, tree = taken_away(world, trees)
    assert world.jobs.pick_pending(LABEL) is None
    assert (trees.asked, trees.killed) == ([tree], [])
    other = world.register()
    assert world.pick().job_id == other.job_id
    trees.end(tree)
    again = world.pick()
    assert (again.job_id, again.attempt, again.deaths) == (job.job_id, 2, 0)


def test_a_pick_after_the_grace_kills_the_tree_of_an_earlier_attempt(
    world: World, trees: JobTrees
) -> None:
    job, tree = taken_away(world, trees)
    trees.asked_s[tree] = TREE_GRACE_S
    assert world.pick().job_id == job.job_id
    assert trees.killed == [tree]


def test_a_tree_of_an_earlier_attempt_that_cannot_be_killed_is_tried_now_and_then(
    world: World, trees: JobTrees
) -> None:
    _, tree = taken_away(world, trees)
    trees.immortal = True
    trees.asked_s[tree] = TREE_GRACE_S
    for _ in range(3):
        assert world.jobs.pick_pending(LABEL) is None
    assert trees.killed == [tree]


def test_a_job_that_ends_does_not_bring_its_worker_a_job_whose_earlier_attempt_lives(
    world: World, trees: JobTrees
) -> None:
    first = world.register(priority=1)
    mine = world.pick()
    assert mine.job_id == first.job_id
    job, tree = taken_away(world, trees)
    last = world.register()
    token = mine.token or 0
    finished = world.jobs.finish_and_pick(first.job_id, "completed", token=token)
    assert (finished.done.status, finished.picked and finished.picked.job_id) == (
        JobStatus.COMPLETED,
        last.job_id,
    )
    trees.end(tree)
    finished = world.jobs.finish_and_pick(last.job_id, "completed", token=finished.picked.token)  # type: ignore[union-attr,arg-type]
    assert (finished.picked and finished.picked.job_id) == job.job_id


def test_another_machine_does_not_see_the_tree_of_an_earlier_attempt(
    world: World, trees: JobTrees
) -> None:
    job, _ = taken_away(world, trees)
    far = registry(world, trees, 3, Machine("host-2"))
    picked = far.pick_pending(LABEL)
    assert picked is not None and picked.job_id == job.job_id
    assert trees.asked == []


def test_proc_is_searched_only_for_attempts_that_were_taken_away(
    world: World, trees: JobTrees
) -> None:
    world.register()
    job = world.pick(replace(world.worker(7), tree=TREE))
    world.jobs.update_status(job.job_id, "error", token=job.token)
    world.jobs.retry(job.job_id)
    # Its worker gave the verdict when the tree was gone. If its command did, the FIFO shows that.
    again = world.pick(replace(world.worker(8), tree=TREE))
    assert trees.searched == []
    world.jobs.requeue(again.job_id)
    world.pick()
    assert trees.searched == [attempt_tree(TREE, again.token or 0)]


@pytest.mark.usefixtures("no_second_look")
def test_a_waiting_pick_is_woken_by_the_end_of_an_earlier_attempt(
    world: World, trees: JobTrees, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, tree = taken_away(world, trees)
    was_watched = threading.Event()
    set_when_called(monkeypatch, world.jobs._reaper._processes, "watch_tree", was_watched)
    got: list[Job | None] = []
    waiter = threading.Thread(
        target=lambda: got.append(world.jobs.pick_pending(LABEL, wait_s=NEVER_S)), daemon=True
    )
    waiter.start()
    assert was_watched.wait(PATIENCE_S)
    assert got == []
    trees.end(tree)
    waiter.join(PATIENCE_S)
    assert [one and (one.job_id, one.attempt) for one in got] == [(job.job_id, 2)]


@pytest.mark.parametrize("how", ["publish", "receive"])
def test_an_event_that_cancels_the_job_of_a_dead_worker_ends_its_tree(
    world: World, trees: JobTrees, how: str
) -> None:
    job = orphaned(world)
    events = JobEvents(world.store, world.journal, JobTable(world.machine, 1, trees))
    if how == "publish":
        events.publish(job.job_id, "cancelled")
    else:
        event = Event(
            seq=9, job_id=job.job_id, event=EventKind.CANCELLED, timestamp=world.store.now()
        )
        assert events.receive(to_json(signed(event, job))).news
    assert trees.killed == [TREE]


@pytest.mark.parametrize("kind", ["completed", "error"])
def test_a_command_that_reports_its_own_end_may_finish(
    world: World, trees: JobTrees, kind: str
) -> None:
    job = orphaned(world)
    events = JobEvents(world.store, world.journal, JobTable(world.machine, 1, trees))
    events.publish(job.job_id, kind)
    assert (trees.asked, trees.killed) == ([], [])
