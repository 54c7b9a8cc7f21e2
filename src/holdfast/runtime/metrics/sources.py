"""The metrics of a connection as the text that Prometheus scrapes: its store, and the gateways and
followers of this machine. A part that cannot be read says so, and does not hide the others.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from holdfast.adapters.gateway_client import GatewayClient
from holdfast.domains.gateway import GatewayStatus
from holdfast.domains.network import Registry
from holdfast.kernel.clock import SystemClock
from holdfast.kernel.errors import HoldfastError, LockTimeout, NotFound, Unavailable
from holdfast.kernel.limits import (
    METRICS_ASK_S,
    METRICS_GATEWAYS_MAX,
    METRICS_PROBE_S,
    METRICS_RESOURCES_MAX,
)
from holdfast.kernel.store import Damage
from holdfast.kernel.text import installing
from holdfast.primitives.locks import Locks
from holdfast.runtime.configuration import gateway_root
from holdfast.runtime.connection import Holdfast
from holdfast.runtime.host_process import host_of
from holdfast.runtime.metrics import families
from holdfast.stores.durations import measured

if TYPE_CHECKING:
    from prometheus_client import Metric

CONTENT_TYPE = "text/plain; version=0.0.4"
"""The content type for a server; the encoding is UTF-8."""

_log = logging.getLogger("holdfast.metrics")
_WITHOUT_STORE = ("store", "gateways")
"""The parts that ask nothing of the store."""
_AT_ONCE = 16
_WITHIN_S = 3 * METRICS_ASK_S


class Metrics:
    """The metrics of one connection, whose store is timed from here on. Keep it: it remembers which
    resources have samples of their own.

    It changes nothing but this process's own counts of locks, which it adds to the store's.
    """

    def __init__(self, hf: Holdfast, *, version: str) -> None:
        self._hf = hf
        self._version = version
        self._times = measured(hf.store)
        self._named = families.NamedResources(METRICS_RESOURCES_MAX)

    def text(self) -> str:
        """Everything in the text format that Prometheus scrapes.

        Raises Unavailable when the extra is not installed, and nothing else: a store that does not
        answer is a value.
        """
        _need_library()
        started_s = time.perf_counter()
        probe, answers = self._probe()
        metrics: list[Metric] = []
        parts: dict[str, bool] = {}
        for name, read in self._parts(probe).items():
            parts[name] = False
            if not answers and name not in _WITHOUT_STORE:
                continue
            try:
                metrics += list(read())
                parts[name] = True
            except (HoldfastError, OSError) as error:
                _log.warning("no metrics of part=%s: %s", name, getattr(error, "message", error))
                # What keeps one part waiting for its whole time limit would keep the next too.
                answers = answers and not isinstance(error, Unavailable)
        metrics.append(families.parts_up(parts))
        metrics.append(
            families.gauge(
                "holdfast_metrics_seconds",
                "How long it took to gather these.",
                time.perf_counter() - started_s,
            )
        )
        return _text_of(metrics)

    def _parts(self, probe: families.Probe) -> dict[str, Callable[[], Iterable[Metric]]]:
        hf = self._hf
        return {
            "store": lambda: [*families.of_store(probe, self._times.taken()), self._info()],
            "locks": lambda: families.of_locks(
                hf.locks.statistics(own=probe.up), hf.locks.list_held(), self._named
            ),
            "registry": lambda: families.of_registry(hf.network.counts()),
            "jobs": self._jobs,
            "questions": self._questions,
            "agents": self._agents,
            "workflows": lambda: families.of_workflows(hf.workflows.snapshot()),
            "gateways": self._gateways,
            "journal": self._journal,
        }

    def _probe(self) -> tuple[families.Probe, bool]:
        """The result of an empty transaction; and whether the store answers at all, so that the
        parts may ask it.
        """
        started_s = time.perf_counter()
        up, made, answers = False, True, True
        try:
            self._hf.store.transact(lambda tx: None, scope=[], timeout_s=METRICS_PROBE_S)  # noqa: ARG005 - it does nothing
            up = True
        except LockTimeout:
            # Another writer blocks this write. Readers are not blocked.
            pass
        except NotFound:
            # There is no store yet, which reads as an empty one.
            made = False
        except HoldfastError as error:
            answers = False
            _log.warning("the store does not answer: %s", error.message)
        return families.Probe(up, made, time.perf_counter() - started_s), answers

    def _info(self) -> Metric:
        labels = [self._version, self._hf.store.kind, self._hf.store.namespace]
        names = ["version", "store", "namespace"]
        return families.gauges("holdfast_info", "What is measured here.", names, [(labels, 1)])

    def _jobs(self) -> Iterator[Metric]:
        events = self._hf.job_events
        unsent = events.unsent_count()
        sendable = bool(unsent) and events.sendable(os.environ)
        return families.of_jobs(self._hf.jobs.counts(), unsent, sendable=sendable)

    def _agents(self) -> Iterator[Metric]:
        damaged: Damage = []
        agents = self._hf.agents.list_agents(damaged=damaged)
        return families.of_agents(agents, len(damaged), self._hf.store.now())

    def _gateways(self) -> Iterator[Metric]:
        names = self._hf.gateways()
        readings = asked_gateways(self._hf, names[:METRICS_GATEWAYS_MAX])
        # By this machine's clock, as the gateways are on it: the store may be away.
        unasked = max(len(names) - METRICS_GATEWAYS_MAX, 0)
        return families.of_gateways(readings, unasked, host_of(self._hf), SystemClock().now())

    def _questions(self) -> Iterator[Metric]:
        asked = [event.timestamp for _, event in self._hf.job_events.waiting()]
        return families.of_questions(asked, self._hf.store.now())

    def _journal(self) -> Iterator[Metric]:
        hf, lags = self._hf, {}
        if hf.job_log is not None:
            lags["job_log"] = hf.job_log.lag(hf.log)
        if (swaps := hf.workflows.swap_log_lag()) is not None:
            lags["swap_log"] = swaps
        return families.of_journal(
            lags, hf.log.oldest(), hf.settings.journal.keep_s, hf.store.now()
        )


def exposition(locks: Locks, registry: Registry) -> str:
    """The metrics of locks and registry alone. Raises Unavailable when the extra is not
    installed.
    """
    _need_library()
    locks_ = families.of_locks(locks.statistics(), locks.list_held())
    return _text_of([*locks_, *families.of_registry(registry.counts())])


def without_store() -> str:
    """The metrics of a store that cannot be opened. Raises Unavailable when the extra is not
    installed.
    """
    _need_library()
    return _text_of([families.store_up(False), families.parts_up({"store": False})])


def _need_library() -> None:
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise Unavailable(
            f"metrics for Prometheus need a library that is not installed: {installing('server')}",
            outcome="none",
        ) from None


def _text_of(metrics: Sequence[Metric]) -> str:
    from prometheus_client import CollectorRegistry, generate_latest

    class Collector:
        def collect(self) -> Sequence[Metric]:
            return metrics

    collected = CollectorRegistry()
    collected.register(Collector())
    return generate_latest(collected).decode()


def asked_gateways(hf: Holdfast, names: Sequence[str]) -> list[families.GatewayReading]:
    """The state of these gateways. Several are asked at a time, and one that hangs is not waited
    for.
    """
    mutex, waiting = threading.Lock(), list(names)
    found = {name: families.GatewayReading(name, False, None) for name in names}

    def ask() -> None:
        while True:
            with mutex:
                if not waiting:
                    return
                name = waiting.pop()
            reading = _ask(hf, name)
            with mutex:
                found[name] = reading

    # Not a pool: Python waits for the threads of a pool when the program ends.
    threads = [
        threading.Thread(target=ask, daemon=True, name="holdfast-asking") for _ in names[:_AT_ONCE]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_WITHIN_S)
    with mutex:
        waiting.clear()
        return [found[name] for name in names]


def _ask(hf: Holdfast, name: str) -> families.GatewayReading:
    try:
        client = GatewayClient(
            name, root=gateway_root(hf.settings, name), timeout_s=METRICS_ASK_S, tries=1
        )
        status = msgspec.convert(client.status(), GatewayStatus)
    except (HoldfastError, msgspec.ValidationError, OSError):
        return families.GatewayReading(name, False, None)
    return families.GatewayReading(name, status.gateway_health == "healthy", status)
