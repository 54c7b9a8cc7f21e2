"""The reports of tools, as their hooks write them, and the answers that they take.

Claude Code began the format, Codex and Gemini CLI took it over: one JSON object with
`hook_event_name`, `session_id` and what belongs to the event. The name of a report's file says
which event it is (`agent_report.py`).
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.adapters.agent_report import comparable
from holdfast.adapters.tools.gemini import LastTurn, last_turn
from holdfast.domains.gateway.activity import ReportKind, ToolReport
from holdfast.domains.gateway.state import ALLOW, DENY, Choice, Question
from holdfast.kernel.limits import ANSWER_CHARS_MAX, QUESTION_CHARS
from holdfast.kernel.text import clipped

_ASK_TOOLS = ("AskUserQuestion", "request_user_input", "ask_user")
"""Tools that ask the user something, instead of doing anything."""
_DETAIL_CHARS = 16 << 10
_SUBJECTS = ("command", "file_path", "path", "url", "query", "pattern", "description", "prompt")
"""The fields of a tool's input that say most about it, best first."""
_CONTINUED = ("compact",)
"""Sources of a session report that begin no new conversation, and end no turn."""


def report_in(
    name: str, document: Mapping[str, Any], *, reply_to: str, patience_s: float
) -> ToolReport:
    """The report in a tool's own document. `name` is that of its file; `patience_s` is how long its
    question waits. Raises ValueError for a document without what the event needs.
    """
    stamp, _, event = name.split("-", 2)
    kind = ReportKind(event)
    if kind is ReportKind.SESSION and document.get("source") in _CONTINUED:
        kind = ReportKind.NOTICE
    tool, given = str(document.get("tool_name") or ""), document.get("tool_input")
    arguments: Mapping[str, Any] = given if isinstance(given, dict) else {}
    report = ToolReport(
        name,
        kind,
        session_id=_text(document, "session_id"),
        prompt_id=_text(document, "prompt_id", "turn_id"),
        transcript=_text(document, "transcript_path") or "",
        call=json.dumps([tool, arguments], sort_keys=True) if tool else "",
    )
    match kind:
        case ReportKind.PROMPT | ReportKind.MIXED:
            prompt = document.get("prompt")
            if not isinstance(prompt, str):
                raise ValueError("a report of a prompt without the prompt")
            return report._replace(text=comparable(prompt))
        case ReportKind.TOOL:
            return report._replace(activity=subject_of(tool, arguments))
        case ReportKind.QUESTION:
            asked_at = datetime.fromtimestamp(int(stamp) / 1e9, UTC)
            question = question_of(name, tool, arguments, asked_at, patience_s)
            return report._replace(question=question, reply_to=reply_to)
        case ReportKind.ENDED:
            turn = LastTurn()
            if "prompt_response" in document:
                turn = last_turn(report.transcript)
            if turn.cancelled:
                return report._replace(kind=ReportKind.STOPPED)
            said = _text(document, "last_assistant_message", "prompt_response")
            text = turn.answer or said or ""
            return report._replace(text=text[-ANSWER_CHARS_MAX:])
        case ReportKind.FAILED:
            text = _text(document, "last_assistant_message", "error") or "it does not say why"
            return report._replace(text=text[:_DETAIL_CHARS])
        case _:
            return report


def subject_of(tool: str, arguments: Mapping[str, Any]) -> str:
    """A tool call in a line."""
    found = next((arguments[name] for name in _SUBJECTS if arguments.get(name)), "")
    text = " ".join(map(str, found)) if isinstance(found, list) else str(found)
    return clipped(f"{tool}: {text}" if text else tool, QUESTION_CHARS)


def question_of(
    name: str, tool: str, arguments: Mapping[str, Any], asked_at: datetime, patience_s: float
) -> Question:
    """The question behind a request for permission."""
    common: dict[str, Any] = {
        # As short as it may be: an operator types it.
        "question_id": name.split("-", 2)[1],
        "asked_at": asked_at,
        "expires_at": asked_at + timedelta(seconds=patience_s),
    }
    if tool not in _ASK_TOOLS:
        detail = json.dumps(arguments, ensure_ascii=False, indent=1)[:_DETAIL_CHARS]
        subject = subject_of(tool, arguments)
        return Question(
            kind="permission",
            subject=subject,
            detail=detail,
            choices=(ALLOW, DENY),
            free_text=True,
            **common,
        )
    asked = _asked(arguments)
    if len(asked) != 1 or asked[0].get("multiSelect"):
        # Each has its own answer, and a reply is one text.
        texts = [str(one.get("question", "")) for one in asked]
        return Question(kind="dialog", subject=clipped(" ".join(texts), QUESTION_CHARS), **common)
    [one] = asked
    options = [each for each in one.get("options", ()) if isinstance(each, dict)]
    return Question(
        kind="choice",
        subject=clipped(str(one.get("question", "")), QUESTION_CHARS),
        detail=str(one.get("question", ""))[:_DETAIL_CHARS],
        choices=tuple(
            Choice(name=str(each.get("label", "")), label=str(each.get("description") or ""))
            for each in options
        ),
        free_text=True,
        **common,
    )


def reply_document(call: str, question: Question, reply: str) -> bytes:
    """What the hook that asked prints: the decision, in the tool's own format."""
    _, arguments = json.loads(call)
    decision: dict[str, Any]
    if question.kind == "choice":
        [one] = _asked(arguments)
        answers = {one["question"]: reply}
        decision = {"behavior": "allow", "updatedInput": {**arguments, "answers": answers}}
    elif reply == ALLOW.name:
        decision = {"behavior": "allow"}
    else:
        said = "The operator refused this." if reply == DENY.name else reply
        decision = {"behavior": "deny", "message": said}
    output = {"hookEventName": "PermissionRequest", "decision": decision}
    return json.dumps({"hookSpecificOutput": output}).encode()


def _asked(arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = arguments.get("questions")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _text(document: Mapping[str, Any], *names: str) -> str | None:
    found = (document.get(name) for name in names)
    return next((one for one in found if isinstance(one, str) and one), None)
