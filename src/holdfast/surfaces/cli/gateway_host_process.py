"""The process that hosts the gateways of all agents of this machine."""

import gc
import signal
import threading

from holdfast.domains.gateway import AdapterSpec
from holdfast.kernel.settings import Settings
from holdfast.runtime.connection import Holdfast, connected
from holdfast.runtime.gateway_identity import Served
from holdfast.runtime.host_process import PROGRAM
from holdfast.runtime.hosted_gateways import HostedGateways
from holdfast.surfaces.cli.gateway_process import GatewayRun
from holdfast.surfaces.cli.output import answer
from holdfast.surfaces.cli.server_process import allow_descriptors


def hosted_gateways(hf: Holdfast, *, program: str, stand_by: bool) -> HostedGateways:
    """Hosts the gateways of all agents for a `with` block; see `HostedGateways`."""

    def make(agent: str, served: Served, spec: AdapterSpec) -> GatewayRun:
        return GatewayRun(agent, served, spec, hf.settings, hosted=hf)

    return HostedGateways(hf, make, program=program, stand_by=stand_by)


def serve_all(settings: Settings) -> None:
    """Host the gateways of all agents until SIGTERM or SIGINT. Raises Held while another process
    does.
    """
    over = threading.Event()
    allow_descriptors(gateways=True)
    before = {
        number: signal.signal(number, lambda *_: over.set())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        with (
            connected(settings) as hf,
            hosted_gateways(hf, program=PROGRAM, stand_by=False),
        ):
            gc.freeze()
            answer("hosting the gateways of all agents of this machine")
            over.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
