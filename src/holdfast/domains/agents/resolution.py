"""From a name or an id to the one live record, or to the reason why there is none.

An id is the authority: a fresh record under it is the answer. Else the name is looked up, and a
fresh record under it is the answer if it is the only one. What is stale never hides what is fresh.
"""

import enum
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from holdfast.domains.agents.records import AGENTS, Agent, id_of, inner
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


class Resolution(Plain, frozen=True, kw_only=True):
    """What was asked, and the record; or the reason why there is none, in a word and in words, and
    whom it concerns.
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


_SCOPE = (AGENTS,)

Looked = Agent | Corrupt | None
"""What lies under an id: a record, a damaged one, or nothing."""


class _Found(NamedTuple):
    """What lies under the id and, unless that is the answer, the records of the name or, if there
    are none, what lies under the id that follows from it. All at one moment.
    """

    by_id: Looked
    now: datetime
    named: Sequence[Agent] = ()
    derived: Looked = None


def resolve(store: Store, asked: str, prefix: str) -> Resolution:
    """Look up a name or an id. Raises InvalidName for what can be neither."""
    bare_name = inner(asked, "agent name or id")
    # It may be too long for a name, and still have been an id.
    name = prefix + bare_name
    found = store.read(lambda tx: _find(tx, asked, bare_name, name), scope=_SCOPE)
    if isinstance(found.by_id, Agent) and found.by_id.fresh(found.now):
        return Resolution(asked=asked, record=found.by_id)
    fresh = [agent for agent in found.named if agent.agent_name == name and agent.fresh(found.now)]
    if len(fresh) == 1:
        return Resolution(asked=asked, record=fresh[0])
    if fresh:
        return _ambiguous(asked, name, fresh)
    return _stale(asked, name, found)


def _find(tx: ReadTx, asked: str, bare_name: str, name: str) -> _Found:
    now, by_id = tx.now, _get(tx, asked)
    if isinstance(by_id, Agent) and by_id.fresh(now):
        return _Found(by_id, now)
    # A damaged one could have any name, for all that some stores know; only its id says whether it
    # is meant.
    named = [row.record for row in tx.find(AGENTS, "name", (bare_name,), damaged=[])]
    return _Found(by_id, now, named, None if named else _get(tx, id_of(name)))


def _get(tx: ReadTx, key: str) -> Looked:
    try:
        row = tx.get(AGENTS, key)
    except Corrupt as damage:
        return damage
    return None if row is None else row.record


def _ambiguous(asked: str, name: str, fresh: Sequence[Agent]) -> Resolution:
    ids = tuple(agent.agent_id for agent in fresh)
    detail = (
        f"{name} is the name of {counted(len(ids), 'live agent')}: say which by its id: "
        f"{', '.join(ids)}"
    )
    return Resolution(asked=asked, reason=Reason.AMBIGUOUS, detail=detail, agent_ids=ids)


def _stale(asked: str, name: str, found: _Found) -> Resolution:
    """Why nothing fresh was found: the first thing that could have been it says."""
    for other in found.named:
        if other.fresh(found.now):
            return _other_name(asked, name, other)
    candidates: list[Looked] = [found.by_id, *found.named, found.derived]
    for one in candidates:
        if isinstance(one, Corrupt):
            return _damaged(asked, one)
        if one is not None and not one.fresh(found.now):
            ended = (
                f"{one.agent_name} ({one.agent_id}) gave no sign of life since its lease ended at"
            )
            detail = (
                f"{ended} {render(one.lease_expires_at)}: start it again, or `holdfast agents "
                "refresh` it if it lives"
            )
            return Resolution(
                asked=asked, reason=Reason.EXPIRED, detail=detail, agent_ids=(one.agent_id,)
            )
        if one is not None:
            return _other_name(asked, name, one)
    detail = f"there is no agent {asked}: `holdfast agents list` shows those there are"
    return Resolution(asked=asked, reason=Reason.MISSING, detail=detail)


def _other_name(asked: str, name: str, other: Agent) -> Resolution:
    detail = (
        f"the agent that could be {name} is published as {other.agent_name} ({other.agent_id}): "
        "say its id, or set "
        "agents.prefix if all are named so"
    )
    return Resolution(
        asked=asked, reason=Reason.OTHER_NAME, detail=detail, agent_ids=(other.agent_id,)
    )


def _damaged(asked: str, damage: Corrupt) -> Resolution:
    reason = Reason.MALFORMED if damage.fields.get("malformed") else Reason.SCHEMA_INVALID
    ids = (str(damage.fields["key"]),) if "key" in damage.fields else ()
    return Resolution(asked=asked, reason=reason, detail=damage.message, agent_ids=ids)
