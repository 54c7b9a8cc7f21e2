"""Bugs of the program that can be planted into a process. What checks a crowd or a soak must find
each of them: a check that finds none proves nothing.
"""

import contextlib
import random
import time
from collections.abc import Callable
from copy import copy
from typing import Any, TypeVar
from zlib import crc32

from msgspec import UNSET
from msgspec.structs import replace

from holdfast.domains.jobs import transitions
from holdfast.domains.jobs.reaper import Reaper
from holdfast.domains.jobs.registry import Jobs
from holdfast.kernel.holder import Liveness
from holdfast.kernel.store import Store, Tx
from holdfast.primitives import holds
from holdfast.primitives.holds import Holds
from holdfast.primitives.journal import Journal
from holdfast.primitives.locks import hot_path, manager, policy, records, transaction
from holdfast.primitives.locks.transaction import LockTransaction, Suspect
from holdfast.primitives.locks.wait import AheadWatch
from holdfast.primitives.queue.records import RequestState
from holdfast.primitives.queue.transaction import QueueTransaction
from holdfast.processes.procfs import Procfs

T = TypeVar("T")
Bug = Callable[[random.Random], None]


def plant(name: str, draw: random.Random) -> None:
    """Plant a bug by its name, into this process and what it forks."""
    BUGS[name](draw)


def _put(owner: object, name: str, new: object) -> None:
    """Replace a part of the program. Raises AttributeError if the part does not exist: a bug that
    changes nothing would look like a check that finds nothing.
    """
    getattr(owner, name)
    setattr(owner, name, new)


# --- stores ---


def no_gate(draw: random.Random) -> None:
    """SQLite: writers do not exclude each other, so one changes what another has just read."""
    from holdfast.stores.sqlite.database import Database

    def write(
        self: Any,
        connection: Any,
        work: Callable[[], Any],
        deadline: float | None = None,
        **more: Any,
    ) -> Any:
        # Each statement is a transaction of its own.
        connection.cursor.execute("PRAGMA busy_timeout = 5000")
        result = work()
        committed = more.get("committed")
        if committed is not None:
            committed(result)
        return result

    _put(Database, "write", write)


def no_latch(draw: random.Random) -> None:
    """PostgreSQL: no space is latched, whole or by rows."""
    from holdfast.stores.postgres import latches

    _put(latches, "of_scope", lambda *_: [])


def early_wake(draw: random.Random) -> None:
    """SQLite: a waiter is woken before the change it waits for is committed."""
    from holdfast.stores.sqlite import store
    from holdfast.stores.sqlite.fifos import Fifos

    transact = store.SqliteStore._transact
    notify = Fifos.notify

    def early(self: Any, body: Callable[[Any], Any], *arguments: Any, **more: Any) -> Any:
        def hasty(tx: Any) -> Any:
            result = body(tx)
            topics = dict(tx.topics)
            for topic in topics:
                notify(self._fifos, topic)
            tx.topics.clear()
            if topics:
                # Long enough for the waiter to read the old state.
                time.sleep(0.03)
            return result

        return transact(self, hasty, *arguments, **more)

    _put(store.SqliteStore, "_transact", early)


# --- locks ---


def unseen_holder(draw: random.Random) -> None:
    """Now and then a request does not see who holds the names that it asks for."""
    real = policy.blocking_holds
    _put(
        policy,
        "blocking_holds",
        lambda *arguments: iter(()) if draw.random() < 0.05 else real(*arguments),
    )


class _AlteredTx:
    """A transaction of which something is different."""

    def __init__(self, tx: Any) -> None:
        self._tx = tx

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)


def _alter_transactions(alter: Callable[[Any], Any]) -> None:
    """Alter the transactions of both ways on the lock table."""
    begin = LockTransaction.__init__
    grant_or_queue: Callable[..., Any] = hot_path.grant_or_queue
    release: Callable[..., Any] = hot_path.release

    def altered(self: LockTransaction, tx: Any, *arguments: Any) -> None:
        begin(self, alter(tx), *arguments)

    _put(LockTransaction, "__init__", altered)
    _put(hot_path, "grant_or_queue", lambda tx, *more: grant_or_queue(alter(tx), *more))
    _put(hot_path, "release", lambda tx, *more: release(alter(tx), *more))


def no_wake(draw: random.Random) -> None:
    """A release hands over and wakes nobody."""

    class Silent(_AlteredTx):
        def notify(self, topic: str) -> None:
            pass

    _alter_transactions(Silent)


def no_overtaking_limit(draw: random.Random) -> None:
    """Later requests overtake a waiting one without limit."""
    _put(policy, "BACKFILL_MAX", 1_000_000)


def random_order(draw: random.Random) -> None:
    """Places in the queue of a name are random."""
    for module in (transaction, hot_path):
        _put(
            module,
            "rank_of",
            lambda *arguments: records.rank_of(*arguments) + draw.randint(-300_000, 300_000),
        )


def no_deadlock_check(draw: random.Random) -> None:
    """A cycle of waiters is never found."""
    _put(policy, "find_cycle", lambda *_: [])


def live_holder_judged_dead(draw: random.Random) -> None:
    """Now and then a live holder or waiter is judged dead."""
    real = AheadWatch.suspects

    def suspects(self: AheadWatch) -> list[Suspect]:
        self._liveness |= {one.id: Liveness.DEAD for one in self._ahead if draw.random() < 0.02}
        return real(self)

    _put(AheadWatch, "suspects", suspects)


def random_tokens(draw: random.Random) -> None:
    """Tokens of a name do not grow."""

    class Random(_AlteredTx):
        def token(self) -> int:
            return int(self._tx.token()) + draw.randint(0, 1000)

        def append(self, **entry: Any) -> int:
            return int(self._tx.append(**entry)) + draw.randint(0, 1000)

    _alter_transactions(Random)


# --- tokens, holds, queues ---


def any_token(draw: random.Random) -> None:
    """Every token is accepted: for a verdict, a completion, a check."""
    checked = transitions.check_token
    _put(
        transitions,
        "check_token",
        lambda job, token: None if job.token is not None else checked(job, token),
    )
    real = QueueTransaction._owned

    def owned(self: QueueTransaction, request_id: str, token: int) -> Any:
        request = self._existing(request_id)
        if request.state is not RequestState.RUNNING:
            return real(self, request_id, token)
        return request

    _put(QueueTransaction, "_owned", owned)
    _put(manager.Locks, "check_token", lambda self, name, token: None)


def double_hold(draw: random.Random) -> None:
    """Now and then taking a hold again counts twice."""
    real = holds.taken
    _put(
        holds,
        "taken",
        lambda held, hold: (*held, hold) if draw.random() < 0.2 else real(held, hold),
    )


def kept_holds(draw: random.Random) -> None:
    """The holds of dead processes are never cleared."""
    _put(Holds, "_probe_all", lambda self, found: {})


def two_slots(draw: random.Random) -> None:
    """Now and then a queue gives out a request while another runs."""
    real = QueueTransaction.claim

    def claim(self: QueueTransaction, **more: Any) -> Any:
        if self.head.slot is not None and draw.random() < 0.3:
            self.head = replace(self.head, slot=None)
        return real(self, **more)

    _put(QueueTransaction, "claim", claim)


# --- jobs, journal, process trees ---


def live_worker_judged_dead(draw: random.Random) -> None:
    """The live workers of some jobs are judged dead, and their jobs are given to others."""
    real = Reaper._verdict

    def verdict(self: Reaper, job: Any, worker: Any, now: Any) -> Any:
        dead = replace(worker, liveness=Liveness.DEAD)
        return real(self, job, worker if crc32(job.job_id.encode()) % 3 else dead, now)

    _put(Reaper, "_verdict", verdict)


def missing_journal(draw: random.Random) -> None:
    """Now and then a change is missing from the journal."""
    real = Journal.append
    _put(
        Journal,
        "append",
        lambda self, tx, **entry: 0 if draw.random() < 0.3 else real(self, tx, **entry),
    )


def lost_job(draw: random.Random) -> None:
    """Now and then a job is acknowledged and not stored."""
    real = Jobs.register_job

    def register_job(self: Jobs, prompt: str, **more: Any) -> Any:
        if draw.random() < 0.3:
            self = copy(self)
            _put(self, "_store", _Undoing(self._store))
        return real(self, prompt, **more)

    _put(Jobs, "register_job", register_job)


class _Undone(Exception):
    pass


class _Undoing:
    """A store that rolls back whatever is done in it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.now = store.now

    def transact(self, body: Callable[[Tx], T], **how: Any) -> T:
        done: list[T] = []

        def undone(tx: Tx) -> None:
            done.append(body(tx))
            raise _Undone

        with contextlib.suppress(_Undone):
            self._store.transact(undone, **how)
        return done[-1]


def no_tree(draw: random.Random) -> None:
    """A claim of a command names only its first process, without the tree."""
    real = Procfs.of
    _put(Procfs, "of", lambda self, pid, label="", tree=UNSET: real(self, pid, label))


BUGS: dict[str, Bug] = {
    bug.__name__: bug
    for bug in (
        no_gate,
        no_latch,
        early_wake,
        unseen_holder,
        no_wake,
        no_overtaking_limit,
        random_order,
        no_deadlock_check,
        live_holder_judged_dead,
        random_tokens,
        any_token,
        double_hold,
        kept_holds,
        two_slots,
        live_worker_judged_dead,
        missing_journal,
        lost_job,
        no_tree,
    )
}
