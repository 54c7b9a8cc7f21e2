"""Fixtures of the unit tests."""

from types import SimpleNamespace

import pytest

from holdfast.primitives import deadline as deadline_
from holdfast.primitives import expiry
from tests.unit.lock_world import Watches


@pytest.fixture
def watches(monkeypatch: pytest.MonkeyPatch) -> Watches:
    made = Watches()
    monkeypatch.setattr(deadline_, "time", made)
    return made


@pytest.fixture
def own_clock_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """No grant for a time is over by the process's own clock, by which a busy machine takes seconds
    for a test.
    """
    monkeypatch.setattr(expiry, "time", SimpleNamespace(monotonic=lambda: 0.0))
