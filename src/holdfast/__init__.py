"""Holdfast keeps agents, jobs and shared resources from stepping on each other.

    import holdfast

    with holdfast.connect() as hf:
        job = hf.jobs.pick_pending("tmux:claude-a")

Names are loaded when they are first used, so that importing the package costs next to nothing.
"""

# Type checkers know this name; importing it from `typing` would cost more than the rest of this
# module.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from holdfast.adapters.durable_write import atomic_durable_write
    from holdfast.domains.agents import Agent
    from holdfast.domains.agents.renewal import AgentRenewal
    from holdfast.domains.jobs import Broker, Job, JobStatus
    from holdfast.domains.jobs.work import WorkReport
    from holdfast.domains.workflows import Work, Workflow
    from holdfast.kernel import errors
    from holdfast.kernel.errors import (
        HoldfastError,
        LockTimeout,
        RegistryCollision,
        RegistryCorruption,
        RegistryDeadlock,
        RegistryError,
        RegistryHeld,
        RegistryLockTimeout,
        RegistryLost,
        RegistryNotFound,
        RegistryUnavailable,
    )
    from holdfast.primitives.locks import Grant, Mode
    from holdfast.runtime.connection import Holdfast, connect
    from holdfast.runtime.registry_manager import RegistryManager

__version__ = "0.1.0"
__all__ = [
    "Agent",
    "AgentRenewal",
    "Broker",
    "Grant",
    "Holdfast",
    "HoldfastError",
    "Job",
    "JobStatus",
    "LockTimeout",
    "Mode",
    "RegistryCollision",
    "RegistryCorruption",
    "RegistryDeadlock",
    "RegistryError",
    "RegistryHeld",
    "RegistryLockTimeout",
    "RegistryLost",
    "RegistryManager",
    "RegistryNotFound",
    "RegistryUnavailable",
    "Work",
    "WorkReport",
    "Workflow",
    "__version__",
    "atomic_durable_write",
    "connect",
    "errors",
]

_HOMES = {
    "Agent": "holdfast.domains.agents",
    "AgentRenewal": "holdfast.domains.agents.renewal",
    "Broker": "holdfast.domains.jobs",
    "Grant": "holdfast.primitives.locks",
    "Holdfast": "holdfast.runtime.connection",
    "HoldfastError": "holdfast.kernel.errors",
    "Job": "holdfast.domains.jobs",
    "JobStatus": "holdfast.domains.jobs",
    "LockTimeout": "holdfast.kernel.errors",
    "Mode": "holdfast.primitives.locks",
    "RegistryCollision": "holdfast.kernel.errors",
    "RegistryCorruption": "holdfast.kernel.errors",
    "RegistryDeadlock": "holdfast.kernel.errors",
    "RegistryError": "holdfast.kernel.errors",
    "RegistryHeld": "holdfast.kernel.errors",
    "RegistryLockTimeout": "holdfast.kernel.errors",
    "RegistryLost": "holdfast.kernel.errors",
    "RegistryManager": "holdfast.runtime.registry_manager",
    "RegistryNotFound": "holdfast.kernel.errors",
    "RegistryUnavailable": "holdfast.kernel.errors",
    "Work": "holdfast.domains.workflows",
    "WorkReport": "holdfast.domains.jobs.work",
    "Workflow": "holdfast.domains.workflows",
    "atomic_durable_write": "holdfast.adapters.durable_write",
    "connect": "holdfast.runtime.connection",
    "errors": "holdfast.kernel",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    from importlib import import_module

    home = import_module(_HOMES[name])
    # `errors` is a module of its own, which importing its package does not load.
    return import_module(f"{_HOMES[name]}.{name}") if name == "errors" else getattr(home, name)
