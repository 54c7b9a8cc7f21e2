"""What people read: numbers agree with what they count, and help fits into a terminal."""

import ast
import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import click
import pytest

from holdfast.kernel.text import counted
from holdfast.surfaces.cli.root import holdfast

ROOT = Path(__file__).parents[2]
COLUMNS = 80
NOUNS = (
    *(
        "agents",
        "attempts",
        "entries",
        "events",
        "files",
        "folders",
        "gateways",
        "holders",
        "jobs",
        "leases",
        "locks",
    ),
    *(
        "neighbours",
        "records",
        "requests",
        "resources",
        "sessions",
        "statements",
        "waiters",
        "workflows",
    ),
)
_COUNTS = re.compile(rf" (?:[a-z]+ )?(?:{'|'.join(NOUNS)})\b")


def test_one_is_one() -> None:
    assert [counted(number, "lock") for number in (0, 1, 2)] == ["0 locks", "1 lock", "2 locks"]
    assert [counted(number, "entry is", "entries are") for number in (1, 2)] == [
        "1 entry is",
        "2 entries are",
    ]


def _numbers_before_nouns(path: Path) -> Iterator[str]:
    """Where a number that is known only at run time stands before what it counts, written in
    the plural.
    """
    for text in ast.walk(ast.parse(path.read_text())):
        if not isinstance(text, ast.JoinedStr):
            continue
        for value, after in zip(text.values, text.values[1:], strict=False):
            counts = isinstance(after, ast.Constant) and _COUNTS.match(str(after.value))
            if counts and isinstance(value, ast.FormattedValue) and not _fixed(value.value):
                yield f"{path.relative_to(ROOT)}:{text.lineno}"


def _fixed(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id.isupper()


# The tour plays with fixed numbers.
@pytest.mark.parametrize(
    "path",
    [path for path in sorted((ROOT / "src").rglob("*.py")) if "tour" not in path.parts],
    ids=str,
)
def test_a_number_that_may_be_one_agrees_with_what_it_counts(path: Path) -> None:
    assert list(_numbers_before_nouns(path)) == []


def _commands(command: click.Command, context: click.Context) -> Iterator[click.Context]:
    yield context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _commands(inner, click.Context(inner, info_name=name, parent=context))


def test_no_line_of_any_help_is_wider_than_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    contexts = list(
        _commands(
            holdfast, click.Context(holdfast, info_name="holdfast", **holdfast.context_settings)
        )
    )
    wide = [
        f"{one.command_path}: {line}"
        for one in contexts
        for line in one.get_help().splitlines()
        if len(line) > COLUMNS
    ]
    assert len(contexts) > 90
    assert wide == []
    cut = re.compile(r"^  .*\w\.\.\.$", re.MULTILINE)
    assert [one.command_path for one in contexts if cut.search(one.get_help())] == []


def test_every_example_of_a_help_is_a_whole_command() -> None:
    contexts = _commands(holdfast, click.Context(holdfast, info_name="holdfast"))
    helps = [one.command.help or "" for one in contexts]
    lines = [
        line for text in helps for line in re.findall(r"^ {4,}holdfast (\w.*)$", text, re.MULTILINE)
    ]
    assert len(lines) > 15
    for line in lines:
        words = shlex.split(re.sub(r"\$\w+|\$\$", "1", line))
        _parsed(holdfast, list(takewhile(lambda word: word not in ("|", ">", "&&"), words)))


def _parsed(command: click.Command, words: list[str], parent: click.Context | None = None) -> None:
    """Read a command as the program would, and run nothing."""
    context = command.make_context(words[0] if words else command.name, list(words), parent=parent)
    if isinstance(command, click.Group):
        _, inner, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert inner is not None
        _parsed(inner, rest, context)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_no_page_says_a_paragraph_twice(page: Path) -> None:
    paragraphs = [
        one
        for one in page.read_text().split("\n\n")
        if len(one) > COLUMNS and not one.startswith(("|", "```", "!"))
    ]
    assert [
        one[:COLUMNS] for number, one in enumerate(paragraphs) if one in paragraphs[:number]
    ] == []
