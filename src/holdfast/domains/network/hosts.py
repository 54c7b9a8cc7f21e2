"""Registered hosts: names, addresses and MACs are each unique, decided in the step that registers.
An address may be unique among the hosts of one router only, if the settings say so.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.domains.network.address import a_batch, normal_ip, normal_mac
from holdfast.domains.network.context import Room
from holdfast.domains.network.leases import Claims
from holdfast.domains.network.records import Host
from holdfast.domains.network.wire import HOST_LEASES, HOSTS
from holdfast.kernel import clock
from holdfast.kernel.codec import to_plain
from holdfast.kernel.errors import InvalidValue, RegistryCollision, RegistryHeld
from holdfast.kernel.names import check_id, check_new_label
from holdfast.kernel.store import Damage, Tx

CORE = ("primary_ip", "connected_to", "mac_address", "created_at", "registered_at_timestamp")
"""What a host's further information never overwrites."""

_ARGUMENTS = frozenset(
    {"host_name", "primary_ip", "connected_to", "mac_address", "additional_info"}
)


class NewHost(NamedTuple):
    """A host to be registered, once it is known to be possible."""

    name: str
    host: Host


def new_host(
    host_name: str,
    primary_ip: str,
    connected_to: str,
    mac_address: str,
    additional_info: Mapping[str, Any] | None = None,
) -> NewHost:
    """Check what a caller gave. Raises InvalidName and InvalidValue."""
    check_id(host_name, "host name")
    check_new_label(connected_to, "router name")
    normal_ip(primary_ip)
    normal_mac(mac_address)
    more = {
        name: value for name, value in _plain(additional_info or {}).items() if name not in CORE
    }
    return NewHost(
        host_name,
        Host(primary_ip=primary_ip, connected_to=connected_to, mac_address=mac_address, more=more),
    )


def new_hosts(items: Iterable[Mapping[str, Any]]) -> list[NewHost]:
    """The same for many, each by the names of the arguments. Raises InvalidValue for unknown and
    missing ones.
    """
    batch = a_batch(items, "hosts")
    for item in batch:
        if (
            not isinstance(item, Mapping)
            or set(item) - _ARGUMENTS
            or _ARGUMENTS - set(item) - {"additional_info"}
        ):
            raise InvalidValue(
                "each host of a batch is an object of host_name, primary_ip, connected_to, "
                "mac_address and, if wanted, "
                f"additional_info: {ascii(item)[:60]} is not",
                field="hosts",
            )
    return [new_host(**item) for item in batch]


class Hosts:
    """The hosts of one registry."""

    def __init__(self, room: Room, leases: Claims) -> None:
        self._room = room
        self._leases = leases
        self._timeout_s = room.settings.lock_timeouts.host_registry
        self._per_router = room.settings.ip_uniqueness == "router"

    def register(self, hosts: Sequence[NewHost]) -> None:
        """Register all of them, or none. Raises RegistryCollision, naming what collides and with
        whom.
        """

        def body(tx: Tx) -> None:
            for new in hosts:
                self._refuse_collision(tx, new)
                host = replace(
                    new.host,
                    created_at=clock.render(tx.now),
                    registered_at_timestamp=tx.now.timestamp(),
                )
                tx.put(HOSTS, new.name, host)
                facts = {
                    "primary_ip": host.primary_ip,
                    "connected_to": host.connected_to,
                    "mac_address": host.mac_address,
                }
                self._room.journal.append(tx, kind="host.registered", subject=new.name, data=facts)

        if hosts:
            self._room.store.transact(body, scope=[HOSTS], timeout_s=self._timeout_s)

    def _refuse_collision(self, tx: Tx, new: NewHost) -> None:
        if tx.get(HOSTS, new.name) is not None:
            raise _collision(new, "name", new.name, new.name)
        ip, mac = normal_ip(new.host.primary_ip), normal_mac(new.host.mac_address)
        # Of one address there is at most one host a router.
        for row in tx.find(HOSTS, "ip", (ip,), limit=None if self._per_router else 1):
            if not self._per_router or row.record.connected_to == new.host.connected_to:
                raise _collision(new, "primary_ip", ip, row.key)
        for row in tx.find(HOSTS, "mac", (mac,), limit=1):
            raise _collision(new, "mac_address", mac, row.key)

    def remove(self, name: str, *, force: bool) -> tuple[bool, tuple[str, ...]]:
        """Remove a host, with its leases if forced; return whether it was there, and whose leases
        went along.

        Raises RegistryHeld, naming the holders.
        """
        verdicts = self._leases.verdicts([check_id(name, "host name")])

        def body(tx: Tx) -> tuple[bool, tuple[str, ...]]:
            there = tx.get(HOSTS, name) is not None
            if not there and not force:
                return False, ()
            holders = self._leases.remaining(tx, name, verdicts)
            if holders and not force:
                raise RegistryHeld(
                    f"host {name} is leased by {', '.join(holders)}: release these leases first, "
                    "or unregister it with force",
                    host=name,
                    holders=list(holders),
                )
            self._leases.remove(tx, name)
            if there:
                tx.delete(HOSTS, name)
                self._room.journal.append(
                    tx, kind="host.unregistered", subject=name, data={"forced": force}
                )
            return there, holders

        return self._room.store.transact(
            body, scope=[HOSTS, HOST_LEASES], timeout_s=self._timeout_s
        )

    def get(self, name: str) -> Host | None:
        """The host of that name."""
        row = self._room.store.get(HOSTS, check_id(name, "host name"))
        return None if row is None else row.record

    def all(self, damaged: Damage | None = None) -> dict[str, Host]:
        """Every host, by its name. A damaged record raises, or is put into `damaged`."""
        rows = self._room.store.read(lambda tx: tx.range(HOSTS, damaged=damaged), scope=[HOSTS])
        return {row.key: row.record for row in rows}

    def count(self) -> int:
        """How many there are."""
        return self._room.store.read(lambda tx: tx.count(HOSTS), scope=[HOSTS])


def _collision(new: NewHost, field: str, value: str, other: str) -> RegistryCollision:
    what = {"name": "host", "primary_ip": "the address", "mac_address": "the MAC address"}[field]
    whose = (
        "is registered already"
        if field == "name"
        else f"of {new.name} is that of host {other} already"
    )
    return RegistryCollision(
        f"{what} {value} {whose}: use another, or unregister {other} first",
        host=new.name,
        field=field,
        value=value,
        other=other,
    )


def _plain(info: Mapping[str, Any]) -> dict[str, Any]:
    """What JSON would keep of it."""
    if not isinstance(info, Mapping):
        raise InvalidValue(
            "additional_info is no object: give a dict, or leave it out", field="additional_info"
        )
    try:
        plain: dict[str, Any] = to_plain(dict(info))
        _refuse_no_numbers(info)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidValue(
            f"additional_info cannot be written as JSON: {error}", field="additional_info"
        ) from None
    return plain


def _refuse_no_numbers(value: object) -> None:
    """JSON has no word for what is no number, and would keep nothing of it."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is no number")
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        for inner in value.values() if isinstance(value, Mapping) else value:
            _refuse_no_numbers(inner)
