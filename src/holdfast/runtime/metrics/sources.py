"""Where metrics are wired: the gateways that are asked, the followers that are looked at, the store
that is timed.
"""

import os
import threading
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.adapters.gateway_client import GatewayClient
from holdfast.domains.gateway import Status
from holdfast.kernel.errors import HoldfastError
from holdfast.kernel.histogram import Histogram
from holdfast.kernel.limits import METRICS_ASK_S, METRICS_GATEWAYS_MAX
from holdfast.primitives.journal import Lag
from holdfast.runtime.connection import Holdfast
from holdfast.runtime.metrics import Exposition
from holdfast.runtime.metrics.families import GatewayReading
from holdfast.runtime.paths import gateway_root
from holdfast.stores.timing import measured

_AT_ONCE = 16
_WITHIN_S = 3 * METRICS_ASK_S


def metrics_of(hf: Holdfast, *, version: str) -> Exposition:
    """The metrics of a connection, whose store is timed from here on. Keep it: it remembers which
    resources have samples of their own.
    """
    return Exposition(hf, _Around(hf), version=version)


class _Around:
    """What is beside a connection."""

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self._times = measured(hf.store)

    def gateways(self) -> tuple[Sequence[GatewayReading], int]:
        names = self._hf.gateways()
        return asked_gateways(self._hf, names[:METRICS_GATEWAYS_MAX]), max(
            len(names) - METRICS_GATEWAYS_MAX, 0
        )

    def lags(self) -> Mapping[str, Lag]:
        lags = {}
        if self._hf.job_log is not None:
            lags["job_log"] = self._hf.job_log.lag(self._hf.log)
        if (swaps := self._hf.workflows.swap_log_lag()) is not None:
            lags["swap_log"] = swaps
        return lags

    def sendable(self) -> bool:
        return self._hf.job_events.sendable(os.environ)

    def times(self) -> Mapping[str, Histogram]:
        return self._times.taken()


def asked_gateways(hf: Holdfast, names: Sequence[str]) -> list[GatewayReading]:
    """How these gateways stand. Several are asked at a time and none is waited for long: one that
    hangs does not answer.
    """
    waiting, found, mutex = (
        list(names),
        {name: GatewayReading(name, False, None) for name in names},
        threading.Lock(),
    )

    def ask() -> None:
        while True:
            with mutex:
                if not waiting:
                    return
                name = waiting.pop()
            reading = _asked(hf, name)
            with mutex:
                found[name] = reading

    # Not a pool, which would be waited for when the program ends.
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


def _asked(hf: Holdfast, name: str) -> GatewayReading:
    try:
        client = GatewayClient(
            name, root=gateway_root(hf.settings, name), timeout_s=METRICS_ASK_S, tries=1
        )
        status = msgspec.convert(client.status(), Status)
    except (HoldfastError, msgspec.ValidationError, OSError):
        return GatewayReading(name, False, None)
    return GatewayReading(name, status.gateway_health == "healthy", status)
