"""What must be true at the end: nothing is lost, done twice or left behind, and the journal agrees."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import holdfast
from holdfast.adapters.gateway_client import GatewayClient
from holdfast.domains.agents.records import AGENTS
from holdfast.domains.jobs.records import JOBS
from holdfast.kernel.errors import LockTimeout
from holdfast.kernel.store import Entry
from holdfast.primitives.holds import HOLDS
from holdfast.primitives.locks.records import LOCK_WAITS, LOCKS
from holdfast.runtime.connection import Holdfast
from proof.soak import lock_parts, network_parts, tree_parts, tree_process
from proof.soak.child import read_log
from proof.soak.gateway_parts import AGENT
from tests.harness.timeouts import until
from tests.hazards.network_invariants import replayed, stored
from tests.processes.trees import fifos

_PATIENCE_S = 60.0
_AT_ONCE_S = 5.0
"""Long enough for a busy machine, and shorter than any lease."""


def look(url: str, folder: Path) -> Iterator[str]:
    """All violations in what a soak left behind."""
    with closing(holdfast.connect(url)) as hf:
        hf.holds.sweep()
        hf.network.sweep()
        hf.workflows.sweep()
        yield from _trees(hf, folder)
        yield from _locks(hf)
        entries = _journal(hf)
        yield from _jobs(hf, folder, entries)
        yield from _counts(hf, entries)
        yield from _agents(hf, folder, entries)
        yield from _network(hf, entries)
        yield from _workflows(hf)
        yield from _followers(hf, folder, entries)
    yield from _leases(folder)
    yield from _gateway(folder)


def _journal(hf: Holdfast) -> list[Entry]:
    """The whole journal. A database shows an entry only when no earlier transaction is open, such
    as one of another program.
    """
    mark = hf.store.transact(
        lambda tx: tx.append(actor="soak", kind="soak.ended", subject="soak"), scope=[]
    )
    entries: list[Entry] = []

    def whole() -> bool:
        entries[:] = [entry for batch in hf.log.since() for entry in batch.entries]
        return any(entry.revision == mark for entry in entries)

    until(whole)
    return entries


def _trees(hf: Holdfast, folder: Path) -> Iterator[str]:
    """All trees have ended, and no two of one claim overlapped. Their locks can be acquired at
    once, and no FIFO is left.
    """
    witnesses = [
        path.read_text().splitlines() for path in sorted((folder / tree_parts.WITNESSES).iterdir())
    ]
    known = {
        (int(pid), int(start)) for lines in witnesses for _, _, pid, start in map(str.split, lines)
    }
    until(lambda: not any(tree_process.lives(pid, start) for pid, start in known))
    for path in sorted((folder / tree_parts.WITNESSES).iterdir()):
        for wrong in tree_process.overlaps(path.read_text().splitlines()):
            yield f"two trees held {path.name}: {wrong}"
    try:
        hf.locks.release(hf.locks.acquire(tree_parts.NAMES, by="end", timeout_s=_AT_ONCE_S))
    except LockTimeout as error:
        yield f"all trees have ended, and their locks cannot be acquired: {error.message}"
    hf.processes.trees.sweep(older_than_s=0.0)
    if left := fifos(hf):
        yield f"FIFOs of trees are left: {left}"


def _locks(hf: Holdfast) -> Iterator[str]:
    """The next worker gets everything, and then nothing is held."""
    names = [*lock_parts.NAMES, *(f"leased-{number}" for number in range(3))]
    hf.locks.release(hf.locks.acquire(names, by="end", timeout_s=_PATIENCE_S))
    if not hf.network.acquire_all_router_locks_atomic(
        network_parts.ROUTERS, "end", timeout=_PATIENCE_S
    ):
        yield "the routers cannot be locked"
    hf.network.release_all_router_locks(network_parts.ROUTERS, "end")
    hf.locks.clear_unread()
    locks, waits = hf.store.read(
        lambda tx: (tx.range(LOCKS), tx.range(LOCK_WAITS)), scope=[LOCKS, LOCK_WAITS]
    )
    for left in [*map(str, locks), *map(str, waits)]:
        yield f"left in the lock table: {left}"


def _jobs(hf: Holdfast, folder: Path, entries: list[Entry]) -> Iterator[str]:
    rows = hf.store.read(lambda tx: {row.key: row.record for row in tx.range(JOBS)}, scope=[JOBS])
    for one in read_log(folder, "registered"):
        job = rows.get(str(one["job"]))
        if job is None:
            yield f"a registered job is lost: {one['job']}"
        elif job.status.value != "completed":
            yield f"a job is left {job.status.value}: {one['job']}"
    for done, times in Counter(str(one["job"]) for one in read_log(folder, "done")).items():
        if times > 1:
            yield f"{done} was completed {times} times"
    # A late verdict is journalled too, and changes no job.
    moved = [entry for entry in entries if entry.kind in ("job.registered", "job.status_changed")]
    last = {entry.subject: entry.data.get("to", "pending") for entry in moved}
    for key, job in rows.items():
        if last.get(key) != job.status.value:
            yield f"the journal says that job {key} is {last.get(key)}, and its record {job.status.value}"


def _counts(hf: Holdfast, entries: list[Entry]) -> Iterator[str]:
    """The holds of dead processes are swept, and live ones have dropped theirs."""
    rows = hf.store.read(
        lambda tx: {row.key: {hold.by for hold in row.record.holds} for row in tx.range(HOLDS)},
        scope=[HOLDS],
    )
    if rows:
        yield f"holds of dead processes are left: {rows}"
    replay: dict[str, set[str]] = {}
    for entry in entries:
        if entry.kind.startswith("hold."):
            holders = replay.setdefault(entry.subject, set())
            (holders.add if entry.kind == "hold.taken" else holders.discard)(entry.data["by"])
    if any(replay.values()):
        yield f"the journal has holds that do not exist: {replay}"


def _agents(hf: Holdfast, folder: Path, entries: list[Entry]) -> Iterator[str]:
    rows = hf.store.read(
        lambda tx: {row.key: row.record for row in tx.range(AGENTS)}, scope=[AGENTS]
    )
    last: dict[str, str | None] = {}
    for entry in entries:
        if entry.kind == "agent.published":
            last[entry.subject] = entry.data["generation_id"]
        elif entry.kind in ("agent.removed", "agent.cleaned"):
            last[entry.subject] = None
    shown = {key: record.generation_id for key, record in rows.items()}
    if shown != {key: generation for key, generation in last.items() if generation is not None}:
        yield f"the journal and the agents differ: {last}, {shown}"
    tokens = Counter(int(str(one["token"])) for one in read_log(folder, "published"))
    if repeated := [token for token, times in tokens.items() if times > 1]:
        yield f"tokens were given to two generations: {repeated}"


def _network(hf: Holdfast, entries: list[Entry]) -> Iterator[str]:
    state = stored(hf)
    if replayed(entries) != state:
        yield f"the journal and the network differ: {replayed(entries)}, {state}"
    if state[1] or state[2]:
        yield f"leases of dead processes are left: {state[1]} {state[2]}"


def _workflows(hf: Holdfast) -> Iterator[str]:
    status = hf.workflows.swap_status()
    if status.marker is not None or status.workflows:
        yield f"work of dead processes is left: {status}"


def _followers(hf: Holdfast, folder: Path, entries: list[Entry]) -> Iterator[str]:
    """Each saw everything up to its cursor once, and nothing else except what a killed database may
    have lost. Entries that the bounded journal dropped are not checked.
    """
    there = {entry.revision for entry in entries}
    for path in sorted(folder.glob("followed-*")):
        lines = read_log(folder, path.name)
        seen = [revision for line in lines for revision in line["revisions"]]  # type: ignore[attr-defined]
        if len(set(seen)) != len(seen):
            yield f"{path.name} saw entries twice"
        to_come = (
            {
                entry.revision
                for batch in hf.log.since(str(lines[-1]["cursor"]))
                for entry in batch.entries
            }
            if lines
            else there
        )
        if missed := sorted(there - to_come - set(seen)):
            yield f"{path.name} missed {len(missed)} entries: {missed[:5]}"
        unsynced = {revision for line in lines for revision in line["unsynced"]}  # type: ignore[attr-defined]
        lost = set() if hf.store.embedded else unsynced
        if invented := sorted(
            revision for revision in set(seen) - there - lost if revision > min(there)
        ):
            yield f"{path.name} saw entries that do not exist: {invented[:5]}"


def _leases(folder: Path) -> Iterator[str]:
    tokens = Counter((one["name"], one["token"]) for one in read_log(folder, "leased"))
    if repeated := [one for one, times in tokens.items() if times > 1]:
        yield f"tokens were given twice: {repeated}"


def _gateway(folder: Path) -> Iterator[str]:
    """Accepted requests exist and have ended; none was delivered twice."""
    if not (folder / "gateways").exists():
        # The soak ran without a gateway.
        return
    client = GatewayClient(AGENT, root=folder / "gateways" / "default" / AGENT)
    accepted = {str(one["request"]): one["prompt"] for one in read_log(folder, "accepted")}
    for request_id in list(accepted)[-3:]:
        client.request(request_id, wait_s=_PATIENCE_S)
    requests = {one["request_id"]: one for one in client.requests(limit=10_000)}
    if lost := set(accepted) - set(requests):
        yield f"accepted requests are lost: {sorted(lost)[:5]}"
    path = folder / "asked"
    asked = path.read_text().splitlines() if path.exists() else []
    if twice := [text for text, times in Counter(asked).items() if times > 1]:
        yield f"requests were delivered twice: {twice[:5]}"
    for one in requests.values():
        if one["state"] == "completed" and one["payload"]["prompt"] not in asked:
            yield f"a request is completed that was never delivered: {one['request_id']}"
        if one["state"] not in ("completed", "failed"):
            yield f"a request did not end: {one['request_id']} is {one['state']}"
