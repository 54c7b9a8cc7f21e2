"""The conformance suite: what every store must do, as code for whoever writes one.

    class TestMyStore(StoreConformance):
        capabilities = ALL
        @pytest.fixture
        def harness(self, tmp_path): return MyHarness(tmp_path)

A Harness opens stores on one and the same place. Tests of what a store does not claim are skipped by capability, never in
silence: `skipped_by` lists them, so that a project can pin the list.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import pytest

from holdfast.kernel.codec import Instant, Record
from holdfast.kernel.errors import InvalidName, InvalidValue, LockTimeout, RecordInvalid, SchemaTooNew, StoreUnavailable
from holdfast.kernel.limits import ENTRY_BYTES_MAX, JOURNAL_READ_MAX, KEYS_PER_STATEMENT_MAX, RECORD_BYTES_MAX
from holdfast.kernel.space import Space, rows
from holdfast.kernel.store import BEGINNING, JOURNAL_TOPIC, ReadTx, Store, Tx
from holdfast.testing.clock import ManualClock

SHARED = "shared"
"""Several processes can open it."""
PERSISTENT = "persistent"
"""Records outlive the last process that had it open."""
CLOCKED = "clocked"
"""Its clock is passed in. A database has its own."""
LATCHED = "latched"
"""A transaction waits for its turn, so that a time limit can pass."""
ALL = frozenset({SHARED, PERSISTENT, CLOCKED, LATCHED})

PATIENCE_S = 30.0
"""How long a test waits for what must happen. Nothing passes by waiting this long; it only fails."""


class Thing(Record, frozen=True, kw_only=True):
    """A record of the suite."""

    owner: str = "nobody"
    rank: int = 0
    at: Instant | None = None


class ThingV2(Record, frozen=True, kw_only=True):
    """The same in a later version."""

    schema_version: int = 2
    owner: str
    rank: int
    colour: str


def _place(thing: Thing) -> tuple[str, int] | None:
    return (thing.owner, thing.rank) if thing.owner != "nobody" else None


THINGS = Space("conformance_things", Thing, indexes={"place": _place})
OTHERS = Space("conformance_others", Thing)
VOLATILE = Space("conformance_volatile", Thing, indexes={"place": _place}, volatile=True)
THINGS_V2 = Space(
    "conformance_things",
    ThingV2,
    schema_version=2,
    upgrades={1: lambda old: {"owner": old["owner"], "rank": old["rank"], "colour": "grey"}},
    indexes={"colour": lambda thing: (thing.colour,)},
)


class Harness(Protocol):
    """Opens stores for the suite, all on one place."""

    clock: ManualClock

    def open(self, *, namespace: str = "default") -> Store:
        """A new store object on the harness's place. Called in other processes too."""
        ...

    def damage(self, space: str, key: str, data: bytes) -> None:
        """Overwrite a record's stored bytes behind the store's back."""
        ...


def needs(*capabilities: str) -> Callable[[Any], Any]:
    """Mark a test with the capabilities it needs."""

    def mark(test: Any) -> Any:
        test.needs = frozenset(capabilities)
        return test

    return mark


def skipped_by(capabilities: frozenset[str]) -> list[str]:
    """The names of the tests that a store with these capabilities skips."""
    return sorted(
        name
        for name in dir(StoreConformance)
        if name.startswith("test_") and not getattr(getattr(StoreConformance, name), "needs", frozenset()) <= capabilities
    )


class StoreConformance:
    """Subclass it with a `harness` fixture and the store's capabilities."""

    capabilities: frozenset[str] = ALL

    @pytest.fixture(autouse=True)
    def _by_capability(self, request: pytest.FixtureRequest) -> None:
        missing: frozenset[str] = getattr(request.function, "needs", frozenset()) - self.capabilities
        if missing:
            pytest.skip(f"the store does not claim {', '.join(sorted(missing))}")

    @pytest.fixture
    def store(self, harness: Harness) -> Iterator[Store]:
        store = harness.open()
        yield store
        store.close()

    # --- one transaction ---

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
            seen.append(store.transact(lambda tx: tx.append(actor="t", kind="k", subject="s"), scope=[THINGS]))
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

    def test_now_is_aware(self, store: Store) -> None:
        assert store.transact(lambda tx: tx.now, scope=[THINGS]).utcoffset() is not None

    # --- order ---

    def test_range_orders_by_code_points_and_honours_bounds(self, store: Store) -> None:
        keys = ["", "A", "a", "a!", "a/b", "aa", "b", "é", "日", "\U0001f600"][1:]
        for key in reversed(keys):
            put(store, key)

        def of(**how: Any) -> list[str]:
            return store.read(lambda tx: [row.key for row in tx.range(THINGS, **how)], scope=[THINGS])

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
        for key, owner, rank in [("c", "x", 2), ("b", "x", -1), ("a", "x", 2), ("d", "xy", 0), ("e", "nobody", 9)]:
            put(store, key, Thing(owner=owner, rank=rank))

        def of(*match: Any, **how: Any) -> list[str]:
            return store.read(lambda tx: [r.key for r in tx.find(THINGS, "place", match, **how)], scope=[THINGS])

        assert of() == ["b", "a", "c", "d"]
        assert of("x") == ["b", "a", "c"]
        assert of("x", 2) == ["a", "c"]
        assert of("x", start=(0,)) == ["a", "c"]
        assert of("x", stop=(2,)) == ["b"]
        assert of("x", reverse=True, limit=2) == ["c", "a"]
        assert of("nobody") == []
        count = store.read(
            lambda tx: (tx.count(THINGS), tx.count(THINGS, "place"), tx.count(THINGS, "place", ("x",))), scope=[THINGS]
        )
        assert count == (5, 4, 3)

    def test_an_index_follows_its_record(self, store: Store) -> None:
        put(store, "a", Thing(owner="x"))
        put(store, "a", Thing(owner="y"))
        found = store.read(lambda tx: (tx.count(THINGS, "place", ("x",)), tx.count(THINGS, "place", ("y",))), scope=[THINGS])
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

    # --- hot paths ---

    @pytest.mark.parametrize("space", [THINGS, VOLATILE], ids=["durable", "volatile"])
    def test_put_new_is_all_or_none(self, store: Store, space: Space[Thing]) -> None:
        token = store.put_new(space, [("a", Thing(owner="x")), ("b", Thing(owner="x", rank=1))])
        assert token is not None
        assert store.put_new(space, [("c", Thing()), ("b", Thing())]) is None
        assert store.get(space, "c") is None
        found = [store.get(space, key) for key in ("a", "b")]
        assert [row and row.revision for row in found] == [token, token]
        assert store.read(lambda tx: [r.key for r in tx.find(space, "place", ("x",))], scope=[space]) == ["a", "b"]

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

    # --- bad input ---

    @pytest.mark.parametrize("key", ["", "a\0b", "x" * 1025, "é" * 513, "\ud800"])
    def test_keys_no_store_could_keep_are_refused(self, store: Store, key: str) -> None:
        with pytest.raises(InvalidName):
            put(store, key)
        with pytest.raises(InvalidName):
            store.put_new(THINGS, [("good", Thing()), (key, Thing())])
        assert store.read(lambda tx: tx.count(THINGS), scope=[THINGS]) == 0

    @pytest.mark.parametrize("key", ["..", "../a", "/etc/passwd", "a/../../b", "\U0001f600", "x" * 1024, "a'; --", "%s?"])
    def test_odd_keys_are_only_keys(self, store: Store, key: str) -> None:
        put(store, key, Thing(owner=key[:200]))
        assert [row.key for row in store.read(lambda tx: tx.range(THINGS), scope=[THINGS])] == [key]
        assert store.read(lambda tx: tx.count(THINGS, "place", (key[:200],)), scope=[THINGS]) == 1

    def test_a_record_over_the_bound_is_refused(self, store: Store) -> None:
        with pytest.raises(InvalidValue, match="bytes"):
            put(store, "a", Thing(owner="x" * RECORD_BYTES_MAX))
        with pytest.raises(InvalidValue, match="bytes"):
            store.transact(
                lambda tx: tx.append(actor="t", kind="k", subject="s", data={"x": "y" * ENTRY_BYTES_MAX}), scope=[THINGS]
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

    @pytest.mark.parametrize("cursor", ["junk", "-1", "1.2.3.4", "9" * 30, ("9" * 30) + ".0", "1.x", "٣.٣", ".", "\ud800"])
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
    def test_a_damaged_record_is_told_and_hides_no_other(self, harness: Harness, store: Store, data: bytes) -> None:
        put(store, "bad", Thing(owner="x"))
        put(store, "good", Thing(owner="x"))
        harness.damage(THINGS.name, "bad", data)
        with pytest.raises(RecordInvalid) as caught:
            store.get(THINGS, "bad")
        assert caught.value.fields["key"] == "bad"
        assert store.get(THINGS, "good") is not None
        put(store, "bad", Thing(owner="mended"))
        assert store.get(THINGS, "bad") is not None

    def test_a_damaged_record_holds_up_no_list_and_no_queue(self, harness: Harness, store: Store) -> None:
        for rank, key in enumerate(["first", "bad", "worse", "last"]):
            put(store, key, Thing(owner="x", rank=rank))
        for key in ("bad", "worse"):
            harness.damage(THINGS.name, key, b"{}}")
        with pytest.raises(RecordInvalid):
            store.read(lambda tx: tx.range(THINGS), scope=[THINGS])

        def look(tx: ReadTx, by_index: bool, told: list[Any]) -> list[str]:
            found = tx.find(THINGS, "place", ("x",), damaged=told) if by_index else tx.range(THINGS, damaged=told)
            return sorted(row.key for row in found)

        for by_index in (False, True):
            told: list[Any] = []
            assert store.read(lambda tx, b=by_index, t=told: look(tx, b, t), scope=[THINGS]) == ["first", "last"]  # type: ignore[misc]
            assert sorted(error.fields["key"] for error in told) == ["bad", "worse"]

        def take_sound(tx: Tx) -> tuple[str | None, int]:
            told: list[Any] = []
            row = tx.take_first(THINGS, "place", ("x",), damaged=told)
            if row is not None:
                tx.put(THINGS, row.key, Thing())
            return (row.key if row else None), len(told)

        assert [store.transact(take_sound, scope=[rows(THINGS)])[0] for _ in range(3)] == ["first", "last", None]
        assert store.transact(take_sound, scope=[rows(THINGS)]) == (None, 2)
        with pytest.raises(RecordInvalid):
            take(store)

    def test_a_newer_record_is_not_guessed_at(self, harness: Harness, store: Store) -> None:
        put(store, "a")
        harness.damage(THINGS.name, "a", b'{"schema_version": 2, "owner": "x"}')
        with pytest.raises(SchemaTooNew, match="newer"):
            store.get(THINGS, "a")

    # --- versions ---

    @needs(PERSISTENT)
    def test_an_older_record_is_upgraded_and_indexed_anew(self, harness: Harness, store: Store) -> None:
        put(store, "a", Thing(owner="x", rank=3))
        store.close()
        newer = harness.open()
        try:
            found = newer.read(lambda tx: tx.find(THINGS_V2, "colour", ("grey",)), scope=[THINGS_V2])
            assert [row.record for row in found] == [ThingV2(owner="x", rank=3, colour="grey")]
        finally:
            newer.close()

    @needs(PERSISTENT)
    def test_an_older_program_refuses_a_newer_store(self, harness: Harness, store: Store) -> None:
        store.transact(lambda tx: tx.put(THINGS_V2, "a", ThingV2(owner="x", rank=3, colour="red")), scope=[THINGS_V2])
        store.close()
        older = harness.open()
        try:
            with pytest.raises(SchemaTooNew):
                older.get(THINGS, "a")
            with pytest.raises(SchemaTooNew):
                put(older, "b")
        finally:
            older.close()

    # --- the journal ---

    def test_the_journal_is_read_from_a_cursor_without_gaps_or_repeats(self, store: Store) -> None:
        for i in range(7):
            append(store, f"s{i}", {"i": i})
        seen, cursor = [], BEGINNING
        while True:
            batch = store.journal(cursor, limit=3)
            if not batch.entries:
                break
            seen += batch.entries
            cursor = batch.cursor
        assert [entry.subject for entry in seen] == [f"s{i}" for i in range(7)]
        assert [entry.data for entry in seen] == [{"i": i} for i in range(7)]
        assert [entry.revision for entry in seen] == sorted({entry.revision for entry in seen})
        assert store.journal(cursor).entries == []
        append(store, "later")
        assert [entry.subject for entry in store.journal(cursor).entries] == ["later"]

    def test_the_journal_can_be_read_from_its_end(self, store: Store) -> None:
        for i in range(5):
            append(store, f"s{i}")
        batch = store.journal(limit=2, reverse=True)
        assert [entry.subject for entry in batch.entries] == ["s4", "s3"]
        append(store, "later")
        assert [entry.subject for entry in store.journal(batch.cursor).entries] == ["later"]

    def test_volatile_changes_are_journalled_too(self, store: Store) -> None:
        append(store, "durable")
        cursor = store.journal().cursor
        append(store, "volatile", space=VOLATILE)
        append(store, "durable again")
        batch = store.journal(cursor)
        assert {entry.subject for entry in batch.entries} == {"volatile", "durable again"}
        assert store.journal(batch.cursor).entries == []

    def test_several_entries_of_one_transaction_keep_their_order(self, store: Store) -> None:
        def body(tx: Tx) -> list[int]:
            first = tx.revision
            given = [tx.append(actor="t", kind="k", subject=str(i)) for i in range(3)]
            assert given[0] == first == tx.revision
            return given

        given = store.transact(body, scope=[THINGS])
        assert [(e.subject, e.revision) for e in store.journal().entries] == [(str(i), given[i]) for i in range(3)]
        assert put(store, "a") > given[-1]

    @needs(CLOCKED)
    def test_trim_keeps_what_is_asked_and_the_newest(self, harness: Harness, store: Store) -> None:
        for i in range(10):
            append(store, f"s{i}")
            harness.clock.advance(1)

        def trim(keep: int, age_s: float) -> int:
            from holdfast.kernel.clock import after

            return store.transact(lambda tx: tx.trim(keep=keep, before=after(tx.now, -age_s)), scope=[THINGS])

        assert trim(100, 1000) == 0
        assert trim(6, 1000) == 4
        assert [e.subject for e in store.journal().entries] == [f"s{i}" for i in range(4, 10)]
        assert trim(100, 3) == 3
        assert [e.subject for e in store.journal().entries] == ["s7", "s8", "s9"]
        last = store.journal().entries[-1].revision
        assert trim(1, 0.5) == 2
        assert put(store, "a") > last

    def test_a_read_of_the_journal_is_bounded(self, store: Store) -> None:
        def body(tx: Tx) -> None:
            for i in range(JOURNAL_READ_MAX + 5):
                tx.append(actor="t", kind="k", subject=str(i))

        store.transact(body, scope=[THINGS])
        batch = store.journal()
        assert len(batch.entries) == JOURNAL_READ_MAX
        assert len(store.journal(batch.cursor).entries) == 5

    # --- namespaces ---

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

    # --- waiting ---

    def test_a_notice_sent_before_the_wait_is_not_lost(self, store: Store) -> None:
        with store.listen(["topic"]) as ears:
            store.transact(lambda tx: tx.notify("topic"), scope=[THINGS])
            assert heard(ears)

    def test_a_notice_wakes_a_sleeper(self, store: Store) -> None:
        with store.listen(["topic"]) as ears, ThreadPoolExecutor(1) as pool:
            woken = pool.submit(heard, ears)
            store.transact(lambda tx: tx.notify("topic"), scope=[THINGS])
            assert woken.result(PATIENCE_S)

    def test_an_address_reaches_one_listener(self, store: Store) -> None:
        with store.listen() as one, store.listen() as two:
            assert one.address != two.address
            store.transact(lambda tx: tx.notify(one.address), scope=[VOLATILE])
            assert heard(one)
            assert not two.wait(0).notified

    def test_other_topics_do_not_wake(self, store: Store) -> None:
        with store.listen(["mine"]) as ears, store.listen(["other"]) as others:
            store.transact(lambda tx: tx.notify("other"), scope=[THINGS])
            assert heard(others)
            assert not ears.wait(0).notified

    def test_a_failed_transaction_wakes_no_one(self, store: Store) -> None:
        def body(tx: Tx) -> None:
            tx.notify("topic")
            raise KeyError

        with store.listen(["topic"]) as ears:
            with pytest.raises(KeyError):
                store.transact(body, scope=[THINGS])
            assert not ears.wait(0).notified

    def test_an_entry_notifies_the_journal_topic(self, store: Store) -> None:
        with store.listen([JOURNAL_TOPIC]) as ears:
            append(store, "s")
            assert heard(ears)

    def test_a_wait_also_watches_descriptors(self, store: Store) -> None:
        child = os.fork()
        if child == 0:
            signal.pause()
        pidfd = os.pidfd_open(child)
        try:
            with store.listen(["topic"]) as ears:
                assert ears.wait(0, also=[pidfd]).ready == frozenset()
                os.kill(child, signal.SIGKILL)
                while not (woken := ears.wait(PATIENCE_S, also=[pidfd])).ready:
                    assert not woken.notified
                assert woken.ready == {pidfd}
        finally:
            os.close(pidfd)
            os.waitpid(child, 0)

    # --- threads ---

    def test_threads_lose_no_update(self, store: Store) -> None:
        put(store, "sum")

        def work(_: int) -> None:
            for _ in range(25):
                increment(store)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        row = store.get(THINGS, "sum")
        assert row is not None and row.record.rank == 200

    def test_threads_take_each_record_once(self, store: Store) -> None:
        def fill(tx: Tx) -> None:
            for i in range(60):
                tx.put(THINGS, f"k{i:03}", Thing(owner="x", rank=i))

        store.transact(fill, scope=[THINGS])
        with ThreadPoolExecutor(6) as pool:
            taken = list(pool.map(lambda _: take_all(store), range(6)))
        assert sorted(key for keys in taken for key in keys) == [f"k{i:03}" for i in range(60)]
        for keys in taken:
            assert keys == sorted(keys)

    def test_only_one_thread_puts_new(self, store: Store) -> None:
        barrier = threading.Barrier(6)

        def race(_: int) -> int | None:
            barrier.wait(PATIENCE_S)
            return store.put_new(VOLATILE, [("a", Thing()), ("b", Thing())])

        with ThreadPoolExecutor(6) as pool:
            assert len([token for token in pool.map(race, range(6)) if token]) == 1

    def test_a_reader_sees_whole_transactions(self, store: Store) -> None:
        def write(value: int) -> None:
            def body(tx: Tx) -> None:
                tx.put(THINGS, "one", Thing(rank=value))
                tx.put(OTHERS, "two", Thing(rank=value))

            store.transact(body, scope=[THINGS, OTHERS])

        write(0)
        done = threading.Event()

        def look() -> int:
            looks = 0
            while not done.is_set() or not looks:
                pair = store.read(lambda tx: (tx.get(THINGS, "one"), tx.get(OTHERS, "two")), scope=[THINGS, OTHERS])
                assert pair[0] and pair[1] and pair[0].record.rank == pair[1].record.rank
                looks += 1
            return looks

        with ThreadPoolExecutor(2) as pool:
            looking = pool.submit(look)
            for value in range(1, 50):
                write(value)
            done.set()
            assert looking.result(PATIENCE_S) > 0

    @needs(LATCHED)
    def test_a_writer_whose_turn_does_not_come_is_told_so(self, store: Store) -> None:
        inside, leave = threading.Event(), threading.Event()

        def dawdle(tx: Tx) -> None:
            inside.set()
            leave.wait(PATIENCE_S)
            tx.put(THINGS, "slow", Thing())

        with ThreadPoolExecutor(1) as pool:
            slow = pool.submit(store.transact, dawdle, scope=[THINGS])
            assert inside.wait(PATIENCE_S)
            with pytest.raises(LockTimeout) as caught:
                store.transact(lambda tx: tx.put(THINGS, "a", Thing()), scope=[THINGS], timeout_s=0.05)
            assert caught.value.fields["outcome"] == "none"
            assert store.read(lambda tx: tx.count(THINGS), scope=[THINGS]) == 0
            leave.set()
            slow.result(PATIENCE_S)
        assert put(store, "b") > 0
        assert store.read(lambda tx: tx.count(THINGS), scope=[THINGS]) == 2

    # --- processes ---

    @needs(SHARED)
    def test_processes_lose_no_update(self, harness: Harness, store: Store) -> None:
        put(store, "sum")
        assert run_processes(4, _increment_much, harness) == [None] * 4
        row = store.get(THINGS, "sum")
        assert row is not None and row.record.rank == 80

    @needs(SHARED)
    def test_processes_take_each_record_once(self, harness: Harness, store: Store) -> None:
        for i in range(40):
            put(store, f"k{i:03}", Thing(owner="x", rank=i))
        taken = run_processes(4, _take_everything, harness)
        assert sorted(key for keys in taken for key in keys) == [f"k{i:03}" for i in range(40)]

    @needs(SHARED)
    def test_a_notice_reaches_another_process(self, harness: Harness, store: Store) -> None:
        with store.listen(["topic"]) as ears:
            run_processes(1, _notify, harness)
            assert heard(ears)

    @needs(SHARED)
    def test_an_address_reaches_its_listener_from_another_process(self, harness: Harness, store: Store) -> None:
        with store.listen() as ears:
            put(store, "address", Thing(owner=ears.address))
            run_processes(1, _notify_address, harness)
            assert heard(ears)

    @needs(SHARED)
    def test_a_killed_process_leaves_all_or_nothing_and_no_one_waiting(self, harness: Harness, store: Store) -> None:
        context = multiprocessing.get_context("fork")
        ready, started = context.Pipe(duplex=False)
        process = context.Process(target=_die_inside, args=(harness, started))
        process.start()
        started.close()
        assert ready.recv() == "inside"
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join(PATIENCE_S)
        assert put(store, "after") > 0
        assert store.get(THINGS, "half") is None

    @needs(SHARED)
    def test_a_store_works_on_after_fork_in_parent_and_child(self, store: Store) -> None:
        put(store, "sum")
        put(store, "vol", space=VOLATILE)
        with store.listen(["warm"]):
            pass
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for _ in range(10):
                    increment(store)
                put(store, "vol2", space=VOLATILE)
                with store.listen(["topic"]) as ears:
                    store.transact(lambda tx: tx.notify("topic"), scope=[THINGS])
                    status = 0 if heard(ears) else 2
                store.close()
            finally:
                os._exit(status)
        for _ in range(10):
            increment(store)
        assert os.waitpid(child, 0)[1] == 0
        row = store.get(THINGS, "sum")
        assert row is not None and row.record.rank == 20
        assert store.get(VOLATILE, "vol2") is not None

    # --- its life ---

    @needs(PERSISTENT)
    def test_records_outlive_the_store_object(self, harness: Harness, store: Store) -> None:
        revision = put(store, "a")
        append(store, "told")
        token = store.put_new(VOLATILE, [("lock", Thing())])
        store.close()
        again = harness.open()
        try:
            assert again.get(THINGS, "a") is not None
            assert again.get(VOLATILE, "lock") is not None
            assert [entry.subject for entry in again.journal().entries] == ["told"]
            assert put(again, "b") > revision
            later = again.put_new(VOLATILE, [("lock2", Thing())])
            assert token is not None and later is not None and later > token
        finally:
            again.close()

    def test_a_closed_store_says_so(self, store: Store) -> None:
        store.close()
        store.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            store.get(THINGS, "a")
        with pytest.raises(StoreUnavailable, match="closed"):
            put(store, "a")
        with pytest.raises(StoreUnavailable, match="closed"):
            store.listen(["topic"])


def put(store: Store, key: str, thing: Thing | None = None, *, space: Space[Thing] = THINGS) -> int:
    """Put one record and return its revision."""

    def body(tx: Tx) -> int:
        tx.put(space, key, thing or Thing())
        return tx.revision

    return store.transact(body, scope=[space])


def append(store: Store, subject: str, data: dict[str, Any] | None = None, *, space: Space[Thing] = THINGS) -> int:
    """Append one journal entry."""
    return store.transact(lambda tx: tx.append(actor="t", kind="k", subject=subject, data=data), scope=[space])


def increment(store: Store) -> None:
    """Read, add one, write: what a store without transactions would lose."""

    def body(tx: Tx) -> None:
        row = tx.get(THINGS, "sum")
        assert row is not None
        tx.put(THINGS, "sum", Thing(rank=row.record.rank + 1))

    store.transact(body, scope=[THINGS])


def take(store: Store) -> str | None:
    """Take the first of owner x and make it nobody's."""

    def body(tx: Tx) -> str | None:
        row = tx.take_first(THINGS, "place", ("x",))
        if row is None:
            return None
        tx.put(THINGS, row.key, Thing(owner="nobody", rank=row.record.rank))
        return row.key

    return store.transact(body, scope=[rows(THINGS)])


def take_all(store: Store) -> list[str]:
    """Take until nothing is left."""
    taken = []
    while (key := take(store)) is not None:
        taken.append(key)
    return taken


def heard(ears: Any) -> bool:
    """Wait until the listener is notified; False when it never is."""
    waited_s = 0.0
    while waited_s < PATIENCE_S:
        if ears.wait(1.0).notified:
            return True
        waited_s += 1.0
    return False


def run_processes(number: int, work: Callable[[Any], Any], harness: Harness) -> list[Any]:
    """Run the work in that many new processes at once and return what each returned."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(number) as pool:
        return pool.map_async(work, [harness] * number, chunksize=1).get(4 * PATIENCE_S)


def _increment_much(harness: Harness) -> None:
    store = harness.open()
    for _ in range(20):
        increment(store)
    store.close()


def _take_everything(harness: Harness) -> list[str]:
    store = harness.open()
    taken = take_all(store)
    store.close()
    return taken


def _notify(harness: Harness) -> None:
    store = harness.open()
    store.transact(lambda tx: tx.notify("topic"), scope=[THINGS])
    store.close()


def _notify_address(harness: Harness) -> None:
    store = harness.open()
    row = store.get(THINGS, "address")
    assert row is not None
    store.transact(lambda tx: tx.notify(row.record.owner), scope=[THINGS])
    store.close()


def _die_inside(harness: Harness, started: Any) -> None:
    store = harness.open()

    def body(tx: Tx) -> None:
        tx.put(THINGS, "half", Thing())
        started.send("inside")
        signal.pause()

    store.transact(body, scope=[THINGS])
