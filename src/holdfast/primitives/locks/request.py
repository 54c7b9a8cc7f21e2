"""One request on its way: granted at once, or through the queue, or told why not.

Who asks: this process, and a name of its own for each of its requests.

What somebody asks of the lock manager, once it is known to be possible. Nothing here touches the
store.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import count
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from holdfast.kernel import lease as leases
from holdfast.kernel.errors import InvalidValue, LockTimeout, StoreUnavailable
from holdfast.kernel.holder import (
    THIS_PROCESS,
    Holder,
    Liveness,
    Processes,
    ThisProcess,
    check_holder,
)
from holdfast.kernel.limits import (
    LOCK_NAMES_MAX,
    LOCK_PRIORITY_MAX,
    LOCK_SET_BYTES_MAX,
    LOCK_TTL_MAX_S,
)
from holdfast.kernel.names import check_label, check_new_label
from holdfast.kernel.store import Listener, Store
from holdfast.primitives.deadline import Deadline, earliest
from holdfast.primitives.locks import policy
from holdfast.primitives.locks.obstruction import Obstruction, obstruction_of
from holdfast.primitives.locks.records import LOCKS, Hold, Mode, Outcome, Request, lock_in
from holdfast.primitives.locks.table import Table
from holdfast.primitives.locks.transaction import Footprint, Removed, Room, Suspect, Turns
from holdfast.primitives.locks.wait import Ahead, OnWait, Watch, ahead_of, of_hold, of_request

T = TypeVar("T")

_SOON_S = 0.02
"""Until the next try to reclaim what the store's clock says is not over yet."""

_STORE_LOST_S = 1.0


class Given(NamedTuple):
    """All of it is the job's: what it got now, and what it held before."""

    hold: Hold | None
    own: list[Hold]


class Waiting(NamedTuple):
    """It is not its turn; these are just ahead."""

    request: Request
    ahead: list[Ahead]
    obstruction: Obstruction | None = None
    """Of a request that does not wait in line, where its caller is to be told."""


class Doubt(NamedTuple):
    """The answer depends on whether these are alive; nothing was changed."""

    ahead: list[Ahead]


class Deadlocked(NamedTuple):
    """Waiting would have closed this cycle."""

    words: str


class Over(NamedTuple):
    """The wait is over without a grant. `obstruction` says why, if its time was over and its caller
    is to be told.
    """

    outcome: str
    obstruction: Obstruction | None = None


Answer = Given | Waiting | Doubt | Deadlocked | Over

TIMED_OUT = "timed out"
FREE = "free"
TAKEN_AWAY = "taken away"


class Asking:
    """A request of this process, from the first question to the answer. It leaves nothing behind,
    however it ends; a process that is killed leaves what the next in line removes.
    """

    def __init__(
        self,
        room: Room,
        draft: Request,
        deadline: Deadline,
        footprint: Footprint,
        on_wait: OnWait | None = None,
        stop_fd: int | None = None,
        *,
        explain: bool = True,
    ) -> None:
        self._room = room
        self._draft = draft
        self._deadline = deadline
        self._footprint = footprint
        self._on_wait = on_wait
        self._stops = [] if stop_fd is None else [stop_fd]
        self._explain = explain
        self._vouched: set[str] = set()
        self._told_of: list[tuple[str, bool]] = []
        self._sign_of_life = Deadline(room.terms.lease_s / 3)
        self.waited = False

    def answer(self) -> Given | Deadlocked | Over:
        """Wait for the answer, as long as the time limit allows."""
        self._room.steady.look()
        if self._deadline.passed():
            try:
                return self._without_waiting()
            except BaseException as error:
                self._withdraw(later=isinstance(error, LockTimeout))
                raise
        began_s = time.monotonic()
        with self._room.store.listen() as ears:
            self._draft = replace(self._draft, address=ears.address)
            try:
                answer: Answer = self._transact(self._ask)
                while True:
                    if isinstance(answer, Waiting):
                        answer = self._wait(answer, ears)
                    elif isinstance(answer, Doubt):
                        self._make_sure(answer)
                        answer = self._transact(self._ask)
                    elif isinstance(answer, Given) and self._lost_a_part(answer):
                        # Released and not withdrawn: a withdrawal can happen later, and would then
                        # take away the new grant.
                        self._transact(
                            lambda turns: turns.release_if_held(self._draft.id, self._draft.names)
                        )
                        answer = self._transact(self._ask)
                    elif (
                        isinstance(answer, Over)
                        and answer.outcome == TAKEN_AWAY
                        and self._draft.look
                    ):
                        # Its place was taken for that of a process that is gone; it had nothing to
                        # lose but time.
                        answer = self._transact(self._ask)
                    else:
                        break
                if (
                    isinstance(answer, Given)
                    and answer.hold is not None
                    and answer.hold.process != self._draft.holder
                ):
                    answer = self._transact(self._pass_on)
            except BaseException as error:
                self._withdraw(later=isinstance(error, LockTimeout))
                raise
        if isinstance(answer, Over) and answer.outcome == TAKEN_AWAY:
            # Of a set, only some may be gone.
            self._withdraw()
        if self.waited:
            granted = isinstance(answer, Given) and not self._draft.look
            self._room.counting.waited(
                self._draft.names, time.monotonic() - began_s, granted=granted
            )
        return answer

    def _wait(self, waiting: Waiting, ears: Listener) -> Answer:
        if waiting.request.outcome is not None:
            return self._transact(self._collect)
        self.waited = True
        self._tell_caller(waiting.ahead)
        # Who was alive before the wait may be dead after it.
        self._vouched.clear()
        return self._sleep(waiting, ears)

    def _lost_a_part(self, given: Given) -> bool:
        """Did another process of the job die, which held some of the set, while this one waited for
        the rest?
        """
        doubtful = self._doubtful(given.own, self._room.store.now())
        if not doubtful:
            return False
        if self._reap_of([of_hold(hold) for hold in doubtful]):
            return True
        self._vouched |= {hold.id for hold in doubtful}
        return False

    def _transact(self, body: Callable[[Turns], T], *, once: bool = False) -> T:
        """Change the table, as soon as the store lets it; `once`: the caller tries again by
        itself.
        """

        def turn(limit_s: float) -> T:
            return self._footprint.step(lambda: self._room.transact(body, timeout_s=limit_s))

        if once:
            return turn(self._deadline.for_a_turn_s())
        return self._deadline.insist(turn, stop_fd=self._stops[0] if self._stops else None)

    def _tell_caller(self, ahead: Sequence[Ahead]) -> None:
        who = [(one.id, one.holds) for one in ahead]
        if self._on_wait is not None and who != self._told_of:
            self._told_of = who
            self._on_wait(ahead)

    def _without_waiting(self) -> Given | Over:
        doubted: Sequence[Ahead] = ()
        while True:
            answer = self._transact(self._try)
            if isinstance(answer, Doubt):
                self._make_sure(answer)
            elif not isinstance(answer, Waiting):
                return answer
            elif not (suspects := self._suspects(answer.ahead)):
                return Over(TIMED_OUT, answer.obstruction)
            elif not self._reap(suspects)[0] and answer.ahead == doubted:
                # They stand by the store's clock. Once is no proof: one that was over may have left
                # by itself meanwhile.
                return Over(TIMED_OUT, answer.obstruction)
            else:
                doubted = answer.ahead

    def _ask(self, turns: Turns) -> Answer:
        """Ask, and wait in line if it is not its turn."""
        known = self._known(turns)
        if known is not None:
            return known
        found = turns.ask(self._draft)
        if isinstance(found, Request):
            return self._state(turns.table)
        if not isinstance(found, list):
            return self._granted(turns.table, found)
        # A cycle through a process that is gone is none.
        involved = [one for step in found for one in (of_hold(step.hold), of_request(step.request))]
        others = [
            one for one in involved if one.id != self._draft.id and one.id not in self._vouched
        ]
        return Doubt(others) if others else Deadlocked(turns.refuse(found))

    def _try(self, turns: Turns) -> Given | Waiting | Doubt | Over:
        """Ask, and do not wait."""
        known = self._known(turns)
        if known is not None:
            return known
        found = turns.try_now(self._draft)
        if isinstance(found, Request):
            return Waiting(found, ahead_of(turns.table, found), self._why(turns, found))
        return self._granted(turns.table, found)

    def _known(self, turns: Turns) -> Given | Doubt | None:
        """The answer that follows from what the job holds already; None when it lacks something."""
        own = turns.own_holds(self._draft)
        if doubtful := self._doubtful(own, turns.now):
            return Doubt([of_hold(hold) for hold in doubtful])
        return Given(None, own) if own and not policy.needed(turns.table, self._draft) else None

    def _granted(self, table: Table, hold: Hold | None) -> Given | Over:
        return Over(FREE) if hold is None else self._given(table, hold)

    def _doubtful(self, own: list[Hold], now: datetime) -> list[Hold]:
        """Own holds that may be over: one whose time has passed, or whose process died, cannot be
        entered again.
        """
        this = self._draft.process
        return [
            hold
            for hold in own
            if self._room.steady.reclaimable(hold.lease, Liveness.ALIVE, now)
            or (hold.process not in (None, this) and hold.id not in self._vouched)
        ]

    def _make_sure(self, doubt: Doubt) -> None:
        """See who is alive: those that are gone are reaped, and the others are vouched for."""
        if not self._reap_of(doubt.ahead):
            self._vouched |= {one.id for one in doubt.ahead}

    def _reap_of(self, ahead: Sequence[Ahead]) -> bool:
        """Reap those that are gone; False when none is."""
        suspects = self._suspects(ahead)
        return bool(suspects and self._reap(suspects)[0])

    def _suspects(self, ahead: Sequence[Ahead]) -> list[Suspect]:
        with Watch(ahead, self._room.processes, self._room.store) as watch:
            return watch.suspects()

    def _pass_on(self, turns: Turns) -> Given | Over:
        """What was waited for on behalf of another becomes that one's."""
        hold = turns.table.find_hold(self._draft.id, self._draft.names)
        if hold is None:
            return Over(TAKEN_AWAY)
        return self._given(turns.table, turns.give(hold, self._draft.holder))

    def _given(self, table: Table, hold: Hold) -> Given | Over:
        """The grant with what its job held before; that may have been taken away since."""
        own: dict[str, Hold] = {}
        for name in self._draft.names:
            if name not in hold.names:
                found = table.holders(name).covering(self._draft.by, self._draft.mode)
                if found is None:
                    return Over(TAKEN_AWAY)
                own[found.id] = found
        return Given(hold, list(own.values()))

    def _sleep(self, waiting: Waiting, ears: Listener) -> Answer:
        """Sleep until something about the wait has changed."""
        room = self._room
        with Watch(waiting.ahead, room.processes, room.store) as watch:
            while True:
                suspects = watch.suspects()
                if suspects:
                    now = self._patiently(
                        lambda gone=suspects: self._reap(gone, once=True)[1],  # type: ignore[misc]
                        waiting,
                        ears,
                    )
                    if _differs(now, waiting):
                        return now
                if self._deadline.passed():
                    return self._transact(self._give_up)
                pause_s = _SOON_S if suspects else watch.next_look_s()
                limit_s = earliest(self._deadline.left_s(), pause_s, self._sign_of_life.left_s())
                ready = self._rest(ears, limit_s, watch.fds)
                watch.died(ready)
                if not ready:
                    now = self._patiently(self._look, waiting, ears)
                    if _differs(now, waiting):
                        return now

    def _patiently(self, act: Callable[[], Answer], waiting: Waiting, ears: Listener) -> Answer:
        """Act, after a sign of life when it is time for one. A waiter outlives a restart of its
        database: it takes no answer for no change, and asks again until its own time is over.
        """
        while True:
            try:
                if self._sign_of_life.passed():
                    self._transact(self._renew, once=True)
                    self._sign_of_life = Deadline(self._room.terms.lease_s / 3)
                return act()
            except (StoreUnavailable, LockTimeout) as error:
                if self._deadline.passed():
                    return waiting
                if error.fields.get("closed"):
                    raise
                logging.getLogger("holdfast.locks").warning("waiting on: %s", error.message)
                self._rest(ears, earliest(self._deadline.left_s(), _STORE_LOST_S))

    def _rest(
        self, ears: Listener, limit_s: float | None, also: Sequence[int] = ()
    ) -> frozenset[int]:
        """Sleep; return which descriptors woke it. One who does not want to wait any more has
        reached its time limit.
        """
        ready = ears.wait(limit_s, also=[*also, *self._stops]).ready
        if not ready.isdisjoint(self._stops):
            self._deadline.end()
        return ready

    def _look(self) -> Answer:
        """How things stand. A grant, which is what a waiter is mostly woken for, is seen in one
        read.
        """
        draft, limit_s = self._draft, self._deadline.for_a_turn_s()
        lock = lock_in(self._room.store.get(LOCKS, draft.names[0], timeout_s=limit_s))
        for hold in lock.holds:
            if hold.id == draft.id and hold.names == draft.names:
                return Given(hold, [])
        return self._room.read(self._state, timeout_s=limit_s)

    def _state(self, table: Table) -> Answer:
        draft = self._draft
        request = table.request(draft.id)
        if request is not None:
            return Waiting(request, [] if request.outcome else ahead_of(table, request))
        for name in draft.names:
            for hold in table.lock(name).holds:
                if hold.id == draft.id:
                    return self._given(table, hold)
        return Over(TAKEN_AWAY)

    def _collect(self, turns: Turns) -> Answer:
        """Read what the request was told, and clear it away."""
        answer = self._state(turns.table)
        if not isinstance(answer, Waiting) or answer.request.outcome is None:
            return answer
        request = answer.request
        turns.table.forget(request)
        return Over(FREE) if request.outcome is Outcome.FREE else self._ask(turns)

    def _reap(self, suspects: list[Suspect], *, once: bool = False) -> tuple[list[Removed], Answer]:
        removed, answer = self._transact(
            lambda turns: (turns.reap(suspects), self._state(turns.table)), once=once
        )
        self._room.reaped(removed)
        return removed, answer

    def _renew(self, turns: Turns) -> None:
        request = turns.table.request(self._draft.id)
        if request is not None and request.outcome is None:
            turns.sign_of_life(request)

    def _give_up(self, turns: Turns) -> Answer:
        answer = self._state(turns.table)
        if isinstance(answer, Waiting):
            if answer.request.outcome is not None:
                return self._collect(turns)
            # Before it leaves: what leaves is in nobody's way.
            why = self._why(turns, answer.request)
            if self._deadline.timeout_s is None:
                # It had no time limit: whoever asked does not want it any more.
                turns.leave(answer.request, "lock.withdrawn")
            else:
                turns.time_out(answer.request)
            return Over(TIMED_OUT, why)
        return answer

    def _why(self, turns: Turns, request: Request) -> Obstruction | None:
        """Why it is not the request's turn, for a caller that is to be told."""
        return obstruction_of(turns.table, request, turns.now) if self._explain else None

    def _withdraw(self, *, later: bool = False) -> None:
        """Leave nothing behind, as after Ctrl-C. `later`: the store was just seen to be shut."""
        if self._footprint.possible:
            self._room.withdraw(self._draft.id, self._draft.names, later=later)


def _differs(now: Answer, before: Waiting) -> bool:
    return (
        not isinstance(now, Waiting) or now.ahead != before.ahead or now.request.outcome is not None
    )


class Wish(NamedTuple):
    """A set of names, for a job, in a mode, on these terms."""

    names: tuple[str, ...]
    by: str
    mode: Mode
    timeout_s: float | None
    priority: int = 0
    ttl_s: float | None = None
    process: Holder | ThisProcess | None = THIS_PROCESS
    look: bool = False
    """It waits until the names are free and takes nothing."""


def wished(
    names: str | Iterable[str],
    by: str,
    mode: Mode | str,
    timeout_s: float | None,
    priority: int = 0,
    ttl_s: float | None = None,
    process: Holder | ThisProcess | None = THIS_PROCESS,
    *,
    look: bool = False,
) -> Wish:
    """Check what a caller gave. Raises InvalidName and InvalidValue, naming what is wrong."""
    # To look takes nothing: what has an odd name from before can still be waited for.
    wanted = check_names(names, new=not look)
    # Mostly it is this one, and to look it up costs as much as all other checks.
    mode = mode if mode is Mode.EXCLUSIVE else _mode(mode)
    check_new_label(by, "job")
    if timeout_s != timeout_s:
        raise InvalidValue(
            "timeout_s is not a number: give the seconds to wait, or None for no limit",
            field="timeout_s",
        )
    check_ttl(ttl_s)
    if process is None and ttl_s is None:
        raise InvalidValue(
            "a grant that no process holds needs a ttl_s, or nothing would ever end it: give one, "
            "or the process that holds it",
            field="ttl_s",
        )
    if isinstance(process, Holder):
        check_holder(process)
    if not -LOCK_PRIORITY_MAX <= priority <= LOCK_PRIORITY_MAX:
        raise InvalidValue(
            f"a priority of {priority} is not possible: use -{LOCK_PRIORITY_MAX} to "
            f"{LOCK_PRIORITY_MAX}",
            field="priority",
        )
    return Wish(wanted, by, mode, timeout_s, priority, ttl_s, process, look)


def check_names(names: str | Iterable[str], *, new: bool = False) -> tuple[str, ...]:
    """The names of a request, each once, in their order. `new` ones are to be taken. Raises
    InvalidName and InvalidValue.
    """
    wanted = (names,) if isinstance(names, str) else tuple(dict.fromkeys(names))
    check = check_new_label if new else check_label
    for name in wanted:
        check(name, "resource")
    if len(wanted) > 1 and sum(len(name.encode()) for name in wanted) > LOCK_SET_BYTES_MAX:
        raise InvalidValue(
            f"the names of one request may have {LOCK_SET_BYTES_MAX} bytes together: ask for a "
            "name that stands for many",
            field="names",
            bytes_max=LOCK_SET_BYTES_MAX,
        )
    if len(wanted) > LOCK_NAMES_MAX:
        raise InvalidValue(
            f"one request may have {LOCK_NAMES_MAX} names, not {len(wanted)}: ask for a name that "
            "stands for many",
            field="names",
            names_max=LOCK_NAMES_MAX,
        )
    return wanted


def check_ttl(ttl_s: float | None) -> None:
    """Refuse a time to live that is not possible."""
    if ttl_s is not None and not 0 < ttl_s <= LOCK_TTL_MAX_S:
        raise InvalidValue(
            f"ttl_s is {ttl_s}: give more than 0 seconds, and {LOCK_TTL_MAX_S:.0f} at most",
            field="ttl_s",
        )


def _mode(mode: Mode | str) -> Mode:
    try:
        return Mode(mode)
    except ValueError:
        raise InvalidValue(
            f"{ascii(mode)[:40]} is no mode of a lock: use exclusive or shared", field="mode"
        ) from None


class Asker:
    """This process as one who asks for locks. `prefix` begins the ids of all its requests, so that
    a grant shows whom to tell that it was taken away; a forked child is another asker, once it has
    begun.
    """

    def __init__(self, store: Store, processes: Processes, lease_s: float, label: str) -> None:
        self._store = store
        self._processes = processes
        self._lease_s = lease_s
        self._label = label
        self.begin_process()

    def begin_process(self) -> None:
        """Begin anew, as in a forked child."""
        self.prefix = os.urandom(6).hex()
        self._numbers = count(1)
        self.process: Holder | None = None
        """This process, once it has asked for something."""
        # Last: another thread goes on as soon as it sees this.
        self._pid = os.getpid()

    def resume(self, request_id: str) -> None:
        """Go on as the asker that made a request, before this process executed another program."""
        self.prefix, _, number = request_id.rpartition("-")
        self._numbers = count(int(number, 16) + 1)

    def elsewhere(self) -> bool:
        """Is this a process that was forked since, and has not begun?"""
        return self._pid != os.getpid()

    def this_process(self) -> Holder:
        """The process that asks."""
        if self.process is None:
            self.process = check_holder(self._processes.current(self._label))
        return self.process

    def new_id(self) -> str:
        """The name of the next request."""
        return f"{self.prefix}-{next(self._numbers):x}"

    def draft(self, request_id: str, wish: Wish, process: Holder | None) -> Request:
        """A request that has no place yet."""
        now, this = self._store.now(), self.this_process()
        return Request(
            id=request_id,
            name=wish.names[0],
            names=wish.names,
            mode=wish.mode,
            look=wish.look,
            by=wish.by,
            priority=wish.priority,
            rank=0,
            arrival=0,
            arrived_at=now,
            process=this,
            grantee=None if process == this else process,
            unattended=process is None,
            ttl_s=wish.ttl_s,
            lease=leases.grant(now, self._lease_s),
            address="",
        )
