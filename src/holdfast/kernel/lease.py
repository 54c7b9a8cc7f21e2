"""Freshness by time. Every claim has a lease; who may take a claim away is decided here and nowhere
else.
"""

from datetime import datetime

from holdfast.kernel.clock import after
from holdfast.kernel.codec import Instant, Plain
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.holder import Liveness


class Lease(Plain, frozen=True, kw_only=True):
    """A span on the store's clock, begun at the grant (not when the wait for it began).

    `explicit` says that a time to live was asked for: then the end of the lease ends the claim
    whoever holds it. Otherwise the lease only bounds how long a holder that cannot be probed is
    believed.
    """

    granted_at: Instant
    expires_at: Instant
    explicit: bool = False

    def fresh(self, now: datetime) -> bool:
        """True up to and including the instant it expires."""
        return self.expires_at >= now


def grant(now: datetime, ttl_s: float, *, explicit: bool = False) -> Lease:
    """Begin a lease now. Raises InvalidValue unless `ttl_s` is a positive number of seconds."""
    return Lease(granted_at=now, expires_at=_end(now, ttl_s), explicit=explicit)


def renew(lease: Lease, now: datetime, ttl_s: float, *, explicit: bool = False) -> Lease:
    """Extend a lease from now. It never ends earlier than it did, so a clock stepped back takes
    nothing away; but one that had no time to live and is given one, by `explicit`, ends by that.
    """
    end = _end(now, ttl_s)
    if explicit and not lease.explicit:
        return Lease(granted_at=lease.granted_at, expires_at=end, explicit=True)
    return Lease(
        granted_at=lease.granted_at, expires_at=max(lease.expires_at, end), explicit=lease.explicit
    )


def due(lease: Lease, now: datetime, ttl_s: float) -> bool:
    """Has so much of a lease of that length passed that a renewal is worth a write?"""
    return (lease.expires_at - now).total_seconds() < ttl_s * _DUE_SHARE


def reclaimable(lease: Lease, liveness: Liveness, now: datetime) -> bool:
    """May another take this claim?

    Yes when the holder is dead; or when the lease has expired and either the holder is unknown or a
    time to live was asked for. A live holder is never reaped for being slow.
    """
    if liveness is Liveness.DEAD:
        return True
    return not lease.fresh(now) and (liveness is Liveness.UNKNOWN or lease.explicit)


def _end(now: datetime, ttl_s: float) -> datetime:
    if not 0 < ttl_s < float("inf"):
        raise InvalidValue(
            f"a lease of {ttl_s} s is not possible: give a positive number of seconds", ttl_s=ttl_s
        )
    if now.tzinfo is None:
        raise InvalidValue(
            f"a lease cannot begin at {now.isoformat()}, which has no time zone", field="now"
        )
    try:
        return after(now, ttl_s)
    except OverflowError:
        raise InvalidValue(
            f"a lease of {ttl_s} s ends beyond the calendar: give fewer seconds", ttl_s=ttl_s
        ) from None


_DUE_SHARE = 0.8
