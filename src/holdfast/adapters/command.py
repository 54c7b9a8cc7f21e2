"""An agent that is a program, run once for each prompt: a headless one.

It gets the prompt on its standard input or as its last argument, never through a shell, and runs in a process group of its own.
What it prints is the answer. An interrupt is SIGINT, then SIGTERM, then SIGKILL, to the whole group.

It begins only when its process is noted: there is no moment at which a gateway that is killed leaves a program at work that the
next one does not know of.
"""

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, NamedTuple

from holdfast.adapters.held_program import HeldProgram
from holdfast.adapters.process_note import ProcessNote, ended_within, signal_group
from holdfast.domains.gateway.adapter import Answer, Delivery, Sighting, Surface
from holdfast.domains.gateway.spec import CommandSpec
from holdfast.kernel import faults
from holdfast.kernel.errors import InvalidValue, NotFound, UpstreamUnavailable
from holdfast.kernel.limits import ANSWER_CHARS_MAX
from holdfast.processes.procfs import Procfs

_ESCALATE_S = 5.0
_TICK_S = 0.1
_ARGUMENT_BYTES_MAX = 128 * 1024 - 1
"""What Linux lets one argument have."""
_OUTPUT_BYTES_MAX = 64 << 20
_ERROR_CHARS_MAX = 2000


class _Run(NamedTuple):
    """One run of the program, and the files that it writes to."""

    process: "subprocess.Popen[bytes]"
    pidfd: int
    output: IO[bytes]
    errors: IO[bytes]
    begun_s: float


class CommandAgent:
    """A program as an agent. `note` is a file in which the running process is named, so that a gateway that was killed does not
    leave a program behind that works beside the next one: the next gateway ends it."""

    backend = "command"

    def __init__(self, spec: CommandSpec, *, note: Path, processes: Procfs) -> None:
        if not spec.argv:
            raise InvalidValue("there is no command: give the program behind --", field="argv")
        self._spec = spec
        self._note = ProcessNote(note, processes)
        self._mutex = threading.Lock()
        self._run: _Run | None = None
        self._signals: list[tuple[float, int]] = []
        self._ending = False
        self._begun = False

    def inspect(self) -> Sighting:
        if not self._begun:
            # With the first look and not before: by then this process is the one that serves.
            if (left := self._note.end_named()) is not None:
                return Sighting(None, detail=f"pid {left}, which an earlier gateway began, does not end: end it by hand")
            self._begun = True
        program = shutil.which(self._spec.argv[0], path=os.environ.get("PATH"))
        if program is None:
            return Sighting(None, detail=f"there is no program {self._spec.argv[0]}: install it, or give its path")
        folder = self._spec.working_directory
        if folder is not None and not os.path.isdir(folder):
            return Sighting(None, detail=f"there is no folder {folder} to run it in")
        # The program has no life between prompts; what makes it this agent and no other is how it is called.
        called = "\0".join([program, folder or "", self._spec.prompt_as, *self._spec.argv[1:]])
        name = f"command:{hashlib.sha256(called.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}"
        return Sighting(name, Surface.READY if self._run is None else Surface.NOT_READY)

    def check(self, prompt: str) -> None:
        if self._spec.prompt_as == "argument" and len(prompt.encode()) > _ARGUMENT_BYTES_MAX:
            raise InvalidValue(
                f"an argument can have {_ARGUMENT_BYTES_MAX} bytes and the prompt has more: let the program read it from stdin",
                field="prompt",
            )

    def deliver(self, prompt: str, instance_id: str) -> Delivery:  # noqa: ARG002 - what is started here is that instance
        argv = list(self._spec.argv)
        try:
            with tempfile.TemporaryFile() as given:
                if self._spec.prompt_as == "argument":
                    argv.append(prompt)
                else:
                    given.write(prompt.encode())
                    given.seek(0)
                run = self._started(argv, given)
        except (OSError, ValueError, NotFound) as error:
            # Until it is let begin nothing has happened, also where the disk is full or there are too many processes.
            raise UpstreamUnavailable(f"{argv[0]} cannot be run: {error}", outcome="none") from None
        with self._mutex:
            self._run, self._signals, self._ending = run, [], False
        return Delivery(run)

    def answer(self, delivery: Delivery, stop: threading.Event) -> Answer:
        run: _Run = delivery.handle
        try:
            why = self._watched(run, stop)
            status = run.process.wait()
            return _answer(run, status, why)
        finally:
            os.close(run.pidfd)
            run.output.close()
            run.errors.close()
            self._note.remove()

    def interrupt(self, instance_id: str) -> bool:  # noqa: ARG002 - only what runs here is meant
        with self._mutex:
            if self._run is None:
                return False
            self._end_group(signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
        return True

    def close(self) -> None:
        with self._mutex:
            if self._run is not None:
                signal_group(self._run.process.pid, signal.SIGKILL)

    def _started(self, argv: list[str], given: IO[bytes]) -> _Run:
        with contextlib.ExitStack() as undone:
            output = undone.enter_context(tempfile.TemporaryFile())
            errors = undone.enter_context(tempfile.TemporaryFile())
            held = HeldProgram(argv, stdin=given, stdout=output, stderr=errors, cwd=self._spec.working_directory)
            undone.callback(self._note.remove)
            undone.callback(held.drop)
            pidfd = os.pidfd_open(held.process.pid)
            undone.callback(os.close, pidfd)
            faults.reach("command.started")
            self._note.write(held.process.pid)
            faults.reach("command.noted")
            held.begin()
            undone.pop_all()
        faults.reach("command.begun")
        return _Run(held.process, pidfd, output, errors, time.monotonic())

    def _watched(self, run: _Run, stop: threading.Event) -> str:
        """Until the program has ended; why it was ended, if it was."""
        why = ""
        while not ended_within(run.pidfd, _TICK_S):
            with self._mutex:
                now_s = time.monotonic()
                if not why and (why := self._too_much(run, now_s, stop)):
                    self._end_group(signal.SIGTERM, signal.SIGKILL)
                while self._signals and self._signals[0][0] <= now_s:
                    signal_group(run.process.pid, self._signals.pop(0)[1])
        with self._mutex:
            if self._ending:
                # What it has begun may have ignored what ended it. Its number is not given to another before `wait`.
                signal_group(run.process.pid, signal.SIGKILL)
            # From here on an interrupt finds nothing to stop, and signals no number that may be another's by then.
            self._run = None
        return why

    def _too_much(self, run: _Run, now_s: float, stop: threading.Event) -> str:
        if stop.is_set():
            return "stopped"
        if now_s - run.begun_s > self._spec.answer_timeout_s:
            return f"it did not end within {self._spec.answer_timeout_s:g} s"
        if any(os.fstat(file.fileno()).st_size > _OUTPUT_BYTES_MAX for file in (run.output, run.errors)):
            return f"it printed more than {_OUTPUT_BYTES_MAX} bytes"
        return ""

    def _end_group(self, *signals: int) -> None:
        """Send the first signal now and each next one some seconds later, while there is somebody to send it to."""
        assert self._run is not None
        now_s = time.monotonic()
        self._ending = True
        signal_group(self._run.process.pid, signals[0])
        self._signals = [(now_s + _ESCALATE_S * step, number) for step, number in enumerate(signals[1:], start=1)]


def _answer(run: _Run, status: int, why: str) -> Answer:
    text = _tail(run.output, ANSWER_CHARS_MAX * 4)
    facts = {"exit_status": status}
    if why == "stopped":
        return Answer(text, "stdout", known=False, code="stopped", detail="the gateway was stopped", facts=facts)
    if why:
        return Answer(text, "stdout", code="timeout" if "within" in why else "agent_failed", detail=why, facts=facts)
    if status != 0:
        said = _tail(run.errors, _ERROR_CHARS_MAX).strip()
        how = f"exit status {status}" if status > 0 else f"ended by {signal.Signals(-status).name}"
        return Answer(text, "stdout", code="agent_failed", detail=f"{how}: {said}" if said else how, facts=facts)
    return Answer(text, "stdout", facts=facts)


def _tail(file: IO[bytes], size: int) -> str:
    end = file.seek(0, os.SEEK_END)
    file.seek(max(end - size, 0))
    return file.read().decode("utf-8", "replace")
