"""What a tool's own reports say that it does, and what its screen adds to them.

A tool reports when it has received a prompt, asks something, or has finished. The screen alone is
no proof of these. It is needed where the tool reports nothing: for a draft in the input box, for a
dialog of its own, and when a person stops it by a key.
"""

import enum
from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast.domains.gateway.state import AgentState, Question

_STOPPED_AFTER_S = 10.0
"""A tool that shows for so long that it does not work, and reports no end, was stopped by a person.
"""
_INTERRUPTED_AFTER_S = 1.0
"""The same, when the gateway itself has just pressed the key that stops it."""
_STRANGE_AFTER_S = 2.0
"""A screen without an input box that does not change for so long waits for somebody."""
_ANSWERED_AFTER_S = 2.0
"""A question without a dialog on the screen for so long was answered there."""


class ReportKind(enum.StrEnum):
    """What a report is about. MIXED: a prompt that was refused, because the gateway's and a
    person's text were one. STOPPED is not reported by the tool: a person stopped it by a key.
    """

    SESSION = "session"
    PROMPT = "prompt"
    MIXED = "mixed"
    TOOL = "tool"
    TOOL_ENDED = "tool_ended"
    NOTICE = "notice"
    QUESTION = "question"
    ENDED = "ended"
    FAILED = "failed"
    STOPPED = "stopped"
    SESSION_ENDED = "session_ended"


_ENDS = (
    ReportKind.SESSION,
    ReportKind.ENDED,
    ReportKind.FAILED,
    ReportKind.STOPPED,
    ReportKind.SESSION_ENDED,
)


class ToolReport(NamedTuple):
    """One report. `text` is the prompt, the answer or the failure; `call` identifies a tool call,
    and `reply_to` is where the tool waits for the answer to a question.
    """

    name: str
    kind: ReportKind
    session_id: str | None = None
    prompt_id: str | None = None
    text: str = ""
    call: str = ""
    activity: str = ""
    question: Question | None = None
    reply_to: str = ""
    transcript: str = ""


class Asked(NamedTuple):
    """An open question, and the tool call that waits for it."""

    question: Question
    call: str
    reply_to: str


class Activity(NamedTuple):
    """What the reports so far say. `prompt_id` is that of the turn that runs, or ran last."""

    begun: bool = False
    working: bool = False
    session_id: str | None = None
    prompt_id: str | None = None
    prompt: str = ""
    activity: str = ""
    asked: tuple[Asked, ...] = ()
    transcript: str = ""

    def after(self, report: ToolReport) -> "Activity":
        """What the reports say with one more."""
        now = self._replace(
            begun=True,
            session_id=report.session_id or self.session_id,
            transcript=report.transcript or self.transcript,
        )
        match report.kind:
            case ReportKind.PROMPT:
                return now._replace(
                    working=True,
                    prompt_id=report.prompt_id,
                    prompt=report.text,
                    activity="",
                    asked=(),
                )
            case ReportKind.TOOL:
                return now._replace(working=True, activity=report.activity)
            case ReportKind.TOOL_ENDED:
                left = tuple(one for one in self.asked if one.call != report.call)
                return now._replace(activity="", asked=left)
            case ReportKind.QUESTION if report.question is not None:
                asked = Asked(report.question, report.call, report.reply_to)
                return now._replace(working=True, asked=(*self.asked, asked))
            case ReportKind.MIXED | ReportKind.NOTICE | ReportKind.QUESTION:
                return now
            case _:
                return now._replace(working=False, activity="", asked=())

    def without(self, question_id: str) -> "Activity":
        """What is left when a question is answered."""
        left = tuple(one for one in self.asked if one.question.question_id != question_id)
        return self._replace(asked=left)


class Box(enum.StrEnum):
    """What a tool's screen shows where its input box belongs."""

    EMPTY = "empty"
    DRAFT = "draft"
    DIALOG = "dialog"
    TRUST = "trust"
    NONE = "none"


class ScreenView(NamedTuple):
    """A tool's screen, as its profile reads it. `still_s`: for how long it has not changed.
    `at_rest`: it shows positively that it does not work, and not only no sign of work: what a
    person types, and a narrow screen, hide those. `rest_s`: for how long of this turn it was so on
    each look.
    """

    box: Box
    working: bool
    still_s: float
    at_rest: bool = False
    rest_s: float = 0.0


class Judgement(NamedTuple):
    """What the agent does, and what a prompt has to wait for."""

    state: AgentState
    detail: str = ""


_TRUST = "it asks whether to trust its folder: answer that in its own terminal"
_DIALOG = "a dialog is on its screen: answer that in its own terminal"
_STRANGE = "its screen shows something else than its input box: look at its terminal"
_DRAFT = "somebody's text is in its input box: it must be sent or removed there"


def judge(activity: Activity | None, view: ScreenView, *, announces: bool) -> Judgement:
    """What an agent does by its reports and its screen. `activity` is None for a tool without
    reports. `announces`: the tool reports its start, so without that its hooks do not work.
    """
    if view.box is Box.TRUST:
        return Judgement(AgentState.ASKING, _TRUST)
    if activity is not None and activity.asked:
        return Judgement(AgentState.ASKING, "it waits for an answer to its question")
    if view.box is Box.DIALOG:
        return Judgement(AgentState.ASKING, _DIALOG)
    if activity is not None and announces and not activity.begun:
        return Judgement(AgentState.STARTING, "it has not reported its start yet")
    if view.working or (activity is not None and activity.working):
        return Judgement(AgentState.WORKING, "it works")
    if view.box is Box.DRAFT:
        return Judgement(AgentState.DRAFT, _DRAFT)
    if view.box is Box.EMPTY:
        return Judgement(AgentState.READY)
    if view.still_s < _STRANGE_AFTER_S:
        state = AgentState.WORKING if activity is not None and activity.begun else None
        return Judgement(state or AgentState.STARTING, "its input box is not on its screen yet")
    return Judgement(AgentState.ASKING, _STRANGE)


def has_stopped(
    activity: Activity, view: ScreenView, *, interrupted: bool, recorded: Callable[[], bool]
) -> bool:
    """Does the screen show that a turn is over of which no end was reported? `interrupted`: the
    gateway has interrupted this turn. `recorded` tells whether the tool's own record says so.
    """
    if not activity.working or view.working or view.box not in (Box.EMPTY, Box.DRAFT):
        return False
    after_s = _INTERRUPTED_AFTER_S if interrupted else _STOPPED_AFTER_S
    return view.rest_s >= after_s or recorded()


def answered_on_screen(view: ScreenView, since_s: float) -> bool:
    """Was a question answered in the agent's own terminal? `since_s`: for how long no dialog was
    on the screen while the question was open. Something else than the input box may be a dialog
    that the profile does not know, or hide one.
    """
    return view.box in (Box.EMPTY, Box.DRAFT) and since_s >= _ANSWERED_AFTER_S


class Reception(enum.StrEnum):
    """What the reports say of a prompt that was typed."""

    NONE = "none"
    EXACT = "exact"
    ALTERED = "altered"
    REFUSED = "refused"


def receipt_of(prompt: str, reports: Sequence[ToolReport]) -> tuple[Reception, ToolReport | None]:
    """Which of the reports since its delivery is that of a prompt. Both are in the form in which
    they can be compared.
    """
    for report in reports:
        if report.kind is ReportKind.MIXED:
            return Reception.REFUSED, report
        if report.kind is ReportKind.PROMPT:
            if report.text == prompt:
                return Reception.EXACT, report
            if prompt in report.text:
                return Reception.ALTERED, report
    return Reception.NONE, None


def end_of(prompt_id: str | None, reports: Sequence[ToolReport]) -> ToolReport | None:
    """The report that ended the turn of a prompt, if one did."""
    return next(
        (
            one
            for one in reports
            if one.kind in _ENDS and (one.prompt_id is None or one.prompt_id == prompt_id)
        ),
        None,
    )
