"""The commands that start fast are read by two parsers, which find the same."""

import copy
from importlib import import_module
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.surfaces.cli import hints, quick
from holdfast.surfaces.cli.command import CommandGroup, click_command
from holdfast.surfaces.cli.connection import begin

COMMANDS = {
    f"{area} {verb}": getattr(import_module(f"holdfast.surfaces.cli.{module}"), verb)
    for (area, verb), module in quick.COMMANDS.items()
}
VALUES = ["a", "1", "0", "7", "90s", "1.5", "", "-", "-1", "running", "completed", "keep", "wait"]
SPECIAL = ["--", "--help", "-h", "--nosuch", "--json=1", "--queue=a", "-nq", "-w1"]

Read = tuple[Any, Any, tuple[str, ...], dict[str, str]]


def by_quick(command: quick.QuickCommand, words: list[str]) -> Read | None:
    """What the small parser reads; None where it leaves the words to the full one."""
    made, seen = _spied(command)
    line = quick._PlainLine(made)
    if not line.read(words):
        return None
    line.call()
    return (*seen[0], line.chosen)


def by_click(command: quick.QuickCommand, words: list[str]) -> Read:
    """What the full parser reads. Raises click's errors."""
    made, seen = _spied(command)
    begin(None)
    group = CommandGroup("area", commands={made.name: click_command(made)})
    with group.make_context("area", [made.name, *words]) as context:
        group.invoke(context)
    return (*seen[0], dict(hints.chosen))


def _spied(command: quick.QuickCommand) -> tuple[quick.QuickCommand, list[tuple[Any, Any, Any]]]:
    seen = []

    def run(request: Any, options: Any, words: tuple[str, ...] = ()) -> int:
        seen.append((request, options, words))
        return 0

    made = copy.copy(command)
    made.run = run
    return made, seen


PLAIN = [
    ("agents resolve", ["gpu"]),
    ("agents resolve", ["--json", "gpu", "--namespace", "lab"]),
    ("jobs pick", ["--queue", "tmux:a"]),
    ("jobs pick", ["--agent-session", "a", "--wait", "60", "--pid", "7", "--json"]),
    ("jobs status", ["--job", "sort-1", "--set", "completed", "--token", "12", "--result", "x y"]),
    ("jobs status", ["sort-1", "--set", "error", "--error", "no disk", "--store", "memory:"]),
    ("locks acquire", ["router-1", "router-2", "--by", "job-7", "--pid", "12"]),
    ("locks acquire", ["r", "--by", "j", "--ttl", "600", "-w", "30", "--shared", "-q", "--json"]),
    ("locks acquire", ["r", "--by", "j", "-e", "--priority", "3", "--nb"]),
    ("locks run", ["router-1", "--", "./flash.sh", "--json", "--", "x"]),
    ("locks run", ["-n", "a", "b", "--by", "j", "-E", "7", "--leftovers", "keep", "--", "true"]),
]


@pytest.mark.parametrize(("name", "words"), PLAIN)
def test_plain_words_are_read_without_click(name: str, words: list[str]) -> None:
    found = by_quick(COMMANDS[name], words)
    assert found is not None
    assert found == by_click(COMMANDS[name], words)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("agents resolve", []),
        ("agents resolve", ["a", "b"]),
        ("agents resolve", ["a", "--help"]),
        ("jobs pick", []),
        ("jobs pick", ["--queue", "a", "--queue", "b"]),
        ("jobs pick", ["--queue", "a", "--wait", "90s"]),
        ("jobs pick", ["--queue", "a", "--pid", "0"]),
        ("jobs pick", ["--queue", "a", "--wait", "\u0661"]),
        ("jobs pick", ["--queue"]),
        ("jobs pick", ["--queue", "--json"]),
        ("jobs pick", ["--queue", "a", "extra"]),
        ("jobs status", ["--set", "completed"]),
        ("jobs status", ["x", "--set", "done"]),
        ("jobs status", ["x", "--job", "x", "--set", "completed"]),
        ("locks acquire", ["--by", "j"]),
        ("locks acquire", ["r", "--by", "j", "--ttl", "0"]),
        ("locks run", ["r"]),
        ("locks run", ["r", "--"]),
        ("locks run", ["--", "r", "--", "true"]),
        ("locks run", ["r", "-E", "256", "--", "true"]),
    ],
)
def test_other_words_are_left_to_click(name: str, words: list[str]) -> None:
    assert by_quick(COMMANDS[name], words) is None


def test_a_job_of_a_folder_is_left_to_click(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_REGISTRY_DIR", "/jobs")
    pick = COMMANDS["jobs pick"]
    assert by_quick(pick, ["--queue", "a"]) is None
    assert by_quick(pick, ["--queue", "a", "--store", "memory:"]) is not None


def _names(command: quick.QuickCommand) -> list[str]:
    params = click_command(command).params
    return [name for one in params for name in (*one.opts, *one.secondary_opts)]


@pytest.mark.parametrize("name", sorted(COMMANDS))
@given(data=st.data())
def test_what_the_small_parser_reads_the_full_one_reads_too(name: str, data: st.DataObject) -> None:
    command = COMMANDS[name]
    option = st.sampled_from([one for one in _names(command) if one.startswith("-")])
    value = st.sampled_from(VALUES)
    parts = st.one_of(
        st.tuples(option, value),
        st.tuples(option),
        st.tuples(value),
        st.tuples(st.sampled_from(SPECIAL)),
    )
    words = [word for part in data.draw(st.lists(parts, max_size=7)) for word in part]
    if command.runs_a_program:
        words += ["--", "true"]
    found = by_quick(command, words)
    if found is not None:
        try:
            assert found == by_click(command, words)
        except click.ClickException as error:
            raise AssertionError(f"click refuses {words}: {error.format_message()}") from None
