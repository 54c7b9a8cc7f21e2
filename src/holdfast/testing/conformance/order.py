"""Tests of ranges, indexes and take_first."""

from typing import Any

import pytest

from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.space import rows
from holdfast.kernel.store import Store
from holdfast.testing.conformance.harness import THINGS, Suite, Thing
from holdfast.testing.conformance.steps import put, take


class Order(Suite):
    """All stores have the same order."""

    def test_range_orders_by_code_points_and_honours_bounds(self, store: Store) -> None:
        keys = ["", "A", "a", "a!", "a/b", "aa", "b", "é", "日", "\U0001f600"][1:]
        for key in reversed(keys):
            put(store, key)

        def of(**how: Any) -> list[str]:
            return store.read(
                lambda tx: [row.key for row in tx.range(THINGS, **how)], scope=[THINGS]
            )

        assert of() == keys == sorted(keys)
        assert of(reverse=True) == keys[::-1]
        assert of(prefix="a") == ["a", "a!", "a/b", "aa"]
        assert of(prefix="a", start="a/") == ["a/b", "aa"]
        assert of(prefix="a", stop="aa") == ["a", "a!", "a/b"]
        assert of(start="b", limit=2) == ["b", "é"]
        assert of(prefix="a", reverse=True, limit=1) == ["aa"]
        assert of(prefix="\U0001f600") == ["\U0001f600"]
        assert of(prefix="nothing") == []

    def test_find_orders_by_the_tuple_then_the_key(self, store: Store) -> None:
        for key, owner, rank in [
            ("c", "x", 2),
            ("b", "x", -1),
            ("a", "x", 2),
            ("d", "xy", 0),
            ("e", "nobody", 9),
        ]:
            put(store, key, Thing(owner=owner, rank=rank))

        def of(*match: Any, **how: Any) -> list[str]:
            return store.read(
                lambda tx: [r.key for r in tx.find(THINGS, "place", match, **how)], scope=[THINGS]
            )

        assert of() == ["b", "a", "c", "d"]
        assert of("x") == ["b", "a", "c"]
        assert of("x", 2) == ["a", "c"]
        assert of("x", start=(0,)) == ["a", "c"]
        assert of("x", stop=(2,)) == ["b"]
        assert of("x", reverse=True, limit=2) == ["c", "a"]
        assert of("nobody") == []
        count = store.read(
            lambda tx: (
                tx.count(THINGS),
                tx.count(THINGS, "place"),
                tx.count(THINGS, "place", ("x",)),
            ),
            scope=[THINGS],
        )
        assert count == (5, 4, 3)

    def test_an_index_follows_its_record(self, store: Store) -> None:
        put(store, "a", Thing(owner="x"))
        put(store, "a", Thing(owner="y"))
        found = store.read(
            lambda tx: (tx.count(THINGS, "place", ("x",)), tx.count(THINGS, "place", ("y",))),
            scope=[THINGS],
        )
        assert found == (0, 1)
        put(store, "a", Thing(owner="nobody"))
        assert store.read(lambda tx: tx.count(THINGS, "place"), scope=[THINGS]) == 0

    def test_an_unknown_index_is_named(self, store: Store) -> None:
        with pytest.raises(InvalidValue, match="nosuch"):
            store.read(lambda tx: tx.find(THINGS, "nosuch"), scope=[THINGS])

    def test_take_first_takes_the_first(self, store: Store) -> None:
        for key, rank in [("a", 2), ("b", 1)]:
            put(store, key, Thing(owner="x", rank=rank))
        assert take(store) == "b"
        assert take(store) == "a"
        assert take(store) is None

    def test_take_first_passes_over_some_keys(self, store: Store) -> None:
        for key, rank in [("a", 3), ("b", 1), ("c", 2)]:
            put(store, key, Thing(owner="x", rank=rank))

        def first(*keys: str) -> str | None:
            row = store.transact(
                lambda tx: tx.take_first(THINGS, "place", ("x",), but_for=keys),
                scope=[rows(THINGS)],
            )
            return None if row is None else row.key

        assert [first(), first("b"), first("c"), first("c", "b"), first("b", "nosuch")] == [
            "b",
            "c",
            "b",
            "a",
            "c",
        ]
        assert first("a", "b", "c") is None
