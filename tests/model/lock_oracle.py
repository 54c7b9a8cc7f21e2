"""The rules of the lock table in plain Python, with nothing of Holdfast's own in it: two lists,
gone through from end to end.

It is written from the design, not from the program, and prefers the plainest way to say a rule to
any quick one:

- a request goes when no hold of another job conflicts with it, and no request before it does that
  it may not pass;
- requests are ordered by arrival, moved forward by priority; a clock that was stepped back lets
  nobody overtake;
- it may pass one that waits, directly or not, for its own job; and any other at most `backfill_max`
  times, which is counted;
- what the job holds already is not waited for; when that is all, there is nothing to grant. A part
  of a job, `job/part`, has what the job has, and does not stand behind it; the job has nothing of
  its parts';
- a cycle of holds is a deadlock: a request that would close one is refused, and where a grant
  closed it, the youngest request of it is told to ask again, and is then refused.

Instants are whole microseconds.
"""

import copy
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

EXCLUSIVE, SHARED = "exclusive", "shared"

GRANTED, AGAIN, FREE, DEADLOCK = "granted", "again", "free", "deadlock"

ALIVE, DEAD, UNKNOWN = "alive", "dead", "unknown"


def conflict(one: str, other: str) -> bool:
    return EXCLUSIVE in (one, other)


def within(by: str, job: str) -> bool:
    """Is it the job itself, or a part of it?"""
    return (by + "/").startswith(job + "/")


@dataclass(eq=False)
class OracleHold:
    id: str
    by: str
    mode: str
    names: list[str]
    ends_us: int
    ttl_us: int | None
    """With a TTL it ends at that instant whatever its holder; without one, only an unknown holder's
    ends.
    """


@dataclass(eq=False)
class OracleRequest:
    id: str
    by: str
    mode: str
    names: list[str]
    look: bool = False
    priority: int = 0
    ttl_us: int | None = None
    arrived_us: int = 0
    rank: int = 0
    number: int = 0
    ends_us: int = 0
    passed: int = 0

    @property
    def place(self) -> tuple[int, int]:
        return self.rank, self.number


@dataclass(eq=False)
class Step:
    """What one change brought about."""

    granted: list[str] = field(default_factory=list)
    """The grants in their order."""
    notices: dict[str, str] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    """Holds and requests that were taken out because they were over."""


class Choices:
    """What the rules leave open: in which order those go that do not get in each other's way, and
    which cycle is ended first when one grant closes several. A script of choices is followed as far
    as it goes, then the first is always taken.
    """

    def __init__(self, script: Sequence[int] = (), favoured: Collection[str] = ()) -> None:
        self._script = script
        self._favoured = favoured
        """Others are not considered while there are any of these, which makes a search short."""
        self.taken: list[tuple[int, int]] = []
        """Which was taken of how many."""

    def choose(self, options: Sequence["OracleRequest"]) -> "OracleRequest":
        options = [option for option in options if option.id in self._favoured] or options
        at = self._script[len(self.taken)] if len(self.taken) < len(self._script) else 0
        self.taken.append((at, len(options)))
        return options[at]

    def next_script(self) -> list[int] | None:
        """The next one in a search through all; None when there is none."""
        taken = list(self.taken)
        while taken:
            at, of = taken.pop()
            if at + 1 < of:
                return [*(one for one, _ in taken), at + 1]
        return None


class LockOracle:
    """The holders, the waiters, and those with an unread answer."""

    def __init__(self, *, backfill_max: int, age_us: int, lease_us: int) -> None:
        self.holds: list[OracleHold] = []
        self.waiting: list[OracleRequest] = []
        self.notices: dict[str, str] = {}
        self.notified: dict[str, OracleRequest] = {}
        self._backfill_max = backfill_max
        self._age_us = age_us
        self._lease_us = lease_us
        self._number = 0
        self._step = Step()
        self._choices = Choices()

    def variant(self, choices: Choices) -> "LockOracle":
        """Another in the same state, that decides what is left open in this way."""
        twin = copy.copy(self)
        twin._choices = choices
        twin.holds = [replace(hold) for hold in self.holds]
        twin.waiting = [replace(request) for request in self.waiting]
        twin.notices = dict(self.notices)
        twin.notified = dict(self.notified)
        return twin

    # What happens.

    def ask(self, request: OracleRequest, now_us: int, *, waits: bool = True) -> tuple[str, Step]:
        """A request comes: its answer (own, granted, free, deadlock, waiting or refused) and what
        else happened.
        """
        self._begin()
        if not request.look and not self.needed(request):
            return "own", self._step
        known = [
            other.arrived_us for other in self.waiting if set(other.names) & set(request.names)
        ]
        request.arrived_us = max([now_us, *known])
        request.rank = request.arrived_us - request.priority * self._age_us
        self._number += 1
        request.number = self._number
        request.ends_us = now_us + self._lease_us
        if self.may_go(request) is None:
            if not waits:
                return "refused", self._step
            self.waiting.append(request)
            if request in self.youngest_of_cycles():
                self.waiting.remove(request)
                return DEADLOCK, self._step
            self._settle(now_us)
            return "waiting", self._step
        if request.look:
            return FREE, self._step
        self.waiting.append(request)
        self._go(request, now_us)
        self._settle(now_us)
        return GRANTED, self._step

    def take_if_alone(self, request: OracleRequest, now_us: int) -> bool:
        """The quick way: only what nobody holds or waits for."""
        self._begin()
        others: list[OracleHold | OracleRequest] = [*self.holds, *self.waiting]
        if any(set(other.names) & set(request.names) for other in others):
            return False
        self.waiting.append(request)
        self._go(request, now_us)
        return True

    def release(
        self, ids: Collection[str], now_us: int, *, names: Collection[str] | None = None
    ) -> Step:
        """Grants end, or release some of their names."""
        self._begin()
        for hold in list(self.holds):
            if hold.id in ids:
                hold.names = (
                    [] if names is None else [name for name in hold.names if name not in names]
                )
                if not hold.names:
                    self.holds.remove(hold)
        self._settle(now_us)
        return self._step

    def leave(self, request_id: str, now_us: int) -> Step:
        """A request gives up."""
        self._begin()
        self.waiting = [request for request in self.waiting if request.id != request_id]
        self._settle(now_us)
        return self._step

    def reap(self, seen: dict[str, str], now_us: int) -> Step:
        """Remove those of these that are over, whose processes' state is given: all of them, and
        then see who goes.
        """
        self._begin()
        present: list[OracleHold | OracleRequest] = [
            *self.holds,
            *self.waiting,
            *self.notified.values(),
        ]
        for one in present:
            if one.id in seen and self.over(one, seen[one.id], now_us):
                self._step.removed.append(one.id)
                self.notices.pop(one.id, None)
                self.notified.pop(one.id, None)
        self.holds = [hold for hold in self.holds if hold.id not in self._step.removed]
        self.waiting = [request for request in self.waiting if request.id not in self._step.removed]
        self._settle(now_us)
        return self._step

    def collect(self, request_id: str) -> str:
        """A waiter reads its answer."""
        del self.notified[request_id]
        return self.notices.pop(request_id)

    def renew(self, hold_id: str, now_us: int, ttl_us: int | None) -> None:
        """A lease continues from now and never ends earlier than before, but one that gets a TTL
        ends by it.
        """
        hold = next(hold for hold in self.holds if hold.id == hold_id)
        if ttl_us is not None and hold.ttl_us is None:
            hold.ends_us = now_us
        hold.ttl_us = hold.ttl_us if ttl_us is None else ttl_us
        hold.ends_us = max(
            hold.ends_us, now_us + (self._lease_us if hold.ttl_us is None else hold.ttl_us)
        )

    def sign_of_life(self, request_id: str, now_us: int) -> None:
        for request in self.waiting:
            if request.id == request_id:
                request.ends_us = max(request.ends_us, now_us + self._lease_us)

    # The rules.

    def over(self, one: OracleHold | OracleRequest, seen: str, now_us: int) -> bool:
        """May others take it away?"""
        explicit = isinstance(one, OracleHold) and one.ttl_us is not None
        return seen == DEAD or (now_us > one.ends_us and (seen == UNKNOWN or explicit))

    def in_order(self) -> list[OracleRequest]:
        return sorted(self.waiting, key=lambda request: request.place)

    def queue(self, name: str) -> list[str]:
        return [request.id for request in self.in_order() if name in request.names]

    def needed(self, request: OracleRequest) -> list[str]:
        """What the job must still get."""
        return [
            name
            for name in request.names
            if request.look
            or not any(
                within(request.by, hold.by)
                and name in hold.names
                and (hold.mode == EXCLUSIVE or request.mode == SHARED)
                for hold in self.holds
            )
        ]

    def holders_against(self, request: OracleRequest) -> list[OracleHold]:
        """The holds of other jobs that conflict with it."""
        needed = self.needed(request)
        return [
            hold
            for hold in self.holds
            if not within(request.by, hold.by)
            and conflict(hold.mode, request.mode)
            and set(hold.names) & set(needed)
        ]

    def earlier_against(self, request: OracleRequest) -> list[OracleRequest]:
        """The earlier requests that conflict with it. A wait that takes nothing delays nobody and
        waits for no request.
        """
        needed = self.needed(request)
        return [
            other
            for other in self.in_order()
            if not request.look
            and not other.look
            and other.place < request.place
            and not within(request.by, other.by)
            and conflict(other.mode, request.mode)
            and set(other.names) & set(needed)
        ]

    def may_go(self, request: OracleRequest) -> list[OracleRequest] | None:
        """None when it must wait; otherwise those that it passes and that this is counted
        against.
        """
        if self.holders_against(request):
            return None
        delayed = [
            other
            for other in self.earlier_against(request)
            if not self.waits_for(other, request.by)
        ]
        return None if any(other.passed >= self._backfill_max for other in delayed) else delayed

    def waits_for(self, request: OracleRequest, by: str) -> bool:
        """Does it wait, directly or not, for what a job holds?"""
        return any(
            within(by, hold.by)
            for one in self._behind_whom(request)
            for hold in self.holders_against(one)
        )

    def youngest_of_cycles(self) -> list[OracleRequest]:
        """Every request that is the youngest of a cycle: it waits for a job that waits, directly or
        not, for its own, by requests that came before it and by what is held alone.
        """
        found = []
        for youngest in self.waiting:
            path = [youngest]
            for request in path:
                holders = {hold.by for hold in self.holders_against(request)}
                if any(within(youngest.by, holder) for holder in holders):
                    found.append(youngest)
                    break
                older = [other for other in self._of(holders) if other.number < youngest.number]
                path += [other for other in older if other not in path]
        return found

    def _of(self, jobs: Iterable[str]) -> list[OracleRequest]:
        """What these jobs wait for, their parts included."""
        return [request for request in self.waiting if any(within(request.by, job) for job in jobs)]

    def _behind_whom(self, request: OracleRequest) -> list[OracleRequest]:
        """Itself, and all requests that must go before it can, or that keep those waiting which
        hold what it needs.
        """
        found = [request]
        for one in found:
            holders = {hold.by for hold in self.holders_against(one)}
            next_ones = self._of(holders) + self.earlier_against(one)
            found += [other for other in _distinct(next_ones) if other not in found]
        return found

    # What follows from a change.

    def _begin(self) -> None:
        self._step = Step()

    def _settle(self, now_us: int) -> None:
        """Every request that may go goes, in order, and one that can never go is refused."""
        while True:
            victims = self.youngest_of_cycles()
            able = [request for request in self.in_order() if self.may_go(request) is not None]
            able = [
                request
                for request in able
                if not any(self._delays(request, other) for other in able)
            ]
            if not victims and not able:
                return
            chosen = self._choices.choose([*victims, *able])
            if chosen in victims:
                self._tell(chosen, AGAIN)
            else:
                self._go(chosen, now_us)

    @staticmethod
    def _delays(request: OracleRequest, other: OracleRequest) -> bool:
        """Would it get in the way of one before it, if it went first?"""
        return (
            other.place < request.place
            and not request.look
            and not within(request.by, other.by)
            and conflict(request.mode, other.mode)
            and bool(set(request.names) & set(other.names))
        )

    def _go(self, request: OracleRequest, now_us: int) -> None:
        needed = self.needed(request)
        if request.look or not needed:
            self._tell(request, FREE if request.look else AGAIN)
            return
        for other in self.may_go(request) or []:
            other.passed += 1
        self.waiting.remove(request)
        ends_us = now_us + (self._lease_us if request.ttl_us is None else request.ttl_us)
        self.holds.append(
            OracleHold(request.id, request.by, request.mode, needed, ends_us, request.ttl_us)
        )
        self._step.granted.append(request.id)

    def _tell(self, request: OracleRequest, what: str) -> None:
        self.waiting.remove(request)
        self.notices[request.id] = what
        self.notified[request.id] = request
        self._step.notices[request.id] = what


def _distinct(requests: Iterable[OracleRequest]) -> list[OracleRequest]:
    found: list[OracleRequest] = []
    for request in requests:
        if request not in found:
            found.append(request)
    return found
