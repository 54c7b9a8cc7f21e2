"""The registry of agents: each change is one transaction, and its journal entry commits with it."""

import uuid
from collections.abc import Callable
from datetime import datetime
from functools import partial

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from holdfast.domains.agents import control, houmao_record, liveness, ownership, resolution
from holdfast.domains.agents.cleanup import CleanupReport, CleanupRun
from holdfast.domains.agents.control import Target
from holdfast.domains.agents.houmao_record import HoumaoLifecycle
from holdfast.domains.agents.liveness import AgentLiveness
from holdfast.domains.agents.ownership import incarnation_of, record_of, topic_of
from holdfast.domains.agents.ports import AgentPorts
from holdfast.domains.agents.records import (
    AGENTS,
    Agent,
    GatewayAddress,
    Identity,
    Runtime,
    Terminal,
    bare,
    canonical,
    id_of,
    inner,
    lease_of,
    run_by_gateway,
)
from holdfast.domains.agents.resolution import Resolution
from holdfast.domains.agents.runs import AgentRun, find_run
from holdfast.domains.agents.validation import check_backend, check_draft, check_fields
from holdfast.kernel import lease as leases
from holdfast.kernel.clock import aware, render
from holdfast.kernel.errors import InvalidValue, NotFound
from holdfast.kernel.holder import Holder
from holdfast.kernel.limits import AGENT_GRACE_S, LIST_MAX
from holdfast.kernel.names import check_agent_name
from holdfast.kernel.settings import AgentSettings
from holdfast.kernel.space import rows
from holdfast.kernel.store import Damage, Debris, ReadTx, Store, Tx
from holdfast.primitives.journal import Journal
from holdfast.primitives.steady_clock import steady_clock


class Agents:
    """The agents on one store.

    Guaranteed: one generation at a time owns an id; a generation that lost it learns so at its next
    refresh and changes nothing. A resolved record has a fresh lease. Not guaranteed: that a fresh
    agent is alive (see `liveness`), or that an agent that lost its record stops.
    """

    def __init__(
        self,
        store: Store,
        journal: Journal,
        ports: Callable[[], AgentPorts],
        settings: AgentSettings | None = None,
        *,
        debris: Debris | None = None,
    ) -> None:
        self.settings = settings or AgentSettings()
        self.store = store
        self._steady = steady_clock(store)
        self._journal = journal
        self._make_ports = ports
        self._made_ports: AgentPorts | None = None
        self._debris = debris
        self._exclusive = self.settings.names == "exclusive"

    @property
    def _ports(self) -> AgentPorts:
        # Made when they are first needed: to resolve a name takes none of them.
        if self._made_ports is None:
            self._made_ports = replace(self._make_ports(), embedded=self.store.embedded)
        return self._made_ports

    def publish(
        self,
        name: str,
        *,
        backend: str,
        tool: str,
        manifest_path: str,
        session_name: str | None = None,
        session_root: str | None = None,
        agent_def_dir: str | None = None,
        gateway: GatewayAddress | None = None,
        holder: Holder | None = None,
        agent_id: str | None = None,
        generation_id: str | None = None,
        lease_s: float | None = None,
        lease_expires_at: datetime | None = None,
        take_over: bool = False,
    ) -> Agent:
        """Publish an agent and return its record, with the token of this publish.

        Without an `agent_id` the id is derived from the name; without a `generation_id` a new one
        is made. The published generation can be resumed from the same tmux session and gets a new
        token. `holder` is the agent's own process; it is never assumed to be the caller's. With
        `take_over` an operator states that the present generation is over.

        Raises Held when another generation has the id (or, where names are exclusive, the name),
        its lease is fresh and it is not proved to be gone. Raises InvalidName and InvalidValue,
        naming the field, before anything is stored: also for a lease that has ended already, and
        for an interactive agent without a tmux session.
        """
        canonical_name = canonical(name, self.settings.prefix)
        if agent_id is None:
            agent_id = id_of(canonical_name)
        else:
            inner(agent_id, "agent id")
        until = None if lease_expires_at is None else aware(lease_expires_at, "lease_expires_at")
        length_s = self.settings.lease_s if lease_s is None else lease_s
        now = self.store.now()
        lifecycle: HoumaoLifecycle | UnsetType = UNSET
        if self.settings.record_version == houmao_record.VERSION:
            houmao_record.check(backend, session_name)
            lifecycle = HoumaoLifecycle(
                state="active",
                relaunchable=False,
                state_updated_at=now,
                last_session_name=session_name,
            )
        granted = leases.grant(now, length_s)
        if until is not None and until <= now:
            raise InvalidValue(
                f"lease_expires_at {render(until)} is past already: give a later one",
                field="lease_expires_at",
            )
        # The transaction that publishes it gives it its token and its times.
        draft = check_draft(
            Agent(
                agent_id=agent_id,
                agent_name=canonical_name,
                generation_id=str(uuid.uuid4()) if generation_id is None else generation_id,
                identity=Identity(backend=check_backend(backend, session_name), tool=tool),
                runtime=Runtime(
                    manifest_path=manifest_path,
                    session_root=session_root,
                    agent_def_dir=agent_def_dir,
                ),
                terminal=None if session_name is None else Terminal(session_name=session_name),
                gateway=gateway,
                holder=holder,
                published_at=now,
                lease_expires_at=until or granted.expires_at,
                lease_s=length_s if until is None else None,
                lifecycle=lifecycle,
            )
        )
        self._steady.compare()
        # tmux and /proc are probed before the transaction, which must not wait for them. Inside, a
        # probe counts only for the very incarnation that it saw.
        others = self.store.read(
            lambda tx: [
                other
                for other in self._rivals(tx, draft, record_of(tx, draft.agent_id)[0])
                if other.fresh(self._steady.without_jump(tx.now))
            ],
            scope=[AGENTS],
        )
        gone = {incarnation_of(one) for one in others if liveness.is_gone(one, self._ports)}
        survivors = {
            incarnation_of(one): liveness.survivors_of(
                one, self._ports.processes, embedded=self.store.embedded
            )
            for one in others
        }

        def body(tx: Tx) -> Agent:
            agent = replace(
                draft,
                published_at=tx.now,
                lease_expires_at=until or leases.grant(tx.now, length_s).expires_at,
                token=tx.revision,
            )
            before, damaged = record_of(tx, draft.agent_id)
            now = self._steady.without_jump(tx.now)
            ownership.check_resume(before, draft, now)
            for other in self._rivals(tx, draft, before):
                why = ownership.takeover_reason(other, now, gone, take_over=take_over)
                if why is None:
                    processes = survivors.get(incarnation_of(other), [])
                    raise ownership.held_by(other, draft, tx.now, processes)
                taken = {"from_generation_id": other.generation_id, "why": why}
                self._append(
                    tx, "agent.taken_over", other, **taken, to_generation_id=draft.generation_id
                )
                if other.agent_id != draft.agent_id:
                    tx.delete(AGENTS, other.agent_id)
                    tx.notify(topic_of(other.agent_id))
            if damaged:
                to = draft.generation_id
                self._append(tx, "agent.taken_over", agent, why="damaged", to_generation_id=to)
            tx.put(AGENTS, agent.agent_id, agent)
            self._append(
                tx,
                "agent.published",
                agent,
                generation_id=agent.generation_id,
                token=agent.token,
                session_name=agent.session_name,
                lease_expires_at=render(agent.lease_expires_at),
            )
            tx.notify(topic_of(agent.agent_id))
            return agent

        return self.store.transact(body, scope=[AGENTS])

    def _rivals(self, tx: ReadTx, draft: Agent, before: Agent | None) -> list[Agent]:
        """Another generation of the id and, where names are exclusive, the fresh agents that have
        the name under another id.
        """
        rivals = []
        if before is not None and before.generation_id != draft.generation_id:
            rivals.append(before)
        if self._exclusive:
            now = self._steady.without_jump(tx.now)
            rivals += ownership.fresh_namesakes(tx, draft.agent_id, draft.agent_name, now)
        return rivals

    def refresh(
        self,
        agent_id: str,
        generation_id: str,
        *,
        token: int | None = None,
        lease_s: float | None = None,
    ) -> Agent:
        """Extend the lease of a generation, by its published length unless `lease_s` is given, and
        return the record. The lease never becomes shorter.

        Raises LeaseLost when another generation has taken over, or the record is gone: stand down.
        Raises Fenced when a `token` is given and the generation was resumed with another.
        """
        check_agent_name(agent_id, "agent id")

        def body(tx: Tx) -> Agent:
            agent = ownership.check_owner(tx, agent_id, generation_id, token)
            ownership.check_active(agent)
            if self._exclusive and not agent.fresh(tx.now):
                ownership.check_name_is_free(tx, agent)
            length_s = (agent.lease_s or self.settings.lease_s) if lease_s is None else lease_s
            renewed = leases.renew(lease_of(agent), tx.now, length_s)
            after = replace(agent, lease_expires_at=renewed.expires_at)
            tx.put(AGENTS, agent_id, after)
            until = render(after.lease_expires_at)
            self._append(
                tx, "agent.refreshed", after, generation_id=generation_id, lease_expires_at=until
            )
            return after

        # Where names are exclusive, the other records of the name are read too.
        return self.store.transact(body, scope=[AGENTS if self._exclusive else rows(AGENTS)])

    def attach_gateway(
        self, agent_id: str, generation_id: str, gateway: GatewayAddress | None
    ) -> Agent:
        """Record where the gateway of a generation listens; None: it has no gateway. Raises as
        `refresh` does.
        """
        checked = None if gateway is None else check_fields(gateway)
        check_agent_name(agent_id, "agent id")

        def body(tx: Tx) -> Agent:
            agent = ownership.check_owner(tx, agent_id, generation_id, None)
            if checked is not None:
                ownership.check_active(agent)
            after = replace(agent, gateway=checked)
            tx.put(AGENTS, agent_id, after)
            where = None if checked is None else f"{checked.host}:{checked.port}"
            self._append(
                tx, "agent.gateway_changed", after, generation_id=generation_id, gateway=where
            )
            return after

        return self.store.transact(body, scope=[rows(AGENTS)])

    def remove(self, agent_id: str, generation_id: str, *, token: int | None = None) -> None:
        """Delete the record of a generation. Raises NotFound when there is none, LeaseLost when it
        is another generation's, and Fenced as `refresh` does.
        """
        check_agent_name(agent_id, "agent id")

        def body(tx: Tx) -> None:
            if tx.get(AGENTS, agent_id) is None:
                raise NotFound(
                    f"there is no agent {agent_id}: it was removed already", agent_id=agent_id
                )
            agent = ownership.check_owner(tx, agent_id, generation_id, token)
            tx.delete(AGENTS, agent_id)
            self._append(tx, "agent.removed", agent, generation_id=generation_id)
            tx.notify(topic_of(agent_id))

        self.store.transact(body, scope=[rows(AGENTS)])

    def _append(self, tx: Tx, kind: str, agent: Agent, **data: object) -> None:
        self._journal.append(
            tx, kind=kind, subject=agent.agent_id, data={"agent_name": agent.agent_name, **data}
        )

    def get(self, agent_id: str) -> Agent:
        """The record of an id, fresh or not. Raises NotFound, and RecordInvalid."""
        row = self.store.get(AGENTS, check_agent_name(agent_id, "agent id"))
        if row is None:
            raise NotFound(
                f"there is no agent {agent_id}: `holdfast agents list` shows the known ones",
                agent_id=agent_id,
            )
        return row.record

    def list_agents(
        self, *, fresh: bool = False, limit: int = LIST_MAX, damaged: Damage | None = None
    ) -> list[Agent]:
        """The records by name, then id; with `fresh` only the fresh ones. A damaged record raises
        its error, unless `damaged` is a list that collects such errors.
        """
        _check_limit(limit)
        most = None if fresh else limit
        found = self.store.read(
            lambda tx: tx.find(AGENTS, "name", limit=most, damaged=damaged), scope=[AGENTS]
        )
        now = self.store.now()
        return [row.record for row in found if not fresh or row.record.fresh(now)][:limit]

    def count(self) -> int:
        """The number of records, fresh or not. Reads none of them."""
        return self.store.read(lambda tx: tx.count(AGENTS), scope=[AGENTS])

    def page(
        self,
        *,
        after: tuple[str, str] | None = None,
        limit: int = 100,
        damaged: Damage | None = None,
    ) -> list[Agent]:
        """Up to `limit` records in the order of `list_agents` that come after a name and id, which
        need not exist any more.

        Reads only what it returns. For `damaged` see `list_agents`. Raises InvalidValue for a
        negative limit.
        """
        _check_limit(limit)

        def look(tx: ReadTx) -> list[Agent]:
            if after is None:
                return [row.record for row in tx.find(AGENTS, "name", limit=limit, damaged=damaged)]
            place = (bare(after[0]), after[1])
            # An index is read from a name on, so the records of that name come again.
            again = tx.count(AGENTS, "name", place[:1])
            found = tx.find(AGENTS, "name", start=place[:1], limit=limit + again, damaged=damaged)
            behind = [row for row in found if (bare(row.record.agent_name), row.key) > place]
            return [row.record for row in behind[:limit]]

        return self.store.read(look, scope=[AGENTS])

    def in_tmux_session(self, name: str) -> list[Agent]:
        """The fresh records that name this tmux session, without the damaged ones. A record's claim
        alone proves nothing: see `control_target`.
        """
        now = self.store.now()
        return [one for one in control.claimants(self.store, name) if one.fresh(now)]

    def resolve(self, name_or_id: str) -> Resolution:
        """The live record of a name or an id, or the reason why there is none. Raises InvalidName
        for a text that can be neither.
        """
        return resolution.resolve(self.store, name_or_id, self.settings.prefix)

    def resolve_live_agent_record(self, name_or_id: str) -> Agent | None:
        """The live record of a name or an id; None when it is missing, malformed, invalid, expired,
        published under another name or ambiguous. `resolve` says which.
        """
        return self.resolve(name_or_id).record

    def control_target(
        self,
        name_or_id: str,
        agent_def_dir: str | None = None,
        *,
        needs_agent_def_dir: bool = False,
    ) -> Target:
        """What may be controlled under a name or an id. Checks everything that the record points
        at, and never falls back to another target.

        The process in the record must be alive, and it or one of its ancestors must be the process
        of a pane of the tmux session. A definition folder is needed when the record or the manifest
        names one, or `needs_agent_def_dir` is set; `agent_def_dir` overrides the record's.

        Raises NotFound with the `reason`, or Ambiguous, when there is no live record; else one of
        the errors under Untrusted, each with its own code.
        """
        return control.control_target(
            self.store,
            self._ports,
            name_or_id,
            self.settings.prefix,
            agent_def_dir=agent_def_dir,
            needs_agent_def_dir=needs_agent_def_dir,
        )

    def liveness(self, agent: Agent) -> AgentLiveness:
        """What is known of its lease, process, tmux session and gateway, each by itself."""
        return liveness.probe_parts(agent, self._ports, self.store.now())

    def last_run(self, name_or_id: str) -> AgentRun | None:
        """The last run of an agent, over or not, as far as it is kept here. Raises Ambiguous."""
        if (runs := self._ports.runs) is None:
            return None
        name = canonical(name_or_id, self.settings.prefix)
        known = self.resolve(name_or_id).known_id()
        return find_run(runs, id_of(name), known, name)

    def last_runs(self) -> list[AgentRun]:
        """The last run of every agent, by name, as far as they are kept here."""
        found = [] if self._ports.runs is None else self._ports.runs.listed()
        return sorted(found, key=lambda run: (bare(run.agent.agent_name), run.agent.agent_id))

    def note_run(self, run: AgentRun) -> None:
        """Keep how an agent was started, in place of its last run."""
        if self._ports.runs is not None:
            self._ports.runs.write(run)

    def note_end(self, agent: Agent, exit_status: int | None, screen: str) -> None:
        """Keep how a generation ended, unless another one was started since."""
        runs = self._ports.runs
        run = None if runs is None else runs.read(agent.agent_id)
        if runs is None or run is None or run.agent.generation_id != agent.generation_id:
            return
        runs.write(run.ended(exit_status, self.store.now(), screen))

    def cleanup(
        self, *, grace_s: float = AGENT_GRACE_S, dry_run: bool = False, tmux_check: bool = True
    ) -> CleanupReport:
        """Remove what dead agents left: damaged records, records that expired longer ago than the
        grace, folders without a record and, with `tmux_check`, records whose process is dead and
        whose tmux session is gone. `clear_after` runs for each removed record. What is kept of runs
        that ended long ago goes too.

        The step that removes a record checks it again, so no live record is lost to a publisher
        that comes in between. One failure does not stop the rest. Raises InvalidValue for a
        negative grace.
        """
        is_gone = partial(liveness.is_gone, ports=self._ports) if tmux_check else None
        cleanup = CleanupRun(
            self.store,
            self._journal,
            self._debris,
            self._ports.runs,
            grace_s=grace_s,
            is_gone=is_gone,
        )
        return cleanup.run(dry_run=dry_run, after_removal=self.clear_after)

    def clear_after(self, agent: Agent) -> None:
        """Remove the folder that Holdfast made for a killed agent, which could not do so itself.
        The folder stays if the agent may be alive, or if a person named it. The gateway that runs
        an agent needs it only while that has a record.
        """
        root = agent.runtime.session_root
        if root is not None and (run_by_gateway(agent) or liveness.is_dead(agent, self._ports)):
            self._ports.folders.remove(root, agent.agent_id, agent.generation_id)


def _check_limit(limit: int) -> None:
    if limit < 0:
        raise InvalidValue(f"limit is {limit}: give 0 or more", field="limit")
