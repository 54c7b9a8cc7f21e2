"""A tool's screen, as its profile reads it, and for how long the tool has been at rest."""

import re
import time

from holdfast.adapters.tmux_pane import Screen
from holdfast.domains.gateway.activity import Activity, Box, ScreenView
from holdfast.kernel.agent_profile import ScreenPatterns

_LOOK_COUNTS_S = 1.5
"""A look says no more than that of the time before it."""


class Rest:
    """For how long a tool was at rest on each look in one turn. What hides whether it works counts
    for nothing, such as what a person types, or opens before its box.
    """

    def __init__(self) -> None:
        self._seen_s = time.monotonic()
        self._turn: tuple[bool, str | None] = (False, None)
        self._rest_s = 0.0

    def after(self, view: ScreenView, activity: Activity) -> float:
        """The seconds with one more look."""
        now_s, turn = time.monotonic(), (activity.working, activity.prompt_id)
        passed_s, self._seen_s = now_s - self._seen_s, now_s
        if view.working or turn != self._turn:
            # The rest before a turn says nothing about it.
            self._turn, self._rest_s = turn, 0.0
        elif view.at_rest:
            self._rest_s += min(passed_s, _LOOK_COUNTS_S)
        return self._rest_s


class ToolPatterns:
    """The patterns of a profile, applied to screens."""

    def __init__(self, patterns: ScreenPatterns) -> None:
        def compiled(pattern: str | None) -> re.Pattern[str] | None:
            return None if pattern is None else re.compile(pattern, re.MULTILINE)

        self._box, self._draft = compiled(patterns.box), compiled(patterns.draft)
        self._dialog, self._trust = compiled(patterns.dialog), compiled(patterns.trust)
        self._working, self._idle = compiled(patterns.working), compiled(patterns.idle)
        self._placeholder = compiled(patterns.placeholder)
        self.forbidden = [one for one in (patterns.dialog, patterns.working) if one is not None]

    def box_on(self, screen: Screen) -> Box:
        text = "\n".join(_with_cursor(screen))
        for box, pattern in ((Box.TRUST, self._trust), (Box.DIALOG, self._dialog)):
            if pattern is not None and pattern.search(text):
                return box
        if self._box is not None:
            for found in self._box.finditer(text):
                end = found.end("cursor") if "cursor" in found.groupdict() else found.end()
                line = text.count("\n", 0, end)
                column = end - (text.rfind("\n", 0, end) + 1)
                if (column, line) == (screen.cursor_x, screen.cursor_y):
                    return Box.EMPTY
        if self._draft is not None and self._draft.search(text):
            return Box.DRAFT
        return Box.NONE

    def works_on(self, screen: Screen) -> bool:
        text = "\n".join(screen.content[:-1])
        return self._working is not None and self._working.search(text) is not None

    def rests_on(self, screen: Screen, box: Box, prompt: str) -> bool:
        """Does a screen without a sign of work show that the tool does not work? Below an empty box
        it says so; and it puts a prompt that was stopped early back into its box.
        """
        if box is Box.EMPTY:
            text = "\n".join(screen.content[:-1])
            return self._idle is None or self._idle.search(text) is not None
        text, first = self.draft_on(screen) or "", prompt.partition("\n")[0].strip()
        # The box may show a part of a long line.
        whole = text == first or (len(text) > screen.width // 2 and first.startswith(text))
        return bool(text) and (whole or self._stands_for_paste(text))

    def draft_on(self, screen: Screen) -> str | None:
        """The first line of the text in the box; None without one."""
        if self._draft is None:
            return None
        found = self._draft.search("\n".join(screen.content[:-1]))
        return None if found is None else found["text"].strip()

    def is_from(self, prompt: str, text: str) -> bool:
        """Is a text in the box the first line of a prompt, or what stands for a long one?"""
        return text in prompt or self._stands_for_paste(text)

    def _stands_for_paste(self, text: str) -> bool:
        return self._placeholder is not None and self._placeholder.fullmatch(text) is not None


def _with_cursor(screen: Screen) -> list[str]:
    """The lines. tmux leaves out the spaces at their ends: those before the cursor are added."""
    lines = list(screen.content[:-1])
    if screen.cursor_y < len(lines):
        lines[screen.cursor_y] = lines[screen.cursor_y].ljust(screen.cursor_x)
    return lines
