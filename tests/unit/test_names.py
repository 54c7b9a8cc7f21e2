"""What may be a name, and that no accepted name can leave its place."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.kernel.errors import InvalidName
from holdfast.kernel.names import (
    check_agent_name,
    check_id,
    check_job_id,
    check_label,
    path_component,
)
from tests.harness.errors import raises

CHECKS = [check_id, check_agent_name, check_job_id, check_label]

# Written out again on purpose: this is the rule of the design, not of the code.
ID = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")

near_ids = (
    st.text("aZ0._-", max_size=5) | st.text("aZ09._-/ \n\0é٣", max_size=130) | st.text(max_size=6)
)
labels = st.text(
    st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=256
)


def accepts(check: Callable[[Any], str], value: object) -> bool:
    try:
        return check(value) == value
    except InvalidName:
        return False


@given(near_ids)
def test_an_id_is_accepted_exactly_by_the_rule(text: str) -> None:
    assert accepts(check_id, text) == bool(ID.match(text))


@given(near_ids)
def test_an_agent_name_is_an_id_without_dots(text: str) -> None:
    assert accepts(check_agent_name, text) == (accepts(check_id, text) and "." not in text)


@given(near_ids)
def test_a_jobs_id_may_begin_with_what_url_safe_ids_do(text: str) -> None:
    inner = "a" + text[1:] if text[:1] in ("_", "-") else text
    assert accepts(check_job_id, text) == accepts(check_id, inner)


@given(near_ids)
def test_an_accepted_id_is_safe_as_a_path_component_as_it_is(text: str) -> None:
    if accepts(check_job_id, text):
        assert text not in (".", "..")
        assert not set(text) & set("/\0\n ")


@pytest.mark.parametrize("check", [check_id, check_agent_name, check_job_id])
def test_an_id_ends_at_128_characters(check: Callable[[str], str]) -> None:
    assert accepts(check, "a" * 128)
    assert not accepts(check, "a" * 129)


def test_a_label_ends_at_256_characters() -> None:
    assert accepts(check_label, "\U0001f600" * 256)
    assert not accepts(check_label, "a" * 257)


@given(labels)
def test_every_printable_text_is_a_label(text: str) -> None:
    assert accepts(check_label, text)


@pytest.mark.parametrize(
    "text", ["/dev/ttyUSB0", "fe80::1", "tmux:claude-a", "..", " ", "日本", "a\u00a0b", "~"]
)
def test_odd_things_that_are_locked_are_labels(text: str) -> None:
    assert accepts(check_label, text)


@pytest.mark.parametrize(
    "bad", ["", "\0", "a\nb", "\x1f", "\x7f", "\x80", "\x9f", "\u2028", "\u2029", "a\r"]
)
def test_control_characters_are_no_label(bad: str) -> None:
    assert not accepts(check_label, bad)


@given(st.characters(categories=["Cs", "Cc"]))
def test_halves_of_pairs_and_control_characters_are_no_label_wherever_they_stand(bad: str) -> None:
    assert not accepts(check_label, f"a{bad}b")


@pytest.mark.parametrize(
    ("first", "last", "before", "behind"),
    [
        ("\x00", "\x1f", "", " "),
        ("\x7f", "\x9f", "~", "\xa0"),
        ("\ud800", "\udfff", "\ud7ff", "\ue000"),
        ("\u2028", "\u2029", "\u2027", "\u202a"),
    ],
    ids=["control", "delete and C1", "surrogates", "separators"],
)
def test_each_range_of_forbidden_characters_ends_where_it_should(
    first: str, last: str, before: str, behind: str
) -> None:
    for code in range(ord(first), ord(last) + 1):
        for text in (chr(code), f"{chr(code)}b", f"a{chr(code)}", f"a{chr(code)}b"):
            assert not accepts(check_label, text), ascii(text)
    for text in filter(None, [before, behind, before + behind]):
        assert accepts(check_label, text), ascii(text)


@given(labels)
def test_a_path_component_stays_in_its_folder(label: str) -> None:
    component = path_component(label)
    assert component
    assert re.fullmatch(r"(?:[A-Za-z0-9_-]|%[0-9A-F]{2})+", component)
    assert len(component) <= 12 * len(label)


@given(labels, labels)
def test_two_labels_never_share_a_path_component(one: str, other: str) -> None:
    assert (path_component(one) == path_component(other)) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"), [("a/b", "a%2Fb"), ("%", "%25"), (".", "%2E"), ("é", "Ã©"), ("a", "A")]
)
def test_labels_that_look_like_each_other_encoded_do_not_meet(one: str, other: str) -> None:
    assert path_component(one) != path_component(other)


@pytest.mark.parametrize(
    ("label", "component"),
    [("..", "%2E%2E"), ("/dev/ttyUSB0", "%2Fdev%2FttyUSB0"), ("a_b-C9", "a_b-C9"), ("é", "%C3%A9")],
)
def test_a_path_component_is_readable(label: str, component: str) -> None:
    assert path_component(label) == component


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("value", [None, 5, b"bytes", ["a"]])
def test_what_is_no_text_is_refused_as_a_name(check: Callable[[Any], str], value: object) -> None:
    with pytest.raises(InvalidName):
        check(value)


@pytest.mark.parametrize("check", CHECKS)
def test_a_refusal_names_what_it_was_for_and_shows_the_value_safely(
    check: Callable[..., str],
) -> None:
    with raises(InvalidName, what="owner") as caught:
        check("\x1b[31m\nраypal" + "x" * 5000, "owner")  # noqa: RUF001
    message = str(caught.value)
    assert caught.value.fields["what"] == "owner"
    assert message.isascii() and message.isprintable() and len(message) < 250
