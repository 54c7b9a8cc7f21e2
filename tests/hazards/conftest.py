"""Fixtures of tests that start processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.primitives import journal
from tests.harness.tmux_server import TmuxServer
from tests.hazards.gateway_process import GatewayProcess


@pytest.fixture
def untrimmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal is not trimmed: that happens at a revision in a thousand, and is a point more at
    which to be killed.
    """
    monkeypatch.setattr(journal, "JOURNAL_TRIM_EVERY", 1 << 62)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway that begins a program for each prompt."""
    with GatewayProcess(tmp_path) as made:
        yield made


@pytest.fixture
def attached(tmux: TmuxServer) -> Iterator[GatewayProcess]:
    """A gateway before that program, which is known to be done when it shows that it is ready, and
    not by its silence alone: on a busy machine it may be silent amid anything.
    """
    words = (
        "--adapter",
        "tmux",
        "--session",
        "claude",
        "--socket-path",
        str(tmux.socket),
        "--quiet-ms",
        "150",
        "--ready-regex",
        "^ready> *$",
    )
    with GatewayProcess(tmux.folder, *words) as made:
        yield made
