"""Faults of the program, to be planted into a process whose history is recorded: the checker must
find each of them.
"""

import random
import time
from collections.abc import Callable
from typing import Any

from holdfast.domains.jobs import transitions
from holdfast.primitives import holds
from holdfast.primitives.locks import manager, policy
from holdfast.primitives.queue.records import RequestState
from holdfast.primitives.queue.transaction import QueueTransaction


def no_gate(draw: random.Random) -> None:
    """Writers do not keep each other out: what one looks at, another changes before the first has
    written.
    """
    from holdfast.stores.sqlite.database import Database

    def write(
        self: Any,
        connection: Any,
        work: Callable[[], Any],
        deadline: float | None = None,
        **more: Any,
    ) -> Any:
        # Each statement by itself, and somebody else between them.
        connection.cursor.execute("PRAGMA busy_timeout = 5000")
        result = work()
        committed = more.get("committed")
        if committed is not None:
            committed(result)
        return result

    Database.write = write  # type: ignore[method-assign]


def no_latch(draw: random.Random) -> None:
    """The same on PostgreSQL: no space is latched, whole or by rows."""
    from holdfast.stores.postgres import latches

    latches.of_scope = lambda *_: ("SELECT 1", [])


def any_token(draw: random.Random) -> None:
    """A verdict, a completion, a check of a token: whatever token is shown, it will do."""
    checked = transitions.check_token
    transitions.check_token = lambda job, token: (
        None if job.token is not None else checked(job, token)
    )

    def owned(self: QueueTransaction, request_id: str, token: int) -> Any:
        request = self._existing(request_id)
        if request.state is not RequestState.RUNNING:
            return real(self, request_id, token)
        return request

    real, QueueTransaction._owned = QueueTransaction._owned, owned  # type: ignore[method-assign]
    manager.Locks.check_token = lambda self, name, token: None  # type: ignore[method-assign]


def early_wake(draw: random.Random) -> None:
    """Who waits is woken before what it waits for is committed."""
    from holdfast.stores.sqlite import store
    from holdfast.stores.sqlite.fifos import Fifos

    transact = store.SqliteStore._transact
    real = Fifos.notify

    def early(self: Any, body: Callable[[Any], Any], *arguments: Any, **more: Any) -> Any:
        def hasty(tx: Any) -> Any:
            result = body(tx)
            topics = dict(tx.topics)
            for topic in topics:
                real(self._fifos, topic)
            tx.topics.clear()
            if topics:
                # Long enough for whoever was woken to look.
                time.sleep(0.03)
            return result

        return transact(self, hasty, *arguments, **more)

    store.SqliteStore._transact = early  # type: ignore[method-assign]


def blind(draw: random.Random) -> None:
    """Now and then a request does not see who holds what it asks for."""
    real = policy.blocking_holds
    policy.blocking_holds = lambda *arguments: (
        iter([]) if draw.random() < 0.05 else real(*arguments)
    )


def double(draw: random.Random) -> None:
    """Now and then whoever takes a hold again counts twice."""
    real = holds.taken
    holds.taken = lambda holds, hold: (*holds, hold) if draw.random() < 0.2 else real(holds, hold)


def two_slots(draw: random.Random) -> None:
    """A queue gives out requests while its slot is taken."""
    real = QueueTransaction.claim

    def claim(self: QueueTransaction, **more: Any) -> Any:
        head = self.head
        if head.slot is not None and draw.random() < 0.3:
            from msgspec.structs import replace

            self.head = replace(head, slot=None)
        return real(self, **more)

    QueueTransaction.claim = claim  # type: ignore[method-assign]


_BUGS: dict[str, Callable[[random.Random], None]] = {
    bug.__name__: bug
    for bug in (no_gate, no_latch, any_token, early_wake, blind, double, two_slots)
}


def plant(name: str, draw: random.Random) -> None:
    """Plant a fault by its name."""
    _BUGS[name](draw)
