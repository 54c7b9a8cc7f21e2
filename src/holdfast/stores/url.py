"""A store's URL: the kind of store, where it lies, the places beside it. Opens the store that it
names, and imports no other; puts a backup in its place.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

from holdfast.kernel.clock import Clock
from holdfast.kernel.errors import InvalidValue, StoreCorrupt
from holdfast.kernel.layout import Sign
from holdfast.kernel.settings import FilesSettings
from holdfast.kernel.space import Space
from holdfast.kernel.store import Store
from holdfast.system.access import PRIVATE, Access
from holdfast.system.folder_walk import resolve

FORMS = "sqlite:PATH, files:DIR, postgresql://... or memory:"


class StoreUrl:
    """What a store's URL says. Any text can be taken apart; `open_store` refuses a wrong one."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.scheme, self._separator, self.rest = text.partition(":")
        self.kind = "postgres" if self.scheme == "postgresql" else self.scheme
        """memory, sqlite, files or postgres; of a wrong URL whatever stands before the colon."""

    @property
    def embedded(self) -> bool:
        """False when a server keeps the store, and with it the queues of gateways."""
        return self.kind != "postgres"

    @property
    def ephemeral(self) -> bool:
        """True when the store ends with its process."""
        return self.kind == "memory"

    @property
    def extra(self) -> str | None:
        """The extra that must be installed for such a store."""
        return None if self.embedded else "postgres"

    @cached_property
    def path(self) -> Path | None:
        """The file or folder of the store; None where it has none. Raises InvalidValue."""
        return user_path(self.rest) if self.kind in ("sqlite", "files") else None

    @property
    def real_path(self) -> Path | None:
        """The same without links in it. Raises InvalidValue."""
        return None if self.path is None else Path(resolve(self.path))

    def check(self, *, folders: bool = False) -> None:
        """Raise InvalidValue for what is no store's URL, or if `folders` were given to a store that
        has none.
        """
        if "\0" in self.text:
            raise InvalidValue(
                "the store's URL has a NUL character in it: no path and no address can"
            )
        if folders and self.kind != "files":
            raise InvalidValue(
                f"{self.scheme} keeps no folders of its own: `folders` is for a store of plain "
                "files",
                store=self.scheme,
            )
        if (
            (self.path is not None and self.rest)
            or (self.kind == "postgres" and self.rest.startswith("//"))
            or self.text == "memory:"
        ):
            return
        given = self.scheme + self._separator + ("..." if self.rest else "")
        meant = f"; did you mean sqlite:{self.text}?" if self._looks_like_a_path() else ""
        raise InvalidValue(f"{given!r} is not a store: give {FORMS}{meant}", store=given)

    def shown(self) -> str:
        """The URL for people: its path made out, or the database without the password. Raises
        InvalidValue for what is no store's URL.
        """
        self.check()
        if self.path is not None:
            return f"{self.kind}:{self.path}"
        if self.embedded:
            return self.text
        try:
            from holdfast.stores.postgres.address import DatabaseUrl
        except ImportError:
            return "PostgreSQL, whose driver is not installed"
        return str(DatabaseUrl(self.text))

    def relative_to(self, folder: Path) -> str:
        """The URL with a relative path made absolute from a folder."""
        if self.kind in ("sqlite", "files") and self.rest and self.rest[0] not in "/~":
            return f"{self.scheme}:{folder / self.rest}"
        return self.text

    def server_folder(self) -> Path | None:
        """The folder of the store's server beside the store; None where it has no such place."""
        path = self.path
        return path and path.absolute().with_name(f"{path.absolute().name}-server")

    def gateways_folder(self) -> Path | None:
        """The folder of all gateways beside the store; None where it has no such place."""
        path = self.real_path if self.kind == "sqlite" else None
        return path and path.with_name(f"{path.name}-gateways")

    def job_logs(self, suffix: str) -> Path | None:
        """The audit log of jobs beside the store; None where it has no such place."""
        path = self.path
        if path is None:
            return None
        if self.kind == "files":
            return path / f"job_logs{suffix}"
        return path.with_name(f"{path.name}-job-logs{suffix}")

    def state_name(self) -> str:
        """The folder below the user's state folder for what has no place beside the store."""
        from hashlib import sha256

        if self.ephemeral:
            return self.kind
        if (path := self.real_path) is not None:
            return f"{self.kind}-{sha256(bytes(path)).hexdigest()[:12]}"
        from holdfast.stores.postgres.address import DatabaseUrl

        # One folder for a database and all its users: the password is no part of this text.
        return f"postgres-{sha256(str(DatabaseUrl(self.text)).encode()).hexdigest()[:12]}"

    def _looks_like_a_path(self) -> bool:
        text = self.text
        return text.startswith(("/", "./", "../", "~")) or (
            ":" not in text and ("/" in text or text.endswith((".sqlite", ".db")))
        )


def user_path(text: str) -> Path:
    """A path as a user writes it, with a leading ~ made out. Raises InvalidValue for what cannot be
    a path.
    """
    if "\0" in text:
        raise InvalidValue("the store's path has a NUL character in it: no path can")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise InvalidValue(
            f"the locale has no letters for the store's path {text!a}: use a UTF-8 locale"
        ) from None
    expanded = os.path.expanduser(text)
    if expanded.startswith("~"):
        raise InvalidValue(
            f"there is no home folder for {text!r}: set HOME, or write the store's whole path",
            path=text,
        )
    return Path(expanded)


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
        opened = open_store(
            url, namespace=namespace, boot_id=boot_id, files=lambda: files, access=access
        )
        with closing(opened) as store:
            assert isinstance(store, FilesStore)
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
