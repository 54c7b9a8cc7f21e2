"""kill -9 at every fault point: all or nothing, every time, and nobody waits for the dead."""

import secrets
import shutil
from functools import partial
from pathlib import Path

import pytest

from holdfast.kernel.space import Space
from holdfast.kernel.store import Store, Tx
from holdfast.primitives.journal import Journal
from holdfast.stores.sqlite import maintenance
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing import faults
from holdfast.testing.conformance.harness import OTHERS, THINGS, VOLATILE, Thing, put
from tests.harness.children import dies_at, kill_while_busy

pytestmark = pytest.mark.prove


def _open(path: Path) -> SqliteStore:
    return SqliteStore(path, boot_id="boot-1")


def _step(store: Store, value: int, spaces: tuple[Space[Thing], ...]) -> None:
    """Bring several records in several spaces, and the journal, from one value to the next."""

    def body(tx: Tx) -> None:
        for space in spaces:
            for key in ("a", "b"):
                tx.put(space, key, Thing(owner="x", rank=value))
        tx.delete(spaces[0], f"old-{value - 1}")
        tx.put(spaces[0], f"old-{value}", Thing())
        tx.append(actor="t", kind="step", subject=str(value))
        tx.notify("topic")

    store.transact(body, scope=list(spaces))


def _state(path: Path, spaces: tuple[Space[Thing], ...]) -> int:
    """The one value that everything shows; anything torn fails here."""
    store = _open(path)
    try:
        values = {
            row.record.rank
            for space in spaces
            for key in ("a", "b")
            if (row := store.get(space, key))
        }
        assert len(values) == 1, f"torn: {values}"
        value = values.pop()
        batches = Journal(store, actor="t").since()
        logged = [
            int(entry.subject)
            for batch in batches
            for entry in batch.entries
            if entry.kind == "step"
        ]
        assert logged[-1] == value, "the journal tells something else"
        assert logged == sorted(set(logged)), "a step was logged twice"
        old = store.read(
            lambda tx: [row.key for row in tx.range(spaces[0], prefix="old-")], scope=[spaces[0]]
        )
        assert old == [f"old-{value}"]
        assert store.administration.check([THINGS, OTHERS]) == []
        return value
    finally:
        store.close()


@pytest.mark.parametrize("spaces", [(THINGS, OTHERS), (VOLATILE,)], ids=["durable", "volatile"])
def test_a_transaction_over_several_records_killed_at_every_point(
    tmp_path: Path, spaces: tuple[Space[Thing], ...]
) -> None:
    path = tmp_path / "store.sqlite"
    store = _open(path)
    _step(store, 1, spaces)
    points = faults.recorded(lambda: _step(store, 2, spaces))
    store.close()
    assert {
        "sqlite.gate.before",
        "sqlite.write",
        "sqlite.commit.before",
        "sqlite.commit.after",
        "sqlite.notify.after",
    } <= set(points)

    value, committed = 2, points.index("sqlite.commit.after")

    def work() -> None:
        mine = _open(path)
        _step(mine, value + 1, spaces)

    # The child also opens the store, which reaches no point of its own once its tables exist.
    for at in range(len(points) + 1):
        killed = dies_at(work, at)
        assert killed == (at < len(points))
        now = _state(path, spaces)
        assert now == (value + 1 if at >= committed else value), f"killed at {points[at : at + 1]}"
        value = now


def test_the_first_opening_killed_at_every_point(tmp_path: Path) -> None:
    at, killed = 0, True
    while killed:
        path = tmp_path / str(at) / "store.sqlite"

        def work(path: Path = path) -> None:
            _step(_open(path), 1, (THINGS, OTHERS))
            put(_open(path), "lock", space=VOLATILE)

        killed = dies_at(work, at)
        store = _open(path)
        tokens = [put(store, "x"), put(store, "y", space=VOLATILE)]
        assert store.administration.check([THINGS, OTHERS]) == []
        store.close()
        again = _open(path)
        assert put(again, "x") > tokens[0]
        assert put(again, "y", space=VOLATILE) > tokens[1]
        again.close()
        at += 1
    assert at > 20


def test_a_restore_killed_at_every_point(tmp_path: Path) -> None:
    """The old or the new store is in place, and what is gone from there is in a saved copy,
    whole.
    """
    path, saved = tmp_path / "store.sqlite", tmp_path / "saved.sqlite"
    store = _open(path)
    _step(store, 1, (THINGS, OTHERS))
    store.administration.backup([], saved)
    _step(store, 2, (THINGS, OTHERS))
    store.close()
    at, killed = 0, True
    while killed:
        killed = dies_at(lambda: maintenance.restore(path, saved, boot_id="boot-1"), at)
        now = _state(path, (THINGS, OTHERS))
        copies = [_state_of_copy(copy) for copy in tmp_path.glob("store.sqlite.replaced-*")]
        assert now == 2 or (now == 1 and 2 in copies), (
            f"killed at {at}: {now} in place, {copies} saved"
        )
        at += 1
    assert _state(path, (THINGS, OTHERS)) == 1
    assert at > 3


def test_a_restore_over_a_damaged_store_killed_at_every_point(tmp_path: Path) -> None:
    """The damaged store is in place, or saved as it was and the new one in its place."""
    path, saved = tmp_path / "store.sqlite", tmp_path / "saved.sqlite"
    store = _open(path)
    _step(store, 1, (THINGS, OTHERS))
    store.administration.backup([], saved)
    store.close()
    at, killed = 0, True
    while killed:
        damaged = b"SQLite format 3\0" + f"junk {at}".encode() * 4000
        path.write_bytes(damaged)
        killed = dies_at(lambda: maintenance.restore(path, saved, boot_id="boot-1"), at)
        if path.read_bytes() != damaged:
            assert damaged in [copy.read_bytes() for copy in tmp_path.glob("*.replaced-*")], (
                f"killed at {at}"
            )
        at += 1
    assert _state(path, (THINGS, OTHERS)) == 1
    assert at > 2


def _state_of_copy(copy: Path) -> int:
    """Of a saved store, which is opened as a copy since opening it makes files beside it."""
    return _state(
        Path(shutil.copy(copy, copy.with_name(f"opened-{secrets.token_hex(4)}.sqlite"))),
        (THINGS, OTHERS),
    )


def test_a_hundred_kills_at_random_moments_under_load(tmp_path: Path) -> None:
    """Children write until they are killed from outside, at whatever instruction that is."""
    path = tmp_path / "store.sqlite"
    store = _open(path)
    _step(store, 1, (THINGS, OTHERS))
    store.close()
    value = 1
    for turn in range(50):
        # After another number of commits each time.
        kill_while_busy(lambda: partial(_advance, _open(path)), 1 + turn % 5)
        now = _state(path, (THINGS, OTHERS))
        assert now > value
        value = now


def _advance(store: Store) -> None:
    """One step from the current state, read in the same transaction."""

    def body(tx: Tx) -> None:
        row = tx.get(THINGS, "a")
        assert row is not None
        value = row.record.rank + 1
        for space in (THINGS, OTHERS):
            for key in ("a", "b"):
                tx.put(space, key, Thing(owner="x", rank=value))
        tx.delete(THINGS, f"old-{value - 1}")
        tx.put(THINGS, f"old-{value}", Thing())
        tx.append(actor="t", kind="step", subject=str(value))

    store.transact(body, scope=[THINGS, OTHERS])
