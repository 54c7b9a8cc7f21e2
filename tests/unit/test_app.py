"""One connection used by several threads."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

import holdfast
from holdfast.primitives.locks import Locks
from tests.harness.timeouts import PATIENCE_S


def test_threads_that_ask_for_a_part_at_once_get_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two would not know of each other: what one holds in this process alone, the other would
    take.
    """
    both = Barrier(2)
    make = Locks.__init__

    def at_once(*given: object, **more: object) -> None:
        both.wait(PATIENCE_S)
        make(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Locks, "__init__", at_once)
    with holdfast.connect("memory:") as hf, ThreadPoolExecutor(2) as pool:
        one, two = pool.map(lambda _: hf.locks, range(2))
        assert one is two is hf.locks
    assert "Locks" in (holdfast.Holdfast.locks.__doc__ or "")
