"""Values and records: strict, typed, and never with a timestamp that has no zone."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.kernel.codec import Instant, Record, Redacted, Value, to_json, to_plain
from holdfast.kernel.errors import InvalidValue
from tests.harness.errors import raises

NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001
AWARE = datetime(2026, 1, 1, tzinfo=UTC)


class Inner(Value, frozen=True, kw_only=True):
    seen_at: Instant


class Full(Record, frozen=True, kw_only=True):
    name: str
    number: int
    ratio: float
    flag: bool
    made_at: Instant
    ended_at: Instant | None
    tags: tuple[str, ...]
    by_name: dict[str, int]
    by_number: dict[int, str]
    inner: Inner | None


class Later(Inner, frozen=True, kw_only=True):
    """Knows an instant that its base does not."""

    left_at: Instant | None = None


zones = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
instants = st.datetimes(timezones=zones)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
numbers = st.integers(-(1 << 63), (1 << 63) - 1)
records = st.builds(
    Full,
    name=texts,
    number=numbers,
    ratio=st.floats(allow_nan=False, allow_infinity=False),
    flag=st.booleans(),
    made_at=instants,
    ended_at=st.none() | instants,
    tags=st.lists(texts, max_size=3).map(tuple),
    by_name=st.dictionaries(texts, numbers, max_size=3),
    by_number=st.dictionaries(numbers, texts, max_size=3),
    inner=st.none() | st.builds(Inner, seen_at=instants),
)


@given(records)
def test_a_record_comes_back_as_it_was_written(record: Full) -> None:
    back = msgspec.json.decode(to_json(record), type=Full)
    assert back == record
    assert to_json(back) == to_json(record)
    assert back.made_at.utcoffset() == record.made_at.utcoffset()


@given(records)
def test_plain_is_what_json_would_show(record: Full) -> None:
    assert to_plain(record) == msgspec.json.decode(to_json(record))


def test_utc_is_written_with_a_z() -> None:
    assert (
        to_json(Inner(seen_at=AWARE.replace(microsecond=7)))
        == b'{"seen_at":"2026-01-01T00:00:00.000007Z"}'
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda at: Inner(seen_at=at),
        lambda at: Later(seen_at=at),
        lambda at: Later(seen_at=AWARE, left_at=at),
        lambda at: msgspec.structs.replace(Later(seen_at=AWARE), left_at=at),
    ],
    ids=["own field", "field of the base", "optional field", "replaced field"],
)
def test_a_naive_timestamp_is_refused_on_construction(make: Any) -> None:
    assert make(AWARE)
    with pytest.raises(InvalidValue, match=r"_at .*time zone"):
        make(NAIVE)


@pytest.mark.parametrize("first", [Inner, Later])
def test_a_class_and_its_base_do_not_share_what_they_know_of_instants(first: type[Inner]) -> None:
    class Base(Inner, frozen=True, kw_only=True):
        pass

    class Derived(Base, frozen=True, kw_only=True):
        left_at: Instant | None = None

    for kind in (Base, Derived) if first is Inner else (Derived, Base):
        kind(seen_at=AWARE)
    with raises(InvalidValue, field="left_at"):
        Derived(seen_at=AWARE, left_at=NAIVE)


@pytest.mark.parametrize(
    "text", ["2026-01-01T00:00:00", "2026-01-01", "2026-13-01T00:00:00Z", "", "now"]
)
def test_a_naive_or_broken_timestamp_does_not_decode(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(f'{{"seen_at":"{text}"}}', type=Inner)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(f'["{text}"]', type=list[Instant])


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"seen_at": None},
        {"seen_at": 1767225600},
        {"seen_at": "2026-01-01T00:00:00Z", "unknown": 1},
        ["2026-01-01T00:00:00Z"],
    ],
    ids=["missing", "null", "number", "unknown", "list"],
)
def test_missing_wrong_and_unknown_fields_do_not_decode(document: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(document), type=Inner)


def test_a_value_does_not_change() -> None:
    with pytest.raises(AttributeError):
        Inner(seen_at=AWARE).seen_at = AWARE  # type: ignore[misc]
    with pytest.raises(TypeError):
        Inner(AWARE)  # type: ignore[call-arg]


def test_a_records_version_travels_inside_it() -> None:
    class Small(Record, frozen=True, kw_only=True):
        pass

    assert to_json(Small()) == b'{"schema_version":1}'


class Login(Redacted, Value, frozen=True, kw_only=True):
    secret_fields: ClassVar[frozenset[str]] = frozenset(("password",))

    user: str
    password: str = ""


def test_a_secret_is_kept_and_not_shown() -> None:
    login = Login(user="u", password="hunter2")
    assert repr(login) == "Login(user='u', password=Ellipsis)"
    assert "hunter2" not in f"{login} {[login]} {login.__rich_repr__()}"
    assert repr(Login(user="u")) == "Login(user='u', password='')"
    assert msgspec.json.decode(to_json(login), type=Login) == login
