"""What must be true of a registry at any time."""

from typing import Any

from holdfast.domains.network.address import normal_ip, normal_mac
from holdfast.domains.network.wire import HOST_LEASES, HOSTS, NEIGHBOR_LEASES
from holdfast.kernel.space import Space
from holdfast.kernel.store import Entry
from holdfast.runtime.connection import Holdfast

SPACES: list[Space[Any]] = [HOSTS, HOST_LEASES, NEIGHBOR_LEASES]

State = tuple[set[str], dict[str, set[str]], dict[str, set[str]]]
"""Hosts, runs by host, runs by neighbour entry."""


def stored(hf: Holdfast) -> State:
    """What the records say."""

    def look(tx: Any) -> State:
        hosts = {row.key for row in tx.range(HOSTS)}
        on_hosts, on_neighbors = (
            {row.key: {lease.by for lease in row.record.leases} for row in tx.range(space)}
            for space in (HOST_LEASES, NEIGHBOR_LEASES)
        )
        return hosts, on_hosts, on_neighbors

    return hf.store.read(look, scope=SPACES)


def replayed(entries: list[Entry]) -> State:
    """What the journal says."""
    hosts: set[str] = set()
    leases: dict[str, dict[str, set[str]]] = {"host_lease": {}, "neighbor_lease": {}}
    for entry in entries:
        what, _, step = entry.kind.partition(".")
        if what == "host":
            (hosts.add if step == "registered" else hosts.remove)(entry.subject)
        elif what in leases:
            runs = leases[what].setdefault(entry.subject, set())
            (runs.add if step == "taken" else runs.remove)(entry.data["run_id"])
            # Leases that are swept in one step have one entry each, all with the final count.
            assert step == "swept" or entry.data["count"] == len(runs)
    on_hosts, on_neighbors = (
        {key: runs for key, runs in found.items() if runs} for found in leases.values()
    )
    return hosts, on_hosts, on_neighbors


def entries_of(hf: Holdfast) -> list[Entry]:
    return [entry for batch in hf.log.since() for entry in batch.entries]


def check(hf: Holdfast) -> State:
    """Counts equal their holders, addresses are unique, and the journal agrees with the records."""
    state = stored(hf)
    assert replayed(entries_of(hf)) == state
    infos = hf.network.list_all_hosts()
    assert len({normal_ip(info["primary_ip"]) for info in infos.values()}) == len(infos)
    assert len({normal_mac(info["mac_address"]) for info in infos.values()}) == len(infos)
    for name, one in hf.network.list_host_leases().items():
        runs = [lease["run_id"] for lease in one["leases"]]
        assert len(set(runs)) == len(runs)
        assert hf.network.get_host_lease_count(name) == sum(
            not lease["dead"] for lease in one["leases"]
        )
    return state
