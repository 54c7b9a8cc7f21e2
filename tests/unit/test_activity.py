"""What counts as the end of a tool's turn, and of its question, when the tool reports none."""

import pytest

from holdfast.domains.gateway.activity import (
    Activity,
    Box,
    ScreenView,
    answered_on_screen,
    has_stopped,
)

_WORKING = Activity(begun=True, working=True, prompt_id="p")


@pytest.mark.parametrize(
    ("view", "recorded", "stopped"),
    [
        (ScreenView(Box.EMPTY, False, 60.0, True, 9.0), False, False),
        (ScreenView(Box.EMPTY, False, 60.0, True, 10.0), False, True),
        (ScreenView(Box.EMPTY, True, 60.0, False, 0.0), True, False),
        # A person's text hides whether it works; its own record tells.
        (ScreenView(Box.DRAFT, False, 60.0, False, 0.0), False, False),
        (ScreenView(Box.DRAFT, False, 60.0, False, 0.0), True, True),
        (ScreenView(Box.NONE, False, 60.0, False, 0.0), True, False),
        (ScreenView(Box.DIALOG, False, 60.0, False, 0.0), True, False),
    ],
)
def test_only_a_positive_sign_ends_a_turn(view: ScreenView, recorded: bool, stopped: bool) -> None:
    found = has_stopped(_WORKING, view, interrupted=False, recorded=lambda: recorded)
    assert found is stopped


@pytest.mark.parametrize(("box", "answered"), [("empty", True), ("draft", True), ("none", False)])
def test_a_screen_that_nobody_knows_answers_no_question(box: str, answered: bool) -> None:
    view = ScreenView(Box(box), working=False, still_s=60.0)
    assert answered_on_screen(view, 60.0) is answered
