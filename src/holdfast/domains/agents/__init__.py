"""Agents: which agent is alive under a name, and what may be controlled through its record.

records.py     names, backends, an agent's record and its form in a file
validation.py  the checks of a record before it is published
manifest.py    the document a record points at: how the agent is reached
ports.py       tmux, files and gateways as the rules see them
registry.py    publish, refresh, remove, get, list
ownership.py   which generation owns an id: the rules inside a transaction
resolution.py  from a name or an id to a live record, or to the reason why there is none
control.py     from a live record to a safe target: every pointer is checked again
liveness.py    lease, process, tmux session and gateway, each by itself
renewal.py     renews a lease for as long as the agent runs
cleanup.py     what dead agents left, and what of it may be removed
"""

from holdfast.domains.agents.control import Target
from holdfast.domains.agents.manifest import Manifest
from holdfast.domains.agents.records import Agent, GatewayAddress
from holdfast.domains.agents.registry import Agents
from holdfast.domains.agents.resolution import Reason, Resolution

__all__ = ["Agent", "Agents", "GatewayAddress", "Manifest", "Reason", "Resolution", "Target"]
