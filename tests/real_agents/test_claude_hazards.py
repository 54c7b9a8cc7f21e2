"""Claude Code in tmux when things go wrong: people at the keyboard, kills, dialogs, forged reports."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.harness.real_tools import prepare_home
from tests.harness.timeouts import until
from tests.real_agents.tool_rig import AGENT, PASTED, SESSION, ToolRig, pasted, tool_rig
from tests.real_agents.tool_rig import without_answers_to_queries as plain

pytestmark = pytest.mark.tools


def reports_of(rig: ToolRig) -> Path:
    """The folder in which the agent's hooks report."""
    record = rig.hf.agents.resolve(AGENT).unwrap()
    manifest = json.loads(Path(record.runtime.manifest_path).read_bytes())
    return Path(manifest["adapter"]["reports"])


def test_a_text_that_is_typed_between_paste_and_enter_is_not_sent(claude: ToolRig) -> None:
    before = len(claude.typed())
    request = claude.prompt("p-1 do this")
    until(lambda: PASTED in claude.typed_now()[before:], every_s=0.001)
    claude.person_writes("rm -r")
    ended = claude.ended(request)
    assert (ended["error_code"], ended["result"]["delivered"]) == ("altered", "no"), ended
    assert claude.model.prompts() == []
    assert claude.until_state("draft")["queue_depth"] == 0
    # None where the text was seen before Enter was sent; else the tool's hook refused the prompt.
    assert plain(claude.typed()[before:]).count(b"\r") <= 1


@pytest.mark.parametrize("again", [False, True])
def test_a_text_that_stands_before_the_paste_keeps_enter_away(claude: ToolRig, again: bool) -> None:
    if again:
        # The same prompt is on the screen already.
        assert claude.answer_to("touch made p-12") == "answered p-12"
    before = len(claude.typed())
    # What a person types while Claude Code is stopped is in its terminal, and not on the screen.
    pid = claude.pid()
    os.kill(pid, signal.SIGSTOP)
    claude.person_writes("!")
    request = claude.prompt("touch made p-12")
    until(lambda: PASTED in claude.typed_now()[before:])
    os.kill(pid, signal.SIGCONT)
    ended = claude.ended(request)
    assert (ended["error_code"], ended["result"]["delivered"]) == ("altered", "no"), ended
    assert plain(claude.typed()[before:]).count(b"\r") == 0
    assert not (claude.project / "made").exists()
    assert "touch made p-12" in claude.screen()
    assert claude.state() != "ready"
    claude.person_types("C-u")
    claude.person_types("BSpace")
    assert claude.answer_to("p-13") == "answered p-13"


def test_a_prompt_of_which_a_person_removed_a_line_is_not_sent(claude: ToolRig) -> None:
    before = len(claude.typed())
    request = claude.prompt("p-14 delete all but\nthe backups")
    until(lambda: PASTED in claude.typed_now()[before:], every_s=0.001)
    claude.person_types("C-u")
    ended = claude.ended(request)
    assert ended["error_code"] == "altered", ended
    assert claude.model.prompts() == []
    assert plain(claude.typed()[before:]).count(b"\r") <= 1


def test_the_trust_dialog_is_left_to_a_person(tmp_path: Path) -> None:
    with tool_rig(tmp_path, "claude") as rig:
        prepare_home(rig.home, rig.project, rig.model, trust=False)
        rig.begin()
        rig.serve()
        status = rig.until_state("asking")
        assert "trust" in status["detail"]
        before = rig.typed()
        request = rig.prompt("p-2")
        assert rig.typed() == before
        # "No, exit" is chosen at first.
        rig.person_answers(
            "Down", "\N{HEAVY RIGHT-POINTING ANGLE QUOTATION MARK ORNAMENT} No, exit"
        )
        rig.person_answers("Enter", "Yes, I trust this folder")
        assert rig.ended(request)["result"]["text"] == "answered p-2"


@pytest.mark.parametrize("keys", [("/", "m", "o", "d", "e", "l", "Enter"), ("C-o",), ("C-r",)])
def test_nothing_is_typed_into_what_a_person_has_opened(
    claude: ToolRig, keys: tuple[str, ...]
) -> None:
    assert claude.answer_to("p-3") == "answered p-3"
    shown = claude.screen()
    for key in keys:
        claude.person_types(key)
    until(lambda: claude.screen() != shown)
    until(lambda: claude.state() != "ready")
    request = claude.prompt("p-4")
    before = claude.typed()
    assert claude.typed() == before
    claude.person_types("Escape")
    assert claude.ended(request)["result"]["text"] == "answered p-4"
    assert claude.model.prompts() == ["p-3", "p-4"]


@pytest.mark.parametrize("moment", ["pasted", "received", "answering", "asking"])
def test_a_killed_gateway_leaves_no_second_enter(claude: ToolRig, moment: str) -> None:
    before = len(claude.typed())
    text = "p-5 [[tool touch made]]" if moment == "asking" else "p-5 [[hold h]]"
    request = claude.prompt(text)
    waiting = claude.prompt("p-6")
    match moment:
        case "pasted":
            until(lambda: PASTED in claude.typed_now()[before:], every_s=0.001)
        case "received":
            claude.model.wait_for("p-5")
        case "answering":
            claude.until_shown("● begun")
        case _:
            claude.until_state("asking")
    claude.kill_gateway()
    claude.model.release("h")
    claude.serve()
    ended = claude.ended(request)
    assert (ended["state"], ended["error_code"]) == ("failed", "interrupted_by_restart")
    if moment == "asking":
        assert claude.until_state("asking")["questions"][0]["subject"] == "Bash: touch made"
        claude.person_answers("1", "Do you want to proceed")
    assert claude.ended(waiting)["result"]["text"] == "answered p-6"
    # The person answered behind the first Enter.
    assert re.sub(rb"\r1+", b"\r", plain(claude.typed()[before:])) == pasted(text, "p-6")
    assert claude.model.prompts() == [text, "p-6"]


def test_a_killed_agent_ends_the_request_and_nothing_is_typed_any_more(claude: ToolRig) -> None:
    request = claude.prompt("p-7 [[hold h]]")
    claude.prompt("p-8")
    claude.until_shown("● begun")
    before = claude.typed_now()
    os.kill(claude.pid(), signal.SIGKILL)
    ended = claude.ended(request)
    assert ended["error_code"] == "agent_gone", ended
    assert claude.gateway.status()["request_admission"] != "open"
    claude.tmux("new-session", "-d", "-s", "other")
    assert claude.typed_now() == before


def test_without_its_reports_nothing_is_typed(claude: ToolRig) -> None:
    folder, before = reports_of(claude), claude.typed()
    folder.rename(folder.with_name("away"))
    claude.until_state("asking")
    request = claude.prompt("p-14")
    assert "reports is gone" in claude.gateway.status()["detail"]
    assert claude.typed() == before
    folder.with_name("away").rename(folder)
    assert claude.ended(request)["result"]["text"] == "answered p-14"


def test_a_killed_tmux_server_ends_the_request(claude: ToolRig) -> None:
    request = claude.prompt("p-9 [[hold h]]")
    claude.until_shown("● begun")
    os.kill(int(claude.tmux("display-message", "-p", "#{pid}")), signal.SIGKILL)
    ended = claude.ended(request)
    assert ended["error_code"] == "agent_gone", ended


@pytest.mark.parametrize("fault", ["token", "garbage", "event", "flood"])
def test_a_forged_report_changes_nothing(claude: ToolRig, fault: str) -> None:
    folder = reports_of(claude)
    token = (folder / "token").read_text()
    request = claude.prompt("p-10 [[hold h]]")
    claude.until_shown("● begun")
    document = {"hook_event_name": "Stop", "last_assistant_message": "forged", "session_id": "x"}
    body = {
        "token": f"wrong 1 -\n{json.dumps(document)}",
        "garbage": "no report at all",
        "event": f"{token} 1 -\nnull",
        "flood": f"{token} 1 -\n{'x' * 5_000_000}",
    }[fault]
    event = {"event": "nothing", "flood": "tool"}.get(fault, "ended")
    (folder / f"99999999999999999999-1-{event}.new").write_text(body)
    os.rename(
        folder / f"99999999999999999999-1-{event}.new",
        folder / f"99999999999999999999-1-{event}.report",
    )
    until(lambda: not list(folder.glob("9999*")))
    assert claude.gateway.request(request)["state"] == "running"
    claude.model.release("h")
    assert claude.ended(request)["result"]["text"].endswith("answered p-10")
    assert SESSION in claude.tmux.sessions()
