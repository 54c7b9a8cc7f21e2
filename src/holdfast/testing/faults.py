"""Fault points: count the points that some work reaches, then kill, stop or fail the process at any
one of them.

    names = faults.recorded(work)                      # every point that the work reaches, in order
    with faults.armed(at=7, action=faults.kill): ...   # die at the eighth

Only points of the calling thread count, and of the gate thread that works for it. Background
threads would change the numbers at each run.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.kernel import faults as points

FaultAction = Callable[[str], None]

_GATE_THREAD = "holdfast-gate"


def kill(point: str) -> None:
    """Die by SIGKILL: no handler, no finaliser, no flush."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop(point: str) -> None:
    """Stop by SIGSTOP until a SIGCONT comes."""
    os.kill(os.getpid(), signal.SIGSTOP)


def recorded(work: Callable[[], object]) -> list[str]:
    """Run the work; return the points that it reached."""
    names: list[str] = []
    with _hooked(_here(names.append)):
        work()
    return names


@contextmanager
def armed(*, at: int, action: FaultAction, passing: FaultAction = lambda _: None) -> Iterator[None]:
    """Run the block, and call `action` at its point number `at`, counted from 0. `passing` is
    called at each point up to that one.
    """
    passed = 0

    def count(point: str) -> None:
        nonlocal passed
        passed += 1
        if passed <= at + 1:
            passing(point)
        if passed == at + 1:
            action(point)

    with _hooked(_here(count)):
        yield


@contextmanager
def at_point(name: str, action: FaultAction) -> Iterator[None]:
    """Run the block, and call `action` whenever it reaches the point of that name."""

    def act(point: str) -> None:
        if point == name:
            action(point)

    with _hooked(act):
        yield


def _here(act: FaultAction) -> FaultAction:
    """The same action, for this thread and the gate thread alone."""
    me = threading.get_ident()

    def act_here(point: str) -> None:
        if threading.get_ident() == me or threading.current_thread().name == _GATE_THREAD:
            act(point)

    return act_here


@contextmanager
def _hooked(hook: FaultAction) -> Iterator[None]:
    before, points.hook = points.hook, hook
    try:
        yield
    finally:
        points.hook = before
