"""The files beside a gateway, kept in step with it: its status when that changes, and its events as
they come.

The mirror follows the journal from where its last line left off, so that nothing is missing and
nothing twice, also after a kill. That it cannot write never hinders the gateway.
"""

import logging
import os
import threading
from collections.abc import Callable

from holdfast.adapters.gateway_folder import CurrentInstance, GatewayFolder
from holdfast.domains.gateway import Gateway, Status
from holdfast.domains.gateway.records import left_by
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import HoldfastError, InvalidValue
from holdfast.kernel.limits import GATEWAY_EVENTS_BYTES_MAX
from holdfast.kernel.store import BEGINNING, JOURNAL_TOPIC, Batch
from holdfast.primitives.queue.transaction import topic_of

_AGAIN_S = 1.0
_TOGETHER_S = 0.1
_log = logging.getLogger("holdfast.gateway")


class Mirror:
    """A thread that writes the files of one gateway, which is served at an address."""

    def __init__(self, gateway: Gateway, folder: GatewayFolder, *, host: str, port: int) -> None:
        self._gateway = gateway
        self._folder = folder
        self._host = host
        self._port = port
        self._written: Status | None = None
        self._instance: CurrentInstance | None = None
        self._cursor, self._after = self._place()
        self._closing = threading.Event()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._follow, name="holdfast-mirror", daemon=True)

    def start(self) -> None:
        """Write what there is now, if that can be, then go on in the background."""
        self._gateway.on_change = self.wake
        self._guarded(self._step)
        self._thread.start()

    def wake(self) -> None:
        """Look at once."""
        if not self._closing.is_set():
            os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Write the last of it: that nobody serves any more."""
        self._gateway.on_change = lambda: None
        os.eventfd_write(self._bell, 1)
        self._closing.set()
        self._thread.join()
        os.close(self._bell)
        if self._folder.instance() != self._instance:
            # Another gateway has taken over, and the files are its own now.
            return
        self._guarded(self._step)
        self._guarded(lambda: self._folder.write_state(left_by(self._gateway.status())))
        self._folder.remove_instance()

    def _follow(self) -> None:
        while not self._closing.is_set():
            try:
                with self._gateway.queue.store.listen(
                    [JOURNAL_TOPIC, topic_of(self._gateway.agent)]
                ) as ears:
                    while not self._closing.is_set():
                        self._step()
                        ears.wait(None, also=[self._bell])
                        # What comes in the next moment is written together: under load each change
                        # would be a file of its own.
                        self._closing.wait(_TOGETHER_S)
                        self._silence()
            except (HoldfastError, OSError) as error:
                _log.warning("files not written agent=%s: %s", self._gateway.agent, error)
                self._closing.wait(_AGAIN_S)

    def _silence(self) -> None:
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            # It was the store that woke us.
            return

    def _guarded(self, write: Callable[[], object]) -> None:
        try:
            write()
        except (HoldfastError, OSError) as error:
            _log.warning("files not written agent=%s: %s", self._gateway.agent, error)

    def _step(self) -> None:
        status = self._gateway.status()
        if status != self._written:
            self._folder.write_state(status)
            self._written = status
        instance = CurrentInstance(
            pid=os.getpid(),
            host=self._host,
            port=self._port,
            managed_agent_instance_epoch=status.managed_agent_instance_epoch,
            managed_agent_instance_id=status.managed_agent_instance_id,
        )
        if instance != self._instance:
            self._folder.write_instance(instance)
            self._instance = instance
        self._append()

    def _append(self) -> None:
        while (batch := self._behind()).entries:
            revisions = [entry.revision for entry in batch.entries]
            entries = (
                batch.entries[revisions.index(self._after) + 1 :]
                if self._after in revisions
                else batch.entries
            )
            mine = [entry for entry in entries if entry.data.get("agent") == self._gateway.agent]
            if mine:
                place = b'{"cursor":' + to_json(self._cursor) + b","
                lines = [place + to_json(entry)[1:] for entry in mine]
                self._folder.append_events(lines, bytes_max=GATEWAY_EVENTS_BYTES_MAX)
            self._cursor, self._after = batch.cursor, 0

    def _behind(self) -> Batch:
        journal = self._gateway.queue.store.journal
        try:
            return journal(self._cursor)
        except InvalidValue:
            # The last line was read from another store: the queue was moved, and its journal begins
            # anew.
            _log.warning(
                "the journal is another one: all of its events follow agent=%s", self._gateway.agent
            )
            self._cursor, self._after = BEGINNING, 0
            return journal(self._cursor)

    def _place(self) -> tuple[str, int]:
        """Where the last line left off: the place it was read from, and its revision."""
        last = self._folder.last_event() or {}
        cursor, revision = last.get("cursor", BEGINNING), last.get("revision", 0)
        return (
            (cursor, revision)
            if isinstance(cursor, str) and isinstance(revision, int)
            else (BEGINNING, 0)
        )
