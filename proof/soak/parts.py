"""The parts of a soak, and how many processes play each."""

import pkgutil
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NamedTuple

import holdfast
from holdfast.runtime.connection import Holdfast
from proof.soak import (
    agent_parts,
    flow_parts,
    gateway_parts,
    job_parts,
    journal_parts,
    lock_parts,
    mcp_parts,
    network_parts,
    server_parts,
    tree_parts,
)
from proof.soak.child import Child

Play = Callable[[Child, Holdfast], bool]
"""Does one thing; False if there is nothing more to do, which matters only while the soak runs dry.
"""


class Part(NamedTuple):
    """A part, and how many processes play it. `struck`: how often its processes are killed or
    stopped, compared with others.
    """

    name: str
    play: Play
    number: int
    struck: float = 1.0


PARTS = [
    Part("locker", lock_parts.locker, 7),
    Part("leaseholder", lock_parts.leaseholder, 2),
    Part("counter", lock_parts.counter, 3),
    Part("producer", job_parts.producer, 2),
    Part("worker", job_parts.worker, 5),
    Part("courier", job_parts.courier, 1),
    Part("agent", agent_parts.agent, 4),
    Part("resolver", agent_parts.resolver, 1),
    Part("manager", network_parts.manager, 4),
    Part("workflow", flow_parts.workflow, 3),
    Part("swapper", flow_parts.swapper, 2),
    Part("client", gateway_parts.client, 2),
    Part("caller", server_parts.caller, 3),
    Part("fetcher", server_parts.fetcher, 2),
    Part("mcp", mcp_parts.mcp, 2, struck=0.3),
    Part("lock_tree", tree_parts.lock_tree, 4, struck=0.3),
    Part("job_tree", tree_parts.job_tree, 2, struck=0.3),
    Part("follower", journal_parts.follower, 2),
    Part("watcher", journal_parts.watcher, 1, struck=0.0),
]


def load() -> None:
    """Load the whole library, so that a new process, a fork, need not: otherwise it would be killed
    while it still loads.
    """
    for name in ("kernel", "stores", "primitives", "domains", "adapters"):
        package = import_module(f"{holdfast.__name__}.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            import_module(module.name)


def cast(share: float, named: Sequence[str] = ()) -> list[tuple[Part, str]]:
    """Every slot with its name; `share` of each part, and at least one. Only the parts that are
    named, if any is.
    """
    return [
        (part, f"{part.name}{number}")
        for part in PARTS
        if part.name in named or not named
        for number in range(max(round(part.number * share), 1) if part.struck else 1)
    ]
