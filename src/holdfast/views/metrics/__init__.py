"""Metrics for Prometheus, which the extra `server` brings along. docs/operations.md lists them.

text.py        families of samples as the text that is scraped
locks.py       what the locks have been through, and how they stand
registry.py    how much the registry of hosts keeps
jobs.py        jobs by status, and events that wait for a broker
leases.py      how long agents and workflows are still believed
gateways.py    queues of agents, asked of their gateways
store.py       how long the store takes
journal.py     how far behind its followers are, and how far back it goes
whole.py       all of it, of which no part can fail the others

Nothing of the extra is imported before somebody asks for the text.
"""

from holdfast.domains.network import Registry
from holdfast.primitives.locks import Locks
from holdfast.views.metrics.locks import COUNTED, of_locks
from holdfast.views.metrics.registry import of_registry
from holdfast.views.metrics.text import need_library, text_of
from holdfast.views.metrics.whole import Exposition, without_store

__all__ = ["COUNTED", "Exposition", "exposition", "without_store"]


def exposition(locks: Locks, registry: Registry) -> str:
    """Locks and registry in the text format that Prometheus scrapes. Raises Unavailable when the extra is not installed."""
    need_library()
    # Read now, so that what cannot be read is told before anything is written.
    return text_of([*of_locks(locks.statistics(), locks.list_held()), *of_registry(registry.counts())])
