"""Every operation once: its request, its result, its handler, and where it is exposed.

operation.py  what an operation is: the decorator, `Request`, `Flag`, `Positional`, `Wait`
fields.py     the types that requests are made of, with their bounds and descriptions
claims.py     claims of callers that have no process of their own here
job_claim.py  claiming a job, apart from the rest so that `jobs pick` starts fast
job_requests.py, job_views.py  what the job operations take and return
lock_flags.py how the command line offers a lock, apart so that `locks run` starts fast
page/         what the page shows: read-only views over several domains
agents.py, gateways.py, holds.py, jobs.py, locks.py, log.py, network.py, questions.py, store.py,
workflows.py  the operations, one module per area

A surface renders and transports; what an operation accepts and does is here and in the domains.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.operations.operation import Operation

AREAS = (
    "agents",
    "jobs",
    "locks",
    "holds",
    "network",
    "workflows",
    "gateways",
    "questions",
    "log",
    "store",
)
"""The modules of operations, in the order in which a reference lists them."""


def all_operations() -> "list[Operation]":
    """Import every area and return its operations. A command line imports one area instead."""
    modules = (import_module(f"holdfast.operations.{area}") for area in AREAS)
    return [operation for module in modules for operation in module.OPERATIONS]
