"""From one store to another, with every token, record and journal entry as it is."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from typing import Any

from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.space import Space
from holdfast.kernel.store import Store
from holdfast.stores.contents import Contents
from holdfast.stores.opening import open_store, sqlite_path


def copy(
    source: Store, target: str, spaces: Sequence[Space[Any]], *, boot_id: str, refuse: Callable[[dict[str, int]], None]
) -> dict[str, int]:
    """Copy everything of a store, as of one moment, to a new store at a URL; return how many records each space has there.

    Promised: all or nothing. Tokens stay as they are, and the target gives only greater ones than the source ever gave. All
    namespaces and the whole journal come along. Not promised: what is written to the source after that moment. `refuse` is
    told how many records each space of the source has, before anything is written, and may raise. Raises InvalidValue or
    Collision for a target that holds something, SchemaTooNew or RecordInvalid for what this program cannot read.
    """
    with _contents(source, spaces) as everything:
        refuse(everything.counts)
        _fill(target, everything, spaces, boot_id)
        return {space.name: everything.counts.get(space.name, 0) for space in spaces if not space.volatile}


def _contents(source: Store, spaces: Sequence[Space[Any]]) -> AbstractContextManager[Contents]:
    if source.kind == "postgres":
        from holdfast.stores.postgres import upkeep
        from holdfast.stores.postgres.store import PostgresStore

        assert isinstance(source, PostgresStore)
        return upkeep.contents(source, spaces)
    from holdfast.stores.sqlite import copying
    from holdfast.stores.sqlite.store import SqliteStore

    if not isinstance(source, SqliteStore):
        raise InvalidValue(f"a {source.kind} store cannot be copied: only sqlite and postgresql ones can")
    return copying.contents(source, spaces)


def _fill(target: str, everything: Contents, spaces: Sequence[Space[Any]], boot_id: str) -> None:
    kind, _, rest = target.partition(":")
    if kind == "sqlite" and rest:
        from holdfast.stores.sqlite import copying

        copying.fill(sqlite_path(rest), everything, spaces)
        return
    if kind not in ("postgresql", "postgres"):
        # Said before it is opened, which would make it.
        raise InvalidValue("that is no place for a copy: give sqlite:PATH or postgresql://...")
    with closing(open_store(target, namespace="default", boot_id=boot_id)) as store:
        from holdfast.stores.postgres import upkeep
        from holdfast.stores.postgres.store import PostgresStore

        assert isinstance(store, PostgresStore)
        upkeep.fill(store, everything, spaces)
