"""The gateways of all agents of this machine and user, in one process.

The registry says which agents there are. Each gateway has a thread that opens, serves and closes
it, so one that fails, hangs or is damaged does not delay the others. One process hosts at a time,
as it holds a lock that the kernel releases with it. Every queue is durable, so after a kill the
next host continues them.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from holdfast.adapters.gateway_folder import GatewayFolder
from holdfast.adapters.hosting_folder import (
    HostedGateway,
    HostingFolder,
    HostingRecord,
    HostingState,
)
from holdfast.adapters.tmux import Tmux
from holdfast.domains.agents import Agent
from holdfast.domains.agents.liveness import process_liveness
from holdfast.domains.agents.ports import TmuxAddress
from holdfast.domains.agents.records import bare, id_of
from holdfast.domains.gateway.adapter import AdapterSpec, TmuxSpec
from holdfast.kernel.errors import Held, HoldfastError, InvalidValue, LeaseLost, Untrusted
from holdfast.kernel.holder import Liveness
from holdfast.kernel.limits import (
    HOSTING_LOOK_EVERY_S,
    HOSTING_RETRY_MAX_S,
    HOSTING_STOP_S,
    LIST_MAX,
)
from holdfast.kernel.store import JOURNAL_TOPIC
from holdfast.runtime.agent_launch import is_reserved
from holdfast.runtime.configuration import gateways_folder, hosting_root
from holdfast.runtime.connection import Holdfast
from holdfast.runtime.gateway_identity import Served, adapter_of, gateway_key, owner_for
from holdfast.system.flock import FlockContender

_SOON_S = 0.1
_BRIEFLY_S = 5.0
"""For so long after an agent was published its manifest may be missing."""
_log = logging.getLogger("holdfast.hosting")


class RunningGateway(Protocol):
    """A gateway that the host serves in a thread."""

    serving: bool

    def serve(self) -> None:
        """Serve until stopped. Raises Held, LeaseLost and other errors that say why not."""

    def stop(self) -> None:
        """Begin to stop, from any thread."""


MakeGateway = Callable[[str, Served, AdapterSpec], RunningGateway]
"""Makes the gateway of an agent, by a word that names it, its identity and its adapter."""


class _Hosted:
    """The gateway of one agent, through its starts and ends."""

    def __init__(self, record: Agent) -> None:
        self.record = record
        self.key = bare(record.agent_name)
        self.folder: GatewayFolder | None = None
        self.gateway: RunningGateway | None = None
        self.thread: threading.Thread | None = None
        self.error: Exception | None = None
        self.state: HostingState = "starting"
        self.detail = ""
        self.since_s = time.monotonic()
        self.due_s = 0.0
        self.pause_s = _SOON_S

    def runs(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def fail(self, state: HostingState, detail: str) -> None:
        """Note why it is not served, and when to try again."""
        if (state, detail) != (self.state, self.detail) and state == "failed":
            _log.warning("gateway of %s: %s", self.record.agent_name, detail)
        self.state, self.detail = state, detail
        self.due_s = time.monotonic() + self.pause_s
        self.pause_s = min(2 * self.pause_s, HOSTING_RETRY_MAX_S)

    def renew(self, record: Agent) -> None:
        """Begin again at once when the agent was published again."""
        before, self.record = self.record, record
        if (before.generation_id, before.token) != (record.generation_id, record.token):
            self.since_s, self.due_s, self.pause_s = time.monotonic(), 0.0, _SOON_S


class HostedGateways:
    """Hosts the gateways of all live agents for a `with` block, in threads of this process.

    An agent is hosted if its record and its process are of this machine, and this user wrote its
    manifest. With `stand_by` the block begins also while another process hosts, and this one takes
    over when that ends; without, Held is raised then. `program` is the command that this process
    runs, for people.
    """

    def __init__(
        self, hf: Holdfast, make: MakeGateway, *, program: str, stand_by: bool = False
    ) -> None:
        if hf.store.ephemeral:
            raise InvalidValue(
                "a memory: store has no agents of other processes: name another store",
                field="store",
            )
        self._hf = hf
        self._make = make
        self._program = program
        self._stand_by = stand_by
        self._folder = HostingFolder(hosting_root(hf.settings))
        self._gateways = gateways_folder(hf.settings) / hf.settings.namespace
        self._tmux = Tmux()
        self._hosted: dict[str, _Hosted] = {}
        self._written: HostingRecord | None = None
        self._warned = ""
        self._contender: FlockContender | None = None
        self._over = threading.Event()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="holdfast-hosting", daemon=True)

    def __enter__(self) -> "HostedGateways":
        try:
            self._folder.prepare()
            self._contender = self._folder.contender()
            if not self._contender.try_take() and not self._stand_by:
                raise hosted_by(self._folder)
            self._thread.start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._ring()
        self._thread.join()
        self._stop_all()
        self._close()

    def hosts(self) -> bool:
        """Does this process host, and not another one?"""
        return self._contender is not None and self._contender.has_it()

    def _close(self) -> None:
        if self._contender is not None:
            self._contender.close()
        fd, self._bell = self._bell, -1
        os.close(fd)

    def _ring(self) -> None:
        # A gateway that ended too late rings nobody.
        with suppress(OSError):
            os.eventfd_write(self._bell, 1)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                if self._contender is not None and self._contender.try_take():
                    self._follow()
                else:
                    self._over.wait(HOSTING_LOOK_EVERY_S)
            except (HoldfastError, OSError) as error:
                self._warn(f"agents are not looked at: {error}")
                self._over.wait(HOSTING_LOOK_EVERY_S)

    def _follow(self) -> None:
        """Look at the registry when something happens in the store, and from time to time."""
        with self._hf.store.listen([JOURNAL_TOPIC]) as listener:
            while not self._over.is_set():
                self._step()
                self._write()
                listener.wait(self._pause_s(), also=[self._bell])
                with suppress(BlockingIOError):
                    os.eventfd_read(self._bell)
                # In a busy store something happens all the time.
                self._over.wait(_SOON_S)

    def _pause_s(self) -> float:
        dues = [one.due_s for one in self._hosted.values() if not one.runs() and one.due_s]
        soonest = min(dues, default=float("inf")) - time.monotonic()
        return max(min(soonest, HOSTING_LOOK_EVERY_S), 0)

    def _step(self) -> None:
        """Bring the gateways into line with the registry."""
        wanted = self._wanted()
        for agent_id, one in list(self._hosted.items()):
            if agent_id not in wanted:
                if one.gateway is not None and one.runs():
                    one.gateway.stop()
                elif not one.runs():
                    del self._hosted[agent_id]
        for agent_id, record in wanted.items():
            one = self._hosted.setdefault(agent_id, _Hosted(record))
            one.renew(record)
            if one.runs():
                serving = one.gateway is not None and one.gateway.serving
                one.state, one.detail = ("serving" if serving else "starting"), ""
                if serving:
                    one.pause_s = _SOON_S
                continue
            if one.thread is not None:
                self._note_end(one)
            if time.monotonic() >= one.due_s or self._is_free_again(one):
                self._begin(one)

    def _wanted(self) -> dict[str, Agent]:
        """The agents whose gateways belong here, by id."""
        hf = self._hf
        found = hf.agents.list_agents(fresh=True, limit=LIST_MAX, damaged=[])
        return {one.agent_id: one for one in found if self._is_here(one)}

    def _is_here(self, record: Agent) -> bool:
        processes = self._hf.processes
        if record.holder is not None and record.holder.place != processes.here():
            return False
        if is_reserved(record):
            # Its pane still runs the programs that start it: another instance than the agent.
            return False
        try:
            # In a store that a group shares, every user hosts the own agents: the sessions of
            # others cannot be reached, and must not be.
            if os.stat(record.runtime.manifest_path).st_uid != os.geteuid():
                return False
        except OSError:
            # It is published and its manifest is not written yet; or it was never here.
            if record.holder is None and record.agent_id not in self._hosted:
                return False
        embedded = self._hf.store.embedded
        return process_liveness(record, processes, embedded=embedded) is not Liveness.DEAD

    def _begin(self, one: _Hosted) -> None:
        """Start the thread of a gateway, unless something says that it cannot be served."""
        hf, record = self._hf, one.record
        try:
            # Never the word that another agent's gateway may be kept under.
            own = id_of(record.agent_name) == record.agent_id
            word = record.agent_id if own else bare(record.agent_name)
            one.key = gateway_key(word, record, hf.settings, hf.store)
            one.folder = GatewayFolder(self._gateways / one.key)
            detached = one.folder.detached()
            if detached is not None and detached.generation_id == record.generation_id:
                one.fail("detached", "somebody detached it")
                one.due_s = float("inf")
                return
            spec = adapter_of(record, of_its_generation=True)
            if why := self._out_of_reach(record, spec):
                one.fail("failed", why)
                return
            gateway = self._make(word, Served(one.key, record, spec, owner_for(record)), spec)
        except HoldfastError as error:
            if isinstance(error, Untrusted) and time.monotonic() - one.since_s < _BRIEFLY_S:
                # It is published, and its manifest is written a moment later.
                one.due_s = time.monotonic() + _SOON_S
                one.detail = error.message
            else:
                one.fail("failed", error.message)
            return
        one.error, one.gateway = None, gateway
        one.state, one.detail, one.due_s = "starting", "", 0.0
        one.thread = threading.Thread(
            target=self._serve, args=(one, gateway), name=f"holdfast-host-{one.key}", daemon=True
        )
        one.thread.start()

    def _out_of_reach(self, record: Agent, spec: AdapterSpec) -> str:
        """Why nobody can reach the agent from here. A record with a process says where that is."""
        if record.holder is not None or not isinstance(spec, TmuxSpec):
            return ""
        address = TmuxAddress(spec.socket_name or None, spec.socket_path or None)
        if self._tmux.panes(spec.session, address):
            return ""
        return f"there is no tmux session {spec.session} here"

    def _serve(self, one: _Hosted, gateway: RunningGateway) -> None:
        try:
            gateway.serve()
        except HoldfastError as error:
            one.error = error
        except BaseException as error:  # noqa: BLE001 - one gateway's failure is not the others'
            _log.exception("gateway of %s", one.record.agent_name)
            one.error = RuntimeError(f"{type(error).__name__}: {error}")
        self._ring()

    def _note_end(self, one: _Hosted) -> None:
        """Note why the thread of a gateway has ended."""
        error, one.thread, one.gateway = one.error, None, None
        if error is None or isinstance(error, LeaseLost):
            # It was detached, or another generation has the agent: the next look tells.
            one.due_s = 0.0
            if error is not None:
                _log.info("gateway of %s: %s", one.record.agent_name, error)
        elif isinstance(error, Held):
            one.fail("held", error.message)
        else:
            one.fail("failed", getattr(error, "message", str(error)))

    def _is_free_again(self, one: _Hosted) -> bool:
        """May a gateway be begun before its time, since what prevented it has ended?"""
        if one.folder is None:
            return False
        if one.state == "detached":
            return one.folder.detached() is None
        if one.state != "held":
            return False
        other = one.folder.instance()
        return other is None or self._hf.processes.process_stat(other.pid) is None

    def _write(self) -> None:
        gateways = tuple(
            HostedGateway(
                agent=one.key,
                agent_id=one.record.agent_id,
                generation_id=one.record.generation_id,
                state=one.state,
                detail=one.detail,
            )
            for one in self._hosted.values()
        )
        process = self._hf.processes.current("host")
        record = HostingRecord(process=process, program=self._program, gateways=gateways)
        if record != self._written:
            self._folder.write(record)
            self._written = record

    def _warn(self, what: str) -> None:
        if what != self._warned:
            _log.warning("%s", what)
        self._warned = what

    def _stop_all(self) -> None:
        """Stop all gateways at the same time. One that hangs is left to the end of the process:
        its queue says that its request was interrupted.
        """
        deadline = time.monotonic() + HOSTING_STOP_S
        for one in self._hosted.values():
            if one.gateway is not None:
                one.gateway.stop()
        for one in self._hosted.values():
            if one.thread is not None:
                one.thread.join(max(deadline - time.monotonic(), 0))
                if one.thread.is_alive():
                    _log.warning("gateway of %s did not stop in time", one.record.agent_name)


def hosted_by(folder: HostingFolder) -> Held:
    """The error for a second host."""
    record = folder.read()
    pid = None if record is None else record.process.pid
    who = "another process" if record is None else f"process {pid} (`{record.program}`)"
    return Held(
        f"{who} hosts the gateways of this machine already: agents that appear get theirs there",
        pid=pid,
    )
