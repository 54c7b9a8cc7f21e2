"""A body run to its end: again while its connection is lost before the commit, and never guessing when at it."""

import contextlib
import time
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import psycopg

from holdfast.kernel.errors import HoldfastError
from holdfast.kernel.store import Scope, Tx
from holdfast.stores.postgres.connections import Connection, Connections, Deadline
from holdfast.stores.postgres.transaction import LateLatch, PostgresTx
from holdfast.stores.postgres.translate import lost, unknown

T = TypeVar("T")

_PAUSE_S = 0.005
_PAUSE_MAX_S = 0.25


class Ended(NamedTuple, Generic[T]):
    """What a run returned; with the transaction's name when the connection was lost at its commit."""

    result: T
    doubtful_xid: str | None = None


def certain(connections: Connections, run: Callable[[Connection], Ended[T]], deadline: Deadline) -> T:
    """Run until a run is known to be committed, and return its result.

    Raises StoreUnavailable with the outcome "unknown" if the server cannot be asked within the time limit.
    """
    while True:
        ended = connections.persist(run, deadline)
        if ended.doubtful_xid is None or _committed(connections, ended.doubtful_xid, deadline):
            return ended.result


def transact(
    connections: Connections, namespace: str, body: Callable[[Tx], T], scope: Scope, deadline: Deadline, durable: bool
) -> T:
    """Run a body as one transaction."""
    stripes: set[int] = set()

    def run(raw: Connection) -> Ended[T]:
        tx = PostgresTx(raw, namespace, scope, deadline, set(stripes))
        tx.begin(durable=durable)
        connections.clock.saw(tx.now)
        result = body(tx)
        try:
            return committing(result, tx.xid, tx.commit)
        except LateLatch as late:
            stripes.update(late.stripes)
            raise

    return certain(connections, run, deadline)


def committing(result: T, xid: str | None, commit: Callable[[], Any]) -> Ended[T]:
    """Commit; a connection lost meanwhile leaves a doubt, unless there was nothing that could be committed."""
    try:
        commit()
    except psycopg.Error as error:
        if xid is None or not lost(error):
            raise
        return Ended(result, xid)
    return Ended(result)


def _committed(connections: Connections, xid: str, deadline: Deadline) -> bool:
    """Ask the server how a transaction ended, until it has."""
    pause_s = _PAUSE_S
    while not deadline.passed():
        status: str | None = None
        with contextlib.suppress(HoldfastError):
            status = connections.persist(lambda raw: _status(raw, xid), deadline)
        if status in ("committed", "aborted"):
            return status == "committed"
        # The server is away, or still ending the transaction; neither is told to us.
        time.sleep(min(pause_s, deadline.left_s()))
        pause_s = min(2 * pause_s, _PAUSE_MAX_S)
    raise unknown(connections.address)


def _status(raw: Connection, xid: str) -> str | None:
    status: str | None = raw.execute("SELECT pg_xact_status(%s::xid8)", (xid,)).fetchall()[0][0]
    return status
