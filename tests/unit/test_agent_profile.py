"""Profiles: the built-in ones are right, and a wrong one is refused with its file and its entry."""

from pathlib import Path

import pytest

from holdfast.adapters.profiles import profile_for, profile_named, profile_names
from holdfast.kernel.agent_profile import Profile, Taken, as_typed, check_taken
from holdfast.kernel.errors import InvalidValue, NotFound

NOWHERE = Path("/nonexistent")


@pytest.mark.parametrize("name", profile_names(NOWHERE))
def test_a_built_in_profile_is_right(name: str) -> None:
    assert profile_named(name, NOWHERE).name == name


@pytest.mark.parametrize("name", ["claude", "codex", "opencode", "gemini"])
def test_a_command_names_its_profile(name: str) -> None:
    assert profile_for([f"/usr/bin/{name}", "--model", "x"], NOWHERE).name == name
    assert profile_for(["sleep", "5"], NOWHERE).name == "generic"


def test_an_own_profile_replaces_a_built_in_one(tmp_path: Path) -> None:
    (tmp_path / "codex.toml").write_text('programs = ["mine"]\n')
    assert profile_named("codex", tmp_path).programs == ("mine",)
    assert profile_for(["mine"], tmp_path).name == "codex"


def test_an_unknown_profile_is_named_with_the_known_ones() -> None:
    with pytest.raises(NotFound) as refused:
        profile_named("cdoex", NOWHERE)
    assert "codex" in refused.value.message


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("[screen]\nbox = '('", "screen.box"),
        ("[screen]\ndraft = 'abc'", "screen.draft"),
        ("[screen]\nworking = 'a{2}'", "screen.working"),
        ("[screen]\nbix = 'a'", "bix"),
        ("[prompts]\ncommands = '/'", "prompts.commands"),
        ("[keys]\ninterrupt = 'C-z'", "keys.interrupt"),
        ("reports = 'vim'", "reports"),
        ("programs = 5", "programs"),
        ("colour = 'red'", "colour"),
        ("[screen", "mine.toml"),
    ],
)
def test_a_wrong_profile_is_refused_with_its_file_and_its_entry(
    tmp_path: Path, text: str, entry: str
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(InvalidValue) as refused:
        profile_named("mine", tmp_path)
    assert str(path) in refused.value.message
    assert entry in refused.value.message
    assert refused.value.fields["profile"] == "mine"
    # No command is started as long as it may be the one that is meant.
    with pytest.raises(InvalidValue):
        profile_for(["anything"], tmp_path)


def test_prompts_are_refused_or_get_the_space_that_makes_them_a_text() -> None:
    rules = Taken(
        commands=("/",), unsent=("\\",), replaced=("@",), space_before=("!",), mentions=("$",)
    )
    profile = Profile(name="one", prompts=rules)
    for refused in ("/help", "  /help", "end \\", "see @file now"):
        with pytest.raises(InvalidValue):
            check_taken(profile, refused)
    for taken in ("a/b", "mail a@b", "a \\ b", "!ls", "use $x"):
        check_taken(profile, taken)
    assert as_typed(profile, "!ls") == " !ls"
    assert as_typed(profile, "use $x") == "use $x "
    assert as_typed(profile, "use $x ") == "use $x "
    assert as_typed(profile, "plain\ntext") == "plain\ntext"
    assert as_typed(Profile(name="two"), "!ls $x") == "!ls $x"
