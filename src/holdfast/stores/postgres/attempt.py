"""A body run to its end: again while its connection is lost before the commit. If it is lost at the
commit, the server is asked for the outcome.
"""

import contextlib
import time
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from holdfast.kernel.errors import HoldfastError
from holdfast.kernel.store import Tx
from holdfast.stores.port import Plan
from holdfast.stores.postgres import schema
from holdfast.stores.postgres.connection import CallDeadline, PostgresConnection
from holdfast.stores.postgres.connections import Connections
from holdfast.stores.postgres.errors import is_lost, unknown
from holdfast.stores.postgres.transaction import LateLatch, PostgresTx

T = TypeVar("T")

_PAUSE_S = 0.005
_PAUSE_MAX_S = 0.25


class Doubt(NamedTuple):
    """A transaction whose connection was lost at its commit: the server's name for it, and the
    incarnation of the server that gave that name.
    """

    xid: str
    incarnation: int


class RunResult(NamedTuple, Generic[T]):
    """The result of one run, and the doubt whether it was committed."""

    result: T
    doubt: Doubt | None = None


def run_to_end(
    connections: Connections,
    run: Callable[[PostgresConnection], RunResult[T]],
    deadline: CallDeadline,
) -> T:
    """Run until a run is known to be committed, and return its result. Raises StoreUnavailable with
    the outcome "unknown" if the server cannot be asked within the time limit.
    """
    while True:
        attempt = connections.run(run, deadline)
        if attempt.doubt is None or was_committed(connections, attempt.doubt, deadline):
            return attempt.result


def transact(
    connections: Connections,
    namespace: str,
    body: Callable[[Tx], T],
    plan: Plan,
    deadline: CallDeadline,
    durable: bool,
) -> T:
    stripes: set[int] = set()

    def run(raw: PostgresConnection) -> RunResult[T]:
        tx = PostgresTx(raw, namespace, plan, deadline, set(stripes), connections.clock)
        try:
            tx.begin(durable=durable)
            result = body(tx)
            tx.prepare()
            return try_commit(raw, result, tx.xid, tx.commit)
        except LateLatch as late:
            stripes.update(late.stripes)
            raise
        finally:
            tx.end()

    return run_to_end(connections, run, deadline)


def try_commit(
    raw: PostgresConnection, result: T, xid: str | None, commit: Callable[[], Any]
) -> RunResult[T]:
    """Commit. A connection lost meanwhile leaves a doubt, unless there was nothing to commit."""
    try:
        commit()
    except psycopg.Error as error:
        # An error that leaves the transaction open came before the commit; any other may have come
        # with it or after it.
        ended = is_lost(error) or raw.pgconn.transaction_status == TransactionStatus.IDLE
        if xid is None or not ended:
            raise
        return RunResult(result, Doubt(xid, raw.incarnation))
    return RunResult(result)


def was_committed(connections: Connections, doubt: Doubt, deadline: CallDeadline) -> bool:
    """Ask the server how a transaction ended, until it has. Raises StoreUnavailable with the
    outcome "unknown" if the server cannot be asked within the time limit.
    """

    def ask(raw: PostgresConnection) -> str | None:
        fate = schema.fate(raw, doubt.xid, doubt.incarnation)
        if fate == "committed":
            schema.confirm_commits(raw)
        return fate

    pause_s = _PAUSE_S
    while not deadline.passed():
        fate: str | None = None
        with contextlib.suppress(HoldfastError):
            fate = connections.run(ask, deadline)
        if fate in ("committed", "aborted"):
            return fate == "committed"
        # The server is away, or still ending the transaction, and notifies us of neither.
        time.sleep(min(pause_s, deadline.left_s()))
        pause_s = min(2 * pause_s, _PAUSE_MAX_S)
    raise unknown(connections.address)
