"""Time, passed in. Instants are aware UTC datetimes; nothing in the house calls the system clock
but SystemClock.
"""

import os
import re
import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple, Protocol

from holdfast.kernel.errors import InvalidValue

# The zone may be missing here, so that `aware` can say what is wrong with that. Compiled when first
# used: few programs do.
_RFC_3339 = r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)?"


class Passing(NamedTuple):
    """How much time has passed on a clock that nobody sets."""

    clock: str
    """Which clock: two readings can be compared if they are of the same one, in whatever processes.
    """
    seconds: float


class Clock(Protocol):
    """Where `now` comes from. A store on a database uses that database's clock instead."""

    def now(self) -> datetime:
        """Return the current instant, aware, in UTC. Not promised to be monotonic: a machine's
        clock can be stepped.
        """
        ...

    def passing(self) -> Passing:
        """Return how much time has passed, by a clock that nobody can step."""
        ...


class SystemClock:
    """The machine's wall clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def passing(self) -> Passing:
        return since_boot()


def since_boot() -> Passing:
    """How long this machine has been up, the time asleep included; the same for all its
    processes.
    """
    return Passing(_boot(os.getpid()), time.clock_gettime(time.CLOCK_BOOTTIME))


@lru_cache(maxsize=1)
def _boot(pid: int) -> str:
    """Which boot, and which time namespace of it: each has an offset of its own."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()}-{os.stat('/proc/self/ns/time').st_ino}"
    except OSError:
        # What cannot be named is known to this process alone.
        return f"process-{pid}-{time.clock_gettime_ns(time.CLOCK_BOOTTIME)}"


def aware(at: datetime, what: str = "timestamp") -> datetime:
    """Return `at` in UTC. Raises InvalidValue for a naive one: which zone it meant would be a
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
    """Return RFC 3339 in UTC with microseconds and `Z`."""
    # strftime does not pad a year before 1000.
    return aware(at).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def parse(text: str, what: str = "timestamp") -> datetime:
    """Read an RFC 3339 instant. Raises InvalidValue for anything else, naive ones included."""
    try:
        at = datetime.fromisoformat(text.upper() if re.fullmatch(_RFC_3339, text, re.ASCII) else "")
    except ValueError:
        raise InvalidValue(
            f"{what} {text[:40]!r} is not an RFC 3339 instant: write it like 2026-01-31T12:00:00Z",
            what=what,
        ) from None
    return aware(at, what)


def after(at: datetime, seconds: float) -> datetime:
    """Return the instant `seconds` after `at`. Raises OverflowError beyond the calendar."""
    return at + timedelta(seconds=seconds)


def ago(now: datetime, seconds: float) -> datetime:
    """Return the instant `seconds` before `now`, or the calendar's beginning where that is before
    it: who keeps things for that long keeps all of them.
    """
    try:
        return after(now, -seconds)
    except OverflowError:
        return BEGINNING


BEGINNING = datetime.min.replace(tzinfo=UTC)
