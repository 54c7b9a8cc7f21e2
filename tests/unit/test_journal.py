"""The journal: written in the transaction, redacted, kept within bounds, followed without gaps."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from holdfast.kernel.errors import InvalidName
from holdfast.kernel.limits import JOURNAL_TRIM_EVERY
from holdfast.kernel.settings import JournalSettings
from holdfast.kernel.store import Batch
from holdfast.operations.log import ReadLog, read
from holdfast.primitives.journal import REDACTED, Journal, redacted
from holdfast.runtime.connection import Holdfast
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture
def journal(store: MemoryStore) -> Journal:
    return Journal(store, actor="me/1", keep=JournalSettings(keep_entries=100, keep_s=3600))


def tell(store: MemoryStore, journal: Journal, subject: str, **data: object) -> int:
    return store.transact(
        lambda tx: journal.append(tx, kind="k", subject=subject, data=data), scope=[]
    )


def subjects(batches: Iterator[Batch]) -> list[str]:
    return [entry.subject for batch in batches for entry in batch.entries]


def test_an_entry_has_actor_time_and_kind(
    store: MemoryStore, journal: Journal, clock: ManualClock
) -> None:
    revision = tell(store, journal, "s", n=1)
    [entry], _ = journal.tail(10)
    assert (entry.revision, entry.at, entry.actor, entry.kind, entry.subject) == (
        revision,
        clock.now(),
        "me/1",
        "k",
        "s",
    )
    assert entry.data == {"n": 1}


def test_secrets_never_reach_it(store: MemoryStore, journal: Journal) -> None:
    tell(
        store,
        journal,
        "s",
        broker={"host": "h", "Password": "hunter2"},
        hops=[{"auth_token": "t0ken"}],
        password=None,
    )
    [entry], _ = journal.tail(1)
    assert entry.data == {
        "broker": {"host": "h", "Password": REDACTED},
        "hops": [{"auth_token": REDACTED}],
        "password": None,
    }
    assert redacted("plain") == "plain"


def test_a_claims_token_is_no_secret() -> None:
    assert redacted({"token": 5}) == {"token": 5}


def test_an_actor_must_be_a_label(store: MemoryStore) -> None:
    with pytest.raises(InvalidName):
        Journal(store, actor="two\nlines")


def test_an_age_is_counted_by_the_clock_of_the_store(
    store: MemoryStore, journal: Journal, clock: ManualClock
) -> None:
    """Entries have its times. The clock of the caller's machine may be another one."""
    tell(store, journal, "old")
    clock.advance(3600)
    tell(store, journal, "new")
    hf = cast("Holdfast", SimpleNamespace(store=store, log=journal))
    assert [entry.subject for entry in read(hf, ReadLog(since="90s"))] == ["new"]


def test_tail_is_oldest_first_and_its_cursor_goes_on(store: MemoryStore, journal: Journal) -> None:
    for n in range(5):
        tell(store, journal, str(n))
    entries, cursor = journal.tail(2)
    assert [entry.subject for entry in entries] == ["3", "4"]
    assert subjects(journal.since(cursor)) == []
    tell(store, journal, "5")
    assert subjects(journal.since(cursor)) == ["5"]


def test_it_keeps_itself_within_its_bounds(store: MemoryStore, journal: Journal) -> None:
    for n in range(JOURNAL_TRIM_EVERY + 150):
        tell(store, journal, str(n))
    kept = subjects(journal.since())
    assert 100 <= len(kept) < JOURNAL_TRIM_EVERY
    assert kept[-1] == str(JOURNAL_TRIM_EVERY + 149)


def test_prune_drops_by_age_and_number_and_keeps_the_newest(
    store: MemoryStore, journal: Journal, clock: ManualClock
) -> None:
    for n in range(10):
        tell(store, journal, str(n))
    assert journal.prune(keep_entries=4) == 6
    clock.advance(3601)
    tell(store, journal, "new")
    assert journal.prune() == 0
    assert journal.prune(keep_s=3600) == 4
    assert subjects(journal.since()) == ["new"]
    clock.advance(9999)
    assert journal.prune(keep_s=0) == 0


@pytest.mark.parametrize("keep_s", [1e11, 1e300])
def test_an_age_beyond_the_calendar_keeps_everything(store: MemoryStore, keep_s: float) -> None:
    """One change in a thousand, whatever it was, failed with an error of Python's own."""
    journal = Journal(store, actor="me/1", keep=JournalSettings(keep_s=keep_s))
    tell(store, journal, "first")
    tell(store, journal, "second")
    assert journal.prune() == 0
    assert journal.prune(keep_entries=1) == 1


def test_follow_yields_what_is_there_and_then_what_comes(
    store: MemoryStore, journal: Journal
) -> None:
    tell(store, journal, "before")
    following = journal.follow()
    assert [entry.subject for entry in next(following).entries] == ["before"]
    writer = threading.Thread(target=lambda: tell(store, journal, "after"))
    writer.start()
    assert [entry.subject for entry in next(following).entries] == ["after"]
    writer.join()


def test_follow_ends_with_its_time(journal: Journal) -> None:
    assert list(journal.follow(timeout_s=0.01)) == []


def test_follow_repeats_nothing_after_a_wait(store: MemoryStore, journal: Journal) -> None:
    tell(store, journal, "once")
    assert subjects(journal.follow(timeout_s=0.01)) == ["once"]
