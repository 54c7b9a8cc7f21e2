"""A backup put in the place of a store, which may be damaged or missing."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from holdfast.kernel.errors import StoreCorrupt
from holdfast.kernel.settings import FilesSettings
from holdfast.kernel.space import Space
from holdfast.stores.factory import there
from holdfast.stores.url import StoreUrl
from holdfast.system.access import Access


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
