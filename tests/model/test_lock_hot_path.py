"""The straight way through a contended lock's usual turn decides as the general rules do.

Random histories run through two stores: in one, requests and releases take the straight way where
it has an answer, as `Acquisition` and `LockContext.release` let them; in the other, never. After
each step everything is compared: answers, rows with their revisions, notices and journal.
HOLDFAST_HOT_PATH_HISTORIES tries more histories.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest import mock

import pytest
from msgspec.structs import replace

from holdfast.kernel import lease as leases
from holdfast.kernel.holder import Holder, Liveness
from holdfast.kernel.settings import LockSettings
from holdfast.kernel.store import Entry, Store
from holdfast.primitives.journal import Journal
from holdfast.primitives.locks import hot_path
from holdfast.primitives.locks.context import LockContext
from holdfast.primitives.locks.records import (
    LOCK_WAITS,
    LOCKS,
    Lock,
    LockHold,
    Mode,
    Waiter,
    lock_in,
)
from holdfast.primitives.locks.request import (
    AcquireAnswer,
    RequestSteps,
    Unverified,
)
from holdfast.primitives.locks.transaction import SCOPE, Suspect
from holdfast.testing.clock import ManualClock
from tests.harness.machine import Machine
from tests.harness.stores import open_store

HISTORIES = int(os.environ.get("HOLDFAST_HOT_PATH_HISTORIES", "350"))
"""Histories in memory; a store on a disk gets a part of them."""
_STEPS = 60
_LEASE_S = 30.0

_PROCESSES = [
    Holder(host_id="host-1", boot_id="boot-1", pid_ns=1, pid=100 + at, start_ticks=5)
    for at in range(4)
]
_FEW_JOBS = ("a", "b", "c", "d", "ab", "a/1", "a/2", "b/1")
_MANY_JOBS = tuple(f"j{at}" for at in range(9))


class _NoticeTx:
    """A transaction whose notices are written down."""

    def __init__(self, tx: Any, notices: list[str]) -> None:
        self._tx = tx
        self._notices = notices

    def notify(self, topic: str) -> None:
        self._notices.append(topic)
        self._tx.notify(topic)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)


class _NoticeStore:
    """A store that writes down the notices of its last transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.notices: list[str] = []

    def transact(self, body: Callable[[Any], Any], **more: Any) -> Any:
        def run(tx: Any) -> Any:
            self.notices = []
            return body(_NoticeTx(tx, self.notices))

        return self._store.transact(run, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class _Side:
    """One of the two stores, and the steps of a history on it."""

    def __init__(self, store: Store, clock: ManualClock, settings: LockSettings) -> None:
        self.clock = clock
        self.store = _NoticeStore(store)
        seat = Machine().begin(1)
        journal = Journal(store, actor="test")
        self.context = LockContext(self.store, journal, seat, settings, "test")
        self.requests: dict[str, RequestSteps] = {}

    def request(self, draft: Waiter) -> AcquireAnswer:
        """As `Acquisition._answer`: on the hot path first, unless that is switched off."""
        context = self.context
        steps = self.requests[draft.id] = RequestSteps(
            draft, context.settings, context.clock, explain=False
        )
        answer: AcquireAnswer = context.transact(steps.grant_or_queue, shortcut=steps.on_hot_path)
        while isinstance(answer, Unverified):
            # All processes live; a time to live may be over.
            ahead = answer.ahead
            self.reap(*(Suspect(a.id, a.names, a.process, Liveness.ALIVE) for a in ahead))
            steps.verified |= {one.id for one in ahead}
            answer = context.transact(steps.grant_or_queue)
        return answer

    def take_free(self, draft: Waiter) -> int | None:
        """As `Acquisition._take_free`: the rows of such a grant leave its token out."""
        ttl_s = _LEASE_S if draft.ttl_s is None else draft.ttl_s
        hold = LockHold(
            id=draft.id,
            by=draft.by,
            mode=draft.mode,
            names=draft.names,
            lease=leases.grant(self.clock.now(), ttl_s, explicit=draft.ttl_s is not None),
            process=draft.holder,
            on_behalf=draft.grantee is not None,
            ttl_s=draft.ttl_s,
        )
        return self.store.put_new(LOCKS, [(name, Lock(holds=(hold,))) for name in draft.names])  # type: ignore[no-any-return]

    def leave(self, request_id: str, *, timed_out: bool) -> AcquireAnswer | None:
        steps = self.requests.get(request_id)
        if steps is None:
            return None
        return self.context.transact(lambda tx: steps.leave_queue(tx, timed_out=timed_out))

    def refresh(self, waiters: Sequence[Waiter]) -> None:
        for one in waiters:
            self.context.transact(self.requests[one.id].refresh)

    def reap(self, *suspects: Suspect) -> object:
        return self.context.transact(lambda transaction: transaction.reap(suspects))

    def rows(self) -> list[tuple[str, Lock | Waiter, int]]:
        rows: list[Any] = self.store.read(
            lambda tx: [*tx.range(LOCKS), *tx.range(LOCK_WAITS)], scope=SCOPE
        )
        return [(row.key, row.record, row.revision) for row in rows]

    def journal(self) -> list[Entry]:
        return list(self.store.journal(limit=1000).entries)

    def waiters(self) -> list[Waiter]:
        rows: list[Any] = self.store.read(lambda tx: tx.range(LOCK_WAITS), scope=[LOCK_WAITS])
        return [row.record for row in rows]

    def holds(self) -> list[LockHold]:
        rows: list[Any] = self.store.read(lambda tx: tx.range(LOCKS), scope=[LOCKS])
        return [hold for row in rows for hold in lock_in(row).holds]


def _do_on_both(sides: Sequence[_Side], step: Callable[[_Side], object], where: str = "") -> None:
    """Do a step on the hot path and in general, and compare everything."""
    hot, general = sides
    hot.store.notices, general.store.notices = [], []
    by_hot_path = step(hot)
    with (
        mock.patch.object(hot_path, "grant_or_queue", return_value=None),
        mock.patch.object(hot_path, "release", return_value=None),
    ):
        assert by_hot_path == step(general), where
    assert sorted(hot.store.notices) == sorted(general.store.notices), where
    assert hot.rows() == general.rows(), where
    assert hot.journal() == general.journal(), where


class _Kind(NamedTuple):
    """What a history is made of. The plainer it is, the more often the hot path decides."""

    jobs: tuple[str, ...]
    names: tuple[str, ...]
    sets: float = 0.0
    shared: float = 0.0
    looks: float = 0.0
    priorities: float = 0.0
    others: float = 0.05
    """Withdrawals, timeouts, deaths, kicks, and what else is rare."""


_KINDS = [
    _Kind(_MANY_JOBS, ("x",)),
    _Kind(_MANY_JOBS, ("x", "y"), looks=0.1, others=0.2),
    _Kind((*_FEW_JOBS, *_MANY_JOBS), ("x", "y"), 0.05, 0.05, 0.1, 0.05, 0.15),
    _Kind(_FEW_JOBS, ("x", "y", "z"), 0.2, 0.15, 0.1, 0.1, 0.2),
    _Kind(_FEW_JOBS[:4], ("x", "y")),
    _Kind(_MANY_JOBS, ("x",), priorities=0.3),
    _Kind(_MANY_JOBS, ("x", "y"), sets=0.3, others=0.3),
]


class _History:
    """Chooses the steps by a seed, does each on both sides, and compares."""

    def __init__(self, seed: int, sides: Sequence[_Side]) -> None:
        self.seed = seed
        self.sides = sides
        self.draw = Random(seed)
        self.kind = _KINDS[seed % len(_KINDS)]
        self.numbers = count(1)
        self.known: list[tuple[str, tuple[str, ...]]] = []

    def run(self) -> None:
        for at in range(_STEPS):
            self._pass_time()
            _do_on_both(self.sides, self._next_step(), f"history {self.seed}, step {at}")

    def _pass_time(self) -> None:
        seconds = self.draw.choice([0, 0, 0, 0.000_001, 0.001, 0.2, 1, 2.5, 6, -0.003, -2])
        for side in self.sides:
            side.clock.advance(seconds)

    def _next_step(self) -> Callable[[_Side], object]:
        draw = self.draw
        chosen = draw.random()
        if chosen < self.kind.others:
            return self._rare_step()
        if chosen < 0.6 or not self.known:
            draft = self._draft()
            self.known.append((draft.id, draft.names))
            if draw.random() < 0.3 and not draft.wait_only:
                return lambda side: side.take_free(draft)
            return lambda side: side.request(draft)
        holds = self.sides[0].holds()
        if holds and draw.random() < 0.9:
            hold = draw.choice(holds)
            hold_id, names = hold.id, hold.names
        else:
            hold_id, names = draw.choice(self.known)
        return lambda side: side.context.release(hold_id, names)

    def _rare_step(self) -> Callable[[_Side], object]:
        draw, hot = self.draw, self.sides[0]
        holds, waiters = hot.holds(), hot.waiters()
        settled = [waiter for waiter in waiters if waiter.outcome is not None]
        if settled and draw.random() < 0.7:
            reader = draw.choice(settled)
            if draw.random() < 0.5:
                # A waiter that requests again meets the table that its outcome has left.
                return lambda side: side.context.transact(side.requests[reader.id].read_outcome)
            return lambda side: side.context.withdraw(reader.id, reader.names)
        queued = [waiter for waiter in waiters if waiter.outcome is None]
        choices: list[Callable[[_Side], object]] = []
        if queued:
            one = draw.choice(queued)
            gone = Suspect(one.id, one.names, one.process, Liveness.DEAD)
            choices += [
                lambda side: side.leave(one.id, timed_out=True),
                lambda side: side.leave(one.id, timed_out=False),
                lambda side: side.context.withdraw(one.id, one.names),
                lambda side: side.context.transact(side.requests[one.id].report_wait),
                lambda side: side.refresh(queued),
                lambda side: side.refresh(queued),
                lambda side: side.reap(gone),
            ]
        if holds:
            hold = draw.choice(holds)
            dead = Suspect(hold.id, hold.names, hold.process, Liveness.DEAD)
            late = replace(dead, liveness=Liveness.ALIVE)
            choices += [
                lambda side: side.reap(dead),
                lambda side: side.reap(late),
                lambda side: side.context.withdraw(hold.id, hold.names),
                lambda side: side.context.transact(lambda tx: tx.renew(hold, None)),
                lambda side: side.context.transact(lambda tx: tx.transfer(hold, _PROCESSES[0])),
                lambda side: side.context.transact(lambda tx: tx.free(hold.names[:1], hold.by)),
                lambda side: side.context.transact(lambda tx: tx.kick(hold.names[0], None, "why")),
            ]
        return draw.choice(choices) if choices else lambda _: None

    def _draft(self) -> Waiter:
        draw, kind = self.draw, self.kind
        names: tuple[str, ...] = (draw.choice(kind.names),)
        if draw.random() < kind.sets:
            names = tuple(draw.sample(kind.names, 2))
        looks, ttl_s = draw.random() < kind.looks, draw.choice([None, None, 5.0])
        return _draft(
            next(self.numbers),
            names,
            draw.choice(kind.jobs),
            self.sides[0].clock,
            mode=Mode.SHARED if draw.random() < kind.shared else Mode.EXCLUSIVE,
            wait_only=looks,
            priority=draw.choice([-1, 1, 3]) if draw.random() < kind.priorities else 0,
            process=draw.choice(_PROCESSES),
            grantee=None if looks else draw.choice([None, None, None, *_PROCESSES]),
            unattended=not looks and ttl_s is not None and draw.random() < 0.1,
            ttl_s=None if looks else ttl_s,
        )


def _draft(number: int, names: tuple[str, ...], by: str, clock: ManualClock, **more: Any) -> Waiter:
    fields: dict[str, Any] = {"mode": Mode.EXCLUSIVE, "process": _PROCESSES[0], **more}
    return Waiter(
        id=f"r-{number}",
        name=names[0],
        names=names,
        by=by,
        rank=0,
        arrival=0,
        arrived_at=clock.now(),
        lease=leases.grant(clock.now(), _LEASE_S),
        address=f"@{number}",
        **fields,
    )


@contextmanager
def _counted(taken: Counter[str]) -> Iterator[None]:
    """Count the decisions of the hot path."""
    grant_or_queue, release = hot_path.grant_or_queue, hot_path.release

    def counted_request(*arguments: Any) -> Any:
        answer = grant_or_queue(*arguments)
        if answer is not None:
            behind = isinstance(answer, hot_path.Queued) and isinstance(answer.ahead, Waiter)
            first = "first in the queue" if not behind else "behind a waiter"
            taken["free" if isinstance(answer, LockHold) else first] += 1
        return answer

    def counted_release(tx: Any, *arguments: Any) -> Any:
        notified = len(tx._notices)
        answer = release(tx, *arguments)
        if answer is not None:
            taken["handed over" if len(tx._notices) > notified else f"last: {answer}"] += 1
        return answer

    with (
        mock.patch.object(hot_path, "grant_or_queue", counted_request),
        mock.patch.object(hot_path, "release", counted_release),
    ):
        yield


@contextmanager
def _two_sides(
    kind: str, folder: Path, request: pytest.FixtureRequest, settings: LockSettings
) -> Iterator[list[_Side]]:
    sides: list[_Side] = []
    try:
        for name in ("hot", "general"):
            (folder / name).mkdir()
            clock = ManualClock()
            sides.append(_Side(open_store(kind, folder / name, clock, request), clock, settings))
        yield sides
    finally:
        for side in sides:
            side.store.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_the_hot_path_decides_as_the_general_rules_do(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    histories = HISTORIES if kind == "memory" else HISTORIES // 15
    taken: Counter[str] = Counter()
    for seed in range(histories):
        # Each kind of history with each of these, in turn.
        settings = LockSettings(
            lease_s=_LEASE_S,
            journal="all" if seed // 7 % 6 == 0 else "contended",
            journal_waits_s=0 if seed // 7 % 5 == 1 else 1,
        )
        folder = tmp_path / str(seed)
        folder.mkdir()
        with _two_sides(kind, folder, request, settings) as sides, _counted(taken):
            _History(seed, sides).run()
    # Each branch decided often: the free name, both places in a queue, and all ends of a grant, of
    # which False is for a holder that was too late.
    branches = (
        "free",
        "first in the queue",
        "behind a waiter",
        "handed over",
        "last: True",
        "last: False",
    )
    assert all(taken[branch] > histories / 2 for branch in branches), taken


def test_a_request_behind_a_set_watches_what_the_set_has_renewed(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Of the rows of a waiter for a set, only the first is kept up to date."""
    with _two_sides("memory", tmp_path, request, LockSettings(lease_s=_LEASE_S)) as sides:
        clock = sides[0].clock
        held, ahead = _draft(1, ("b",), "one", clock), _draft(2, ("a", "b"), "two", clock)
        _do_on_both(sides, lambda side: side.request(held))
        _do_on_both(sides, lambda side: side.request(ahead))
        for side in sides:
            side.clock.advance(9)
        _do_on_both(sides, lambda side: side.refresh([ahead]))
        behind = _draft(3, ("b",), "three", clock)
        _do_on_both(sides, lambda side: side.request(behind))
