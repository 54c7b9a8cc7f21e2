"""Who hosts the gateways of this machine, how that ends, and how an agent gets a hosted gateway."""

import os
import signal
import subprocess
import sys
import threading
import time

from holdfast.adapters.gateway_client import GatewayClient
from holdfast.adapters.gateway_folder import GatewayFolder
from holdfast.adapters.hosting_folder import HostingFolder, HostingRecord
from holdfast.domains.agents import Agent
from holdfast.domains.agents.records import bare
from holdfast.kernel.errors import InvalidValue, NotFound, Refused, Unavailable
from holdfast.kernel.holder import Liveness, probe
from holdfast.kernel.limits import HOSTING_END_S, HOSTING_START_S
from holdfast.processes import cgroup
from holdfast.processes.scan import GUARDIAN, MARK
from holdfast.processes.syscalls import readable
from holdfast.runtime.configuration import (
    REGISTRY_DIR_ENV,
    default_store,
    gateways_folder,
    hosting_root,
)
from holdfast.runtime.connection import Holdfast
from holdfast.runtime.gateway_identity import gateway_key

PROGRAM = "holdfast gateway serve --all"
"""The host that does nothing else."""
_POLL_S = 0.05
_STARTS_MAX = 2
_LEFT_OUT = frozenset(
    (MARK, GUARDIAN, REGISTRY_DIR_ENV, "HOLDFAST_WORKFLOW", "HOLDFAST_WORKFLOW_TOKEN", "TMUX_PANE")
)
"""Variables of the caller's surroundings: the host outlives them, and hosts agents of others."""


def host_of(hf: Holdfast) -> HostingRecord | None:
    """Who hosts the gateways of this user here, and which; None when nobody does."""
    folder = HostingFolder(hosting_root(hf.settings))
    record = folder.read()
    if record is None:
        return None
    return record if probe(record.process, hf.processes, embedded=True) is Liveness.ALIVE else None


def end_host(hf: Holdfast) -> int:
    """End the process that hosts the gateways of this user here, and return its pid when it has
    ended. Accepted requests wait for the next gateway.

    Raises NotFound when nobody hosts, Refused for a process that serves more than gateways, and
    Unavailable when it does not end in time.
    """
    record = host_of(hf)
    if record is None:
        raise NotFound(
            "nobody hosts gateways here: `holdfast gateway status AGENT` says who serves one"
        )
    pid = record.process.pid
    if record.program != PROGRAM:
        raise Refused(
            f"process {pid} (`{record.program}`) hosts the gateways beside other things: end it "
            "where it was started, or start it with --no-gateways",
            pid=pid,
        )
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return pid
    try:
        # Looked at again: before the pidfd was opened, another process may have got the pid.
        if probe(record.process, hf.processes, embedded=True) is Liveness.ALIVE:
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
            if not readable(pidfd, HOSTING_END_S):
                raise Unavailable(
                    f"process {pid} does not end within {HOSTING_END_S:g} s: look at its log",
                    outcome="unknown",
                )
    finally:
        os.close(pidfd)
    return pid


def ensure_hosted(hf: Holdfast, agent: str, *, within_s: float = HOSTING_START_S) -> None:
    """Return when the gateway of a live agent answers. Where nobody hosts gateways, a host is
    started in the background: `holdfast gateway serve --all`, which goes on after this process.

    A gateway that was detached is served again. Raises NotFound and Ambiguous for an agent that is
    not live, InvalidValue for a memory: store, and Unavailable when the gateway does not come up,
    with the reason.
    """
    if hf.store.ephemeral:
        raise InvalidValue(
            "a gateway is another process, and cannot share a memory: store", field="store"
        )
    record = hf.agents.resolve(agent).unwrap()
    key = gateway_key(agent, record, hf.settings, hf.store)
    root = gateways_folder(hf.settings) / hf.settings.namespace / key
    GatewayFolder(root).remove_detached()
    client = GatewayClient(key, root=root)
    if client.answers():
        return
    folder = HostingFolder(hosting_root(hf.settings))
    folder.prepare()
    host: subprocess.Popen[bytes] | None = None
    starts, deadline = 0, time.monotonic() + within_s
    while not client.answers():
        if not folder.is_hosted() and (host is None or host.poll() is not None):
            if starts == _STARTS_MAX:
                raise _not_up(record, folder, "the host of gateways does not start")
            host, starts = _start(hf, folder), starts + 1
        if time.monotonic() > deadline:
            raise _not_up(record, folder, f"it did not answer within {within_s:g} s")
        # Another process makes it answer, and notifies nobody.
        time.sleep(_POLL_S)


def _start(hf: Holdfast, folder: HostingFolder) -> "subprocess.Popen[bytes]":
    """Start a host: in a session of its own, so that neither the end of the terminal nor that of a
    process tree in custody ends it.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
    environment["HOLDFAST_STORE"] = hf.settings.store or default_store(os.environ)
    environment["HOLDFAST_NAMESPACE"] = hf.settings.namespace
    words = [sys.executable, "-P", "-m", "holdfast", "gateway", "serve", "--all"]
    try:
        log = folder.open_log()
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment,
            )
        finally:
            os.close(log)
    except OSError as error:
        raise Unavailable(
            f"the host of gateways cannot be started: {error}", outcome="none"
        ) from None
    cgroup.move_out(process.pid)
    # It outlives a command; of a server that started it, it must not become a zombie.
    threading.Thread(target=process.wait, name="holdfast-host-started", daemon=True).start()
    return process


def _not_up(record: Agent, folder: HostingFolder, why: str) -> Unavailable:
    hosting = folder.read()
    for one in () if hosting is None else hosting.gateways:
        if one.agent_id == record.agent_id and one.detail:
            why = f"{why}: {one.detail}"
    tail = folder.log_tail()
    words = f". The last lines of {folder.log}:\n{tail}" if tail else ""
    return Unavailable(
        f"the gateway of {bare(record.agent_name)} does not come up: {why}{words}",
        agent=record.agent_name,
        log=str(folder.log),
        outcome="unknown",
    )
