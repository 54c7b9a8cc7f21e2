"""All operations of the server."""

from holdfast.surfaces.http.server import (
    agents,
    gateways,
    holds,
    jobs,
    locks,
    log,
    network,
    store,
    workflows,
)
from holdfast.surfaces.http.server.operation import Operation

CATALOGUE: list[Operation] = [
    *agents.OPERATIONS,
    *jobs.OPERATIONS,
    *locks.OPERATIONS,
    *holds.OPERATIONS,
    *network.OPERATIONS,
    *workflows.OPERATIONS,
    *gateways.OPERATIONS,
    *log.OPERATIONS,
    *store.OPERATIONS,
]
