"""From a URL to a store. Only the store that is asked for is imported."""

import os
from collections.abc import Mapping
from pathlib import Path

from holdfast.kernel.clock import Clock
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.store import Store

FORMS = "sqlite:PATH, postgresql://... or memory:"


def open_store(
    url: str,
    *,
    namespace: str,
    boot_id: str,
    clock: Clock | None = None,
    create: bool = True,
    folders: Mapping[str, str] | None = None,
) -> Store:
    """Open `sqlite:PATH`, `postgresql://...` or `memory:`.

    Without `create` a SQLite file that is not there is not made either: it is read as an empty store. Raises InvalidValue
    for another URL, and what the store itself raises when it cannot be opened. `clock` serves the embedded stores; a
    database has its own.
    """
    scheme, separator, rest = url.partition(":")
    if "\0" in url:
        raise InvalidValue("the store's URL has a NUL character in it: no path and no address can")
    if folders and scheme != "files":
        raise InvalidValue(f"{scheme} keeps no folders of its own: `folders` is for a store of plain files", store=scheme)
    if scheme == "sqlite" and rest:
        path = sqlite_path(rest)
        if not create and not there(path):
            from holdfast.stores.absent import AbsentStore

            return AbsentStore(path, namespace=namespace)
        from holdfast.stores.sqlite.store import SqliteStore

        return SqliteStore(path, boot_id=boot_id, namespace=namespace, clock=clock)
    if scheme in ("postgresql", "postgres") and rest.startswith("//"):
        from holdfast.stores.postgres import open_postgres

        return open_postgres(url, namespace=namespace)
    if url == "memory:":
        from holdfast.stores.memory import MemoryStore

        return MemoryStore(namespace=namespace, clock=clock)
    shown = scheme + separator + ("..." if rest else "")
    meant = f"; did you mean sqlite:{url}?" if _looks_like_a_path(url) else ""
    raise InvalidValue(f"{shown!r} is not a store: give {FORMS}{meant}", store=shown)


def sqlite_path(text: str) -> Path:
    """The path behind `sqlite:`, with a leading ~ made out. Raises InvalidValue for what cannot be a path."""
    if "\0" in text:
        raise InvalidValue("the store's path has a NUL character in it: no path can")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise InvalidValue(f"the locale has no letters for the store's path {text!a}: use a UTF-8 locale") from None
    expanded = os.path.expanduser(text)
    if expanded.startswith("~"):
        raise InvalidValue(f"there is no home folder for {text!r}: set HOME, or write the store's whole path", path=text)
    return Path(expanded)


def there(path: Path) -> bool:
    """Is there a file, or anything else, at this path? Raises StoreUnavailable when that cannot be told."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        from holdfast.stores.sqlite.translate import opening_failed

        raise opening_failed(path, error) from None
    return True


def _looks_like_a_path(url: str) -> bool:
    return url.startswith(("/", "./", "../", "~")) or (":" not in url and ("/" in url or url.endswith((".sqlite", ".db"))))
