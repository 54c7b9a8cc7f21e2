"""put_new and delete_if on the volatile file: one statement that checks, changes and commits.

Locks are taken through it, so it handles the usual case alone, in a straight line. It declines
every other case: a bound that is reached or was moved (counter.py), a database that another program
has locked, missing tables. Then nothing was changed, and a general transaction does the work.
"""

import sqlite3
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Generic, TypeVar

from holdfast.kernel.faults import reach
from holdfast.kernel.limits import LOG_BYTES_MAX
from holdfast.kernel.space import R, Space
from holdfast.stores.sqlite import schema
from holdfast.stores.sqlite.counter import SharedCounter
from holdfast.stores.sqlite.database import Connection, Database
from holdfast.stores.sqlite.errors import TablesChanged, busy
from holdfast.stores.sqlite.transaction import UNFIT, unfit

T = TypeVar("T")


class Declined(Exception):
    """Nothing was changed, and a general transaction must do it. Never leaves the store."""


class HotPath(Generic[R]):
    """The fast way to the records of one volatile space, whose table exists."""

    def __init__(
        self, database: Database, counter: SharedCounter, namespace: str, space: Space[R]
    ) -> None:
        self._database = database
        self._counter = counter
        self._namespace = namespace
        self._space = space

    def put_new(self, items: Sequence[tuple[str, R]], deadline: float) -> int | None:
        """Insert all items and return their revision, or nothing and None if any key exists. Raises
        Declined.
        """
        space = self._space
        parameters: list[Any] = []
        encoded: tuple[Any, ...] = ()
        last: R | None = None
        for key, record in items:
            # A claim on several things is one record under several keys.
            if record is not last:
                encoded, last = (space.encode(record), *space.index_keys(record)), record
            parameters += (key, *encoded)
        sql = schema.put_new(space, len(items))
        connection = self._database.lend(deadline)

        def insert() -> int | None:
            revision, bound = self._counter.take()
            if revision > bound:
                raise Declined
            reach("sqlite.write")
            try:
                connection.cursor.execute(sql, (self._namespace, revision, bound, *parameters))
            except sqlite3.IntegrityError as error:
                if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_NOTNULL:
                    raise Declined from None
                return None
            reach("sqlite.commit.after")
            return revision

        return self._in_gate(connection, insert, deadline)

    def delete_if(self, keys: Sequence[str], token: int, deadline: float) -> int:
        """Delete those of the keys whose record has the revision `token`; return how many there
        were. Raises Declined.
        """
        sql = schema.delete_if(self._space, len(keys))
        connection = self._database.lend(deadline)

        def delete() -> int:
            reach("sqlite.write")
            try:
                deleted = connection.cursor.execute(sql, (self._namespace, token, *keys)).rowcount
            except UNFIT as error:
                raise unfit(error) from None
            reach("sqlite.commit.after")
            return deleted

        return self._in_gate(connection, delete, deadline)

    def _in_gate(self, connection: Connection, change: Callable[[], T], deadline: float) -> T:
        """Make the change, which is one statement, inside the gate; and give the connection
        back.
        """
        database = self._database
        try:
            if connection.log.size() > LOG_BYTES_MAX:
                # The general way restarts the log, or refuses the change.
                raise Declined
            reach("sqlite.gate.before")
            result = database.gate.run(change, deadline - monotonic())
            database.checkpoint_if_due(connection)
            return result
        except sqlite3.Error as error:
            if busy(error):
                raise Declined from None
            # The statement was its own commit, so an I/O error leaves its outcome unknown.
            failure = database.discard(connection, error, committing=True)
            raise (Declined if isinstance(failure, TablesChanged) else failure) from None
        finally:
            # Not by `with`: every lock is taken through here, and that costs two calls more.
            database.give_back(connection)
