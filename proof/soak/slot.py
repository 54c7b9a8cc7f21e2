"""A slot of a soak, and the whole life of the process that fills it."""

import os
import signal
import traceback
from pathlib import Path

from holdfast.kernel.errors import Unavailable
from proof.soak.child import Board, Child
from proof.soak.outcome import Plan
from proof.soak.parts import Part


class Slot:
    """A slot, filled by one process after the other."""

    def __init__(self, number: int, part: Part, name: str) -> None:
        self.number = number
        self.part = part
        self.kind = part.name
        self.name = name
        self.life = 0
        self.pid = 0
        self.stopped = False
        self.killed = False

    def begin(self, plan: Plan, url: str, folder: Path, board: Board) -> None:
        """Fork: everything is loaded already, and nothing is open yet."""
        child = Child(url, folder, board, self.number, self.name, self.life, plan.seed, plan.plant)
        self.killed = self.stopped = False
        self.pid = os.fork()
        if not self.pid:
            _live(child, self.part)
        self.life += 1

    def kill(self) -> None:
        """It dies in a moment. On a busy machine that takes time, and others can be killed
        meanwhile.
        """
        os.kill(self.pid, signal.SIGKILL)
        self.killed = True

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        self.stopped = True

    def go_on(self) -> None:
        """Continue it, if it was stopped and not killed since."""
        if self.stopped and not self.killed:
            os.kill(self.pid, signal.SIGCONT)
            self.stopped = False

    def end(self) -> None:
        """End it and wait for its end."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.pid, self.stopped = 0, False

    def ended(self) -> int | None:
        """Its exit status if it ended by itself; None while it lives."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def struck_down(self, status: int) -> bool:
        """Is this the end of a killed process?"""
        return self.killed and status == -signal.SIGKILL


def _live(child: Child, part: Part) -> None:
    """The whole life of a child. Never returns."""
    status = 1
    try:
        child.begin()
        hf = child.connect()
        while True:
            try:
                if not part.play(child, hf):
                    break
            except Unavailable:
                # A restarted or busy database: the part tries again.
                child.count("unsure")
                child.pause(0.2)
        hf.close()
        status = 0
    except BaseException:
        child.wrong(f"it failed: {traceback.format_exc()[-1500:]}")
    finally:
        os._exit(status)
