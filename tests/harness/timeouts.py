"""How long a test waits for what must come, and waiting for what nothing tells of."""

import threading
import time
from collections.abc import Callable

PATIENCE_S = 120.0
"""Long enough for any machine, however busy; nothing waits for so long unless it fails."""
NEVER_S = 10 * PATIENCE_S
"""Beyond what any test waits for."""


def until(
    condition: Callable[[], object],
    seconds: float = PATIENCE_S,
    saw: Callable[[], object] = lambda: "",
) -> None:
    """Wait for what another process does, of which nothing tells; when it never comes, tell what
    was there instead.
    """
    ticks = threading.Event()
    end_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end_s, f"it never came {saw()}"
        ticks.wait(0.02)
