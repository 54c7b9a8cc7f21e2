"""Agents: who is alive under which name, and what may be controlled by it.

names.py       one name in its several spellings, and the id that follows from it
record.py      an agent's record, the parts it is made of, and its form in a file
backends.py    what agents run on, and which of that is in tmux
manifest.py    what a record points at
outside.py     the ports: tmux, files and gateways as the rules see them
registry.py    what callers see: publish, refresh, remove, get and list
listing.py     agents by name, a page at a time
owning.py      who has an id, decided in one transaction each
resolving.py   from a name or an id to a live record, or to the reason why there is none
control.py     from a live record to what may be controlled, trusting nothing
liveness.py    lease, process, tmux session and gateway, each by itself
keeping.py     renewing a lease for as long as its agent runs
cleanup.py     what is left behind, and what of it may go
"""

from holdfast.domains.agents.control import Target
from holdfast.domains.agents.manifest import Manifest
from holdfast.domains.agents.record import Agent, Gateway
from holdfast.domains.agents.registry import Agents
from holdfast.domains.agents.resolving import Reason, Resolution

__all__ = ["Agent", "Agents", "Gateway", "Manifest", "Reason", "Resolution", "Target"]
