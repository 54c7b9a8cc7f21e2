"""Metrics for Prometheus, which the extra `server` brings along. docs/operations.md lists them.

families.py    the metric families of each domain and of the store
text.py        families as the text that Prometheus scrapes
exposition.py  all families; one that fails does not hide the others
sources.py     the gateways and followers that are asked
"""

from holdfast.domains.network import Registry
from holdfast.primitives.locks import Locks
from holdfast.runtime.metrics.exposition import Exposition, without_store
from holdfast.runtime.metrics.families import COUNTED, of_locks, of_registry
from holdfast.runtime.metrics.text import need_library, text_of

__all__ = ["COUNTED", "Exposition", "exposition", "without_store"]


def exposition(locks: Locks, registry: Registry) -> str:
    """Locks and registry in the text format that Prometheus scrapes. Raises Unavailable when the
    extra is not installed.
    """
    need_library()
    # Read now, so that what cannot be read is told before anything is written.
    return text_of(
        [*of_locks(locks.statistics(), locks.list_held()), *of_registry(registry.counts())]
    )
