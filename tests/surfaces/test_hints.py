"""A command that a message shows can be pasted: it looks where the command that showed it
looked.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.surfaces.cli import hints
from holdfast.surfaces.cli.hints import AREAS
from holdfast.surfaces.cli.jobs import jobs
from tests.surfaces.command import CommandLine, Ran

pytestmark = pytest.mark.prove

Paste = Callable[[str], Ran]


@pytest.fixture
def holdfast(tmp_path: Path) -> CommandLine:
    """Without HOLDFAST_STORE: what is not said goes to another store."""
    (tmp_path / "a lab").mkdir()
    return CommandLine(tmp_path)


def shown(text: str) -> str:
    """The command in backquotes."""
    (found,) = re.findall(r"`(holdfast [^`]*)`", text)
    return str(found)


@pytest.mark.parametrize("behind", [False, True], ids=["before the verb", "behind it"])
def test_a_hint_names_the_store_that_was_given(
    holdfast: CommandLine, tmp_path: Path, behind: bool
) -> None:
    place = ["--store", f"sqlite:{tmp_path}/a lab/s.sqlite", "--namespace", "night"]
    held = ["locks", "acquire", "router 1", "--by", "desk", "--ttl", "600"]
    asked = ["locks", "acquire", "router 1", "--by", "me", "--ttl", "600", "-n"]
    assert holdfast(*place, *held).status == 0
    late = holdfast(*asked, *place) if behind else holdfast(*place, *asked)
    assert late.status == 5
    explained = holdfast.shell(shown(late.err))
    assert explained.status == 0 and explained.out.startswith("router 1 is held by desk"), (
        late.err,
        explained,
    )
    advised = next(line for line in explained.out.splitlines() if "to end it now" in line)
    assert holdfast.shell(advised.partition("to end it now: ")[2]).status == 0
    assert holdfast(*place, "locks", "status", "--json", "router 1").out.count('"by"') == 0


def test_a_hint_names_the_folder_of_jobs_that_was_given(
    holdfast: CommandLine, tmp_path: Path
) -> None:
    place = ["--registry-dir", str(tmp_path / "a lab")]
    job_id = holdfast(
        "jobs", "register", *place, "--prompt", "p", "--agent-session", "q"
    ).out.strip()
    missing = holdfast("jobs", "get", *place, "--job", "nosuchjob")
    assert missing.status == 1
    assert job_id in holdfast.shell(shown(missing.err)).out, missing.err


def test_the_advice_in_json_is_completed_too(holdfast: CommandLine, tmp_path: Path) -> None:
    place = ["--store", f"sqlite:{tmp_path}/s.sqlite"]
    holdfast(*place, "locks", "acquire", "a", "--by", "desk", "--ttl", "600")
    answer = json.loads(holdfast(*place, "locks", "explain", "a", "--json").out)
    assert any(
        f"holdfast --store sqlite:{tmp_path}/s.sqlite locks release" in line
        for line in answer["advice"]
    )


def test_what_the_environment_chose_is_not_repeated(tmp_path: Path) -> None:
    holdfast = CommandLine(
        tmp_path, HOLDFAST_STORE=f"sqlite:{tmp_path}/s.sqlite", HOLDFAST_NAMESPACE="n"
    )
    assert shown(holdfast("jobs", "get", "--job", "nosuchjob").err) == "holdfast jobs list"


@pytest.fixture
def given() -> Iterator[None]:
    hints.chosen.clear()
    hints.chosen["store"] = "sqlite:x"
    yield
    hints.chosen.clear()


@pytest.mark.usefixtures("given")
@pytest.mark.parametrize(
    ("text", "completed"),
    [
        ("try: holdfast locks run A -- B", "try: holdfast --store sqlite:x locks run A -- B"),
        ("(see `holdfast locks run --help`)", "(see `holdfast locks run --help`)"),
        (
            "(see `holdfast network routers lock --help`)",
            "(see `holdfast network routers lock --help`)",
        ),
        ("use a newer holdfast", "use a newer holdfast"),
        ("restore schema holdfast from a backup", "restore schema holdfast from a backup"),
        ("/opt/holdfast jobs", "/opt/holdfast jobs"),
        ("`holdfast tour`", "`holdfast tour`"),
        (
            "`holdfast log --subject a`, `holdfast doctor`",
            "`holdfast --store sqlite:x log --subject a`, `holdfast --store sqlite:x doctor`",
        ),
    ],
)
def test_only_commands_about_a_store_are_completed(text: str, completed: str) -> None:
    assert hints.completed(text) == completed


@pytest.mark.usefixtures("given")
@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret@db/d",
        "postgres://me:s3c:ret@db/d",
        "postgresql://db/d?user=me&password=s3cret&x=1",
    ],
)
def test_a_password_is_not_shown(url: str) -> None:
    hints.chosen["store"] = url
    logged = hints.completed("`holdfast log`")
    assert "s3c" not in logged and "***" in logged and "me" in logged


def test_every_area_and_every_command_about_jobs_takes_the_options() -> None:
    assert "tour" in AREAS
    for name, command in jobs.commands.items():
        assert any(option.name == "registry_dir" for option in command.params), name
