"""Registered hosts. Names, addresses and MACs are each unique, decided in the transaction that
registers; by a setting, an address need be unique only among the hosts of one router.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from holdfast.domains.network.address import check_batch, normal_ip, normal_mac
from holdfast.domains.network.context import NetworkContext
from holdfast.domains.network.leases import LeaseTable
from holdfast.domains.network.records import Host
from holdfast.domains.network.wire import CORE_FIELDS, HOST_LEASES, HOSTS
from holdfast.kernel import clock
from holdfast.kernel.codec import to_plain
from holdfast.kernel.errors import InvalidValue, RegistryCollision, RegistryHeld
from holdfast.kernel.names import check_id, check_new_label
from holdfast.kernel.store import Damage, Tx


class NewHost(NamedTuple):
    """A valid host that is not registered yet."""

    name: str
    host: Host


def new_host(
    host_name: str,
    primary_ip: str,
    connected_to: str,
    mac_address: str,
    additional_info: Mapping[str, Any] | None = None,
) -> NewHost:
    """Check a caller's arguments. Raises InvalidName and InvalidValue."""
    check_id(host_name, "host name")
    check_new_label(connected_to, "router name")
    normal_ip(primary_ip)
    normal_mac(mac_address)
    info = _plain(additional_info or {})
    more = {name: value for name, value in info.items() if name not in CORE_FIELDS}
    return NewHost(
        host_name,
        Host(primary_ip=primary_ip, connected_to=connected_to, mac_address=mac_address, more=more),
    )


def new_hosts(items: Iterable[Mapping[str, Any]]) -> list[NewHost]:
    """`new_host` for a batch. Raises InvalidValue for an unknown or missing argument."""
    required = ("host_name", "primary_ip", "connected_to", "mac_address")
    return [new_host(**item) for item in check_batch(items, "hosts", required, "additional_info")]


class Hosts:
    """The hosts of one registry."""

    def __init__(self, context: NetworkContext, leases: LeaseTable) -> None:
        self._store = context.store
        self._journal = context.journal
        self._leases = leases
        self._timeout_s = context.settings.lock_timeouts.host_registry
        self._per_router = context.settings.ip_uniqueness == "router"

    def register(self, hosts: Sequence[NewHost]) -> None:
        """Register all of the hosts, or none. Raises RegistryCollision."""

        def body(tx: Tx) -> None:
            for new in hosts:
                self._check_unique(tx, new)
                host = replace(
                    new.host,
                    created_at=clock.render(tx.now),
                    registered_at_timestamp=tx.now.timestamp(),
                )
                tx.put(HOSTS, new.name, host)
                data = {
                    "primary_ip": host.primary_ip,
                    "connected_to": host.connected_to,
                    "mac_address": host.mac_address,
                }
                self._journal.append(tx, kind="host.registered", subject=new.name, data=data)

        if hosts:
            self._store.transact(body, scope=[HOSTS], timeout_s=self._timeout_s)

    def _check_unique(self, tx: Tx, new: NewHost) -> None:
        if tx.get(HOSTS, new.name) is not None:
            raise _collision(new, "name", new.name, new.name)
        ip, mac = normal_ip(new.host.primary_ip), normal_mac(new.host.mac_address)
        for row in tx.find(HOSTS, "ip", (ip,), limit=None if self._per_router else 1):
            if not self._per_router or row.record.connected_to == new.host.connected_to:
                raise _collision(new, "primary_ip", ip, row.key)
        for row in tx.find(HOSTS, "mac", (mac,), limit=1):
            raise _collision(new, "mac_address", mac, row.key)

    def remove(self, name: str, *, force: bool) -> tuple[bool, tuple[str, ...]]:
        """Remove a host, with its leases if forced; return whether it was there, and the runs
        whose leases were ended. Raises RegistryHeld, naming the holders.
        """
        probed = self._leases.probe([check_id(name, "host name")])

        def body(tx: Tx) -> tuple[bool, tuple[str, ...]]:
            there = tx.get(HOSTS, name) is not None
            if not there and not force:
                return False, ()
            holders = self._leases.holders(tx, name, probed)
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
                data = {"forced": force}
                self._journal.append(tx, kind="host.unregistered", subject=name, data=data)
            return there, holders

        return self._store.transact(body, scope=[HOSTS, HOST_LEASES], timeout_s=self._timeout_s)

    def get(self, name: str) -> Host | None:
        row = self._store.get(HOSTS, check_id(name, "host name"))
        return None if row is None else row.record

    def all(self, damaged: Damage | None = None) -> dict[str, Host]:
        """Every host, by its name. A damaged record raises, or is added to `damaged`."""
        rows = self._store.read(lambda tx: tx.range(HOSTS, damaged=damaged), scope=[HOSTS])
        return {row.key: row.record for row in rows}

    def count(self) -> int:
        return self._store.read(lambda tx: tx.count(HOSTS), scope=[HOSTS])


def _collision(new: NewHost, field: str, value: str, other: str) -> RegistryCollision:
    message = {
        "name": f"host {value} is registered already",
        "primary_ip": f"the address {value} of {new.name} already belongs to host {other}",
        "mac_address": f"the MAC address {value} of {new.name} already belongs to host {other}",
    }[field]
    return RegistryCollision(
        f"{message}: use another, or unregister {other} first",
        host=new.name,
        field=field,
        value=value,
        other=other,
    )


def _plain(info: Mapping[str, Any]) -> dict[str, Any]:
    """The information as JSON keeps it. Raises InvalidValue."""
    if not isinstance(info, Mapping):
        raise InvalidValue(
            "additional_info is not an object: give a dict or nothing", field="additional_info"
        )
    try:
        plain: dict[str, Any] = to_plain(dict(info))
        _check_finite(info)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidValue(
            f"additional_info cannot be written as JSON: {error}", field="additional_info"
        ) from None
    return plain


def _check_finite(value: object) -> None:
    """Raises ValueError for NaN and infinity, which JSON would lose."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a number")
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        for inner in value.values() if isinstance(value, Mapping) else value:
            _check_finite(inner)
