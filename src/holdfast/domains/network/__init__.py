"""Hosts, routers and neighbour entries of a network under test: who uses what.

registry.py       every operation, one transaction each
hosts.py          names, IP addresses and MAC addresses, each unique
leases.py         leases on source hosts and neighbour entries, counted by their holders
routers.py        routers: locks of the lock manager under the router's name
records.py        the records
wire.py           their form in plain files, and their spaces
address.py        valid addresses, code points and job types
context.py        what all operations share: store, settings, retries, error types
configuration.py  the dict that configures a RegistryManager
"""

from holdfast.domains.network.configuration import RegistryConfig, configured
from holdfast.domains.network.registry import Counts, Registry, Swept

__all__ = ["Counts", "Registry", "RegistryConfig", "Swept", "configured"]
