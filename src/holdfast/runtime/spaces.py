"""Every kind of record that the program keeps."""

from typing import Any

from holdfast.kernel.space import Space


def all_spaces() -> list[Space[Any]]:
    """The spaces of every domain."""
    from holdfast.domains.agents.records import AGENTS
    from holdfast.domains.gateway.records import ATTACHMENTS
    from holdfast.domains.jobs.events import JOB_EVENTS
    from holdfast.domains.jobs.records import JOBS
    from holdfast.domains.network.wire import HOST_LEASES, HOSTS, NEIGHBOR_LEASES
    from holdfast.domains.workflows.wire import (
        CURRENT_RECIPE,
        SWAP_MARKER,
        UNKNOWN_RECIPE,
        WORKFLOWS,
    )
    from holdfast.primitives.holds import HOLDS
    from holdfast.primitives.locks.grant import LASTING_GRANTS, TABLE_BEGUN
    from holdfast.primitives.locks.records import LOCK_WAITS, LOCKS
    from holdfast.primitives.locks.statistics import LOCK_STATISTICS
    from holdfast.primitives.queue.records import HEADS, KEYS, REQUESTS
    from holdfast.primitives.steady_clock import CLOCK_SIGHTINGS

    network: list[Space[Any]] = [HOSTS, HOST_LEASES, NEIGHBOR_LEASES]
    workflows: list[Space[Any]] = [WORKFLOWS, SWAP_MARKER, CURRENT_RECIPE, UNKNOWN_RECIPE]
    locks: list[Space[Any]] = [LASTING_GRANTS, LOCKS, LOCK_WAITS, LOCK_STATISTICS, TABLE_BEGUN]
    queues: list[Space[Any]] = [ATTACHMENTS, HEADS, KEYS, REQUESTS]
    return [AGENTS, JOBS, JOB_EVENTS, *network, *workflows, *queues, HOLDS, *locks, CLOCK_SIGHTINGS]
