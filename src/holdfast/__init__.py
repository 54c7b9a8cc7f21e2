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
    from holdfast.domains.network.routers import RouterLockOptions
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
    "RouterLockOptions",
    "Work",
    "WorkReport",
    "Workflow",
    "__version__",
    "atomic_durable_write",
    "connect",
    "errors",
]

_HOMES = {
    "holdfast.adapters.durable_write": "atomic_durable_write",
    "holdfast.domains.agents": "Agent",
    "holdfast.domains.agents.renewal": "AgentRenewal",
    "holdfast.domains.jobs": "Broker Job JobStatus",
    "holdfast.domains.jobs.work": "WorkReport",
    "holdfast.domains.network.routers": "RouterLockOptions",
    "holdfast.domains.workflows": "Work Workflow",
    "holdfast.primitives.locks": "Grant Mode",
    "holdfast.runtime.connection": "Holdfast connect",
    "holdfast.runtime.registry_manager": "RegistryManager",
}
"""The public names by their modules. All others are errors."""


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    for home, names in _HOMES.items():
        if name in names.split():
            return getattr(import_module(home), name)
    errors = import_module("holdfast.kernel.errors")
    return errors if name == "errors" else getattr(errors, name)
