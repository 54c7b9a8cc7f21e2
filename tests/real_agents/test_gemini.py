"""Gemini CLI in tmux, with and without its hooks: what is typed, what it received and answers."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.adapters.profiles import profile_named, profiles_folder
from holdfast.adapters.tools.gemini import EXTENSION
from holdfast.kernel.errors import InvalidValue
from tests.real_agents.tool_rig import ToolRig, pasted, tool_rig, without_answers_to_queries

pytestmark = pytest.mark.tools

TOUCH = "[[tool touch made]]"
DIALOG = "Allow execution of"


def link_hooks(rig: ToolRig) -> None:
    """What docs/tools.md tells the user to do once."""
    subprocess.run(
        ["gemini", "extensions", "link", str(EXTENSION), "--consent"],
        env=rig.environment,
        cwd=rig.home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=120,
    )


@pytest.fixture
def gemini(tmp_path: Path) -> Iterator[ToolRig]:
    """Gemini CLI with its hooks, started, with its gateway, and ready."""
    with tool_rig(tmp_path, "gemini") as rig:
        link_hooks(rig)
        rig.begin()
        rig.serve()
        rig.until_state("ready", 40)
        yield rig


def test_a_prompt_is_one_paste_and_one_enter_and_its_answer_comes_back(gemini: ToolRig) -> None:
    before = gemini.typed()
    assert gemini.answer_to("hello p-1") == "answered p-1"
    assert gemini.answer_to("and p-2\nin two lines") == "answered p-2"
    typed = without_answers_to_queries(gemini.typed()[len(before) :])
    assert typed == pasted("hello p-1", "and p-2\nin two lines")
    assert gemini.model.prompts() == ["hello p-1", "and p-2\nin two lines"]


def test_a_long_prompt_of_many_lines_arrives_byte_for_byte(gemini: ToolRig) -> None:
    text = "p-3 " + "\n".join(f"line {number}: déjà vu, 漢字, \ttab" for number in range(160))
    assert len(text.encode()) > 5000
    assert gemini.answer_to(text) == "answered p-3"
    assert gemini.model.prompts() == [text]


def test_an_answer_in_pieces_is_whole_and_has_each_piece_once(gemini: ToolRig) -> None:
    request = gemini.prompt("p-4 [[hold h]]")
    gemini.until_shown("begun")
    gemini.model.release("h")
    assert gemini.ended(request)["result"]["text"] == "begun\n\nanswered p-4"


@pytest.mark.parametrize("text", ["!touch made", "#x", "p-5 mail a@x", "p-5 ?"])
def test_a_prompt_is_no_command_whatever_it_begins_with(gemini: ToolRig, text: str) -> None:
    assert gemini.answer_to(text).startswith("answered")
    assert gemini.model.prompts() == [text]
    assert not (gemini.project / "made").exists()


@pytest.mark.parametrize("text", ["/quit", " /help", "look at @made", "p-5 \\"])
def test_a_prompt_that_it_would_take_for_something_else_is_refused(
    gemini: ToolRig, text: str
) -> None:
    before = gemini.typed()
    with pytest.raises(InvalidValue):
        gemini.prompt(text)
    assert gemini.typed() == before


def test_a_question_holds_the_queue_until_it_is_answered_on_the_screen(gemini: ToolRig) -> None:
    asking = gemini.prompt(f"p-6 {TOUCH}")
    gemini.until_shown(DIALOG)
    gemini.until_state("asking")
    waiting = gemini.prompt("p-7")
    before = gemini.typed()
    assert gemini.typed() == before, "something was typed into the dialog"
    assert not (gemini.project / "made").exists()
    gemini.person_answers("Enter", DIALOG)
    assert gemini.ended(asking)["result"]["text"] == "answered p-6"
    assert gemini.ended(waiting)["result"]["text"] == "answered p-7"
    assert (gemini.project / "made").exists()


def test_a_draft_is_left_alone_and_the_prompt_waits(gemini: ToolRig) -> None:
    gemini.person_writes("my own thought")
    gemini.until_state("draft")
    before = gemini.typed_now()
    request = gemini.prompt("p-8")
    assert gemini.typed() == before
    gemini.person_types("C-u")
    assert gemini.ended(request)["result"]["text"] == "answered p-8"
    assert gemini.model.prompts() == ["p-8"]


def test_a_person_who_presses_escape_ends_the_request(gemini: ToolRig) -> None:
    request = gemini.prompt("p-9 [[hold h]]")
    gemini.until_shown("begun")
    gemini.person_types("Escape")
    ended = gemini.ended(request)
    assert (ended["state"], ended["error_code"]) == ("failed", "interrupted")
    assert gemini.answer_to("p-10") == "answered p-10"


@pytest.mark.parametrize("how", ["hold", "silent"])
def test_an_interrupt_ends_the_request_and_leaves_an_empty_box(gemini: ToolRig, how: str) -> None:
    request = gemini.prompt(f"p-11 first line\nsecond line [[{how} h]]")
    gemini.model.wait_for("p-11")
    if how == "hold":
        gemini.until_shown("begun")
    gemini.gateway.interrupt()
    assert gemini.ended(request)["error_code"] == "interrupted"
    gemini.until_state("ready")
    assert gemini.answer_to("p-12") == "answered p-12"
    assert gemini.model.prompts()[-1] == "p-12"


def test_without_the_extension_a_request_ends_as_delivered(tmp_path: Path) -> None:
    with tool_rig(tmp_path, "gemini") as rig:
        rig.begin()
        rig.serve()
        rig.until_state("ready", 40)
        ended = rig.ended(rig.prompt("p-13"))
        assert (ended["state"], ended["result"]["receipt"]) == ("completed", "delivered")
        rig.model.wait_for("p-13")
        assert rig.model.prompts() == ["p-13"]


def test_the_trust_dialog_is_reported_and_left_alone(tmp_path: Path) -> None:
    with tool_rig(tmp_path, "gemini") as rig:
        link_hooks(rig)
        trusted = rig.home / ".gemini/trustedFolders.json"
        trusted.write_text("{}")
        rig.begin()
        rig.serve()
        status = rig.until_state("asking", 180)
        rig.until_shown("Do you trust the files in this folder")
        status = rig.until_state("asking")
        assert "trust" in status["detail"]
        rig.prompt("p-14")
        assert b"p-14" not in rig.typed()
        assert trusted.read_text() == "{}"


def test_it_is_killed_and_goes_on_with_the_same_conversation(gemini: ToolRig) -> None:
    assert gemini.answer_to("p-15") == "answered p-15"
    session = gemini.gateway.status()["session_id"]
    request = gemini.prompt("p-16 [[hold h]]")
    gemini.until_shown("begun")
    os.kill(gemini.pid(), signal.SIGKILL)
    ended = gemini.ended(request)
    assert (ended["state"], ended["error_code"]) == ("failed", "agent_gone")
    # Its next request has the prompt without an answer too.
    gemini.model.release("h")
    gemini.until_gone()
    profile = profile_named("gemini", profiles_folder(gemini.environment))
    resumed = [word.replace("{session}", session) for word in profile.launch.resume]
    gemini.begin(arguments=tuple(resumed))
    gemini.serve()
    gemini.until_shown("answered p-15")
    gemini.until_state("ready")
    assert "p-17" in gemini.answer_to("p-17")
    assert gemini.gateway.status()["session_id"] == session
