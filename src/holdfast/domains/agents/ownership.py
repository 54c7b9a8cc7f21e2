"""Which generation has an id: the rules of publish, refresh and remove."""

from collections.abc import Iterator
from datetime import datetime

import msgspec
from msgspec.structs import replace

from holdfast.domains.agents import liveness
from holdfast.domains.agents.ports import Outside
from holdfast.domains.agents.records import AGENTS, Agent, Draft, Gateway, bare, lease_of
from holdfast.kernel import lease as leases
from holdfast.kernel.clock import render
from holdfast.kernel.errors import Fenced, Held, InvalidValue, LeaseLost, NotFound, RecordInvalid
from holdfast.kernel.holder import Survivor, survivors_named
from holdfast.kernel.settings import AgentSettings
from holdfast.kernel.space import rows
from holdfast.kernel.store import ReadTx, Store, Tx
from holdfast.primitives.journal import Journal
from holdfast.primitives.steady_clock import steady_clock

Mark = tuple[str, str, int]
"""One generation as it was seen: id, generation and token."""


def topic_of(agent_id: str) -> str:
    """What is notified when an id changes hands."""
    return f"agents/{agent_id}"


class Owning:
    """The registry's rules of ownership. `Agents` is what callers see of it."""

    def __init__(
        self, store: Store, journal: Journal, outside: Outside, settings: AgentSettings
    ) -> None:
        self._store = store
        self._steady = steady_clock(store)
        self._journal = journal
        self._outside = outside
        self._lease_s = settings.lease_s
        self._exclusive = settings.names == "exclusive"

    def publish(
        self, draft: Draft, *, lease_s: float | None, until: datetime | None, take_over: bool
    ) -> Agent:
        """Put the draft in its place, if nobody else who may live has it."""
        self._steady.look()
        others = self._in_the_way(draft)
        gone = {
            _mark(one)
            for one in others
            if liveness.is_gone(one, self._outside, embedded=self._store.embedded)
        }
        survivors = {_mark(one): self._survivors(one) for one in others if _mark(one) not in gone}

        def body(tx: Tx) -> Agent:
            agent = self._granted(tx, draft, lease_s, until)
            before, damaged = _present(tx, draft.agent_id)
            self._check_resume(before, draft, self._steady.believed(tx.now))
            for other in self._others(tx, draft, before):
                why = _reason(other, self._steady.believed(tx.now), gone, take_over=take_over)
                if why is None:
                    raise self._held(other, draft, tx.now, survivors.get(_mark(other), []))
                self._take_over(tx, other, draft, why)
            if damaged:
                facts = {"agent_name": draft.agent_name, "why": "damaged"}
                self._tell(
                    tx,
                    "agent.taken_over",
                    draft.agent_id,
                    **facts,
                    to_generation_id=draft.generation_id,
                )
            tx.put(AGENTS, agent.agent_id, agent)
            self._tell(tx, "agent.published", agent.agent_id, **_facts(agent))
            tx.notify(topic_of(agent.agent_id))
            return agent

        return self._store.transact(body, scope=[AGENTS])

    def refresh(
        self, agent_id: str, generation_id: str, *, token: int | None, lease_s: float | None
    ) -> Agent:
        """Extend a lease that is still that generation's."""

        def body(tx: Tx) -> Agent:
            agent = self._own(tx, agent_id, generation_id, token)
            if self._exclusive and not agent.fresh(tx.now):
                self._check_name_is_free(tx, agent)
            length_s = (agent.lease_s or self._lease_s) if lease_s is None else lease_s
            renewed = leases.renew(lease_of(agent), tx.now, length_s)
            after = replace(agent, lease_expires_at=renewed.expires_at)
            tx.put(AGENTS, agent_id, after)
            facts = {"agent_name": after.agent_name, "generation_id": generation_id}
            self._tell(tx, "agent.refreshed", agent_id, **facts, lease_expires_at=_end(after))
            return after

        # A name's other owners are looked at too where it has but one.
        return self._store.transact(body, scope=[AGENTS if self._exclusive else rows(AGENTS)])

    def attach(self, agent_id: str, generation_id: str, gateway: Gateway | None) -> Agent:
        """Write the gateway into a record that is still that generation's."""

        def body(tx: Tx) -> Agent:
            after = replace(self._own(tx, agent_id, generation_id, None), gateway=gateway)
            tx.put(AGENTS, agent_id, after)
            where = None if gateway is None else f"{gateway.host}:{gateway.port}"
            facts = {"agent_name": after.agent_name, "generation_id": generation_id}
            self._tell(tx, "agent.gateway_changed", agent_id, **facts, gateway=where)
            return after

        return self._store.transact(body, scope=[rows(AGENTS)])

    def remove(self, agent_id: str, generation_id: str, *, token: int | None) -> None:
        """Delete a record that is still that generation's."""

        def body(tx: Tx) -> None:
            if tx.get(AGENTS, agent_id) is None:
                raise NotFound(
                    f"there is no agent {agent_id}: it was removed already", agent_id=agent_id
                )
            agent = self._own(tx, agent_id, generation_id, token)
            tx.delete(AGENTS, agent_id)
            self._tell(
                tx,
                "agent.removed",
                agent_id,
                agent_name=agent.agent_name,
                generation_id=generation_id,
            )
            tx.notify(topic_of(agent_id))

        self._store.transact(body, scope=[rows(AGENTS)])

    def _in_the_way(self, draft: Draft) -> list[Agent]:
        """Those whose lease is fresh. They are looked at before the transaction, which must not
        wait for tmux.
        """

        def look(tx: ReadTx) -> list[Agent]:
            before, _ = _present(tx, draft.agent_id)
            return [
                other
                for other in self._others(tx, draft, before)
                if other.fresh(self._steady.believed(tx.now))
            ]

        return self._store.read(look, scope=[AGENTS])

    def _survivors(self, agent: Agent) -> list[Survivor]:
        return liveness.survivors_of(agent, self._outside.processes, embedded=self._store.embedded)

    def _others(self, tx: ReadTx, draft: Draft, before: Agent | None) -> Iterator[Agent]:
        """Whoever is in the way: another generation of the id and, where names are exclusive,
        whoever else has the name.
        """
        if before is not None and before.generation_id != draft.generation_id:
            yield before
        if self._exclusive:
            for row in tx.find(AGENTS, "name", (bare(draft.agent_name),), damaged=[]):
                if row.key != draft.agent_id and row.record.fresh(self._steady.believed(tx.now)):
                    yield row.record

    def _granted(
        self, tx: Tx, draft: Draft, lease_s: float | None, until: datetime | None
    ) -> Agent:
        if until is not None and until <= tx.now:
            raise InvalidValue(
                f"lease_expires_at {render(until)} is past already: give a lease that is to come",
                field="lease_expires_at",
            )
        length_s = self._lease_s if lease_s is None else lease_s
        lease = leases.grant(tx.now, length_s)
        return Agent(
            **msgspec.structs.asdict(draft),
            published_at=tx.now,
            lease_expires_at=lease.expires_at if until is None else until,
            token=tx.revision,
            lease_s=length_s if until is None else None,
        )

    def _check_resume(self, before: Agent | None, draft: Draft, now: datetime) -> None:
        """A generation is that of one tmux session: another one that claims it is a mistake, or a
        copy of its manifest.
        """
        session_name = None if draft.terminal is None else draft.terminal.session_name
        if (
            before is None
            or before.generation_id != draft.generation_id
            or before.session_name == session_name
        ):
            return
        if before.fresh(now):
            raise Held(
                f"generation {before.generation_id} of {before.agent_name} is that of tmux session "
                f"{before.session_name or 'none'} and is not resumed by {session_name or 'none'}: "
                "leave the generation out to "
                "publish a new one",
                agent_id=before.agent_id,
                generation_id=before.generation_id,
                session_name=before.session_name,
            )

    def _take_over(self, tx: Tx, other: Agent, draft: Draft, why: str) -> None:
        facts = {
            "agent_name": other.agent_name,
            "from_generation_id": other.generation_id,
            "why": why,
        }
        self._tell(
            tx, "agent.taken_over", other.agent_id, **facts, to_generation_id=draft.generation_id
        )
        if other.agent_id != draft.agent_id:
            tx.delete(AGENTS, other.agent_id)
            tx.notify(topic_of(other.agent_id))

    def _own(self, tx: Tx, agent_id: str, generation_id: str, token: int | None) -> Agent:
        row = tx.get(AGENTS, agent_id)
        if row is None or row.record.generation_id != generation_id:
            now_has = (
                "nobody has it"
                if row is None
                else f"generation {row.record.generation_id} has taken over"
            )
            raise LeaseLost(
                f"agent {agent_id} is no longer generation {generation_id}'s: {now_has}. Stand "
                "down",
                agent_id=agent_id,
                generation_id=generation_id,
                current=None if row is None else row.record.generation_id,
            )
        if token is not None and token != row.record.token:
            raise Fenced(
                f"agent {agent_id} was resumed since with token {row.record.token}, and {token} "
                "no longer counts: stand down",
                agent_id=agent_id,
                token=token,
                current=row.record.token,
            )
        return row.record

    def _check_name_is_free(self, tx: Tx, agent: Agent) -> None:
        for row in tx.find(AGENTS, "name", (bare(agent.agent_name),), damaged=[]):
            if row.key != agent.agent_id and row.record.fresh(tx.now):
                raise LeaseLost(
                    f"{agent.agent_name} is agent {row.key} by now: {agent.agent_id} let its "
                    "lease run out. Stand down",
                    agent_id=agent.agent_id,
                    current=row.record.generation_id,
                )

    def _held(self, other: Agent, draft: Draft, now: datetime, survivors: list[Survivor]) -> Held:
        what = "id" if other.agent_id == draft.agent_id else "name"
        left_s = (other.lease_expires_at - now).total_seconds()
        where = f"tmux session {other.session_name}" if other.session_name else "no tmux session"
        process = f"process {other.holder.pid}" if other.holder else "no process named"
        if survivors:
            process = (
                f"{process} is dead, and processes that it started live: "
                f"{survivors_named(survivors)}"
            )
        return Held(
            f"{other.agent_name} ({other.agent_id}) is published by generation "
            f"{other.generation_id} ({where}, {process}) for "
            f"{left_s:.0f} s more, and is not proved to be gone: end it, wait, or say --take-over "
            "if it is over",
            what=what,
            agent_id=other.agent_id,
            agent_name=other.agent_name,
            generation_id=other.generation_id,
            lease_expires_at=_end(other),
            session_name=other.session_name,
        )

    def _tell(self, tx: Tx, kind: str, agent_id: str, **data: object) -> None:
        self._journal.append(tx, kind=kind, subject=agent_id, data=data)


def _present(tx: ReadTx, agent_id: str) -> tuple[Agent | None, bool]:
    """What lies under an id, and whether it is damaged. What a newer program wrote is not: that
    comes through.
    """
    try:
        row = tx.get(AGENTS, agent_id)
    except RecordInvalid:
        return None, True
    return None if row is None else row.record, False


def _reason(other: Agent, now: datetime, gone: set[Mark], *, take_over: bool) -> str | None:
    """Why another generation may be replaced; None if it may not."""
    if not other.fresh(now):
        return "expired"
    if _mark(other) in gone:
        return "gone"
    return "operator" if take_over else None


def _mark(agent: Agent) -> Mark:
    return agent.agent_id, agent.generation_id, agent.token


def _end(agent: Agent) -> str:
    return render(agent.lease_expires_at)


def _facts(agent: Agent) -> dict[str, object]:
    return {
        "agent_name": agent.agent_name,
        "generation_id": agent.generation_id,
        "token": agent.token,
        "session_name": agent.session_name,
        "lease_expires_at": _end(agent),
    }
