"""Tokens only grow, whatever the clock does."""

from datetime import UTC, datetime, timedelta

from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.kernel import token

eras = st.integers(0, 1 << 31)
counters = st.integers(0, (1 << token.COUNTER_BITS) - 1)
instants = st.datetimes(datetime(1990, 1, 1), datetime(2080, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


@given(eras, counters)
def test_a_token_is_its_era_and_a_counter(era: int, counter: int) -> None:
    assert token.era(token.first(era) + counter) == era


@given(eras, counters)
def test_the_next_era_begins_above_every_token_of_this_one(era: int, counter: int) -> None:
    assert token.first(era) + counter < token.first(era + 1)


@given(eras, instants)
def test_an_era_only_grows_also_with_a_clock_stepped_back(known: int, now: datetime) -> None:
    assert token.next_era(known, now) > known


@given(st.lists(instants, max_size=20))
def test_successive_eras_only_grow(clock: list[datetime]) -> None:
    known, seen = 0, []
    for now in clock:
        known = token.next_era(known, now)
        seen.append(known)
    assert seen == sorted(set(seen))


@given(
    st.integers(0, 1000),
    st.datetimes(datetime(2026, 1, 1), datetime(2080, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
)
def test_a_restored_copy_is_ahead_of_what_it_cannot_know(lost: int, restored_at: datetime) -> None:
    """The store began `lost` eras after its backup, no faster than one a second; the backup knows
    none of them.
    """
    in_backup = token.next_era(0, restored_at - timedelta(seconds=lost + 1))
    assert token.next_era(in_backup, restored_at) > in_backup + lost


def test_an_era_is_a_second() -> None:
    now = datetime(2026, 7, 1, tzinfo=UTC)
    assert token.next_era(0, now + timedelta(seconds=1)) == token.next_era(0, now) + 1
    assert token.next_era(0, now + timedelta(seconds=0.9)) == token.next_era(0, now)


@given(st.timedeltas(timedelta(seconds=61), timedelta(days=500)), st.integers(0, 1 << 38))
@example(timedelta(seconds=61), 1 << 38)
def test_a_clock_stepped_back_leaves_room_for_what_a_counter_may_have_carried(
    step: timedelta, carried: int
) -> None:
    now = datetime(2026, 7, 1, tzinfo=UTC)
    known = token.next_era(0, now)
    assert token.first(token.next_era(known, now - step)) >= token.first(known) + carried


def test_two_eras_of_one_second_follow_closely() -> None:
    """A clock that is a moment behind is believed, or each restart in a second would use up a day
    of eras.
    """
    now = datetime(2026, 7, 1, tzinfo=UTC)
    known = token.next_era(0, now)
    assert (
        token.next_era(known, now)
        == token.next_era(known, now - timedelta(seconds=60))
        == known + 1
    )


def test_a_counter_that_runs_over_carries_into_the_era() -> None:
    last = token.first(7) + (1 << token.COUNTER_BITS) - 1
    assert token.era(last) == 7
    assert token.era(last + 1) == 8


def test_javascript_reads_tokens_exactly_in_2080() -> None:
    era = token.next_era(0, datetime(2080, 12, 31, tzinfo=UTC))
    assert token.first(era + 1) < 1 << 53
