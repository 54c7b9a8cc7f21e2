"""Claims of those who have no process here, or not one that stays: what ends them is a process that
they name, or time.
"""

from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.holder import Holder
from holdfast.runtime.connection import Holdfast


def claimant(hf: Holdfast, pid: int | None, label: str = "") -> Holder | None:
    """The process that was named, as a holder. Raises NotFound when there is no such process."""
    return None if pid is None else hf.processes.of(pid, label)


def refuse_unseen(hf: Holdfast, pid: int | None, ttl_s: float | None, what: str) -> None:
    """A claim that ends with a process needs a time too where not everybody can see the process.
    Raises InvalidValue.
    """
    if pid is not None and ttl_s is None and not hf.store.embedded:
        raise InvalidValue(
            f"other machines cannot see the process, and nobody renews the {what} for it: give a "
            "time too (--ttl, ttl_s)",
            field="ttl_s",
        )
