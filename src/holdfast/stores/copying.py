"""From one store to another, with every token, record and journal entry as it is."""

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, TypeVar

from holdfast.access import Access
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.settings import FilesSettings
from holdfast.kernel.space import Space
from holdfast.kernel.store import Store
from holdfast.stores.contents import Contents
from holdfast.stores.opening import open_store, sqlite_path

T = TypeVar("T")


def copy(
    source: Store,
    target: str,
    spaces: Sequence[Space[Any]],
    *,
    boot_id: str,
    files: FilesSettings,
    access: Access,
    through: Callable[[Contents], Contents],
    ready: Callable[[], None],
) -> dict[str, int]:
    """Copy everything of a store, as of one moment, to a new store at a URL; return how many records each space has there.

    Promised: all or nothing. Tokens stay as they are, and the target gives only greater ones than the source ever gave. All
    namespaces and the whole journal come along. Not promised: what is written to the source after that moment. `through` is
    given what the source holds before anything is written, and returns what is to be copied; `ready` is called when all is
    written and not yet in its place. Both may raise, and then nothing was done. Raises InvalidValue or Collision for a target
    that holds something, SchemaTooNew, RecordInvalid or StoreCorrupt for what this program cannot read.
    """

    def hand_on(everything: Contents) -> dict[str, int]:
        passed = through(everything)
        _fill(target, passed, spaces, boot_id, files, access, ready)
        return {space.name: passed.counts.get(space.name, 0) for space in spaces if not space.volatile}

    return _handed(source, spaces, hand_on)


def _handed(source: Store, spaces: Sequence[Space[Any]], use: Callable[[Contents], T]) -> T:
    if source.kind == "postgres":
        from holdfast.stores.postgres import upkeep
        from holdfast.stores.postgres.store import PostgresStore

        assert isinstance(source, PostgresStore)
        with upkeep.contents(source, spaces) as everything:
            return use(everything)
    if source.kind == "files":
        from holdfast.stores.files import copying as files
        from holdfast.stores.files.store import FilesStore

        assert isinstance(source, FilesStore)
        return files.handed(source, spaces, use)
    from holdfast.stores.sqlite import copying as sqlite
    from holdfast.stores.sqlite.store import SqliteStore

    if not isinstance(source, SqliteStore):
        raise InvalidValue(f"a {source.kind} store cannot be copied: it ends with its process")
    with sqlite.contents(source, spaces) as everything:
        return use(everything)


def _fill(
    target: str,
    everything: Contents,
    spaces: Sequence[Space[Any]],
    boot_id: str,
    files: FilesSettings,
    access: Access,
    ready: Callable[[], None],
) -> None:
    kind, _, rest = target.partition(":")
    if kind == "sqlite" and rest:
        from holdfast.stores.sqlite import copying as sqlite

        sqlite.fill(sqlite_path(rest), everything, spaces, access=access, ready=ready)
    elif kind == "files" and rest:
        from holdfast.stores.files import copying

        copying.fill(sqlite_path(rest), everything, spaces, given=files.folders, boot_id=boot_id, access=access, ready=ready)
    elif kind in ("postgresql", "postgres"):
        _fill_database(target, everything, spaces, boot_id)
    else:
        # Said before it is opened, which would make it.
        raise InvalidValue("that is no place for a copy: give sqlite:PATH, files:DIR or postgresql://...")


def _fill_database(target: str, everything: Contents, spaces: Sequence[Space[Any]], boot_id: str) -> None:
    with closing(open_store(target, namespace="default", boot_id=boot_id)) as store:
        from holdfast.stores.postgres import upkeep
        from holdfast.stores.postgres.store import PostgresStore

        assert isinstance(store, PostgresStore)
        upkeep.fill(store, everything, spaces)
