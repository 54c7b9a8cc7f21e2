"""Followers of the journal, and the watcher that looks at the records all the time."""

import os

from holdfast.domains.agents.records import AGENTS
from holdfast.domains.network.address import normal_ip, normal_mac
from holdfast.kernel.store import BEGINNING
from holdfast.primitives.holds import HOLDS
from holdfast.primitives.locks.records import LOCKS, Mode, lock_in
from holdfast.runtime.connection import Holdfast
from proof.soak.child import Child, read_log

_UNSYNCED = ("request.delivered", "gateway.agent_unavailable", "gateway.agent_returned")
"""Entries of changes that are not durable: a killed database may lose them after a follower saw
them.
"""
_seen: dict[str, int] = {}
"""The last token that the watcher saw of each agent."""


def follower(child: Child, hf: Holdfast) -> bool:
    """Logs each revision that it sees together with the cursor behind it, in one write, so that it
    continues exactly there.
    """
    log = f"followed-{child.part}"
    before = read_log(child.folder, log)
    cursor = str(before[-1]["cursor"]) if before else BEGINNING
    _mend(child, log)
    last = 0
    for batch in hf.log.follow(cursor, timeout_s=1.0):
        revisions = [entry.revision for entry in batch.entries]
        unsynced = [entry.revision for entry in batch.entries if entry.kind in _UNSYNCED]
        child.tell(log, revisions=revisions, unsynced=unsynced, cursor=batch.cursor)
        child.did()
        last = len(revisions)
        cursor = batch.cursor
    return not child.draining or last > 0


def _mend(child: Child, log: str) -> None:
    """Remove a torn line of a killed follower."""
    path = child.folder / log
    if path.exists():
        whole = path.read_bytes().rpartition(b"\n")
        if whole[2]:
            os.truncate(path, len(whole[0]) + 1)


def watcher(child: Child, hf: Holdfast) -> bool:
    """Checks one snapshot after the other for what must always be true."""
    _locks(child, hf)
    _holds(child, hf)
    _agents(child, hf)
    _hosts(child, hf)
    child.did()
    child.pause(0.5)
    return not child.draining


def _locks(child: Child, hf: Holdfast) -> None:
    rows = hf.store.read(lambda tx: tx.range(LOCKS), scope=[LOCKS])
    for row in rows:
        holds = lock_in(row).holds
        alone = [hold for hold in holds if hold.mode is Mode.EXCLUSIVE]
        if alone and len({hold.by for hold in holds}) > 1:
            child.wrong(
                f"{row.key} is held by {[hold.by for hold in holds]}, and by {alone[0].by} alone"
            )
        if len({hold.token for hold in holds}) != len(holds):
            child.wrong(f"two grants of {row.key} have one token: {[hold.token for hold in holds]}")


def _holds(child: Child, hf: Holdfast) -> None:
    for row in hf.store.read(lambda tx: tx.range(HOLDS), scope=[HOLDS]):
        names = [hold.by for hold in row.record.holds]
        if len(set(names)) != len(names) or not names:
            child.wrong(f"{row.key} counts one holder twice, or none: {names}")


def _agents(child: Child, hf: Holdfast) -> None:
    for row in hf.store.read(lambda tx: tx.range(AGENTS), scope=[AGENTS]):
        if row.record.token < _seen.get(row.key, 0):
            child.wrong(
                f"the token of {row.key} went back: {row.record.token} after {_seen[row.key]}"
            )
        _seen[row.key] = row.record.token


def _hosts(child: Child, hf: Holdfast) -> None:
    infos = hf.network.list_all_hosts()
    for field, normal in (("primary_ip", normal_ip), ("mac_address", normal_mac)):
        if len({normal(info[field]) for info in infos.values()}) != len(infos):
            child.wrong(f"two hosts have one {field}: {infos}")
