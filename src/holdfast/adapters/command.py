"""An agent that is a program, run once for each prompt: a headless agent.

The program gets the prompt on standard input or as its last argument, never through a shell. It
leads a session and a process group of its own, and runs in custody: the program and everything that
it starts are one process tree. Its standard output is the answer.

An interrupt is SIGINT to its process group, then SIGTERM to the whole tree, then SIGKILL. Processes
that the program leaves running are ended too: the next prompt begins only when no process of the
tree is left. The tree also ends when the gateway dies. A program begins only after its note was
written, so that the next gateway knows every tree that may still run.
"""

import contextlib
import hashlib
import json
import os
import select
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, NamedTuple

from holdfast.domains.gateway.adapter import Adapter, Answer, CommandSpec, Delivery, Observation
from holdfast.domains.gateway.state import AgentState
from holdfast.kernel import faults
from holdfast.kernel.errors import (
    InvalidValue,
    NotFound,
    StoreUnavailable,
    Unavailable,
    UpstreamUnavailable,
)
from holdfast.kernel.holder import Liveness
from holdfast.kernel.limits import ANSWER_CHARS_MAX
from holdfast.processes.command import Command
from holdfast.processes.procfs import Procfs
from holdfast.system.access import make_folder, read_file, remove_file, replace_file

_ESCALATE_S = 5.0
"""How long a program may take to end after SIGINT, and its tree after SIGTERM."""
_TICK_S = 0.1
_ARGUMENT_BYTES_MAX = 128 * 1024 - 1
"""The limit of Linux for one argument (MAX_ARG_STRLEN)."""
_OUTPUT_BYTES_MAX = 64 << 20
_ERROR_CHARS_MAX = 2000
_KILLED_S = 2.0
"""How long the kernel may take to end a killed process; only a disk that hangs takes longer."""


class ProcessNote:
    """A file that names the process tree that a gateway runs, and its first process. By it the next
    gateway finds and ends the tree.

        {"pid": 4711, "start_ticks": 123456, "boot_id": "...", "tree": "1000-0123456789abcdef"}

    A note without `tree` was written by a version that ran programs in a process group alone.
    """

    def __init__(self, path: Path, processes: Procfs) -> None:
        self._path = path
        self._processes = processes

    def write(self, pid: int, tree: str) -> None:
        """Name a tree. Raises OSError and StoreUnavailable, and NotFound when its first process has
        ended already.
        """
        holder = self._processes.of(pid)
        document = {
            "pid": pid,
            "start_ticks": holder.start_ticks,
            "boot_id": holder.boot_id,
            "tree": tree,
        }
        make_folder(self._path.parent)
        replace_file(self._path, json.dumps(document).encode(), private=True)

    def remove(self) -> None:
        remove_file(self._path)

    def exists(self) -> bool:
        """Is there a note? A tree that nobody watches may have ended all the same."""
        return self._path.exists()

    def tree(self) -> str | None:
        """The id of the tree in the note, if there is one."""
        try:
            tree = json.loads(read_file(self._path, private=True)).get("tree")
        except (OSError, StoreUnavailable, ValueError, AttributeError):
            return None
        return tree if isinstance(tree, str) else None

    def end_named(self, grace_s: float) -> list[int]:
        """End the tree in the note and wait until it is gone. Returns the pids that do not end:
        then the note stays.
        """
        try:
            document = json.loads(read_file(self._path, private=True))
            pid, tree = int(document["pid"]), document.get("tree")
            start_ticks, boot_id = document["start_ticks"], document["boot_id"]
        except (OSError, StoreUnavailable, ValueError, KeyError, TypeError, AttributeError):
            # There is no note, or its writer was killed or had no disk space. A program begins only
            # after its note is written, so none runs.
            self.remove()
            return []
        left: list[int] = []
        if boot_id == self._processes.boot_id():
            if tree is None:
                left = self._end_group(pid, start_ticks)
            else:
                left = self._end_tree(pid, str(tree), grace_s)
        if not left:
            self.remove()
        return left

    def _end_tree(self, pid: int, tree: str, grace_s: float) -> list[int]:
        trees = self._processes.trees

        def is_alive() -> bool:
            return trees.liveness(tree, in_sight=True) is Liveness.ALIVE

        # A tree that cannot be seen, as where /proc hides other users' processes, cannot be waited
        # for.
        if not is_alive() or trees.end(tree, grace_s) or not is_alive():
            return []
        return [one.pid for one in trees.survivors(tree)] or [pid]

    def _end_group(self, pid: int, start_ticks: object) -> list[int]:
        try:
            pidfd = os.pidfd_open(pid)
        except (OSError, OverflowError):
            return []
        try:
            # Checked after the pidfd was opened: before that, another process may have got the
            # pid.
            seen = self._processes.process_stat(pid)
            if seen is None or seen.zombie or seen.start_ticks != start_ticks:
                return []
            signal_group(pid, signal.SIGKILL)
            # Not `select`, which takes no descriptor above 1023.
            waiting = select.poll()
            waiting.register(pidfd, select.POLLIN)
            return [] if waiting.poll(_KILLED_S * 1000) else [pid]
        finally:
            os.close(pidfd)


def signal_group(pid: int, number: int) -> None:
    """Signal the process group that a process leads, if any of it can be signalled."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


class _Run(NamedTuple):
    command: Command
    output: IO[bytes]
    errors: IO[bytes]
    started_s: float


class CommandAgent(Adapter):
    """A program as an agent. `note` is a file that names the running tree: the next gateway ends
    the tree of a killed gateway before it delivers anything.
    """

    backend = "command"

    def __init__(self, spec: CommandSpec, *, note: Path, processes: Procfs) -> None:
        if not spec.command:
            raise InvalidValue("there is no command: give the program behind --", field="command")
        self._spec = spec
        self._note = ProcessNote(note, processes)
        self._processes = processes
        self._mutex = threading.Lock()
        self._run: _Run | None = None
        self._end_s: float | None = None
        """When the tree of an interrupted program is to be ended."""
        self._started = False

    def inspect(self) -> Observation:
        if not self._started:
            # Not before the first look: by then this process is the gateway that serves.
            if left := self._note.end_named(_ESCALATE_S):
                pids = ", ".join(map(str, left))
                return Observation(
                    None,
                    detail=f"pid {pids}, which an earlier gateway started, does not end: end it "
                    "by hand",
                )
            self._processes.trees.sweep()
            self._started = True
        program = shutil.which(self._spec.command[0], path=os.environ.get("PATH"))
        if program is None:
            return Observation(
                None,
                detail=f"there is no program {self._spec.command[0]}: install it, or give its path",
            )
        folder = self._spec.working_directory
        if folder is not None and not os.path.isdir(folder):
            return Observation(None, detail=f"there is no folder {folder} to run it in")
        # No process lives between prompts, so the instance is identified by the command line.
        identity = "\0".join([program, folder or "", self._spec.prompt_as, *self._spec.command[1:]])
        digest = hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        return Observation(
            f"command:{digest}", AgentState.READY if self._run is None else AgentState.WORKING
        )

    def check(self, prompt: str) -> None:
        if self._spec.prompt_as == "argument" and len(prompt.encode()) > _ARGUMENT_BYTES_MAX:
            raise InvalidValue(
                f"an argument can have {_ARGUMENT_BYTES_MAX} bytes and the prompt has more: let "
                "the program read it from stdin",
                field="prompt",
            )

    def deliver(self, prompt: str, instance_id: str) -> Delivery:  # noqa: ARG002 - the program that starts here is the instance
        argv = list(self._spec.command)
        try:
            with tempfile.TemporaryFile() as stdin:
                if self._spec.prompt_as == "argument":
                    argv.append(prompt)
                else:
                    stdin.write(prompt.encode())
                    stdin.seek(0)
                run = self._start(argv, stdin)
        except (OSError, ValueError, NotFound, Unavailable) as error:
            # Before the program is executed nothing has happened, also when the disk is full or
            # there are too many processes.
            raise UpstreamUnavailable(f"{argv[0]} cannot be run: {error}", outcome="none") from None
        with self._mutex:
            self._run, self._end_s = run, None
        return Delivery(run)

    def answer(self, delivery: Delivery, stop: threading.Event) -> Answer:
        run: _Run = delivery.handle
        try:
            why = self._wait(run, stop)
            status = run.command.wait()
            if run.command.left is not False:
                _end(run.command)
            run.command.wait_for_tree()
            return _answer(run, status, why)
        finally:
            with self._mutex:
                self._run = None
                # If some of the tree is left, the next look ends the tree in the note.
                self._started = self._started and run.command.gone
            self._forget(run.command)
            run.output.close()
            run.errors.close()

    def interrupt(self, instance_id: str) -> bool:  # noqa: ARG002 - only the program that runs here is meant
        with self._mutex:
            # The pid of a process that has ended may belong to another one by now.
            if self._run is None or self._run.command.ended():
                return False
            signal_group(self._run.command.pid, signal.SIGINT)
            if self._end_s is None:
                self._end_s = time.monotonic() + _ESCALATE_S
        return True

    def close(self) -> None:
        with self._mutex:
            if self._run is not None:
                self._run.command.end_tree()

    def _start(self, argv: list[str], stdin: IO[bytes]) -> _Run:
        trees = self._processes.trees
        with contextlib.ExitStack() as undo:
            output = undo.enter_context(tempfile.TemporaryFile())
            errors = undo.enter_context(tempfile.TemporaryFile())
            command = Command(
                argv,
                leader=True,
                bound=True,
                grace_s=_ESCALATE_S,
                cwd=self._spec.working_directory,
                stdin=stdin,
                stdout=output,
                stderr=errors,
            )
            undo.callback(self._forget, command)
            tree = command.enter(trees)
            faults.reach("command.started")
            self._note.write(command.pid, tree)
            faults.reach("command.noted")
            command.begin(trees, {})
            if not command.executed():
                assert command.unfit is not None
                command.wait()
                command.wait_for_tree()
                raise command.unfit
            undo.pop_all()
        faults.reach("command.begun")
        return _Run(command, output, errors, time.monotonic())

    def _forget(self, command: Command) -> None:
        """Release a tree, or a process that never became the program."""
        command.close()
        if command.gone:
            self._note.remove()

    def _wait(self, run: _Run, stop: threading.Event) -> str:
        """Wait until the program has ended, and end its tree when it must not go on. Returns why it
        was ended; empty when it ended by itself or by an interrupt.
        """
        while not run.command.ended(_TICK_S):
            now_s, why = time.monotonic(), ""
            if stop.is_set():
                why = "stopped"
            elif now_s - run.started_s > self._spec.timeout_s:
                why = f"it did not end within {self._spec.timeout_s:g} s"
            elif any(
                os.fstat(file.fileno()).st_size > _OUTPUT_BYTES_MAX
                for file in (run.output, run.errors)
            ):
                why = f"it printed more than {_OUTPUT_BYTES_MAX} bytes"
            if why or (self._end_s is not None and now_s >= self._end_s):
                _end(run.command)
                return why
        return ""


def _end(command: Command) -> None:
    """End a tree, and return when it is gone."""
    command.end_tree()
    while not command.wait_for_tree():
        # Its guardian was killed, and SIGKILL has not ended the whole tree yet.
        pass


def _answer(run: _Run, status: int, why: str) -> Answer:
    text = _tail(run.output, ANSWER_CHARS_MAX * 4)
    answer = Answer(text, "stdout", facts={} if run.command.unseen else {"exit_status": status})
    if why == "stopped":
        return answer._replace(known=False, code="stopped", detail="the gateway was stopped")
    if why:
        return answer._replace(code="timeout" if "within" in why else "agent_failed", detail=why)
    if run.command.unseen:
        detail = "its guardian process was killed: the exit status is unknown"
        return answer._replace(code="agent_failed", detail=detail)
    if status != 0:
        said = _tail(run.errors, _ERROR_CHARS_MAX)
        return answer._replace(code="agent_failed", detail=how_it_ended(status, said))
    return answer


def how_it_ended(status: int, said: str) -> str:
    """The end of a program in words: its exit status or signal, and the last it said."""
    how = f"exit status {status}" if status >= 0 else f"ended by {signal.Signals(-status).name}"
    return f"{how}: {said.strip()}" if said.strip() else how


def _tail(file: IO[bytes], size: int) -> str:
    end = file.seek(0, os.SEEK_END)
    file.seek(max(end - size, 0))
    return file.read().decode("utf-8", "replace")
