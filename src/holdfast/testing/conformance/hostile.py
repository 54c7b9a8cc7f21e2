"""Tests of bad input, damaged records and other schema versions."""

from typing import Any

import pytest

from holdfast.kernel.errors import InvalidName, InvalidValue, RecordInvalid, SchemaTooNew
from holdfast.kernel.limits import ENTRY_BYTES_MAX, KEYS_PER_STATEMENT_MAX, RECORD_BYTES_MAX
from holdfast.kernel.space import rows
from holdfast.kernel.store import ReadTx, Store, Tx
from holdfast.testing.conformance.harness import (
    OTHERS,
    PERSISTENT,
    THINGS,
    THINGS_V2,
    VOLATILE,
    Harness,
    Suite,
    Thing,
    ThingV2,
    needs,
    put,
    take,
)


class Hostile(Suite):
    """Bad input is refused before anything is changed, and damage is reported."""

    @pytest.mark.parametrize("key", ["", "a\0b", "x" * 1025, "é" * 513, "\ud800"])
    def test_keys_no_store_could_keep_are_refused(self, store: Store, key: str) -> None:
        with pytest.raises(InvalidName):
            put(store, key)
        with pytest.raises(InvalidName):
            store.put_new(THINGS, [("good", Thing()), (key, Thing())])
        assert store.read(lambda tx: tx.count(THINGS), scope=[THINGS]) == 0

    @pytest.mark.parametrize(
        "key", ["..", "../a", "/etc/passwd", "a/../../b", "\U0001f600", "x" * 1024, "a'; --", "%s?"]
    )
    def test_odd_keys_are_only_keys(self, store: Store, key: str) -> None:
        put(store, key, Thing(owner=key[:200]))
        assert [row.key for row in store.read(lambda tx: tx.range(THINGS), scope=[THINGS])] == [key]
        assert store.read(lambda tx: tx.count(THINGS, "place", (key[:200],)), scope=[THINGS]) == 1

    def test_a_record_over_the_bound_is_refused(self, store: Store) -> None:
        with pytest.raises(InvalidValue, match="bytes"):
            put(store, "a", Thing(owner="x" * RECORD_BYTES_MAX))
        with pytest.raises(InvalidValue, match="bytes"):
            store.transact(
                lambda tx: tx.append(
                    actor="t", kind="k", subject="s", data={"x": "y" * ENTRY_BYTES_MAX}
                ),
                scope=[THINGS],
            )
        with pytest.raises(InvalidValue, match="keys"):
            store.put_new(THINGS, [(f"k{i}", Thing()) for i in range(KEYS_PER_STATEMENT_MAX + 1)])

    def test_a_key_given_twice_is_refused(self, store: Store) -> None:
        for space in (THINGS, VOLATILE):
            with pytest.raises(InvalidValue, match="twice"):
                store.put_new(space, [("a", Thing()), ("a", Thing())])
            assert store.get(space, "a") is None

    def test_what_no_store_could_keep_is_not_there(self, store: Store) -> None:
        for key in ("\ud800", "", "a\0b", "x" * 5000):
            assert store.get(THINGS, key) is None
            assert store.read(lambda tx, key=key: tx.get(THINGS, key), scope=[THINGS]) is None  # type: ignore[misc]
            assert not store.transact(lambda tx, key=key: tx.delete(THINGS, key), scope=[THINGS])  # type: ignore[misc]

    @pytest.mark.parametrize(
        "cursor",
        ["junk", "-1", "1.2.3.4", "9" * 30, ("9" * 30) + ".0", "1.x", "٣.٣", ".", "\ud800"],
    )
    def test_a_cursor_of_no_journal_is_refused(self, store: Store, cursor: str) -> None:
        with pytest.raises(InvalidValue, match="cursor"):
            store.journal(cursor)

    def test_odd_arguments_are_refused_in_the_tree(self, store: Store) -> None:
        for entry in (
            {"subject": "\ud800"},
            {"subject": "s", "data": {"x": "\ud800"}},
            {"subject": "s", "data": {"x": object()}},
        ):
            with pytest.raises(InvalidValue):
                store.transact(lambda tx, e=entry: tx.append(actor="t", kind="k", **e), scope=[])  # type: ignore[misc]
        with pytest.raises(InvalidValue):
            store.read(lambda tx: tx.range(THINGS, start="\ud800"), scope=[THINGS])
        with pytest.raises(InvalidValue):
            store.read(lambda tx: tx.range(THINGS, limit=-1), scope=[THINGS])
        with pytest.raises(InvalidValue, match="volatile"):
            store.read(lambda tx: None, scope=[THINGS, VOLATILE])
        assert store.delete_if(THINGS, ["a"], 1) == 0
        assert store.journal().entries == []

    def test_a_large_record_within_the_bound_is_kept(self, store: Store) -> None:
        put(store, "a", Thing(owner="nobody", rank=1), space=OTHERS)
        big = Thing(owner="é" * (RECORD_BYTES_MAX // 2 - 100))
        put(store, "b", big, space=OTHERS)
        row = store.get(OTHERS, "b")
        assert row is not None and row.record == big

    def test_another_model_is_refused(self, store: Store) -> None:
        with pytest.raises(InvalidValue, match="Thing"):
            store.transact(
                lambda tx: tx.put(THINGS, "a", ThingV2(owner="x", rank=1, colour="red")),  # type: ignore[misc]
                scope=[THINGS],
            )

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"{",
            b"[]",
            b"null",
            b'{"schema_version": 1, "owner": 5}',
            b'{"schema_version": 1, "unknown": 1}',
            b'{"schema_version": 1, "at": "2026-01-01T00:00:00"}',
            b'{"schema_version": "1"}',
            b"[" * 9000,
        ],
        ids=["empty", "cut", "list", "null", "type", "unknown", "naive", "version", "deep"],
    )
    def test_a_damaged_record_is_reported_and_hides_no_other(
        self, harness: Harness, store: Store, data: bytes
    ) -> None:
        put(store, "bad", Thing(owner="x"))
        put(store, "good", Thing(owner="x"))
        harness.damage(THINGS.name, "bad", data)
        with pytest.raises(RecordInvalid) as caught:
            store.get(THINGS, "bad")
        assert caught.value.fields["key"] == "bad"
        assert store.get(THINGS, "good") is not None
        put(store, "bad", Thing(owner="mended"))
        assert store.get(THINGS, "bad") is not None

    def test_a_damaged_record_holds_up_no_list_and_no_queue(
        self, harness: Harness, store: Store
    ) -> None:
        for rank, key in enumerate(["first", "bad", "worse", "last"]):
            put(store, key, Thing(owner="x", rank=rank))
        for key in ("bad", "worse"):
            harness.damage(THINGS.name, key, b"{}}")
        with pytest.raises(RecordInvalid):
            store.read(lambda tx: tx.range(THINGS), scope=[THINGS])

        def look(tx: ReadTx, by_index: bool, reported: list[Any]) -> list[str]:
            found = (
                tx.find(THINGS, "place", ("x",), damaged=reported)
                if by_index
                else tx.range(THINGS, damaged=reported)
            )
            return sorted(row.key for row in found)

        for by_index in (False, True):
            reported: list[Any] = []
            found = store.read(lambda tx, b=by_index, t=reported: look(tx, b, t), scope=[THINGS])  # type: ignore[misc]
            assert found == ["first", "last"]
            assert sorted(error.fields["key"] for error in reported) == ["bad", "worse"]

        def take_sound(tx: Tx) -> tuple[str | None, int]:
            reported: list[Any] = []
            row = tx.take_first(THINGS, "place", ("x",), damaged=reported)
            if row is not None:
                tx.put(THINGS, row.key, Thing())
            return (row.key if row else None), len(reported)

        assert [store.transact(take_sound, scope=[rows(THINGS)])[0] for _ in range(3)] == [
            "first",
            "last",
            None,
        ]
        assert store.transact(take_sound, scope=[rows(THINGS)]) == (None, 2)
        with pytest.raises(RecordInvalid):
            take(store)

    def test_a_newer_record_is_not_guessed_at(self, harness: Harness, store: Store) -> None:
        put(store, "a")
        harness.damage(THINGS.name, "a", b'{"schema_version": 2, "owner": "x"}')
        with pytest.raises(SchemaTooNew, match="newer"):
            store.get(THINGS, "a")

    @needs(PERSISTENT)
    def test_an_older_record_is_upgraded_and_indexed_anew(
        self, harness: Harness, store: Store
    ) -> None:
        put(store, "a", Thing(owner="x", rank=3))
        store.close()
        newer = harness.open()
        try:
            found = newer.read(
                lambda tx: tx.find(THINGS_V2, "colour", ("grey",)), scope=[THINGS_V2]
            )
            assert [row.record for row in found] == [ThingV2(owner="x", rank=3, colour="grey")]
        finally:
            newer.close()

    @needs(PERSISTENT)
    def test_an_older_program_refuses_a_newer_store(self, harness: Harness, store: Store) -> None:
        store.transact(
            lambda tx: tx.put(THINGS_V2, "a", ThingV2(owner="x", rank=3, colour="red")),
            scope=[THINGS_V2],
        )
        store.close()
        older = harness.open()
        try:
            with pytest.raises(SchemaTooNew):
                older.get(THINGS, "a")
            with pytest.raises(SchemaTooNew):
                put(older, "b")
        finally:
            older.close()
