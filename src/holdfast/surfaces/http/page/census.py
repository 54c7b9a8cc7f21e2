"""Agents and gateways, looked at no more often than they must be: a count of all agents reads all
of them, and a gateway may take its time, or for ever.
"""

import threading
import time
from concurrent.futures import Future, wait

from holdfast.kernel.errors import HoldfastError, NotFound
from holdfast.kernel.limits import PAGE_CENSUS_S, PAGE_GATEWAY_S, PAGE_GATEWAYS_MAX
from holdfast.operations.page.agents import AgentCensus, agent_census, name_of
from holdfast.operations.page.gateways import Document, GatewayLine, gateway_line
from holdfast.runtime.connection import Holdfast

_FRESH_S = 0.5


class AgentCounts:
    """The count of agents by state, of a few moments ago at most."""

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self._mutex = threading.Lock()
        self._census: AgentCensus | None = None
        self._at_s = 0.0

    def census(self) -> AgentCensus:
        """The count."""
        with self._mutex:
            if self._census is None or time.monotonic() - self._at_s > PAGE_CENSUS_S:
                began_s = time.monotonic()
                self._census = agent_census(self._hf.agents, self._hf.processes)
                # A count that took long is good for longer: it must not become all that the server
                # does.
                self._at_s = time.monotonic() + 5 * (time.monotonic() - began_s)
            return self._census


class GatewayStatuses:
    """The states of this machine's gateways. A silent one delays nobody twice."""

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self._mutex = threading.Lock()
        self._asked: dict[str, tuple[float, Future[Document | None]]] = {}

    def lines(self) -> list[GatewayLine]:
        """A line for each, by the agent's name."""
        names = self._hf.gateways()[:PAGE_GATEWAYS_MAX]
        new = [self._ask(name) for name in names]
        wait([future for future, begun in new if begun], timeout=PAGE_GATEWAY_S)
        return [self._line(name, future) for name, (future, _) in zip(names, new, strict=True)]

    def one(self, agent: str) -> tuple[GatewayLine, Document | None]:
        """One of them, and the status it gave.

        Raises NotFound when there is none of that agent on this machine.
        """
        if agent not in self._hf.gateways():
            raise NotFound(
                f"there never was a gateway of {agent} here: `holdfast gateway serve {agent}` "
                "starts one",
                agent=agent,
            )
        future, begun = self._ask(agent)
        if begun:
            wait([future], timeout=PAGE_GATEWAY_S)
        return self._line(agent, future), future.result() if future.done() else None

    def _line(self, agent: str, future: "Future[Document | None]") -> GatewayLine:
        name = name_of(self._hf.agents, agent)
        if future.done():
            return gateway_line(agent, future.result(), name=name)
        return gateway_line(agent, None, silent=True, name=name)

    def _ask(self, agent: str) -> "tuple[Future[Document | None], bool]":
        """What it answers, and whether it was asked only now.

        Whoever has not answered yet is not asked again.
        """
        with self._mutex:
            at_s, future = self._asked.get(agent, (0.0, None))
            if future is not None and (not future.done() or time.monotonic() - at_s < _FRESH_S):
                return future, False
            future = Future()
            self._asked[agent] = (time.monotonic(), future)
        threading.Thread(
            target=self._answer, args=(agent, future), name="holdfast-page", daemon=True
        ).start()
        return future, True

    def _answer(self, agent: str, future: "Future[Document | None]") -> None:
        try:
            future.set_result(self._hf.gateway(agent).status())
        except HoldfastError:
            # There never was one, or what it said makes no sense: it is shown as never served.
            future.set_result(None)
        except BaseException:
            future.set_result(None)
            raise
