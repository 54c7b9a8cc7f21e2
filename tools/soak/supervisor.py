"""Begins the processes of a soak, kills them by a seeded plan, and lets them run dry."""

import contextlib
import os
import random
import signal
import time
import traceback
from pathlib import Path
from typing import NamedTuple

from holdfast.kernel.errors import Unavailable
from tools.soak.child import DRAIN, Board, Child, told
from tools.soak.parts import Part, cast, load
from tools.soak.programs import Program, programs

_DRAIN_S = 120.0


class Plan(NamedTuple):
    """What a soak is to be."""

    store: str
    seconds: float
    seed: int
    pause_s: float = 0.2
    """Between two blows, on average."""
    share: float = 1.0
    """Of the processes of each part."""


class Outcome(NamedTuple):
    """What a soak came to."""

    store: str
    seed: int
    seconds: float
    processes: int
    operations: int
    kills: int
    stops: int
    restarts: int
    recoveries: int
    fenced: int
    violations: list[str]

    def __str__(self) -> str:
        head = (
            f"{self.store} seed={self.seed} seconds={self.seconds:.0f} processes={self.processes}: "
            f"operations={self.operations} kills={self.kills} stops={self.stops} restarts={self.restarts} "
            f"recoveries={self.recoveries} fenced={self.fenced} violations={len(self.violations)}"
        )
        return "\n".join([head, *self.violations[:20]])


class Slot:
    """A place in the cast, filled by one process after the other."""

    def __init__(self, number: int, part: Part, name: str) -> None:
        self.number = number
        self.part = part
        self.name = name
        self.life = 0
        self.pid = 0
        self.stopped = False
        self.killed = False

    def begin(self, plan: Plan, url: str, folder: Path, board: Board) -> None:
        """Fork: everything is loaded already, and nothing is open yet."""
        child = Child(url, folder, board, self.number, self.name, self.life, plan.seed)
        self.killed = self.stopped = False
        self.pid = os.fork()
        if not self.pid:
            _live(child, self.part)
        self.life += 1

    def kill(self) -> None:
        """It is dead in a moment; on a busy machine that takes time, and others can be struck meanwhile."""
        os.kill(self.pid, signal.SIGKILL)
        self.killed = True

    def end(self, how: int = signal.SIGKILL) -> None:
        os.kill(self.pid, how)
        os.waitpid(self.pid, 0)
        self.pid, self.stopped = 0, False

    def ended(self) -> int | None:
        """Its exit status if it ended by itself; None while it lives."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        self.pid = 0
        return os.waitstatus_to_exitcode(status)


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
                # A restarted database, or one too busy: whoever hears it tries again.
                child.count("unsure")
                child.pause(0.2)
        hf.close()
        status = 0
    except BaseException:
        child.wrong(f"it failed: {traceback.format_exc()[-1500:]}")
    finally:
        os._exit(status)


class Supervisor:
    """One soak on one store."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        (folder / "witnesses").mkdir()
        load()
        self._slots = [Slot(number, part, name) for number, (part, name) in enumerate(cast(plan.share))]
        self._board = Board(len(self._slots))
        self._draw = random.Random(plan.seed)
        self._kills = self._stops = self._restarts = 0
        # The one who strikes must not wait in line behind dozens of processes; without the right to it, it does.
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, -10)

    def run(self) -> Outcome:
        """Begin, strike, run dry, look."""
        from tools.soak.ending import look

        with programs(self._plan.store, self._folder) as (url, beside):
            try:
                for slot in self._slots:
                    slot.begin(self._plan, url, self._folder, self._board)
                self._strike(url, beside)
                self._revive(url, beside)
                self._run_dry()
            finally:
                for slot in self._slots:
                    if slot.pid:
                        slot.end()
            if not self._violations():
                for what in look(url, self._folder):
                    self._wrong(what)
        return self._outcome()

    def _strike(self, url: str, beside: list[Program]) -> None:
        end_s = time.monotonic() + self._plan.seconds
        continues: list[tuple[float, Slot]] = []
        while time.monotonic() < end_s and not self._violations():
            time.sleep(self._draw.expovariate(1 / self._plan.pause_s))
            for at_s, slot in [one for one in continues if one[0] <= time.monotonic()]:
                continues.remove((at_s, slot))
                self._continue(slot)
            self._look_after(url)
            drawn = self._draw.random()
            if drawn < 0.02:
                program = self._draw.choice(beside)
                program.down()
                time.sleep(self._draw.uniform(0.0, 0.5))
                program.up()
                self._kills += 1
                self._restarts += 1
                continue
            slot = self._draw.choice([one for one in self._slots if one.part.mortal])
            if slot.killed:
                continue
            if drawn < 0.12 and not slot.stopped:
                os.kill(slot.pid, signal.SIGSTOP)
                slot.stopped = True
                self._stops += 1
                continues.append((time.monotonic() + self._draw.uniform(0.1, 3.0), slot))
            else:
                # A stopped one too: that is how a machine's out-of-memory killer finds them.
                continues = [one for one in continues if one[1] is not slot]
                slot.kill()
                self._kills += 1
        for _, slot in continues:
            self._continue(slot)

    def _continue(self, slot: Slot) -> None:
        if slot.stopped and not slot.killed:
            os.kill(slot.pid, signal.SIGCONT)
            slot.stopped = False

    def _look_after(self, url: str) -> None:
        """Put others in the place of the dead. Nobody ends by itself while the soak goes on."""
        for slot in self._slots:
            if (status := slot.ended()) is not None:
                if not slot.killed:
                    self._wrong(f"{slot.name} ended by itself with {status}")
                slot.begin(self._plan, url, self._folder, self._board)

    def _revive(self, url: str, beside: list[Program]) -> None:
        """Whoever was struck last has a successor too: what it left is everybody's to clear."""
        for program in beside:
            program.ready()
        while any(slot.killed for slot in self._slots):
            self._look_after(url)
            time.sleep(0.02)

    def _run_dry(self) -> None:
        """Begin nothing new, and wait until everybody has done what there was to do."""
        self._board.phase = DRAIN
        end_s = time.monotonic() + _DRAIN_S
        while (left := [slot for slot in self._slots if slot.pid]) and time.monotonic() < end_s:
            for slot in left:
                if (status := slot.ended()) not in (None, 0):
                    self._wrong(f"{slot.name} ended with {status}")
            time.sleep(0.05)
        for slot in left:
            if slot.pid:
                self._wrong(f"{slot.name} is stuck: it had {_DRAIN_S:.0f} s to come to an end")

    def _wrong(self, what: str) -> None:
        Child("", self._folder, self._board, 0, "supervisor", 0, 0).wrong(what)

    def _violations(self) -> list[str]:
        return [f"{one['by']}: {one['what']}" for one in told(self._folder, "violations")]

    def _outcome(self) -> Outcome:
        plan, board = self._plan, self._board
        return Outcome(
            plan.store,
            plan.seed,
            plan.seconds,
            len(self._slots),
            board.total("operations"),
            self._kills,
            self._stops,
            self._restarts,
            board.total("recoveries"),
            board.total("fenced"),
            self._violations(),
        )
