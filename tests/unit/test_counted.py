"""A count that reads all there is, is made once for many who ask, and anew when it is too old."""

import threading
from itertools import count

import pytest

pytest.importorskip("litestar")

from holdfast.surfaces.http.page.routes import Counted


def test_a_count_is_used_for_as_long_as_it_says() -> None:
    """The jobs were counted for each list of the page: 50 ms with a million."""
    numbers = count()
    kept = Counted(lambda: next(numbers), lambda number, _: 0 if number < 2 else 1e9)
    assert [kept.get() for _ in range(5)] == [0, 1, 2, 2, 2]


def test_who_asks_meanwhile_gets_the_same_count() -> None:
    begun, go, numbers = threading.Event(), threading.Event(), count()

    def counting() -> int:
        begun.set()
        go.wait()
        return next(numbers)

    kept, found = Counted(counting, lambda _number, _took_s: 1e9), list[int]()
    askers = [threading.Thread(target=lambda: found.append(kept.get())) for _ in range(3)]
    for asker in askers:
        asker.start()
    begun.wait()
    go.set()
    for asker in askers:
        asker.join()
    assert found == [0, 0, 0]
