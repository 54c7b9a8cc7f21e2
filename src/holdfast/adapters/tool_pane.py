"""A tool that Holdfast knows, in a tmux session, such as Claude Code.

The tool's hooks report what it does, and its screen proves that the input box is empty
(`domains/gateway/activity.py` decides). A prompt counts as delivered when the tool reports that it
has received exactly this prompt, and as answered when it reports the end of that turn.

Between the look at the screen and the paste, a person may begin to type, or a dialog may open. So
the tmux server checks again in the step that pastes: the cursor is still at the beginning of the
box. And in the step that sends Enter: the tool does not work, shows no dialog, and the box begins
with the prompt. What a person types behind it at that moment, the tool's own hook notices
(`agent_report.py`).
"""

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holdfast.adapters import tmux_pane
from holdfast.adapters.agent_report import comparable
from holdfast.adapters.report_folder import ReportFolder
from holdfast.adapters.tmux_agent import TmuxAgent
from holdfast.adapters.tmux_pane import Screen
from holdfast.adapters.tool_screen import Rest, ToolPatterns
from holdfast.adapters.tool_transcript import was_stopped
from holdfast.domains.gateway.activity import (
    Activity,
    Box,
    Judgement,
    Reception,
    ReportKind,
    ScreenView,
    ToolReport,
    answered_on_screen,
    end_of,
    has_stopped,
    judge,
    receipt_of,
)
from holdfast.domains.gateway.adapter import Answer, Delivery, Observation, TmuxSpec
from holdfast.domains.gateway.state import AgentState
from holdfast.kernel.agent_adapter import QUESTION_FIRST_S, QUESTION_TIMEOUT_S
from holdfast.kernel.agent_profile import Profile, as_typed, check_taken
from holdfast.kernel.errors import (
    Altered,
    Fenced,
    InvalidValue,
    NotFound,
    NotReceived,
    UpstreamUnavailable,
)

_RECEIVED_WITHIN_S = 20.0
"""How long the tool may take to report a prompt. Its hook is a program that has to start."""
_WAIT_S = 0.1
_BETWEEN_KEYS_S = 0.5
_SHOWN_WITHIN_S = 5.0
"""How long a tool may take to draw a paste."""
_ASCII = re.compile("[ -~]*")
_NO_REPORTS = "the folder of its reports is gone: restart it"
_MEANING = re.compile("[!-/:-@[-`{-~]")
"""Characters that may have a meaning in a pattern or in tmux."""
_RETURNED_WITHIN_S = 5.0
"""How long a tool may take to stop and put a prompt back into its box, and that to be emptied."""


class ToolPane(TmuxAgent):
    """A tool in a tmux session, as its profile says; other arguments as for TmuxAgent."""

    def __init__(self, spec: TmuxSpec, profile: Profile, **places: Any) -> None:
        super().__init__(spec, **places)
        self._profile = profile
        self._patterns = ToolPatterns(profile.screen)
        self._reports: ReportFolder | None = None
        if spec.reports and profile.reports is not None:
            first = profile.dialog == "after_hook"
            patience_s = QUESTION_FIRST_S if first else QUESTION_TIMEOUT_S
            self._reports = ReportFolder(
                Path(spec.reports), patience_s=spec.question_timeout_s or patience_s
            )
            self._reports.check_owner()
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._follower: threading.Thread | None = None
        self._no_dialog_since_s: float | None = None
        self._rest = Rest()
        self._interrupted: str | None = None
        """The turn that this gateway has interrupted, by the id of its prompt."""

    def listen(self, changed: Callable[[], None]) -> None:
        reports = self._reports
        if reports is None:
            return
        reports.prepare()

        def follow() -> None:
            while reports.follow(self._stop_fd):
                if reports.read():
                    changed()

        self._follower = threading.Thread(target=follow, name="holdfast-reports", daemon=True)
        self._follower.start()

    def check(self, prompt: str) -> None:
        if not comparable(prompt):
            raise InvalidValue(
                "the prompt has only characters that nobody sees: write what is to be done",
                field="prompt",
            )
        check_taken(self._profile, prompt)

    def deliver(self, prompt: str, instance_id: str) -> Delivery:
        typed = as_typed(self._profile, prompt)
        if self._reports is None:
            return super().deliver(typed, instance_id)
        reports = self._reports
        try:
            reports.read()
            mark = reports.mark()
            reports.expect(prompt)
        except OSError as error:
            raise UpstreamUnavailable(
                f"nothing was typed, as the agent could not report it: {error}", outcome="none"
            ) from None
        try:
            try:
                super().deliver(typed, instance_id)
            except InvalidValue as error:
                # A view that a person has just opened takes no pastes. It is closed again.
                raise Fenced(error.message, outcome="none") from None
            except UpstreamUnavailable as error:
                # Pasted, and perhaps sent: only the tool can tell.
                if error.fields.get("outcome") != "unknown":
                    raise
            reception, report = self._received(prompt, mark, instance_id)
        finally:
            reports.expect(None)
        if reception is Reception.EXACT and report is not None:
            return Delivery((mark, report))
        raise _not_delivered(reception, prompt, report)

    def answer(self, delivery: Delivery, stop: threading.Event) -> Answer:
        if self._reports is None:
            return super().answer(delivery, stop)
        mark, received = delivery.handle
        reports, end_s = self._reports, time.monotonic() + self._answer_timeout_s
        facts = {"session_id": received.session_id, "prompt_id": received.prompt_id}
        while not stop.is_set():
            reports.wait(_WAIT_S)
            with contextlib.suppress(UpstreamUnavailable):
                self._check_stopped()
            reports.read()
            end = end_of(received.prompt_id, _after(received, reports.since(mark)))
            if end is not None:
                return _answer(end, facts)
            if self._is_gone():
                return Answer(
                    code="agent_gone",
                    detail="it was received, and the agent ended before it had answered",
                    facts=facts,
                )
            if time.monotonic() > end_s:
                why = f"it was received, and not answered within {self._answer_timeout_s:g} s"
                return Answer(code="timeout", detail=why, facts=facts)
        detail = "the gateway was stopped"
        return Answer(known=False, code="stopped", detail=detail, facts=facts)

    def interrupt(self, instance_id: str) -> bool:
        reports = self._reports
        if reports is None:
            return super().interrupt(instance_id)
        screen, _ = self._same(instance_id)
        has_draft = bool(self._patterns.draft_on(screen))
        activity = reports.activity
        self._interrupted = activity.prompt_id
        done = super().interrupt(instance_id)
        if self._profile.keys.interrupt_presses > 1:
            self._interrupt_again(instance_id)
        if activity.working and not has_draft:
            self._clear_returned(activity.prompt, instance_id)
        return done

    def reply(self, question_id: str, reply: str, instance_id: str) -> None:
        self._same(instance_id)
        asked = None if self._reports is None else self._reports.asked(question_id)
        if self._reports is None or asked is None:
            raise NotFound("the agent asks this no more", question_id=question_id[:128])
        self._reports.reply(asked, reply)

    def close(self) -> None:
        os.eventfd_write(self._stop_fd, 1)
        if self._follower is not None:
            self._follower.join()
        os.close(self._stop_fd)
        super().close()

    def _seen(self, seen: Observation) -> Observation:
        if self._reports is None:
            return seen
        activity = self._reports.activity
        return seen._replace(
            questions=tuple(one.question for one in activity.asked),
            activity=activity.activity if seen.state is AgentState.WORKING else "",
            session_id=activity.session_id,
        )

    def _judge_screen(self, screen: Screen) -> Judgement:
        view = self._view(screen)
        if self._reports is None:
            if view.box is Box.EMPTY or self._profile.screen.box is not None:
                return judge(None, view, announces=False)
            return super()._judge_screen(screen)
        if not self._reports.is_there():
            return Judgement(AgentState.ASKING, _NO_REPORTS)
        self._reports.read()
        if not any(line.strip() for line in screen.content[:-1]):
            return Judgement(AgentState.STARTING, "it has not drawn its screen yet")
        self._settle(self._reports, view)
        return judge(self._reports.activity, view, announces=self._profile.announces)

    def _view(self, screen: Screen) -> ScreenView:
        box, working = self._patterns.box_on(screen), self._patterns.works_on(screen)
        view = ScreenView(box, working, self._still_s())
        if self._reports is None:
            return view
        activity = self._reports.activity
        if box in (Box.EMPTY, Box.DRAFT) and not working:
            sure = self._is_interrupted(activity) or self._patterns.rests_on(
                screen, box, activity.prompt
            )
            view = view._replace(at_rest=sure)
        return view._replace(rest_s=self._rest.after(view, activity))

    def _is_interrupted(self, activity: Activity) -> bool:
        """Has this gateway interrupted the turn that runs?"""
        return self._interrupted is not None and self._interrupted == activity.prompt_id

    def _settle(self, reports: ReportFolder, view: ScreenView) -> None:
        """Note what happened in the agent's own terminal, of which the tool reports nothing."""
        activity = reports.activity
        if not self._profile.reports_stop and has_stopped(
            activity,
            view,
            interrupted=self._is_interrupted(activity),
            recorded=lambda: was_stopped(activity.transcript, activity.prompt_id),
        ):
            reports.add(_stop_report(activity))
            return
        if self._profile.dialog == "after_hook":
            for asked in activity.asked:
                expires_at = asked.question.expires_at
                over = expires_at is not None and datetime.now(UTC) > expires_at
                if over or not reports.waits(asked):
                    reports.void(asked)
            return
        if not activity.asked or view.box in (Box.DIALOG, Box.TRUST):
            self._no_dialog_since_s = None
            return
        if self._no_dialog_since_s is None:
            self._no_dialog_since_s = time.monotonic()
        since_s = time.monotonic() - self._no_dialog_since_s
        for asked in activity.asked:
            if answered_on_screen(view, since_s) or not reports.waits(asked):
                reports.void(asked)

    def _check_stopped(self) -> None:
        """Look at the screen of the agent, which alone shows that a person stopped it."""
        screen = self._look()
        if screen is not None and self._reports is not None:
            self._note(screen)
            self._settle(self._reports, self._view(screen))

    def _is_gone(self) -> bool:
        try:
            screen = self._look()
            return screen is None or self._agent(screen).process is None
        except UpstreamUnavailable:
            return False

    def _received(
        self, prompt: str, mark: int, instance_id: str
    ) -> tuple[Reception, ToolReport | None]:
        """Wait until the tool has reported what it received."""
        reports, end_s = self._reports, time.monotonic() + _RECEIVED_WITHIN_S
        assert reports is not None
        prompt = comparable(prompt)
        while True:
            reports.read()
            reception, report = receipt_of(prompt, reports.since(mark))
            if reception is not Reception.NONE or time.monotonic() > end_s:
                return reception, report
            with contextlib.suppress(UpstreamUnavailable):
                if self._look_for(instance_id) is None:
                    # It ended: its last report may have come just now.
                    reports.read()
                    return receipt_of(prompt, reports.since(mark))
            reports.wait(_WAIT_S)

    def _may_paste(self, screen: Screen) -> str:
        """The empty box is there, the cursor is at its beginning, and the tool does not work. Other
        views of the tool may leave the cursor where it was.
        """
        empty = self._profile.screen.empty
        return _all(
            tmux_pane.cursor_at(screen),
            "1" if empty is None else tmux_pane.shows(empty),
            *map(tmux_pane.lacks, self._patterns.forbidden),
        )

    def _may_send(self, prompt: str, screen: Screen) -> str:
        """The tool does not work, shows no dialog, and its box begins with the prompt: what a
        person typed before it would make a command of it.
        """
        lacking = map(tmux_pane.lacks, self._patterns.forbidden)
        return _all("1", *lacking, self._begins_with(prompt, screen))

    def _begins_with(self, prompt: str, screen: Screen) -> str:
        sign, placeholder = self._profile.screen.sign, self._profile.screen.placeholder
        # Tools show a tab as they like.
        first = re.split("[\n\t]", prompt, maxsplit=1)[0].rstrip()
        if sign is None or not first.strip():
            return "1"
        # As the empty box has it: Claude Code puts another space behind the sign of an earlier
        # prompt, which may be the same one.
        if (now := re.match(sign, screen.content[screen.cursor_y])) is not None:
            sign = _MEANING.sub(".", now[0])
        # Shorter than a line of any box.
        plain = _MEANING.sub(".", _ASCII.match(first)[0][: screen.width // 4])  # type: ignore[index]
        shown = tmux_pane.shows(f"^{sign}{plain}")
        if placeholder is None:
            return shown
        return f"#{{||:{shown},{tmux_pane.shows(f'^{sign}{placeholder}')}}}"

    def _await_enter(self, prompt: str, screen: Screen, paste: str) -> None:
        """As for every pane; but a busy tool draws the paste late, and before that no Enter is
        sent. When its box never begins with the prompt, the Enter is given up for ever.
        """
        with contextlib.suppress(UpstreamUnavailable):
            super()._await_enter(prompt, screen, paste)
            return
        end_s = time.monotonic() + _SHOWN_WITHIN_S
        while not self._send_enter(prompt, screen, paste):
            if time.monotonic() > end_s:
                unset = f"set-option -pu -t {screen.pane_id} {tmux_pane.UNSENT}"
                if self._run_if(tmux_pane.is_unsent(paste), screen, unset):
                    raise _mixed()
                return
            time.sleep(_WAIT_S)

    def _interrupt_again(self, instance_id: str) -> None:
        """Press the key a second time, if the tool still works."""
        # At once, two Escapes would be another key.
        time.sleep(_BETWEEN_KEYS_S)
        screen, _ = self._same(instance_id)
        if self._patterns.works_on(screen):
            key = tmux_pane.press(screen, self._spec.interrupt)
            self._run_guarded(screen, key, tmux_pane.is_pane(screen))

    def _clear_returned(self, prompt: str, instance_id: str) -> None:
        """Empty the box of a prompt that the tool has put back there when it was interrupted. A
        text of a person stays.
        """
        end_s, before = time.monotonic() + _RETURNED_WITHIN_S, None
        with contextlib.suppress(Fenced, UpstreamUnavailable):
            while time.monotonic() < end_s:
                screen, _ = self._same(instance_id)
                text = self._patterns.draft_on(screen)
                if self._patterns.works_on(screen) or screen.content != before:
                    # Looked at twice: the tool may be drawing it.
                    before = screen.content
                elif not text or not self._patterns.is_from(prompt, text):
                    return
                else:
                    for key in self._profile.keys.clear:
                        pressed = tmux_pane.press(screen, key)
                        self._run_guarded(screen, pressed, tmux_pane.is_pane(screen))
                time.sleep(_WAIT_S)


def _all(*conditions: str) -> str:
    """The condition that all of these hold."""
    whole = conditions[0]
    for one in conditions[1:]:
        whole = f"#{{&&:{whole},{one}}}"
    return whole


def _after(received: ToolReport, reports: list[ToolReport]) -> list[ToolReport]:
    """The reports behind that one; all of them when so many have come that it is gone."""
    return reports[reports.index(received) + 1 :] if received in reports else reports


def _not_delivered(
    reception: Reception, prompt: str, report: ToolReport | None
) -> UpstreamUnavailable:
    if reception is Reception.ALTERED and report is not None:
        return Altered(
            "the agent received it together with what somebody typed: "
            f"{len(report.text)} characters instead of {len(prompt)}",
            outcome="unknown",
        )
    if reception is Reception.REFUSED:
        return _mixed()
    return NotReceived(
        f"the agent did not report it within {_RECEIVED_WITHIN_S:g} s: look at its terminal",
        outcome="unknown",
    )


def _mixed() -> Altered:
    return Altered(
        "somebody typed or removed something at that moment, so it was not sent: the text is in "
        "the agent's input box",
        outcome="none",
    )


def _answer(end: ToolReport, facts: dict[str, Any]) -> Answer:
    match end.kind:
        case ReportKind.ENDED:
            return Answer(end.text, "report", facts=facts)
        case ReportKind.FAILED:
            return Answer(code="agent_failed", detail=end.text, facts=facts)
        case ReportKind.STOPPED:
            detail = "it was stopped in the agent's terminal, and its tool reported no answer"
            return Answer(code="interrupted", detail=detail, facts=facts)
    detail = "it was received, and the agent began another conversation or ended"
    return Answer(code="agent_gone", detail=detail, facts=facts)


def _stop_report(activity: Activity) -> ToolReport:
    return ToolReport(
        name=f"{time.time_ns():020d}-0-stopped",
        kind=ReportKind.STOPPED,
        session_id=activity.session_id,
        prompt_id=activity.prompt_id,
    )
