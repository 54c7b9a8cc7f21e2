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
    from holdfast.domains.jobs import Job, JobStatus
    from holdfast.domains.workflows import Workflow
    from holdfast.kernel import errors
    from holdfast.kernel.errors import (
        HoldfastError,
        LockTimeout,
        RegistryCollision,
        RegistryCorruption,
        RegistryError,
        RegistryLockTimeout,
        RegistryNotFound,
    )
    from holdfast.primitives.locks import Grant, Mode
    from holdfast.runtime.connection import Holdfast, connect
    from holdfast.runtime.registry_manager import RegistryManager

__version__ = "0.1.0"
__all__ = [
    "Agent",
    "Grant",
    "Holdfast",
    "HoldfastError",
    "Job",
    "JobStatus",
    "LockTimeout",
    "Mode",
    "RegistryCollision",
    "RegistryCorruption",
    "RegistryError",
    "RegistryLockTimeout",
    "RegistryManager",
    "RegistryNotFound",
    "Workflow",
    "__version__",
    "atomic_durable_write",
    "connect",
    "errors",
]

_HOMES = {
    "Agent": "holdfast.domains.agents",
    "Grant": "holdfast.primitives.locks",
    "Holdfast": "holdfast.runtime.connection",
    "Job": "holdfast.domains.jobs",
    "JobStatus": "holdfast.domains.jobs",
    "LockTimeout": "holdfast.kernel.errors",
    "Mode": "holdfast.primitives.locks",
    "Workflow": "holdfast.domains.workflows",
    "atomic_durable_write": "holdfast.adapters.durable_write",
    "connect": "holdfast.runtime.connection",
    "HoldfastError": "holdfast.kernel.errors",
    "RegistryCollision": "holdfast.kernel.errors",
    "RegistryCorruption": "holdfast.kernel.errors",
    "RegistryError": "holdfast.kernel.errors",
    "RegistryLockTimeout": "holdfast.kernel.errors",
    "RegistryManager": "holdfast.runtime.registry_manager",
    "RegistryNotFound": "holdfast.kernel.errors",
    "errors": "holdfast.kernel",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    from importlib import import_module

    home = import_module(_HOMES[name])
    # `errors` is a module of its own, which importing its package does not load.
    return import_module(f"{_HOMES[name]}.{name}") if name == "errors" else getattr(home, name)
