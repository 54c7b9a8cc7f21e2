"""How large a crowd is, what it does and what befalls it."""

from typing import NamedTuple


class Crowd(NamedTuple):
    """A crowd. Equal seeds choose equal victims and equal calls, not equal instants."""

    workload: str
    """See `proof.crowd.worker`."""
    kind: str
    """Which part of the workload."""
    seed: int
    lasts_s: float
    processes: int = 4
    threads: int = 2
    part_s: float = 0.25
    """How long a key is used, where a history is to fall into small parts."""
    kills: bool = True
    """Processes are killed and stopped while it lasts."""
    pause_s: float = 0.25
    """Between two blows, on average."""
    killed: float = 0.75
    """The share of the blows that kill; the others stop a process for a while."""
    bug: str = ""
    """One of `proof.bugs`, planted into every process."""


class Plan(NamedTuple):
    """What one process of a crowd does."""

    store: str
    folder: str
    process: str
    """Its name, which no other process of the run has."""
    crowd: Crowd
