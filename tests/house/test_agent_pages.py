"""The pages about agents say what there is: every state, command, reason, error and setting."""

import re
from pathlib import Path

import click
import pytest
from msgspec.structs import fields

from holdfast.domains.agents import Manifest, Reason
from holdfast.domains.agents import manifest as manifests
from holdfast.domains.agents.records import TMUX_BACKED
from holdfast.kernel import agent_adapter
from holdfast.kernel.errors import Untrusted
from holdfast.kernel.limits import AGENT_GRACE_S, AGENT_LEASE_S, AGENT_RUN_KEEP_S
from holdfast.kernel.settings import AgentSettings

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "holdfast" / "domains" / "agents").glob("*.py"))


def _page(name: str = "agents.md") -> str:
    return (ROOT / "docs" / name).read_text()


def test_every_journalled_step_is_drawn() -> None:
    section = _page("state_machines.md").partition("\n## An agent\n")[2].partition("\n## ")[0]
    documented = {
        kind for source in SOURCES for kind in re.findall(r'"(agent\.\w+)"', source.read_text())
    }
    assert {
        kind
        for line in section.splitlines()
        if "-->" in line
        for kind in re.findall(r"\bagent\.\w+", line)
    } == documented
    steps = re.findall(r"^ *(\S+) --> ([^:\s]+)", section, re.MULTILINE)
    assert {after for _, after in steps} - {"[*]"} == {before for before, _ in steps} - {"[*]"}


def test_the_guide_shows_every_command_and_no_other() -> None:
    from holdfast.surfaces.cli.agents import agents

    shown = set(re.findall(r"holdfast agents (\w+)", _page()))
    assert shown == set(agents.list_commands(click.Context(agents)))


def test_every_command_has_json() -> None:
    from holdfast.surfaces.cli.agents import agents

    # `attach` becomes tmux.
    for name, command in agents.commands.items() - {("attach", agents.commands["attach"])}:
        assert any("--json" in option.opts for option in command.params), name


def test_every_reason_and_every_hard_error_is_documented() -> None:
    assert [reason.value for reason in Reason if f"| `{reason.value}` |" not in _page()] == []
    assert [
        kind.code for kind in Untrusted.__subclasses__() if f"`{kind.code}`" not in _page()
    ] == []


def test_every_setting_is_shown_with_its_default() -> None:
    block = _page().rpartition("```toml\n")[2].partition("```")[0]
    for field in fields(AgentSettings):
        shown = f'"{field.default}"' if isinstance(field.default, str) else f"{field.default:g}"
        assert f"{field.name} = {shown}" in block


def test_every_backend_is_named() -> None:
    assert [
        name
        for name in TMUX_BACKED
        if not name.endswith("_headless") and f"`{name}`" not in _page()
    ] == []


def test_the_manifest_that_the_guide_shows_is_one() -> None:
    shown = _page().partition("```json\n")[2].partition("```")[0]
    manifest = manifests.from_json(shown.encode())
    assert all(f'"{field.name}"' in shown for field in fields(Manifest))
    assert manifest.session_name == manifest.agent_name


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (agent_adapter.TmuxAdapter, "tmux"),
        (agent_adapter.CommandAdapter, "command"),
        (agent_adapter.RestAdapter, "rest"),
        (agent_adapter.ManagedAdapter, "managed"),
    ],
)
def test_every_setting_of_an_adapter_is_named(kind: type, words: str) -> None:
    [row] = re.findall(rf"^\| `{words}` \| (.*) \|$", _page(), re.MULTILINE)
    assert [field.name for field in fields(kind) if f"`{field.name}`" not in row] == []


def test_the_bounds_that_the_guide_names_are_those_of_the_program() -> None:
    assert {86400: "a day by default"}[int(AGENT_LEASE_S)] in _page()
    assert {300: "five minutes, `--grace`"}[int(AGENT_GRACE_S)] in _page()
    assert {604800: "kept for a week"}[int(AGENT_RUN_KEEP_S)] in _page()
