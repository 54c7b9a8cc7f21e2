"""Codex in tmux, with its hooks: what is typed, what it received, what it answers."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.adapters.profiles import profile_named, profiles_folder
from tests.real_agents.tool_rig import ToolRig, pasted, tool_rig, without_answers_to_queries

pytestmark = pytest.mark.tools

OUTSIDE = "[[outside touch made]]"
DIALOG = "Would you like to run the following command?"


@pytest.fixture
def codex(tmp_path: Path) -> Iterator[ToolRig]:
    """Codex, started, with its gateway, and ready."""
    with tool_rig(tmp_path, "codex") as rig:
        rig.begin()
        rig.serve()
        rig.until_state("ready")
        yield rig


def test_a_prompt_is_one_paste_and_one_enter_and_its_answer_comes_back(codex: ToolRig) -> None:
    before = codex.typed()
    assert codex.answer_to("hello p-1") == "answered p-1"
    assert codex.answer_to("and p-2\nin two lines") == "answered p-2"
    typed = without_answers_to_queries(codex.typed()[len(before) :])
    assert typed == pasted("hello p-1", "and p-2\nin two lines")
    assert codex.model.prompts() == ["hello p-1", "and p-2\nin two lines"]


def test_a_long_prompt_of_many_lines_arrives_byte_for_byte(codex: ToolRig) -> None:
    text = "p-3 " + "\n".join(f"line {number}: déjà vu, 漢字, \ttab" for number in range(160))
    assert len(text.encode()) > 5000
    assert codex.answer_to(text) == "answered p-3"
    assert codex.model.prompts() == [text]


def test_only_our_own_hooks_are_trusted_and_only_for_this_run(tmp_path: Path) -> None:
    with tool_rig(tmp_path, "codex") as rig:
        settings = rig.home / ".codex/config.toml"
        ran = tmp_path / "ran"
        stranger = f'[[hooks.UserPromptSubmit]]\nhooks=[{{type="command",command="touch {ran}"}}]\n'
        settings.write_text(settings.read_text() + stranger)
        rig.begin()
        rig.serve()
        rig.until_state("asking")
        rig.person_answers("Escape", "Hooks need review")
        rig.until_state("ready")
        assert rig.answer_to("p-4") == "answered p-4"
        assert not ran.exists()
        assert "trusted_hash" not in settings.read_text()
        assert "dangerously" not in Path(f"/proc/{rig.pid()}/cmdline").read_text()


@pytest.mark.parametrize(
    "text",
    [
        "/status",
        "/quit p-5",
        "!touch made",
        "@project",
        "look at @x",
        "use $x",
        "#x",
        "/etc/passwd",
    ],
)
def test_a_prompt_is_no_command_whatever_it_begins_with(codex: ToolRig, text: str) -> None:
    assert codex.answer_to(text).startswith("answered")
    assert codex.model.prompts() == [text]
    assert not (codex.project / "made").exists()


def test_an_operator_allows_what_it_asks_for(codex: ToolRig) -> None:
    request = codex.prompt(f"p-6 {OUTSIDE}")
    question = codex.until_asked()
    assert (question["kind"], question["subject"]) == ("permission", "Bash: touch made")
    assert not (codex.project / "made").exists()
    codex.gateway.reply(question["question_id"], "allow")
    assert codex.ended(request)["result"]["text"] == "answered p-6"
    assert (codex.project / "made").exists()


def test_an_operator_refuses_and_says_why(codex: ToolRig) -> None:
    request = codex.prompt(f"p-7 {OUTSIDE}")
    question = codex.until_asked()
    codex.gateway.reply(question["question_id"], "not on a Friday")
    assert codex.ended(request)["result"]["text"] == "answered p-7"
    assert "not on a Friday" in codex.model.wait_for("p-7", ran=1).last_result
    assert not (codex.project / "made").exists()


def test_a_question_that_nobody_answers_is_left_to_its_own_dialog(tmp_path: Path) -> None:
    with tool_rig(tmp_path, "codex") as rig:
        rig.begin("--question-timeout", "2s")
        rig.serve()
        rig.until_state("ready")
        asking, waiting = rig.prompt(f"p-8 {OUTSIDE}"), rig.prompt("p-9")
        rig.until_shown(DIALOG)
        before = rig.typed()
        assert rig.state() == "asking"
        assert rig.typed() == before, "something was typed into the dialog"
        rig.person_types("y")
        assert rig.ended(asking)["result"]["text"] == "answered p-8"
        assert rig.ended(waiting)["result"]["text"] == "answered p-9"
        assert (rig.project / "made").exists()


def test_a_draft_is_left_alone_and_the_prompt_waits(codex: ToolRig) -> None:
    codex.person_writes("my own thought")
    codex.until_state("draft")
    before = codex.typed_now()
    request = codex.prompt("p-10")
    assert codex.typed() == before
    codex.person_types("C-u")
    assert codex.ended(request)["result"]["text"] == "answered p-10"
    assert codex.model.prompts() == ["p-10"]


def test_a_person_who_presses_escape_ends_the_request(codex: ToolRig) -> None:
    request = codex.prompt("p-11 [[hold h]]")
    codex.until_shown("• begun")
    codex.person_types("Escape")
    ended = codex.ended(request)
    assert (ended["state"], ended["error_code"]) == ("failed", "interrupted")
    assert codex.answer_to("p-12") == "answered p-12"


@pytest.mark.parametrize("how", ["hold", "silent"])
def test_an_interrupt_ends_the_request_and_leaves_an_empty_box(codex: ToolRig, how: str) -> None:
    request = codex.prompt(f"p-13 first line\nsecond line [[{how} h]]")
    codex.model.wait_for("p-13")
    if how == "hold":
        codex.until_shown("• begun")
    codex.gateway.interrupt()
    assert codex.ended(request)["error_code"] == "interrupted"
    codex.until_state("ready")
    assert codex.answer_to("p-14") == "answered p-14"
    assert codex.model.prompts()[-1] == "p-14"


def test_the_trust_dialog_is_reported_and_left_alone(tmp_path: Path) -> None:
    with tool_rig(tmp_path, "codex") as rig:
        settings = rig.home / ".codex/config.toml"
        settings.write_text(settings.read_text().partition("[projects.")[0])
        # A folder without settings of its own is not asked about.
        subprocess.run(["git", "init", "-q", rig.project], check=True)
        (rig.project / ".codex").mkdir()
        (rig.project / ".codex/config.toml").write_text("model_verbosity = 'low'\n")
        rig.begin()
        rig.serve()
        status = rig.until_state("asking")
        assert "trust" in status["detail"]
        rig.prompt("p-15")
        assert b"p-15" not in rig.typed()
        assert "trust_level" not in settings.read_text()


def test_it_is_killed_and_goes_on_with_the_same_conversation(codex: ToolRig) -> None:
    assert codex.answer_to("p-16") == "answered p-16"
    session = codex.gateway.status()["session_id"]
    request = codex.prompt("p-17 [[hold h]]")
    codex.until_shown("• begun")
    os.kill(codex.pid(), signal.SIGKILL)
    ended = codex.ended(request)
    assert (ended["state"], ended["error_code"]) == ("failed", "agent_gone")
    codex.until_gone()
    profile = profile_named("codex", profiles_folder(codex.environment))
    resumed = [word.replace("{session}", session) for word in profile.launch.resume]
    codex.begin(arguments=tuple(resumed))
    codex.serve()
    codex.until_shown("answered p-16")
    codex.until_state("ready")
    assert codex.answer_to("p-18") == "answered p-18"
    assert codex.gateway.status()["session_id"] == session
