"""Claims of callers whose own process is not here, or does not stay.

Such a claim ends with a process that the caller names, or after a time.
"""

from typing import Annotated

from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.holder import Holder
from holdfast.operations.fields import Pid
from holdfast.operations.operation import Flag
from holdfast.runtime.connection import Holdfast

ClaimPid = Annotated[
    Pid | None,
    Flag("--pid", help="It ends when this process does, such as a script's own: --pid $$."),
]


def claimant(hf: Holdfast, pid: int | None, label: str = "") -> Holder | None:
    """The named process as a holder. Raises NotFound when there is no such process."""
    return None if pid is None else hf.processes.of(pid, label)


def require_ttl(hf: Holdfast, pid: int | None, ttl_s: float | None, claim: str) -> None:
    """Refuse a claim that ends with a process alone where other machines use the store too.

    They cannot see the process, and nobody renews the claim for it. Raises InvalidValue.
    """
    if pid is not None and ttl_s is None and not hf.store.embedded:
        raise InvalidValue(
            f"other machines cannot see the process, and nobody renews the {claim} for it: "
            "give a time too (--ttl, ttl_s)",
            field="ttl_s",
        )
