"""Do the rules allow a recorded history of locks? A pure function from events to violations.

Every event has the time at which its process wrote it, on a clock that all processes share. A job
writes an event just before and just after each call. So a grant is certain from `granted` to
`releasing`, and possible from `asked` to `released`. Certain spans of conflicting grants must not
overlap; possible spans may explain a wait.

A killed process does not write its end. Its grants are certain until the kill was sent, and possible
until it was seen dead. A grant with a TTL is certain for that time after its request at most.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

EXCLUSIVE, SHARED = "exclusive", "shared"
NEVER = float("inf")

CLOCKS_S = 0.05
"""How far the clock of a store's leases may differ from that of the histories."""

IDLE_S = 1.0
"""How long a wait may continue after its last reason is gone."""

LATE_S = 1.5
"""How late a waiter may learn of its grant. A lost wake-up costs up to two seconds."""

STRAY_S = 10.0
"""How long a request may block others after a busy store failed to withdraw it."""

CYCLE_S = 1.0
"""How long jobs may wait for each other in a circle before it counts as an unreported deadlock."""

Event = Mapping[str, Any]
"""`at`: seconds. `kind`: one of those in `History.__init__`. The rest depends on the kind."""


class Rules(NamedTuple):
    """The bounds by which histories are judged."""

    backfill_max: int
    age_s: float
    recheck_s: float
    """How late a wake-up may be if its sender was killed before it could send it."""


@dataclass(eq=False)
class Ask:
    """One request, and its grant."""

    id: str
    by: str
    process: str
    names: tuple[str, ...]
    mode: str
    priority: int
    timeout_s: float
    ttl_s: float | None
    attended: bool
    """Its grant ends with its process."""
    alone: bool
    """Its job held nothing when it asked."""
    asked: float
    queued: float = NEVER
    """The time from which it is known to wait."""
    ended: float = NEVER
    """The time of its answer, whatever the answer."""
    end: str = ""
    message: str = ""
    tokens: dict[str, int] = field(default_factory=dict)
    taken: tuple[str, ...] = ()
    granted: float = NEVER
    renewing: float = NEVER
    releasing: float = NEVER
    released: float = NEVER
    freed: bool = True
    lease_sure: float = NEVER
    """Until when its lease lasted at least."""
    lease_over: float = NEVER
    """By when its lease was over."""


class History:
    """The events of one run, grouped by request."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.asks: dict[str, Ask] = {}
        self.killing: dict[str, float] = {}
        self.died: dict[str, float] = {}
        self.stops: list[tuple[float, float]] = []
        self._jobs: dict[str, list[Ask]] = {}
        stopped: dict[str, float] = {}
        for event in sorted(events, key=lambda event: event["at"]):
            at, kind = event["at"], event["kind"]
            if kind == "asked":
                self._asked(event)
            elif kind in ("killing", "died"):
                (self.killing if kind == "killing" else self.died)[event["process"]] = at
            elif kind == "stopping":
                stopped[event["process"]] = at
            elif kind == "continued":
                self.stops.append((stopped.pop(event["process"]), at))
            else:
                self._of_ask(self.asks[event["id"]], kind, at, event)

    def _asked(self, event: Event) -> None:
        names, ttl_s = tuple(event["names"]), event["ttl_s"]
        of = {
            key: event[key]
            for key in ("id", "by", "process", "mode", "priority", "timeout_s", "attended", "alone")
        }
        ask = Ask(**of, names=names, ttl_s=ttl_s, asked=event["at"])
        if ttl_s is not None:
            # It starts with the grant, which was not before this.
            ask.lease_sure = event["at"] + ttl_s - CLOCKS_S
        self.asks[ask.id] = ask

    def _of_ask(self, ask: Ask, kind: str, at: float, event: Event) -> None:
        if kind == "queued":
            ask.queued = at
        elif kind in ("granted", "timed_out", "no_turn", "deadlock", "lost", "failed"):
            ask.ended, ask.end, ask.message = at, kind, event.get("message", "")
            if kind == "granted":
                ask.granted, ask.tokens, ask.taken = (
                    at,
                    dict(event["tokens"]),
                    tuple(event["taken"]),
                )
                if ask.ttl_s is not None:
                    ask.lease_over = at + ask.ttl_s + CLOCKS_S
        elif kind == "renewing":
            ask.renewing = at
        elif kind == "renewed":
            # Only now is it known that it was not too late.
            ask.lease_sure = max(ask.lease_sure, ask.renewing + event["ttl_s"] - CLOCKS_S)
            ask.lease_over = max(ask.lease_over, at + event["ttl_s"] + CLOCKS_S)
        elif kind == "releasing":
            ask.releasing = at
        elif kind == "released":
            ask.released, ask.freed = at, event["freed"]
        else:
            raise ValueError(f"what is a {kind}?")

    # When a request waited and a grant was held.

    def sure_until(self, ask: Ask) -> float:
        """Until when a grant was certainly in force."""
        killed = self.killing.get(ask.process, NEVER) if ask.attended else NEVER
        return min(ask.releasing, killed, ask.lease_sure)

    def gone_by(self, ask: Ask) -> float:
        """By when a request and its grant certainly blocked nobody."""
        died = self.died.get(ask.process, NEVER)
        if ask.granted == NEVER:
            # A grant whose process died before it wrote it down ends with the process, or with its
            # lease.
            unseen = 0.0 if ask.attended or died == NEVER else (ask.ttl_s or 0.0)
            return min(ask.ended + (STRAY_S if ask.end == "no_turn" else 0.0), died + unseen)
        return min(ask.released, died if ask.attended else NEVER, ask.lease_over)

    def alone(self, ask: Ask) -> bool:
        """Did its job certainly hold nothing else? A request that timed out at the gate may have
        been granted without the job's knowledge.
        """
        strays = (
            other
            for other in self._of_job(ask.by)
            if other.end == "no_turn" and other.asked < ask.asked
        )
        return ask.alone and all(self.gone_by(other) < ask.asked for other in strays)

    def in_line_until(self, ask: Ask) -> float:
        """Until when it may have been queued: one that timed out at the gate is removed later."""
        left = ask.ended + (STRAY_S if ask.end == "no_turn" else 0.0)
        return min(left, self.died.get(ask.process, NEVER))

    def _of_job(self, by: str) -> list[Ask]:
        if not self._jobs:
            for ask in self.asks.values():
                self._jobs.setdefault(ask.by, []).append(ask)
        return self._jobs[by]

    def waited_until(self, ask: Ask) -> float:
        """Until when it certainly waited, if it did: a request that gives up leaves the queue some
        time before it returns.
        """
        given_up = ask.asked + ask.timeout_s if ask.end in ("timed_out", "") else ask.queued
        return min(given_up, self.killing.get(ask.process, NEVER), ask.ended)


def violations(
    history: History, rules: Rules, granted_at: Mapping[int, float] | None = None
) -> list[str]:
    """All violations in the history; none excuses another. `granted_at`: when the store says that
    it granted a contended token.
    """
    return [
        *two_holders(history),
        *tokens_out_of_order(history),
        *overtaken(history, rules),
        *idle_waits(history, rules),
        *late_wakes(history, rules, granted_at or {}),
        *false_deadlocks(history),
        *missed_deadlocks(history),
        *taken_from_the_living(history),
    ]


def two_holders(history: History) -> Iterator[str]:
    """Conflicting grants whose certain spans overlap."""
    for name, asks in _takers(history).items():
        asks.sort(key=lambda ask: ask.granted)
        for at, one in enumerate(asks):
            for other in asks[at + 1 :]:
                if other.granted >= history.sure_until(one):
                    break
                if _in_conflict(one, other):
                    yield f"two holders of {name}: {_shown(one)} until {history.sure_until(one):.6f} and {_shown(other)}"


def tokens_out_of_order(history: History) -> Iterator[str]:
    """A later grant of a name whose token is not greater."""
    for name, asks in _takers(history).items():
        asks.sort(key=lambda ask: ask.tokens[name])
        latest = asks[0]
        for one, other in pairwise(asks):
            if one.tokens[name] == other.tokens[name]:
                yield f"one token of {name} for two: {_shown(one)} and {_shown(other)}"
            latest = max(latest, one, key=lambda ask: ask.asked)
            if other.granted < latest.asked:
                yield f"the tokens of {name} do not grow: {_shown(other)} came before {_shown(latest)}"


def overtaken(history: History, rules: Rules) -> Iterator[str]:
    """A request that later ones overtook more often than allowed. Requests of jobs that held
    something are left out, since such a job may overtake those that wait for it, and so are
    requests that their priority may have moved ahead.
    """
    by_name = _by_name(history.asks.values())
    for asks in by_name.values():
        asks.sort(key=lambda ask: ask.asked)
    for one in history.asks.values():
        if one.queued == NEVER:
            continue
        passed: dict[str, Ask] = {}
        for name in one.names:
            asks = by_name[name]
            for other in asks[bisect_right(asks, one.queued, key=lambda ask: ask.asked) :]:
                if other.asked > one.ended:
                    break
                if _went_before(history, other, one, name) and _is_later(other, one, rules):
                    passed[other.id] = other
        if len(passed) > rules.backfill_max:
            yield f"{_shown(one)} was passed by {len(passed)}: {', '.join(map(_shown, passed.values()))}"
        for other in passed.values():
            if (
                one.names == other.names
                and len(one.names) == 1
                and EXCLUSIVE == one.mode == other.mode
            ):
                yield f"of two for the same, the later went first: {_shown(other)} before {_shown(one)}"


def _went_before(history: History, other: Ask, one: Ask, name: str) -> bool:
    if not _in_conflict(one, other) or name not in other.taken or not history.alone(other):
        return False
    if name in one.taken:
        return other.tokens[name] < one.tokens[name]
    # It was never granted, or not by this request.
    return one.end != "granted" and other.granted < history.waited_until(one)


def _is_later(other: Ask, one: Ask, rules: Rules) -> bool:
    moved_s = (other.priority - one.priority) * rules.age_s
    return moved_s <= 0 or other.asked - one.queued > moved_s + CLOCKS_S


def idle_waits(history: History, rules: Rules) -> Iterator[str]:
    """A wait that continued long after all its names were free: its wake-up was lost."""
    claims = _Claims(history)
    for one in history.asks.values():
        if one.queued == NEVER or one.end not in ("granted", "timed_out"):
            continue
        since = max(one.queued, *(claims.gone_before(name, one) for name in one.names))
        if one.ended - since > IDLE_S + _hindered(history, since, one.ended, rules):
            yield f"{_shown(one)} waited for {one.ended - since:.3f} s while all was free, until it was {one.end}"


class _Claims:
    """For each name and time: the last moment at which an earlier claim blocked anybody."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._begins: dict[tuple[str, bool], list[float]] = {}
        self._ends: dict[tuple[str, bool], list[tuple[tuple[float, str], tuple[float, str]]]] = {}
        for name, asks in _by_name(history.asks.values()).items():
            for exclusive in (False, True):
                chosen = [ask for ask in asks if ask.mode == EXCLUSIVE or not exclusive]
                self._add((name, exclusive), sorted(chosen, key=lambda ask: ask.asked))

    def _add(self, key: tuple[str, bool], asks: Sequence[Ask]) -> None:
        """The two greatest ends of different jobs, so that a job's own can be left out."""
        last = second = (0.0, "")
        ends = []
        for ask in asks:
            end = (self._history.gone_by(ask), ask.by)
            if ask.by == last[1]:
                last = max(last, end)
            elif end > last:
                last, second = end, last
            elif end > second:
                second = end
            ends.append((last, second))
        self._begins[key], self._ends[key] = [ask.asked for ask in asks], ends

    def gone_before(self, name: str, one: Ask) -> float:
        """When the last conflicting claim that began before the end of a request was gone; the end
        of the request at the latest.
        """
        key = (name, one.mode == SHARED)
        at = bisect_left(self._begins[key], one.ended)
        if at == 0:
            return 0.0
        last, second = self._ends[key][at - 1]
        return min(second[0] if last[1] == one.by else last[0], one.ended)


def late_wakes(history: History, rules: Rules, granted_at: Mapping[int, float]) -> Iterator[str]:
    """A grant long before its waiter learned of it."""
    for one in history.asks.values():
        since = granted_at.get(max((one.tokens[name] for name in one.taken), default=0))
        if since is not None and one.granted - since > LATE_S + _hindered(
            history, since, one.granted, rules
        ):
            yield f"{_shown(one)} learnt of its grant {one.granted - since:.3f} s late"


def _hindered(history: History, begin: float, end: float, rules: Rules) -> float:
    """The extra time for a wake-up, since a process was stopped or killed meanwhile."""
    stopped_s = sum(max(min(to, end) - max(since, begin), 0.0) for since, to in history.stops)
    killed = any(begin - IDLE_S <= at <= end for at in history.killing.values())
    return stopped_s + (rules.recheck_s if killed else 0.0)


def false_deadlocks(history: History) -> Iterator[str]:
    """A reported deadlock that was none: a job in it was dead already, or did not hold or wait for
    what the report says.
    """
    of_job: dict[str, list[Ask]] = {}
    for ask in history.asks.values():
        of_job.setdefault(ask.by, []).append(ask)
    for one in history.asks.values():
        if one.end != "deadlock":
            continue
        steps = [match.groups() for match in _STEP.finditer(one.message)]
        if not steps or steps[0][0] != one.by or steps[-1][2] != one.by:
            yield f"{_shown(one)} got a deadlock without a cycle: {one.message}"
        for waiter, name, holder in steps:
            holds = [ask for ask in of_job.get(holder, ()) if name in ask.names and ask is not one]
            if not any(
                ask.asked <= one.ended and history.gone_by(ask) >= one.asked for ask in holds
            ):
                yield f"{_shown(one)} got a cycle in which {holder} holds {name}, which it did not: {one.message}"
            waits = [ask for ask in of_job.get(waiter, ()) if name in ask.names]
            if not any(
                ask.asked <= one.ended and history.in_line_until(ask) >= one.asked for ask in waits
            ):
                yield f"{_shown(one)} got a cycle in which {waiter} waits for {name}, which it did not: {one.message}"


_STEP = re.compile(r"(\S+) waits for (\S+), held by ([^\s;]+)")


def missed_deadlocks(history: History) -> Iterator[str]:
    """Jobs that waited for each other's holds in a circle until one gave up, without a reported
    deadlock.
    """
    takers = _takers(history)
    of_job: dict[str, list[Ask]] = {}
    for ask in history.asks.values():
        if ask.queued != NEVER:
            of_job.setdefault(ask.by, []).append(ask)
    for one in history.asks.values():
        end = history.waited_until(one)
        waited = one.end == "timed_out" and end - one.queued > CYCLE_S
        if waited and (path := _circle(history, takers, of_job, one, end - CYCLE_S, end)):
            yield f"a deadlock that no job got: {', '.join(map(_shown, path))}"


def _circle(
    history: History,
    takers: Mapping[str, list[Ask]],
    of_job: Mapping[str, list[Ask]],
    first: Ask,
    begin: float,
    end: float,
) -> list[Ask]:
    """A path from a wait, through jobs that held something and waited themselves for all that time,
    back to its own job.
    """
    led_by: dict[str, Ask | None] = {first.id: None}
    found = [first]
    for one in found:
        for name in one.names:
            for hold in takers.get(name, ()):
                if (
                    not _in_conflict(hold, one)
                    or hold.granted > begin
                    or history.sure_until(hold) < end
                ):
                    continue
                if hold.by == first.by:
                    path = [one]
                    while (before := led_by[path[-1].id]) is not None:
                        path.append(before)
                    return path[::-1]
                for wait in of_job.get(hold.by, ()):
                    if (
                        wait.id not in led_by
                        and wait.queued <= begin
                        and _waited_through(history, wait, end)
                    ):
                        led_by[wait.id] = one
                        found.append(wait)
    return []


def _waited_through(history: History, wait: Ask, end: float) -> bool:
    """Was it still waiting at that moment?"""
    if wait.end == "granted":
        # Its grant came when the job that it waited for in the circle released. The caller has to
        # check that.
        return wait.ended >= end
    return history.waited_until(wait) >= end


def taken_from_the_living(history: History) -> Iterator[str]:
    """A grant that was gone at its release, though its process lived and its TTL had not passed."""
    for one in history.asks.values():
        if one.taken and not one.freed and one.released < one.lease_sure:
            yield f"{_shown(one)} was lost"
        if one.end == "failed":
            yield f"{_shown(one)} failed: {one.message}"


def _in_conflict(one: Ask, other: Ask) -> bool:
    return one.by != other.by and EXCLUSIVE in (one.mode, other.mode)


def _takers(history: History) -> dict[str, list[Ask]]:
    found: dict[str, list[Ask]] = {}
    for ask in history.asks.values():
        for name in ask.taken:
            found.setdefault(name, []).append(ask)
    return found


def _by_name(asks: Iterable[Ask]) -> dict[str, list[Ask]]:
    found: dict[str, list[Ask]] = {}
    for ask in asks:
        for name in ask.names:
            found.setdefault(name, []).append(ask)
    return found


def _shown(ask: Ask) -> str:
    names = "+".join(ask.names)
    queued = "" if ask.queued == NEVER else f" queued {ask.queued:.6f}"
    token = f" token {max(ask.tokens.values())}" if ask.tokens else ""
    return (
        f"<{ask.id} {names} {ask.mode} p{ask.priority} asked {ask.asked:.6f}{queued} {ask.end} "
        f"{ask.ended:.6f}{token}>"
    )
