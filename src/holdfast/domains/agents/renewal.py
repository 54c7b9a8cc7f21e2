"""Renews an agent's lease for as long as it runs, and reports at once that the lease is lost."""

import math
import threading
import time
from collections.abc import Callable

from holdfast.domains.agents.ownership import incarnation_of, topic_of
from holdfast.domains.agents.records import AGENTS, Agent, lease_of
from holdfast.domains.agents.registry import Agents
from holdfast.kernel import lease as leases
from holdfast.kernel.errors import Lost
from holdfast.primitives.renewal import Keeper


class AgentRenewal:
    """Renews the lease of one generation, at a third of its length, until `close`.

    When another generation has taken over, `lost` is set and `on_lost` is called, once, in the
    renewal thread. A store that does not answer is no loss: the lease is renewed when the store is
    back. The caller must stop the agent; this class does not.
    """

    def __init__(
        self,
        agents: Agents,
        agent: Agent,
        *,
        lease_s: float | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        self.lost = threading.Event()
        self.id = agent.generation_id
        self.since_s = time.monotonic()
        self.ends_s = math.inf
        self._agents = agents
        self._agent = agent
        self._on_lost = on_lost
        self._lease_s = agents.settings.lease_s if lease_s is None else lease_s
        self._keeper: Keeper[AgentRenewal] = Keeper(
            agents.store,
            topic=lambda: topic_of(agent.agent_id),
            renew=self._renew,
            renew_every_s=leases.renew_every_s(self._lease_s),
        )
        self._keeper.add(self)

    def lose(self) -> None:
        """The keeper calls this when `_renew` found the lease lost."""
        self.lost.set()
        if self._on_lost is not None:
            self._on_lost()

    def close(self) -> None:
        """Stop renewing. The record stays until it is removed, or its lease ends."""
        self._keeper.close()

    def _renew(self, due: list["AgentRenewal"]) -> list["AgentRenewal"]:
        agent, store = self._agent, self._agents.store
        try:
            row = store.get(AGENTS, agent.agent_id)
            # A refresh of a record that is not ours any more raises Lost.
            if (
                row is None
                or incarnation_of(row.record) != incarnation_of(agent)
                or leases.due(lease_of(row.record), store.now(), self._lease_s)
            ):
                self._agents.refresh(
                    agent.agent_id, agent.generation_id, token=agent.token, lease_s=self._lease_s
                )
        except Lost:
            return due
        return []
