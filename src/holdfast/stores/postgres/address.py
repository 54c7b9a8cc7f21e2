"""A database's URL: how to connect to it, and what of it may be shown."""

from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast.kernel.errors import InvalidValue

_DEFAULTS: dict[str, Any] = {
    "application_name": "holdfast",
    "connect_timeout": 10,
    # A host that vanished silently is noticed in about ten seconds instead of two hours.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
_OF_SEVERAL: dict[str, Any] = {
    # Of several hosts one is the primary, and only that one is the store.
    "target_session_attrs": "read-write",
    "connect_timeout": 3,
}
_ALWAYS: dict[str, Any] = {"client_encoding": "UTF8"}
_SECRETS = ("password", "sslpassword")


class DatabaseUrl:
    """Where a database is. Its text never shows a password; `conninfo` has it.

    Raises InvalidValue for what is no URL of PostgreSQL. The error does not repeat the URL: in a
    misread one the password may be in any part.
    """

    def __init__(self, url: str) -> None:
        scheme, separator, rest = url.partition("://")
        if not separator or scheme not in ("postgresql", "postgres"):
            raise InvalidValue(
                "the store's URL does not begin with postgresql:// : write "
                "postgresql://USER@HOST/DATABASE"
            )
        if rest.partition("?")[0].partition("/")[0].count("@") > 1:
            raise InvalidValue(
                "the store's URL has more than one @ before its host: write the password's own as "
                "%40"
            )
        try:
            given = conninfo_to_dict(url)
        except psycopg.ProgrammingError:
            raise InvalidValue(
                "the store's URL is not one that PostgreSQL understands: write "
                "postgresql://USER@HOST:PORT/DATABASE, with special characters of a password "
                "percent-encoded"
            ) from None
        several = "," in f"{given.get('host')}{given.get('hostaddr')}"
        self.conninfo = make_conninfo(
            "", **{**_DEFAULTS, **(_OF_SEVERAL if several else {}), **given, **_ALWAYS}
        )
        self._secrets = [str(given[name]) for name in _SECRETS if given.get(name)]
        host = given.get("host") or given.get("hostaddr") or "the local socket"
        port = f":{given['port']}" if given.get("port") else ""
        self._text = self.redacted(
            f"PostgreSQL at {host}{port}, database {given.get('dbname') or 'of the user'}"
        )

    def __str__(self) -> str:
        return self._text

    def redacted(self, text: str) -> str:
        """The text without the URL's secrets."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text
