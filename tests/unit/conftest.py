"""Fixtures of the unit tests."""

import pytest

from holdfast.primitives import deadline as deadline_
from holdfast.primitives.renewal import ExpiryTimer
from tests.unit.lock_world import Watches


@pytest.fixture
def watches(monkeypatch: pytest.MonkeyPatch) -> Watches:
    made = Watches()
    monkeypatch.setattr(deadline_, "time", made)
    return made


@pytest.fixture
def own_clock_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """No grant expires by the process's own clock, since a busy machine may take seconds for a
    test.
    """
    monkeypatch.setattr(ExpiryTimer, "watch", lambda *_: None)
