"""Arm the program's fault points: count them, then kill, stop or fail the process at any one of
them.

Those are counted that the thread reaches which runs the work, by itself or through the gate's: what
is done in the background at any moment would make the numbers others each time.

names = faults.recorded(lambda: work())            # every point that the work reaches, in order
with faults.armed(at=7, action=faults.kill): ...   # die at the eighth
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.kernel import faults as points

Action = Callable[[str], None]

_WORKS_FOR_OTHERS = "holdfast-gate"


def kill(point: str) -> None:
    """Die at once, as by kill -9: no handler, no finaliser, no flush."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop(point: str) -> None:
    """Stand still until somebody sends SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


def recorded(work: Callable[[], object]) -> list[str]:
    """Run the work and return the points it reached."""
    names: list[str] = []
    with _hooked(_here(names.append)):
        work()
    return names


@contextmanager
def armed(*, at: int, action: Action, passing: Action = lambda _: None) -> Iterator[None]:
    """Run the block and act when it reaches its point number `at`, counted from 0. `passing` is
    told of each until then, that one included.
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
def at_point(name: str, action: Action) -> Iterator[None]:
    """Run the block and act whenever it reaches the point of that name."""

    def act(point: str) -> None:
        if point == name:
            action(point)

    with _hooked(act):
        yield


def _here(act: Action) -> Action:
    """Act for the thread that is this one, and for the one that works for others."""
    me = threading.get_ident()

    def act_here(point: str) -> None:
        if threading.get_ident() == me or threading.current_thread().name == _WORKS_FOR_OTHERS:
            act(point)

    return act_here


@contextmanager
def _hooked(hook: Action) -> Iterator[None]:
    before, points.hook = points.hook, hook
    try:
        yield
    finally:
        points.hook = before
