"""What an agent waits for and gives up."""

import threading

import pytest

from holdfast.kernel.errors import LeaseLost, StoreUnavailable
from holdfast.surfaces.mcp.turn import Turn
from tests.harness.timeouts import PATIENCE_S


def _over() -> LeaseLost:
    return LeaseLost("it was given up")


def test_what_cannot_be_given_up_in_time_is_not_called_given_up() -> None:
    """It was: the agent asked for the same lock again, entered the grant that was still being
    withdrawn, and lost it with that.
    """
    store_is_back, ended, abandoned = threading.Event(), threading.Event(), list[str]()

    def seek(_: int) -> str:
        assert store_is_back.wait(PATIENCE_S)
        return "grant"

    turn: Turn[str] = Turn(seek, abandon=abandoned.append, over=_over)
    turn.begin(ended.set)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="release it again"):
            turn.give_up(0.0)
    assert turn.waits and abandoned == []
    store_is_back.set()
    assert turn.give_up(PATIENCE_S)
    assert (turn.kept, abandoned) == (None, ["grant"])
    assert ended.wait(PATIENCE_S)
