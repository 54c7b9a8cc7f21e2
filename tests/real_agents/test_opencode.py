"""opencode in tmux, with its plugin: what is typed, what it received, what it answers."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.adapters.profiles import profile_named, profiles_folder
from tests.real_agents.tool_rig import ToolRig, pasted, tool_rig, without_answers_to_queries

pytestmark = pytest.mark.tools

TOUCH = "[[tool touch made]]"
DIALOG = "Permission required"


@pytest.fixture
def opencode(tmp_path: Path) -> Iterator[ToolRig]:
    """opencode, started, with its gateway, and ready."""
    with tool_rig(tmp_path, "opencode") as rig:
        rig.begin()
        rig.serve()
        # In a new home it installs things first.
        rig.until_state("ready", 240)
        yield rig


def test_a_prompt_is_one_paste_and_one_enter_and_its_answer_comes_back(opencode: ToolRig) -> None:
    before = opencode.typed()
    assert opencode.answer_to("hello p-1") == "answered p-1"
    assert opencode.answer_to("and p-2\nin two lines") == "answered p-2"
    typed = without_answers_to_queries(opencode.typed()[len(before) :])
    assert typed == pasted("hello p-1", "and p-2\nin two lines")
    assert opencode.model.prompts() == ["hello p-1", "and p-2\nin two lines"]


def test_a_long_prompt_of_many_lines_arrives_byte_for_byte(opencode: ToolRig) -> None:
    text = "p-3 " + "\n".join(f"line {number}: déjà vu, 漢字, \ttab" for number in range(160))
    assert len(text.encode()) > 5000
    assert opencode.answer_to(text) == "answered p-3"
    # It puts a space behind a long paste.
    assert opencode.model.prompts() == [f"{text} "]


@pytest.mark.parametrize(
    "text",
    ["/exit", "/new p-5", "!touch made", "@project", "look at @x", "#x", "/etc/passwd", "p-5 \\"],
)
def test_a_prompt_is_no_command_whatever_it_begins_with(opencode: ToolRig, text: str) -> None:
    (opencode.project / "x-file").touch()
    assert opencode.answer_to(text).startswith("answered")
    assert [one.strip() for one in opencode.model.prompts()] == [text]
    assert not (opencode.project / "made").exists()


def test_an_operator_allows_what_it_asks_for(opencode: ToolRig) -> None:
    request = opencode.prompt(f"p-6 {TOUCH}")
    question = opencode.until_asked()
    assert (question["kind"], question["subject"]) == ("permission", "bash: touch made")
    assert not (opencode.project / "made").exists()
    opencode.gateway.reply(question["question_id"], "allow")
    assert opencode.ended(request)["result"]["text"] == "answered p-6"
    assert (opencode.project / "made").exists()
    assert opencode.gateway.status()["questions"] == []


def test_an_operator_refuses_and_says_why(opencode: ToolRig) -> None:
    request = opencode.prompt(f"p-7 {TOUCH}")
    question = opencode.until_asked()
    opencode.gateway.reply(question["question_id"], "not on a Friday")
    assert opencode.ended(request)["result"]["text"] == "answered p-7"
    assert "not on a Friday" in opencode.model.wait_for("p-7", ran=1).last_result
    assert not (opencode.project / "made").exists()


def test_a_question_holds_the_queue_until_it_is_answered_on_the_screen(opencode: ToolRig) -> None:
    asking = opencode.prompt(f"p-8 {TOUCH}")
    opencode.until_shown(DIALOG)
    opencode.until_state("asking")
    waiting = opencode.prompt("p-9")
    before = opencode.typed()
    assert opencode.typed() == before, "something was typed into the dialog"
    opencode.person_answers("Enter", DIALOG)
    assert opencode.ended(asking)["result"]["text"] == "answered p-8"
    assert opencode.ended(waiting)["result"]["text"] == "answered p-9"
    assert (opencode.project / "made").exists()
    assert opencode.gateway.status()["questions"] == []


def test_a_draft_is_left_alone_and_the_prompt_waits(opencode: ToolRig) -> None:
    opencode.person_writes("my own thought")
    opencode.until_state("draft")
    before = opencode.typed_now()
    request = opencode.prompt("p-10")
    assert opencode.typed() == before
    opencode.person_types("C-u")
    assert opencode.ended(request)["result"]["text"] == "answered p-10"
    assert opencode.model.prompts() == ["p-10"]


def test_a_person_who_presses_escape_ends_the_request(opencode: ToolRig) -> None:
    request = opencode.prompt("p-11 [[hold h]]")
    opencode.until_shown("begun")
    opencode.person_types("Escape")
    opencode.until_shown("esc again to interrupt")
    opencode.person_types("Escape")
    ended = opencode.ended(request)
    assert (ended["state"], ended["error_code"]) == ("failed", "interrupted")
    assert opencode.answer_to("p-12") == "answered p-12"


@pytest.mark.parametrize("how", ["hold", "silent"])
def test_an_interrupt_ends_the_request_and_leaves_an_empty_box(opencode: ToolRig, how: str) -> None:
    request = opencode.prompt(f"p-13 first line\nsecond line [[{how} h]]")
    opencode.model.wait_for("p-13")
    if how == "hold":
        opencode.until_shown("begun")
    opencode.gateway.interrupt()
    assert opencode.ended(request)["error_code"] == "interrupted"
    opencode.until_state("ready")
    assert opencode.answer_to("p-14") == "answered p-14"
    assert opencode.model.prompts()[-1] == "p-14"


def test_what_it_starts_has_neither_the_token_nor_the_plugin(opencode: ToolRig) -> None:
    request = opencode.prompt("p-15 [[tool env > environment]]")
    question = opencode.until_asked()
    opencode.gateway.reply(question["question_id"], "allow")
    assert opencode.ended(request)["state"] == "completed"
    environment = (opencode.project / "environment").read_text()
    assert "HOLDFAST_AGENT_NAME" in environment
    assert "HOLDFAST_REPORT_TOKEN" not in environment
    assert "OPENCODE_CONFIG_CONTENT" not in environment


def test_the_settings_of_the_user_stay_with_their_plugins(tmp_path: Path) -> None:
    with tool_rig(tmp_path, "opencode") as rig:
        own = tmp_path / "own.js"
        own.write_text(
            "import { writeFileSync } from 'node:fs'\n"
            f"export const Own = async () => {{ writeFileSync({json.dumps(str(tmp_path))} "
            "+ '/own-ran', ''); return {} }\n"
        )
        settings = rig.home / ".config/opencode/opencode.json"
        document = json.loads(settings.read_text())
        settings.write_text(json.dumps({**document, "plugin": [own.as_uri()]}))
        before = settings.read_bytes()
        rig.begin()
        rig.serve()
        rig.until_state("ready", 240)
        assert rig.answer_to("p-16") == "answered p-16"
        assert (tmp_path / "own-ran").exists()
        assert settings.read_bytes() == before


def test_a_model_that_fails_fails_the_request(opencode: ToolRig) -> None:
    ended = opencode.ended(opencode.prompt("p-17 [[fail 400]]"))
    assert (ended["state"], ended["error_code"]) == ("failed", "agent_failed")
    assert opencode.answer_to("p-18") == "answered p-18"


def test_it_is_killed_and_goes_on_with_the_same_conversation(opencode: ToolRig) -> None:
    assert opencode.answer_to("p-19") == "answered p-19"
    session = opencode.gateway.status()["session_id"]
    request = opencode.prompt("p-20 [[hold h]]")
    opencode.until_shown("begun")
    os.kill(opencode.pid(), signal.SIGKILL)
    ended = opencode.ended(request)
    assert (ended["state"], ended["error_code"]) == ("failed", "agent_gone")
    opencode.until_gone()
    profile = profile_named("opencode", profiles_folder(opencode.environment))
    resumed = [word.replace("{session}", session) for word in profile.launch.resume]
    opencode.begin(arguments=tuple(resumed))
    opencode.serve()
    opencode.until_shown("answered p-19")
    opencode.until_state("ready")
    assert opencode.answer_to("p-21") == "answered p-21"
    assert opencode.gateway.status()["session_id"] == session
