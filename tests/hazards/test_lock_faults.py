"""kill -9 at every fault point of the locks: nothing is stuck, nothing is held twice, and the table
drains. Each step runs in a process that is killed at its first fault point, then in one that is
killed at its second, and so on until one finishes. Then others must be able to continue.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.timeouts import PATIENCE_S
from tests.hazards.lock_processes import Crowd, Granted, Process, crowd_on

pytestmark = pytest.mark.prove

POINTS_MAX = 200


@pytest.fixture
def crowd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Crowd]:
    with crowd_on("sqlite", tmp_path, request) as made:
        yield made


class Step:
    """One step, done by a victim that is to be killed at its point number `at`. Others than the
    victim live.
    """

    def __init__(self, crowd: Crowd, folder: Path, at: int, others: list[Process]) -> None:
        self.crowd = crowd
        self.at = at
        self.victim = crowd.process()
        self.victim.connect()
        self.others = others
        self._folder = folder

    def killed(self, call: str, *arguments: object, **more: object) -> bool:
        """Let the victim make a call; False when it got through."""
        self.victim.arm(self.at)
        self.victim.begin(call, *arguments, **more)
        return self.victim.was_killed()

    def get(self, process: Process, names: list[str], by: str) -> Granted:
        """Another takes the names, alone."""
        granted: Granted = process.acquire(names, by=by, timeout_s=PATIENCE_S)
        self.alone(process, granted)
        return granted

    def alone(self, process: Process, granted: Granted) -> None:
        """A grant has one holder, by the kernel's own locks."""
        process.witness(self._folder, granted.names)

    def let_go(self, process: Process, granted: Granted) -> None:
        process.unwitness()
        assert process.release(granted.key)


def at_every_point(crowd: Crowd, folder: Path, others: int, step: Callable[[Step], bool]) -> int:
    """Do a step until nobody is killed in it; return how many points it had."""
    processes = crowd.processes(others)
    for at in range(POINTS_MAX):
        doing = Step(crowd, folder, at, processes)
        killed = step(doing)
        doing.victim.end()
        # The next process clears what the dead left, if that is in its way.
        last = doing.get(processes[0], ["a", "b"], "last")
        doing.let_go(processes[0], last)
        assert crowd.rows() == [], f"killed at point {at}"
        if not killed:
            return at
    raise AssertionError(f"more than {POINTS_MAX} points")


def test_taking_and_releasing_a_free_name(crowd: Crowd, tmp_path: Path) -> None:
    assert (
        at_every_point(crowd, tmp_path, 1, lambda step: step.killed("use", ["a", "b"], by="victim"))
        >= 6
    )


def test_taking_what_was_contended_before(crowd: Crowd, tmp_path: Path) -> None:
    """Not in the one statement, but in a transaction."""

    def step(doing: Step) -> bool:
        (other,) = doing.others
        held = other.acquire(["a", "b"], by="other")
        doing.victim.line_up("a", by="victim")
        assert other.release(held.key)
        granted = doing.victim.result()
        assert doing.victim.release(granted.key)
        return doing.killed("use", ["a", "b"], by="victim")

    assert at_every_point(crowd, tmp_path, 1, step) >= 6


def test_asking_waiting_and_giving_up(crowd: Crowd, tmp_path: Path) -> None:
    def step(doing: Step) -> bool:
        holder, waiter = doing.others
        held = doing.get(holder, ["a"], "holder")
        killed = doing.killed("acquire_and_run_out", ["a", "b"], by="victim")
        waiter.line_up(["b", "a"], by="waiter")
        doing.let_go(holder, held)
        granted = waiter.result()
        doing.alone(waiter, granted)
        doing.let_go(waiter, granted)
        return killed

    assert at_every_point(crowd, tmp_path, 2, step) >= 20


def test_asking_and_being_interrupted(crowd: Crowd, tmp_path: Path) -> None:
    def step(doing: Step) -> bool:
        (holder,) = doing.others
        held = doing.get(holder, ["b"], "holder")
        killed = doing.killed("acquire_and_give_up", ["a", "b"], by="victim")
        doing.let_go(holder, held)
        return killed

    assert at_every_point(crowd, tmp_path, 1, step) >= 20


def test_handing_over(crowd: Crowd, tmp_path: Path) -> None:
    """The holder is killed at each point of its release, with two in line for it."""

    def step(doing: Step) -> bool:
        one, two = doing.others
        held = doing.victim.acquire(["a", "b"], by="victim")
        one.line_up("a", by="one")
        two.line_up(["a", "b"], by="two")
        killed = doing.killed("release", held.key)
        granted = one.result()
        doing.alone(one, granted)
        doing.let_go(one, granted)
        granted = two.result()
        doing.alone(two, granted)
        doing.let_go(two, granted)
        return killed

    assert at_every_point(crowd, tmp_path, 2, step) >= 8


def test_releasing_a_part(crowd: Crowd, tmp_path: Path) -> None:
    def step(doing: Step) -> bool:
        one, two = doing.others
        doing.victim.acquire(["a", "b"], by="victim")
        one.line_up("a", by="one")
        two.line_up("b", by="two")
        killed = doing.killed("free", "a", by="victim")
        granted = one.result()
        doing.alone(one, granted)
        doing.let_go(one, granted)
        doing.victim.kill()
        granted = two.result()
        doing.alone(two, granted)
        doing.let_go(two, granted)
        return killed

    assert at_every_point(crowd, tmp_path, 2, step) >= 8


def test_taking_over_from_the_dead(crowd: Crowd, tmp_path: Path) -> None:
    """The one that takes over is killed at each point of it, and the next must take over from
    both.
    """

    def step(doing: Step) -> bool:
        dead = doing.crowd.process()
        dead.acquire(["a", "b"], by="dead")
        dead.kill()
        assert dead.end() < 0
        return doing.killed("acquire", "a", by="victim", timeout_s=PATIENCE_S)

    assert at_every_point(crowd, tmp_path, 1, step) >= 20


def test_a_waiter_killed_before_it_reads_its_answer_leaves_none(crowd: Crowd) -> None:
    holder, victim, last = crowd.processes(3)
    held = holder.acquire("a", by="holder")
    victim.look("a", by="victim")
    victim.stop()
    assert holder.release(held.key)
    victim.die()
    last.use("a", by="last")
    assert crowd.rows() == []


def test_one_that_is_to_share_its_jobs_grant_killed_before_it_reads_that_leaves_nothing(
    crowd: Crowd,
) -> None:
    holder, first, victim = crowd.processes(3)
    held = holder.acquire("a", by="holder")
    first.line_up("a", by="job")
    victim.line_up("a", by="job")
    victim.stop()
    assert holder.release(held.key)
    granted = first.result()
    victim.die()
    assert first.release(granted.key)
    holder.use("a", by="last")
    assert crowd.rows() == []


def test_reading_the_answer_that_it_is_free(crowd: Crowd, tmp_path: Path) -> None:
    def step(doing: Step) -> bool:
        (holder,) = doing.others
        held = doing.get(holder, ["a"], "holder")
        doing.victim.arm(doing.at)
        doing.victim.begin("wait", "a", by="victim", timeout_s=PATIENCE_S)
        if not _waits(doing.victim):
            doing.let_go(holder, held)
            return True
        doing.let_go(holder, held)
        return doing.victim.was_killed()

    assert at_every_point(crowd, tmp_path, 1, step) >= 10


def _waits(process: Process) -> bool:
    """Wait until it waits; False when it was killed before."""
    try:
        process.heard("waits")
    except (EOFError, ConnectionResetError):
        return False
    return True


def test_kicking(crowd: Crowd, tmp_path: Path) -> None:
    def step(doing: Step) -> bool:
        holder, waiter = doing.others
        held = holder.acquire(["a", "b"], by="holder")
        waiter.line_up("a", by="waiter")
        killed = doing.killed("kick", "b", why="to see")
        if holder.release(held.key):
            assert killed
        granted = waiter.result()
        doing.alone(waiter, granted)
        doing.let_go(waiter, granted)
        return killed

    assert at_every_point(crowd, tmp_path, 2, step) >= 8


def test_a_wake_up_whose_sender_was_killed_before_sending_it(crowd: Crowd) -> None:
    """The process that hands over is not the one that is watched: its death wakes nobody, and the
    waiter rechecks by itself.
    """
    holder, kicker, waiter = crowd.processes(3)
    holder.acquire("a", by="holder")
    waiter.line_up("a", by="waiter")
    kicker.arm_at("sqlite.notify.before")
    kicker.begin("kick", "a", why="to see")
    assert kicker.was_killed()
    assert crowd.holders("a") == ["waiter"]
    waiter.result()
