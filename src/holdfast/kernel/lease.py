"""Leases: every claim has one. Only this module decides who may take a claim away."""

from datetime import datetime, timedelta

from holdfast.kernel.codec import Instant, Plain
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.holder import Holder, Liveness, ThisProcess

_DUE_SHARE = 0.8
"""A lease is due when less than this share of it is left."""


class Lease(Plain, frozen=True, kw_only=True):
    """A time span on the store's clock, from the grant. If `explicit`, the claim ends with
    it. Otherwise its end only limits how long a holder that cannot be probed counts as alive.
    """

    granted_at: Instant
    expires_at: Instant
    explicit: bool = False

    def fresh(self, now: datetime) -> bool:
        """True up to and including the instant it expires."""
        return self.expires_at >= now


def grant(now: datetime, ttl_s: float, *, explicit: bool = False) -> Lease:
    """A lease from now on. Raises InvalidValue unless `ttl_s` is a positive number of seconds."""
    return Lease(granted_at=now, expires_at=_end(now, ttl_s), explicit=explicit)


def renew(lease: Lease, now: datetime, ttl_s: float, *, explicit: bool = False) -> Lease:
    """Extend a lease from now. It never ends earlier than before, even if the clock was set back;
    except that a lease which gets its first time to live now (`explicit`) ends after that time.
    """
    end = _end(now, ttl_s)
    if explicit and not lease.explicit:
        return Lease(granted_at=lease.granted_at, expires_at=end, explicit=True)
    return Lease(
        granted_at=lease.granted_at, expires_at=max(lease.expires_at, end), explicit=lease.explicit
    )


def due(lease: Lease, now: datetime, ttl_s: float) -> bool:
    """True when enough of a lease of that length has passed for a renewal to be worth a write."""
    return (lease.expires_at - now).total_seconds() < ttl_s * _DUE_SHARE


def renew_every_s(lease_s: float) -> float:
    """How often to renew a lease of this length: it outlives two renewals that fail."""
    return lease_s / 3


def reclaimable(lease: Lease, liveness: Liveness, now: datetime) -> bool:
    """True when another may take this claim: the holder is dead, or the lease has expired and
    either the holder is unknown or a time to live was requested.
    """
    # A slow holder that is alive is never reaped.
    if liveness is Liveness.DEAD:
        return True
    return not lease.fresh(now) and (liveness is Liveness.UNKNOWN or lease.explicit)


def check_claim_end(process: object, ttl_s: float | None) -> None:
    """Raises InvalidValue for a claim that neither a process nor a time to live would end."""
    if process is None and ttl_s is None:
        raise InvalidValue(
            "a claim without a process needs a time to live: give ttl_s (--ttl), or the pid of a "
            "live process (--pid)",
            field="ttl_s",
        )


def check_detached(
    process: Holder | ThisProcess | int | None, ttl_s: float | None, *, embedded: bool
) -> None:
    """Raises InvalidValue for a claim for another process that nobody would renew, on a store that
    other machines use: they cannot see the process, and its lease would end while it lives.
    """
    if embedded or ttl_s is not None or process is None or isinstance(process, ThisProcess):
        return
    raise InvalidValue(
        "other machines cannot see the process of this claim, and nobody renews it: give a time "
        "to live too, ttl_s (--ttl)",
        field="ttl_s",
    )


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
        return now + timedelta(seconds=ttl_s)
    except OverflowError:
        raise InvalidValue(
            f"a lease of {ttl_s} s ends beyond the calendar: give fewer seconds", ttl_s=ttl_s
        ) from None
