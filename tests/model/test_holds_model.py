"""Random sequences of everything that can happen to counted holds, each answer compared with a
plain set.

One program plays all processes, on two machines and through reboots, on a clock that moves only
when told. The oracle keeps who holds what in a dict of sets and knows by itself who is gone; what
is compared after every step is who counts, for whom it counts on either machine, what is stored,
and what the journal tells.
"""

import tempfile
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from holdfast.kernel.errors import NotFound
from holdfast.kernel.holder import Holder, Place
from holdfast.kernel.limits import HOLD_LEASE_S
from holdfast.kernel.settings import JournalSettings
from holdfast.kernel.store import BEGINNING, Store
from holdfast.primitives.holds import HOLDS, Holds
from holdfast.primitives.journal import Journal
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.clock import ManualClock
from tests.harness.machine import Machine
from tests.harness.stores import ClockedStore
from tests.model.search import search

pytestmark = pytest.mark.prove

SUBJECTS = ["s", "t"]
BYS = ["a", "b", "c", "d"]
HOSTS = ["host-1", "host-2"]
SEATS = [(0, 11), (0, 12), (1, 21)]
"""The machine and pid of each process that lives at the beginning."""


World = Callable[[ManualClock], Callable[[str], Store]]
"""For a clock, what opens the one store of a new world, in a boot."""


class Claim(NamedTuple):
    """What the oracle knows of one hold."""

    process: Holder | None
    ends_at: datetime
    timed: bool


class Seated(NamedTuple):
    """A process that lives, and its view of the holds."""

    host: int
    holder: Holder
    holds: Holds


subjects = st.sampled_from(SUBJECTS)
bys = st.sampled_from(BYS)
which = st.integers(0, 5)
times_s = st.sampled_from([1.0, 60.0, HOLD_LEASE_S])


class HoldsMachine(RuleBasedStateMachine):
    """Each rule does one thing to the holds and to the oracle."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.open = world(self.clock)
        self.machines = [Machine(host) for host in HOSTS]
        self.pids = count(100)
        self.boots = count(2)
        self.dead: set[Holder] = set()
        self.sets: dict[str, dict[str, Claim]] = {subject: {} for subject in SUBJECTS}
        self.expected: list[tuple[str, str, str, int]] = []
        self.cursor = BEGINNING
        self.open_up("boot-1")

    def open_up(self, boot_id: str) -> None:
        self.store = ClockedStore(self.open(boot_id), self.clock)
        self.journal = Journal(self.store, actor="model", keep=JournalSettings(keep_s=1e9))
        self.processes = [self.begin(host, pid) for host, pid in SEATS]

    def begin(self, host: int, pid: int) -> Seated:
        seat = self.machines[host].begin(pid)
        holds = Holds(self.store, self.journal, seat)
        # What this process is to keep is noted, and nothing is done about it but by the rule below.
        holds._renewer._keeper.close()
        return Seated(host, seat.current(), holds)

    @initialize()
    def start(self) -> None:
        note(f"a store of kind {self.store.kind}")

    # --- the oracle ---

    def seen_dead(self, process: Holder | None, host: int, *, embedded: bool) -> bool:
        """Is a process dead, as seen from a machine? One of its own is seen to be; any other is
        unknown.
        """
        if process is None:
            return False
        if process.place == self.machines[host].place:
            return process in self.dead
        return embedded and process.host_id == HOSTS[host]

    def gone(self, claim: Claim, host: int) -> bool:
        """Is a hold over, as seen from a machine?"""
        if self.seen_dead(claim.process, host, embedded=self.store.embedded):
            return True
        seen = claim.process is not None and claim.process.place == self.machines[host].place
        return claim.ends_at < self.clock.now() and (claim.timed or not seen)

    def sweep_oracle(self, subject: str, host: int) -> int:
        held = self.sets[subject]
        gone = [by for by, claim in held.items() if self.gone(claim, host)]
        for by in gone:
            del held[by]
        self.expected += [("hold.swept", subject, by, len(held)) for by in gone]
        return len(gone)

    def counted(self, subject: str, host: int) -> list[str]:
        return [by for by, claim in self.sets[subject].items() if not self.gone(claim, host)]

    # --- what can happen ---

    @rule(
        at=which,
        subject=subjects,
        by=bys,
        whose=st.sampled_from(["own", "other", "none"]),
        other=which,
        ttl_s=st.none() | times_s,
    )
    def take(
        self, at: int, subject: str, by: str, whose: str, other: int, ttl_s: float | None
    ) -> None:
        asks = self.processes[at % len(self.processes)]
        if whose == "none" and ttl_s is None:
            return
        holder = {
            "own": asks.holder,
            "other": self.processes[other % len(self.processes)].holder,
            "none": None,
        }[whose]
        if whose == "own":
            got = asks.holds.take(subject, by=by, ttl_s=ttl_s)
        else:
            got = asks.holds.take(subject, by=by, process=holder, ttl_s=ttl_s)
        self.sweep_oracle(subject, asks.host)
        lease_s = HOLD_LEASE_S if ttl_s is None else ttl_s
        # A dict keeps the place of a key that is set again, which is what a holder's place is to
        # do.
        self.sets[subject][by] = Claim(
            holder, self.clock.now() + timedelta(seconds=lease_s), ttl_s is not None
        )
        self.expected.append(("hold.taken", subject, by, len(self.sets[subject])))
        assert got == len(self.sets[subject])
        self.agree()

    @rule(at=which, subject=subjects, by=bys)
    def drop(self, at: int, subject: str, by: str) -> None:
        asks = self.processes[at % len(self.processes)]
        counted = self.counted(subject, asks.host)
        if by not in counted:
            with pytest.raises(NotFound) as caught:
                asks.holds.drop(subject, by=by)
            held = f"it is held by {', '.join(counted)}" if counted else "nobody holds it"
            assert caught.value.message == f"{by} does not hold {subject}: {held}"
        else:
            self.sweep_oracle(subject, asks.host)
            del self.sets[subject][by]
            self.expected.append(("hold.dropped", subject, by, len(self.sets[subject])))
            assert asks.holds.drop(subject, by=by) == len(self.sets[subject])
        self.agree()

    @rule(at=which)
    def sweep(self, at: int) -> None:
        asks = self.processes[at % len(self.processes)]
        assert asks.holds.sweep() == sum(
            self.sweep_oracle(subject, asks.host) for subject in SUBJECTS
        )
        self.agree()

    @rule(
        seconds=st.sampled_from(
            [1.0, 30.0, 59.999_999, 60.0, HOLD_LEASE_S, HOLD_LEASE_S + 0.000_001, -100.0]
        )
    )
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.agree()

    @rule(at=which)
    def renew(self, at: int) -> None:
        """What the background does, at a moment that the test has chosen."""
        asks = self.processes[at % len(self.processes)]
        kept = list(asks.holds._renewer._keeper._held.values())
        gone = asks.holds._renewer.renew(kept)
        for one in kept:
            claim = self.sets[one.key].get(one.by)
            # Another process may have taken it since by the same name, or this one with a time to
            # live.
            own = claim is not None and claim.process == one.process and not claim.timed
            # A hold for a process of another machine lasts as long as its taker, who cannot see
            # that death.
            own = own and not self.seen_dead(one.process, asks.host, embedded=True)
            assert own == (one not in gone)
            if claim is not None and own:
                left_s = (claim.ends_at - self.clock.now()).total_seconds()
                # A look that comes before a fifth of the lease has passed is not worth a write.
                if left_s < 0.8 * HOLD_LEASE_S:
                    ends_at = self.clock.now() + timedelta(seconds=HOLD_LEASE_S)
                    self.sets[one.key][one.by] = claim._replace(ends_at=max(ends_at, claim.ends_at))
        for one in gone:
            asks.holds._renewer._keeper.discard(one)
        self.agree()

    @rule(at=which, same_pid=st.booleans())
    def die(self, at: int, same_pid: bool) -> None:
        """A process dies, and another begins, maybe with its pid."""
        slot = at % len(self.processes)
        host, holder, holds = self.processes[slot]
        holds.close()
        self.machines[host].end(holder.pid)
        self.dead.add(holder)
        self.processes[slot] = self.begin(host, holder.pid if same_pid else next(self.pids))
        self.agree()

    @precondition(lambda self: self.store.kind == "sqlite")
    @rule()
    def reboot(self) -> None:
        """The machine of the store goes down with all that runs on it, and comes up again."""
        boot_id = f"boot-{next(self.boots)}"
        for _, holder, holds in self.processes:
            holds.close()
            self.dead.add(holder)
        self.store.close()
        for host, machine in enumerate(self.machines):
            machine.close()
            machine.place = Place(HOSTS[host], boot_id, 1)
        self.open_up(boot_id)
        self.agree()

    # --- what must agree ---

    def agree(self) -> None:
        for host in range(len(HOSTS)):
            eyes = next(one.holds for one in self.processes if one.host == host)
            for subject in SUBJECTS:
                expected = self.counted(subject, host)
                assert [hold.by for hold in eyes.holders(subject)] == expected, (
                    f"{subject}, seen from {HOSTS[host]}"
                )
                assert eyes.count(subject) == len(expected)
            counts = {subject: len(self.counted(subject, host)) for subject in SUBJECTS}
            assert eyes.subjects() == {
                subject: number for subject, number in counts.items() if number
            }
        for subject in SUBJECTS:
            row = self.store.get(HOLDS, subject)
            stored = {} if row is None else {hold.by: hold for hold in row.record.holds}
            assert list(stored) == list(self.sets[subject])
            assert row is None or stored, "a record of no holders"
            for by, claim in self.sets[subject].items():
                assert (stored[by].process, stored[by].lease.expires_at) == (
                    claim.process,
                    claim.ends_at,
                )
        self.same_journal()

    def same_journal(self) -> None:
        batch = self.store.journal(self.cursor)
        self.cursor = batch.cursor
        logged = [
            (entry.kind, entry.subject, entry.data["by"], entry.data["count"])
            for entry in batch.entries
        ]
        # A sweep goes through the subjects in the order of their names, as the oracle does.
        assert logged == self.expected
        self.expected = []

    def teardown(self) -> None:
        for one in self.processes:
            one.holds.close()
        for machine in self.machines:
            machine.close()
        self.store.close()


def agree(world: World, *, examples: int, steps: int) -> None:
    search(lambda: HoldsMachine(world), examples=examples, steps=steps, same=False)


def test_holds_in_memory_agree_with_a_plain_set() -> None:
    agree(lambda clock: lambda _: MemoryStore(clock=clock), examples=150, steps=40)


def test_holds_in_sqlite_agree_with_a_plain_set() -> None:
    with tempfile.TemporaryDirectory() as folder:
        numbers = count(1)

        def world(clock: ManualClock) -> Callable[[str], Store]:
            path = Path(folder) / f"{next(numbers)}.sqlite"
            return lambda boot_id: SqliteStore(path, boot_id=boot_id, clock=clock)

        agree(world, examples=60, steps=30)


def test_holds_in_postgresql_agree_with_a_plain_set(postgres_url: str) -> None:
    from holdfast.stores.postgres import open_postgres

    numbers = count(1)

    def world(_: ManualClock) -> Callable[[str], Store]:
        namespace = f"w{next(numbers)}"
        return lambda _: open_postgres(postgres_url, namespace=namespace)

    agree(world, examples=30, steps=25)
