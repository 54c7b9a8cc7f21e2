"""Whose turn it is. The rules of the lock table, over a `Table` and nothing else.

A request waits for two kinds of obstacle: holds of other jobs that conflict with it, and requests
before it in the queue that conflict with it. Only holds are absolute. A request before it is no
obstacle

- if it waits, directly or not, for this very job: to queue behind it would close a cycle that
  nobody meant; or
- if it has been let wait for later ones fewer than BACKFILL_MAX times: it cannot go now, and this
  one can.

By the first exception, a cycle that has a place in a queue in it dissolves by itself. So a real
deadlock consists of holds alone.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from holdfast.kernel.codec import to_json
from holdfast.kernel.limits import BACKFILL_MAX, LOCK_HOLDS_BYTES_MAX, LOCK_SHARERS_MAX
from holdfast.primitives.locks.records import Hold, Mode, Request, conflict, within
from holdfast.primitives.locks.table import Table


class Obstacle(NamedTuple):
    """A hold on a name that a request must wait for."""

    name: str
    hold: Hold


class Step(NamedTuple):
    """One step of a cycle: a request waits for a name, by a hold of the next step's job."""

    request: Request
    name: str
    hold: Hold


def needed(table: Table, request: Request) -> list[str]:
    """The names that the request's job does not hold already as it asks for them."""
    if request.look:
        return list(request.names)
    return [name for name in request.names if not _covered(table, name, request)]


def held_against(table: Table, request: Request) -> Iterator[Obstacle]:
    """The holds of other jobs that the request must wait for. Mostly the first one says enough."""
    by, mode = request.by, request.mode
    for name in request.names:
        holds = table.lock(name).holds
        if holds and (request.look or not _covered(table, name, request)):
            # Those that share it are in nobody's way but that of an exclusive request.
            for hold in holds if mode is Mode.EXCLUSIVE else table.holders(name).exclusive:
                if not within(by, hold.by):
                    yield Obstacle(name, hold)
            if _full(table, name, request):
                # Whoever leaves makes room, and one stands for them all: one that waits for
                # nothing, if there is such a one, as a cycle through another would not last.
                yield Obstacle(
                    name, next((hold for hold in holds if not table.of_job(hold.by)), holds[0])
                )


def _full(table: Table, name: str, request: Request) -> bool:
    """Do so many share it that a request which would too has to wait until one of them leaves?"""
    if request.mode is not Mode.SHARED or _covered(table, name, request):
        return False
    holders = table.holders(name)
    # A request says all that its hold would, and more.
    return (
        holders.count >= LOCK_SHARERS_MAX
        or holders.size() + len(to_json(request)) > LOCK_HOLDS_BYTES_MAX
    )


def _covered(table: Table, name: str, request: Request) -> bool:
    return (
        bool(table.lock(name).holds)
        and table.holders(name).covering(request.by, request.mode) is not None
    )


def queued_against(table: Table, request: Request) -> Iterator[Request]:
    """The requests before it that conflict with it, whether or not it must wait for them; one may
    come more than once.
    """
    if request.look:
        return
    place = request.place
    for name in needed(table, request):
        if not table.lock(name).waited:
            continue
        for other in table.queue(name):
            if other.place >= place:
                break
            if (
                not other.look
                and conflict(other.mode, request.mode)
                and not within(request.by, other.by)
            ):
                yield other


def may_go(table: Table, request: Request) -> list[Request] | None:
    """None when the request must wait. Otherwise those before it that it may delay by going now,
    each to be counted.
    """
    for _ in held_against(table, request):
        return None
    return may_overtake(table, request)


def may_overtake(table: Table, request: Request) -> list[Request] | None:
    """The same of a request that no hold stands against."""
    overtaken: dict[str, Request] = {}
    harmless: set[str] = set()
    for other in queued_against(table, request):
        if other.id in overtaken or waits_for(table, other, request.by, harmless):
            continue
        if other.passed >= BACKFILL_MAX:
            return None
        overtaken[other.id] = other
    return list(overtaken.values())


def waits_for(table: Table, request: Request, by: str, known_not: set[str] | None = None) -> bool:
    """Does the request wait, directly or not, for something that a job holds? `known_not` remembers
    those that do not, from one question about a job to the next.
    """
    seen = set() if known_not is None else known_not
    open_ones = [request]
    path: set[str] = set()
    while open_ones:
        waiting = open_ones.pop()
        if waiting.id in seen or waiting.id in path:
            continue
        path.add(waiting.id)
        holders = {obstacle.hold.by for obstacle in held_against(table, waiting)}
        if any(within(by, holder) for holder in holders):
            return True
        for holder in holders:
            open_ones += table.of_job(holder)
        open_ones += queued_against(table, waiting)
    seen |= path
    return False


def waiting_behind(table: Table, jobs: set[str]) -> list[Request]:
    """Every request of these jobs, of those they wait for, and so on, in order."""
    found: dict[str, Request] = {}
    open_ones = [request for by in jobs for request in table.of_job(by)]
    while open_ones:
        request = open_ones.pop()
        if request.id not in found:
            found[request.id] = request
            for obstacle in held_against(table, request):
                open_ones += table.of_job(obstacle.hold.by)
            open_ones += queued_against(table, request)
    return sorted(found.values(), key=lambda request: request.place)


def cycle(table: Table, request: Request) -> list[Step]:
    """The cycle of holds that the request closes or is part of, beginning with it; empty when there
    is none.
    """
    led_by: dict[str, Step | None] = {request.id: None}
    open_ones = deque([request])
    while open_ones:
        waiting = open_ones.popleft()
        for name, hold in held_against(table, waiting):
            step: Step | None = Step(waiting, name, hold)
            if within(request.by, hold.by):
                steps = []
                while step is not None:
                    steps.append(step)
                    step = led_by[step.request.id]
                return steps[::-1]
            for next_one in table.of_job(hold.by):
                if next_one.id not in led_by:
                    led_by[next_one.id] = step
                    open_ones.append(next_one)
    return []


def just_ahead(table: Table, request: Request) -> tuple[list[Hold], list[Request]]:
    """Whose death would let the request move up: for each name the nearest before it, or the
    holders where it is the first.

    Of several sharers before an exclusive request each counts, as they will hold together.
    """
    holds: dict[str, Hold] = {}
    requests: dict[str, Request] = {}
    for name in needed(table, request):
        nearest = _nearest(table, request, name)
        requests.update({other.id: other for other in nearest})
        watched = {other.by for other in nearest if other.mode is Mode.EXCLUSIVE}
        present = table.lock(name).holds
        full = _full(table, name, request)
        for hold in present:
            # An exclusive request before this one watches the holders, but for those of its own
            # job.
            theirs = (full or conflict(hold.mode, request.mode)) and not within(request.by, hold.by)
            if theirs and (not watched or any(within(by, hold.by) for by in watched)):
                holds[hold.id] = hold
    return list(holds.values()), list(requests.values())


def _nearest(table: Table, request: Request, name: str) -> list[Request]:
    nearest: list[Request] = []
    for other in table.before(request, name):
        # Those of its own job too: it does not wait for them, but others behind it leave it to this
        # one to watch them.
        if other.look or not conflict(other.mode, request.mode):
            continue
        if nearest and other.mode is Mode.EXCLUSIVE:
            break
        nearest.append(other)
        if other.mode is Mode.EXCLUSIVE:
            break
    return nearest


def described(steps: Sequence[Step]) -> str:
    """A cycle in words; of a long one, its beginning."""
    words = "; ".join(
        f"{step.request.by} waits for {step.name}, held by {step.hold.by}"
        for step in steps[:_STEPS_TOLD_MAX]
    )
    return (
        words
        if len(steps) <= _STEPS_TOLD_MAX
        else f"{words}; and {len(steps) - _STEPS_TOLD_MAX} more"
    )


_STEPS_TOLD_MAX = 16
