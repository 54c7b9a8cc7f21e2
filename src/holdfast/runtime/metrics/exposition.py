"""All metrics of a store and of this machine's part in it. No part can fail the others: one that
cannot be read says so.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from holdfast.domains.agents import Agents
from holdfast.domains.jobs import Jobs
from holdfast.domains.jobs.event_stream import JobEvents
from holdfast.domains.network import Registry
from holdfast.domains.workflows import Workflows
from holdfast.kernel.errors import HoldfastError, LockTimeout, NotFound, Unavailable
from holdfast.kernel.histogram import Histogram
from holdfast.kernel.limits import METRICS_PROBE_S, METRICS_RESOURCES_MAX
from holdfast.kernel.settings import Settings
from holdfast.kernel.store import Damage, Store
from holdfast.primitives.journal import Journal, Lag
from holdfast.primitives.locks import Locks
from holdfast.runtime.metrics.families import (
    GatewayReading,
    Named,
    Probe,
    of_agents,
    of_gateways,
    of_jobs,
    of_journal,
    of_locks,
    of_registry,
    of_store,
    of_workflows,
    store_up,
)
from holdfast.runtime.metrics.text import gauge, gauges, need_library, text_of

if TYPE_CHECKING:
    from prometheus_client import Metric

_log = logging.getLogger("holdfast.metrics")
_APART = ("store", "gateways")
"""The parts that ask nothing of the store."""


class Connected(Protocol):
    """The parts of a connection that are measured."""

    store: Store
    settings: Settings

    @property
    def log(self) -> Journal: ...
    @property
    def locks(self) -> Locks: ...
    @property
    def network(self) -> Registry: ...
    @property
    def jobs(self) -> Jobs: ...
    @property
    def job_events(self) -> JobEvents: ...
    @property
    def agents(self) -> Agents: ...
    @property
    def workflows(self) -> Workflows: ...


class Outside(Protocol):
    """What is measured beside the store."""

    def gateways(self) -> tuple[Sequence[GatewayReading], int]:
        """How the gateways of this machine stand, and how many were not asked."""
        ...

    def lags(self) -> Mapping[str, Lag]:
        """How far behind each follower of the journal is."""
        ...

    def sendable(self) -> bool:
        """Did anybody choose a broker for the events that wait?"""
        ...

    def times(self) -> Mapping[str, Histogram]:
        """How long the store's calls took in this process."""
        ...


class Exposition:
    """The metrics of one connection, asked for again and again. Changes nothing but this process's
    own counts of locks, which are added to the store's.
    """

    def __init__(self, connected: Connected, outside: Outside, *, version: str) -> None:
        self._hf = connected
        self._outside = outside
        self._version = version
        self._named = Named(METRICS_RESOURCES_MAX)

    def text(self) -> str:
        """Everything in the text format that Prometheus scrapes.

        Raises Unavailable when the extra is not installed, and nothing else: a store that is away
        is a value.
        """
        need_library()
        begun_s = time.perf_counter()
        probe, answers = self._probed()
        families: list[Metric] = []
        parts: dict[str, bool] = {}
        for name, read in self._parts(probe).items():
            if not answers and name not in _APART:
                parts[name] = False
                continue
            error = _read_into(families, name, read)
            parts[name] = error is None
            # What keeps one part waiting for its whole time limit would keep the next ones too.
            answers = answers and not isinstance(error, Unavailable)
        families.append(_up(parts))
        families.append(
            gauge(
                "holdfast_metrics_seconds",
                "How long it took to gather these.",
                time.perf_counter() - begun_s,
            )
        )
        return text_of(families)

    def _parts(self, probe: Probe) -> "dict[str, Callable[[], Iterable[Metric]]]":
        hf = self._hf
        return {
            "store": lambda: [*of_store(probe, self._outside.times()), self._info()],
            "locks": lambda: of_locks(
                hf.locks.statistics(own=probe.up), hf.locks.list_held(), self._named
            ),
            "registry": lambda: of_registry(hf.network.counts()),
            "jobs": self._jobs,
            "agents": self._agents,
            "workflows": lambda: of_workflows(hf.workflows.snapshot()),
            "gateways": lambda: of_gateways(*self._outside.gateways()),
            "journal": self._journal,
        }

    def _probed(self) -> tuple[Probe, bool]:
        """How long an empty transaction takes; and whether the store answers at all, so that others
        may ask it too.
        """
        begun_s = time.perf_counter()
        up, made, answers = False, True, True
        try:
            self._hf.store.transact(lambda tx: None, scope=[], timeout_s=METRICS_PROBE_S)  # noqa: ARG005 - it does nothing
            up = True
        except LockTimeout:
            # A writer is in the way, which hinders no reader.
            pass
        except NotFound:
            # There is no store yet, which reads as an empty one.
            made = False
        except HoldfastError as error:
            answers = False
            _log.warning("the store does not answer: %s", error.message)
        return Probe(up, made, time.perf_counter() - begun_s), answers

    def _jobs(self) -> "Iterator[Metric]":
        unsent = self._hf.job_events.unsent_count()
        return of_jobs(
            self._hf.jobs.counts(), unsent, sendable=bool(unsent) and self._outside.sendable()
        )

    def _agents(self) -> "Iterator[Metric]":
        damaged: Damage = []
        agents = self._hf.agents.list_agents(damaged=damaged)
        return of_agents(agents, len(damaged), self._hf.store.now())

    def _journal(self) -> "Iterator[Metric]":
        keep_s = self._hf.settings.journal.keep_s
        return of_journal(self._outside.lags(), self._hf.log.oldest(), keep_s, self._hf.store.now())

    def _info(self) -> "Metric":
        labels = [self._version, self._hf.store.kind, self._hf.store.namespace]
        return gauges(
            "holdfast_info",
            "What is measured here.",
            ["version", "store", "namespace"],
            [(labels, 1)],
        )


def without_store() -> str:
    """What is told of a store that cannot be opened. Raises Unavailable when the extra is not
    installed.
    """
    need_library()
    return text_of([store_up(False), _up({"store": False})])


def _read_into(
    families: "list[Metric]", name: str, read: "Callable[[], Iterable[Metric]]"
) -> Exception | None:
    """Read a part, or return what keeps it from being read."""
    try:
        families += list(read())
    except (HoldfastError, OSError) as error:
        _log.warning("no metrics of part=%s: %s", name, getattr(error, "message", error))
        return error
    return None


def _up(parts: Mapping[str, bool]) -> "Metric":
    values = (([name], up) for name, up in parts.items())
    return gauges(
        "holdfast_metrics_part_up", "Whether a part of these could be read.", ["part"], values
    )
