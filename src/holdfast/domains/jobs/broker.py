"""The message broker that a job's record names. How to reach it is told in reach.py, which picking does not need."""

from typing import Any, ClassVar

import msgspec

from holdfast.kernel.codec import Discreet, Plain

HOST = "localhost"
PORT = 1883
TLS_PORT = 8883
PASSWORD_ENV = "MQTT_PASSWORD"
"""Which variable holds the password unless a record names another. A name, not a secret."""


class Broker(Discreet, Plain, frozen=True, kw_only=True, omit_defaults=True):
    """A message broker. `password` is written down only where `store_password` says so; otherwise the variable
    `password_env` has it. `extra` keeps what another program wrote beside these."""

    unshown: ClassVar[frozenset[str]] = frozenset(("password", "extra"))

    host: str = HOST
    port: int = PORT
    tls: bool = False
    username: str | None = None
    password: str | None = None
    password_env: str = PASSWORD_ENV
    store_password: bool = False
    extra: dict[str, Any] = msgspec.field(default_factory=dict)
