"""Spaces as tables, for every store that uses SQL.

A space is a table `s_<space>` of (ns, key, rev, value) and a column `by_<index>` for each index,
with the encoded tuple or NULL. A Dialect has the differences between databases.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.kernel.errors import Corrupt, SchemaTooNew
from holdfast.kernel.order import Parts, span
from holdfast.kernel.space import R, Space
from holdfast.kernel.store import Damage, Row
from holdfast.stores.checks import check_key, no_index, out_of_scope, storable
from holdfast.stores.query import Query, QueryTx


class Dialect(Struct, frozen=True, eq=False):
    """Compared by identity: every statement looks its text up by the dialect."""

    mark: str
    """A parameter."""
    schema: str
    """The prefix of a table's name."""
    dump: Callable[[bytes], bytearray | str]
    """Converts a record's bytes for the value column."""
    for_update: str = ""
    """The suffix of a read that locks its rows."""
    skip_locked: str = ""
    """The suffix of a read that locks its rows and skips those that others hold."""


Shape = tuple[bool, bool, bool, bool]
"""Of a read: has an upper bound, goes backwards, has a limit, has an offset."""


class Table:
    """The statements of one space in one dialect."""

    def __init__(self, space: Space[Any], dialect: Dialect) -> None:
        self._mark = m = dialect.mark
        self.name = f"{dialect.schema}s_{space.name}"
        # Mapped in C: every start of the program builds the statements of its spaces.
        self.columns = list(map("by_{}".format, space.indexes))
        self.names = ["ns", "key", "rev", "value", *self.columns]
        updates = ", ".join(map("{0} = excluded.{0}".format, self.names[2:]))
        self.row = f"({', '.join([m] * len(self.names))})"
        self.insert = f"INSERT INTO {self.name} ({', '.join(self.names)}) VALUES {self.row}"
        self.put = f"{self.insert} ON CONFLICT (ns, key) DO UPDATE SET {updates}"
        self.puts: dict[tuple[bool, ...], str] = {}
        sets = f" = {m}, ".join(self.names[2:]) + f" = {m}"
        self.update = f"UPDATE {self.name} SET {sets} WHERE ns = {m} AND key = {m}"
        self.get = f"SELECT value, rev FROM {self.name} WHERE ns = {m} AND key = {m}"
        self.get_locked = self.get + dialect.for_update
        self.delete = f"DELETE FROM {self.name} WHERE ns = {m} AND key = {m}"
        self.select = f"SELECT key, value, rev FROM {self.name} WHERE ns = {m}"
        self.count = f"SELECT count(*) FROM {self.name} WHERE ns = {m}"
        self.selects: dict[tuple[str, Shape, str], str] = {}
        self.counts = {
            index: f"{self.count} AND by_{index} >= {m} AND by_{index} < {m}"
            for index in space.indexes
        }
        self.finds: dict[tuple[str, bool], str] = {}
        """The statements between two bounds of an index, forwards or backwards, with a limit."""

    def putting(self, placed: tuple[bool, ...]) -> str:
        """`put` without parameters for the indexes that a record is not in. Built once."""
        m = self._mark
        row = f"({', '.join([m] * 4 + [m if there else 'NULL' for there in placed])})"
        self.puts[placed] = sql = self.put.replace(self.row, row)
        return sql

    def selecting(self, column: str, shape: "Shape", suffix: str) -> str:
        """The statement that reads between bounds of a column, built once for each shape."""
        m, (bounded, reverse, limited, offset) = self._mark, shape
        down = " DESC" if reverse else ""
        sql = (
            f"{self.select} AND {column} >= {m}"
            + (f" AND {column} < {m}" if bounded else "")
            + f" ORDER BY {column}{down}"
            + (f", key{down}" if column != "key" else "")
            + (f" LIMIT {m}" if limited else "")
            + (f" OFFSET {m}" if offset else "")
            + suffix
        )
        self.selects[column, shape, suffix] = sql
        if bounded and limited and not offset and not suffix and column != "key":
            self.finds[column.removeprefix("by_"), reverse] = sql
        return sql

    def delete_if(self, keys: int) -> str:
        """The statement that deletes so many keys if they have a revision."""
        m, marks = self._mark, ", ".join([self._mark] * keys)
        return f"DELETE FROM {self.name} WHERE ns = {m} AND rev = {m} AND key IN ({marks})"


@lru_cache(maxsize=256)
def table_of(space: Space[Any], dialect: Dialect) -> Table:
    return Table(space, dialect)


def is_declared(space: Space[Any], found: Sequence[Any] | None) -> bool:
    """Is the catalogue's row (schema version, indexes) what this program declares? Raises
    SchemaTooNew when a newer program wrote it.
    """
    if found is not None and found[0] > space.schema_version:
        raise SchemaTooNew(
            f"space {space.name} was written by a newer holdfast (schema version {found[0]}, "
            f"known here up to {space.schema_version}): use a newer holdfast",
            space=space.name,
            version=found[0],
        )
    return found is not None and tuple(found) == (space.schema_version, ",".join(space.indexes))


class SqlReadTx(QueryTx):
    """The reads of a transaction, over any cursor that runs SQL."""

    dialect: Dialect
    now: datetime
    _ns: str
    _names: frozenset[str]

    @abstractmethod
    def rows(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run a statement; return its rows."""

    def locking_rows(self, sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run a statement that locks the rows it finds; return them."""
        return self.rows(sql, parameters)

    def get(self, space: Space[R], key: str, *, expected: bool = True) -> Row[R] | None:  # noqa: ARG002 - costs the same here
        sql = self._table(space).get
        found = self.rows(sql, (self._ns, key)) if storable(key) else []
        return Row(key, space.decode(key, found[0][0]), found[0][1]) if found else None

    def count(self, space: Space[Any], index: str | None = None, match: Parts = ()) -> int:
        table = self._table(space)
        if index is None:
            return int(self.rows(table.count, (self._ns,))[0][0])
        if index not in space.indexes:
            raise no_index(space, index)
        low, high = span(match)
        if high is None:
            sql = f"{table.count} AND by_{index} >= {self.dialect.mark}"
            return int(self.rows(sql, (self._ns, low))[0][0])
        return int(self.rows(table.counts[index], (self._ns, low, high))[0][0])

    def select(
        self,
        space: Space[R],
        query: Query,
        damaged: Damage | None,
        *,
        offset: int = 0,
        suffix: str = "",
    ) -> list[Row[R]]:
        sql, parameters = self.statement(space, query, offset=offset, suffix=suffix)
        found = self.locking_rows(sql, parameters) if suffix else self.rows(sql, parameters)
        if damaged is None:
            return [Row(key, space.decode(key, value), rev) for key, value, rev in found]
        sound = []
        for key, value, rev in found:
            try:
                sound.append(Row(key, space.decode(key, value), rev))
            except Corrupt as error:
                damaged.append(error)
        return sound

    def statement(
        self, space: Space[Any], query: Query, *, offset: int = 0, suffix: str = ""
    ) -> tuple[str, list[Any]]:
        """The statement of a query, and its parameters."""
        by, high, limit = query.by, query.high, query.limit
        if by is not None and by not in space.indexes:
            raise no_index(space, by)
        column = "key" if by is None else f"by_{by}"
        table = self._table(space)
        parameters: list[Any] = [self._ns, query.low]
        if high is not None:
            parameters.append(high)
        if limit is not None:
            parameters.append(limit)
        if offset:
            parameters.append(offset)
        shape = (high is not None, query.reverse, limit is not None, offset > 0)
        sql = table.selects.get((column, shape, suffix)) or table.selecting(column, shape, suffix)
        return sql, parameters

    def _table(self, space: Space[Any]) -> Table:
        if space.name not in self._names:
            raise out_of_scope(space)
        return table_of(space, self.dialect)


class SqlTx(SqlReadTx):
    """The writes of a transaction, except revisions, journal and notices, which each database does
    in its own way.
    """

    @property
    @abstractmethod
    def revision(self) -> int:
        """The revision of this transaction."""

    @abstractmethod
    def change(self, sql: str, parameters: Sequence[Any]) -> int:
        """Run a statement; return how many rows it changed."""

    def write(self, sql: str, parameters: Sequence[Any]) -> None:
        """Run a statement whose count is not needed: a store over a network may send it later."""
        self.change(sql, parameters)

    def put(self, space: Space[R], key: str, record: R) -> None:
        check_key(key)
        self.write(self._table(space).put, self.row_of(space, key, record, self.revision))

    def delete(self, space: Space[Any], key: str) -> bool:
        sql = self._table(space).delete
        return storable(key) and self.change(sql, (self._ns, key)) > 0

    def _take_first(
        self, space: Space[R], query: Query, but_for: Collection[str], damaged: Damage | None
    ) -> Row[R] | None:
        query, suffix, skipped = replace(query, limit=1), self.dialect.skip_locked, 0
        while True:
            bad: Damage | None = None if damaged is None else []
            found = self.select(space, query, bad, offset=skipped, suffix=suffix)
            if not found or found[0].key not in but_for:
                if found or not bad or damaged is None:
                    return found[0] if found else None
                damaged += bad
            skipped += 1

    def row_of(self, space: Space[R], key: str, record: R, revision: int) -> list[Any]:
        """The parameters of an insert."""
        data = self.dialect.dump(space.encode(record))
        return [self._ns, key, revision, data, *space.index_keys(record)]
