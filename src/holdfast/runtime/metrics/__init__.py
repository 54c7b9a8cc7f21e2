"""Metrics for Prometheus, whose library comes with the extra `server`. docs/operations.md lists
them.

families.py  the metric families of each domain and of the store
text.py      families as the text that Prometheus scrapes
sources.py   the metrics of a connection; a part that fails does not hide the others
"""

from holdfast.domains.network import Registry
from holdfast.primitives.locks import Locks
from holdfast.runtime.metrics.families import COUNTED, of_locks, of_registry, parts_up, store_up
from holdfast.runtime.metrics.text import need_library, text_of

__all__ = ["COUNTED", "exposition", "without_store"]


def exposition(locks: Locks, registry: Registry) -> str:
    """Locks and registry in the text format that Prometheus scrapes. Raises Unavailable when the
    extra is not installed.
    """
    need_library()
    return text_of(
        [*of_locks(locks.statistics(), locks.list_held()), *of_registry(registry.counts())]
    )


def without_store() -> str:
    """The metrics of a store that cannot be opened. Raises Unavailable when the extra is not
    installed.
    """
    need_library()
    return text_of([store_up(False), parts_up({"store": False})])
