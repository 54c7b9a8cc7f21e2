"""Opens the store that a URL names, and imports no other."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.kernel.clock import Clock
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.layout import Sign
from holdfast.kernel.settings import FilesSettings
from holdfast.kernel.space import Space
from holdfast.kernel.store import Store
from holdfast.system.access import PRIVATE, Access

FORMS = "sqlite:PATH, files:DIR, postgresql://... or memory:"


def open_store(
    url: str,
    *,
    namespace: str,
    boot_id: str,
    clock: Clock | None = None,
    create: bool = True,
    folders: Mapping[str, str] | None = None,
    files: FilesSettings | None = None,
    shown: Mapping[Space[Any], Sign[Any]] | None = None,
    access: Access = PRIVATE,
) -> Store:
    """Open `sqlite:PATH`, `files:DIR`, `postgresql://...` or `memory:`.

    Without `create`, a SQLite file or a folder that does not exist reads as an empty store.
    `clock` and `access`, the owner and group of new files, are for the embedded stores. `folders`,
    `files` and `shown` are for the files store: `folders` overrides the folders of `files`, and is
    refused for any other store. Raises InvalidValue for another URL, and whatever the store raises
    when it cannot be opened.
    """
    scheme, separator, rest = url.partition(":")
    if "\0" in url:
        raise InvalidValue("the store's URL has a NUL character in it: no path and no address can")
    if folders and scheme != "files":
        raise InvalidValue(
            f"{scheme} keeps no folders of its own: `folders` is for a store of plain files",
            store=scheme,
        )
    if scheme == "sqlite" and rest:
        path = sqlite_path(rest)
        if not create and not there(path):
            from holdfast.stores.memory import AbsentStore

            return AbsentStore(path, namespace=namespace, kind="sqlite")
        from holdfast.stores.sqlite.store import SqliteStore

        return SqliteStore(path, boot_id=boot_id, namespace=namespace, clock=clock, access=access)
    if scheme == "files" and rest:
        root, settings = sqlite_path(rest), files or FilesSettings()
        # An existing folder may hold another program's records, even if no store was ever opened
        # on it.
        if not create and not there(root):
            from holdfast.stores.memory import AbsentStore

            return AbsentStore(root, namespace=namespace, kind="files")
        from holdfast.stores.files.store import FilesStore

        return FilesStore(
            root,
            boot_id=boot_id,
            namespace=namespace,
            clock=clock,
            folders={**settings.folders, **(folders or {})},
            shown=shown,
            retry_attempts=settings.retry_attempts,
            retry_delay_s=settings.retry_delay_s,
            access=access,
        )
    if scheme in ("postgresql", "postgres") and rest.startswith("//"):
        from holdfast.stores.postgres import open_postgres

        return open_postgres(url, namespace=namespace)
    if url == "memory:":
        from holdfast.stores.memory import MemoryStore

        return MemoryStore(namespace=namespace, clock=clock)
    given = scheme + separator + ("..." if rest else "")
    is_path = url.startswith(("/", "./", "../", "~")) or (
        ":" not in url and ("/" in url or url.endswith((".sqlite", ".db")))
    )
    meant = f"; did you mean sqlite:{url}?" if is_path else ""
    raise InvalidValue(f"{given!r} is not a store: give {FORMS}{meant}", store=given)


def sqlite_path(text: str) -> Path:
    """The path after `sqlite:` or `files:`, with a leading ~ expanded. Raises InvalidValue."""
    if "\0" in text:
        raise InvalidValue("the store's path has a NUL character in it: no path can")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise InvalidValue(
            f"the locale cannot encode the store's path {text!a}: use a UTF-8 locale"
        ) from None
    expanded = os.path.expanduser(text)
    if expanded.startswith("~"):
        raise InvalidValue(
            f"there is no home folder for {text!r}: set HOME, or give the store's whole path",
            path=text,
        )
    return Path(expanded)


def there(path: Path) -> bool:
    """Does anything exist at this path? Raises StoreUnavailable when that cannot be seen."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        from holdfast.stores.sqlite.errors import opening_failed

        raise opening_failed(path, error) from None
    return True
