"""What tests of the surfaces may ask for."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.surfaces.cli import entry, root
from tests.surfaces.command import Ran, Say
from tests.surfaces.locking import Bench, bench


@pytest.fixture
def locks(tmp_path: Path) -> Iterator[Bench]:
    """`holdfast` on a store of its own, for commands under locks."""
    with bench(tmp_path) as made:
        yield made


@pytest.fixture
def say(url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Say:
    """Run `holdfast WORDS` in this process, which is much quicker than another; what it prints is
    captured.
    """
    monkeypatch.setenv("HOLDFAST_STORE", url)
    monkeypatch.delenv("HOLDFAST_LOCK_BY", raising=False)

    def run(*words: str) -> Ran:
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
        try:
            status = entry.guarded(lambda: root.run(words))
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        assert status is not None
        captured = capsys.readouterr()
        return Ran(status, captured.out, captured.err)

    return run
