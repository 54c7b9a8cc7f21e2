"""The reports of an agent that does its worst: its gateway refuses them and goes on."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.adapters.report_folder import ReportFolder
from holdfast.kernel.errors import InvalidValue, NotFound

_TOKEN = "secret"
_ASKS = {"tool_name": "Bash", "tool_input": {"command": "true"}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "reports"
    made.mkdir(0o700)
    (made / "token").write_text(_TOKEN)
    return made


def leave(folder: Path, name: str, document: object, *, reply: str = "-") -> None:
    text = document if isinstance(document, str) else json.dumps(document)
    (folder / f"{name}.report").write_text(f"{_TOKEN} 1 {reply}\n{text}")


def prompt_report(folder: Path, text: str) -> None:
    leave(folder, "30000000000000000000-1-prompt", {"prompt": text, "prompt_id": "p"})


def a_link(folder: Path) -> None:
    (folder / "10000000000000000000-1-ended.report").symlink_to("/etc/hostname")


def a_fifo(folder: Path) -> None:
    os.mkfifo(folder / "10000000000000000000-1-ended.report")


def a_folder(folder: Path) -> None:
    (folder / "10000000000000000000-1-ended.report").mkdir()


def too_large(folder: Path) -> None:
    name = "10000000000000000000-1-ended"
    leave(folder, name, {})
    os.truncate(folder / f"{name}.report", 1 << 40)


def too_deep(folder: Path) -> None:
    leave(folder, "10000000000000000000-1-ended", "[" * 200_000)


def late_in_time(folder: Path) -> None:
    leave(folder, "99999999999999999999999999999-1-question", _ASKS)


def options_that_are_none(folder: Path) -> None:
    questions = [{"question": "which?", "options": 3}]
    asks = {"tool_name": "AskUserQuestion", "tool_input": {"questions": questions}}
    leave(folder, "10000000000000000000-1-question", asks)


def a_report_of_nobody(folder: Path) -> None:
    (folder / "10000000000000000000-1-ended.report").write_text(" 1 -\n{}")


@pytest.mark.parametrize(
    "plant",
    [
        a_link,
        a_fifo,
        a_folder,
        too_large,
        too_deep,
        late_in_time,
        options_that_are_none,
        a_report_of_nobody,
    ],
)
def test_what_is_no_report_is_refused_and_the_next_one_counts(
    folder: Path, plant: Callable[[Path], None]
) -> None:
    reports = ReportFolder(folder, patience_s=60)
    plant(folder)
    assert reports.read()
    prompt_report(folder, "hello")
    assert reports.read()
    assert (reports.activity.working, reports.activity.prompt) == (True, "hello")
    assert not list(folder.glob("3*.report"))
    # The next gateway goes on where this one was.
    again = ReportFolder(folder, patience_s=60)
    assert again.peek() == reports.activity


def test_half_a_character_is_replaced(folder: Path) -> None:
    """Tools cut texts between the halves of a character, and JSON carries such a half."""
    reports = ReportFolder(folder, patience_s=60)
    leave(folder, "10000000000000000000-1-prompt", r'{"prompt": "hello \ud83d", "prompt_id": "p"}')
    assert reports.read()
    assert reports.activity.prompt == "hello ?"
    assert ReportFolder(folder, patience_s=60).peek() == reports.activity


def test_without_a_token_no_report_counts(folder: Path) -> None:
    (folder / "token").unlink()
    reports = ReportFolder(folder, patience_s=60)
    a_report_of_nobody(folder)
    assert reports.read()
    assert reports.since(0) == []


@pytest.mark.parametrize("reply", ["{precious}", "../precious", "precious", "token"])
def test_an_answer_goes_into_no_file_that_a_report_names(
    folder: Path, tmp_path: Path, reply: str
) -> None:
    precious = tmp_path / "precious"
    for path in (precious, folder / "precious"):
        path.write_text("keep me")
    reports = ReportFolder(folder, patience_s=60)
    reply = reply.format(precious=precious)
    leave(folder, "10000000000000000000-1-question", _ASKS, reply=reply)
    assert reports.read()
    for asked in reports.activity.asked:
        with pytest.raises(NotFound):
            reports.reply(asked, "allow")
    assert (precious.read_text(), (folder / "precious").read_text()) == ("keep me", "keep me")
    assert (folder / "token").read_text() == _TOKEN


def test_an_answer_that_does_not_fit_is_refused(folder: Path) -> None:
    reports = ReportFolder(folder, patience_s=60)
    os.mkfifo(folder / "reply-1-1")
    waiting = os.open(folder / "reply-1-1", os.O_RDONLY | os.O_NONBLOCK)
    try:
        leave(folder, "10000000000000000000-1-question", _ASKS, reply="reply-1-1")
        reports.read()
        [asked] = reports.activity.asked
        with pytest.raises(NotFound):
            reports.reply(asked, "x" * (1 << 20))
    finally:
        os.close(waiting)


def test_a_folder_that_is_gone_is_no_end(folder: Path) -> None:
    reports = ReportFolder(folder, patience_s=60)
    prompt_report(folder, "hello")
    assert reports.read()
    (folder / "token").unlink()
    (folder / "activity.json").unlink()
    folder.rmdir()
    assert not reports.read()
    assert reports.activity.prompt == "hello"


def test_a_conversation_that_looks_like_an_option_is_none(folder: Path) -> None:
    """Its name is put behind `--resume` when the agent is started again."""
    reports = ReportFolder(folder, patience_s=60)
    document = {"session_id": "--dangerously-skip-permissions"}
    leave(folder, "10000000000000000000-1-session", document)
    assert reports.read()
    assert reports.activity.session_id is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_the_agent_of_another_user_is_not_served(folder: Path) -> None:
    ReportFolder(folder, patience_s=1).check_owner()
    os.chown(folder, 65534, 65534)
    with pytest.raises(InvalidValue) as refused:
        ReportFolder(folder, patience_s=1).check_owner()
    assert refused.value.fields["uid"] == 65534
