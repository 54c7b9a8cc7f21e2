"""A file of many records: a change costs no more Python work in a large one than in a small one,
and a batch costs no more a record. Work is counted, not timed.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.kernel.store import Store, Tx
from holdfast.stores.files import redo
from tests.stores.files_spaces import HOSTS, Host, open_files, put, shown


def counted(work: Callable[[], object]) -> int:
    """How many functions the work calls, those written in C included."""
    calls = 0

    def count(_: Any, event: str, __: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def register(store: Store, first: int, count: int) -> None:
    """As hosts are registered: a look by name and by address before each."""

    def body(tx: Tx) -> None:
        for number in range(first, first + count):
            assert tx.get(HOSTS, f"h{number}") is None
            assert tx.find(HOSTS, "ip", (f"10.{number}",), limit=1) == []
            tx.put(HOSTS, f"h{number}", Host(ip=f"10.{number}"))

    store.transact(body, scope=[HOSTS])


def test_a_batch_costs_the_same_a_record_whatever_its_size(tmp_path: Path) -> None:
    with_100, with_800 = open_files(tmp_path / "a"), open_files(tmp_path / "b")
    for store in (with_100, with_800):
        register(store, 0, 1)
    few = counted(lambda: register(with_100, 1, 100)) / 100
    many = counted(lambda: register(with_800, 1, 800)) / 800
    for store in (with_100, with_800):
        store.close()
    assert many < 1.2 * few
    assert len(shown(tmp_path / "b" / "lab" / "hosts.json")) == 801


def test_a_change_of_one_record_costs_the_same_in_a_large_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    encode = redo._RedoSpace.encode

    def noted(self: Any, record: redo.RedoPart) -> bytes:
        data = encode(self, record)
        written.append(len(data))
        return data

    monkeypatch.setattr(redo._RedoSpace, "encode", noted)
    costs = []
    for name, size in (("small", 50), ("large", 1500)):
        store = open_files(tmp_path / name)
        register(store, 0, size)
        put(store, HOSTS, "first")
        written.clear()
        calls = counted(lambda store=store, size=size: register(store, size, 1))  # type: ignore[misc]
        costs.append((calls, sum(written)))
        store.close()
    (few, few_bytes), (many, many_bytes) = costs
    assert many < 1.1 * few
    # What is written twice, in the redo record too, is the new record alone.
    assert many_bytes < 1.1 * few_bytes
    assert len(shown(tmp_path / "large" / "lab" / "hosts.json")) == 1502
