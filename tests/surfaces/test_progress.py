"""Long work shows progress on a terminal, and removes it at the end."""

import io
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.runtime.maintenance import Upkeep
from holdfast.surfaces.cli import output
from holdfast.surfaces.cli.root import run
from tests.harness.timeouts import PATIENCE_S


class Terminal(io.StringIO):
    """A terminal that reports when it was written to."""

    def __init__(self, *, terminal: bool = True) -> None:
        super().__init__()
        self.shown = threading.Event()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def write(self, text: str) -> int:
        written = super().write(text)
        if "so far" in text:
            self.shown.set()
        return written


@pytest.mark.parametrize(
    ("words", "verb", "done"),
    [
        (["check"], "check", []),
        (["backup", "there.sqlite"], "backup", None),
        (["restore", "there.sqlite", "--yes"], "restore", None),
        (["copy", "sqlite:here.sqlite", "sqlite:there.sqlite"], "copy", {}),
    ],
)
def test_long_work_on_a_store_says_that_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, words: list[str], verb: str, done: Any
) -> None:
    terminal = Terminal()

    def work(*_: object) -> Any:
        assert terminal.shown.wait(PATIENCE_S)
        return done

    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(output, "_PROGRESS_EVERY_S", 0.01)
    # However long it really takes until the first sign.
    monkeypatch.setattr(output, "time", SimpleNamespace(monotonic=lambda: 7.0))
    monkeypatch.setattr(Upkeep, verb, work)
    assert run(["store", *words]) == 0
    first, *_, blank, end = terminal.getvalue().split("\r")[1:]
    assert first.startswith("holdfast: ") and first.endswith("ing: 0 s so far")
    assert (blank.strip(), len(blank) >= len(first), end) == ("", True, "")
    assert not [thread for thread in threading.enumerate() if thread.name == "holdfast-progress"]


def test_short_work_or_work_without_a_terminal_prints_no_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal, file = Terminal(), Terminal(terminal=False)
    monkeypatch.setattr(sys, "stderr", terminal)
    with output.working("checking"):
        pass
    monkeypatch.setattr(sys, "stderr", file)
    monkeypatch.setattr(output, "_PROGRESS_EVERY_S", 0.0)
    with output.working("checking"):
        pass
    assert terminal.getvalue() == file.getvalue() == ""
