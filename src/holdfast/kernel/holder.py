"""A holder: a process that can be proved alive or dead, or is unknown.

A pid alone proves nothing: pids are reused, machines reboot, containers number their own. So a
holder also has the machine, the boot, the pid namespace and the process's start in clock ticks
since that boot. `processes/procfs` reads them; the verdict is here.
"""

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from holdfast.kernel.codec import Plain, json_bytes
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.limits import HOLDER_BYTES_MAX
from holdfast.kernel.order import Parts

_NAMED_MAX = 5


class Liveness(enum.StrEnum):
    """What is proved of a holder."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


class Place(NamedTuple):
    """Where a process runs. A pid is meaningful only in the same place."""

    host_id: str
    boot_id: str
    pid_ns: int


class ProcessStat(Struct, frozen=True):
    """The process table's entry of a pid. `start_ticks` None: the process is hidden from us."""

    start_ticks: int | None
    zombie: bool
    stopped: bool = False
    """It lives, but does nothing until it is continued."""
    parent_pid: int = 0
    """Its parent in the same namespace; 0 when there is none, or it is hidden from us."""


class Survivor(Struct, frozen=True):
    """A live process of a tree."""

    pid: int
    name: str


class Holder(Plain, frozen=True, kw_only=True):
    """One process. No later process with the same pid is equal to it. With `tree` it began the
    process tree of a command, and lives as long as any process of that tree.
    """

    host_id: str
    boot_id: str
    pid_ns: int
    pid: int
    start_ticks: int
    label: str = ""
    tree: str | UnsetType = UNSET

    @property
    def leader(self) -> "Holder":
        """The process without its tree."""
        return replace(self, tree=UNSET) if self.tree else self

    @property
    def place(self) -> Place:
        """Where it runs."""
        return Place(self.host_id, self.boot_id, self.pid_ns)

    @property
    def parts(self) -> Parts:
        """The index tuple of a holder: it groups by place, then by process, whatever the label."""
        return (self.host_id, self.boot_id, self.pid_ns, self.pid, self.start_ticks)


ProbedLiveness = Mapping[Holder, Liveness]
"""The liveness of processes, probed before the transaction that decides by it, because a probe does
I/O. A death is final: it is still true in the transaction.
"""


def attempt_tree(tree: str, token: int) -> str:
    """The id of the part of a worker's tree that does one attempt."""
    return f"{tree}.{token}"


def check_holder(holder: Holder) -> Holder:
    """`holder`, if a record has room for it. Raises InvalidValue."""
    if (size := json_bytes(holder)) > HOLDER_BYTES_MAX:
        raise InvalidValue(
            f"the process takes {size} bytes as JSON and may take {HOLDER_BYTES_MAX}: give it a "
            "shorter label",
            field="holder",
        )
    return holder


class ThisProcess:
    """Stands for the calling process, where a holder may be given."""


THIS_PROCESS = ThisProcess()


class Processes(Protocol):
    """The process table of this machine, as this process sees it. Callers close descriptors."""

    def here(self) -> Place:
        """Where this process runs."""

    def process_stat(self, pid: int) -> ProcessStat | None:
        """The entry of a pid of this namespace; None when there is none."""

    def boot_lives(self, boot_id: str) -> bool:
        """True when a process of this kernel has this boot id. False proves nothing."""

    def tree_liveness(self, tree: str, *, in_sight: bool) -> Liveness:
        """Whether a process of a tree lives. `in_sight`: its pid namespace is this process's."""

    def watch_tree(self, tree: str) -> int | None:
        """A descriptor that becomes readable when a tree may have ended; None when there is nothing
        to wait for.
        """

    def terminate_tree(self, tree: str) -> float | None:
        """Send SIGTERM to every process of a tree, unless that was done before. Return how many
        seconds ago it was sent; None when this process cannot send it: the tree is another user's,
        or its own.
        """

    def end_tree(self, tree: str, grace_s: float) -> bool:
        """End a tree of this machine: SIGTERM, then SIGKILL after the grace. True if it is gone."""

    def survivors(self, tree: str) -> list[Survivor]:
        """The live processes of a tree that are visible from here."""

    def current(self, label: str = "") -> Holder:
        """This process as a holder."""

    def of(self, pid: int, label: str = "") -> Holder:
        """Another live process of this namespace as a holder. Raises NotFound."""

    def death(self, holder: Holder) -> int | None:
        """A descriptor that becomes readable when the holder dies; None when it is dead already, or
        cannot be watched.
        """


def visible_prefix(processes: Processes, *, embedded: bool) -> Parts:
    """What the `parts` of a holder begin with if `probe` can judge the holder from here."""
    here = processes.here()
    return (here.host_id,) if embedded else tuple(here)


def probe(holder: Holder, processes: Processes, *, embedded: bool) -> Liveness:
    """Whether the holder is alive, dead or unknown, as seen from this process.

    On an `embedded` store another boot of the same host proves death, unless processes with that
    boot id run here, perhaps in a container. On a shared one it proves nothing, since cloned
    machines share host ids.
    """
    here = processes.here()
    if holder.host_id != here.host_id:
        return Liveness.UNKNOWN
    if holder.boot_id != here.boot_id:
        ended = embedded and not processes.boot_lives(holder.boot_id)
        return Liveness.DEAD if ended else Liveness.UNKNOWN
    alive = Liveness.UNKNOWN
    if holder.pid_ns == here.pid_ns:
        seen = processes.process_stat(holder.pid)
        if seen is None or seen.zombie or seen.start_ticks not in (None, holder.start_ticks):
            alive = Liveness.DEAD
        elif seen.start_ticks is not None:
            alive = Liveness.ALIVE
    if alive is Liveness.ALIVE or not holder.tree:
        return alive
    # The first process of the tree is gone or invisible. Others of the tree may live.
    return processes.tree_liveness(holder.tree, in_sight=holder.pid_ns == here.pid_ns)


def stopped(holder: Holder, processes: Processes) -> bool:
    """True when the holder is seen to be stopped, as by Ctrl-Z, SIGSTOP or a debugger."""
    if holder.place != processes.here():
        return False
    seen = processes.process_stat(holder.pid)
    return seen is not None and seen.stopped and seen.start_ticks == holder.start_ticks


def orphaned(holder: Holder, processes: Processes, *, embedded: bool) -> list[Survivor]:
    """The processes that outlive the command of a holder; empty while the command lives."""
    if not holder.tree or probe(holder.leader, processes, embedded=embedded) is not Liveness.DEAD:
        return []
    return processes.survivors(holder.tree)


def survivors_named(survivors: Sequence[Survivor]) -> str:
    """Processes as text: `4711 flash.py, 4712 tftp`."""
    shown = ", ".join(f"{one.pid} {one.name}" for one in survivors[:_NAMED_MAX])
    more = len(survivors) - _NAMED_MAX
    return shown if more <= 0 else f"{shown} and {more} more"
