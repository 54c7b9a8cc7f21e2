"""Encoded tuples sort as the tuples do, and spans hold what they say: against plain Python as the
oracle.
"""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.order import Parts, Span, beyond, beyond_text, encode, span

LOW, HIGH = -(1 << 63), (1 << 63) - 1

texts = st.text(
    st.sampled_from("\0\x01a\x7f\x80\xff\u07ff\ud7ff\ue000\uffff\U00010000\U0010ffff"), max_size=4
) | st.text(max_size=5)
ints = st.sampled_from(
    [LOW, LOW + 1, -257, -256, -1, 0, 1, 255, 256, HIGH - 1, HIGH]
) | st.integers(LOW, HIGH)
PARTS: dict[type, st.SearchStrategy[Any]] = {str: texts, int: ints, bool: st.booleans()}

shapes = st.lists(st.sampled_from([str, int, bool]), max_size=3)


def tuples_of(shape: list[type]) -> st.SearchStrategy[Parts]:
    """Tuples of one index: their parts agree in type, and some are prefixes of others."""
    return st.integers(0, len(shape)).flatmap(
        lambda n: st.tuples(*(PARTS[kind] for kind in shape[:n]))
    )


def alike(number: int) -> st.SearchStrategy[list[Parts]]:
    return shapes.flatmap(
        lambda shape: st.lists(tuples_of(shape), min_size=number, max_size=number)
    )


@given(alike(2))
@example([("a",), ("a\0",)])
@example([("a\0",), ("a\x01",)])
@example([("a", 1), ("a\0", 0)])
@example([("", HIGH), ("\0", LOW)])
@example([(-1,), (0,)])
@example([("\uffff",), ("\U00010000",)])
def test_bytes_sort_as_the_tuples_do(pair: list[Parts]) -> None:
    one, other = pair
    assert (encode(one) < encode(other)) == (one < other)
    assert (encode(one) == encode(other)) == (one == other)


@given(alike(2))
def test_bytes_start_with_anothers_exactly_when_the_tuple_does(pair: list[Parts]) -> None:
    whole, prefix = pair
    assert encode(whole).startswith(encode(prefix)) == (whole[: len(prefix)] == prefix)


def oracle(parts: Parts, match: Parts, start: Parts | None, stop: Parts | None) -> bool:
    rest = parts[len(match) :]
    return (
        parts[: len(match)] == match
        and (start is None or rest >= start)
        and (stop is None or rest < stop)
    )


@st.composite
def questions(draw: st.DrawFn) -> tuple[list[Parts], Parts, Parts | None, Parts | None]:
    shape = draw(shapes)
    rows = draw(st.lists(tuples_of(shape), max_size=8))
    # A bound taken from a row is one that matters.
    from_a_row = bool(rows) and draw(st.booleans())
    base = draw(st.sampled_from(rows) if from_a_row else tuples_of(shape))
    match = base[: draw(st.integers(0, len(base)))]
    bounds = st.none() | tuples_of(shape[len(match) :]) | st.just(base[len(match) :])
    return rows, match, draw(bounds), draw(bounds)


@given(questions())
@example(([("a", "x"), ("b", "y")], ("a",), ("w",), None))
@example(([("a", "x"), ("b", "y")], ("b",), None, ("z",)))
def test_a_span_holds_what_the_oracle_finds(
    question: tuple[list[Parts], Parts, Parts | None, Parts | None],
) -> None:
    rows, match, start, stop = question
    low, high = span(match, start, stop)
    found = [
        parts for parts in rows if low <= encode(parts) and (high is None or encode(parts) < high)
    ]
    assert found == [parts for parts in rows if oracle(parts, match, start, stop)]


def test_a_span_of_everything_has_no_end() -> None:
    assert span() == Span(b"", None)


@given(
    st.binary(max_size=4) | st.lists(st.sampled_from([0, 0xFE, 0xFF]), max_size=4).map(bytes),
    st.binary(max_size=4),
)
def test_beyond_lies_above_everything_that_starts_so_and_nothing_lies_between(
    prefix: bytes, other: bytes
) -> None:
    end = beyond(prefix)
    if end is None:
        assert not prefix.strip(b"\xff")
        return
    assert prefix + other < end
    # What is at or above the prefix and below the end starts with the prefix: the least such end.
    assert (prefix <= other < end) == other.startswith(prefix)


edge_texts = st.text(
    st.sampled_from("\0a\ud7ff\ue000\uffff\U0010fffe\U0010ffff"), max_size=4
) | st.text(max_size=4)


@given(edge_texts, edge_texts)
@example("\U0010ffff", "\U0010ffff")
@example("a\ud7ff", "a\ue000")
def test_beyond_text_lies_above_everything_that_starts_so_and_nothing_lies_between(
    prefix: str, other: str
) -> None:
    end = beyond_text(prefix)
    if end is None:
        assert not prefix.strip("\U0010ffff")
        return
    end.encode()
    assert prefix + other < end
    assert (prefix <= other < end) == other.startswith(prefix)


@given(edge_texts, edge_texts)
def test_code_points_and_utf_8_sort_alike(one: str, other: str) -> None:
    """Why a store may compare text keys either way."""
    assert (one < other) == (one.encode() < other.encode())


@pytest.mark.parametrize("part", [LOW - 1, HIGH + 1, 1.5, None, b"bytes", ("nested",)])
def test_what_cannot_be_ordered_is_refused(part: Any) -> None:
    with pytest.raises(InvalidValue, match="index"):
        encode(("a", part))
