"""From a name or an id to the one live record, or to the reason why there is none.

An id is the authority: a fresh record under it is the answer. Else the name is looked up, and a fresh record under it is the
answer if it is the only one. What is stale never hides what is fresh.
"""

import enum
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from holdfast.domains.agents.names import bare, canonical, id_of
from holdfast.domains.agents.record import AGENTS, Agent
from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import Ambiguous, Corrupt, NotFound
from holdfast.kernel.limits import ID_CHARS_MAX
from holdfast.kernel.names import check_agent_name
from holdfast.kernel.store import Damage, ReadTx, Store


class Reason(enum.Enum):
    """Why there is no live record."""

    MISSING = "missing"
    MALFORMED = "malformed"
    SCHEMA_INVALID = "schema_invalid"
    EXPIRED = "expired"
    OTHER_NAME = "other_name"
    AMBIGUOUS = "ambiguous"


class Resolution(Plain, frozen=True, kw_only=True):
    """What was asked, and the record; or the reason why there is none, in a word and in words, and whom it concerns."""

    asked: str
    record: Agent | None = None
    reason: Reason | None = None
    detail: str = ""
    agent_ids: tuple[str, ...] = ()

    def unwrap(self) -> Agent:
        """The record. Raises Ambiguous, or NotFound with the reason."""
        if self.record is not None:
            return self.record
        assert self.reason is not None
        kind = Ambiguous if self.reason is Reason.AMBIGUOUS else NotFound
        raise kind(self.detail, asked=self.asked, reason=self.reason.value, agent_ids=list(self.agent_ids))


class _Found(NamedTuple):
    """The records of one name, those of them that are damaged, and what lies under the id that follows from the name."""

    named: Sequence[Agent]
    damaged: Damage
    derived: Agent | Corrupt | None
    now: datetime


def resolve(store: Store, asked: str, prefix: str) -> Resolution:
    """Look up a name or an id. Raises InvalidName for what can be neither."""
    by_id = _get(store, check_agent_name(asked, "agent name or id"))
    if isinstance(by_id, Agent) and by_id.fresh(store.now()):
        return Resolution(asked=asked, record=by_id)
    # What is too long to be a name may still have been an id.
    name = canonical(asked, prefix) if len(prefix + bare(asked)) <= ID_CHARS_MAX else asked
    found = store.read(lambda tx: _find(tx, name), scope=[AGENTS])
    fresh = [agent for agent in found.named if agent.fresh(found.now) and agent.agent_name == name]
    if len(fresh) == 1:
        return Resolution(asked=asked, record=fresh[0])
    if fresh:
        return _ambiguous(asked, name, fresh)
    return _stale(asked, name, by_id, found)


def _get(store: Store, key: str) -> Agent | Corrupt | None:
    try:
        row = store.get(AGENTS, key)
    except Corrupt as damage:
        return damage
    return None if row is None else row.record


def _find(tx: ReadTx, name: str) -> _Found:
    damaged: Damage = []
    rows = tx.find(AGENTS, "name", (bare(name),), damaged=damaged)
    derived: Agent | Corrupt | None = None
    if not rows and not damaged:
        try:
            row = tx.get(AGENTS, id_of(name))
            derived = None if row is None else row.record
        except Corrupt as damage:
            derived = damage
    return _Found([row.record for row in rows], damaged, derived, tx.now)


def _ambiguous(asked: str, name: str, fresh: Sequence[Agent]) -> Resolution:
    ids = tuple(agent.agent_id for agent in fresh)
    detail = f"{name} is the name of {len(ids)} live agents: say which by its id: {', '.join(ids)}"
    return Resolution(asked=asked, reason=Reason.AMBIGUOUS, detail=detail, agent_ids=ids)


def _stale(asked: str, name: str, by_id: Agent | Corrupt | None, found: _Found) -> Resolution:
    """Why nothing fresh was found: the first thing that could have been it says."""
    for other in found.named:
        if other.fresh(found.now):
            return _other_name(asked, name, other)
    candidates = [by_id, *found.named, *found.damaged, found.derived]
    for one in candidates:
        if isinstance(one, Corrupt):
            return _damaged(asked, one)
        if one is not None and not one.fresh(found.now):
            ended = f"{one.agent_name} ({one.agent_id}) gave no sign of life since its lease ended at {one.lease_expires_at}"
            detail = f"{ended}: start it again, or `holdfast agents refresh` it if it lives"
            return Resolution(asked=asked, reason=Reason.EXPIRED, detail=detail, agent_ids=(one.agent_id,))
        if one is not None:
            return _other_name(asked, name, one)
    detail = f"there is no agent {asked}: `holdfast agents list` shows those there are"
    return Resolution(asked=asked, reason=Reason.MISSING, detail=detail)


def _other_name(asked: str, name: str, other: Agent) -> Resolution:
    detail = (
        f"the agent that could be {name} is published as {other.agent_name} ({other.agent_id}): say its id, or set "
        "agents.prefix if all are named so"
    )
    return Resolution(asked=asked, reason=Reason.OTHER_NAME, detail=detail, agent_ids=(other.agent_id,))


def _damaged(asked: str, damage: Corrupt) -> Resolution:
    reason = Reason.MALFORMED if damage.fields.get("malformed") else Reason.SCHEMA_INVALID
    ids = (str(damage.fields["key"]),) if "key" in damage.fields else ()
    return Resolution(asked=asked, reason=reason, detail=damage.message, agent_ids=ids)
