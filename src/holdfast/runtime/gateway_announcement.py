"""Keeps the record of a gateway's agent in step with the gateway.

The record says where the gateway listens, and the gateway renews the agent's lease for as long as
it sees the agent. It is here because the domains of agents and gateways do not know each other.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from holdfast.adapters.gateway_client import GatewayClient
from holdfast.adapters.gateway_folder import GatewayFolder, Vouched
from holdfast.domains.agents import Agent, GatewayAddress
from holdfast.domains.agents.liveness import process_liveness
from holdfast.domains.agents.ownership import topic_of
from holdfast.domains.agents.records import bare, id_of, inner, lease_of, run_by_gateway
from holdfast.domains.gateway.adapter import AdapterSpec, TmuxSpec
from holdfast.kernel.errors import Ambiguous, Held, HoldfastError, LeaseLost, Lost, NotFound
from holdfast.kernel.holder import Holder, Liveness
from holdfast.kernel.lease import due, renew_every_s
from holdfast.kernel.limits import GATEWAY_ANNOUNCE_EVERY_S
from holdfast.kernel.settings import Settings
from holdfast.runtime.connection import Holdfast, connected
from holdfast.runtime.gateway_identity import (
    Adapt,
    adapter_of,
    gateway_key,
    owner_for,
    owner_of,
    process_of,
)

PROTOCOL = "v1"
_AGAIN_S = 1.0


class Announcement:
    """Keeps the record of a gateway's agent in step with the gateway, through every generation.

    `agent_id` is the agent that is served, if known. `spec` is the gateway's adapter, and
    `by_manifest` says that the agent's manifest named it. When a generation with another adapter
    takes the id, the gateway must end: it no longer reaches the agent. `seen` returns the instance
    of the agent that is there, if any; `belong` records the queue's owner; `bind` sets the process
    that the gateway may type to; `adapt` applies the user's options to a manifest; `connect` opens
    the registry, or lends a connection that many gateways share. Without a record, or while the
    store does not answer, the gateway serves all the same, and that is logged.
    """

    def __init__(
        self,
        agent: str,
        settings: Settings,
        gateway: GatewayAddress,
        *,
        folder: GatewayFolder,
        agent_id: str | None,
        spec: AdapterSpec,
        by_manifest: bool,
        seen: Callable[[], str | None],
        belong: Callable[[str], None],
        bind: Callable[[Holder | None], None] = lambda _: None,
        adapt: Adapt = lambda spec: spec,
        connect: Callable[[], AbstractContextManager[Holdfast]] | None = None,
    ) -> None:
        self._agent = agent
        self.connect = connect or (lambda: connected(settings, create=False))
        self._settings = settings
        self._gateway = gateway
        self._folder = folder
        self._spec = spec
        self._by_manifest = by_manifest
        self._seen = seen
        self._belong = belong
        self._bind = bind
        self._adapt = adapt
        self._agent_id = agent_id
        self._warned = ""
        self._last_generation = ""
        self._ours: str | None = None

    @property
    def generation_id(self) -> str | None:
        """The generation that was last found to be served by this gateway."""
        return self._ours

    def step(self, hf: Holdfast) -> float:
        """Bring the record up to date, and return the seconds until the next step. Raises Held when
        another gateway serves the agent, or another generation with another adapter has it, and
        every error of the store.
        """
        record = self._record(hf)
        if record is None or not self._is_ours(hf, record):
            return GATEWAY_ANNOUNCE_EVERY_S
        self._belong(owner_for(record))
        self._bind(process_of(record, self._spec))
        if record.gateway != self._gateway:
            if record.gateway is not None:
                self._refuse_another(record, Path(record.gateway.state_path).parent)
            record = hf.agents.attach_gateway(record.agent_id, record.generation_id, self._gateway)
        self._agent_id = record.agent_id
        lease_s = record.lease_s or hf.agents.settings.lease_s
        if self._lives(hf, record) and due(lease_of(record), hf.store.now(), lease_s):
            hf.agents.refresh(record.agent_id, record.generation_id, token=record.token)
        return min(renew_every_s(lease_s), GATEWAY_ANNOUNCE_EVERY_S)

    def begin(self, hf: Holdfast) -> None:
        """The first step. Unlike later ones it also raises Held when the agent has a gateway under
        another of its names, which was started before the agent was known.
        """
        record = self._record(hf)
        if record is not None:
            names = [record.agent_id, bare(record.agent_name)]
            with suppress(NotFound):
                # If another agent's id is derived from this name, a gateway under it is that one's.
                if hf.agents.get(id_of(record.agent_name)).agent_id != record.agent_id:
                    names = [record.agent_id]
            for name in names:
                if owner_of(name, self._settings, hf.store) in (None, owner_for(record)):
                    self._refuse_another(record, self._folder.root.with_name(name))
        self.step(hf)

    def withdraw(self) -> None:
        """Remove the gateway from the record, unless a later gateway is there."""
        if self._agent_id is None:
            return
        try:
            with self.connect() as hf, suppress(NotFound, LeaseLost):
                record = hf.agents.get(self._agent_id)
                if record.gateway == self._gateway:
                    hf.agents.attach_gateway(record.agent_id, record.generation_id, None)
        except HoldfastError as error:
            self.warn(f"its agent's record still says where the gateway was: {error.message}")

    def warn(self, what: str) -> None:
        """Log a problem; the same one is not logged twice in a row."""
        if what != self._warned:
            logging.getLogger("holdfast.gateway").warning("%s", what)
        self._warned = what

    def topics(self) -> list[str]:
        """The topics that are notified when the agent changes, for each id that it may get."""
        name = self._settings.agents.prefix + inner(self._agent)
        ids = {self._agent, id_of(name)} | (set() if self._agent_id is None else {self._agent_id})
        return sorted(topic_of(one) for one in ids)

    def _record(self, hf: Holdfast) -> Agent | None:
        """The record of the served agent, fresh or not; else that of the name or id."""
        with suppress(NotFound):
            if self._agent_id is not None:
                return hf.agents.get(self._agent_id)
        return hf.agents.resolve(self._agent).record

    def _begins(self, record: Agent) -> bool:
        """An agent is published before its manifest is written. Seen in between for the first time,
        a missing manifest is no fault.
        """
        last, self._last_generation = self._last_generation, record.generation_id
        return last != record.generation_id and not Path(record.runtime.manifest_path).exists()

    def _is_ours(self, hf: Holdfast, record: Agent) -> bool:
        try:
            key = gateway_key(self._agent, record, self._settings, hf.store)
        except Ambiguous as error:
            # The served agent is gone, and its word names another agent by now.
            self.warn(f"no record says where the gateway is: {error.message}")
            return False
        if key != self._folder.root.name:
            self._refuse_another(record, self._folder.root.with_name(key))
            self.warn(
                f"{record.agent_name} is {record.agent_id} by now, and its gateway belongs under "
                f"{key}: start it again"
            )
            return False
        # The record itself may name another tmux session than the one that is typed into.
        elsewhere = isinstance(self._spec, TmuxSpec) and record.session_name not in (
            None,
            self._spec.session,
        )
        try:
            if not elsewhere:
                if self._by_manifest and self._begins(record):
                    return False
                if not self._by_manifest or adapter_of(record, self._adapt) == self._spec:
                    self._ours = record.generation_id
                    return True
        except HoldfastError as error:
            self.warn(f"its agent's record is left alone: {error.message}")
            return False
        where = f"in tmux session {record.session_name}" if elsewhere else "otherwise"
        words = (
            f"{record.agent_name} is generation {record.generation_id}, reached {where} by now: "
            "start its gateway again"
        )
        # Another generation has the id: a prompt would reach the wrong agent. In the same
        # generation only a setting differs, and a user who gave the adapter may have meant another
        # session of the agent.
        if record.generation_id != self._ours and (self._by_manifest or self._ours is not None):
            raise Held(words, agent=self._agent, generation_id=record.generation_id)
        self.warn(words)
        return False

    def _refuse_another(self, record: Agent, root: Path) -> None:
        if root == self._folder.root or not GatewayClient(self._agent, root=root).answers():
            return
        raise Held(
            f"{record.agent_name} has a gateway already, in {root}: use it, or stop it with "
            f"`holdfast gateway detach {root.name}`",
            agent=self._agent,
        )

    def _lives(self, hf: Holdfast, record: Agent) -> bool:
        """Is the agent that is seen certainly the one in the record? Not when its process is dead,
        and not when another instance replaced the one that was first seen under this publish, also
        if the gateway restarted in between.
        """
        seen = self._seen()
        if seen is None:
            return False
        if process_liveness(record, hf.processes, embedded=hf.store.embedded) is Liveness.DEAD:
            return False
        if run_by_gateway(record):
            # Its gateway started it, for this record.
            return True
        generation_id, token = record.generation_id, record.token
        known = self._folder.vouched()
        if known is None or (known.generation_id, known.token) != (generation_id, token):
            known = Vouched(generation_id=generation_id, token=token, instance_id=seen)
            self._folder.write_vouched(known)
        return known.instance_id == seen


@contextmanager
def announced(announcement: Announcement, *, on_lost: Callable[[str], None]) -> Iterator[None]:
    """For the time of a block, the agent's record says where its gateway listens, and the agent's
    lease is renewed while the agent is seen. Raises Held when another gateway serves the agent, or
    this one does not reach it. If that happens later, `on_lost` is called with the reason.
    """
    try:
        with announcement.connect() as hf:
            announcement.begin(hf)
    except Held:
        raise
    except HoldfastError as error:
        announcement.warn(f"its agent's record does not say where the gateway is: {error.message}")
    ending, stop_fd = threading.Event(), os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def run() -> None:
        while not ending.is_set():
            try:
                with announcement.connect() as hf:
                    _follow(announcement, hf, ending, stop_fd)
            except Held as error:
                on_lost(error.message)
                return
            except NotFound:
                # There is no store yet, and nothing notifies when it is made.
                ending.wait(_AGAIN_S)
            except (HoldfastError, OSError) as error:
                announcement.warn(f"its agent's record is not kept in step: {error}")
                ending.wait(_AGAIN_S)

    thread = threading.Thread(target=run, name="holdfast-announcement", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        os.eventfd_write(stop_fd, 1)
        thread.join()
        os.close(stop_fd)
        announcement.withdraw()


def _follow(
    announcement: Announcement, hf: Holdfast, ending: threading.Event, stop_fd: int
) -> None:
    """Take the steps of an announcement: when the record changes, and before its lease ends."""
    while not ending.is_set():
        topics = announcement.topics()
        with hf.store.listen(topics) as listener:
            while not ending.is_set() and topics == announcement.topics():
                try:
                    pause_s = announcement.step(hf)
                except Lost:
                    # Another generation took the id during the step.
                    continue
                listener.wait(pause_s, also=[stop_fd])
