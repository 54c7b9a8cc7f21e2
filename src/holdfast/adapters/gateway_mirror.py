"""Mirrors a gateway into the files of its folder: its status when it changes, and its events.

The mirror follows the journal from the last line of the events on, so that no event is missing or
written twice, also after a kill. A failed write never stops the gateway.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable

from holdfast.adapters.gateway_folder import CurrentInstance, GatewayFolder
from holdfast.domains.gateway import Gateway, GatewayStatus
from holdfast.domains.gateway.records import left_by
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import HoldfastError, InvalidValue
from holdfast.kernel.limits import GATEWAY_EVENTS_BYTES_MAX
from holdfast.kernel.store import BEGINNING, JOURNAL_TOPIC, Batch
from holdfast.primitives.queue.transaction import topic_of

_AGAIN_S = 1.0
_TOGETHER_S = 0.1
_log = logging.getLogger("holdfast.gateway")


class GatewayMirror:
    """A thread that writes the files of one gateway, which listens at `host` and `port`."""

    def __init__(self, gateway: Gateway, folder: GatewayFolder, *, host: str, port: int) -> None:
        self._gateway = gateway
        self._folder = folder
        self._host = host
        self._port = port
        self._written: GatewayStatus | None = None
        self._instance: CurrentInstance | None = None
        self._cursor, self._after = self._place()
        self._closing = threading.Event()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._follow, name="holdfast-mirror", daemon=True)

    def start(self) -> None:
        """Write the present state, then go on in the background."""
        self._gateway.on_change = self.wake
        self._try(self._step)
        self._thread.start()

    def wake(self) -> None:
        """Look for changes at once."""
        if not self._closing.is_set():
            os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Stop, and write that the gateway serves no more."""
        self._gateway.on_change = lambda: None
        os.eventfd_write(self._bell, 1)
        self._closing.set()
        self._thread.join()
        os.close(self._bell)
        if self._folder.instance() != self._instance:
            # Another gateway has taken over, and the files belong to it now.
            return
        self._try(self._step)
        self._try(lambda: self._folder.write_state(left_by(self._gateway.status())))
        self._folder.remove_instance()

    def _follow(self) -> None:
        while not self._closing.is_set():
            if not self._try(self._listen):
                self._closing.wait(_AGAIN_S)

    def _listen(self) -> None:
        topics = [JOURNAL_TOPIC, topic_of(self._gateway.agent)]
        with self._gateway.queue.store.listen(topics) as listener:
            while not self._closing.is_set():
                self._step()
                listener.wait(None, also=[self._bell])
                # Changes within a moment are written together: under load, each one would replace
                # the files.
                self._closing.wait(_TOGETHER_S)
                # The step sees what was notified meanwhile, which would else begin another one.
                listener.wait(0)
                # Empty when the store woke this thread, and not the bell.
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._bell)

    def _try(self, write: Callable[[], object]) -> bool:
        try:
            write()
        except (HoldfastError, OSError) as error:
            _log.warning("files not written agent=%s: %s", self._gateway.agent, error)
            return False
        return True

    def _step(self) -> None:
        status = self._gateway.status()
        if status != self._written:
            self._folder.write_state(status)
            self._written = status
        server = self._gateway.attachment.server
        instance = CurrentInstance(
            pid=os.getpid(),
            process=None if server is None else server.process,
            host=self._host,
            port=self._port,
            managed_agent_instance_epoch=status.managed_agent_instance_epoch,
            managed_agent_instance_id=status.managed_agent_instance_id,
        )
        if instance != self._instance:
            self._folder.write_instance(instance)
            self._instance = instance
        while (batch := self._behind()).entries:
            # The first batch begins at the cursor of the last line: skip what was written before.
            entries = batch.behind(self._after)
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
            # The last line has a cursor of another store: the queue was moved, and its journal
            # starts at its beginning.
            _log.warning(
                "the journal is another one: all of its events follow agent=%s", self._gateway.agent
            )
            self._cursor, self._after = BEGINNING, 0
            return journal(self._cursor)

    def _place(self) -> tuple[str, int]:
        """The cursor that the last line was read from, and the line's revision."""
        last = self._folder.last_event() or {}
        cursor, revision = last.get("cursor", BEGINNING), last.get("revision", 0)
        if isinstance(cursor, str) and isinstance(revision, int):
            return cursor, revision
        return BEGINNING, 0
