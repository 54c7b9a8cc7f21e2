"""Questions of Claude Code in tmux that an operator answers, and those that a person answers in its
terminal.
"""

from typing import Any

import pytest

from holdfast.kernel.errors import HoldfastError, InvalidValue, NotFound
from tests.harness.timeouts import until
from tests.real_agents.tool_rig import ToolRig, pasted, without_answers_to_queries

pytestmark = pytest.mark.tools
_DIALOG = "Do you want to proceed"


def asked(rig: ToolRig, *, besides: str = "") -> dict[str, Any]:
    """Wait for a question of the agent, other than that of this id, and return it."""
    found: list[dict[str, Any]] = []

    def there() -> bool:
        questions = rig.gateway.status()["questions"]
        found[:] = [one for one in questions if one["question_id"] != besides]
        return bool(found)

    until(there, saw=rig.screen)
    return found[0]


def test_an_operator_allows_what_the_agent_asks(claude: ToolRig) -> None:
    before = len(claude.typed())
    request = claude.prompt("p-1 [[tool touch made]]")
    question = asked(claude)
    assert not (claude.project / "made").exists()
    claude.gateway.reply(question["question_id"], "allow")
    assert claude.ended(request)["result"]["text"] == "answered p-1"
    assert (claude.project / "made").exists()
    typed = without_answers_to_queries(claude.typed()[before:])
    assert typed == pasted("p-1 [[tool touch made]]"), "a question was answered by a key"
    with pytest.raises(NotFound):
        claude.gateway.reply(question["question_id"], "allow")


def test_an_operator_refuses_and_says_why(claude: ToolRig) -> None:
    request = claude.prompt("p-2 [[tool touch made]]")
    question = asked(claude)
    claude.gateway.reply(question["question_id"], "use the other folder")
    assert claude.ended(request)["result"]["text"] == "answered p-2"
    assert not (claude.project / "made").exists()
    assert "use the other folder" in claude.model.turns[-1].last_result


def test_an_answer_never_reaches_another_question(claude: ToolRig) -> None:
    request = claude.prompt("p-3 [[tool touch first]] [[tool touch second]]")
    first = asked(claude)
    claude.person_answers("1", "╌\n touch first\n")
    second = asked(claude, besides=first["question_id"])
    with pytest.raises(HoldfastError):
        claude.gateway.reply(first["question_id"], "allow")
    claude.until_shown(_DIALOG)
    assert not (claude.project / "second").exists()
    claude.gateway.reply(second["question_id"], "deny")
    assert claude.ended(request)["result"]["text"] == "answered p-3"
    assert (claude.project / "first").exists()
    assert not (claude.project / "second").exists()


def test_a_question_with_choices_gets_one_of_them(claude: ToolRig) -> None:
    request = claude.prompt("p-4 [[ask Which board?|board-1|board-2]]")
    question = asked(claude)
    assert (question["kind"], question["subject"]) == ("choice", "Which board?")
    assert [one["name"] for one in question["choices"]] == ["board-1", "board-2"]
    with pytest.raises(InvalidValue):
        claude.gateway.reply(question["question_id"], "\x1b[201~")
    claude.gateway.reply(question["question_id"], "board-2")
    assert claude.ended(request)["result"]["text"] == "answered p-4"
    assert "board-2" in claude.model.turns[-1].last_result


def test_a_question_outlives_the_gateway_that_saw_it(claude: ToolRig) -> None:
    claude.prompt("p-5 [[tool touch made]]")
    question = asked(claude)
    claude.kill_gateway()
    claude.serve()
    assert asked(claude)["question_id"] == question["question_id"]
    claude.gateway.reply(question["question_id"], "allow")
    until((claude.project / "made").exists)
