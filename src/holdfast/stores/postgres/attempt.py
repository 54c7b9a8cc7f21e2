"""A body run to its end: again while its connection is lost before the commit, and never guessing
when at it.
"""

import contextlib
import time
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from holdfast.kernel.errors import HoldfastError
from holdfast.kernel.store import Scope, Tx
from holdfast.stores.postgres import incarnation
from holdfast.stores.postgres.connections import Connection, Connections, Deadline
from holdfast.stores.postgres.errors import lost, unknown
from holdfast.stores.postgres.transaction import LateLatch, PostgresTx

T = TypeVar("T")

_PAUSE_S = 0.005
_PAUSE_MAX_S = 0.25


class Doubt(NamedTuple):
    """The name of a transaction whose connection was lost at its commit, and the life of the server
    that gave it.
    """

    xid: str
    incarnation: int


class Ended(NamedTuple, Generic[T]):
    """What a run returned, and the doubt that is left."""

    result: T
    doubt: Doubt | None = None


def certain(
    connections: Connections, run: Callable[[Connection], Ended[T]], deadline: Deadline
) -> T:
    """Run until a run is known to be committed, and return its result.

    Raises StoreUnavailable with the outcome "unknown" if the server cannot be asked within the time
    limit.
    """
    while True:
        ended = connections.persist(run, deadline)
        if ended.doubt is None or committed(connections, ended.doubt, deadline):
            return ended.result


def transact(
    connections: Connections,
    namespace: str,
    body: Callable[[Tx], T],
    scope: Scope,
    deadline: Deadline,
    durable: bool,
) -> T:
    """Run a body as one transaction."""
    stripes: set[int] = set()
    scope = tuple(scope)

    def run(raw: Connection) -> Ended[T]:
        tx = PostgresTx(raw, namespace, scope, deadline, set(stripes), connections.clock)
        try:
            tx.begin(durable=durable)
            result = body(tx)
            tx.prepare()
            return committing(raw, result, tx.xid, tx.commit)
        except LateLatch as late:
            stripes.update(late.stripes)
            raise
        finally:
            tx.end()

    return certain(connections, run, deadline)


def committing(raw: Connection, result: T, xid: str | None, commit: Callable[[], Any]) -> Ended[T]:
    """Commit; a connection lost meanwhile leaves a doubt, unless there was nothing that could be
    committed.
    """
    try:
        commit()
    except psycopg.Error as error:
        if xid is None or not _may_be_done(raw, error):
            raise
        return Ended(result, Doubt(xid, raw.life))
    return Ended(result)


def _may_be_done(raw: Connection, error: psycopg.Error) -> bool:
    """An error that leaves the transaction open came before the commit; any other may have come
    with it or after it.
    """
    return lost(error) or raw.pgconn.transaction_status == TransactionStatus.IDLE


def committed(connections: Connections, doubt: Doubt, deadline: Deadline) -> bool:
    """Ask the server how a transaction ended, until it has. Raises StoreUnavailable with the
    outcome "unknown" if the server cannot be asked within the time limit.
    """
    pause_s = _PAUSE_S
    while not deadline.passed():
        status: str | None = None
        with contextlib.suppress(HoldfastError):
            status = connections.persist(lambda raw: _fate(raw, doubt), deadline)
        if status in ("committed", "aborted"):
            return status == "committed"
        # The server is away, or still ending the transaction; neither is told to us.
        time.sleep(min(pause_s, deadline.left_s()))
        pause_s = min(2 * pause_s, _PAUSE_MAX_S)
    raise unknown(connections.address)


def _fate(raw: Connection, doubt: Doubt) -> str | None:
    fate = incarnation.fate(raw, doubt.xid, doubt.incarnation)
    if fate == "committed":
        incarnation.settle(raw)
    return fate
