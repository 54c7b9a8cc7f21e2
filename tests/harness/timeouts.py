"""Time limits of tests, and polling for what sends no event."""

import threading
import time
from collections.abc import Callable

PATIENCE_S = 120.0
"""Enough on any machine, however busy. Only a test that fails waits that long."""
NEVER_S = 10 * PATIENCE_S
"""Longer than any test waits."""


def until(
    condition: Callable[[], object],
    seconds: float = PATIENCE_S,
    saw: Callable[[], object] = lambda: "",
    every_s: float = 0.02,
) -> None:
    """Poll until the condition is true. Raises AssertionError after the time limit, with what `saw`
    returns.
    """
    ticks = threading.Event()
    end_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end_s, f"the condition was never true {saw()}"
        ticks.wait(every_s)
