"""Time. Instants are aware UTC datetimes; only SystemClock reads the system clock."""

import os
import re
import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Protocol

from msgspec import Struct

from holdfast.kernel.errors import InvalidValue

# The zone may be missing, so that `aware` can name that mistake. Compiled at the first use: few
# commands need it.
_RFC_3339 = r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)?"


class MonotonicTime(Struct, frozen=True):
    """The time on a clock that nobody can set."""

    clock: str
    """Readings of the same clock can be compared, across processes."""
    seconds: float


class Clock(Protocol):
    """The source of `now`. A store on a database uses the database's clock instead."""

    def now(self) -> datetime:
        """The current instant, aware, in UTC. It may go back: a machine's clock can be set."""

    def monotonic(self) -> MonotonicTime:
        """The time on a clock that nobody can set."""


class SystemClock:
    """The machine's wall clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> MonotonicTime:
        return since_boot()


def since_boot() -> MonotonicTime:
    """The time since this machine's boot, suspended time included; the same in all processes."""
    return MonotonicTime(_boot(os.getpid()), time.clock_gettime(time.CLOCK_BOOTTIME))


@lru_cache(maxsize=1)
def _boot(pid: int) -> str:
    """The boot and its time namespace: each namespace has an offset of its own."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()}-{os.stat('/proc/self/ns/time').st_ino}"
    except OSError:
        # An unnamed clock is known to this process alone.
        return f"process-{pid}-{time.clock_gettime_ns(time.CLOCK_BOOTTIME)}"


def aware(at: datetime, what: str = "timestamp") -> datetime:
    """`at` in UTC. Raises InvalidValue for an instant without a time zone: the zone would be a
    guess.
    """
    if at.utcoffset() is None:
        raise InvalidValue(
            f"{what} {at.isoformat()} has no time zone: write it as {at.isoformat()}Z if it is UTC",
            what=what,
        )
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise InvalidValue(
            f"{what} {at.isoformat()} lies beyond the calendar in UTC", what=what
        ) from None


def render(at: datetime) -> str:
    """RFC 3339 in UTC with microseconds and `Z`."""
    # strftime does not pad a year before 1000.
    return aware(at).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def parse(text: str, what: str = "timestamp") -> datetime:
    """The instant of an RFC 3339 text. Raises InvalidValue for anything else."""
    try:
        at = datetime.fromisoformat(text.upper() if re.fullmatch(_RFC_3339, text, re.ASCII) else "")
    except ValueError:
        raise InvalidValue(
            f"{what} {text[:40]!r} is not an RFC 3339 instant: write it like 2026-01-31T12:00:00Z",
            what=what,
        ) from None
    return aware(at, what)


def after(at: datetime, seconds: float) -> datetime:
    """The instant `seconds` after `at`. Raises OverflowError beyond the calendar."""
    return at + timedelta(seconds=seconds)


def ago(now: datetime, seconds: float) -> datetime:
    """The instant `seconds` before `now`, or the beginning of the calendar if that is later."""
    try:
        return after(now, -seconds)
    except OverflowError:
        return BEGINNING


UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
"""The units of spans of time, as users write them: 90s, 15m, 2h, 7d."""
BEGINNING = datetime.min.replace(tzinfo=UTC)
