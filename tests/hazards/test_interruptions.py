"""An exception anywhere in an operation leaves nothing behind: see `interruptions`."""

import os
import threading
from collections.abc import Callable
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import holdfast
from holdfast.stores.sqlite import gate, gate_thread
from holdfast.stores.sqlite.gate import Gate
from holdfast.system.access import PRIVATE
from tests.harness.processes import flock_waiters
from tests.harness.stores import store_url
from tests.harness.timeouts import PATIENCE_S, until
from tests.hazards.interrupted_operations import OPERATIONS
from tests.hazards.interruptions import KINDS, never, outcomes, storm

STORES = ["memory", "sqlite", "files", "postgres"]

SAMPLE = [
    "locks.acquire",
    "locks.hold",
    "jobs.register_job",
    "jobs.finish_and_pick",
    "network.register_host",
    "workflows.swap",
]
SAMPLE_STEP = 41
"""The sample takes every 41st point, and begins at another point in each operation."""


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return store_url(request, tmp_path)


def _left_behind(
    url: str, name: str, kind: str, *, begin: int = 1, step: int = 0
) -> tuple[int, list[str]]:
    """How many points were tried, and what went wrong at which."""
    tried = list(outcomes(url, name, kind, begin=begin, step=step))
    return len(tried), [f"{one.at} {one.place}: {one.wrong}" for one in tried if one.wrong]


@pytest.mark.prove
@pytest.mark.parametrize("url", STORES, indirect=True)
@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_leaves_nothing_behind(url: str, kind: str) -> None:
    for number, name in enumerate(SAMPLE):
        step = 3 if kind == "depth" else SAMPLE_STEP
        tried, wrong = _left_behind(url, name, kind, begin=1 + 7 * number % step, step=step)
        assert tried
        assert not wrong


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("url", STORES, indirect=True)
def test_an_exception_at_any_point_leaves_nothing_behind(
    url: str, name: str, record_property: Callable[[str, object], None]
) -> None:
    points = {kind: _left_behind(url, name, kind) for kind in KINDS}
    # `conftest` adds them up for each store.
    record_property("points", (url.partition(":")[0], sum(tried for tried, _ in points.values())))
    assert {kind: wrong for kind, (_, wrong) in points.items() if wrong} == {}
    assert all(tried for tried, _ in points.values())


@pytest.mark.prove
@pytest.mark.parametrize("url", ["sqlite", "files"], indirect=True)
def test_repeated_ctrl_c_leaves_the_gate_open(url: str) -> None:
    assert len(storm(url, processes=3, interrupts=150)) == 3
    with (
        holdfast.connect(url) as hf,
        hf.locks.hold(["router-1", "router-2"], by="another", timeout_s=0),
    ):
        hf.jobs.register_job("work", agent="claude", agent_session="s")


class _ThreadFuse:
    """Raises MemoryError at one line of the gate's module in the gate's thread."""

    def __init__(self, at: int) -> None:
        self._at = at
        self._points = 0
        self.place = 0

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if (
            frame.f_code.co_filename not in (gate.__file__, gate_thread.__file__)
            or threading.current_thread().name != "holdfast-gate"
        ):
            return None
        # The outermost loop takes no memory of its own.
        if (
            event == "line"
            and frame.f_code.co_name != "_serve"
            and frame.f_lasti not in never(frame.f_code)
        ):
            self._points += 1
            if self._points == self._at:
                self.place = frame.f_lineno
                raise MemoryError
        return self.trace


def test_the_thread_at_the_shut_gate_goes_on_when_memory_runs_out(tmp_path: Path) -> None:
    tried = 0
    while place := _memory_runs_out(tmp_path / "gate", at=tried + 1):
        tried += 1
    assert tried > 20, place


def _enters(gate: Gate) -> bool:
    try:
        return gate.run(lambda: True, PATIENCE_S)
    except MemoryError:
        return False


def _is_open(descriptor: int) -> bool:
    try:
        flock(descriptor, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _memory_runs_out(path: Path, at: int) -> int:
    """Let somebody wait at a shut gate, and raise in its thread; return the line, and 0 when there
    are no so many points.
    """
    gate = Gate(path, PRIVATE)
    other = os.open(path, os.O_RDWR)
    flock(other, LOCK_EX)
    fuse = _ThreadFuse(at)
    ended: list[object] = []

    def enter() -> None:
        try:
            ended.append(gate.run(lambda: "done", PATIENCE_S))
        except MemoryError as error:
            ended.append(error)

    threading.settrace(fuse.trace)
    try:
        caller = threading.Thread(target=enter)
        caller.start()
        until(lambda: fuse.place or flock_waiters(path) == 1)
        flock(other, LOCK_UN)
        caller.join(PATIENCE_S)
    finally:
        threading.settrace(None)
    assert ended, f"the caller got no error after line {fuse.place}"
    # What is raised only after the caller has its answer may meet the next call.
    until(lambda: _enters(gate))
    until(lambda: _is_open(other))
    gate.close()
    os.close(other)
    return fuse.place
