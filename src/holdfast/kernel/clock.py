"""Time, passed in. Instants are aware UTC datetimes; nothing in the house calls the system clock but SystemClock."""

from datetime import UTC, datetime, timedelta
from typing import Protocol

from holdfast.kernel.errors import InvalidValue


class Clock(Protocol):
    """Where `now` comes from. A store on a database uses that database's clock instead."""

    def now(self) -> datetime:
        """Return the current instant, aware, in UTC. Not promised to be monotonic: a machine's clock can be stepped."""
        ...


class SystemClock:
    """The machine's wall clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)


def aware(at: datetime, what: str = "timestamp") -> datetime:
    """Return `at` in UTC. Raises InvalidValue for a naive one: which zone it meant would be a guess."""
    if at.tzinfo is None:
        raise InvalidValue(f"{what} {at.isoformat()} has no time zone: write it as {at.isoformat()}Z if it is UTC", what=what)
    return at.astimezone(UTC)


def render(at: datetime) -> str:
    """Return RFC 3339 in UTC with microseconds and `Z`."""
    return aware(at).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse(text: str, what: str = "timestamp") -> datetime:
    """Read an RFC 3339 instant. Raises InvalidValue for anything else, naive ones included."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidValue(
            f"{what} {text[:40]!r} is not an RFC 3339 instant: write it like 2026-01-31T12:00:00Z", what=what
        ) from None
    return aware(at, what)


def after(at: datetime, seconds: float) -> datetime:
    """Return the instant `seconds` after `at`."""
    return at + timedelta(seconds=seconds)
