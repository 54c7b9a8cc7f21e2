"""Starts the processes of a soak, kills them by a seeded plan, and lets them run dry."""

import random
import time
from pathlib import Path

from proof.soak import tree_parts
from proof.soak.child import DRAIN, Board, Child, hurry, read_log
from proof.soak.outcome import Outcome, Plan, Tally
from proof.soak.parts import cast, load
from proof.soak.programs import Program, programs
from proof.soak.slot import Slot

_DRAIN_S = 120.0
_BEHIND_S = 1.0
_BESIDE = 0.04
"""The share of kills and stops that hit programs."""
_STOPPED = 0.1
"""The share of the others that stop a process for a while instead of killing it."""


class Supervisor:
    """One soak on one store."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        (folder / "witnesses").mkdir()
        (folder / tree_parts.WITNESSES).mkdir()
        load()
        self._slots = [
            Slot(number, part, name)
            for number, (part, name) in enumerate(cast(plan.share, plan.parts))
        ]
        self._board = Board(len(self._slots))
        self._draw = random.Random(plan.seed)
        self._tally = Tally()
        self._continues: list[tuple[float, Slot | Program]] = []
        hurry()

    def run(self) -> Outcome:
        """Start, kill, run dry, check."""
        from proof.soak.ending import look

        with programs(self._plan, self._folder) as (url, beside):
            self._plant()
            for kind in [
                *(slot.kind for slot in self._slots),
                *(program.kind for program in beside),
            ]:
                self._tally.add(kind, "processes")
            try:
                for slot in self._slots:
                    slot.begin(self._plan, url, self._folder, self._board)
                self._strike(url, beside)
                self._revive(url, beside)
                self._run_dry(beside)
            finally:
                for slot in self._slots:
                    if slot.pid:
                        slot.end()
            if not self._violations():
                for what in look(url, self._folder):
                    self._wrong(what)
        return self._outcome()

    def _plant(self) -> None:
        """Plant a bug into this process and so into each fork. Commands of the soak plant it
        themselves.
        """
        if self._plan.plant:
            from proof.bugs import plant

            plant(self._plan.plant, random.Random(self._plan.seed))

    def _strike(self, url: str, beside: list[Program]) -> None:
        """Run until the time is over. Each program is killed at least once, however short the time
        is.
        """
        began_s = time.monotonic()
        turns = self._draw.sample(beside, len(beside))
        due = [
            (self._plan.seconds * (at + 1) / (len(turns) + 1), program)
            for at, program in enumerate(turns)
        ]
        next_s = 0.0
        while (
            passed_s := time.monotonic() - began_s
        ) < self._plan.seconds and not self._violations():
            # The time that a kill takes is subtracted from the pause, if it is short.
            next_s = max(
                next_s + self._draw.expovariate(1 / self._plan.pause_s), passed_s - _BEHIND_S
            )
            time.sleep(max(next_s - passed_s, 0.0))
            self._continue()
            self._look_after(url)
            self._tend(beside)
            if due and due[0][0] <= passed_s:
                self._strike_program(due.pop(0)[1], "kills")
            elif beside and self._draw.random() < _BESIDE:
                self._strike_program(
                    self._draw.choice(beside),
                    self._draw.choice(["kills", "kills", "ends", "stops"]),
                )
            else:
                self._strike_slot(
                    *self._draw.choices(self._slots, [one.part.struck for one in self._slots])
                )
        for _, program in [] if self._violations() else due:
            self._strike_program(program, "kills")
        self._continue(all_of_them=True)

    def _strike_slot(self, slot: Slot) -> None:
        if slot.killed:
            return
        if self._draw.random() < _STOPPED and not slot.stopped:
            slot.stop()
            self._tally.add(slot.kind, "stops")
            self._continue_later(slot)
        else:
            # Stopped processes too: a machine's out-of-memory killer does the same.
            slot.kill()

    def _strike_program(self, program: Program, how: str) -> None:
        """Kill it, even while it starts or is stopped; a serving one may be stopped or ended
        instead. `tend` restarts it.
        """
        if how == "kills" or program.stopped or not program.serves:
            if program.kill():
                self._tally.add(program.kind, "kills")
        elif how == "stops":
            program.stop()
            self._tally.add(program.kind, "stops")
            self._continue_later(program)
        else:
            program.end()

    def _continue_later(self, one: Slot | Program) -> None:
        self._continues.append((time.monotonic() + self._draw.uniform(0.1, 3.0), one))

    def _continue(self, *, all_of_them: bool = False) -> None:
        """Continue those whose time has come, unless they were killed meanwhile."""
        now_s = time.monotonic()
        due = [one for one in self._continues if all_of_them or one[0] <= now_s]
        self._continues = [one for one in self._continues if one not in due]
        for _, stopped in due:
            if stopped.stopped:
                stopped.go_on()

    def _look_after(self, url: str) -> None:
        """Replace dead processes. No process ends by itself during the soak."""
        for slot in self._slots:
            if (status := slot.ended()) is not None:
                if slot.struck_down(status):
                    self._tally.add(slot.kind, "kills")
                else:
                    self._wrong(f"{slot.name} ended by itself with {status}")
                slot.begin(self._plan, url, self._folder, self._board)
                self._tally.add(slot.kind, "restarts")

    def _tend(self, beside: list[Program]) -> None:
        for program in beside:
            try:
                for what in program.tend():
                    self._tally.add(program.kind, what)
            except RuntimeError as error:
                self._wrong(str(error))

    def _revive(self, url: str, beside: list[Program]) -> None:
        """The last killed process has a successor too: every process may remove what it left."""
        while not self._violations():
            self._tend(beside)
            self._look_after(url)
            if all(one.serves for one in beside) and not any(slot.killed for slot in self._slots):
                return
            time.sleep(0.02)

    def _run_dry(self, beside: list[Program]) -> None:
        """Start nothing new, and wait until all have finished their work."""
        self._board.phase = DRAIN
        end_s = time.monotonic() + _DRAIN_S
        while (left := [slot for slot in self._slots if slot.pid]) and time.monotonic() < end_s:
            if self._plan.plant and self._violations():
                # A planted bug was found, and may leave work that nobody can finish.
                return
            self._tend(beside)
            for slot in left:
                # After a violation some killed processes have no successor.
                if (status := slot.ended()) is not None and status and not slot.struck_down(status):
                    self._wrong(f"{slot.name} ended with {status}")
            time.sleep(0.05)
        for slot in left:
            if slot.pid:
                self._wrong(f"{slot.name} is stuck: it had {_DRAIN_S:.0f} s to come to an end")

    def _wrong(self, what: str) -> None:
        Child("", self._folder, self._board, 0, "supervisor", 0, 0).wrong(what)

    def _violations(self) -> list[str]:
        return [f"{one['by']}: {one['what']}" for one in read_log(self._folder, "violations")]

    def _outcome(self) -> Outcome:
        for slot in self._slots:
            for what in ("operations", "recoveries", "kills", "stops", "restarts"):
                self._tally.add(slot.kind, what, self._board.of(slot.number, what))
        fenced, unsure = self._board.total("fenced"), self._board.total("unsure")
        return Outcome(self._plan, self._tally, fenced, unsure, self._violations())
