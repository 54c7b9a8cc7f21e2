"""How to connect to the broker of a job's events: by its record, and by the environment."""

from collections.abc import Mapping
from typing import ClassVar

from holdfast.domains.jobs.records import PASSWORD_ENV, PORT, TLS_PORT, Broker
from holdfast.kernel.codec import Plain, Redacted
from holdfast.kernel.errors import InvalidValue

_YES = frozenset(("1", "true", "yes", "on"))
_NO = frozenset(("0", "false", "no", "off", ""))


class BrokerAddress(Redacted, Plain, frozen=True, kw_only=True):
    """All that a connection needs, the password included: never stored, shown or logged."""

    secret_fields: ClassVar[frozenset[str]] = frozenset(("password",))

    host: str
    port: int
    tls: bool
    username: str | None
    password: str | None
    ca_certs: str | None
    certfile: str | None
    keyfile: str | None

    @property
    def shown(self) -> str:
        return f"{self.host}:{self.port}"


def address_of(broker: Broker, environment: Mapping[str, str]) -> BrokerAddress:
    """The address of a record's broker, with what the environment sets instead: MQTT_BROKER,
    MQTT_PORT, MQTT_TLS, MQTT_USERNAME, MQTT_PASSWORD, MQTT_CA_CERTS, MQTT_CERTFILE, MQTT_KEYFILE.
    Raises InvalidValue for a variable that cannot be used.
    """
    tls = _tls(environment.get("MQTT_TLS"), broker.tls)
    port = TLS_PORT if tls and not broker.tls and broker.port == PORT else broker.port
    return BrokerAddress(
        host=environment.get("MQTT_BROKER") or broker.host,
        port=_port(environment.get("MQTT_PORT"), port),
        tls=tls,
        username=environment.get("MQTT_USERNAME") or broker.username,
        password=environment.get(PASSWORD_ENV)
        or environment.get(broker.password_env)
        or broker.password,
        ca_certs=environment.get("MQTT_CA_CERTS") or None,
        certfile=environment.get("MQTT_CERTFILE") or None,
        keyfile=environment.get("MQTT_KEYFILE") or None,
    )


def was_chosen(address: BrokerAddress, environment: Mapping[str, str]) -> bool:
    """Did anybody choose this broker? Otherwise it is the local one, which need not exist."""
    return bool(environment.get("MQTT_BROKER")) or address != address_of(Broker(), {})


def chosen(broker: Broker, environment: Mapping[str, str]) -> bool:
    """Did anybody choose a record's broker? A variable that cannot be used is a choice too."""
    try:
        return was_chosen(address_of(broker, environment), environment)
    except InvalidValue:
        return True


def _tls(text: str | None, default: bool) -> bool:
    if text is None:
        return default
    if text.lower() in _YES | _NO:
        return text.lower() in _YES
    raise InvalidValue(f"MQTT_TLS is {text[:20]!r}: set it to 1 or 0", field="MQTT_TLS")


def _port(text: str | None, default: int) -> int:
    if not text:
        return default
    if text.isascii() and text.isdecimal() and len(text) < 6 and 0 < int(text) < 1 << 16:
        return int(text)
    raise InvalidValue(
        f"MQTT_PORT is {text[:20]!r}: set it to a number from 1 to 65535", field="MQTT_PORT"
    )
