"""Claims of callers whose own process is not here, or does not stay.

Such a claim ends with a process that the caller names, or after a time.
"""

from typing import Annotated

from holdfast.kernel.holder import Holder
from holdfast.operations.fields import Pid
from holdfast.operations.operation import Flag
from holdfast.runtime.connection import Holdfast

CLAIM_ENDS = {"ttl_s": "number", "pid": "integer"}
"""The fields that end a claim, with their JSON types. A claim needs at least one."""

ClaimPid = Annotated[
    Pid | None,
    Flag("--pid", help="It ends when this process does, such as a script's own: --pid $$."),
]


def claimant(hf: Holdfast, pid: int | None, label: str = "") -> Holder | None:
    """The named process as a holder. Raises NotFound when there is no such process."""
    return None if pid is None else hf.processes.of(pid, label)
