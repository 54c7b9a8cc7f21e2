"""The registry's spaces, in the order in which a transaction latches them: hosts, leases on hosts, leases on neighbours.

Routers come between the last two: they are the lock table's. No transaction has both, since locks are of one boot.
"""

from holdfast.domains.network.address import normal_ip, normal_mac
from holdfast.domains.network.record import Host, HostLeases, NeighborLeases
from holdfast.domains.network.wire import HOST_LEASES_FILE, HOSTS_FILE, NEIGHBOR_LEASES_FILE
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.limits import LABEL_CHARS_MAX
from holdfast.kernel.ordering import Parts
from holdfast.kernel.space import Space


def ip_place(host: Host) -> Parts:
    """Where a host stands by its address. One that another program wrote, and that is no address, stands by its text."""
    try:
        return (normal_ip(host.primary_ip),)
    except InvalidValue:
        return (host.primary_ip[:LABEL_CHARS_MAX],)


def mac_place(host: Host) -> Parts:
    """The same by its MAC."""
    try:
        return (normal_mac(host.mac_address),)
    except InvalidValue:
        return (host.mac_address[:LABEL_CHARS_MAX],)


HOSTS = Space("hosts", Host, rank=10, indexes={"ip": ip_place, "mac": mac_place}, layout=HOSTS_FILE)
HOST_LEASES = Space("host_leases", HostLeases, rank=20, layout=HOST_LEASES_FILE)
NEIGHBOR_LEASES = Space("neighbor_leases", NeighborLeases, rank=40, layout=NEIGHBOR_LEASES_FILE)
