"""Telling at once that a lock was lost while the command under it runs."""

import signal
import threading

from holdfast.kernel.limits import JOURNAL_READ_MAX
from holdfast.primitives.locks import Grant
from holdfast.primitives.locks.grant import lost
from holdfast.processes.command import Command
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.cli.output import remark

ON_LOST = ("term", "ignore")
_TAKEN_FROM_THE_LIVING = ("lock.kicked", "lock.lease_expired")


class Losing:
    """Waits for a grant to be lost; then says so, and ends the command unless it is to be left
    alone.

    A command that ends is a dead holder, whose grant the next in line may take before this process
    can release it. That is no loss: only a grant that was taken away before the command ended is
    lost.
    """

    def __init__(self, hf: Holdfast, grant: Grant, command: Command, on_lost: str) -> None:
        self._hf = hf
        self._grant = grant
        self._command = command
        self._term = on_lost == "term"
        self._mutex = threading.Lock()
        self._told = False
        # Asked for here and not in the thread, which may begin late.
        self._lost = grant.lost
        threading.Thread(target=self._watch, name="holdfast-losing", daemon=True).start()

    def was_lost(self) -> bool:
        """Was it, by now that the command has ended and the grant was released? Says so if that was
        not said yet.
        """
        if self._grant.gone == "lost" and not self._told:
            entries, _ = self._hf.log.tail(JOURNAL_READ_MAX)
            if any(
                one.kind in _TAKEN_FROM_THE_LIVING and one.data.get("token") == self._grant.token
                for one in entries
            ):
                self._tell()
        return self._told

    def _watch(self) -> None:
        self._lost.wait()
        if not self._command.ended():
            self._tell()
            if self._term:
                self._command.send(signal.SIGTERM)

    def _tell(self) -> None:
        with self._mutex:
            if not self._told:
                self._told = True
                remark(lost(self._grant).message)
