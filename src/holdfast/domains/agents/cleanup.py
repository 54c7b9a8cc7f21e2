"""What is left behind, and what of it may go.

The rule is `verdict`, and pure. Records are looked at through the store. Where records are files,
folders can be left without one, or be something else: that side is the port `Debris` of the kernel,
which a store that has folders serves.
"""

import enum
from collections.abc import Callable
from datetime import datetime

from holdfast.domains.agents.ownership import topic_of
from holdfast.domains.agents.records import AGENTS, Agent
from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import Corrupt, HoldfastError, InvalidValue, SchemaTooNew
from holdfast.kernel.limits import RETENTION_JUMP_BELIEVED_S
from holdfast.kernel.space import rows
from holdfast.kernel.store import Damage, Debris, Leftover, ReadTx, Store, Tx
from holdfast.primitives.journal import Journal
from holdfast.primitives.steady_clock import steady_clock

Gone = Callable[[Agent], bool]


class Why(enum.StrEnum):
    """What was found, and so why it goes or stays."""

    DAMAGED = "damaged"
    EXPIRED = "expired"
    GONE = "gone"
    NO_RECORD = "no_record"
    FRESH = "fresh"
    IN_GRACE = "in_grace"
    TOO_NEW = "too_new"
    LINK = "link"
    UNREADABLE = "unreadable"
    CHANGED = "changed"


REMOVED_FOR = frozenset({Why.DAMAGED, Why.EXPIRED, Why.GONE, Why.NO_RECORD, Why.LINK})
"""For which reasons something goes; for every other it stays."""


class Item(Plain, frozen=True, kw_only=True):
    """One thing that was looked at."""

    agent_id: str
    why: Why
    detail: str = ""


class Report(Plain, frozen=True, kw_only=True):
    """What a cleanup did: planned (all of it, in a dry run as well), and of that removed and
    failed; and preserved.
    """

    dry_run: bool
    planned: tuple[Item, ...]
    removed: tuple[Item, ...]
    preserved: tuple[Item, ...]
    failed: tuple[Item, ...]


def verdict(
    found: Agent | Corrupt | Leftover, now: datetime, grace_s: float, gone: Gone | None
) -> Why:
    """What is to be said of one thing that was found."""
    if isinstance(found, SchemaTooNew):
        return Why.TOO_NEW
    if isinstance(found, Corrupt):
        return Why.DAMAGED
    if isinstance(found, Leftover):
        # A publisher may be between making the folder and putting the record into it.
        return (
            Why.IN_GRACE if found.kind == "no_record" and found.age_s < grace_s else Why(found.kind)
        )
    if found.fresh(now):
        return Why.GONE if gone is not None and gone(found) else Why.FRESH
    return Why.EXPIRED if (now - found.lease_expires_at).total_seconds() > grace_s else Why.IN_GRACE


def clean(
    store: Store,
    journal: Journal,
    debris: Debris | None,
    *,
    grace_s: float,
    dry_run: bool,
    gone: Gone | None,
    cleared: Callable[[Agent], None],
) -> Report:
    """Look at everything and, unless it is a dry run, remove what may go. `cleared` is told of each
    agent whose record went. See `Agents.cleanup`.
    """
    # TOML and the command line can say nan and inf.
    if not 0 <= grace_s < float("inf"):
        raise InvalidValue(
            f"a grace of {grace_s} s is not possible: give 0 or more seconds", field="grace_s"
        )
    steady_clock(store).look()
    looked = _looked(_records(store, grace_s, gone), _leftovers(store, debris, grace_s))
    planned = [item for item in looked if item.why in REMOVED_FOR]
    preserved = [item for item in looked if item.why not in REMOVED_FOR]
    removed: list[Item] = []
    failed: list[Item] = []
    for item in [] if dry_run else planned:
        try:
            if _remove(store, journal, debris, item, grace_s, gone, cleared):
                removed.append(item)
            else:
                preserved.append(
                    Item(agent_id=item.agent_id, why=Why.CHANGED, detail="it changed meanwhile")
                )
        except HoldfastError as error:
            failed.append(Item(agent_id=item.agent_id, why=item.why, detail=error.message))
    parts = {"planned": planned, "removed": removed, "preserved": preserved, "failed": failed}
    return Report(dry_run=dry_run, **{name: tuple(items) for name, items in parts.items()})


def _looked(records: list[Item], leftovers: list[Item]) -> list[Item]:
    """All that was found, each once: what is behind a link, or in a closed folder, is no damaged
    record of ours.
    """
    others = {item.agent_id for item in leftovers if item.why in (Why.LINK, Why.UNREADABLE)}
    return [
        item for item in records if item.why is not Why.DAMAGED or item.agent_id not in others
    ] + leftovers


def _records(store: Store, grace_s: float, gone: Gone | None) -> list[Item]:
    def look(tx: ReadTx) -> tuple[list[Agent], Damage, datetime]:
        damaged: Damage = []
        found = [row.record for row in tx.range(AGENTS, damaged=damaged)]
        return found, damaged, _now(store, tx.now)

    agents, damaged, now = store.read(look, scope=[AGENTS])
    items = [
        _item(agent.agent_id, verdict(agent, now, grace_s, gone), agent.agent_name)
        for agent in agents
    ]
    return items + [
        _item(str(one.fields.get("key", "")), verdict(one, now, grace_s, None), one.message)
        for one in damaged
    ]


def _now(store: Store, now: datetime) -> datetime:
    """The store's clock, by which an agent's lease is over: a record is removed for it, so it must
    be long over.
    """
    return steady_clock(store).believed(now, after_s=RETENTION_JUMP_BELIEVED_S)


def _leftovers(store: Store, debris: Debris | None, grace_s: float) -> list[Item]:
    found = [] if debris is None else debris.leftovers(AGENTS)
    return [
        _item(one.key, verdict(one, _now(store, store.now()), grace_s, None), "") for one in found
    ]


def _item(agent_id: str, why: Why, detail: str) -> Item:
    return Item(agent_id=agent_id, why=why, detail=detail)


def _remove(
    store: Store,
    journal: Journal,
    debris: Debris | None,
    item: Item,
    grace_s: float,
    gone: Gone | None,
    cleared: Callable[[Agent], None],
) -> bool:
    """Remove one thing if it is still as it was found."""
    if item.why in (Why.NO_RECORD, Why.LINK):
        return debris is not None and debris.remove_leftover(
            AGENTS, item.agent_id, older_than_s=grace_s
        )
    # A process that is dead stays dead, so this may be asked outside; what is asked inside is
    # whether it is still that one.
    seen = _get(store, item.agent_id)
    still_gone = isinstance(seen, Agent) and gone is not None and gone(seen)

    def body(tx: Tx) -> Agent | Corrupt | None:
        try:
            row = tx.get(AGENTS, item.agent_id)
            found: Agent | Corrupt | None = None if row is None else row.record
        except Corrupt as damage:
            found = damage
        if found is None:
            return None
        same = isinstance(found, Agent) and isinstance(seen, Agent) and _mark(found) == _mark(seen)
        if (
            verdict(found, _now(store, tx.now), grace_s, lambda _: still_gone and same)
            not in REMOVED_FOR
        ):
            return None
        tx.delete(AGENTS, item.agent_id)
        name = {"agent_name": found.agent_name} if isinstance(found, Agent) else {}
        journal.append(
            tx, kind="agent.cleaned", subject=item.agent_id, data={**name, "why": item.why.value}
        )
        tx.notify(topic_of(item.agent_id))
        return found

    removed = store.transact(body, scope=[rows(AGENTS)])
    if isinstance(removed, Agent):
        cleared(removed)
    return removed is not None


def _mark(agent: Agent) -> tuple[str, int]:
    return agent.generation_id, agent.token


def _get(store: Store, agent_id: str) -> Agent | Corrupt | None:
    try:
        row = store.get(AGENTS, agent_id)
    except Corrupt as damage:
        return damage
    return None if row is None else row.record
