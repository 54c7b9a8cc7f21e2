"""Which prompts are one and the same, typed and reported, and which are refused."""

import io
import json
import os
import sys
import time
from pathlib import Path

import pytest

from holdfast.adapters.agent_report import comparable, main


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


WANTED = "sort the list\nand count it"


def reported(folder: Path, prompt: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    """The exit status of the hook, and the events that it reported."""
    data = io.TextIOWrapper(io.BytesIO(json.dumps({"prompt": prompt}).encode()))
    monkeypatch.setattr(sys, "stdin", data)
    status = main(str(folder), "prompt")
    return status, [path.stem.rpartition("-")[2] for path in folder.glob("*.report")]


@pytest.mark.parametrize(
    "prompt",
    [
        f"{WANTED} rm -r",
        f"!{WANTED}",
        "sort the list",
        "and count it",
        "sort thx list\nand count it",
    ],
)
def test_what_a_person_made_of_a_prompt_is_refused(
    prompt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "expected").write_text(WANTED)
    assert reported(tmp_path, prompt, monkeypatch) == (2, ["mixed"])


@pytest.mark.parametrize("prompt", [WANTED, f" {WANTED}\n", "another thing altogether", ""])
def test_a_prompt_and_another_one_are_not(
    prompt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "expected").write_text(WANTED)
    assert reported(tmp_path, prompt, monkeypatch) == (0, ["prompt"])


def test_what_a_killed_gateway_expected_refuses_nothing_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "expected").write_text(WANTED)
    before = time.time() - 61
    os.utime(tmp_path / "expected", (before, before))
    assert reported(tmp_path, "sort the list", monkeypatch) == (0, ["prompt"])
