"""One transaction on the lock table: a request comes or leaves, a grant ends, and who goes next is
decided in the same step.

Whoever is granted something or told something is woken, and so is whoever has somebody new just
ahead of it, to watch that one. Where sets cross in several ways, a waiter may learn of a new
neighbour only at its next look, within WAIT_RECHECK_S.

What every request of a process shares: the store, its settings and its counts, and the table in one
transaction.
"""

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from itertools import count, islice, takewhile
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from holdfast.kernel import lease as leases
from holdfast.kernel.errors import HoldfastError, LockTimeout
from holdfast.kernel.holder import Holder, Liveness, Processes
from holdfast.kernel.limits import LOCK_REAPED_MAX, TRANSACT_TIMEOUT_S
from holdfast.kernel.store import Store, Tx
from holdfast.primitives.deadline import Deadline
from holdfast.primitives.journal import Journal
from holdfast.primitives.locks import policy
from holdfast.primitives.locks.grant import Lasting
from holdfast.primitives.locks.policy import Step
from holdfast.primitives.locks.records import LOCK_WAITS, LOCKS, Hold, Outcome, Request, rank_of
from holdfast.primitives.locks.statistics import Counting
from holdfast.primitives.locks.table import Neighbours, Table, WritableTable
from holdfast.primitives.steady_clock import SteadyClock, steady_clock

_NAMES_TOLD_MAX = 16
"""Of a larger set, each entry names the first ones: it has its own as its subject, and an entry is
bounded.
"""


class Terms(NamedTuple):
    """What the settings say of grants."""

    lease_s: float
    age_s: float
    tell_all: bool


class Suspect(NamedTuple):
    """A hold or a request whose process may be gone, and what is known of that process."""

    id: str
    names: tuple[str, ...]
    process: Holder | None
    liveness: Liveness


class Removed(NamedTuple):
    """What was taken out: a hold, or a request where that is None."""

    names: tuple[str, ...]
    hold: Hold | None
    dead: bool


class Turns:
    """The verbs of the lock table inside a transaction. `end` writes what they changed."""

    def __init__(self, tx: Tx, journal: Journal, terms: Terms, steady: SteadyClock) -> None:
        self.table = WritableTable(tx)
        self._neighbours = Neighbours(tx, self.table)
        self._tx = tx
        self._journal = journal
        self._terms = terms
        self._steady = steady
        self._numbers = count()
        self._heap: list[tuple[tuple[int, int], int, str, Iterator[Request] | None, Request]] = []
        self._handing = False
        self._refused = ""
        self._begun: set[str] = set()
        self._grown: dict[str, None] = {}

    @property
    def now(self) -> datetime:
        """The store's clock."""
        return self._tx.now

    def over(self, hold: Hold) -> bool:
        """Has the time passed that was asked for a grant? Then it is nobody's, though its holder
        lives.
        """
        return self._steady.reclaimable(hold.lease, Liveness.ALIVE, self._tx.now)

    def end(self) -> None:
        """Write what changed. To be called last, once."""
        self.table.write()

    def ask(self, draft: Request) -> Hold | list[Step] | Request | None:
        """A request comes: its grant when it may go at once (None for one that only looks), the
        cycle when it would close one (nothing is changed), else the request as it waits.

        A request whose names its job holds already is not for here: see `own_holds`.
        """
        request = self._placed(draft)
        obstacles = list(policy.held_against(self.table, request))
        overtaken = None if obstacles else policy.may_overtake(self.table, request)
        if overtaken is not None:
            return None if request.look else self._granted(request, overtaken)
        if steps := policy.cycle(self.table, request):
            return steps
        holders = {obstacle.hold.by for obstacle in obstacles}
        if not request.look:
            self._neighbours.come(request)
        self.table.enqueue(request)
        told = sorted(holders)[:_NAMES_TOLD_MAX]
        self._tell(
            request.names, "lock.waiting", by=request.by, mode=request.mode.value, held_by=told
        )
        # Now that it waits, those that it waits for may pass whoever waits for it.
        self.hand_over((), policy.waiting_behind(self.table, holders))
        return request

    def refuse(self, steps: Sequence[Step]) -> str:
        """A request was not let wait, since it would have closed this cycle; return the words for
        it.
        """
        words = policy.described(steps)
        self._tell(steps[0].request.names, "lock.deadlock", by=steps[0].request.by, cycle=words)
        return words

    def try_now(self, draft: Request) -> Hold | Request | None:
        """A request that does not wait: its grant (None for one that only looks), or the request
        with the place it would have.
        """
        request = self._placed(draft)
        overtaken = policy.may_go(self.table, request)
        if overtaken is None:
            return request
        return None if request.look else self._granted(request, overtaken)

    def sign_of_life(self, request: Request) -> None:
        """A waiter is still there."""
        self.table.update(
            replace(request, lease=leases.renew(request.lease, self._tx.now, self._terms.lease_s))
        )

    def own_holds(self, request: Request) -> list[Hold]:
        """The holds by which the request's job has what it asks for, or some of it, already."""
        if request.look:
            return []
        own: dict[str, Hold] = {}
        for name in request.names:
            covering = self.table.holders(name).covering(request.by, request.mode)
            if covering is not None:
                own[covering.id] = covering
        return list(own.values())

    def release(self, hold: Hold) -> None:
        """A grant ends, by its holder's wish."""
        self.table.unhold(hold)
        if self._terms.tell_all:
            self._tell(hold.names, "lock.released", by=hold.by, token=hold.token)
        self.hand_over(hold.names)

    def release_if_held(self, hold_id: str, names: Sequence[str]) -> bool:
        """The same, of a grant that may be gone; False when it is, or when the time that was asked
        for it is over.
        """
        hold = self.table.find_hold(hold_id, names)
        if hold is not None:
            self.release(hold)
        return hold is not None and not self.over(hold)

    def free(self, names: Sequence[str], by: str) -> tuple[tuple[str, ...], list[Hold]]:
        """A job lets go of names, by whichever grants; return those that it held, and what is left
        of each grant.
        """
        freed: dict[str, bool] = {}
        rests: dict[str, Hold] = {}
        for name in names:
            for hold in self.table.lock(name).holds:
                if hold.by == by:
                    freed[name] = freed.get(name, False) or not self.over(hold)
                    rests[hold.id] = self._release_part(hold, name)
        self.hand_over(freed)
        return tuple(name for name, held in freed.items() if held), list(rests.values())

    def _release_part(self, hold: Hold, name: str) -> Hold:
        """A grant lets go of one of its names; return the rest of it."""
        rest = replace(hold, names=tuple(other for other in hold.names if other != name))
        self.table.unhold(replace(hold, names=(name,)))
        self.table.rehold(rest)
        if self._terms.tell_all:
            self._tell([name], "lock.released", by=hold.by, token=hold.token)
        return rest

    def give(self, hold: Hold, process: Holder | None) -> Hold:
        """A waiter that asked for another passes its grant on to that one."""
        given = replace(hold, process=process)
        self.table.rehold(given)
        for name in hold.names:
            self._neighbours.hold(name, hold.mode)
        return given

    def renew(self, hold: Hold, ttl_s: float | None) -> Hold:
        """A grant's lease goes on from now: by `ttl_s`, else by the time to live that it was given,
        else as any lease.
        """
        ttl_s = hold.ttl_s if ttl_s is None else ttl_s
        length_s = self._terms.lease_s if ttl_s is None else ttl_s
        lease = leases.renew(hold.lease, self._tx.now, length_s, explicit=ttl_s is not None)
        renewed = replace(hold, lease=lease, ttl_s=ttl_s)
        self.table.rehold(renewed)
        return renewed

    def take_away(self, hold: Hold, kind: str, **data: object) -> None:
        """A grant ends, whether or not its holder wishes; its process is told."""
        self.table.unhold(hold)
        self._tell(hold.names, kind, by=hold.by, token=hold.token, **data)
        self._tx.notify(lost_topic(asker_of(hold.id)))

    def leave(self, request: Request, kind: str, **data: object) -> None:
        """A request gives up or is given up."""
        self._remove(request, kind, **data)
        self.hand_over(request.names)

    def time_out(self, request: Request) -> None:
        """A request gives up since its time is over; the journal names who holds what it waited
        for.
        """
        holders = {obstacle.hold.by for obstacle in policy.held_against(self.table, request)}
        self.leave(request, "lock.timed_out", held_by=sorted(holders)[:_NAMES_TOLD_MAX])

    def _remove(self, request: Request, kind: str, **data: object) -> None:
        if not request.look:
            self._neighbours.leave(request)
        self.table.dequeue(request)
        self._tell(request.names, kind, by=request.by, waited_s=self._waited_s(request), **data)

    def reap(self, suspects: Iterable[Suspect]) -> list[Removed]:
        """Take away what may be reclaimed by now, of grants and of places in the queue."""
        removed: list[Removed] = []
        for suspect in suspects:
            dead = suspect.liveness is Liveness.DEAD
            hold = self.table.find_hold(suspect.id, suspect.names)
            request = self.table.request(suspect.id) if hold is None else None
            found = hold or request
            if found is None or found.process != suspect.process:
                # It was passed on to another process meanwhile, of which the verdict says nothing.
                continue
            if hold is not None and self._steady.reclaimable(
                hold.lease, suspect.liveness, self._tx.now
            ):
                # A command that ended, and whose keeper had no time yet to release it, is no
                # accident.
                died = "lock.holder_ended" if hold.on_behalf else "lock.holder_died"
                self.take_away(
                    hold, died if dead else "lock.lease_expired", process=shown(hold.process)
                )
                removed.append(Removed(hold.names, hold, dead))
            elif request is not None and self._steady.reclaimable(
                request.lease, suspect.liveness, self._tx.now
            ):
                gone = [request, *self._with_it(request)] if dead else [request]
                for one in gone:
                    self._remove(
                        one,
                        "lock.waiter_died" if dead else "lock.waiter_expired",
                        process=shown(one.process),
                    )
                removed += [Removed(one.names, None, dead) for one in gone]
        self.hand_over([name for gone in removed for name in gone.names])
        return removed

    def _with_it(self, request: Request) -> list[Request]:
        """Those next before it that were of the same process: what is known of it is known of them,
        and to find each by itself would take a transaction each.
        """
        found: dict[str, Request] = {}
        for name in request.names:
            before = islice(self.table.before(request, name), LOCK_REAPED_MAX)
            found |= {
                one.id: one for one in takewhile(lambda one: one.process == request.process, before)
            }
        return list(found.values())

    def hand_over(self, names: Collection[str], requests: Iterable[Request] = ()) -> None:
        """Let go whoever may, of those that wait for these names and of these requests, in their
        order. What a grant brings about takes its place in the same order, so that nobody passes
        one that could go.
        """
        for name in dict.fromkeys(names):
            self._begun.add(name)
            self._go_on(name, self.table.queue(name))
        for request in requests:
            heapq.heappush(self._heap, (request.place, next(self._numbers), "", None, request))
        if self._handing:
            return
        self._handing = True
        self._refused = ""
        while self._heap or self._end_a_cycle():
            _, _, name, queue, request = heapq.heappop(self._heap)
            if request.id == self._refused:
                # A request comes once for each of its names, in a row. Until another goes, it is
                # refused for the same reason.
                pass
            elif self._try(request):
                self._refused = ""
                # Those behind it may move up elsewhere too. Where a name was gone through already,
                # they could not for its sake alone: what they waited for as a request they now wait
                # for as a holder.
                for other in set(request.names) - self._begun:
                    self._begun.add(other)
                    self._go_on(other, self.table.queue(other))
            else:
                self._refused = request.id
            if queue is not None:
                self._go_on(name, queue)
        self._handing = False
        self._begun.clear()

    def _go_on(self, name: str, queue: Iterator[Request]) -> None:
        if self.table.holders(name).exclusive:
            # Behind an exclusive holder nobody else goes.
            return
        for request in queue:
            heapq.heappush(self._heap, (request.place, next(self._numbers), name, queue, request))
            return

    def _end_a_cycle(self) -> bool:
        """Tell the youngest of a cycle that a grant to a waiting job has closed to ask again, when
        it will learn of it; False when no such cycle is left.
        """
        while self._grown:
            by = next(iter(self._grown))
            steps = next(
                (
                    steps
                    for waiting in self.table.of_job(by)
                    if (steps := policy.cycle(self.table, waiting))
                ),
                None,
            )
            if steps is None:
                del self._grown[by]
                continue
            youngest = max((step.request for step in steps), key=lambda one: one.arrival)
            self.table.tell(replace(youngest, outcome=Outcome.AGAIN))
            self._refused = ""
            self.hand_over(youngest.names)
            if self._heap:
                return True
        return False

    def _try(self, request: Request) -> bool:
        """Let a waiting request go if it may."""
        current = self.table.request(request.id)
        if current is None or current.outcome is not None:
            return False
        overtaken = policy.may_go(self.table, current)
        if overtaken is None:
            return False
        if current.look:
            self.table.tell(replace(current, outcome=Outcome.FREE))
        elif not policy.needed(self.table, current):
            self.table.tell(replace(current, outcome=Outcome.AGAIN))
        else:
            self.table.dequeue(current)
            self._granted(current, overtaken, waited=True)
            self._tx.notify(current.address)
        return True

    def _granted(
        self, request: Request, overtaken: Iterable[Request], *, waited: bool = False
    ) -> Hold:
        names = tuple(policy.needed(self.table, request))
        alone = not any(
            self.table.lock(name).holds or self.table.lock(name).waited for name in names
        )
        data: dict[str, object] = {"by": request.by, "mode": request.mode.value}
        if waited:
            data["waited_s"] = self._waited_s(request)
        elsewhere = bool(self.table.of_job(request.by))
        # One that is not told is the only grant of its transaction, so that each has a token of its
        # own.
        told = waited or elsewhere or not alone or self._terms.tell_all
        token = self._tell(names, "lock.granted", **data) if told else self._tx.revision
        explicit = request.ttl_s is not None
        ttl_s = self._terms.lease_s if request.ttl_s is None else request.ttl_s
        hold = Hold(
            id=request.id,
            by=request.by,
            mode=request.mode,
            names=names,
            lease=leases.grant(self._tx.now, ttl_s, explicit=explicit),
            # Whoever waited for another to hold it gives it to that one when it wakes, if it still
            # does: see `give`.
            process=request.process if waited else request.holder,
            on_behalf=request.grantee is not None,
            ttl_s=request.ttl_s,
            token=token,
        )
        for other in overtaken:
            self.table.update(replace(other, passed=other.passed + 1))
        self.table.hold(hold)
        for name in names:
            self._neighbours.grant(name, request, waited=waited)
        if elsewhere:
            self._after_grant(request)
        return hold

    def _after_grant(self, request: Request) -> None:
        """A job that waits elsewhere came to hold something: others may pass those that now wait
        for it, or it has closed a cycle by that. Only a job of several threads can be in both
        places.
        """
        self._grown[request.by] = None
        self.hand_over((), policy.waiting_behind(self.table, {request.by}))

    def _placed(self, draft: Request) -> Request:
        """The request with its place. A clock that was stepped back lets nobody overtake those that
        came before.
        """
        arrived_at = self._tx.now
        for name in draft.names:
            last, newest_at = self.table.last(name), self.table.lock(name).newest_at
            if last is not None and last.arrived_at > arrived_at:
                arrived_at = last.arrived_at
            if newest_at is not None and newest_at > arrived_at:
                arrived_at = newest_at
        return replace(
            draft,
            arrived_at=arrived_at,
            arrival=self._tx.revision,
            rank=rank_of(arrived_at, draft.priority, self._terms.age_s),
            lease=leases.grant(self._tx.now, self._terms.lease_s),
        )

    def _waited_s(self, request: Request) -> float:
        return round(max((self._tx.now - request.arrived_at).total_seconds(), 0.0), 6)

    def _tell(self, names: Sequence[str], kind: str, **data: object) -> int:
        """Journal an event of each name; return the first entry's revision."""
        if len(names) > 1:
            data["names"] = list(names[:_NAMES_TOLD_MAX])
        revisions = [
            self._journal.append(self._tx, kind=kind, subject=name, data=data) for name in names
        ]
        return revisions[0]


def shown(process: Holder | None) -> str:
    """A process in one word, for the journal."""
    return "none" if process is None else f"{process.host_id[:12]}/{process.pid}"


def asker_of(request_id: str) -> str:
    """The process that made a request, by what all ids of its requests begin with."""
    return request_id.rpartition("-")[0]


def lost_topic(asker: str) -> str:
    """What wakes a process to see which of its grants are gone."""
    return f"locks.lost/{asker}"


T = TypeVar("T")

SCOPE = (LOCKS, LOCK_WAITS)

_WITHDRAWING_S = 1.0


class Footprint:
    """Whether a request may have left something in the store. It has not while each of its steps
    ended with a LockTimeout, which says that nothing was changed; then there is nothing to
    withdraw.
    """

    def __init__(self) -> None:
        self.possible = False

    def step(self, act: Callable[[], T]) -> T:
        """Do something that may leave something."""
        before, self.possible = self.possible, True
        try:
            return act()
        except LockTimeout as error:
            self.possible = before or error.fields.get("outcome") != "none"
            raise


class Room(NamedTuple):
    """What every request of a process shares."""

    store: Store
    journal: Journal
    processes: Processes
    terms: Terms
    counting: Counting
    lasting: Lasting
    strays: dict[str, tuple[str, ...]]
    """Requests that could not be withdrawn when they should have been, as the store did not answer.
    """

    @property
    def steady(self) -> SteadyClock:
        """How far the store's clock is believed."""
        return steady_clock(self.store)

    def transact(self, body: Callable[[Turns], T], *, timeout_s: float = TRANSACT_TIMEOUT_S) -> T:
        """Change the lock table in one step."""

        def run(tx: Tx) -> T:
            turns = Turns(tx, self.journal, self.terms, self.steady)
            result = body(turns)
            turns.end()
            return result

        return self.store.transact(run, scope=SCOPE, timeout_s=timeout_s)

    def read(self, body: Callable[[Table], T], *, timeout_s: float = TRANSACT_TIMEOUT_S) -> T:
        """Look at the lock table as of now."""
        return self.store.read(lambda tx: body(Table(tx)), scope=SCOPE, timeout_s=timeout_s)

    def withdraw(self, request_id: str, names: tuple[str, ...], *, later: bool = False) -> None:
        """Leave nothing of a request, whether it waits, was told something or was granted. What
        cannot be done now, since the store does not answer, is done later; with `later`, it was
        just seen not to.
        """
        if later:
            self.strays.setdefault(request_id, names)
        elif request_id not in self.strays:
            try:
                self._withdraw(request_id, names)
            except HoldfastError as error:
                # Loaded here: a command that warns of nothing need not.
                import logging

                logging.getLogger("holdfast.locks").warning(
                    "could not withdraw request %s yet: %s", request_id, error.message
                )

    def withdraw_strays(self) -> bool:
        """Try again what could not be withdrawn; False when some of it still cannot."""
        for request_id, names in list(self.strays.items()):
            try:
                self._withdraw(request_id, names)
            except HoldfastError:
                # What keeps this one keeps the others too.
                return False
        return True

    def clear(self, names: tuple[str, ...], deadline: Deadline) -> None:
        """Before names are asked for: what an earlier request left of them must be gone. It would
        be taken for the job's own, and withdrawn later under the one who entered it. Raises what
        keeps it from being withdrawn.
        """
        for request_id, left in list(self.strays.items()):
            if not set(names).isdisjoint(left):
                deadline.insist(partial(self._withdraw, request_id, left))

    def _withdraw(
        self, request_id: str, names: tuple[str, ...], timeout_s: float = _WITHDRAWING_S
    ) -> None:
        def body(turns: Turns) -> Hold | None:
            request = turns.table.request(request_id)
            hold = turns.table.find_hold(request_id, names)
            if request is not None and request.outcome is None:
                turns.leave(request, "lock.withdrawn")
            elif request is not None:
                turns.table.forget(request)
            elif hold is not None:
                turns.release(hold)
            return hold

        try:
            hold = self.transact(body, timeout_s=timeout_s)
            if hold is not None:
                self.lasting.end(hold, timeout_s)
            self.strays.pop(request_id, None)
        except BaseException:
            # Not before: another thread would withdraw it too, and by then its id may have been
            # asked with again.
            self.strays[request_id] = names
            raise

    def reaped(self, removed: Sequence[Removed]) -> None:
        """Count what was reaped, and let its durable copies go."""
        for gone in removed:
            if gone.hold is not None:
                self.lasting.end(gone.hold)
                if not gone.dead:
                    self.counting.count(gone.names, "expiries")
                elif not gone.hold.on_behalf:
                    self.counting.count(gone.names, "deaths")
