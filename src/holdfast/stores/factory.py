"""Opens the store that a URL names, and imports no other; puts a backup in the place of a store."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from holdfast.kernel.clock import Clock
from holdfast.kernel.errors import StoreCorrupt
from holdfast.kernel.layout import Sign
from holdfast.kernel.settings import FilesSettings
from holdfast.kernel.space import Space
from holdfast.kernel.store import Store
from holdfast.stores.url import StoreUrl
from holdfast.system.access import PRIVATE, Access


def open_store(
    url: StoreUrl | str,
    *,
    namespace: str,
    boot_id: str,
    clock: Clock | None = None,
    create: bool = True,
    folders: Mapping[str, str] | None = None,
    files: Callable[[], FilesSettings] = FilesSettings,
    shown: Callable[[], Mapping[Space[Any], Sign[Any]]] = dict,
    access: Access = PRIVATE,
) -> Store:
    """Open `sqlite:PATH`, `files:DIR`, `postgresql://...` or `memory:`.

    Without `create`, a SQLite file or a folder that does not exist is not made: it is read as an
    empty store. Raises InvalidValue for another URL, and what the store itself raises when it
    cannot be opened.

    `clock` is for the embedded stores; a database has its own. `access` says who may use the files
    that are made. `folders`, `files` and `shown` are for the files store; `folders` goes before the
    folders of `files`, and is refused for any other store.
    """
    if isinstance(url, str):
        url = StoreUrl(url)
    url.check(folders=bool(folders))
    path = url.path
    # A folder that exists may hold records of another program, even if no store was ever opened
    # there.
    if path is not None and not create and not there(path):
        from holdfast.stores.memory import AbsentStore

        return AbsentStore(path, namespace=namespace, kind=url.kind)
    if path is None and url.ephemeral:
        from holdfast.stores.memory import MemoryStore

        return MemoryStore(namespace=namespace, clock=clock)
    if path is None:
        from holdfast.stores.postgres import open_postgres

        return open_postgres(url.text, namespace=namespace)
    if url.kind == "sqlite":
        from holdfast.stores.sqlite.store import SqliteStore

        return SqliteStore(path, boot_id=boot_id, namespace=namespace, clock=clock, access=access)
    from holdfast.stores.files.store import FilesStore

    settings = files()
    return FilesStore(
        path,
        boot_id=boot_id,
        namespace=namespace,
        clock=clock,
        folders={**settings.folders, **(folders or {})},
        shown=shown(),
        retry_attempts=settings.retry_attempts,
        retry_delay_s=settings.retry_delay_s,
        access=access,
    )


def there(path: Path) -> bool:
    """Is there a file, or anything else, at this path? Raises StoreUnavailable when the system does
    not say.
    """
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        from holdfast.stores.sqlite.errors import opening_failed

        raise opening_failed(path, error) from None
    return True


def restore(
    url: StoreUrl,
    source: Path,
    spaces: Sequence[Space[Any]],
    *,
    boot_id: str,
    namespace: str,
    files: FilesSettings,
    access: Access,
) -> Path | None:
    """Put a backup in the place of a SQLite store or a files store, in a new era. Return where the
    replaced store is saved; None if there was none.

    Killed at any moment, the old or the new one is in place, and the saved one is whole. Raises
    StoreUnavailable when it cannot be saved; then nothing was changed.
    """
    path = url.path
    assert path is not None, "a store on a server is restored by the server's own tools"
    if url.kind == "sqlite":
        from holdfast.stores.sqlite import maintenance as sqlite

        return sqlite.restore(path, source, boot_id=boot_id)
    from holdfast.stores.files import maintenance
    from holdfast.stores.files.store import FilesStore

    def restore_opened(*, save: bool) -> Path | None:
        opened = FilesStore(
            path,
            boot_id=boot_id,
            namespace=namespace,
            folders=files.folders,
            retry_attempts=files.retry_attempts,
            retry_delay_s=files.retry_delay_s,
            access=access,
        )
        with closing(opened) as store:
            return maintenance.restore(store, spaces, source, boot_id=boot_id, save=save)

    try:
        return restore_opened(save=there(path))
    except StoreCorrupt as error:
        inner = path / ".holdfast" / "store.sqlite"
        if error.fields.get("path") != str(inner.resolve()):
            raise
        # An inner store that cannot even be opened is replaced first; then the files follow.
        saved = maintenance.replace_inner(path, files.folders, spaces, source, boot_id=boot_id)
        restore_opened(save=False)
        return saved
