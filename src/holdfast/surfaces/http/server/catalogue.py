"""All operations of the server."""

from holdfast.surfaces.http.server import jobs, locks
from holdfast.surfaces.http.server.operation import Operation

CATALOGUE: list[Operation] = [*jobs.OPERATIONS, *locks.OPERATIONS]
