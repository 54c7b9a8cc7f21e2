"""Wires a gateway in the process that serves it: store, adapter, rules and worker."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.adapters.gateway_folder import GatewayFolder
from holdfast.adapters.profiles import profile_named, profiles_folder
from holdfast.domains.gateway import Adapter, AdapterSpec, DeliveryWorker, Gateway
from holdfast.domains.gateway.adapter import AcpSpec, AppServerSpec, CommandSpec, TmuxSpec
from holdfast.kernel.agent_adapter import RestAdapter
from holdfast.kernel.errors import Held
from holdfast.kernel.holder import Holder
from holdfast.kernel.limits import QUEUE_DEPTH_MAX
from holdfast.kernel.settings import Settings
from holdfast.kernel.store import Store
from holdfast.primitives.journal import Journal
from holdfast.primitives.queue import Queue
from holdfast.processes.procfs import Procfs
from holdfast.runtime.configuration import actor_here, gateway_agent, gateway_root, store_url
from holdfast.stores.url import StoreUrl, open_store
from holdfast.system.access import PRIVATE, Access, access_for, access_like

if TYPE_CHECKING:
    from holdfast.adapters.agent_protocol import AgentProtocol


class GatewayParts(NamedTuple):
    """A wired and attached gateway, and the worker that carries out its requests."""

    gateway: Gateway
    worker: DeliveryWorker
    folder: GatewayFolder
    store: Store
    shares_store: bool = False

    def close(self) -> None:
        """Stop serving and release everything. Accepted requests wait for the next gateway."""
        self.worker.stop()
        self.gateway.adapter.close()
        self.gateway.detach()
        if not self.shares_store:
            self.store.close()


def open_gateway(
    agent: str,
    spec: AdapterSpec,
    settings: Settings,
    *,
    owner: str | None = None,
    process: Callable[[], Holder | None] = lambda: None,
    depth_max: int = QUEUE_DEPTH_MAX,
    shared: Store | None = None,
    on_lost: Callable[[], None],
) -> GatewayParts:
    """Wire the gateway of an agent, attach it, and check the agent. The worker is not started.

    The queue lives in the gateway's own folder, so that it works while a shared store is away; with
    PostgreSQL it lives there, and `shared` is the connection to it, if the caller has one: many
    gateways in one process need no connections of their own. `owner` is the agent that the queue
    belongs to, if known. `process` returns the process in the agent's record: the gateway types to
    no other one. Raises Held while another gateway serves the agent, by this name or another, and
    when the queue belongs to another agent; InvalidName and InvalidValue.
    """
    folder = GatewayFolder(gateway_root(settings, agent))
    processes = Procfs(host_id=settings.host_id)
    # Beside the note of the tree: the next gateway finds both, whichever store it uses.
    processes.find_trees(lambda: folder.trees, lambda: PRIVATE)
    folder.prepare(_around(settings))
    configured = StoreUrl(settings.store or "")
    shares_store = shared is not None and not configured.embedded
    if shared is not None and not configured.embedded:
        store = shared
    else:
        url = f"sqlite:{folder.queue}" if configured.embedded else configured.text
        store = open_store(url, namespace=settings.namespace, boot_id=processes.boot_id())
    processes.watch_boots(store.boot_in_use)
    try:
        journal = Journal(store, actor=settings.actor or actor_here(), keep=settings.journal)
        queue = Queue(store, journal, gateway_agent(agent), depth_max=depth_max)
        gateway = Gateway(
            queue,
            journal,
            agent_adapter(spec, queue.name, folder, processes, process),
            processes,
            name_sender=settings.gateway.name_sender,
        )
        gateway.attach(owner)
        try:
            gateway.look()
        except BaseException as error:
            # It may have started its agent.
            gateway.adapter.close()
            if isinstance(error, Held):
                gateway.detach()
            raise
    except BaseException:
        if not shares_store:
            store.close()
        raise
    worker = DeliveryWorker(gateway, on_lost=on_lost)
    return GatewayParts(gateway, worker, folder, store, shares_store)


def _around(settings: Settings) -> Access:
    """The access to the folder of all gateways. Beside a store it is the store's own."""
    url = store_url(settings)
    if url.path is None or url.gateways_folder() is None:
        return access_for(settings.group)
    return access_like(url.path)


def agent_adapter(
    spec: AdapterSpec,
    agent: str,
    folder: GatewayFolder,
    processes: Procfs,
    process: Callable[[], Holder | None],
) -> Adapter:
    """The adapter with these settings. Raises InvalidValue for impossible settings, and Unavailable
    when its extra is not installed.
    """
    if isinstance(spec, TmuxSpec):
        from holdfast.adapters.tmux_agent import TmuxAgent
        from holdfast.adapters.tool_pane import ToolPane

        places: dict[str, Any] = {
            "agent": agent,
            "folder": folder.run,
            "processes": processes,
            "process": process,
        }
        if not spec.profile or spec.ready_regex is not None:
            return TmuxAgent(spec, **places)
        profile = profile_named(spec.profile, profiles_folder(os.environ))
        return ToolPane(spec, profile, **places)
    if isinstance(spec, CommandSpec):
        from holdfast.adapters.command import CommandAgent

        return CommandAgent(spec, note=folder.agent_process, processes=processes)
    if isinstance(spec, AcpSpec | AppServerSpec):
        from holdfast.adapters.protocol_agent import ProtocolAgent

        return ProtocolAgent(_protocol(spec), spec, folder=folder, processes=processes)
    if isinstance(spec, RestAdapter):
        from holdfast.adapters.rest import RestAgent

        return RestAgent(spec)
    from holdfast.adapters.managed import ManagedAgent

    return ManagedAgent(spec)


def _protocol(spec: AcpSpec | AppServerSpec) -> "AgentProtocol":
    if isinstance(spec, AcpSpec):
        from holdfast.adapters.acp import Acp

        return Acp(spec.mode or None)
    from holdfast.adapters.app_server import AppServer

    return AppServer()
