"""A store's URL, taken apart once: the kind of store, where it lies, and the places beside it."""

import os
from functools import cached_property
from pathlib import Path

from holdfast.kernel.errors import InvalidValue
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
