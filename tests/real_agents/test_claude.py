"""Claude Code in tmux, with its hooks: what is typed, what it received, what it answers."""

import pytest

from holdfast.kernel.errors import InvalidValue
from tests.real_agents.tool_rig import ToolRig, pasted, without_answers_to_queries

pytestmark = pytest.mark.tools


def test_a_prompt_is_one_paste_and_one_enter_and_its_answer_comes_back(claude: ToolRig) -> None:
    before = claude.typed()
    assert claude.answer_to("hello p-1") == "answered p-1"
    assert claude.answer_to("and p-2") == "answered p-2"
    typed = without_answers_to_queries(claude.typed()[len(before) :])
    assert typed == pasted("hello p-1", "and p-2")
    assert claude.model.prompts() == ["hello p-1", "and p-2"]


def test_a_long_prompt_of_many_lines_arrives_byte_for_byte(claude: ToolRig) -> None:
    text = "p-3 " + "\n".join(f"line {number}: déjà vu, 漢字, \ttab" for number in range(160))
    assert len(text.encode()) > 5000
    assert claude.answer_to(text) == "answered p-3"
    # It keeps four spaces for a tab, also in the mark that it puts around a paste.
    assert text.replace("\t", "    ") in claude.model.prompts()[0]


def test_a_question_holds_the_queue_until_it_is_answered_on_the_screen(claude: ToolRig) -> None:
    asking = claude.prompt("p-4 [[tool touch made]]")
    status = claude.until_state("asking")
    [question] = status["questions"]
    assert (question["kind"], question["subject"]) == ("permission", "Bash: touch made")
    waiting = claude.prompt("p-5")
    before = claude.typed()
    assert claude.typed() == before, "something was typed into the dialog"
    assert not (claude.project / "made").exists()
    claude.person_answers("1", "Do you want to proceed")
    assert claude.ended(asking)["result"]["text"] == "answered p-4"
    assert (claude.project / "made").exists()
    assert claude.ended(waiting)["result"]["text"] == "answered p-5"
    assert claude.gateway.status()["questions"] == []


def test_a_draft_is_left_alone_and_the_prompt_waits(claude: ToolRig) -> None:
    claude.person_writes("my own thought")
    claude.until_state("draft")
    before = claude.typed_now()
    request = claude.prompt("p-6")
    assert claude.typed() == before
    for _ in "my own thought":
        claude.person_types("BSpace")
    assert claude.ended(request)["result"]["text"] == "answered p-6"
    assert claude.model.prompts() == ["p-6"]


@pytest.mark.parametrize("text", ["/help", "!touch made", "  /exit", "hello \\"])
def test_a_command_of_the_tool_is_no_prompt(claude: ToolRig, text: str) -> None:
    before = claude.typed()
    with pytest.raises(InvalidValue):
        claude.prompt(text)
    assert claude.typed() == before
    assert claude.answer_to("p-20\twith a tab") == "answered p-20"
    assert not (claude.project / "made").exists()


def test_a_person_who_presses_escape_ends_the_request(claude: ToolRig) -> None:
    request = claude.prompt("p-7 [[hold h]]")
    claude.model.wait_for("p-7")
    claude.until_shown("● begun")
    claude.person_types("Escape")
    ended = claude.ended(request)
    assert (ended["state"], ended["error_code"]) == ("failed", "interrupted")
    claude.model.release("h")
    assert claude.answer_to("p-8") == "answered p-8"


def test_an_interrupt_before_any_output_leaves_an_empty_box(claude: ToolRig) -> None:
    request = claude.prompt("p-9 first line\nsecond line\n\nfourth [[silent s]]")
    claude.model.wait_for("p-9")
    claude.gateway.interrupt()
    assert claude.ended(request)["error_code"] == "interrupted"
    claude.until_state("ready")
    assert claude.answer_to("p-10") == "answered p-10"
    assert claude.model.prompts()[-1] == "p-10"


def test_an_interrupt_in_the_middle_of_an_answer(claude: ToolRig) -> None:
    request = claude.prompt("p-11 [[hold h]]")
    claude.until_shown("● begun")
    claude.gateway.interrupt()
    assert claude.ended(request)["error_code"] == "interrupted"
    assert claude.answer_to("p-12") == "answered p-12"


def test_a_model_that_fails_fails_the_request(claude: ToolRig) -> None:
    ended = claude.ended(claude.prompt("p-13 [[fail 400]]"))
    assert (ended["state"], ended["error_code"]) == ("failed", "agent_failed")
    assert claude.answer_to("p-14") == "answered p-14"
