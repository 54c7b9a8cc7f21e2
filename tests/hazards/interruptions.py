"""Exceptions raised at every point of every public operation, in a process that lives on, while a
second process looks.

Ctrl-C, a timer's signal, a full memory or a stack without room can end a call of ours between any
two lines. The process may live on, as a notebook does, so nothing may stay behind that only its
death would clean up: a gate that stays shut, a transaction that stays open, a lock that nobody
knows of.

This module is both programs. The victim runs an operation again and again, and each time an
exception is raised one point later. The witness, in a process of its own, says after each whether
it can write, and what it sees.
"""

import contextlib
import dis
import faulthandler
import gc
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random
from types import CodeType, FrameType
from typing import Any, NamedTuple, Protocol

import holdfast
from holdfast.domains.jobs.records import JOBS
from holdfast.kernel.errors import HoldfastError
from holdfast.primitives.locks.records import LOCKS
from holdfast.runtime.connection import Holdfast
from tests.hazards.interrupted_operations import HERE, OPERATIONS, R1, registered

_SOURCE = str(Path(holdfast.__file__).parent) + os.sep
_TURN_S = 2.0
_PATIENCE_S = 20.0
_HANGS_S = 90.0
_FRAMES_HERE = 5
_STORM_S = 240.0
_DESCRIPTORS_EVERY = 25
_DESCRIPTORS_MAX = 40
"""How many more a process may have open at the end of an operation's points than at their
beginning: what it keeps for use.
"""


class Fuse:
    """Raises an error at one point of what runs in `_SOURCE`, in this thread: at the first that was
    not tried yet, or by its number.
    """

    def __init__(self, error: type[BaseException], at: int, tried: set[str] | None = None) -> None:
        self._error = error
        self._at = at
        self._tried = tried
        self._points = 0
        self.place = ""

    @property
    def blown(self) -> bool:
        """Whether it has raised its error."""
        return bool(self.place)

    def _reach(self, frame: FrameType, what: str) -> None:
        if self._tried is not None:
            if (place := self._named(frame, what)) in self._tried:
                return
            self._tried.add(place)
        else:
            self._points += 1
            if self._points != self._at:
                return
        self._off()
        self.place = self._named(frame, what)
        raise self._error

    def _named(self, frame: FrameType, what: str) -> str:
        return (
            f"{frame.f_code.co_filename[len(_SOURCE) :]}:{frame.f_lineno} "
            f"{frame.f_code.co_name}{what}"
        )

    def __enter__(self) -> "Fuse":
        self._on()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: Any
    ) -> None:
        self._off()

    def _on(self) -> None:
        raise NotImplementedError

    def _off(self) -> None:
        raise NotImplementedError


class LineFuse(Fuse):
    """Before every line at which Python itself could raise something."""

    def _on(self) -> None:
        sys.settrace(self._trace)

    def _off(self) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "call":
            return self._trace if frame.f_code.co_filename.startswith(_SOURCE) else None
        if (
            event == "line"
            and frame.f_lasti not in never(frame.f_code)
            and not self._reads_document(frame)
        ):
            self._reach(frame, "")
        return self._trace

    def _reads_document(self, frame: FrameType | None) -> bool:
        """Is a file's document being read? Out of that, a RecursionError says that it is nested too
        deeply.
        """
        while self._error is RecursionError and frame is not None:
            if frame.f_code.co_filename.endswith(("files/records.py", "files/documents.py")):
                return True
            frame = frame.f_back
        return False


@cache
def never(code: CodeType) -> frozenset[int]:
    """Where only a tracer can raise, and no block around it would catch that: at an instruction
    that does nothing, which is all that a `try` is; and before the call of `__exit__` at the end of
    a `with` block, with three times None, which a tracer takes for one more line. No signal's
    handler runs there.
    """
    steps = [one for one in dis.get_instructions(code) if one.opname not in ("CACHE", "PRECALL")]
    ends = (
        first.offset
        for first, *others, call in zip(steps, steps[1:], steps[2:], steps[3:], strict=False)
        if call.opname == "CALL"
        and call.arg == 2
        and all(one.opname == "LOAD_CONST" and one.argval is None for one in (first, *others))
    )
    return frozenset(ends) | {one.offset for one in steps if one.opname == "NOP"}


class CallFuse(Fuse):
    """After every call of a function written in C, before its result is stored: where Python lets a
    signal's handler run.
    """

    def _on(self) -> None:
        sys.setprofile(self._profile)

    def _off(self) -> None:
        sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "c_return" and frame.f_code.co_filename.startswith(_SOURCE):
            self._reach(frame, f" after {getattr(called, '__name__', called)}")


class DepthFuse(Fuse):
    """Leaves so little room on the stack that the operation meets its end for real; each time a
    little more.
    """

    def _on(self) -> None:
        frame: FrameType | None = sys._getframe()
        depth = 0
        while frame is not None:
            depth, frame = depth + 1, frame.f_back
        self._limit = sys.getrecursionlimit()
        sys.setrecursionlimit(depth + _FRAMES_HERE + self._at)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: Any
    ) -> None:
        sys.setrecursionlimit(self._limit)
        if kind is not None:
            while trace.tb_next is not None:
                trace = trace.tb_next
            self.place = (
                f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno} {kind.__name__}"
            )


KINDS: dict[str, Callable[[int, set[str] | None], Fuse]] = {
    "interrupt": lambda at, tried: LineFuse(KeyboardInterrupt, at, tried),
    "signal": lambda at, tried: CallFuse(KeyboardInterrupt, at, tried),
    "memory": lambda at, tried: LineFuse(MemoryError, at, tried),
    "recursion": lambda at, tried: LineFuse(RecursionError, at, tried),
    "depth": lambda at, _: DepthFuse(RecursionError, at),
}


class Witness(Protocol):
    """Another user of the store."""

    def see(self, operation: str) -> object:
        """Write, then say what can be seen of the operation; words that begin with "shut" when it
        cannot write.
        """
        ...

    def close(self) -> None:
        """End."""
        ...


def _look(hf: Holdfast, operation: str) -> object:
    """Write to both kinds of space, and look."""
    try:
        for space in (JOBS, LOCKS):
            try:
                hf.store.transact(
                    lambda tx: tx.notify("seen"), scope=[space], durable=False, timeout_s=_TURN_S
                )
            except HoldfastError:
                # A busy machine may be late once; a gate that is shut stays shut.
                hf.store.transact(
                    lambda tx: tx.notify("seen"),
                    scope=[space],
                    durable=False,
                    timeout_s=_PATIENCE_S,
                )
        return OPERATIONS[operation].seen(hf)
    except HoldfastError as error:
        return f"shut: {error}"


class OtherProcess:
    """A witness in a process of its own."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                __name__ if __name__ != "__main__" else __spec__.name,
                "witness",
                url,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def see(self, operation: str) -> object:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(operation), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class OtherThread:
    """A witness in a thread of its own, for a store that no other process sees."""

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf

    def see(self, operation: str) -> object:
        seen: list[object] = []
        thread = threading.Thread(target=lambda: seen.append(_look(self._hf, operation)))
        thread.start()
        thread.join()
        return seen[0]

    def close(self) -> None:
        pass


def _witness(url: str) -> None:
    with holdfast.connect(url) as hf:
        for line in sys.stdin:
            print(json.dumps(_look(hf, json.loads(line))), flush=True)


class Outcome(NamedTuple):
    """The result of one exception."""

    operation: str
    kind: str
    at: int
    place: str
    wrong: str | None


def _try_at(
    hf: Holdfast, witness: Witness, name: str, kind: str, at: int, tried: set[str] | None
) -> Outcome | None:
    """Raise at one point; None if the operation has no more points."""
    operation = OPERATIONS[name]
    faulthandler.dump_traceback_later(_HANGS_S, exit=True)
    before = operation.prepare(hf)
    fuse = KINDS[kind](at, tried)
    raised = ""
    try:
        with fuse:
            operation.act(hf, before)
    except BaseException as error:
        if not fuse.blown:
            raise
        # Not the error itself, nor what its traceback refers to: a caller drops both.
        raised = repr(error)
    if not fuse.blown:
        operation.settle(hf, before)
        return None
    # An operation may go on after an error that does not concern it; then it must have done its
    # work.
    seen = witness.see(name)
    deadline = time.monotonic() + _PATIENCE_S
    while raised and seen not in operation.allowed and time.monotonic() < deadline:
        # What cannot be withdrawn at once is withdrawn in the background.
        seen = witness.see(name)
    wrong = f"{seen} after {raised}" if raised and seen not in operation.allowed else None
    if wrong is None:
        try:
            operation.settle(hf, before)
        except Exception as error:
            wrong = f"cannot go on: {error!r}"
    return Outcome(name, kind, at, fuse.place, wrong)


def _open_descriptors() -> int:
    """How many are open on anything but folders: a lock or a log may hang on them. Garbage has none
    any more. That of a folder on the way to a file may stay open when an exception comes just then,
    and does no harm.
    """
    gc.collect()
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            count += not stat.S_ISDIR(os.fstat(int(name)).st_mode)
    return count


class Interrupted(BaseException):
    """What the timer of a storm raises."""


def _storm(url: str, seed: int, interrupts: int) -> None:
    """Change things again and again, while a timer raises an exception a short while after each
    beginning. Says at the end how often it was let through.
    """
    random = Random(seed)
    done = 0
    armed = False

    def interrupt(*_: object) -> None:
        # The kernel may give the last signal to another thread, from which it comes here after the
        # timer was stopped.
        if armed:
            raise Interrupted

    signal.signal(signal.SIGALRM, interrupt)
    with holdfast.connect(url) as hf:
        while interrupts:
            try:
                # Raised for as long as the call lasts: the first may come amid the clearing up
                # after another.
                armed = True
                signal.setitimer(
                    signal.ITIMER_REAL,
                    random.uniform(0.00005, 0.004),
                    random.uniform(0.00002, 0.002),
                )
                try:
                    with hf.locks.hold(
                        [R1, "router-2"], by=f"{HERE}-{os.getpid()}", timeout_s=None
                    ):
                        pass
                    registered(hf)
                    done += 1
                finally:
                    armed = False
            except Interrupted:
                armed = False
                interrupts -= 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            hf.locks.free([R1, "router-2"], by=f"{HERE}-{os.getpid()}")
        print(done, flush=True)


def storm(url: str, *, processes: int, interrupts: int) -> list[int]:
    """Run several of them side by side, and return how often each was let through. Raises
    TimeoutExpired when one hangs.
    """
    words = [sys.executable, "-m", __name__, "storm", url]
    begun = [
        subprocess.Popen([*words, str(seed), str(interrupts)], stdout=subprocess.PIPE, text=True)
        for seed in range(processes)
    ]
    try:
        return [int(one.communicate(timeout=_STORM_S)[0]) for one in begun]
    finally:
        for one in begun:
            one.kill()
            one.communicate()


def _victim(url: str, name: str, kind: str, begin: int, step: int) -> None:
    """Raise at every `step`th point from `begin` on, or, with a step of 0, at each line once; one
    line of JSON for each. Ends after a point that left something behind: what comes after it would
    say nothing. The lines that were tried before come by the standard input.
    """
    with holdfast.connect(url) as hf:
        witness: Witness = OtherThread(hf) if url == "memory:" else OtherProcess(url)
        # What is made at first use is made here, once.
        for _ in range(2):
            before = OPERATIONS[name].prepare(hf)
            OPERATIONS[name].act(hf, before)
            OPERATIONS[name].settle(hf, before)
        had = _open_descriptors()
        tried = set(json.load(sys.stdin)) if step == 0 and kind != "depth" else None
        at = begin
        while (outcome := _try_at(hf, witness, name, kind, at, tried)) is not None:
            checked = (at - begin) // (step or 1) % _DESCRIPTORS_EVERY == 0
            if (
                outcome.wrong is None
                and checked
                and (more := _open_descriptors() - had) > _DESCRIPTORS_MAX
            ):
                outcome = outcome._replace(wrong=f"{more} descriptors more than before")
            print(json.dumps(outcome), flush=True)
            if outcome.wrong is not None:
                # Not by `close`, which may wait for what was left behind.
                os._exit(1)
            at += step or 1
        faulthandler.cancel_dump_traceback_later()
        witness.close()


def outcomes(url: str, name: str, kind: str, *, begin: int = 1, step: int = 0) -> Iterator[Outcome]:
    """Raise at each line of an operation once, or at every `step`th point from `begin` on, in
    victims that are replaced when something was left behind.
    """
    tried: list[str] = []
    while True:
        words = [sys.executable, "-m", __name__, "victim", url, name, kind, str(begin), str(step)]
        done = subprocess.run(
            words, input=json.dumps(tried), capture_output=True, text=True, check=False
        )
        found = [Outcome(*json.loads(line)) for line in done.stdout.splitlines()]
        yield from found
        tried += [one.place for one in found]
        if done.returncode == 0:
            return
        if not found or found[-1].wrong is None:
            yield Outcome(name, kind, 0, "", f"ended with {done.returncode}: {done.stderr[-3000:]}")
            return
        begin = found[-1].at + (step or 1)


if __name__ == "__main__":
    if sys.argv[1] == "witness":
        _witness(sys.argv[2])
    elif sys.argv[1] == "storm":
        _storm(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        _victim(sys.argv[2], sys.argv[3], sys.argv[4], *map(int, sys.argv[5:7]))
