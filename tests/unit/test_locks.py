"""Locks: sets, modes, ownership, blocks and looks, as a caller sees them, on every store."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from unittest import mock

import pytest

from holdfast.kernel.codec import to_plain
from holdfast.kernel.errors import (
    DeadlockDetected,
    InvalidValue,
    LeaseLost,
    LockTimeout,
    Lost,
    NotFound,
    StoreUnavailable,
)
from holdfast.kernel.holder import Holder, Place, Sighting
from holdfast.kernel.limits import BACKFILL_MAX, LOCK_NAMES_MAX, LOCK_SET_BYTES_MAX
from holdfast.kernel.settings import LockSettings
from holdfast.kernel.store import Entry, Store
from holdfast.primitives import deadline as deadline_
from holdfast.primitives.journal import Journal
from holdfast.primitives.locks import Grant, Locks, Mode, policy
from holdfast.primitives.locks.records import LOCK_WAITS, LOCKS
from holdfast.primitives.locks.wait import Ahead
from holdfast.primitives.renewal import ExpiryTimer
from holdfast.stores import listener
from holdfast.stores.files.store import FilesStore
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.clock import ManualClock
from tests.harness.timeouts import NEVER_S, PATIENCE_S

if TYPE_CHECKING:
    from tests.stores.postgres_server import Server

T = TypeVar("T")


STORES = ["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.prove)]


class Machine:
    """A machine whose processes live and die when they are told to."""

    def __init__(self, host_id: str = "host-1") -> None:
        self.place = Place(host_id, "boot-1", 1)
        self._ticks = count(1000)
        self._mutex = threading.Lock()
        self._living: dict[int, int] = {}
        self.stopped: set[int] = set()
        self.parents: dict[int, int] = {}
        self._watched: dict[int, list[int]] = {}

    def begin(self, pid: int) -> "Seat":
        """Start a process; one that has the pid of an earlier one is another."""
        self._living[pid] = next(self._ticks)
        return Seat(self, pid)

    def end(self, pid: int) -> None:
        """Kill it: whoever watches it sees its descriptor hang up."""
        with self._mutex:
            del self._living[pid]
            for fd in self._watched.pop(pid, []):
                os.close(fd)

    def sight(self, pid: int) -> Sighting | None:
        ticks = self._living.get(pid)
        if ticks is None:
            return None
        return Sighting(
            start_ticks=ticks,
            zombie=False,
            stopped=pid in self.stopped,
            parent_pid=self.parents.get(pid, 0),
        )

    def watch(self, pid: int, start_ticks: int) -> int | None:
        """A descriptor for the watcher to close; the other end closes when the process ends."""
        with self._mutex:
            if self._living.get(pid) != start_ticks:
                return None
            watched, kept = os.pipe()
            self._watched.setdefault(pid, []).append(kept)
            return watched

    def close(self) -> None:
        for pid in list(self._living):
            self.end(pid)


class Seat:
    """The process table as one process of a machine sees it: a stand-in for the port
    `Processes`.
    """

    def __init__(self, machine: Machine, pid: int) -> None:
        self.machine = machine
        self.pid = pid

    def here(self) -> Place:
        return self.machine.place

    def sight(self, pid: int) -> Sighting | None:
        return self.machine.sight(pid)

    def boot_lives(self, boot_id: str) -> bool:
        return False

    def current(self, label: str = "") -> Holder:
        return self.of(self.pid, label)

    def of(self, pid: int, label: str = "") -> Holder:
        seen = self.machine.sight(pid)
        if seen is None or seen.start_ticks is None:
            raise NotFound(f"there is no live process {pid}", pid=pid)
        return Holder(
            **self.machine.place._asdict(), pid=pid, start_ticks=seen.start_ticks, label=label
        )

    def death(self, holder: Holder) -> int | None:
        if holder.place != self.machine.place:
            return None
        return self.machine.watch(holder.pid, holder.start_ticks)


class Waiter(Generic[T]):
    """A call that waits, in a thread of its own. Made once it stands in line; raises what the call
    raised instead.
    """

    def __init__(self, call: Callable[[Callable[[Sequence[Ahead]], None]], T]) -> None:
        self.ahead: list[Sequence[Ahead]] = []
        """Who was just ahead, each time that this was told."""
        self._result: list[T] = []
        self._error: list[BaseException] = []
        self._over = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()
        self.until_told(1)

    def _run(self, call: Callable[[Callable[[Sequence[Ahead]], None]], T]) -> None:
        try:
            self._result.append(call(self._waits))
        except BaseException as error:
            self._error.append(error)
        finally:
            with self._changed:
                self._over = True
                self._changed.notify_all()

    def _waits(self, ahead: Sequence[Ahead]) -> None:
        with self._changed:
            self.ahead.append(ahead)
            self._changed.notify_all()

    def until_told(self, times: int) -> None:
        """Until it was told so many times who is just ahead of it."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: self._over or len(self.ahead) >= times, PATIENCE_S
            )
        if len(self.ahead) < times:
            raise AssertionError(f"it waits no more: {self.result()}")

    @property
    def waits(self) -> bool:
        return self._thread.is_alive()

    @property
    def ident(self) -> int:
        assert self._thread.ident is not None
        return self._thread.ident

    def result(self) -> T:
        """What the call returned, or raised."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "it waits on"
        if self._error:
            raise self._error[0]
        return self._result[0]


class Failing:
    """A store that can be told not to answer."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.down = False
        self.meanwhile: Callable[[], object] = lambda: None
        """What happens while it does not answer."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def transact(self, *arguments: Any, **more: Any) -> Any:
        if self.down:
            self.meanwhile()
            raise StoreUnavailable("it does not answer", outcome="none")
        return self._store.transact(*arguments, **more)


class Watches:
    """The clocks by which threads measure their time limits: each can be made to jump."""

    def __init__(self) -> None:
        self._jumped_s: dict[int, float] = {}

    def monotonic(self) -> float:
        return time.monotonic() + self._jumped_s.get(threading.get_ident(), 0.0)

    def run_out(self, thread: int | None = None) -> None:
        """Let every time limit of a thread be over, of this one unless told."""
        self._jumped_s[threading.get_ident() if thread is None else thread] = 1e6


@pytest.fixture
def watches(monkeypatch: pytest.MonkeyPatch) -> Watches:
    made = Watches()
    monkeypatch.setattr(deadline_, "time", made)
    return made


@pytest.fixture
def own_clock_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """No grant for a time is over by the process's own clock, by which a busy machine takes seconds
    for a test.
    """
    monkeypatch.setattr(ExpiryTimer, "watch", lambda *_: None)


class World:
    """A store, a machine with processes, and the locks as each process sees them. Process 1 is
    there from the beginning.
    """

    def __init__(
        self,
        store: Store,
        clock: ManualClock,
        settings: LockSettings | None = None,
        actor: str = "tester",
    ) -> None:
        self.store = store
        self.clock = clock
        self.journal = Journal(store, actor=actor)
        self.machine = Machine()
        self._settings = settings
        self._opened: list[Locks] = []
        self.locks = self.process(1)

    def process(self, pid: int, machine: Machine | None = None) -> Locks:
        """The locks as a new process sees them."""
        seat = (machine or self.machine).begin(pid)
        locks = Locks(self.store, self.journal, seat, self._settings, label=f"p{pid}")
        self._opened.append(locks)
        return locks

    def line_up(
        self, names: str | Iterable[str], *, by: str, locks: Locks | None = None, **more: Any
    ) -> Waiter[Grant]:
        """Ask for names that are not to be had; returns once the request stands in line."""
        asked = locks or self.locks
        more = {"timeout_s": PATIENCE_S, **more}
        return Waiter(lambda waits: asked.acquire(names, by=by, on_wait=waits, **more))

    def look(
        self, names: str | Iterable[str], *, by: str, locks: Locks | None = None, **more: Any
    ) -> Waiter[bool]:
        """The same for `wait`."""
        asked = locks or self.locks
        more = {"timeout_s": PATIENCE_S, **more}
        return Waiter(lambda waits: asked.wait(names, by=by, on_wait=waits, **more))

    def leave_in_line(
        self,
        names: str | Iterable[str],
        *,
        by: str,
        pid: int,
        machine: Machine | None = None,
        **more: Any,
    ) -> None:
        """A request as a process leaves it that does nothing more: it only has to be ended to have
        been killed.
        """
        store = Failing(self.store)
        locks = Locks(store, self.journal, (machine or self.machine).begin(pid), self._settings)  # type: ignore[arg-type]

        def leave(_: Sequence[Ahead]) -> None:
            store.down = True
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            locks.acquire(names, by=by, on_wait=leave, timeout_s=None, **more)
        # Or it would go on trying to withdraw it.
        locks.close()

    def addresses(self) -> list[str]:
        """What wakes those that wait now."""
        return [
            row.record.address
            for row in self.store.read(lambda tx: tx.range(LOCK_WAITS), scope=[LOCK_WAITS])
        ]

    def nudge(self, addresses: Iterable[str] | None = None) -> None:
        """Make every waiter look again, as after a step of the clock that it cannot notice."""
        nudged = self.addresses() if addresses is None else addresses
        self.store.transact(
            lambda tx: [tx.notify(address) for address in nudged], scope=[LOCK_WAITS]
        )

    def rows(self) -> list[str]:
        """Every row of the lock table, of resources and of requests."""

        def keys(tx: Any) -> list[str]:
            return [
                f"{space.name}/{row.key}"
                for space in (LOCKS, LOCK_WAITS)
                for row in tx.range(space)
            ]

        return self.store.read(keys, scope=[LOCKS, LOCK_WAITS])

    def holders(self, name: str) -> list[str]:
        return [hold.by for hold in self.locks.status(name).holds]

    def queue(self, name: str) -> list[str]:
        return [request.by for request in self.locks.status(name).queue]

    def told(self, *kinds: str) -> list[Entry]:
        """The journal's entries about locks, of these kinds or of all."""
        # An entry of a database is shown once no transaction that began before it is under way, as
        # one that renews may be.
        mark = self.store.transact(
            lambda tx: self.journal.append(tx, kind="test.asked", subject="x"), scope=[]
        )
        entries: list[Entry] = []
        while not any(entry.revision == mark for entry in entries):
            entries = [entry for batch in self.journal.since() for entry in batch.entries]
        return [
            entry
            for entry in entries
            if entry.kind.startswith("lock.") and (not kinds or entry.kind in kinds)
        ]

    def use(self, names: str | Iterable[str], *, by: str, **more: Any) -> None:
        """Take names that are to be had, and let go of them."""
        assert self.locks.release(self.locks.acquire(names, by=by, timeout_s=0, **more))

    def close(self) -> None:
        for locks in self._opened:
            locks.close()
        self.machine.close()
        self.store.close()


_namespaces = count(1)


@pytest.fixture(scope="module")
def lock_database(request: pytest.FixtureRequest) -> Iterator[str]:
    """One database for the tests of a module, each of which has a namespace of its own."""
    server: Server = request.getfixturevalue("postgres_server")
    url = server.database()
    yield url
    server.drop(url)


def open_store(
    kind: str, folder: Path, clock: ManualClock, request: pytest.FixtureRequest
) -> Store:
    """A new store of that kind. PostgreSQL's clock is its own."""
    if kind == "memory":
        return MemoryStore(clock=clock)
    if kind == "sqlite":
        return SqliteStore(folder / "store.sqlite", boot_id="boot-1", clock=clock)
    if kind == "files":
        return FilesStore(folder / "state", boot_id="boot-1", clock=clock, retry_delay_s=0.001)
    # Here, so that the other stores' tests need no driver.
    from holdfast.stores.postgres import open_postgres

    return open_postgres(
        request.getfixturevalue("lock_database"), namespace=f"t{next(_namespaces)}"
    )


@contextmanager
def world_of(
    kind: str, folder: Path, request: pytest.FixtureRequest, settings: LockSettings | None = None
) -> Iterator[World]:
    clock = ManualClock()
    world = World(open_store(kind, folder, clock, request), clock, settings)
    try:
        # Nobody looks again by itself, so that a wake-up that is missing shows.
        with mock.patch.object(listener, "WAIT_RECHECK_S", NEVER_S):
            yield world
    finally:
        world.close()


@pytest.fixture(params=STORES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with world_of(request.param, tmp_path, request) as made:
        yield made


@pytest.fixture
def locks(world: World) -> Locks:
    return world.locks


# --- sets ---


def test_a_set_is_taken_whole_or_not_at_all(world: World, locks: Locks) -> None:
    locks.acquire("b", by="other")
    assert locks.try_acquire(["a", "b", "c"], by="job") is None
    assert world.holders("a") == world.holders("c") == []
    waiting = world.line_up(["a", "b", "c"], by="job")
    # Nothing is held while it waits: a free part of the set is still to be had.
    world.use("a", by="third")
    assert locks.free("b", by="other") == ("b",)
    grant = waiting.result()
    assert grant.names == grant.taken == ("a", "b", "c")
    assert [world.holders(name) for name in "abc"] == [["job"]] * 3
    assert locks.release(grant)
    assert world.rows() == []


def test_names_are_taken_once_each_in_the_order_given(world: World, locks: Locks) -> None:
    grant = locks.acquire(["b", "a", "b", "b"], by="job")
    assert grant.names == ("b", "a")
    assert locks.release(grant)
    assert world.rows() == []


def test_a_waiting_set_has_its_names_once_each_too(world: World, locks: Locks) -> None:
    held = locks.acquire("a", by="other")
    waiting = world.line_up(["a", "b", "a"], by="job")
    assert world.queue("a") == world.queue("b") == ["job"]
    locks.release(held)
    assert waiting.result().names == ("a", "b")


def test_a_single_name_is_a_set_of_one(locks: Locks) -> None:
    assert locks.acquire("/dev/ttyUSB0", by="job").names == ("/dev/ttyUSB0",)


def test_an_empty_set_is_granted_at_once_and_there_is_nothing_to_release(
    world: World, locks: Locks
) -> None:
    locks.acquire("a", by="other")
    with locks.acquire([], by="job", timeout_s=0) as grant:
        assert grant.names == grant.taken == ()
        grant.check()
        locks.renew(grant)
    assert not locks.release(grant)
    assert not grant.lost.is_set()
    assert locks.try_acquire(iter(()), by="job") is not None
    assert locks.wait([], by="job", timeout_s=0)
    assert locks.free([], by="job") == ()
    assert world.rows() == ["locks/a"]


def test_one_request_may_have_as_many_names_as_its_bound_and_doubles_count_once(
    world: World, locks: Locks
) -> None:
    names = [f"n{number:03}" for number in range(LOCK_NAMES_MAX)]
    grant = locks.acquire([*names, *names], by="job")
    assert grant.names == tuple(names)
    assert locks.try_acquire(names[-1], by="other") is None
    assert locks.release(grant)
    assert world.rows() == []


def test_the_largest_set_of_the_longest_names_can_be_waited_for(world: World, locks: Locks) -> None:
    """What can be had when nobody is in the way can be waited for when somebody is."""
    length = LOCK_SET_BYTES_MAX // LOCK_NAMES_MAX
    names = [f"{number:03}".ljust(length, "x") for number in range(LOCK_NAMES_MAX)]
    with pytest.raises(InvalidValue, match="stands for many"):
        locks.acquire([*names[1:], "é".ljust(length, "x")], by="job")
    world.use(names, by="job")
    held = locks.acquire(names[7], by="other")
    waiting = world.line_up(names, by="job")
    assert world.queue(names[0]) == ["job"]
    locks.release(held)
    assert locks.release(waiting.result())
    assert world.rows() == []


def test_a_released_set_passes_each_name_on_in_the_same_step(world: World, locks: Locks) -> None:
    held = locks.acquire(["a", "b"], by="job")
    one, two = world.line_up("a", by="one"), world.line_up("b", by="two")
    locks.release(held)
    # Decided in the release itself, before either has woken.
    assert world.holders("a") == ["one"]
    assert world.holders("b") == ["two"]
    assert one.result().token != two.result().token


def test_namespaces_of_one_store_do_not_meet(tmp_path: Path) -> None:
    clock = ManualClock()
    worlds = [
        World(
            SqliteStore(tmp_path / "store.sqlite", boot_id="boot-1", namespace=name, clock=clock),
            clock,
        )
        for name in "xy"
    ]
    held = [world.locks.acquire("router-1", by="job", timeout_s=0) for world in worlds]
    waiting = [world.line_up("router-1", by="next") for world in worlds]
    worlds[0].locks.release(held[0])
    waiting[0].result()
    assert worlds[1].holders("router-1") == ["job"]
    worlds[1].locks.release(held[1])
    waiting[1].result()
    for world in worlds:
        world.close()


def test_threads_of_one_process_exclude_each_other(world: World, locks: Locks) -> None:
    inside: list[int] = []
    at_once: list[int] = []
    began = threading.Barrier(6)

    def take_turns(number: int) -> None:
        began.wait(PATIENCE_S)
        for _ in range(10):
            with locks.hold(
                ["a", "b"] if number % 2 else ["b", "a"], by=f"job{number}", timeout_s=PATIENCE_S
            ):
                inside.append(number)
                at_once.append(len(inside))
                inside.remove(number)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(take_turns, range(6)))
    assert at_once == [1] * 60
    assert world.rows() == []


# --- modes ---


def test_many_share_and_one_has_it_alone(world: World, locks: Locks) -> None:
    shared = [
        locks.acquire("a", by=f"s{number}", mode="shared", timeout_s=0) for number in range(3)
    ]
    assert len({grant.token for grant in shared}) == 3
    assert locks.try_acquire("a", by="alone") is None
    waiting = world.line_up("a", by="alone")
    for grant in shared[:2]:
        assert locks.release(grant)
        assert world.queue("a") == ["alone"]
    assert locks.release(shared[2])
    grant = waiting.result()
    assert grant.mode is Mode.EXCLUSIVE
    assert locks.try_acquire("a", by="s9", mode=Mode.SHARED) is None


def test_an_exclusive_release_lets_all_sharers_in_line_go_at_once(
    world: World, locks: Locks
) -> None:
    held = locks.acquire("a", by="alone")
    sharers = [world.line_up("a", by=f"s{number}", mode="shared") for number in range(3)]
    last = world.line_up("a", by="last")
    locks.release(held)
    assert world.holders("a") == ["s0", "s1", "s2"]
    assert world.queue("a") == ["last"]
    for waiting in sharers:
        locks.release(waiting.result())
    last.result()


# --- one job ---


def test_what_a_job_holds_comes_back_to_it_and_releasing_that_frees_nothing(
    world: World, locks: Locks
) -> None:
    outer = locks.acquire(["a", "b"], by="job")
    # Whoever says the same job is the same holder, in another process too.
    for inner in (
        locks.acquire("a", by="job", timeout_s=0),
        world.process(2).acquire(["b", "a"], by="job", timeout_s=0),
    ):
        assert inner.reentered
        assert inner.token == outer.token
        assert inner.taken == ()
        inner.check()
        assert not inner.release()
        assert not inner.release()
        assert not inner.lost.is_set()
    assert not outer.reentered
    assert locks.try_acquire("a", by="other") is None
    assert locks.release(outer)
    assert world.rows() == []


def test_what_comes_back_to_a_job_says_the_time_that_it_was_taken_for(locks: Locks) -> None:
    locks.acquire("a", by="job", ttl_s=300, process=None)
    assert locks.acquire("a", by="job", ttl_s=600, process=None, timeout_s=0).ttl_s == 300
    locks.acquire("b", by="job")
    assert locks.acquire("b", by="job", ttl_s=600, timeout_s=0).ttl_s is None


def test_sharing_what_one_has_alone_is_reentering(locks: Locks) -> None:
    outer = locks.acquire("a", by="job")
    inner = locks.acquire("a", by="job", mode="shared", timeout_s=0)
    assert inner.reentered
    assert inner.token == outer.token
    assert not locks.release(inner)
    assert locks.try_acquire("a", by="other", mode="shared") is None


def test_a_set_that_overlaps_what_the_job_holds_waits_only_for_the_rest(
    world: World, locks: Locks
) -> None:
    first = locks.acquire("a", by="job")
    other = locks.acquire("b", by="other")
    waiting = world.line_up(["a", "b"], by="job")
    locks.release(other)
    second = waiting.result()
    assert second.names == ("a", "b")
    assert second.taken == ("b",)
    assert second.tokens == {"a": first.token, "b": second.token}
    assert second.token > first.token
    assert not second.reentered
    assert locks.release(second)
    # It freed only what it took itself.
    assert world.holders("a") == ["job"]
    assert world.holders("b") == []
    assert locks.release(first)
    assert world.rows() == []


def test_the_first_grant_of_an_overlap_frees_its_part_alone(world: World, locks: Locks) -> None:
    first = locks.acquire("a", by="job")
    second = locks.acquire(["a", "b"], by="job", timeout_s=0)
    assert locks.release(first)
    assert world.holders("a") == []
    assert world.holders("b") == ["job"]
    # The part that came from the other grant is not in force any more, and it says so.
    with pytest.raises(LeaseLost):
        second.check()
    assert locks.release(second)
    assert world.rows() == []


def test_the_only_sharer_is_upgraded_at_once_and_goes_back_with_the_inner_release(
    world: World, locks: Locks
) -> None:
    shared = locks.acquire("a", by="job", mode="shared")
    alone = locks.acquire("a", by="job", timeout_s=0)
    assert not alone.reentered
    assert locks.try_acquire("a", by="other", mode="shared") is None
    waiting = world.line_up("a", by="other", mode="shared")
    assert locks.release(alone)
    # Downgraded: it still shares, and others may too.
    waiting.result()
    assert world.holders("a") == ["job", "other"]
    shared.check()
    assert locks.try_acquire("a", by="third") is None
    assert locks.release(shared)


def test_an_upgrade_waits_for_the_other_sharers_alone(world: World, locks: Locks) -> None:
    locks.acquire("a", by="job", mode="shared")
    others = [locks.acquire("a", by=f"s{number}", mode="shared") for number in range(2)]
    # One that waits for the job's own share must not keep it from its upgrade.
    behind = world.line_up("a", by="behind")
    upgrade = world.line_up("a", by="job")
    assert locks.release(others[0])
    assert upgrade.waits
    assert locks.release(others[1])
    upgrade.result()
    assert world.queue("a") == ["behind"]
    assert sorted(locks.free("a", by="job")) == ["a"]
    behind.result()


def test_two_upgraders_are_a_deadlock_and_the_second_is_told(world: World, locks: Locks) -> None:
    locks.acquire("a", by="one", mode="shared")
    two = locks.acquire("a", by="two", mode="shared")
    upgrade = world.line_up("a", by="one")
    with pytest.raises(DeadlockDetected) as caught:
        locks.acquire("a", by="two")
    assert "two waits for a, held by one" in caught.value.message
    assert "one waits for a, held by two" in caught.value.message
    # It keeps its share until it lets go, and then the first goes on.
    two.check()
    assert upgrade.waits
    assert locks.release(two)
    upgrade.result().check()


def test_a_thread_that_waits_for_what_its_job_came_to_hold_gets_that_grant(
    world: World, locks: Locks
) -> None:
    held = locks.acquire("a", by="other")
    first = world.line_up("a", by="job")
    second = world.line_up("a", by="job", locks=world.process(2))
    locks.release(held)
    outer, inner = first.result(), second.result()
    assert inner.reentered
    assert inner.token == outer.token
    assert not locks.release(inner)
    assert locks.release(outer)
    assert world.rows() == []


def test_what_the_job_held_may_be_taken_away_just_as_the_rest_is_granted(
    world: World, locks: Locks
) -> None:
    """Either it holds the whole set, or it is told so and holds nothing; no other error comes
    out.
    """
    locks.acquire("a", by="job")
    other = locks.acquire("b", by="other")

    def meanwhile(_: Sequence[Ahead]) -> None:
        if not other.gone:
            locks.release(other)
            locks.kick("a", why="the operator came between the grant and its waiter")

    try:
        grant = locks.acquire(["a", "b"], by="job", on_wait=meanwhile, timeout_s=PATIENCE_S)
    except Lost:
        assert world.holders("b") == []
    else:
        grant.check()
        assert world.holders("a") == world.holders("b") == ["job"]


# --- letting go ---


def test_a_second_release_is_false_and_frees_no_one_elses_grant(world: World, locks: Locks) -> None:
    grant = locks.acquire("a", by="job")
    assert locks.release(grant)
    assert not locks.release(grant)
    again = locks.acquire("a", by="other", timeout_s=0)
    assert not locks.release(grant)
    assert not grant.release()
    again.check()
    # Nor of the same job: the next grant is another one.
    assert locks.release(again)
    anew = locks.acquire("a", by="job", timeout_s=0)
    assert not locks.release(grant)
    anew.check()


def test_a_release_after_the_loss_is_false_and_changes_nothing(world: World, locks: Locks) -> None:
    grant = locks.acquire(["a", "b"], by="job")
    locks.kick("a", why="to see")
    other = locks.acquire("a", by="other", timeout_s=0)
    assert not locks.release(grant)
    assert not locks.release(grant)
    other.check()
    assert world.rows() == ["locks/a"]


def test_free_lets_go_of_a_part_and_leaves_the_rest_held(world: World, locks: Locks) -> None:
    grant = locks.acquire(["a", "b", "c"], by="job")
    waiting = world.line_up("b", by="next")
    assert locks.free(["b", "x"], by="job") == ("b",)
    waiting.result()
    assert [world.holders(name) for name in "abc"] == [["job"], ["next"], ["job"]]
    locks.check_token("a", grant.token)
    assert locks.release(grant)
    assert world.rows() == ["locks/b"]


def test_free_takes_from_all_grants_of_the_job_and_from_no_other_job(
    world: World, locks: Locks
) -> None:
    locks.acquire(["a", "b"], by="job")
    locks.acquire("c", by="job")
    locks.acquire("d", by="job", mode="shared")
    theirs = [locks.acquire("d", by="other", mode="shared"), locks.acquire("e", by="other")]
    assert locks.free(["a", "b", "c", "d", "e"], by="job") == ("a", "b", "c", "d")
    assert locks.free(["a", "d", "e"], by="job") == ()
    for grant in theirs:
        grant.check()
    assert world.rows() == ["locks/d", "locks/e"]


def test_freeing_an_upgraded_name_frees_both_grants_of_it(world: World, locks: Locks) -> None:
    locks.acquire("a", by="job", mode="shared")
    locks.acquire("a", by="job")
    assert locks.free("a", by="job") == ("a",)
    assert world.rows() == []


def test_another_jobs_release_changes_nothing(world: World, locks: Locks) -> None:
    grant = locks.acquire(["a", "b"], by="job")
    assert locks.free(["a", "b"], by="other") == ()
    grant.check()
    assert world.holders("a") == ["job"]


# --- blocks ---


def test_a_block_releases_at_its_end_however_it_ends(world: World, locks: Locks) -> None:
    with locks.hold(["a", "b"], by="job") as grant:
        assert locks.try_acquire("a", by="other") is None
        grant.check()
    assert world.rows() == []
    with pytest.raises(KeyError), locks.hold("a", by="job"):
        raise KeyError("its own")
    assert world.rows() == []


def test_a_block_whose_grant_was_lost_says_so_at_its_end(world: World, locks: Locks) -> None:
    def work() -> None:
        with locks.hold("a", by="job"):
            locks.kick("a", why="to see")
            locks.acquire("a", by="other", timeout_s=0)

    with pytest.raises(LeaseLost, match="to job"):
        work()
    assert world.holders("a") == ["other"]


def test_the_loss_never_hides_the_blocks_own_exception(locks: Locks) -> None:
    def work() -> None:
        with locks.hold("a", by="job"):
            locks.kick("a", why="to see")
            raise KeyError("its own")

    with pytest.raises(KeyError):
        work()


def test_a_block_inside_a_block_of_the_same_job_ends_quietly(world: World, locks: Locks) -> None:
    with locks.hold("a", by="job") as outer:
        with locks.hold("a", by="job") as inner:
            assert inner.token == outer.token
        outer.check()
        assert world.holders("a") == ["job"]
    assert world.rows() == []


def test_a_grant_released_inside_its_block_is_no_loss(locks: Locks) -> None:
    with locks.hold("a", by="job") as grant:
        assert grant.release()
    assert not grant.lost.is_set()


# --- looking ---


def test_a_look_at_what_is_free_is_over_at_once_and_takes_nothing(
    world: World, locks: Locks
) -> None:
    assert locks.wait(["a", "b"], by="job", timeout_s=0)
    assert locks.wait("a", by="job")
    assert world.rows() == []


def test_a_look_waits_for_the_release_and_takes_nothing(world: World, locks: Locks) -> None:
    held = [locks.acquire("a", by="one"), locks.acquire("b", by="two")]
    looking = world.look(["a", "b"], by="job")
    locks.release(held[0])
    assert looking.waits
    locks.release(held[1])
    assert looking.result()
    assert world.rows() == []


def test_a_look_that_is_not_answered_in_time_is_false_and_leaves_nothing(
    world: World, locks: Locks
) -> None:
    locks.acquire("a", by="other")
    assert not locks.wait("a", by="job", timeout_s=0)
    assert not locks.wait("a", by="job", timeout_s=0.01)
    assert world.rows() == ["locks/a"]


def test_a_look_is_not_kept_by_what_its_own_job_holds(locks: Locks) -> None:
    locks.acquire("a", by="job")
    assert locks.wait("a", by="job", timeout_s=0)
    assert not locks.wait("a", by="other", timeout_s=0)


def test_a_shared_look_passes_sharers(locks: Locks) -> None:
    locks.acquire("a", by="other", mode="shared")
    assert locks.wait("a", by="job", mode="shared", timeout_s=0)
    assert not locks.wait("a", by="job", timeout_s=0)


def test_a_look_keeps_nobody_waiting(world: World, locks: Locks) -> None:
    held = locks.acquire("a", by="other")
    kept = locks.acquire("b", by="other")
    looking = world.look(["a", "b"], by="job")
    locks.release(held)
    # It was first in line for `a`, and takes nothing: nobody needs to wait for it, however often.
    for number in range(9):
        world.use("a", by=f"j{number}")
    locks.release(kept)
    assert looking.result()


def test_a_look_before_the_next_in_line_sees_the_moment_between(world: World, locks: Locks) -> None:
    held = locks.acquire("a", by="other")
    looking, waiting = world.look("a", by="job"), world.line_up("a", by="next")
    locks.release(held)
    assert looking.result()
    waiting.result()


def test_a_look_that_closes_a_cycle_is_told(world: World, locks: Locks) -> None:
    locks.acquire("a", by="one")
    locks.acquire("b", by="two")
    waiting = world.line_up("b", by="one")
    with pytest.raises(
        DeadlockDetected, match="two waits for a, held by one; one waits for b, held by two"
    ):
        locks.wait("a", by="two")
    locks.free("b", by="two")
    waiting.result()


def test_a_cycle_that_is_closed_through_a_look_is_told(world: World, locks: Locks) -> None:
    locks.acquire("a", by="one")
    locks.acquire("b", by="two")
    looking = world.look("b", by="one")
    with pytest.raises(
        DeadlockDetected, match="two waits for a, held by one; one waits for b, held by two"
    ):
        locks.acquire("a", by="two")
    locks.free("b", by="two")
    assert looking.result()


# --- time limits ---


@pytest.mark.parametrize("timeout_s", [0, 0.01])
def test_a_wait_that_ends_without_a_grant_names_the_holder_and_leaves_nothing(
    world: World, locks: Locks, timeout_s: float
) -> None:
    locks.acquire("b", by="holder", ttl_s=600)
    since = locks.status("b").holds[0].since
    before = world.rows()
    with pytest.raises(LockTimeout) as caught:
        locks.acquire(["a", "b"], by="job", timeout_s=timeout_s)
    fields = caught.value.fields
    (holder,) = fields["holders"]
    assert (holder["resource"], holder["by"], holder["mode"]) == ("b", "holder", "exclusive")
    assert (holder["since"], holder["process"]["pid"]) == (to_plain(since), 1)
    assert holder["until"] == to_plain(since + timedelta(seconds=600))
    assert (fields["resource"], fields["names"], fields["by"]) == ("b", ["a", "b"], "job")
    assert (fields["position"], fields["ahead"], fields["timeout_s"]) == (1, [], timeout_s)
    assert fields["outcome"] == "none"
    assert all(
        word in caught.value.message
        for word in (
            "job",
            "a, b",
            "b is held by holder",
            "process 1",
            "`holdfast locks explain b`",
        )
    )
    assert world.rows() == before
    assert locks.try_acquire("a", by="other") is not None


def test_a_wait_that_ends_without_a_grant_says_its_place_in_line(
    world: World, locks: Locks, watches: Watches
) -> None:
    """With others between it and the holder, both are named: the one that is just ahead cannot let
    go of anything.
    """
    locks.acquire("a", by="holder")
    first = world.line_up("a", by="first", locks=world.process(7))
    second = world.line_up(["b", "a"], by="second")
    told: list[str] = []

    def run_out(ahead: Sequence[Ahead]) -> None:
        told.extend(one.by for one in ahead)
        watches.run_out()

    with pytest.raises(LockTimeout) as caught:
        locks.acquire("a", by="job", on_wait=run_out)
    # Whom it watched is the nearest alone.
    assert told == ["second"]
    fields = caught.value.fields
    assert [one["by"] for one in fields["holders"]] == ["holder"]
    assert (fields["position"], [one["by"] for one in fields["ahead"]]) == (3, ["first", "second"])
    assert fields["ahead"][1]["names"] == ["b", "a"]
    assert "2 waiters ahead" in caught.value.message
    assert world.told("lock.timed_out")[0].data["held_by"] == ["holder"]
    seen = locks.obstruction("a", by="first")
    assert ([one.by for one in seen.holders], seen.position) == (["holder"], 1)
    assert locks.obstruction("a", by="new").position == 3
    assert (
        locks.obstruction([], by="new").position == locks.obstruction("c", by="new").position == 1
    )
    locks.free("a", by="holder")
    first.result().release()
    second.result().release()


def test_many_holders_and_a_long_line_are_cut(
    world: World, locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "LOCK_AHEAD_NAMED_MAX", 2)
    monkeypatch.setattr(policy, "LOCK_AHEAD_COUNTED_MAX", 2)
    held = [locks.acquire("a", by=f"h{number}", mode="shared") for number in range(5)]
    lines = []
    for number in range(3):
        with pytest.raises(LockTimeout) as caught:
            locks.acquire("a", by="job", timeout_s=0)
        lines.append(
            (
                len(caught.value.fields["holders"]),
                len(caught.value.fields["ahead"]),
                caught.value.fields["position"],
            )
        )
        world.leave_in_line("a", by=f"w{number}", pid=number + 10)
    with pytest.raises(LockTimeout) as caught:
        locks.acquire("a", by="job", timeout_s=0)
    assert lines == [(2, 0, 1), (2, 1, 2), (2, 2, 3)]
    assert caught.value.fields["position"] is None
    assert "and by 3 more" in caught.value.message
    for grant in held:
        locks.release(grant)


def test_a_look_in_vain_says_who_holds_it(locks: Locks) -> None:
    assert locks.wait_free("a", by="job", timeout_s=0) is None
    locks.acquire("a", by="holder")
    for timeout_s in (0, 0.01):
        why = locks.wait_free(["b", "a"], by="job", timeout_s=timeout_s)
        assert why is not None
        assert [(one.resource, one.by) for one in why.holders] == [("a", "holder")]


@pytest.mark.parametrize("timeout_s", [0, -1, 0.01])
def test_a_try_is_none_when_its_time_is_over(world: World, locks: Locks, timeout_s: float) -> None:
    locks.acquire("a", by="holder")
    assert locks.try_acquire("a", by="job", timeout_s=timeout_s) is None
    with pytest.raises(LockTimeout):
        locks.acquire("a", by="job", timeout_s=timeout_s)
    assert world.rows() == ["locks/a"]
    assert locks.try_acquire("b", by="job", timeout_s=timeout_s) is not None


@pytest.mark.parametrize("timeout_s", [None, float("inf")])
def test_without_a_time_limit_it_waits_for_as_long_as_it_takes(
    world: World, locks: Locks, timeout_s: float | None
) -> None:
    held = locks.acquire("a", by="holder")
    waiting = world.line_up("a", by="job", timeout_s=timeout_s)
    locks.release(held)
    waiting.result()


def test_a_try_with_a_time_limit_waits_for_so_long(world: World, locks: Locks) -> None:
    held = locks.acquire("a", by="holder")
    waiting = Waiter(
        lambda waits: locks.try_acquire("a", by="job", timeout_s=PATIENCE_S, on_wait=waits)
    )
    locks.release(held)
    assert waiting.result() is not None


def test_a_place_that_is_given_up_lets_those_behind_it_go(
    world: World, locks: Locks, watches: Watches
) -> None:
    locks.acquire("a", by="holder", mode="shared")
    impatient = world.line_up("a", by="impatient")
    for number in range(BACKFILL_MAX):
        locks.acquire("a", by=f"s{number}", mode="shared", timeout_s=0)
    kept = world.line_up("a", by="sharer", mode="shared")
    watches.run_out(impatient.ident)
    world.nudge()
    with pytest.raises(LockTimeout):
        impatient.result()
    assert kept.result().mode is Mode.SHARED
    assert world.queue("a") == []


def test_whoever_is_told_that_it_waits_may_end_the_wait(world: World, locks: Locks) -> None:
    """An exception out of `on_wait` ends the request, and leaves nothing of it."""
    held = locks.acquire("a", by="holder")

    def no(_: Sequence[Ahead]) -> None:
        raise KeyError("not waiting for that one")

    with pytest.raises(KeyError):
        locks.acquire("a", by="job", on_wait=no)
    with pytest.raises(KeyError):
        locks.wait("a", by="job", on_wait=no)
    assert world.queue("a") == []
    assert locks.release(held)
    assert world.rows() == []


def test_a_request_granted_while_it_is_withdrawn_is_not_kept(world: World, locks: Locks) -> None:
    held = locks.acquire("a", by="holder")

    def no(_: Sequence[Ahead]) -> None:
        locks.release(held)
        assert world.holders("a") == ["job"]
        raise KeyError("too late")

    with pytest.raises(KeyError):
        locks.acquire("a", by="job", on_wait=no)
    assert world.rows() == []


def test_whoever_waits_is_told_when_another_comes_to_be_ahead(world: World, locks: Locks) -> None:
    held = locks.acquire("a", by="holder")
    waiting = world.line_up("a", by="job")
    urgent = world.line_up("a", by="urgent", priority=1)
    waiting.until_told(2)
    locks.release(held)
    locks.release(urgent.result())
    waiting.result()
    assert [[one.by for one in ahead] for ahead in waiting.ahead] == [["holder"], ["urgent"]]
