"""Claude Code, asked and answering with texts that look like its own screen, or like a command of
tmux: they are texts.
"""

import pytest

from holdfast.kernel.errors import InvalidValue
from tests.real_agents.tool_rig import SESSION, ToolRig, pasted
from tests.real_agents.tool_rig import without_answers_to_queries as plain

pytestmark = pytest.mark.tools

_RULE = "\N{BOX DRAWINGS LIGHT HORIZONTAL}" * 40
_SIGN = "\N{HEAVY RIGHT-POINTING ANGLE QUOTATION MARK ORNAMENT}"


def test_a_prompt_with_the_words_of_its_screen_is_a_prompt(claude: ToolRig) -> None:
    texts = [
        "Esc to cancel p-1",
        "p-2 press Enter to confirm, or Esc to cancel",
        "p-3 what does esc to interrupt mean?",
        "Yes, I trust this folder p-4",
        "p-5 [Request interrupted by user]",
        "p-6 [[say Esc to cancel]]",
        "p-7 [[say Yes, I trust this folder]] [[say press esc to interrupt]]",
        f"p-8 two lines\n{_RULE}\n{_SIGN} Enter to select",
    ]
    before = len(claude.typed())
    for text in texts:
        assert claude.answer_to(text).startswith("answered p-"), text
        assert claude.until_state("ready", 10)["queue_depth"] == 0
    assert plain(claude.typed()[before:]) == pasted(*texts)
    assert len(claude.model.prompts()) == len(texts)


def test_a_prompt_with_the_characters_of_tmux_and_of_a_shell_is_a_prompt(claude: ToolRig) -> None:
    texts = [
        "#{pane_id} #(touch made) p-1 #{?1,a,b}",
        "$(touch made) `touch made` p-2 \"q\" 'q' ; touch made ; }",
        "p-3 %1 %H ^[a-z]*( [[ \\d+ | {2,",
        # It removes what nobody sees, and makes one character of a letter and its accent.
        "p-4 soft\N{SOFT HYPHEN}hyphen \N{ZERO WIDTH SPACE}\N{ZERO WIDTH JOINER} e\N{COMBINING ACUTE ACCENT}",
        "p-5 \N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN} line\N{LINE SEPARATOR}end",
        "p-5 \N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN} line\N{LINE SEPARATOR}end",
    ]
    before = len(claude.typed())
    for text in texts:
        assert claude.answer_to(text).startswith("answered p-"), text
    assert plain(claude.typed()[before:]) == pasted(*texts)
    assert not (claude.project / "made").exists()


def test_a_prompt_that_it_would_hold_back_is_refused(claude: ToolRig) -> None:
    """It removes marks of direction, and waits for another Enter. Of other characters that nobody
    sees nothing is left.
    """
    before = claude.typed()
    with pytest.raises(InvalidValue, match="U\\+200F"):
        claude.prompt("p-6 \N{RIGHT-TO-LEFT MARK} here")
    with pytest.raises(InvalidValue, match="nobody sees"):
        claude.prompt("\N{ZERO WIDTH SPACE}\N{WORD JOINER}")
    assert claude.typed() == before
    assert claude.state() == "ready"


@pytest.mark.parametrize("hides", ["a", "?", "/", "28"])
def test_what_hides_the_sign_of_work_ends_no_turn(claude: ToolRig, hides: str) -> None:
    """While a text arrives, Claude Code says only below its box that it works. What a person types,
    the list of its keys and a narrow terminal hide that.
    """
    request = claude.prompt("p-10 [[hold h]]")
    waiting = claude.prompt("p-11")
    claude.until_shown("● begun")
    if hides.isdecimal():
        claude.tmux("resize-window", "-t", f"={SESSION}:", "-x", hides, "-y", "40")
    else:
        claude.person_types(hides)
    claude.until_not_shown("esc to interrupt")
    before = claude.typed()
    # Longer than a tool at rest counts as working.
    claude.tmux("run-shell", "-d", "12")
    assert claude.state() == "working"
    assert claude.gateway.request(request)["state"] == "running"
    assert claude.typed() == before
    claude.model.release("h")
    assert claude.ended(request)["result"]["text"] == "begun\n\nanswered p-10"
    if not hides.isdecimal():
        claude.person_types("BSpace")
    assert claude.ended(waiting)["result"]["text"] == "answered p-11"


def test_a_prompt_that_is_put_back_into_the_box_was_stopped(claude: ToolRig) -> None:
    request = claude.prompt("p-12 and more [[silent s]]")
    claude.model.wait_for("p-12")
    claude.person_types("Escape")
    ended = claude.ended(request)
    assert ended["error_code"] == "interrupted", ended
    assert claude.until_state("draft")["queue_depth"] == 0
