"""Which prompts are one and the same, typed and reported."""

import pytest

from holdfast.adapters.agent_report import comparable


@pytest.mark.parametrize(
    ("typed", "reported"),
    [
        ("hello\tyou ", "hello    you"),
        # As Claude Code 2.1.328 reports them.
        ("e\N{COMBINING ACUTE ACCENT}", "\N{LATIN SMALL LETTER E WITH ACUTE}"),
        ("a\N{SOFT HYPHEN}b\N{ZERO WIDTH SPACE}c\N{WORD JOINER}", "abc"),
        ("line\N{LINE SEPARATOR}end", "line\nend"),
        ("x\N{VARIATION SELECTOR-16}y", "xy"),
    ],
)
def test_what_a_tool_makes_of_a_prompt_is_that_prompt(typed: str, reported: str) -> None:
    assert comparable(typed) == comparable(reported)


@pytest.mark.parametrize(
    ("typed", "reported"),
    [("rm x", "rm xy"), ("\N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN}", "\N{MAN}"), ("a b", "ab")],
)
def test_another_prompt_is_another_one(typed: str, reported: str) -> None:
    assert comparable(typed) != comparable(reported)
