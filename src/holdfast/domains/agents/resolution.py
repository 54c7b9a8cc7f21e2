"""From a name or an id to the one live record, or to the reason why there is none.

A fresh record under the id is the answer. Else the name is looked up, and its fresh record is the
answer if it is the only one. A stale record never hides a fresh one.
"""

import enum
from collections.abc import Sequence
from datetime import datetime

from msgspec import UNSET, Struct

from holdfast.domains.agents.records import AGENTS, Agent, id_of, inner, stored_agent
from holdfast.kernel.clock import render
from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import Ambiguous, Corrupt, NotFound
from holdfast.kernel.store import ReadTx, Store
from holdfast.kernel.text import counted


class Reason(enum.StrEnum):
    """Why there is no live record."""

    MISSING = "missing"
    MALFORMED = "malformed"
    SCHEMA_INVALID = "schema_invalid"
    EXPIRED = "expired"
    OTHER_NAME = "other_name"
    AMBIGUOUS = "ambiguous"
    STOPPED = "stopped"


class Resolution(Plain, frozen=True, kw_only=True):
    """The name or id that was looked up (`asked`) and its record; or the reason why there is no
    live one, the same as a sentence, and the ids that are concerned.
    """

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
        raise kind(
            self.detail, asked=self.asked, reason=self.reason.value, agent_ids=list(self.agent_ids)
        )

    def known_id(self) -> str:
        """The id of the agent that could be meant, live or not; else what was asked. Raises
        Ambiguous.
        """
        if self.record is not None or self.reason is Reason.AMBIGUOUS:
            return self.unwrap().agent_id
        return self.agent_ids[0] if self.agent_ids else self.asked


class _Found(Struct, frozen=True):
    """One consistent read: what is stored under the id; if that is not a fresh record, the records
    of the name; and if there are none, what is stored under the id that is derived from the name.
    """

    by_id: Agent | Corrupt | None
    now: datetime
    named: Sequence[Agent] = ()
    derived: Agent | Corrupt | None = None


def resolve(store: Store, asked: str, prefix: str) -> Resolution:
    """Look up a name or an id. Raises InvalidName for a text that can be neither."""
    bare_name = inner(asked, "agent name or id")
    # Not checked by `canonical`: with the prefix it may be too long for a name, and still be an id.
    # Without a prefix, the name as it was typed comes first.
    name = prefix + bare_name if prefix else asked

    def look(tx: ReadTx) -> _Found:
        now, by_id = tx.now, stored_agent(tx, asked)
        if isinstance(by_id, Agent) and _lives(by_id, now):
            return _Found(by_id, now)
        # Some stores do not know the name of a damaged record: only its id tells if it is meant.
        named = [row.record for row in tx.find(AGENTS, "name", (bare_name,), damaged=[])]
        return _Found(by_id, now, named, None if named else stored_agent(tx, id_of(name)))

    found = store.read(look, scope=[AGENTS])
    if isinstance(found.by_id, Agent) and _lives(found.by_id, found.now):
        return Resolution(asked=asked, record=found.by_id)
    living = [agent for agent in found.named if _lives(agent, found.now)]
    fresh = [agent for agent in living if agent.agent_name == name]
    if not prefix and not fresh:
        # An agent that its own system named may have the prefix there, and need not.
        fresh = living
    if len(fresh) == 1:
        return Resolution(asked=asked, record=fresh[0])
    reason, detail, ids = _why_none(asked, name, fresh, found)
    return Resolution(asked=asked, reason=reason, detail=detail, agent_ids=tuple(ids))


def _lives(agent: Agent, now: datetime) -> bool:
    return agent.lifecycle_state == "active" and agent.fresh(now)


def _since(agent: Agent) -> datetime:
    """When the state in its record began."""
    return agent.published_at if agent.lifecycle is UNSET else agent.lifecycle.state_updated_at


def _why_none(
    asked: str, name: str, fresh: Sequence[Agent], found: _Found
) -> tuple[Reason, str, list[str]]:
    """The first record that could have been meant gives the reason."""
    if fresh:
        ids = [agent.agent_id for agent in fresh]
        detail = f"{name} is the name of {counted(len(ids), 'live agent')}: give an id"
        return Reason.AMBIGUOUS, f"{detail}: {', '.join(ids)}", ids
    # A fresh record under another prefix comes before all stale ones.
    candidates = [agent for agent in found.named if _lives(agent, found.now)]
    for one in [*candidates, found.by_id, *found.named, found.derived]:
        if isinstance(one, Corrupt):
            reason = Reason.MALFORMED if one.fields.get("malformed") else Reason.SCHEMA_INVALID
            return reason, one.message, [str(one.fields["key"])] if "key" in one.fields else []
        if one is None:
            continue
        who = f"{one.agent_name} ({one.agent_id})"
        if one.lifecycle_state != "active":
            detail = (
                f"{who} is {one.lifecycle_state} since {render(_since(one))}: start it again, here "
                "or in its own system"
            )
            return Reason.STOPPED, detail, [one.agent_id]
        if one.fresh(found.now):
            detail = (
                f"the agent that could be {name} is published as {who}: give its id, or set "
                "agents.prefix if all agents are named so"
            )
            return Reason.OTHER_NAME, detail, [one.agent_id]
        detail = (
            f"{who} gave no sign of life since its lease ended at {render(one.lease_expires_at)}: "
            "start it again, or `holdfast agents refresh` it if it is alive"
        )
        return Reason.EXPIRED, detail, [one.agent_id]
    detail = f"there is no agent {asked}: `holdfast agents list` shows the known ones"
    return Reason.MISSING, detail, []
