"""The state machine that compares the lock table with its oracle: see `test_lock_model.py`."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import combinations, count
from typing import Any, NamedTuple, TypeVar
from unittest import mock

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from msgspec.structs import replace

from holdfast.kernel import lease as leases
from holdfast.kernel.holder import Holder, Liveness
from holdfast.kernel.settings import JournalSettings, LockSettings
from holdfast.kernel.store import Store, Tx
from holdfast.primitives.journal import Journal
from holdfast.primitives.locks import policy
from holdfast.primitives.locks.records import (
    LOCK_WAITS,
    LOCKS,
    Lock,
    LockHold,
    Mode,
    Waiter,
    conflict,
    lock_in,
)
from holdfast.primitives.locks.transaction import SCOPE, LockTransaction, Suspect, lost_topic
from holdfast.primitives.locks.wait import Ahead, all_ahead, as_ahead
from holdfast.primitives.steady_clock import steady_clock
from holdfast.testing.clock import ManualClock
from tests.model.lock_oracle import (
    AGAIN,
    DEAD,
    Choices,
    LockOracle,
    OracleHold,
    OracleRequest,
    Step,
    within,
)

T = TypeVar("T")


LEASE_S = 30.0


AGE_S = 10.0


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


NAMES = ["a", "b", "c", "d", "e"]


JOBS = ["j0", "j1", "j2", "j3", "j0/x", "j0/y", "j1/x"]


SLOTS = 3
"""Processes that live at one time; the last is on another machine, where nothing of the others can
be seen.
"""


SEARCH_MAX = 300
"""How many ways of what is left open are tried."""


def _us(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)


class _Recorded:
    """A transaction on the test's clock, whose notices are written down."""

    def __init__(self, tx: Tx, now: datetime) -> None:
        self._tx = tx
        self.now = now
        self.notified: list[str] = []

    def notify(self, topic: str) -> None:
        self.notified.append(topic)
        self._tx.notify(topic)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)


class Seen(NamedTuple):
    """The lock table as its rows show it."""

    holds: dict[str, LockHold]
    on: dict[str, list[LockHold]]
    """The holds on each name that has a row."""
    waited: dict[str, bool]
    queues: dict[str, list[str]]
    requests: dict[str, Waiter]
    notices: dict[str, str]


names_st = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True).map(tuple)


modes = st.sampled_from([Mode.EXCLUSIVE, Mode.EXCLUSIVE, Mode.SHARED])


which = st.integers(0, 30)


class LockMachine(RuleBasedStateMachine):
    """Each rule does one thing to the lock table and to the oracle."""

    def __init__(
        self,
        open_store: Callable[[ManualClock], Store],
        *,
        several: bool,
        wakes: bool,
        say: Callable[[str], None] = note,
    ) -> None:
        super().__init__()
        self.say = say
        self.several = several
        """Jobs have several threads and parts: they ask while they wait."""
        self.wakes = wakes
        """Waiters know only what they were woken for; otherwise they look after every step."""
        self.clock = ManualClock()
        self.store = open_store(self.clock)
        self.journal = Journal(self.store, actor="model", keep=JournalSettings(keep_s=1e9))
        self.numbers = count(1)
        self.pids = count(100)
        self.processes = [self.new_process(slot) for slot in range(SLOTS)]
        self.dead: set[Holder] = set()
        self.drafts: dict[str, Waiter] = {}
        """Those that wait or got a notice."""
        self.known: dict[str, list[Ahead]] = {}
        """Whom each waiter knows to be just ahead of it."""
        self.awaited: dict[str, Waiter] = {}
        """Grants whose waiter has still to wake and pass them on."""
        self.quick: dict[str, int] = {}
        """The tokens of grants that were taken the quick way."""
        self.greatest: dict[str, int] = {}
        """The greatest token that was ever given for each name."""
        self.seen = Seen({}, {}, {}, {}, {}, {})
        self.fresh: Seen | None = None
        self.cursor = ""
        self.broken = True
        """A step is under way or went wrong: there is no sense in going on."""

    @initialize(
        backfill_max=st.sampled_from([0, 1, 2, 4]),
        tell_all=st.booleans(),
        journal_waits_s=st.sampled_from([0, 1]),
    )
    def begin(self, backfill_max: int, tell_all: bool, journal_waits_s: float = 0) -> None:
        self.settings = LockSettings(
            lease_s=LEASE_S,
            priority_age_s=AGE_S,
            journal="all" if tell_all else "contended",
            journal_waits_s=journal_waits_s,
        )
        # The bound is small enough to be met in a short sequence.
        self.bound = mock.patch.object(policy, "BACKFILL_MAX", backfill_max)
        self.bound.start()
        self.oracle = LockOracle(
            backfill_max=backfill_max, age_us=int(AGE_S * 1e6), lease_us=int(LEASE_S * 1e6)
        )
        self.broken = False

    def teardown(self) -> None:
        try:
            if not self.broken:
                self.drain()
        finally:
            self.bound.stop()
            self.store.close()

    def new_process(self, slot: int) -> Holder:
        host = "there" if slot == SLOTS - 1 else "here"
        return Holder(host_id=host, boot_id="boot", pid_ns=1, pid=next(self.pids), start_ticks=1)

    # Requests.

    @rule(
        job=st.sampled_from(JOBS),
        names=names_st,
        mode=modes,
        priority=st.sampled_from([0, 0, 0, 0, -1, 1, 2]),
        look=st.sampled_from([False] * 5 + [True]),
        ttl_s=st.sampled_from([None, None, None, 5.0, 60.0]),
        slot=st.integers(0, SLOTS - 1),
        behalf=st.sampled_from(["self"] * 5 + ["other", "nobody"]),
        quickly=st.booleans(),
        waits=st.sampled_from([True] * 6 + [False]),
    )
    def ask(
        self,
        job: str,
        names: tuple[str, ...],
        mode: Mode,
        priority: int,
        look: bool,
        ttl_s: float | None,
        slot: int,
        behalf: str,
        quickly: bool,
        waits: bool,
    ) -> None:
        if not self.several and any(
            _whole(request.by) == _whole(job) for request in self.oracle.waiting
        ):
            return
        process = self.processes[slot]
        grantee: Holder | None = process
        if look:
            behalf = "self"
        if behalf == "other":
            grantee = self.processes[(slot + 1) % SLOTS]
        elif behalf == "nobody":
            grantee, ttl_s = None, ttl_s or 5.0
        request_id = f"{process.pid}-{next(self.numbers)}"
        draft = Waiter(
            id=request_id,
            name=names[0],
            names=names,
            mode=mode,
            wait_only=look,
            by=job,
            priority=priority,
            rank=0,
            arrival=0,
            arrived_at=self.clock.now(),
            process=process,
            grantee=None if grantee == process else grantee,
            unattended=grantee is None,
            ttl_s=None if look else ttl_s,
            lease=leases.grant(self.clock.now(), LEASE_S),
            address=f"@{request_id}",
        )
        if (
            quickly
            and waits
            and not look
            and self.settings.journal != "all"
            and self.take_quickly(draft)
        ):
            return
        self.ask_slowly(draft, waits=waits)

    def take_quickly(self, draft: Waiter) -> bool:
        """As `acquire` first tries: one statement, for what nobody holds or waits for."""
        ttl_s = LEASE_S if draft.ttl_s is None else draft.ttl_s
        lease = leases.grant(self.clock.now(), ttl_s, explicit=draft.ttl_s is not None)
        hold = LockHold(
            id=draft.id,
            by=draft.by,
            mode=draft.mode,
            names=draft.names,
            lease=lease,
            process=draft.holder,
            on_behalf=draft.grantee is not None,
            ttl_s=draft.ttl_s,
        )
        token = self.store.put_new(LOCKS, [(name, Lock(holds=(hold,))) for name in draft.names])
        self.say(
            f"{draft.id} {draft.by} {draft.names} {draft.mode.value} taken quickly: "
            f"{token is not None}"
        )
        assert self.oracle.take_if_alone(_oracle_request(draft), self.now_us) == (token is not None)
        if token is None:
            return False
        self.quick[draft.id] = token
        self.after(Step(granted=[draft.id]), [])
        return True

    def ask_slowly(self, draft: Waiter, *, waits: bool = True, again: bool = False) -> None:
        """The same steps as a request that may have to wait: it checks the holders of its own job
        and of a cycle, and asks again if one of them was gone.
        """
        self.drafts[draft.id] = draft
        while True:
            (answer, found), notified = self.transact(
                partial(self.asked, draft=draft, waits=waits, again=again)
            )
            again = False
            self.say(
                f"{draft.id} {draft.by} {draft.names} {draft.mode.value} look={draft.wait_only} "
                f"priority={draft.priority} "
                f"ttl={draft.ttl_s} by {_pid(draft.process)} for {_pid(draft.holder)} "
                f"waits={waits}: {answer}"
            )
            if answer != "doubt":
                break
            self.after(Step(), notified)
            self.reap(draft.process, found)
        expected, step = self.follow(
            lambda oracle: oracle.ask(_oracle_request(draft), self.now_us, waits=waits)
        )
        assert answer == expected, f"{draft.id} was {answer} and should be {expected}"
        if answer == "own":
            covered = {name for hold in found for name in hold.names}
            assert all(within(draft.by, hold.by) for hold in found) and covered >= set(draft.names)
        if answer == "deadlock":
            self.check_cycle(draft, found)
        if answer != "waiting":
            del self.drafts[draft.id]
        self.after(
            step, notified, asker=draft.id, expected_journal=self.asked_journal(draft, answer)
        )

    def asked(
        self, transaction: LockTransaction, draft: Waiter, *, waits: bool, again: bool
    ) -> tuple[str, Any]:
        if again:
            reported = transaction.table.waiter(draft.id)
            assert reported is not None
            transaction.table.delete_outcome(reported)
        own = list(transaction.own_holds(draft).values())
        if gone := self.suspects(draft.process, map(as_ahead, own)):
            return "doubt", gone
        if own and not policy.names_to_take(transaction.table, draft):
            return "own", own
        found = transaction.grant_or_queue(draft) if waits else transaction.grant_or_refuse(draft)
        if found is None:
            return "free", None
        if isinstance(found, LockHold):
            return "granted", found
        if isinstance(found, Waiter):
            if (
                waits
                and (current := transaction.table.waiter(draft.id)) is not None
                and current.outcome is None
            ):
                self.known[draft.id] = all_ahead(transaction.table, current)
            return "waiting" if waits else "refused", None
        involved = [
            one
            for step in found
            for one in (as_ahead(step.hold), as_ahead(step.waiter))
            if one.id != draft.id
        ]
        if gone := self.suspects(draft.process, involved):
            return "doubt", gone
        transaction.refuse(found)
        return "deadlock", found

    def asked_journal(self, draft: Waiter, answer: str) -> list[tuple[str, str, str]]:
        kind = {"waiting": "lock.waiting", "deadlock": "lock.deadlock"}.get(answer)
        if answer == "waiting" and self.settings.report_waits_s is not None:
            # Its waiter reports it later, if it lasts.
            kind = None
        return [] if kind is None else [(kind, name, draft.by) for name in draft.names]

    def check_cycle(self, draft: Waiter, steps: Sequence[policy.CycleStep]) -> None:
        """The cycle in a job's deadlock error is true: each waits for what the next holds, and the
        last for its own.
        """
        assert steps[0].waiter.by == draft.by
        for step, following in zip(steps, [*steps[1:], steps[0]], strict=True):
            assert within(following.waiter.by, step.hold.by)
            assert step.name in step.waiter.names
            assert any(
                hold.id == step.hold.id and step.name in hold.names for hold in self.oracle.holds
            )

    @precondition(lambda self: self.patient())
    @rule(at=which)
    def leave(self, at: int) -> None:
        request = self.drafts[self.pick(self.patient(), at)]
        self.say(f"{request.id} leaves")

        def body(transaction: LockTransaction) -> None:
            current = transaction.table.waiter(request.id)
            assert current is not None
            transaction.leave(current, "lock.timed_out")

        _, notified = self.transact(body)
        _, step = self.follow(lambda oracle: ("", oracle.leave(request.id, self.now_us)))
        self.forget(request.id)
        self.after(
            step,
            notified,
            expected_journal=[("lock.timed_out", name, request.by) for name in request.names],
        )

    @precondition(lambda self: self.listening())
    @rule(at=which)
    def collect(self, at: int) -> None:
        """A waiter reads its answer, and asks again if the answer says so."""
        self.read_outcome(self.pick(self.listening(), at))

    def read_outcome(self, request_id: str) -> None:
        outcome = self.oracle.collect(request_id)
        self.say(f"{request_id} reads that it was told {outcome}")
        draft = self.drafts[request_id]
        self.forget(request_id)
        if outcome == AGAIN:
            self.ask_slowly(draft, again=True)
            return

        def body(transaction: LockTransaction) -> None:
            reported = transaction.table.waiter(request_id)
            assert reported is not None
            transaction.table.delete_outcome(reported)

        _, notified = self.transact(body)
        self.after(Step(), notified)

    @precondition(lambda self: self.patient())
    @rule(at=which)
    def sign_of_life(self, at: int) -> None:
        request_id = self.pick(self.patient(), at)
        self.say(f"{request_id} is alive")

        def body(transaction: LockTransaction) -> None:
            current = transaction.table.waiter(request_id)
            assert current is not None
            transaction.refresh(current)

        _, notified = self.transact(body)
        self.oracle.sign_of_life(request_id, self.now_us)
        self.after(Step(), notified)

    @precondition(lambda self: self.patient())
    @rule(at=which)
    def report(self, at: int) -> None:
        """A waiter reports that it has waited long."""
        request_id = self.pick(self.patient(), at)
        self.say(f"{request_id} reports its wait")

        def body(transaction: LockTransaction) -> None:
            current = transaction.table.waiter(request_id)
            assert current is not None
            transaction.report_wait(current)

        _, notified = self.transact(body)
        draft = self.drafts[request_id]
        reported = [("lock.waiting", name, draft.by) for name in draft.names]
        self.after(Step(), notified, expected_journal=reported)

    @precondition(lambda self: self.waking())
    @rule(at=which)
    def pass_on(self, at: int) -> None:
        """A waiter that was granted something for another wakes, and gives it to that one."""
        hold_id = self.pick(self.waking(), at)
        process = self.awaited.pop(hold_id).holder
        self.say(f"{hold_id} is passed on to {_pid(process)}")
        hold = self.seen.holds[hold_id]

        def body(transaction: LockTransaction) -> None:
            current = transaction.table.find_hold(hold_id, hold.names)
            assert current is not None
            transaction.transfer(current, process)

        _, notified = self.transact(body)
        self.after(Step(), notified)

    # Grants.

    @precondition(lambda self: self.oracle.holds)
    @rule(at=which)
    def release(self, at: int) -> None:
        self.release_hold(self.pick([hold.id for hold in self.oracle.holds], at))

    def release_hold(self, hold_id: str) -> None:
        self.say(f"{hold_id} is released")
        hold, token = self.seen.holds[hold_id], self.quick.pop(hold_id, None)
        freed = 0 if token is None else self.store.delete_if(LOCKS, hold.names, token)
        notified: list[str] = []
        if freed < len(hold.names):

            def body(transaction: LockTransaction) -> None:
                current = transaction.table.find_hold(hold_id, hold.names)
                assert current is not None
                transaction.release(current)

            _, notified = self.transact(body)
        _, step = self.follow(lambda oracle: ("", oracle.release([hold_id], self.now_us)))
        self.after(step, notified)

    @precondition(lambda self: self.oracle.holds)
    @rule(at=which, names=names_st)
    def free(self, at: int, names: tuple[str, ...]) -> None:
        """A job releases some names, whichever grants hold them."""
        by = self.oracle.holds[at % len(self.oracle.holds)].by

        freed, notified = self.transact(lambda transaction: transaction.free(names, by)[0])
        self.say(f"{by} lets go of {names}: {freed}")
        # Expired names are released too, but no longer belonged to the job.
        mine = [
            hold
            for hold in self.oracle.holds
            if hold.by == by and not self.oracle.over(hold, "alive", self.now_us)
        ]
        held = {name for hold in mine for name in hold.names}
        assert set(freed) == held & set(names)
        ids = [hold.id for hold in self.oracle.holds if hold.by == by]
        _, step = self.follow(lambda oracle: ("", oracle.release(ids, self.now_us, names=names)))
        self.after(step, notified)

    @precondition(lambda self: self.oracle.holds)
    @rule(at=which, alone=st.booleans())
    def kick(self, at: int, alone: bool) -> None:
        """As an operator does: all holders of a name, or one job."""
        chosen = self.oracle.holds[at % len(self.oracle.holds)]
        name, by = chosen.names[0], chosen.by if alone else None

        def body(transaction: LockTransaction) -> list[LockHold]:
            holds = [hold for hold in transaction.table.lock(name).holds if by in (None, hold.by)]
            for hold in holds:
                transaction.revoke(hold, "lock.kicked", why="model")
            transaction.hand_over([other for hold in holds for other in hold.names])
            return holds

        kicked, notified = self.transact(body)
        self.say(f"{[hold.id for hold in kicked]} were kicked from {name}")
        assert {h.id for h in kicked} == {
            h.id for h in self.oracle.holds if name in h.names and by in (None, h.by)
        }
        _, step = self.follow(
            lambda oracle: ("", oracle.release([hold.id for hold in kicked], self.now_us))
        )
        reported = [("lock.kicked", other, hold.by) for hold in kicked for other in hold.names]
        self.after(step, notified, taken=kicked, expected_journal=reported)

    @precondition(lambda self: self.oracle.holds)
    @rule(at=which, ttl_s=st.sampled_from([None, 1.0, 20.0]))
    def renew(self, at: int, ttl_s: float | None) -> None:
        hold_id = self.pick([hold.id for hold in self.oracle.holds], at)
        self.say(f"{hold_id} is renewed for {ttl_s} s")
        hold = self.seen.holds[hold_id]

        def body(transaction: LockTransaction) -> None:
            current = transaction.table.find_hold(hold_id, hold.names)
            assert current is not None
            transaction.renew(current, ttl_s)

        _, notified = self.transact(body)
        self.oracle.renew(hold_id, self.now_us, None if ttl_s is None else int(ttl_s * 1e6))
        self.after(Step(), notified)

    # Time and death.

    @rule(seconds=st.sampled_from([0.001, 1.0, 6.0, 11.0, 31.0, -0.5, -12.0]))
    def advance(self, seconds: float) -> None:
        self.say(f"the clock moves by {seconds} s")
        self.clock.advance(seconds)

    @rule(slot=st.integers(0, SLOTS - 1))
    def die(self, slot: int) -> None:
        """A process is killed, and another begins in its place. Its waiters and grants stay until
        somebody sees to them.
        """
        self.say(f"process {_pid(self.processes[slot])} dies")
        self.dead.add(self.processes[slot])
        self.processes[slot] = self.new_process(slot)

    @precondition(lambda self: self.patient())
    @rule(at=which)
    def watch(self, at: int) -> None:
        """One waiter checks whether a request that it knows to be just ahead is gone."""
        self.look_ahead(self.pick(self.patient(), at))

    @rule()
    def watch_all(self) -> None:
        """Every live waiter checks until it has nothing more to do: then nobody waits for an
        expired claim.
        """
        while sum(self.look_ahead(request_id) for request_id in self.patient()):
            pass
        for request in self.oracle.waiting:
            if request.id in self.patient() and not self.hidden():
                for hold in self.oracle.holders_against(request):
                    gone = self.is_over(hold, self.seen.holds[hold.id].process)
                    assert not gone, (
                        f"{request.id} waits for {hold.id}, which is over, and nobody sees it"
                    )
                for other in self.oracle.earlier_against(request):
                    gone = self.is_over(other, self.drafts[other.id].process)
                    assert not gone, (
                        f"{request.id} waits behind {other.id}, which is over, and nobody sees it"
                    )

    def hidden(self) -> bool:
        """Is there a dead waiter whose death only another machine could see? What it should watch
        waits for its lease.
        """
        viewers = [self.drafts[waiter].process for waiter in self.patient()]
        return any(
            self.drafts[one.id].process in self.dead
            and not all(
                self.oracle.over(
                    one, self.liveness(viewer, self.drafts[one.id].process).value, self.now_us
                )
                for viewer in viewers
            )
            for one in self.oracle.waiting
        )

    def is_over(self, one: OracleHold | OracleRequest, process: Holder | None) -> bool:
        """As everyone who waits sees it, since any of them may be the one that watches it."""
        viewers = [self.drafts[waiter].process for waiter in self.patient()]
        return all(
            self.oracle.over(one, self.liveness(viewer, process).value, self.now_us)
            for viewer in viewers
        )

    def look_ahead(self, request_id: str) -> bool:
        """A sleeping waiter's reaction to a death or the end of a lease; True if it removed
        something.
        """
        if request_id not in self.known:
            return False
        viewer = self.drafts[request_id].process
        # Leases change without a notification. A waiter sees that when it rechecks by itself now
        # and then.
        now = {one.id: one.lease for one in self.ahead_now()[request_id]}
        ahead = [replace(one, lease=now.get(one.id, one.lease)) for one in self.known[request_id]]
        suspects = self.suspects(viewer, ahead)
        if not suspects or not self.reap(viewer, suspects):
            return False
        if request_id in self.known:
            self.known[request_id] = self.ahead_now()[request_id]
        return True

    def suspects(self, viewer: Holder, ahead: Iterable[Ahead]) -> list[Suspect]:
        """Those that are over, as one process sees it."""
        return [
            Suspect(id=one.id, names=one.names, process=one.process, liveness=seen)
            for one in ahead
            if leases.reclaimable(
                one.lease, seen := self.liveness(viewer, one.process), self.clock.now()
            )
        ]

    def reap(self, viewer: Holder, suspects: list[Suspect]) -> bool:
        removed, notified = self.transact(lambda transaction: transaction.reap(suspects))
        self.say(
            f"a waiter of {_pid(viewer)} sees to "
            f"{[(one.id, one.liveness.value) for one in suspects]}: {removed}"
        )
        # The oracle gets the true state of holders and waiters, not the waiter's view of it.
        truth: dict[str, str] = {}
        for suspect in suspects:
            hold, request = self.seen.holds.get(suspect.id), self.drafts.get(suspect.id)
            process = (
                hold.process if hold is not None else None if request is None else request.process
            )
            truth[suspect.id] = self.liveness(viewer, process).value
        kinds = {
            one.id: (
                "lock.holder_ended" if self.seen.holds[one.id].on_behalf else "lock.holder_died",
                "lock.lease_expired",
            )
            for one in self.oracle.holds
        }
        waiters: list[OracleHold | OracleRequest] = [
            *self.oracle.waiting,
            *self.oracle.notified.values(),
        ]
        kinds |= {one.id: ("lock.waiter_died", "lock.waiter_expired") for one in waiters}
        claims = {one.id: (one.by, tuple(one.names)) for one in [*self.oracle.holds, *waiters]}
        before = self.seen
        _, step = self.follow(lambda oracle: ("", oracle.reap(truth, self.now_us)))
        gone = step.removed
        reported = [
            (kinds[one][truth[one] != DEAD], name, claims[one][0])
            for one in gone
            for name in claims[one][1]
        ]
        for one in gone:
            self.forget(one)
        self.after(
            step,
            notified,
            taken=[before.holds[one] for one in gone if one in before.holds],
            expected_journal=reported,
        )
        assert sorted(one.names for one in removed) == sorted(claims[one][1] for one in gone)
        return bool(gone)

    def liveness(self, viewer: Holder, process: Holder | None) -> Liveness:
        if process is None or process.host_id != viewer.host_id:
            return Liveness.UNKNOWN
        return Liveness.DEAD if process in self.dead else Liveness.ALIVE

    # The end.

    def drain(self) -> None:
        """From any state, every waiter gets a turn, though a waiting job releases nothing."""
        rounds = 0
        while self.oracle.waiting or self.oracle.holds or self.oracle.notices:
            for request_id in list(self.oracle.notices):
                self.read_outcome(request_id)
            waiting_jobs = {request.by for request in self.oracle.waiting}
            able = [hold.id for hold in self.oracle.holds if hold.by not in waiting_jobs]
            if not able and not self.oracle.waiting and not self.oracle.notices:
                break
            assert able or self.oracle.notices, (
                f"everyone waits, and nobody was told: {self.oracle}"
            )
            if able:
                self.release_hold(able[0])
            rounds += 1
            assert rounds < 10_000
        rows = self.store.read(lambda tx: [*tx.range(LOCKS), *tx.range(LOCK_WAITS)], scope=SCOPE)
        assert rows == [], "something is left in the table"

    # What every step goes through.

    @property
    def now_us(self) -> int:
        return _us(self.clock.now())

    def transact(self, body: Callable[[LockTransaction], T]) -> tuple[T, list[str]]:
        def run(tx: Tx) -> tuple[T, list[str]]:
            recorded = _Recorded(tx, self.clock.now())
            transaction = LockTransaction(
                recorded, self.journal, self.settings, steady_clock(self.store)
            )
            result = body(transaction)
            transaction.table.write()
            return result, recorded.notified

        return self.store.transact(run, scope=SCOPE)

    def after(
        self,
        step: Step,
        notified: Sequence[str],
        *,
        asker: str | None = None,
        taken: Sequence[LockHold] = (),
        expected_journal: Sequence[tuple[str, str, str]] = (),
    ) -> None:
        """Compare everything with the oracle."""
        self.broken = True
        before, self.seen, self.fresh = self.seen, self.fresh or self.look(), None
        fresh = [hold for hold_id, hold in self.seen.holds.items() if hold_id not in before.holds]
        granted = sorted(fresh, key=lambda hold: hold.token)
        self.say(
            f"    granted {[hold.id for hold in granted]}, told {self.seen.notices}, woken "
            f"{list(notified)}"
        )
        self.same_table()
        self.same_grants(granted, step.granted)
        self.same_tokens(granted)
        self.same_journal(before, granted, expected_journal)
        self.same_wakes(step, notified, asker)
        lost = {topic for topic in notified if topic.startswith("locks.lost")}
        assert lost == {lost_topic(hold.id.partition("-")[0]) for hold in taken}
        for request_id in step.granted:
            draft = self.drafts.get(request_id)
            if draft is not None and draft.holder != draft.process and request_id != asker:
                self.awaited[request_id] = draft
            self.forget(request_id)
        for hold_id in before.holds.keys() - self.seen.holds.keys():
            self.awaited.pop(hold_id, None)
        self.broken = False

    def same_wakes(self, step: Step, notified: Sequence[str], asker: str | None) -> None:
        """Every waiter that was granted or answered was woken, and every one that must watch
        another from now on. No other waiter was.
        """
        heard = {topic[1:] for topic in notified if topic.startswith("@")}
        concerned = set(step.granted) | set(step.notices)
        deaf = {one for one in concerned if one in self.drafts and one != asker} - heard
        assert not deaf, f"{deaf} were granted or told something and not woken"
        for one in concerned:
            self.known.pop(one, None)
        now = self.ahead_now()
        if not self.wakes:
            self.known = now
            return
        changed = {one for one, ahead in now.items() if _who(ahead) != _who(self.known[one])}
        needless = heard - concerned - changed - {asker}
        assert not needless, f"{needless} were woken for nothing"
        self.known.update({one: now[one] for one in heard if one in now})
        watched = {who for ahead in self.known.values() for who in _who(ahead)}
        for request in self.oracle.waiting:
            for hold in self.oracle.holders_against(request):
                process = self.seen.holds[hold.id].process
                assert (hold.id, process) in watched, (
                    f"{request.id} waits for {hold.id} of {_pid(process)}; nobody watches it"
                )
            for other in self.oracle.earlier_against(request):
                process = self.drafts[other.id].process
                assert (other.id, process) in watched, (
                    f"{request.id} waits behind {other.id}; nobody watches it"
                )

    def follow(self, change: Callable[[LockOracle], tuple[str, Step]]) -> tuple[str, Step]:
        """Let the oracle do the same; where the rules leave something open, in the way that the
        program chose.
        """
        seen = self.fresh = self.look()
        granted = sorted(
            (hold for one, hold in seen.holds.items() if one not in self.seen.holds),
            key=lambda hold: hold.token,
        )
        changed = {hold.id for hold in granted} | (seen.notices.keys() - self.seen.notices.keys())
        script: Sequence[int] | None = ()
        first: tuple[LockOracle, tuple[str, Step]] | None = None
        for _ in range(SEARCH_MAX):
            if script is None:
                break
            choices = Choices(script, changed)
            oracle = self.oracle.variant(choices)
            result = change(oracle)
            first = first or (oracle, result)
            held = {
                hold.id for hold in oracle.holds
            } == seen.holds.keys() and oracle.notices == seen.notices
            counted = held and all(
                seen.requests[one.id].overtaken == one.passed for one in oracle.waiting
            )
            if counted and not _out_of_order(granted, result[1].granted):
                self.oracle = oracle
                return result
            script = choices.next_script()
        # None fits: the comparison will tell how.
        assert first is not None
        self.oracle = first[0]
        return first[1]

    def look(self) -> Seen:
        """Read the whole table, and see that its rows agree with each other."""
        locks, waits = self.store.read(
            lambda tx: (tx.range(LOCKS), tx.range(LOCK_WAITS)), scope=SCOPE
        )
        on = {row.key: list(lock_in(row).holds) for row in locks}
        holds: dict[str, LockHold] = {}
        for name, held in on.items():
            for hold in held:
                assert holds.setdefault(hold.id, hold) == hold, f"the rows of {hold.id} differ"
                assert name in hold.names and hold.token
        for hold in holds.values():
            assert all(hold in on.get(name, []) for name in hold.names), f"{hold.id} lacks a row"
        first = {row.record.id: row.record for row in waits if row.key.endswith(".0")}
        output = {
            one: record.outcome.value for one, record in first.items() if record.outcome is not None
        }
        rows: dict[str, list[str]] = {}
        queues: dict[str, list[tuple[tuple[int, int], str]]] = {}
        for row in waits:
            rows.setdefault(row.record.id, []).append(row.record.name)
            if row.record.id not in output:
                queues.setdefault(row.record.name, []).append((row.record.place, row.record.id))
        for one, record in first.items():
            expected = record.names[:1] if one in output else record.names
            assert sorted(rows[one]) == sorted(expected), f"{one} has rows for {rows[one]}"
        assert rows.keys() == first.keys()
        queued = {name: [one for _, one in sorted(queue)] for name, queue in queues.items()}
        return Seen(holds, on, {row.key: row.record.waited for row in locks}, queued, first, output)

    def same_table(self) -> None:
        seen, oracle = self.seen, self.oracle
        for name in NAMES:
            for at, one in enumerate(seen.on.get(name, [])):
                for other in seen.on[name][at + 1 :]:
                    related = within(one.by, other.by) or within(other.by, one.by)
                    assert related or not conflict(one.mode, other.mode), (
                        f"{one} and {other} both hold {name}"
                    )
            held = {(hold.id, hold.by, hold.mode.value) for hold in seen.on.get(name, [])}
            expected = {
                (hold.id, hold.by, hold.mode) for hold in oracle.holds if name in hold.names
            }
            assert held == expected, f"{name} is held by {held} and should be by {expected}"
            assert seen.queues.get(name, []) == oracle.queue(name), (
                f"the queue of {name} should be {oracle.queue(name)}"
            )
            assert (name in seen.on) == bool(expected or oracle.queue(name)), (
                f"{name} has a row and should not, or none"
            )
            assert seen.waited.get(name, False) == bool(oracle.queue(name))
        assert set(seen.on) <= set(NAMES)
        assert seen.notices == oracle.notices
        for hold in oracle.holds:
            assert set(seen.holds[hold.id].names) == set(hold.names)
            assert _us(seen.holds[hold.id].lease.expires_at) == hold.ends_us
        for request in oracle.waiting:
            assert oracle.may_go(request) is None, f"{request.id} waits and need not"
            assert seen.requests[request.id].overtaken == request.passed, (
                f"{request.id} was passed {request.passed} times"
            )
        assert not oracle.youngest_of_cycles()

    def same_grants(self, granted: Sequence[LockHold], expected: Sequence[str]) -> None:
        assert {hold.id for hold in granted} == set(expected), f"should be granted: {expected}"
        assert not _out_of_order(granted, expected), f"should be granted as {expected}"

    def same_tokens(self, granted: Iterable[LockHold]) -> None:
        tokens = [hold.token for hold in self.seen.holds.values()]
        assert len(set(tokens)) == len(tokens), "two grants have one token"
        for hold in granted:
            for name in hold.names:
                assert hold.token > self.greatest.get(name, 0), f"the token of {name} did not grow"
                self.greatest[name] = hold.token

    def same_journal(
        self, before: Seen, granted: Sequence[LockHold], notices: Sequence[tuple[str, str, str]]
    ) -> None:
        """Deaths, deadlocks, kicks, and the grants of waits that were long enough are journalled
        once for each name; waits too, at their beginning or when they are reported.
        """
        batch = self.store.journal(self.cursor)
        self.cursor = batch.cursor
        entries = Counter(
            (entry.kind, entry.subject, entry.data["by"])
            for entry in batch.entries
            if entry.kind != "lock.released"
            and (entry.kind != "lock.granted" or "waited_s" in entry.data)
        )
        least_s = 0 if self.settings.journal == "all" else self.settings.journal_waits_s

        def long_enough(hold: LockHold) -> bool:
            # One that was queued in this very step has waited for no time.
            waiter = before.requests.get(hold.id)
            seconds = 0.0
            if waiter is not None:
                seconds = (self.clock.now() - waiter.arrived_at).total_seconds()
            return max(seconds, 0) >= least_s

        waited = [hold for hold in granted if hold.id in self.drafts and long_enough(hold)]
        expected = Counter(notices)
        expected.update(("lock.granted", name, hold.by) for hold in waited for name in hold.names)
        assert entries == expected

    def ahead_now(self) -> dict[str, list[Ahead]]:
        def body(transaction: LockTransaction) -> dict[str, list[Ahead]]:
            found = {}
            for one in self.known:
                request = transaction.table.waiter(one)
                assert request is not None and request.outcome is None
                found[one] = all_ahead(transaction.table, request)
            return found

        return self.transact(body)[0]

    def patient(self) -> list[str]:
        """The waiters that live."""
        return [
            request.id
            for request in self.oracle.waiting
            if self.drafts[request.id].process not in self.dead
        ]

    def listening(self) -> list[str]:
        """Those that live and were told something."""
        return [one for one in self.oracle.notices if self.drafts[one].process not in self.dead]

    def waking(self) -> list[str]:
        return [one for one, draft in self.awaited.items() if draft.process not in self.dead]

    def forget(self, one: str) -> None:
        self.drafts.pop(one, None)
        self.known.pop(one, None)

    @staticmethod
    def pick(choices: Sequence[str], at: int) -> str:
        return choices[at % len(choices)]


def _oracle_request(draft: Waiter) -> OracleRequest:
    return OracleRequest(
        id=draft.id,
        by=draft.by,
        mode=draft.mode.value,
        names=list(draft.names),
        look=draft.wait_only,
        priority=draft.priority,
        ttl_us=None if draft.ttl_s is None else int(draft.ttl_s * 1e6),
    )


def _out_of_order(granted: Sequence[LockHold], expected: Sequence[str]) -> bool:
    """Were any two that met on a name granted the other way round?"""
    return any(
        set(one.names) & set(other.names) and expected.index(one.id) > expected.index(other.id)
        for one, other in combinations(granted, 2)
        if one.id in expected and other.id in expected
    )


def _whole(by: str) -> str:
    return by.partition("/")[0]


def _who(ahead: Iterable[Ahead]) -> set[tuple[str, Holder | None]]:
    """What a waiter watches: a claim, and the process on which it depends."""
    return {(one.id, one.process) for one in ahead}


def _pid(process: Holder | None) -> str:
    return "none" if process is None else f"{process.host_id}/{process.pid}"
