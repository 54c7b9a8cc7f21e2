"""Tests of one transaction, its queries and their order, the hot paths, and namespaces."""

from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.space import Space, rows
from holdfast.kernel.store import Store, Tx
from holdfast.testing.conformance.harness import (
    CLOCKED,
    OTHERS,
    PERSISTENT,
    THINGS,
    VOLATILE,
    Harness,
    Suite,
    Thing,
    append,
    needs,
    put,
    take,
)

_READS: tuple[Callable[[Any], object], ...] = (
    lambda tx: tx.get(THINGS, "a"),
    lambda tx: tx.range(THINGS),
    lambda tx: tx.find(THINGS, "place"),
    lambda tx: tx.count(THINGS),
)
_CHANGES: tuple[Callable[[Any], object], ...] = (
    lambda tx: tx.put(THINGS, "a", Thing(rank=1)),
    lambda tx: tx.put(THINGS, "b", Thing()),
    lambda tx: tx.delete(THINGS, "a"),
    lambda tx: tx.take_first(THINGS, "place"),
    lambda tx: tx.append(actor="a", kind="b", subject="c"),
    lambda tx: tx.trim(keep=0, before=tx.now),
)


class Transactions(Suite):
    """A transaction is all or nothing, sees itself, and stays in its scope and namespace. All
    stores have the same order.
    """

    def test_a_put_record_is_read_back_with_its_revision(self, store: Store) -> None:
        def body(tx: Tx) -> int:
            tx.put(THINGS, "a", Thing(owner="x", rank=3, at=tx.now))
            return tx.revision

        revision = store.transact(body, scope=[THINGS])
        row = store.get(THINGS, "a")
        assert row is not None
        assert (row.key, row.record.owner, row.record.rank, row.revision) == ("a", "x", 3, revision)
        assert row.record.at is not None and row.record.at.tzinfo is not None

    def test_get_of_nothing_is_none(self, store: Store) -> None:
        assert store.get(THINGS, "a") is None
        assert store.read(lambda tx: tx.get(THINGS, "a"), scope=[THINGS]) is None

    def test_a_transaction_sees_its_own_changes(self, store: Store) -> None:
        def body(tx: Tx) -> None:
            tx.put(THINGS, "a", Thing(owner="x"))
            assert tx.get(THINGS, "a") is not None
            assert [row.key for row in tx.find(THINGS, "place", ("x",))] == ["a"]
            assert tx.count(THINGS) == 1
            tx.put(THINGS, "a", Thing(owner="y"))
            assert tx.find(THINGS, "place", ("x",)) == []
            assert tx.delete(THINGS, "a")
            assert not tx.delete(THINGS, "a")
            assert tx.get(THINGS, "a") is None

        store.transact(body, scope=[THINGS])
        assert store.get(THINGS, "a") is None

    def test_an_ended_transaction_refuses_every_call(self, store: Store) -> None:
        """Another transaction may have its turn, connection and records by then."""
        kept: list[Tx] = []

        def changing(tx: Tx) -> None:
            kept.append(tx)
            tx.put(THINGS, "a", Thing())

        def failing(tx: Tx) -> None:
            changing(tx)
            raise ZeroDivisionError

        store.transact(changing, scope=[THINGS])
        store.transact(kept.append, scope=[rows(THINGS)])
        with pytest.raises(ZeroDivisionError):
            store.transact(failing, scope=[rows(THINGS)])
        snapshot = store.read(lambda tx: tx, scope=[THINGS])
        before = (store.get(THINGS, "a"), store.journal())
        for ended, verbs in [*((tx, (*_READS, *_CHANGES)) for tx in kept), (snapshot, _READS)]:
            for verb in verbs:
                with pytest.raises(InvalidValue, match="inside its body"):
                    verb(ended)
        assert (store.get(THINGS, "a"), store.journal()) == before

    def test_an_exception_leaves_nothing_behind(self, store: Store) -> None:
        put(store, "kept")

        def body(tx: Tx) -> None:
            tx.put(THINGS, "a", Thing())
            tx.put(OTHERS, "b", Thing())
            tx.delete(THINGS, "kept")
            tx.append(actor="t", kind="k", subject="a")
            raise KeyError("the body's own")

        entries = len(store.journal().entries)
        with pytest.raises(KeyError, match="the body's own"):
            store.transact(body, scope=[THINGS, OTHERS])
        assert store.get(THINGS, "a") is None and store.get(OTHERS, "b") is None
        assert store.get(THINGS, "kept") is not None
        assert len(store.journal().entries) == entries

    def test_an_exception_leaves_the_revisions_as_they_were(self, store: Store) -> None:
        keys = [f"k{number:02}" for number in range(20)]
        given = {key: put(store, key) for key in keys}

        def body(tx: Tx) -> None:
            tx.put(THINGS, keys[0], Thing(owner="y"))
            tx.delete(THINGS, keys[1])
            assert len(tx.range(THINGS)) == len(keys) - 1
            raise RuntimeError("meant")

        with pytest.raises(RuntimeError):
            store.transact(body, scope=[THINGS])
        found = store.read(
            lambda tx: {row.key: row.revision for row in tx.range(THINGS)}, scope=[THINGS]
        )
        assert found == given
        assert store.delete_if(THINGS, keys[:2], given[keys[0]]) == 1

    def test_a_space_outside_the_scope_is_refused(self, store: Store) -> None:
        with pytest.raises(InvalidValue, match="scope"):
            store.transact(lambda tx: tx.put(OTHERS, "a", Thing()), scope=[THINGS])
        with pytest.raises(InvalidValue, match="scope"):
            store.read(lambda tx: tx.get(OTHERS, "a"), scope=[THINGS])

    def test_an_empty_scope_is_enough_for_the_journal(self, store: Store) -> None:
        store.transact(lambda tx: tx.append(actor="t", kind="k", subject="alone"), scope=[])
        assert [entry.subject for entry in store.journal().entries] == ["alone"]

    def test_volatile_and_durable_do_not_mix(self, store: Store) -> None:
        with pytest.raises(InvalidValue, match="volatile"):
            store.transact(lambda tx: None, scope=[THINGS, VOLATILE])

    def test_revisions_only_grow(self, store: Store) -> None:
        seen = []
        for i in range(5):
            seen.append(put(store, f"k{i}"))
            seen.append(
                store.transact(
                    lambda tx: tx.append(actor="t", kind="k", subject="s"), scope=[THINGS]
                )
            )
            token = store.put_new(THINGS, [(f"n{i}", Thing())])
            assert token is not None
            seen.append(token)
            store.delete_if(THINGS, [f"n{i}"], token)
        assert seen == sorted(set(seen))

    @needs(CLOCKED)
    def test_now_is_the_passed_clock(self, harness: Harness, store: Store) -> None:
        harness.clock.advance(12.5)
        assert store.transact(lambda tx: tx.now, scope=[THINGS]) == harness.clock.now()
        assert store.read(lambda tx: tx.now, scope=[THINGS]) == harness.clock.now()
        assert store.now() == harness.clock.now()
        harness.clock.advance(-3600)
        assert store.now() == harness.clock.now()

    def test_now_is_aware(self, store: Store) -> None:
        assert store.transact(lambda tx: tx.now, scope=[THINGS]).utcoffset() is not None
        assert store.now().utcoffset() is not None

    def test_the_clock_of_the_store_is_that_of_its_transactions(self, store: Store) -> None:
        round_trip = timedelta(seconds=1)
        first = store.now()
        before = store.transact(lambda tx: tx.now, scope=[THINGS])
        between = store.now()
        after = store.read(lambda tx: tx.now, scope=[THINGS])
        last = store.now()
        for earlier, later in pairwise([first, before, between, after, last]):
            assert earlier <= later + round_trip

    @pytest.mark.parametrize("space", [THINGS, VOLATILE], ids=["durable", "volatile"])
    def test_put_new_is_all_or_none(self, store: Store, space: Space[Thing]) -> None:
        token = store.put_new(space, [("a", Thing(owner="x")), ("b", Thing(owner="x", rank=1))])
        assert token is not None
        assert store.put_new(space, [("c", Thing()), ("b", Thing())]) is None
        assert store.get(space, "c") is None
        found = [store.get(space, key) for key in ("a", "b")]
        assert [row and row.revision for row in found] == [token, token]
        assert store.read(
            lambda tx: [r.key for r in tx.find(space, "place", ("x",))], scope=[space]
        ) == ["a", "b"]

    @pytest.mark.parametrize("space", [THINGS, VOLATILE], ids=["durable", "volatile"])
    def test_delete_if_needs_the_token(self, store: Store, space: Space[Thing]) -> None:
        first = store.put_new(space, [("a", Thing()), ("b", Thing())])
        second = store.put_new(space, [("c", Thing())])
        assert first is not None and second is not None and second > first
        assert store.delete_if(space, ["a", "b", "c"], second + 1) == 0
        assert store.delete_if(space, ["a", "c", "d"], first) == 1
        assert store.get(space, "a") is None
        assert store.get(space, "b") is not None and store.get(space, "c") is not None
        third = store.put_new(space, [("a", Thing())])
        assert third is not None and third > second
        assert store.delete_if(space, ["a"], first) == 0

    def test_tokens_grow_across_hot_and_general_paths(self, store: Store) -> None:
        seen = []
        for i in range(4):
            token = store.put_new(VOLATILE, [(f"n{i}", Thing())])
            assert token is not None
            seen.append(token)
            seen.append(put(store, f"k{i}", space=VOLATILE))
            store.delete_if(VOLATILE, [f"n{i}"], token)
        assert seen == sorted(set(seen))

    def test_namespaces_do_not_meet(self, harness: Harness, store: Store) -> None:
        if PERSISTENT not in self.capabilities:
            pytest.skip("two objects do not share this store")
        other = harness.open(namespace="elsewhere")
        try:
            put(store, "a", Thing(owner="x"))
            append(store, "here")
            assert other.get(THINGS, "a") is None
            assert other.read(lambda tx: tx.count(THINGS, "place"), scope=[THINGS]) == 0
            assert other.journal().entries == []
            assert other.put_new(THINGS, [("a", Thing(owner="y"))]) is not None
            assert other.transact(lambda tx: tx.delete(THINGS, "a"), scope=[THINGS])
            assert store.get(THINGS, "a") is not None
        finally:
            other.close()

    def test_range_orders_by_code_points_and_honours_bounds(self, store: Store) -> None:
        keys = ["A", "a", "a!", "a/b", "aa", "b", "é", "日", "\U0001f600"]
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
