"""From a URL to a store. Only the store that is asked for is imported."""

from pathlib import Path

from holdfast.kernel.clock import Clock
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.store import Store

FORMS = "sqlite:PATH, postgresql://... or memory:"


def open_store(url: str, *, namespace: str, boot_id: str, clock: Clock | None = None) -> Store:
    """Open `sqlite:PATH`, `postgresql://...` or `memory:`.

    Raises InvalidValue for another URL, and what the store itself raises when it cannot be opened. `clock` serves the
    embedded stores; a database has its own.
    """
    scheme, separator, rest = url.partition(":")
    if scheme == "sqlite" and rest:
        from holdfast.stores.sqlite.store import SqliteStore

        return SqliteStore(Path(rest).expanduser(), boot_id=boot_id, namespace=namespace, clock=clock)
    if scheme in ("postgresql", "postgres") and rest.startswith("//"):
        from holdfast.stores.postgres import open_postgres

        return open_postgres(url, namespace=namespace)
    if url == "memory:":
        from holdfast.stores.memory import MemoryStore

        return MemoryStore(namespace=namespace, clock=clock)
    shown = scheme + separator + ("..." if rest else "")
    raise InvalidValue(f"{shown!r} is not a store: give {FORMS}", store=shown)
