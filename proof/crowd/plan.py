"""The size of a crowd, its work, and how often its processes are killed."""

from typing import NamedTuple


class Crowd(NamedTuple):
    """A crowd. Equal seeds choose equal victims and equal calls, not equal instants."""

    workload: str
    """See `proof.crowd.worker`."""
    kind: str
    """The part of the workload."""
    seed: int
    lasts_s: float
    processes: int = 4
    threads: int = 2
    part_s: float = 0.25
    """How long a key is used, so that a history falls into small parts."""
    kills: bool = True
    """Processes are killed and stopped while it lasts."""
    pause_s: float = 0.25
    """Between two kills or stops, on average."""
    killed: float = 0.75
    """The share of kills; the others stop a process for a while."""
    bug: str = ""
    """One of `proof.bugs`, planted into every process."""


class Plan(NamedTuple):
    """The work of one process of a crowd."""

    store: str
    folder: str
    process: str
    """Its name, which no other process of the run has."""
    crowd: Crowd
