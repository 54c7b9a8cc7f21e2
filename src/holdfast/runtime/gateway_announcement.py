"""A gateway and the record of its agent: it says there where it listens, and vouches for the agent
for as long as it sees it. The rooms of both do not know each other, so it is done here.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from holdfast.adapters.gateway_client import GatewayClient
from holdfast.adapters.gateway_folder import GatewayFolder, Vouched
from holdfast.domains.agents import Agent, Gateway
from holdfast.domains.agents.liveness import process_liveness
from holdfast.domains.agents.ownership import topic_of
from holdfast.domains.agents.records import bare, canonical, id_of, lease_of
from holdfast.domains.gateway.adapter import AdapterSpec, TmuxSpec
from holdfast.kernel.errors import Ambiguous, Held, HoldfastError, LeaseLost, Lost, NotFound
from holdfast.kernel.holder import Holder, Liveness
from holdfast.kernel.lease import due
from holdfast.kernel.limits import GATEWAY_ANNOUNCE_EVERY_S
from holdfast.kernel.settings import Settings
from holdfast.runtime.connection import Holdfast, connected
from holdfast.runtime.gateway_address import Adapt, process_of, reach_of
from holdfast.runtime.gateway_identity import gateway_key, owner_for, owner_of

PROTOCOL = "v1"
_AGAIN_S = 1.0


class Announcement:
    """Keeps the record of a gateway's agent in step with the gateway, whatever generation it
    becomes: where it listens, and, for as long as the agent is seen, that the agent lives.

    `agent_id` is whom it is known to serve, and `spec` how it reaches its agent, `by_manifest` if
    that said so. A generation that is reached otherwise is not this gateway's; when one takes the
    id over, what the gateway reaches is the agent no more, and it must end. `seen` tells which
    instance of the agent is there, if any, `belong` has the queue say whose it is, and `bind` says
    which process the gateway may type to. `adapt` changes what the manifest says, as the gateway's
    user did. Where there is no such record, or the store does not answer, the gateway serves all
    the same: that is logged.
    """

    def __init__(
        self,
        agent: str,
        settings: Settings,
        gateway: Gateway,
        *,
        folder: GatewayFolder,
        agent_id: str | None,
        spec: AdapterSpec,
        by_manifest: bool,
        seen: Callable[[], str | None],
        belong: Callable[[str], None],
        bind: Callable[[Holder | None], None] = lambda _: None,
        adapt: Adapt = lambda spec: spec,
    ) -> None:
        self._agent = agent
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

    def step(self, hf: Holdfast) -> float:
        """Do what is to be done now, and return in how many seconds to look again. Raises Held when
        another gateway serves the agent, or another generation has it that is reached otherwise,
        and whatever the store raises.
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
        return min(lease_s / 3, GATEWAY_ANNOUNCE_EVERY_S)

    def begin(self, hf: Holdfast) -> None:
        """The first step. Refuses, as later ones do not, also when the agent has a gateway under
        another of its names, which was begun before the agent was known.
        """
        record = self._record(hf)
        if record is not None:
            for name in (
                record.agent_id,
                *([] if _has_another(hf, record) else [bare(record.agent_name)]),
            ):
                if owner_of(name, self._settings, hf.store) in (None, owner_for(record)):
                    self._refuse_another(record, self._folder.root.with_name(name))
        self.step(hf)

    def withdraw(self) -> None:
        """Say that the gateway listens no more, unless a later one has said its own."""
        if self._agent_id is None:
            return
        try:
            with _agents(self._settings) as hf, suppress(NotFound, LeaseLost):
                record = hf.agents.get(self._agent_id)
                if record.gateway == self._gateway:
                    hf.agents.attach_gateway(record.agent_id, record.generation_id, None)
        except HoldfastError as error:
            self.warn(f"its agent's record still says where the gateway was: {error.message}")

    def warn(self, what: str) -> None:
        """Log what is wrong, once."""
        if what != self._warned:
            logging.getLogger("holdfast.gateway").warning("%s", what)
        self._warned = what

    def topics(self) -> list[str]:
        """What is notified when the agent changes hands, under any id that it may come to have."""
        name = canonical(self._agent, self._settings.agents.prefix)
        ids = {self._agent, id_of(name)} | (set() if self._agent_id is None else {self._agent_id})
        return sorted(topic_of(one) for one in ids)

    def _record(self, hf: Holdfast) -> Agent | None:
        """The record of the agent that is served, fresh or not; else the one that the name or id
        leads to.
        """
        with suppress(NotFound):
            if self._agent_id is not None:
                return hf.agents.get(self._agent_id)
        return hf.agents.resolve(self._agent).record

    def _begins(self, record: Agent) -> bool:
        """An agent is published before its manifest is written: one that is seen in between for the
        first time is no fault.
        """
        last, self._last_generation = self._last_generation, record.generation_id
        return last != record.generation_id and not Path(record.runtime.manifest_path).exists()

    def _is_ours(self, hf: Holdfast, record: Agent) -> bool:
        try:
            key = gateway_key(self._agent, record, self._settings, hf.store)
        except Ambiguous as error:
            # What was served is gone, and the word leads to another by now.
            self.warn(f"no record says where the gateway is: {error.message}")
            return False
        if key != self._folder.root.name:
            self._refuse_another(record, self._folder.root.with_name(key))
            self.warn(
                f"{record.agent_name} is {record.agent_id} by now, and its gateway belongs under "
                f"{key}: start it anew"
            )
            return False
        try:
            if not self._is_elsewhere(record):
                if self._by_manifest and self._begins(record):
                    return False
                if not self._by_manifest or reach_of(record, self._adapt) == self._spec:
                    self._ours = record.generation_id
                    return True
        except HoldfastError as error:
            self.warn(f"its agent's record is left alone: {error.message}")
            return False
        self._stand_down(record)
        return False

    def _is_elsewhere(self, record: Agent) -> bool:
        """Does the record itself name another tmux session than the one that is typed into?"""
        return isinstance(self._spec, TmuxSpec) and record.session_name not in (
            None,
            self._spec.session,
        )

    def _stand_down(self, record: Agent) -> None:
        """Raises Held when the one that was served has lost its id: what is typed there would reach
        the wrong one. In the same generation only a setting is another; and whoever said how to
        reach the agent may have meant another session of it.
        """
        where = (
            f"in tmux session {record.session_name}" if self._is_elsewhere(record) else "otherwise"
        )
        words = (
            f"{record.agent_name} is generation {record.generation_id}, reached {where} by now: "
            "start its gateway anew"
        )
        if record.generation_id != self._ours and (self._by_manifest or self._ours is not None):
            raise Held(words, agent=self._agent, generation_id=record.generation_id)
        self.warn(words)

    def _refuse_another(self, record: Agent, root: Path) -> None:
        if root == self._folder.root or not GatewayClient(self._agent, root=root).answers():
            return
        raise Held(
            f"{record.agent_name} has a gateway already, in {root}: use it, or stop it with "
            "`holdfast gateway detach "
            f"{root.name}`",
            agent=self._agent,
        )

    def _lives(self, hf: Holdfast, record: Agent) -> bool:
        """Is the agent that is seen surely the one on record? A process that is dead is not, and
        neither is what came in the place of the instance that was first seen under this generation,
        though a restart may lie between.
        """
        seen = self._seen()
        if seen is None:
            return False
        if process_liveness(record, hf.processes, embedded=hf.store.embedded) is Liveness.DEAD:
            return False
        known = self._folder.vouched()
        if known is None or (known.generation_id, known.token) != (
            record.generation_id,
            record.token,
        ):
            known = Vouched(
                generation_id=record.generation_id, token=record.token, instance_id=seen
            )
            self._folder.write_vouched(known)
        return known.instance_id == seen


class _Keeping:
    """Takes the steps of an announcement in a thread: when the agent changes hands, and before its
    lease is over.
    """

    def __init__(
        self, announcement: Announcement, settings: Settings, on_lost: Callable[[str], None]
    ) -> None:
        self._announcement = announcement
        self._settings = settings
        self._on_lost = on_lost
        self._closing = threading.Event()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="holdfast-announcement", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        os.eventfd_write(self._bell, 1)
        self._thread.join()
        os.close(self._bell)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                with _agents(self._settings) as hf:
                    self._follow(hf)
            except Held as error:
                self._on_lost(error.message)
                return
            except NotFound:
                # There is no store yet. Nothing tells when it is made.
                self._closing.wait(_AGAIN_S)
            except (HoldfastError, OSError) as error:
                self._announcement.warn(f"its agent's record is not kept in step: {error}")
                self._closing.wait(_AGAIN_S)

    def _follow(self, hf: Holdfast) -> None:
        while not self._closing.is_set():
            topics = self._announcement.topics()
            with hf.store.listen(topics) as ears:
                while not self._closing.is_set() and topics == self._announcement.topics():
                    try:
                        pause_s = self._announcement.step(hf)
                    except Lost:
                        # It changed hands in between.
                        continue
                    ears.wait(pause_s, also=[self._bell])


def _has_another(hf: Holdfast, record: Agent) -> bool:
    """Is there an agent whose id follows from this one's name, so that what is kept under the name
    is that one's?
    """
    with suppress(NotFound):
        return hf.agents.get(id_of(record.agent_name)).agent_id != record.agent_id
    return False


@contextmanager
def announced(
    announcement: Announcement, settings: Settings, *, on_lost: Callable[[str], None]
) -> Iterator[None]:
    """For the time of a block, the agent's record says where its gateway listens, and the agent's
    lease is renewed for as long as it is seen. Raises Held when another gateway serves the agent,
    or what this one reaches is not the agent; when that is so later, `on_lost` is called and told
    why.
    """
    try:
        with _agents(settings) as hf:
            announcement.begin(hf)
    except Held:
        raise
    except HoldfastError as error:
        announcement.warn(f"its agent's record does not say where the gateway is: {error.message}")
    keeping = _Keeping(announcement, settings, on_lost)
    try:
        yield
    finally:
        keeping.close()
        announcement.withdraw()


@contextmanager
def _agents(settings: Settings) -> Iterator[Holdfast]:
    with closing(connected(settings, create=False)) as hf:
        yield hf
