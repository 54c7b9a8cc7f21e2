"""tmux, the message broker, gateways and the server: whether they run and answer."""

import http.client
import os
import shutil
import socket
import stat
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from holdfast.adapters.gateway_folder import GatewayFolder
from holdfast.adapters.server_folder import ServerFolder, ServerInstance
from holdfast.adapters.tmux import NO_SERVER, ask
from holdfast.domains.jobs.broker_address import BrokerAddress, address_of, was_chosen
from holdfast.kernel.errors import HoldfastError, UpstreamUnavailable
from holdfast.kernel.holder import Liveness, probe
from holdfast.kernel.limits import DOCTOR_CHECK_S, METRICS_ASK_S, METRICS_GATEWAYS_MAX
from holdfast.kernel.text import counted
from holdfast.runtime.configuration import gateway_root, server_root
from holdfast.runtime.connection import Holdfast
from holdfast.runtime.doctor.finding import Finding, fail, failed, ok, warn
from holdfast.runtime.host_process import host_of
from holdfast.runtime.metrics.families import GatewayReading
from holdfast.runtime.metrics.sources import asked_gateways

_ANSWER_S = 2.0
_BROKER_S = 0.6 * DOCTOR_CHECK_S
_BROKERS_MAX = 3


def tmux(hf: Holdfast | None) -> list[Finding]:
    """Whether tmux is installed, and its server answers. Starts none."""
    program = shutil.which("tmux")
    if program is None:
        fix = (
            "install it (apt-get install tmux); `holdfast agents run` and command agents do without"
        )
        agents = [] if hf is None else hf.agents.list_agents(damaged=[])
        names = [agent.agent_name for agent in agents if agent.session_name is not None]
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            says = f"there is no tmux, and {names[0]}{more} runs in it"
            return [fail(says, fix, "unavailable")]
        says = "there is no tmux on the PATH: agents in tmux cannot be started or seen"
        return [warn(says, fix)]
    try:
        answer = ask(["list-sessions"], limit_s=_ANSWER_S)
    except UpstreamUnavailable:
        return [
            fail(
                f"tmux does not answer within {_ANSWER_S:g} s",
                "its server is stopped or hangs: kill -CONT its process, or end it with `tmux "
                "kill-server`",
                "upstream_unavailable",
            )
        ]
    if answer.status == 0:
        return [ok(f"it answers, with {counted(len(answer.lines), 'tmux session')}")]
    if answer.complains(NO_SERVER):
        return [ok("installed; no tmux session runs")]
    fix = f"try `{program} list-sessions` yourself: the socket may be another user's"
    return [fail(f"tmux refuses: {answer.complaint[:200]}", fix, "upstream_unavailable")]


def broker(hf: Holdfast | None) -> Iterator[Finding]:
    """Whether the brokers answer: the one of the environment, and those that events wait for."""
    from holdfast.domains.jobs.records import Broker

    brokers = [Broker()] if os.environ.get("MQTT_BROKER") else []
    if hf is not None:
        brokers += [one.job.broker for one in next(hf.job_events.unsent_pages(), [])]
    addresses: list[BrokerAddress] = []
    for address in (address_of(one, os.environ) for one in brokers):
        if address not in addresses:
            addresses.append(address)
    if not addresses:
        yield ok("none is configured, and no event waits for one")
        return
    from holdfast.adapters.mqtt import Publisher

    addresses = addresses[:_BROKERS_MAX]
    for address in addresses:
        if address.keyfile is not None:
            yield from _key(Path(address.keyfile))
        if not was_chosen(address, os.environ) and not _listens(address):
            yield ok(
                f"none was chosen, and none is at {address.shown}: events of jobs are kept and "
                "sent to nobody"
            )
            continue
        try:
            Publisher(address, timeout_s=_BROKER_S / len(addresses)).close()
        except HoldfastError as error:
            yield failed(error)
        else:
            yield ok(f"{address.shown} accepts connections")


def _listens(address: BrokerAddress) -> bool:
    timeout_s = _BROKER_S / _BROKERS_MAX
    try:
        socket.create_connection((address.host, address.port), timeout_s).close()
    except OSError:
        return False
    return True


def _key(path: Path) -> Iterator[Finding]:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        says = f"the key {path} cannot be read: {error.strerror}"
        yield fail(says, "set MQTT_KEYFILE to the right one", "refused")
        return
    if mode & 0o077:
        says = f"the key {path} has mode {mode:04o}: others may read it"
        yield fail(says, f"chmod 600 {path}", "refused")


def gateways(hf: Holdfast) -> list[Finding]:
    """The state of the gateways of this machine. A gateway that was stopped in order, with an empty
    queue, is fine.
    """
    names = hf.gateways()
    readings = asked_gateways(hf, names[:METRICS_GATEWAYS_MAX])
    found = [finding for reading in readings if (finding := _gateway(hf, reading)) is not None]
    found += _unserved(hf)
    up = sum(reading.up for reading in readings)
    stopped = counted(len(names) - up, "is", "are")
    also = f", {stopped} stopped with nothing to do" if len(names) > up else ""
    who = host_of(hf)
    hosts = ""
    if who is not None:
        hosts = f"; process {who.process.pid} hosts those of all agents (`{who.program}`)"
    return found or [ok(counted(up, "answers", "answer") + also + hosts)]


def _unserved(hf: Holdfast) -> list[Finding]:
    """The gateways that the host could not start."""
    who = host_of(hf)
    if who is None:
        return []
    says = f"the host of gateways, process {who.process.pid}, does not serve"
    return [
        warn(f"{says} {one.agent}: {one.detail}", "correct that: it tries again")
        for one in who.gateways
        if one.state == "failed"
    ]


def _gateway(hf: Holdfast, reading: GatewayReading) -> Finding | None:
    agent, status = reading.agent, reading.status
    serve = f"holdfast gateway serve {agent}"
    depth = 0 if status is None else status.queue_depth
    waiting = counted(depth, "request waits", "requests wait")
    if reading.up and status is not None:
        if status.request_admission == "blocked_reconciliation":
            epoch = status.managed_agent_instance_epoch
            return warn(
                f"{agent} was replaced, and {waiting} for a decision",
                f"holdfast gateway requests {agent}, then holdfast gateway reconcile {agent} "
                f"replay|discard --epoch {epoch}",
            )
        if status.request_admission == "blocked_unavailable":
            says = f"the gateway of {agent} does not find it: {status.detail}"
            return warn(says, f"start {agent} again")
        return None
    instance = GatewayFolder(gateway_root(hf.settings, agent)).instance()
    if instance is not None:
        pid, seen = instance.pid, hf.processes.process_stat(instance.pid)
        if seen is not None and not seen.zombie:
            return fail(
                f"the gateway of {agent}, process {pid}, does not answer within "
                f"{METRICS_ASK_S:g} s",
                f"continue it if it is stopped (kill -CONT {pid}), or end it and start it again: "
                f"{serve}",
                "unavailable",
            )
    if depth:
        says = f"the gateway of {agent} is gone, and {waiting}"
        return fail(says, f"start it again: {serve}", "unavailable")
    return None


def server(hf: Holdfast) -> list[Finding]:
    """Whether the servers that are recorded for this store run and answer. A killed server is
    reported where no other runs.
    """
    instances = ServerFolder(server_root(hf.settings)).instances()
    if not instances:
        return [ok("none runs for this store")]
    alive = [
        one
        for one in instances
        if probe(one.process, hf.processes, embedded=hf.store.embedded) is not Liveness.DEAD
    ]
    if not alive:
        says = f"it was killed (process {instances[0].process.pid})"
        return [warn(says, "start it again: holdfast serve")]
    return [_server(instance) for instance in alive]


def _server(instance: ServerInstance) -> Finding:
    address, pid = f"{instance.host}:{instance.port}", instance.process.pid
    connection = http.client.HTTPConnection(instance.reached_at, instance.port, timeout=_ANSWER_S)
    with closing(connection), suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/health")
        if connection.getresponse().status == http.client.OK:
            return ok(f"it answers at {address}")
    says = f"it does not answer at {address} (process {pid})"
    return fail(says, f"kill -CONT {pid} if it is stopped, or start it again", "unavailable")
