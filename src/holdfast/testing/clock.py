"""A clock that moves only when it is told to."""

from datetime import UTC, datetime, timedelta


class ManualClock:
    """Starts at a fixed instant; `advance` moves it, also backwards, as a stepped machine clock would."""

    def __init__(self, at: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._at = at

    def now(self) -> datetime:
        return self._at

    def advance(self, seconds: float) -> None:
        """Move the clock by some seconds, negative ones back."""
        self._at += timedelta(seconds=seconds)
