"""Waiting in tests for what nothing tells of."""

import threading
from collections.abc import Callable


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Wait for what another process does, of which nothing tells."""
    ticks = threading.Event()
    for _ in range(int(seconds * 50)):
        if condition():
            return
        ticks.wait(0.02)
    raise AssertionError("it never came")
