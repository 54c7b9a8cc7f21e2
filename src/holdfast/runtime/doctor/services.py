"""tmux, the message broker, gateways and the server: whether they are there and answer."""

import http.client
import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from holdfast.adapters.server_folder import ServerFolder, ServerInstance
from holdfast.domains.jobs.broker_address import BrokerAddress, address_of, was_chosen
from holdfast.kernel.errors import HoldfastError
from holdfast.kernel.holder import Liveness, probe
from holdfast.kernel.limits import DOCTOR_CHECK_S, METRICS_ASK_S, METRICS_GATEWAYS_MAX
from holdfast.kernel.text import counted
from holdfast.runtime.connection import Holdfast
from holdfast.runtime.doctor.finding import Finding, fail, failed, ok, warn
from holdfast.runtime.metrics.families import GatewayReading
from holdfast.runtime.metrics.sources import asked_gateways
from holdfast.runtime.paths import gateway_root, server_root

_TMUX_S = 2.0
_BROKER_S = 0.6 * DOCTOR_CHECK_S
_BROKERS_MAX = 3
_NO_SERVER = ("no server running", "no such file or directory", "no sessions", "connection refused")


def tmux_users(hf: Holdfast) -> list[str]:
    """The agents here that run in tmux."""
    return [
        agent.agent_name
        for agent in hf.agents.list_agents(damaged=[])
        if agent.session_name is not None
    ]


def tmux(needed_by: Sequence[str]) -> list[Finding]:
    """Whether tmux is there, and its server answers. Starts none."""
    program = shutil.which("tmux")
    if program is None:
        mend = (
            "install it (apt-get install tmux); `holdfast agents run` and command agents do without"
        )
        if needed_by:
            return [
                fail(
                    "tmux",
                    f"there is no tmux, and {_some(needed_by)} runs in it",
                    mend,
                    "unavailable",
                )
            ]
        return [
            warn(
                "tmux",
                "there is no tmux on the PATH: agents in tmux cannot be started or seen",
                mend,
            )
        ]
    try:
        asked = subprocess.run(
            [program, "list-sessions"], capture_output=True, text=True, timeout=_TMUX_S, check=False
        )
    except subprocess.TimeoutExpired:
        mend = (
            "its server is stopped or hangs: kill -CONT its process, or end it with `tmux "
            "kill-server`"
        )
        return [
            fail("tmux", f"tmux does not answer within {_TMUX_S:g} s", mend, "upstream_unavailable")
        ]
    said = asked.stderr.strip().lower()
    if asked.returncode == 0:
        return [
            ok(
                "tmux",
                f"it answers, with {counted(len(asked.stdout.splitlines()), 'tmux session')}",
            )
        ]
    if any(words in said for words in _NO_SERVER):
        return [ok("tmux", "installed; no tmux session runs")]
    mend = f"try `{program} list-sessions` yourself: the socket may be another user's"
    return [fail("tmux", f"tmux refuses: {said[:200]}", mend, "upstream_unavailable")]


def broker(hf: Holdfast | None) -> Iterator[Finding]:
    """Whether the brokers that are meant answer: the one of the environment, and those that events
    wait for.
    """
    reaches = _reaches(hf)
    if not reaches:
        yield ok("broker", "none is configured, and no event waits for one")
        return
    from holdfast.adapters.mqtt import Publisher

    for reach in reaches:
        if reach.keyfile is not None:
            yield from _key(Path(reach.keyfile))
        if not was_chosen(reach, os.environ) and not _listens(reach):
            yield ok(
                "broker",
                f"none was chosen, and none is at {reach.shown}: events of jobs are kept and sent "
                "to nobody",
            )
            continue
        try:
            Publisher(reach, timeout_s=_BROKER_S / len(reaches)).close()
        except HoldfastError as error:
            yield failed("broker", error)
        else:
            yield ok("broker", f"{reach.shown} lets us in")


def _listens(reach: BrokerAddress) -> bool:
    try:
        socket.create_connection((reach.host, reach.port), timeout=_BROKER_S / _BROKERS_MAX).close()
    except OSError:
        return False
    return True


def _reaches(hf: Holdfast | None) -> list[BrokerAddress]:
    from holdfast.domains.jobs.records import Broker

    found = [address_of(Broker(), os.environ)] if os.environ.get("MQTT_BROKER") else []
    if hf is not None:
        found += [
            address_of(one.job.broker, os.environ) for one in next(hf.job_events.unsent_pages(), [])
        ]
    return [reach for place, reach in enumerate(found) if reach not in found[:place]][:_BROKERS_MAX]


def _key(path: Path) -> Iterator[Finding]:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        yield fail(
            "broker",
            f"the key {path} cannot be read: {error.strerror}",
            "set MQTT_KEYFILE to the right one",
            "refused",
        )
        return
    if mode & 0o077:
        yield fail(
            "broker",
            f"the key {path} has mode {mode:04o}: others may read it",
            f"chmod 600 {path}",
            "refused",
        )


def gateways(hf: Holdfast) -> list[Finding]:
    """How the gateways of this machine are. One that was stopped in order, with nothing in its
    queue, is no trouble.
    """
    names = hf.gateways()
    readings = asked_gateways(hf, names[:METRICS_GATEWAYS_MAX])
    found = [finding for reading in readings if (finding := _gateway(hf, reading)) is not None]
    if found:
        return found
    up = sum(reading.up for reading in readings)
    stopped = (
        f", {counted(len(names) - up, 'is', 'are')} stopped with nothing to do"
        if len(names) > up
        else ""
    )
    return [ok("gateways", counted(up, "answers", "answer") + stopped)]


def _waiting(number: int) -> str:
    return counted(number, "request waits", "requests wait")


def _gateway(hf: Holdfast, reading: GatewayReading) -> Finding | None:
    agent, status = reading.agent, reading.status
    serve = f"holdfast gateway serve {agent}"
    if reading.up and status is not None:
        if status.request_admission == "blocked_reconciliation":
            epoch = status.managed_agent_instance_epoch
            mend = (
                f"holdfast gateway requests {agent}, then holdfast gateway reconcile {agent} "
                f"replay|discard --epoch {epoch}"
            )
            return warn(
                "gateways",
                f"{agent} was replaced, and {_waiting(status.queue_depth)} for a decision",
                mend,
            )
        if status.request_admission == "blocked_unavailable":
            return warn(
                "gateways",
                f"the gateway of {agent} does not find it: {status.detail}",
                f"start {agent} again",
            )
        return None
    alive = _pid_of(hf, agent)
    if alive is not None:
        says = (
            f"the gateway of {agent}, process {alive}, does not answer within {METRICS_ASK_S:g} s"
        )
        mend = (
            f"continue it if it is stopped (kill -CONT {alive}), or end it and start it again: "
            f"{serve}"
        )
        return fail("gateways", says, mend, "unavailable")
    if status is not None and status.queue_depth:
        says = f"the gateway of {agent} is gone, and {_waiting(status.queue_depth)}"
        return fail("gateways", says, f"start it again: {serve}", "unavailable")
    return None


def _pid_of(hf: Holdfast, agent: str) -> int | None:
    """The process that says it serves an agent, if there is such a process."""
    from holdfast.adapters.gateway_folder import GatewayFolder

    instance = GatewayFolder(gateway_root(hf.settings, agent)).instance()
    seen = None if instance is None else hf.processes.sight(instance.pid)
    return instance.pid if instance is not None and seen is not None and not seen.zombie else None


def server(hf: Holdfast) -> Iterable[Finding]:
    """Whether the servers that say they run for this store do, and answer. One that was killed is
    told where no other runs.
    """
    instances = ServerFolder(server_root(hf.settings)).instances()
    if not instances:
        return [ok("server", "none runs for this store")]
    alive = [
        one
        for one in instances
        if probe(one.process, hf.processes, embedded=hf.store.embedded) is not Liveness.DEAD
    ]
    if not alive:
        return [
            warn(
                "server",
                f"it was killed (process {instances[0].process.pid})",
                "start it again: holdfast serve",
            )
        ]
    return [_served(instance) for instance in alive]


def _served(instance: ServerInstance) -> Finding:
    if _healthy(instance):
        return ok("server", f"it answers at {instance.host}:{instance.port}")
    says = f"it does not answer at {instance.host}:{instance.port} (process {instance.process.pid})"
    return fail(
        "server",
        says,
        f"kill -CONT {instance.process.pid} if it is stopped, or start it again",
        "unavailable",
    )


def _healthy(instance: ServerInstance) -> bool:
    try:
        with closing(
            http.client.HTTPConnection(instance.reached_at, instance.port, timeout=_TMUX_S)
        ) as connection:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False


def _some(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
