"""A clock for tests, which moves only on demand."""

from datetime import UTC, datetime, timedelta

from holdfast.kernel.clock import MonotonicTime


class ManualClock:
    """Starts at a fixed instant. `advance` lets time pass; `step` sets the clock, as an
    administrator sets a machine's.
    """

    def __init__(self, at: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._at = at
        self._passed_s = 0.0

    def now(self) -> datetime:
        return self._at

    def monotonic(self) -> MonotonicTime:
        return MonotonicTime(f"manual-{id(self)}", self._passed_s)

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass. Negative seconds only step the clock back."""
        self._at += timedelta(seconds=seconds)
        self._passed_s += max(seconds, 0.0)

    def step(self, seconds: float) -> None:
        """Set the clock forward or back, while no time passes."""
        self._at += timedelta(seconds=seconds)
