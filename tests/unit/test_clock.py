"""Instants: aware, in UTC, written and read one way."""

import contextlib
from datetime import UTC, datetime, timedelta, timezone, tzinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.kernel import clock
from holdfast.kernel.errors import InvalidValue
from holdfast.testing.clock import ManualClock
from tests.harness.errors import raises

DAY = timedelta(days=1)
zones = st.timedeltas(-DAY + timedelta(minutes=1), DAY - timedelta(minutes=1)).map(
    lambda offset: timezone(timedelta(minutes=offset // timedelta(minutes=1)))
)
instants = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=zones)  # noqa: DTZ001


class NoOffset(tzinfo):
    """A zone that does not know its offset: Python calls such a datetime naive."""

    def utcoffset(self, dt: datetime | None) -> None:
        return None

    def dst(self, dt: datetime | None) -> None:
        return None

    def tzname(self, dt: datetime | None) -> None:
        return None


@given(instants, st.floats(0, 1e300))
def test_what_was_so_long_ago_is_an_instant_however_long(now: datetime, seconds: float) -> None:
    then = clock.ago(now, seconds)
    assert then.tzinfo is not None and then <= now
    if seconds < 1e9 and now.year > 1900:
        assert clock.after(then, seconds) == now


@given(instants)
def test_what_is_rendered_is_read_back(at: datetime) -> None:
    text = clock.render(at)
    assert clock.parse(text) == at
    assert len(text) == len("2026-01-31T12:00:00.000000Z") and text.endswith("Z")


@given(instants, instants)
def test_rendered_instants_sort_as_the_instants_do(one: datetime, other: datetime) -> None:
    assert (clock.render(one) < clock.render(other)) == (one < other)


@given(instants)
def test_aware_keeps_the_instant_and_speaks_utc(at: datetime) -> None:
    assert clock.aware(at) == at
    assert clock.aware(at).tzinfo is UTC


@pytest.mark.parametrize(
    "at",
    [datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=NoOffset())],  # noqa: DTZ001
    ids=["no zone", "no offset"],
)
def test_a_naive_instant_is_refused_everywhere(at: datetime) -> None:
    for use in (clock.aware, clock.render):
        with pytest.raises(InvalidValue, match="time zone"):
            use(at)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31t12:00:00z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31 12:00:00.5+02:00", datetime(2026, 1, 31, 10, 0, 0, 500_000, tzinfo=UTC)),
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
    ],
)
def test_rfc_3339_is_read(text: str, at: datetime) -> None:
    assert clock.parse(text) == at


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-01-31",
        "2026-01-31T12:00:00",
        "2026-01-31T12:00Z",
        "20260131T120000Z",
        "2026-W05-6T12:00:00Z",
        "2026-02-30T12:00:00Z",
        "2026-01-31T12:00:00,5Z",
        "2026-01-31x12:00:00Z",
        "2026-01-31T12:00:00+00:00:30",
        "٢٠٢٦-01-31T12:00:00Z",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59-23:59",
    ],
)
def test_anything_else_is_refused_and_named(text: str) -> None:
    with raises(InvalidValue, what="since") as caught:
        clock.parse(text, "since")
    assert caught.value.fields["what"] == "since"


@given(
    st.text(max_size=40)
    | st.from_regex(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d)?(Z|[+-]\d\d:\d\d)", fullmatch=True)
)
def test_parse_never_raises_anything_of_another_kind(text: str) -> None:
    with contextlib.suppress(InvalidValue):
        assert clock.parse(text).tzinfo is UTC


def test_after_counts_in_seconds_both_ways() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert clock.after(at, 1.5) - at == timedelta(seconds=1.5)
    assert at - clock.after(at, -60) == timedelta(minutes=1)


def test_the_system_clock_is_aware_utc() -> None:
    assert clock.SystemClock().now().tzinfo is UTC


def test_the_manual_clock_moves_only_on_request() -> None:
    manual = ManualClock()
    begin = manual.now()
    assert manual.now() == begin
    manual.advance(-2.5)
    assert manual.now() == begin - timedelta(seconds=2.5)
