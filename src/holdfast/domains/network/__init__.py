"""Hosts, routers and neighbours of a network under test: who uses what, and what may be taken down.

registry.py       every operation, each one step; router_calls.py has those on routers, calls.py what all go through
configuration.py  the dict that configures a RegistryManager
hosts.py          names, addresses and MACs, each unique
leasing.py        leases on source hosts, under the rule of the router's lock
routers.py        routers, which are resources of the lock manager
neighbors.py      leases on neighbour entries
claims.py         leases counted by their holders, for both kinds
record.py  spaces.py  wire.py    the records, their spaces, and their form in plain files
address.py  picture.py  room.py  addresses; what callers are shown; what the parts share
"""

from holdfast.domains.network.configuration import RegistryConfig, configured
from holdfast.domains.network.registry import Counts, Registry, Swept
from holdfast.domains.network.room import Room

__all__ = ["Counts", "Registry", "RegistryConfig", "Room", "Swept", "configured"]
