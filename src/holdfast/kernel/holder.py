"""Who holds: a process that can be proved alive or dead, or is unknown.

    Holder(host_id, boot_id, pid_ns, pid, start_ticks, label)

A pid alone proves nothing: pids are reused, machines reboot, containers number their own. So a
holder carries the machine, the boot, the pid namespace and the process's start in clock ticks since
that boot. Reading them is `processes/procfs`; the verdict is here.
"""

import enum
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from holdfast.kernel.codec import Plain, json_bytes
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.limits import HOLDER_BYTES_MAX
from holdfast.kernel.order import Parts


class Liveness(enum.StrEnum):
    """What can be proved of a holder."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


class Place(NamedTuple):
    """Where a process runs: what must agree before its pid means anything."""

    host_id: str
    boot_id: str
    pid_ns: int


class Sighting(NamedTuple):
    """What the process table says of one pid. `start_ticks` None: there is one, but it is hidden
    from us.
    """

    start_ticks: int | None
    zombie: bool
    stopped: bool = False
    """It lives and does nothing until it is continued."""
    parent_pid: int = 0
    """Its parent in the same namespace; 0 when it has none there, or it is hidden from us."""


class Survivor(NamedTuple):
    """A live process of a tree."""

    pid: int
    name: str


class Holder(Plain, frozen=True, kw_only=True):
    """One process, for ever: no later process is equal to it. With `tree`, the process tree of a
    command that the process is the first of: then the holder lives as long as any process of that
    tree.
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
        """The process alone."""
        return replace(self, tree=UNSET) if self.tree else self

    @property
    def place(self) -> Place:
        """Where it runs."""
        return Place(self.host_id, self.boot_id, self.pid_ns)

    @property
    def parts(self) -> Parts:
        """What an index of holders goes by: those of one place stand together, and what one process
        holds, whatever its label.
        """
        return (self.host_id, self.boot_id, self.pid_ns, self.pid, self.start_ticks)


def attempt_tree(tree: str, token: int) -> str:
    """The id of the part of a worker's tree that does one attempt: a worker runs many commands
    under one tree.
    """
    return f"{tree}.{token}"


def check_holder(holder: Holder) -> Holder:
    """Return `holder` if a record has room for it. Raises InvalidValue."""
    if (size := json_bytes(holder)) > HOLDER_BYTES_MAX:
        raise InvalidValue(
            f"the process takes {size} bytes as JSON and may take {HOLDER_BYTES_MAX}: give it a "
            "shorter label",
            field="holder",
        )
    return holder


class ThisProcess:
    """Stands for the process that calls, where a holder may be given."""


THIS_PROCESS = ThisProcess()


class Processes(Protocol):
    """The process table of this machine, as far as this process can see it."""

    def here(self) -> Place:
        """Where this process runs."""
        ...

    def sight(self, pid: int) -> Sighting | None:
        """What is known of a pid in this namespace; None when there is none."""
        ...

    def boot_lives(self, boot_id: str) -> bool:
        """Is a process at work on this kernel that has this boot id? Containers may have one of
        their own. False proves nothing.
        """
        ...

    def tree_liveness(self, tree: str, *, in_sight: bool) -> Liveness:
        """Does any process of a tree of this machine live? `in_sight` says that its pid namespace
        is this process's.
        """
        ...

    def watch_tree(self, tree: str) -> int | None:
        """A descriptor that becomes readable when a tree of this machine may have ended (the caller
        closes it); None when there is none to wait for.
        """
        ...

    def ask_tree(self, tree: str) -> float | None:
        """Send SIGTERM to every process of a tree of this machine, unless that was done before;
        return how many seconds ago it was done first. None when this process cannot do it: the tree
        is another user's, or its own. Does not wait.
        """
        ...

    def end_tree(self, tree: str, grace_s: float) -> bool:
        """End a tree of this machine: SIGTERM, and SIGKILL to what is left after the grace. True
        when it is gone.
        """
        ...

    def survivors(self, tree: str) -> list[Survivor]:
        """The live processes of a tree that can be seen from here."""
        ...

    def current(self, label: str = "") -> Holder:
        """This process as a holder."""
        ...

    def of(self, pid: int, label: str = "") -> Holder:
        """Another process of this namespace as a holder. Raises NotFound when there is no such live
        process.
        """
        ...

    def death(self, holder: Holder) -> int | None:
        """A descriptor that becomes readable when the holder dies (the caller closes it); None when
        it is not to be watched from here or is dead already.
        """
        ...


def in_sight(processes: Processes, *, embedded: bool) -> Parts:
    """What the `parts` of a holder begin with of which `probe` may find more, from this process,
    than that it is unknown.
    """
    here = processes.here()
    return (here.host_id,) if embedded else tuple(here)


def probe(holder: Holder, processes: Processes, *, embedded: bool) -> Liveness:
    """Is the holder alive, dead or unknown, as seen from this process?

    `embedded` says that the store lives on this machine alone: then another boot of the same host
    is proof of death, unless processes with that boot id are at work here, in a container or
    outside of one. On a shared database it is none, since cloned machines share host ids.
    """
    here = processes.here()
    if holder.host_id != here.host_id:
        return Liveness.UNKNOWN
    if holder.boot_id != here.boot_id:
        return (
            Liveness.DEAD
            if embedded and not processes.boot_lives(holder.boot_id)
            else Liveness.UNKNOWN
        )
    alive = Liveness.UNKNOWN
    if holder.pid_ns == here.pid_ns:
        seen = processes.sight(holder.pid)
        if seen is None or seen.zombie or seen.start_ticks not in (None, holder.start_ticks):
            alive = Liveness.DEAD
        elif seen.start_ticks is not None:
            alive = Liveness.ALIVE
    if alive is Liveness.ALIVE or not holder.tree:
        return alive
    # The first process of the tree is gone or out of sight. Others of the tree may live.
    return processes.tree_liveness(holder.tree, in_sight=holder.pid_ns == here.pid_ns)


def stopped(holder: Holder, processes: Processes) -> bool:
    """Is the holder alive here, and stopped, as by Ctrl-Z, SIGSTOP or a debugger? False when that
    cannot be seen.
    """
    if holder.place != processes.here():
        return False
    seen = processes.sight(holder.pid)
    return seen is not None and seen.stopped and seen.start_ticks == holder.start_ticks


def orphaned(holder: Holder, processes: Processes, *, embedded: bool) -> list[Survivor]:
    """The processes by which a holder still lives whose command is dead; empty for any other
    holder.
    """
    if not holder.tree or probe(holder.leader, processes, embedded=embedded) is not Liveness.DEAD:
        return []
    return processes.survivors(holder.tree)


def survivors_named(survivors: Sequence[Survivor]) -> str:
    """Processes in a sentence: `4711 flash.py, 4712 tftp`."""
    shown = ", ".join(f"{one.pid} {one.name}" for one in survivors[:_NAMED_MAX])
    return (
        shown if len(survivors) <= _NAMED_MAX else f"{shown} and {len(survivors) - _NAMED_MAX} more"
    )


_NAMED_MAX = 5
