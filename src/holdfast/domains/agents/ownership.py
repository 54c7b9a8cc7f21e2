"""Which generation owns an id: the rules of publish, refresh and remove, inside a transaction."""

from datetime import datetime

from msgspec import UNSET

from holdfast.domains.agents.records import AGENTS, Agent, bare
from holdfast.kernel.clock import render
from holdfast.kernel.errors import Fenced, Held, LeaseLost, RecordInvalid
from holdfast.kernel.holder import Survivor, survivors_named
from holdfast.kernel.store import ReadTx, Tx

Incarnation = tuple[str, str, int]
"""One publish of an agent: its id, generation and token."""


def topic_of(agent_id: str) -> str:
    """The topic that is notified when an id gets another owner or loses its record."""
    return f"agents/{agent_id}"


def incarnation_of(agent: Agent) -> Incarnation:
    return agent.agent_id, agent.generation_id, agent.token


def record_of(tx: ReadTx, agent_id: str) -> tuple[Agent | None, bool]:
    """The record of an id, and whether it is damaged. Raises SchemaTooNew: a record that a newer
    program wrote is not damaged.
    """
    try:
        row = tx.get(AGENTS, agent_id)
    except RecordInvalid:
        return None, True
    return None if row is None else row.record, False


def fresh_namesakes(tx: ReadTx, agent_id: str, agent_name: str, now: datetime) -> list[Agent]:
    rows = tx.find(AGENTS, "name", (bare(agent_name),), damaged=[])
    return [row.record for row in rows if row.key != agent_id and row.record.fresh(now)]


def check_owner(tx: Tx, agent_id: str, generation_id: str, token: int | None) -> Agent:
    """The record, if that generation still owns it. Raises LeaseLost when it does not, and Fenced
    when it was resumed with a token other than the given one.
    """
    row = tx.get(AGENTS, agent_id)
    current = None if row is None else row.record.generation_id
    if row is None or current != generation_id:
        now = "nobody has it" if current is None else f"generation {current} has taken over"
        raise LeaseLost(
            f"agent {agent_id} is no longer generation {generation_id}'s: {now}. Stand down",
            agent_id=agent_id,
            generation_id=generation_id,
            current=current,
        )
    if token is not None and token != row.record.token:
        raise Fenced(
            f"agent {agent_id} was resumed with token {row.record.token}, and token {token} no "
            "longer counts: stand down",
            agent_id=agent_id,
            token=token,
            current=row.record.token,
        )
    return row.record


def check_active(agent: Agent) -> None:
    """Refuse to renew an agent that its own system has stopped. Raises LeaseLost."""
    if agent.lifecycle is not UNSET and agent.lifecycle.ended:
        raise LeaseLost(
            f"{agent.agent_name} ({agent.agent_id}) is {agent.lifecycle_state} since "
            f"{render(agent.lifecycle.state_updated_at)}: publish it again, or start it again in "
            "its own system",
            agent_id=agent.agent_id,
            generation_id=agent.generation_id,
            state=agent.lifecycle_state,
        )


def check_resume(before: Agent | None, draft: Agent, now: datetime) -> None:
    """Refuse to resume a fresh generation from another tmux session. A generation has one session,
    so the caller has a copy of its manifest, or has made a mistake. Raises Held.
    """
    if (
        before is not None
        and before.generation_id == draft.generation_id
        and before.session_name != draft.session_name
        and before.fresh(now)
    ):
        raise Held(
            f"generation {before.generation_id} of {before.agent_name} runs in tmux session "
            f"{before.session_name or 'none'} and cannot be resumed from "
            f"{draft.session_name or 'none'}: leave the generation out to publish a new one",
            agent_id=before.agent_id,
            generation_id=before.generation_id,
            session_name=before.session_name,
        )


def check_name_is_free(tx: Tx, agent: Agent) -> None:
    """Refuse to renew an expired record whose exclusive name another agent has taken. Raises
    LeaseLost.
    """
    for other in fresh_namesakes(tx, agent.agent_id, agent.agent_name, tx.now):
        raise LeaseLost(
            f"{agent.agent_name} is agent {other.agent_id} by now: {agent.agent_id} let its lease "
            "run out. Stand down",
            agent_id=agent.agent_id,
            current=other.generation_id,
        )


def takeover_reason(
    other: Agent, now: datetime, gone: set[Incarnation], *, take_over: bool
) -> str | None:
    """Why another generation may be replaced; None if it may not."""
    if not other.fresh(now):
        return "expired"
    if incarnation_of(other) in gone:
        return "gone"
    return "operator" if take_over else None


def held_by(other: Agent, draft: Agent, now: datetime, survivors: list[Survivor]) -> Held:
    """The error for an id or a name that a fresh generation has."""
    left_s = (other.lease_expires_at - now).total_seconds()
    where = f"tmux session {other.session_name}" if other.session_name else "no tmux session"
    process = f"process {other.holder.pid}" if other.holder else "no process named"
    if survivors:
        process += (
            f" is dead, and processes that it started are alive: {survivors_named(survivors)}"
        )
    return Held(
        f"{other.agent_name} ({other.agent_id}) is published by generation {other.generation_id} "
        f"({where}, {process}) for {left_s:.0f} s more, and is not proved to be gone: end it, "
        "wait, or use --take-over if it is over",
        what="id" if other.agent_id == draft.agent_id else "name",
        agent_id=other.agent_id,
        agent_name=other.agent_name,
        generation_id=other.generation_id,
        lease_expires_at=render(other.lease_expires_at),
        session_name=other.session_name,
    )
