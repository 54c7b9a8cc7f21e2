"""Holds: a count is the size of a set of holders, and a dead holder leaves it. On every store, on a
clock of the test's.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.kernel import lease as leases
from holdfast.kernel.errors import InvalidName, InvalidValue, NotFound
from holdfast.kernel.holder import THIS_PROCESS, Holder, Liveness, Place
from holdfast.kernel.limits import HOLD_LEASE_S, LABEL_CHARS_MAX
from holdfast.kernel.store import Store
from holdfast.primitives.holds import HOLDS, Hold, Holds, KeptHold, dropped, living, taken
from holdfast.primitives.journal import Journal
from holdfast.primitives.steady_clock import steady_clock
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.clock import ManualClock
from tests.harness.errors import raises
from tests.harness.machine import Machine, ProcessTable
from tests.harness.stores import STORES, ClockedStore, open_store
from tests.unit.hold_world import BRISK_S, names, replay

INSTANT_S = 0.000_001
"""The clock's finest step."""


STORE = MemoryStore()
"""A store of which nothing is asked but what is known of its clock, which is nothing."""


class World:
    """A store, a machine with processes, and the holds as each process sees them. Process 1 exists
    from the start.
    """

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store = ClockedStore(store, clock)
        self.clock = clock
        self.journal = Journal(self.store, actor="tester")
        self.machine = Machine()
        self._opened: list[Holds] = []
        self.holds = self.process(1)

    def process(
        self, pid: int, machine: Machine | None = None, lease_s: float = HOLD_LEASE_S
    ) -> Holds:
        """The holds as a new process sees them."""
        seat = (machine or self.machine).begin(pid)
        holds = Holds(self.store, self.journal, seat, lease_s=lease_s, label=f"p{pid}")
        self._opened.append(holds)
        return holds

    def kill(self, pid: int) -> None:
        """End a process, whose background does nothing from then on either."""
        self.machine.end(pid)

    def stored(self, subject: str) -> list[str]:
        """Who is in the record, gone or not."""
        row = self.store.get(HOLDS, subject)
        return [] if row is None else [hold.by for hold in row.record.holds]

    def logged(self) -> list[tuple[str, str, str, int]]:
        """The journal's entries about holds: kind, subject, holder and count."""
        entries = [entry for batch in self.journal.since() for entry in batch.entries]
        return [
            (entry.kind, entry.subject, entry.data["by"], entry.data["count"]) for entry in entries
        ]

    def close(self) -> None:
        for holds in self._opened:
            holds.close()
        self.machine.close()
        self.store.close()


@contextmanager
def world_of(kind: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    clock = ManualClock()
    made = World(open_store(kind, folder, clock, request), clock)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(params=STORES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with world_of(request.param, tmp_path, request) as made:
        yield made


@pytest.fixture
def holds(world: World) -> Holds:
    return world.holds


# --- take, drop, count ---


def test_the_count_is_the_number_of_holders(holds: Holds) -> None:
    assert holds.count("host-7") == 0
    assert holds.take("host-7", by="run-1") == 1
    assert holds.take("host-7", by="run-2") == 2
    assert holds.take("host-7", by="run-2") == 2
    assert names(holds, "host-7") == ["run-1", "run-2"]
    assert holds.drop("host-7", by="run-1") == 1
    assert holds.drop("host-7", by="run-2") == 0
    assert names(holds, "host-7") == []


def test_taking_twice_is_one_hold_in_its_old_place_with_a_new_lease(
    world: World, holds: Holds
) -> None:
    for by in ("a", "b", "c"):
        holds.take("s", by=by)
    world.clock.advance(5)
    assert world.process(2).take("s", by="b") == 3
    assert names(holds) == ["a", "b", "c"]
    again = holds.holders("s")[1]
    assert again.lease.granted_at == world.clock.now()
    assert again.process is not None
    assert (again.process.pid, again.process.label) == (2, "p2")
    assert holds.drop("s", by="b") == 2


def test_the_same_name_is_the_same_holder_in_any_process(world: World, holds: Holds) -> None:
    other = world.process(2)
    holds.take("s", by="run")
    assert other.take("s", by="run") == 1
    assert holds.drop("s", by="run") == 0
    with pytest.raises(NotFound):
        other.drop("s", by="run")


def test_a_subject_that_nobody_holds_leaves_no_record(world: World, holds: Holds) -> None:
    holds.take("s", by="a")
    holds.drop("s", by="a")
    assert world.store.get(HOLDS, "s") is None
    assert holds.subjects() == {}


def test_a_refused_drop_names_the_holders_and_changes_nothing(world: World, holds: Holds) -> None:
    for by in ("a", "b"):
        holds.take("s", by=by)
    before = world.store.get(HOLDS, "s")
    with raises(NotFound, subject="s", by="c", count=2) as caught:
        holds.drop("s", by="c")
    assert caught.value.fields == {"subject": "s", "by": "c", "count": 2}
    assert world.store.get(HOLDS, "s") == before
    assert len(world.logged()) == 2


def test_a_second_drop_never_takes_another_holders_place(world: World, holds: Holds) -> None:
    holds.take("s", by="a")
    holds.take("s", by="b")
    assert holds.drop("s", by="a") == 1
    for _ in range(3):
        with raises(NotFound, subject="s", by="a", count=1):
            holds.drop("s", by="a")
    assert names(holds) == ["b"]
    holds.drop("s", by="b")
    with raises(NotFound, subject="s", by="b", count=0):
        holds.drop("s", by="b")
    assert names(holds) == []


def test_subjects_are_counted_apart(holds: Holds) -> None:
    holds.take("s", by="a")
    holds.take("t", by="a")
    holds.take("t", by="b")
    assert holds.subjects() == {"s": 1, "t": 2}
    holds.drop("s", by="a")
    assert holds.subjects() == {"t": 2}
    assert holds.sweep() == 0


def test_names_may_be_any_label(world: World, holds: Holds) -> None:
    # The longest one is also the longest key.
    for subject in ("fe80::1%eth0 / \U0001f600", "..", "\U0001f600" * LABEL_CHARS_MAX):
        assert holds.take(subject, by="tmux:claude-a") == 1
        assert names(holds, subject) == ["tmux:claude-a"]
        assert holds.drop(subject, by="tmux:claude-a") == 0
    assert world.store.read(lambda tx: tx.count(HOLDS), scope=[HOLDS]) == 0


@pytest.mark.parametrize(
    "wrong", ["", "a\nb", "a\0b", "\ud800", "x" * (LABEL_CHARS_MAX + 1)], ids=ascii
)
def test_what_cannot_be_a_name_is_refused_before_the_store_is_touched(
    world: World, holds: Holds, wrong: str
) -> None:
    for call in (
        lambda: holds.take(wrong, by="a"),
        lambda: holds.drop(wrong, by="a"),
        lambda: holds.count(wrong),
        lambda: holds.holders(wrong),
    ):
        with raises(InvalidName, what="subject"):
            call()
    for call in (lambda: holds.take("s", by=wrong), lambda: holds.drop("s", by=wrong)):
        with raises(InvalidName, what="holder"):
            call()
    assert holds.subjects() == {}
    assert world.logged() == []


# --- a time to live ---


def test_a_hold_ends_at_the_instant_after_its_time_and_not_before(
    world: World, holds: Holds
) -> None:
    holds.take("s", by="a", ttl_s=5)
    holds.take("s", by="b")
    world.clock.advance(5)
    assert names(holds) == ["a", "b"]
    world.clock.advance(INSTANT_S)
    assert names(holds) == ["b"]
    # Nobody has changed anything yet.
    assert world.stored("s") == ["a", "b"]
    assert holds.take("s", by="c") == 2
    assert world.stored("s") == ["b", "c"]


def test_taking_again_restarts_the_lease(world: World, holds: Holds) -> None:
    holds.take("s", by="a", ttl_s=5)
    world.clock.advance(4)
    assert holds.take("s", by="a", ttl_s=5) == 1
    world.clock.advance(5)
    assert names(holds) == ["a"]
    # A shorter time is a shorter time: the last request counts.
    holds.take("s", by="a", ttl_s=1)
    world.clock.advance(1 + INSTANT_S)
    assert names(holds) == []


def test_a_hold_with_a_time_ends_with_its_process_too(world: World, holds: Holds) -> None:
    world.process(2).take("s", by="a", ttl_s=500)
    world.kill(2)
    assert names(holds) == []


def test_a_hold_without_a_process_ends_by_its_ttl_alone(world: World, holds: Holds) -> None:
    other = world.process(2)
    assert other.take("s", by="script", process=None, ttl_s=60) == 1
    world.kill(2)
    assert names(holds) == ["script"]
    world.clock.advance(60 + INSTANT_S)
    assert names(holds) == []


def test_without_a_process_a_time_is_needed(world: World, holds: Holds) -> None:
    with pytest.raises(InvalidValue) as caught:
        holds.take("s", by="a", process=None)
    assert caught.value.fields["field"] == "ttl_s"
    assert world.stored("s") == []
    assert world.logged() == []


def test_a_detached_hold_needs_a_time_where_its_process_cannot_be_seen(
    world: World, holds: Holds
) -> None:
    other = world.machine.begin(2).current()
    if world.store.embedded:
        assert holds.take("s", by="a", process=other, detached=True) == 1
    else:
        with pytest.raises(InvalidValue) as caught:
            holds.take("s", by="a", process=other, detached=True)
        assert caught.value.fields["field"] == "ttl_s"
    assert holds.take("s", by="a", process=other, ttl_s=60, detached=True) == 1


@pytest.mark.parametrize("ttl_s", [0, -1, float("nan"), float("inf"), 1e30])
def test_a_time_that_cannot_be_is_refused(world: World, holds: Holds, ttl_s: float) -> None:
    for process in (THIS_PROCESS, None):
        with pytest.raises(InvalidValue, match="lease"):
            holds.take("s", by="a", ttl_s=ttl_s, process=process)
    assert world.stored("s") == []


# --- who is gone ---


def test_a_dead_holder_does_not_count_and_the_next_change_sweeps_it(
    world: World, holds: Holds
) -> None:
    world.process(2).take("s", by="dead")
    holds.take("s", by="alive")
    world.kill(2)
    assert names(holds) == ["alive"]
    assert world.stored("s") == ["dead", "alive"]
    assert holds.take("s", by="new") == 2
    assert world.stored("s") == ["alive", "new"]
    assert world.logged()[2:] == [("hold.swept", "s", "dead", 1), ("hold.taken", "s", "new", 2)]


def test_a_drop_sweeps_too(world: World, holds: Holds) -> None:
    for pid, by in ((2, "x"), (3, "y")):
        world.process(pid).take("s", by=by)
    holds.take("s", by="a")
    world.kill(2)
    world.kill(3)
    assert holds.drop("s", by="a") == 0
    assert world.store.get(HOLDS, "s") is None
    assert [kind for kind, *_ in world.logged()[3:]] == ["hold.swept", "hold.swept", "hold.dropped"]


def test_a_drop_of_what_is_not_held_names_the_living_alone(world: World, holds: Holds) -> None:
    world.process(2).take("s", by="dead")
    holds.take("s", by="alive")
    world.kill(2)
    with raises(NotFound, subject="s", by="dead", count=1) as caught:
        holds.drop("s", by="dead")
    assert caught.value.fields["count"] == 1


def test_the_error_of_a_drop_names_a_few_of_many_holders(world: World, holds: Holds) -> None:
    for number in range(7):
        holds.take("s", by=f"run-{number}")
    with pytest.raises(NotFound, match=r"run-4 and 2 more$"):
        holds.drop("s", by="other")


def test_sweep_removes_everyone_that_is_gone_and_says_how_many(world: World, holds: Holds) -> None:
    for pid, subject in ((2, "s"), (3, "s"), (4, "t")):
        world.process(pid).take(subject, by=f"run-{pid}")
    holds.take("t", by="alive")
    holds.take("u", by="alive")
    holds.take("u", by="late", process=None, ttl_s=5)
    for pid in (2, 3, 4):
        world.kill(pid)
    world.clock.advance(6)
    assert holds.sweep() == 4
    assert holds.subjects() == {"t": 1, "u": 1}
    assert [world.stored(subject) for subject in "stu"] == [[], ["alive"], ["alive"]]
    assert sorted(world.logged()[6:]) == [
        ("hold.swept", "s", "run-2", 0),
        ("hold.swept", "s", "run-3", 0),
        ("hold.swept", "t", "run-4", 1),
        ("hold.swept", "u", "late", 1),
    ]
    assert holds.sweep() == 0


def test_a_process_with_a_reused_pid_is_another_process(world: World, holds: Holds) -> None:
    world.process(2).take("s", by="a")
    world.kill(2)
    world.process(2)
    assert names(holds) == []


def test_a_dead_holders_name_can_be_taken_again(world: World, holds: Holds) -> None:
    world.process(2).take("s", by="run")
    holds.take("s", by="other")
    world.kill(2)
    assert world.process(3).take("s", by="run") == 2
    assert names(holds) == ["other", "run"]
    assert [kind for kind, *_ in world.logged()[2:]] == ["hold.swept", "hold.taken"]


def test_a_living_holder_is_not_swept_for_being_slow(world: World, holds: Holds) -> None:
    other = world.process(2)
    other.take("s", by="slow")
    other.close()
    world.clock.advance(365 * 24 * 3600)
    assert names(holds) == ["slow"]
    assert holds.sweep() == 0


def test_another_process_can_be_the_holder(world: World, holds: Holds) -> None:
    world.process(2)
    worker = world.process(3)._processes.of(2, "worker")
    holds.take("s", by="run", process=worker)
    assert holds.holders("s")[0].process == worker
    world.kill(2)
    assert names(holds) == []


# --- other machines, other boots ---


def test_a_holder_that_cannot_be_seen_counts_until_its_lease_is_over(
    world: World, holds: Holds
) -> None:
    far = world.process(7, Machine("host-2"))
    far.take("s", by="far")
    far.close()
    world.clock.advance(HOLD_LEASE_S)
    assert names(holds) == ["far"]
    assert holds.sweep() == 0
    world.clock.advance(INSTANT_S)
    assert names(holds) == []
    assert holds.sweep() == 1


def test_a_hold_for_a_dead_process_is_not_renewed_by_its_taker(world: World, holds: Holds) -> None:
    """From another machine its death cannot be seen: it would count there for as long as the taker
    lives.
    """
    host_2 = Machine("host-2")
    taker = world.process(7, host_2)
    world.process(8, host_2)
    worker = ProcessTable(host_2, 7).of(8, "worker")
    taker.take("s", by="run", process=worker)
    host_2.end(8)
    world.clock.advance(HOLD_LEASE_S)
    mine = KeptHold(HOLDS, "s", "run", worker)
    assert taker._renewer.renew([mine]) == [mine]
    world.clock.advance(INSTANT_S)
    assert names(holds) == []


def test_a_hold_that_its_process_took_again_with_a_time_is_not_kept_beyond_it(
    world: World, holds: Holds
) -> None:
    holds.take("s", by="run")
    again = Holds(world.store, world.journal, ProcessTable(world.machine, 1))
    again.take("s", by="run", ttl_s=5)
    world.clock.advance(4)
    mine = KeptHold(HOLDS, "s", "run", ProcessTable(world.machine, 1).current())
    assert holds._renewer.renew([mine]) == [mine]
    world.clock.advance(1 + INSTANT_S)
    assert names(holds) == []
    again.close()


def test_a_machine_sees_its_own_dead_and_not_those_of_another(world: World, holds: Holds) -> None:
    host_2 = Machine("host-2")
    far, neighbour = world.process(7, host_2), world.process(8, host_2)
    far.take("s", by="far")
    host_2.end(7)
    assert names(neighbour) == []
    assert names(holds) == ["far"]
    assert neighbour.sweep() == 1
    assert names(holds) == []


def test_another_boot_of_this_machine_proves_death_only_where_the_store_is_its_own(
    world: World, holds: Holds
) -> None:
    """Cloned machines that share a database may share a host id too."""
    seat = ProcessTable(world.machine, 1)
    before = replace(seat.current(), boot_id="an earlier boot")
    holds.take("s", by="run", process=before)
    assert names(holds) == ([] if world.store.embedded else ["run"])
    world.clock.advance(HOLD_LEASE_S + INSTANT_S)
    assert names(holds) == []


def test_after_a_reboot_holds_of_processes_are_gone_and_those_by_time_are_not(
    tmp_path: Path,
) -> None:
    clock, machine = ManualClock(), Machine()

    def boot(boot_id: str) -> SqliteStore:
        machine.place = Place("host-1", boot_id, 1)
        return SqliteStore(tmp_path / "store.sqlite", boot_id=boot_id, clock=clock)

    with closing(boot("boot-1")) as store:
        holds = Holds(store, Journal(store, actor="t"), machine.begin(2))
        holds.take("s", by="run")
        holds.take("s", by="run with a time", ttl_s=3600)
        holds.take("s", by="script", process=None, ttl_s=60)
        holds.take("t", by="run")
        holds.close()
    clock.advance(30)
    with closing(boot("boot-2")) as store:
        # The same pid and start may well come again: it is another boot.
        holds = Holds(store, Journal(store, actor="t"), machine.begin(3))
        assert machine.process_stat(2) is not None
        assert names(holds) == ["script"]
        assert holds.subjects() == {"s": 1}
        assert holds.sweep() == 3
        clock.advance(30)
        assert names(holds) == ["script"]
        clock.advance(INSTANT_S)
        assert names(holds) == []
        holds.close()


def test_holds_outlive_a_restart_of_the_program_that_has_the_store_open(tmp_path: Path) -> None:
    clock, machine = ManualClock(), Machine()
    seat = machine.begin(2)
    for by in ("a", "b"):
        with closing(
            SqliteStore(tmp_path / "store.sqlite", boot_id="boot-1", clock=clock)
        ) as store:
            holds = Holds(store, Journal(store, actor="t"), seat)
            holds.take("s", by=by)
            holds.close()
    with closing(SqliteStore(tmp_path / "store.sqlite", boot_id="boot-1", clock=clock)) as store:
        assert names(Holds(store, Journal(store, actor="t"), seat)) == ["a", "b"]


# --- the journal ---


def test_every_change_is_logged_with_its_count(world: World, holds: Holds) -> None:
    holds.take("s", by="a")
    holds.take("s", by="b", ttl_s=5)
    holds.take("s", by="b", ttl_s=5)
    world.clock.advance(6)
    holds.drop("s", by="a")
    assert world.logged() == [
        ("hold.taken", "s", "a", 1),
        ("hold.taken", "s", "b", 2),
        ("hold.taken", "s", "b", 2),
        ("hold.swept", "s", "b", 1),
        ("hold.dropped", "s", "a", 0),
    ]


def test_reading_journals_nothing_and_changes_nothing(world: World, holds: Holds) -> None:
    world.process(2).take("s", by="dead")
    world.kill(2)
    before = world.store.get(HOLDS, "s")
    assert names(holds) == []
    assert world.store.get(HOLDS, "s") == before
    assert len(world.logged()) == 1


# --- renewal in the background ---


def _lease_end(world: World, subject: str, by: str) -> datetime:
    row = world.store.get(HOLDS, subject)
    assert row is not None
    expires_at: datetime = next(hold.lease.expires_at for hold in row.record.holds if hold.by == by)
    return expires_at


def test_the_background_keeps_what_this_process_holds(world: World) -> None:
    far = world.process(7, Machine("host-2"), BRISK_S)
    far.take("s", by="far")
    far.take("t", by="far")
    for _ in range(3):
        world.clock.advance(BRISK_S)
        world.store.until_kept()
        for subject in "st":
            assert (
                _lease_end(world, subject, "far") - world.clock.now()
            ).total_seconds() == BRISK_S
            assert names(world.holds, subject) == ["far"]
    assert [kind for kind, *_ in world.logged()] == ["hold.taken"] * 2, "heartbeats are not logged"
    far.close()
    world.clock.advance(BRISK_S + INSTANT_S)
    assert names(world.holds) == []


def test_the_background_does_not_write_what_needs_no_renewal(world: World) -> None:
    far = world.process(7, Machine("host-2"), BRISK_S)
    far.take("s", by="far")
    before = world.store.get(HOLDS, "s")
    world.store.until_kept()
    assert world.store.get(HOLDS, "s") == before


def test_what_has_a_time_is_not_renewed(world: World) -> None:
    brisk = world.process(2, lease_s=BRISK_S)
    brisk.take("s", by="kept")
    brisk.take("s", by="timed", ttl_s=5)
    world.clock.advance(5 + INSTANT_S)
    world.store.until_kept()
    assert names(world.holds) == ["kept"]


def test_what_was_dropped_is_not_renewed_into_being(world: World) -> None:
    brisk = world.process(2, lease_s=BRISK_S)
    brisk.take("s", by="a")
    brisk.take("s", by="b")
    brisk.drop("s", by="a")
    world.clock.advance(BRISK_S)
    world.store.until_kept()
    assert world.stored("s") == ["b"]


def test_what_was_swept_is_not_renewed_into_being(world: World) -> None:
    """A machine that could not reach the store for longer than its leases, and comes back."""
    far = world.process(7, Machine("host-2"), BRISK_S)
    far.take("s", by="far")
    world.store.down = True
    # The round that is under way ends first.
    world.store.until_refused()
    world.clock.advance(BRISK_S + INSTANT_S)
    assert world.holds.sweep() == 1
    world.store.down = False
    far.take("t", by="far")
    world.store.until_kept()
    assert world.stored("s") == []
    with pytest.raises(NotFound):
        far.drop("s", by="far")
    assert world.stored("t") == ["far"]


def test_the_background_outlives_a_store_that_does_not_answer(world: World) -> None:
    far = world.process(7, Machine("host-2"), BRISK_S)
    far.take("s", by="far")
    world.store.down = True
    world.store.until_refused()
    world.clock.advance(BRISK_S)
    world.store.down = False
    world.store.until_kept()
    assert _lease_end(world, "s", "far") > world.clock.now()


def test_closing_drops_nothing_and_may_come_twice(world: World, holds: Holds) -> None:
    other = world.process(2)
    other.take("s", by="a")
    other.close()
    other.close()
    assert names(holds) == ["a"]


def test_a_hold_taken_again_with_a_time_is_not_renewed_any_more(world: World) -> None:
    brisk = world.process(2, lease_s=BRISK_S)
    brisk.take("s", by="kept")
    brisk.take("s", by="a")
    brisk.take("s", by="a", ttl_s=5)
    world.clock.advance(5)
    world.store.until_kept()
    world.clock.advance(INSTANT_S)
    assert names(world.holds) == ["kept"]


def test_a_hold_dropped_and_taken_again_during_a_renewal_is_still_renewed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The renewal found the first hold gone, and the second has the same id."""
    far = world.process(7, Machine("host-2"))
    far.take("s", by="run")
    keeper = far._renewer._keeper

    def renew(kept: list[KeptHold]) -> list[KeptHold]:
        far.drop("s", by="run")
        gone = far._renewer.renew(kept)
        far.take("s", by="run")
        return gone

    monkeypatch.setattr(keeper, "_renew", renew)
    keeper._renew_due(everything=True)
    assert [one.by for one in keeper.kept()] == ["run"]
    far.close()


def test_a_hold_that_another_process_has_taken_over_is_not_kept_alive_by_the_first(
    world: World,
) -> None:
    brisk = world.process(2, lease_s=BRISK_S)
    brisk.take("s", by="kept")
    brisk.take("s", by="run")
    far = world.process(7, Machine("host-2"), BRISK_S)
    far.take("s", by="run")
    far.close()
    world.clock.advance(BRISK_S)
    world.store.until_kept()
    world.clock.advance(INSTANT_S)
    assert names(world.holds) == ["kept"]


# --- all at once ---


def test_threads_that_take_and_drop_never_make_a_count_wrong(world: World, holds: Holds) -> None:
    threads, turns, subjects = 6, 25, ("s", "t", "u")

    def work(number: int) -> dict[str, set[str]]:
        dice, mine = Random(number), {subject: set[str]() for subject in subjects}
        for _ in range(turns):
            subject, by = dice.choice(subjects), f"run-{number}-{dice.randrange(2)}"
            if by in mine[subject]:
                assert 0 <= holds.drop(subject, by=by) < 2 * threads
                mine[subject].remove(by)
            else:
                assert len(mine[subject]) < holds.take(subject, by=by) <= 2 * threads
                mine[subject].add(by)
        return mine

    with ThreadPoolExecutor(threads) as pool:
        ended = list(pool.map(work, range(threads)))
    expected = {subject: set().union(*(mine[subject] for mine in ended)) for subject in subjects}
    entries = [entry for batch in world.journal.since() for entry in batch.entries]
    assert len(entries) == threads * turns
    assert replay(entries) == {subject: held for subject, held in expected.items() if held}
    for subject in subjects:
        assert set(names(holds, subject)) == expected[subject]


def test_a_holder_that_comes_while_the_dead_are_looked_at_is_not_swept(
    world: World, holds: Holds
) -> None:
    """The look is before the transaction, so that between the two a dead holder's name may be taken
    by a living one.
    """
    world.process(2).take("s", by="run")
    world.kill(2)
    look = holds._probe_all

    def slowly(found: Any) -> Any:
        probed = look(found)
        world.process(3).take("s", by="run")
        return probed

    with mock.patch.object(holds, "_probe_all", slowly):
        assert holds.take("s", by="other") == 2
    assert names(holds) == ["run", "other"]


# --- the rules ---

bys = st.sampled_from(["a", "b", "c", "d"])
NOW = ManualClock().now()


def _hold(by: str, number: int = 1) -> Hold:
    process = Holder(host_id="h", boot_id="b", pid_ns=1, pid=number, start_ticks=number)
    return Hold(by=by, lease=leases.grant(NOW, 60), process=process)


@given(st.lists(st.tuples(st.booleans(), bys)))
def test_taken_and_dropped_are_a_set_in_order_of_arrival(steps: list[tuple[bool, str]]) -> None:
    found: tuple[Hold, ...] = ()
    order: list[str] = []
    for takes, by in steps:
        if takes:
            found = taken(found, _hold(by))
            order += [] if by in order else [by]
        else:
            found = dropped(found, by)
            order = [other for other in order if other != by]
        assert [hold.by for hold in found] == order


@given(
    st.lists(
        st.tuples(st.sampled_from([*Liveness, None]), st.booleans(), st.booleans()), max_size=6
    )
)
def test_a_hold_counts_as_live_until_it_may_be_reclaimed(
    states: list[tuple[Liveness | None, bool, bool]],
) -> None:
    found, probed, expected = [], {}, []
    for number, (liveness, explicit, over) in enumerate(states):
        hold = replace(
            _hold(f"run-{number}", number),
            lease=leases.grant(NOW, 1 if over else 60, explicit=explicit),
        )
        if liveness is None:
            # Of no process, so that time alone ends it.
            hold = replace(hold, process=None)
        else:
            assert hold.process is not None
            probed[hold.process] = liveness
        found.append(hold)
        if liveness is not Liveness.DEAD and not (
            over and (explicit or liveness is not Liveness.ALIVE)
        ):
            expected.append(hold)
    clock = ManualClock()
    clock.advance(30)
    assert living(tuple(found), probed, clock.now(), steady_clock(STORE)) == tuple(expected)


def test_a_process_of_which_nothing_is_known_counts_as_alive() -> None:
    clock = ManualClock()
    clock.advance(3600)
    assert living((_hold("a"),), {}, clock.now(), steady_clock(STORE)) == (_hold("a"),)
