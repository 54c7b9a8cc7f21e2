"""Freshness by time, and the one rule by which a claim may be taken away."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.holder import THIS_PROCESS, Liveness
from holdfast.kernel.lease import (
    Lease,
    check_claim_end,
    check_detached,
    due,
    grant,
    reclaimable,
    renew,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TICK = timedelta(microseconds=1)
TTL_S = 30.0
ttls = st.floats(min_value=0.001, max_value=1e9)
instants = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


def test_a_lease_begins_at_its_grant() -> None:
    lease = grant(NOW, TTL_S)
    assert lease == Lease(granted_at=NOW, expires_at=NOW + timedelta(seconds=TTL_S), explicit=False)
    assert grant(NOW, TTL_S, explicit=True).explicit


def test_a_lease_is_fresh_up_to_and_including_its_last_instant() -> None:
    lease = grant(NOW, TTL_S)
    assert lease.fresh(NOW)
    assert lease.fresh(lease.expires_at)
    assert not lease.fresh(lease.expires_at + TICK)


@pytest.mark.parametrize(
    ("liveness", "fresh", "explicit", "answer"),
    [
        (Liveness.ALIVE, True, False, False),
        (Liveness.ALIVE, True, True, False),
        (Liveness.ALIVE, False, False, False),  # a live holder is never reaped for being slow
        (Liveness.ALIVE, False, True, True),
        (Liveness.UNKNOWN, True, False, False),
        (Liveness.UNKNOWN, True, True, False),
        (Liveness.UNKNOWN, False, False, True),
        (Liveness.UNKNOWN, False, True, True),
        (Liveness.DEAD, True, False, True),
        (Liveness.DEAD, True, True, True),
        (Liveness.DEAD, False, False, True),
        (Liveness.DEAD, False, True, True),
    ],
)
def test_who_may_take_a_claim_away(
    liveness: Liveness, fresh: bool, explicit: bool, answer: bool
) -> None:
    lease = grant(NOW, TTL_S, explicit=explicit)
    now = lease.expires_at if fresh else lease.expires_at + TICK
    assert reclaimable(lease, liveness, now) is answer


@given(instants, ttls, instants, ttls, st.booleans())
def test_a_renewal_never_shortens_and_keeps_all_else(
    granted_at: datetime, first_s: float, now: datetime, ttl_s: float, explicit: bool
) -> None:
    lease = grant(granted_at, first_s, explicit=explicit)
    renewed = renew(lease, now, ttl_s)
    assert renewed.expires_at == max(lease.expires_at, grant(now, ttl_s).expires_at)
    assert (renewed.granted_at, renewed.explicit) == (lease.granted_at, explicit)


def test_a_clock_set_back_ends_no_lease() -> None:
    lease = grant(NOW, TTL_S)
    assert renew(lease, NOW - timedelta(days=1), TTL_S) == lease


@pytest.mark.parametrize(
    "ttl_s", [0, -1, -0.0, float("nan"), float("inf"), float("-inf"), 1e300, 1e12]
)
def test_an_impossible_time_to_live_is_refused(ttl_s: float) -> None:
    with pytest.raises(InvalidValue) as caught:
        grant(NOW, ttl_s)
    assert caught.value.fields.keys() == {"ttl_s"}
    with pytest.raises(InvalidValue):
        renew(grant(NOW, TTL_S), NOW, ttl_s)


def test_a_lease_on_a_naive_clock_is_refused() -> None:
    with pytest.raises(InvalidValue, match="time zone"):
        grant(NOW.replace(tzinfo=None), TTL_S)


def test_a_lease_without_a_time_to_live_that_is_given_one_ends_by_that() -> None:
    given = renew(grant(NOW, 3600), NOW, 5, explicit=True)
    assert (given.expires_at, given.explicit) == (NOW + timedelta(seconds=5), True)
    # One that has a time already never ends earlier by another.
    assert renew(
        grant(NOW, 3600, explicit=True), NOW, 5, explicit=True
    ).expires_at == NOW + timedelta(seconds=3600)


def test_a_renewal_is_due_when_a_fifth_of_the_lease_has_passed() -> None:
    lease = grant(NOW, 100)
    assert not due(lease, NOW, 100)
    assert not due(lease, NOW + timedelta(seconds=20), 100)
    assert due(lease, NOW + timedelta(seconds=20) + TICK, 100)


def test_a_claim_needs_a_process_or_a_time_to_live() -> None:
    with pytest.raises(InvalidValue) as caught:
        check_claim_end(None, None)
    assert caught.value.fields["field"] == "ttl_s"
    check_claim_end(None, TTL_S)
    check_claim_end(THIS_PROCESS, None)


def test_a_detached_claim_needs_a_time_where_its_process_cannot_be_seen() -> None:
    with pytest.raises(InvalidValue) as caught:
        check_detached(7, None, embedded=False)
    assert caught.value.fields["field"] == "ttl_s"
    check_detached(7, None, embedded=True)
    check_detached(7, TTL_S, embedded=False)
    check_detached(THIS_PROCESS, None, embedded=False)
    check_detached(None, None, embedded=False)
