"""Random sequences of everything that can happen to workflows and swaps, each answer compared with
a plain dictionary.

One program plays all processes, on two machines, on a clock that moves only when told. The oracle
knows by itself who is gone, whether anybody stands behind a swap and what a request to yield has
become. Compared after every step: the answer or the error, what is stored, which signal files lie
there, who has the swap lock, and what the journal tells.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from holdfast.domains.workflows import Swap, Workflows
from holdfast.domains.workflows.wire import (
    CURRENT_RECIPE,
    ONLY,
    SCOPE,
    SWAP_MARKER,
    UNKNOWN_RECIPE,
    WORKFLOWS,
)
from holdfast.kernel.errors import (
    EAgain,
    Fenced,
    Held,
    HoldfastError,
    InvalidValue,
    LeaseLost,
    LockTimeout,
    NotFound,
    NotLoaded,
)
from holdfast.kernel.holder import Holder
from holdfast.kernel.settings import JournalSettings
from holdfast.kernel.store import BEGINNING, Entry, Store
from holdfast.primitives.journal import Journal
from holdfast.runtime.configuration import PLACES
from holdfast.stores.files.store import FilesStore
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.clock import ManualClock
from tests.harness.machine import Machine
from tests.harness.stores import ClockedStore
from tests.model.search import search
from tests.unit.swap_world import lose_lock
from tests.unit.workflows_world import lock_on, seen_by

pytestmark = pytest.mark.prove

NAMES = ["a", "b", "c"]
RECIPES = ["llama", "qwen"]
HOSTS = ["host-1", "host-2"]
SEATS = [(0, 11), (0, 12), (1, 21)]
"""The machine and pid of each process that lives at the beginning."""

World = Callable[[ManualClock], Store]


@dataclass(frozen=True)
class Flow:
    """What the oracle knows of one workflow."""

    recipe: str
    owner: Holder
    host: int
    ends_at: datetime
    ttl_s: float
    preemptible: bool
    token: int
    state: str = "none"
    swap: int = 0

    @property
    def asked(self) -> bool:
        return self.state in ("requested", "ignored")


@dataclass
class Running:
    """The oracle's facts about the swap of the marker."""

    recipe: str
    slot: int
    token: int
    swap: Swap
    locked: bool = True
    needed: bool = True
    reload: bool = False
    holder: Holder | None = None


class Seated(NamedTuple):
    """A process that lives, and the workflows as it sees them."""

    host: int
    holder: Holder
    workflows: Workflows


names = st.sampled_from(NAMES)
recipes = st.sampled_from(RECIPES)
which = st.integers(0, 5)
times_s = st.sampled_from([1.0, 60.0])


class WorkflowsMachine(RuleBasedStateMachine):
    """Each rule does one thing to the workflows and to the oracle."""

    def __init__(self, world: World, folder: Path) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.real = world(self.clock)
        self.store = ClockedStore(self.real, self.clock)
        self.journal = Journal(self.store, actor="model", keep=JournalSettings(keep_s=1e9))
        self.lock = lock_on(self.real)
        self.folder = folder
        self.machines = [Machine(host) for host in HOSTS]
        self.pids = count(100)
        self.processes = [self.begin(host, pid) for host, pid in SEATS]
        self.dead: set[Holder] = set()
        self.flows: dict[str, Flow] = {}
        self.files: dict[tuple[str, int], int] = {}
        self.marker: Running | None = None
        self.lost: Running | None = None
        self.current: str | None = None
        self.unknown: str | None = None
        self.expected: list[tuple[str, str]] = []
        self.cursor = BEGINNING

    def begin(self, host: int, pid: int) -> Seated:
        seat = self.machines[host].begin(pid)
        workflows = seen_by(
            seat, self.real, self.store, self.journal, lock=self.lock, signals=self.folder
        )
        return Seated(host, seat.current(), workflows)

    @initialize()
    def start(self) -> None:
        note(f"a store of kind {self.store.kind}")

    # --- the oracle ---

    def gone(self, flow: Flow, host: int) -> bool:
        return flow.ends_at < self.clock.now() or (flow.host == host and flow.owner in self.dead)

    def tell(self, kind: str, subject: str) -> None:
        self.expected.append((kind, subject))

    def drop(self, name: str, host: int) -> Flow:
        flow = self.flows.pop(name)
        if flow.host == host:
            self.files.pop((name, flow.token), None)
        return flow

    def unmark(self, host: int) -> None:
        assert self.marker is not None
        for name, flow in self.flows.items():
            if flow.swap == self.marker.token and flow.state != "none":
                self.flows[name] = replace(flow, state="none", swap=0)
                if flow.host == host:
                    self.files.pop((name, flow.token), None)
        self.marker = None

    def change(self, host: int, spare: int = 0) -> None:
        """What every change begins with."""
        for name in sorted(self.flows):
            flow = self.flows[name]
            if flow.token != spare and self.gone(flow, host):
                if flow.asked and flow.host == host and flow.owner in self.dead:
                    self.tell("swap.preempt_yielded", name)
                self.drop(name, host)
                self.tell("workflow.swept", name)
        if self.marker is not None and not self.marker.locked:
            self.tell("swap.orphan_marker_cleared", self.marker.recipe)
            self.begun_to_load(self.marker)
            self.unmark(host)

    def anew(self, asks: Holder) -> bool:
        """Is the recipe under way one that another loads again?"""
        return self.marker is not None and self.marker.reload and self.marker.holder != asks

    def begun_to_load(self, running: Running) -> None:
        """A load began whose end nobody has seen to be a good one."""
        if running.needed:
            self.current, self.unknown = None, running.recipe

    def tidy(self, host: int) -> None:
        """What every change ends with: signals of swaps that are over are taken back, by a process
        of that machine.
        """
        live = 0 if self.marker is None else self.marker.token
        for name, flow in self.flows.items():
            if (
                flow.state == "none"
                and flow.host == host
                and self.files.get((name, flow.token), 0) not in (0, live)
            ):
                del self.files[name, flow.token]

    def seat(self, at: int) -> Seated:
        return self.processes[at % len(self.processes)]

    def token_for(self, name: str, stale: bool) -> int:
        flow = self.flows.get(name)
        return 7 if flow is None or stale else flow.token

    # --- workflows ---

    @rule(
        at=which,
        name=names,
        recipe=recipes,
        ttl_s=times_s,
        preemptible=st.booleans(),
        loaded_only=st.booleans(),
    )
    def register(
        self, at: int, name: str, recipe: str, ttl_s: float, preemptible: bool, loaded_only: bool
    ) -> None:
        asks = self.seat(at)
        self.change(asks.host)
        before = self.flows.get(name)
        ends_at = self.clock.now() + timedelta(seconds=ttl_s)

        def call() -> object:
            return asks.workflows.register(
                name, recipe, ttl_s=ttl_s, preemptible=preemptible, loaded_only=loaded_only
            )

        wrong = loaded_only and self.current != recipe
        if self.marker is not None and (
            self.marker.recipe != recipe or self.anew(asks.holder) or wrong
        ):
            self.fails(EAgain, call)
        elif before is not None and before.owner != asks.holder:
            self.fails(Held, call)
        elif wrong and (self.current, self.unknown) != (None, None):
            self.fails(NotLoaded, call)
        else:
            registered = asks.workflows.register(
                name, recipe, ttl_s=ttl_s, preemptible=preemptible, loaded_only=loaded_only
            )
            workflow = registered.workflow
            assert registered.swap_needed == (self.current != recipe)
            assert registered.renewed == (before is not None)
            if before is None:
                self.tell("workflow.registered", name)
                before = Flow(
                    recipe, asks.holder, asks.host, ends_at, ttl_s, preemptible, workflow.token
                )
            assert workflow.token == before.token
            # The clock may have been stepped back since the last renewal, which is not undone by
            # that.
            renewed_at = max(before.ends_at - timedelta(seconds=before.ttl_s), self.clock.now())
            self.flows[name] = replace(
                before,
                recipe=recipe,
                ttl_s=ttl_s,
                preemptible=preemptible,
                ends_at=renewed_at + timedelta(seconds=ttl_s),
            )
        self.tidy(asks.host)
        self.agree()

    @rule(at=which, name=names, stale=st.booleans())
    def renew(self, at: int, name: str, stale: bool) -> None:
        asks, flow, token = self.seat(at), self.flows.get(name), self.token_for(name, stale)
        if flow is None:
            self.fails(LeaseLost, lambda: asks.workflows.renew(name, token))
        elif stale:
            self.fails(Fenced, lambda: asks.workflows.renew(name, token))
        else:
            asks.workflows.renew(name, token)
            ends_at = self.clock.now() + timedelta(seconds=flow.ttl_s)
            self.flows[name] = replace(flow, ends_at=max(flow.ends_at, ends_at))
        self.agree()

    @rule(at=which, name=names, stale=st.booleans())
    def release(self, at: int, name: str, stale: bool) -> None:
        asks, token = self.seat(at), self.token_for(name, stale)
        self.change(asks.host, spare=token)
        flow = self.flows.get(name)
        if flow is None:
            self.fails(NotFound, lambda: asks.workflows.release(name, token))
        elif flow.token != token:
            self.fails(Fenced, lambda: asks.workflows.release(name, token))
        else:
            asks.workflows.release(name, token)
            if flow.asked:
                self.tell("swap.preempt_yielded", name)
            self.drop(name, asks.host)
            self.tell("workflow.released", name)
        self.tidy(asks.host)
        self.agree()

    @rule(at=which, name=names)
    def request_preempt(self, at: int, name: str) -> None:
        asks = self.seat(at)
        flow = self.flows.get(name)
        if flow is not None and not self.gone(flow, asks.host) and not flow.preemptible:
            # A mistake changes nothing at all, and sweeps nobody either.
            self.fails(InvalidValue, lambda: asks.workflows.request_preempt(name))
            return
        self.change(asks.host)
        if name not in self.flows:
            self.fails(NotFound, lambda: asks.workflows.request_preempt(name))
        else:
            asks.workflows.request_preempt(name)
            if self.flows[name].state == "none":
                self.ask(name, asks.host)
        self.tidy(asks.host)
        self.agree()

    def ask(self, name: str, host: int) -> None:
        swap = 0 if self.marker is None else self.marker.token
        self.flows[name] = replace(self.flows[name], state="requested", swap=swap)
        self.tell("swap.preempt_requested", name)
        if self.flows[name].host == host:
            self.files.setdefault((name, self.flows[name].token), swap)

    @rule(at=which, name=names)
    def clear_preempt_signal(self, at: int, name: str) -> None:
        asks, token = self.seat(at), self.token_for(name, False)
        self.change(asks.host, spare=token)
        flow = self.flows.get(name)
        if flow is None:
            self.fails(LeaseLost, lambda: asks.workflows.clear_preempt_signal(name, token))
        else:
            asks.workflows.clear_preempt_signal(name, token)
            if flow.asked:
                self.tell("swap.preempt_yielded", name)
                self.flows[name] = replace(flow, state="yielded")
            if flow.host == asks.host:
                self.files.pop((name, token), None)
        self.tidy(asks.host)
        self.agree()

    @rule(at=which, how=st.sampled_from(["list", "sweep", "reconcile"]))
    def look(self, at: int, how: str) -> None:
        asks = self.seat(at)
        marked = self.marker is not None
        before = dict(self.flows)
        idle = not marked and not any(self.gone(flow, asks.host) for flow in before.values())
        if how == "reconcile" and not marked:
            assert asks.workflows.reconcile_swap_marker() == (None, None)
            return
        self.change(asks.host)
        if how == "list":
            status = asks.workflows.swap_status()
            assert [workflow.name for workflow in status.workflows] == sorted(self.flows)
            assert (status.marker is None) == (self.marker is None)
            assert (None if status.current is None else status.current.recipe) == self.current
            assert (None if status.unknown is None else status.unknown.recipe) == self.unknown
            self.tidy(asks.host)
        elif how == "sweep":
            assert [workflow.name for workflow in asks.workflows.sweep()] == sorted(
                set(before) - set(self.flows)
            )
            if not idle:
                self.tidy(asks.host)
        else:
            live, cleared = asks.workflows.reconcile_swap_marker()
            assert (live is None) == (self.marker is None) and (cleared is None) == (
                live is not None
            )
            self.tidy(asks.host)
        self.agree()

    # --- swaps ---

    @rule(
        at=which,
        recipe=recipes,
        refuse=st.booleans(),
        grace_s=st.sampled_from([0.0, 30.0]),
        reload=st.booleans(),
    )
    def begin_swap(self, at: int, recipe: str, refuse: bool, grace_s: float, reload: bool) -> None:
        slot = at % len(self.processes)
        asks = self.processes[slot]
        self.change(asks.host)
        self.tidy(asks.host)
        policy = "refuse" if refuse else "wait"
        swap = asks.workflows.swap(
            recipe, grace_s=grace_s, timeout_s=0, policy=policy, reload=reload
        )
        is_loaded = self.current == recipe
        if self.marker is not None:
            self.fails(LockTimeout, swap.__enter__)
            self.tell("swap.refused", recipe)
        elif is_loaded and not reload:
            swap.__enter__()
            assert not swap.needed
            self.marker = Running(recipe, slot, swap.token, swap, needed=False)
        else:
            self.tell("swap.started", recipe)
            own = asks.holder if is_loaded else None
            error = self.drained(recipe, asks.host, refuse=refuse, late=grace_s == 0, own=own)
            if error is None:
                swap.__enter__()
                assert swap.needed
                self.marker = Running(
                    recipe, slot, swap.token, swap, reload=is_loaded, holder=asks.holder
                )
                self.begun_to_load(self.marker)
            else:
                self.fails(error, swap.__enter__)
                self.tell("swap.refused", recipe)
        self.tidy(asks.host)
        self.agree()

    def drained(
        self, recipe: str, host: int, *, refuse: bool, late: bool, own: Holder | None
    ) -> type[HoldfastError] | None:
        """How a swap that waits for nobody comes out; whom it asks need not yield when it was
        refused. A reload, by `own`, is kept waiting by others' work with the same recipe too.
        """
        conflicts = sorted(
            name
            for name, flow in self.flows.items()
            if flow.recipe != recipe or (own is not None and flow.owner != own)
        )
        if not conflicts:
            return None
        if refuse and not all(self.flows[name].preemptible for name in conflicts):
            return Held
        stubborn = False
        for name in conflicts:
            flow = self.flows[name]
            if flow.preemptible and flow.state in ("none", "yielded"):
                # Work that yielded to an operator, and is still registered, is asked again.
                self.flows[name] = replace(flow, state="none", swap=0)
                self.tell("swap.preempt_requested", name)
                if late:
                    self.tell("swap.preempt_ignored", name)
                # Asked for this swap, and free again as it is refused. So its file comes and goes,
                # unless the machine is another.
                if flow.host == host:
                    self.files.pop((name, flow.token), None)
                stubborn |= late
            elif flow.preemptible and late:
                # An operator had asked, and the request outlives the swap.
                self.tell("swap.preempt_ignored", name)
                stubborn = True
            else:
                stubborn |= not flow.preemptible
        return Held if stubborn and refuse else LockTimeout

    @precondition(lambda self: self.marker is not None or self.lost is not None)
    @rule(how=st.sampled_from(["complete", "fail"]))
    def end_swap(self, how: str) -> None:
        running = self.marker or self.lost
        assert running is not None
        asks = self.processes[running.slot]
        self.change(asks.host)
        mine = self.marker is running
        if how == "fail":
            running.swap.fail("out of memory")
            if mine:
                self.tell("swap.failed", running.recipe)
                self.unmark(asks.host)
        elif mine:
            running.swap.__exit__(None, None, None)
            self.current, self.unknown = running.recipe, None
            self.unmark(asks.host)
            self.tell("swap.completed" if running.needed else "swap.not_needed", running.recipe)
        else:
            self.fails(LeaseLost, lambda: running.swap.__exit__(None, None, None))
        self.lost = None
        self.tidy(asks.host)
        self.agree()

    @precondition(lambda self: self.marker is not None and self.marker.locked and self.lost is None)
    @rule()
    def lose_the_lock(self) -> None:
        """What carried the lock is gone, as a database's session can be, while the swapper lives
        on.
        """
        assert self.marker is not None
        lose_lock(self.marker.swap)
        self.marker.locked = False
        self.lost = self.marker
        self.agree()

    @rule(at=which, same_pid=st.booleans())
    def die(self, at: int, same_pid: bool) -> None:
        """A process dies with what it holds, and another begins, maybe with its pid."""
        slot = at % len(self.processes)
        host, holder, _ = self.processes[slot]
        self.machines[host].end(holder.pid)
        self.dead.add(holder)
        if self.marker is not None and self.marker.slot == slot:
            lose_lock(self.marker.swap)
            self.marker.locked = False
        if self.lost is not None and self.lost.slot == slot:
            self.lost = None
        self.processes[slot] = self.begin(host, holder.pid if same_pid else next(self.pids))
        self.agree()

    @rule(seconds=st.sampled_from([0.5, 1.0, 1.000_001, 59.0, 60.000_001, -30.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.agree()

    # --- what must agree ---

    def fails(self, error: type[HoldfastError], call: Callable[[], object]) -> None:
        with pytest.raises(error):
            call()

    def agree(self) -> None:
        rows, marker, current, unknown = self.store.read(
            lambda tx: (
                tx.range(WORKFLOWS),
                tx.get(SWAP_MARKER, ONLY),
                tx.get(CURRENT_RECIPE, ONLY),
                tx.get(UNKNOWN_RECIPE, ONLY),
            ),
            scope=SCOPE,
        )
        stored = {
            row.key: (
                row.record.recipe,
                row.record.owner,
                row.record.lease.expires_at,
                row.record.preemptible,
                row.record.token,
                row.record.preempt.value,
            )
            for row in rows
        }
        assert stored == {
            name: (flow.recipe, flow.owner, flow.ends_at, flow.preemptible, flow.token, flow.state)
            for name, flow in self.flows.items()
        }
        assert (None if marker is None else marker.record.token) == (
            None if self.marker is None else self.marker.token
        )
        assert (None if current is None else current.record.recipe) == self.current
        assert (None if unknown is None else unknown.record.recipe) == self.unknown
        assert self.lock.is_held() == (self.marker is not None and self.marker.locked)
        self.same_files()
        self.same_journal()

    def same_files(self) -> None:
        there = {path.name for path in self.folder.iterdir()} if self.folder.exists() else set()
        assert there == {f"{name}-{token}.preempt" for name, token in self.files}

    def same_journal(self) -> None:
        batch = self.store.journal(self.cursor)
        self.cursor = batch.cursor
        assert [_summary(entry) for entry in batch.entries] == self.expected
        self.expected = []

    def teardown(self) -> None:
        for running in (self.marker, self.lost):
            if running is not None:
                lose_lock(running.swap)
        for machine in self.machines:
            machine.close()
        for path in self.folder.iterdir() if self.folder.exists() else ():
            path.unlink()
        self.store.close()


def _summary(entry: Entry) -> tuple[str, str]:
    """An entry's kind, and the workflow or the recipe that it is about."""
    return entry.kind, str(entry.data["who"]) if "preempt" in entry.kind else entry.subject


def agree(world: World, folder: Path, *, examples: int, steps: int) -> None:
    search(lambda: WorkflowsMachine(world, folder), examples=examples, steps=steps, same=False)


def test_workflows_in_memory_agree_with_a_plain_dictionary(tmp_path: Path) -> None:
    agree(lambda clock: MemoryStore(clock=clock), tmp_path / "signals", examples=80, steps=35)


def test_workflows_in_sqlite_agree_with_a_plain_dictionary(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        numbers = count(1)

        def world(clock: ManualClock) -> Store:
            return SqliteStore(
                Path(folder) / f"{next(numbers)}.sqlite", boot_id="boot-1", clock=clock
            )

        agree(world, tmp_path / "signals", examples=20, steps=25)


def test_workflows_in_plain_files_agree_with_a_plain_dictionary(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        numbers = count(1)

        def world(clock: ManualClock) -> Store:
            # Each with the place of its log beside it, which tells of one journal only.
            (tmp_path / "own" / "swap_log.cursor").unlink(missing_ok=True)
            return FilesStore(
                Path(folder) / str(next(numbers)), boot_id="boot-1", clock=clock, folders=PLACES
            )

        agree(world, tmp_path / "own" / "signals", examples=10, steps=20)


def test_workflows_in_postgresql_agree_with_a_plain_dictionary(
    postgres_url: str, tmp_path: Path
) -> None:
    from holdfast.stores.postgres import open_postgres

    numbers = count(1)
    agree(
        lambda _: open_postgres(postgres_url, namespace=f"w{next(numbers)}"),
        tmp_path / "signals",
        examples=12,
        steps=20,
    )
