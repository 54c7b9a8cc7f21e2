"""What a call costs does not grow with the store: counted in records that are decoded, in processes
that are probed and in steps of SQLite, never in time.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import holdfast
from holdfast.domains.agents import Agent
from holdfast.kernel.holder import Holder, Liveness, Processes, probe
from holdfast.kernel.limits import JOURNAL_KEEP_LEAST, JOURNAL_READ_MAX, JOURNAL_TRIM_MAX
from holdfast.kernel.space import Space
from holdfast.kernel.store import Tx
from holdfast.primitives.journal import Journal
from holdfast.primitives.locks import inspect
from holdfast.stores.sqlite.store import SqliteStore

OLD = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[holdfast.Holdfast]:
    with holdfast.connect(f"sqlite:{tmp_path}/store.sqlite") as connection:
        yield connection


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], int]:
    """Counts the records that a call decodes."""
    count = 0
    decode = Space.decode

    def counted(self: Space[holdfast.Job], key: str, data: bytes | str) -> holdfast.Job:
        nonlocal count
        count += 1
        return decode(self, key, data)

    monkeypatch.setattr(Space, "decode", counted)

    def number_of(call: Callable[[], object]) -> int:
        nonlocal count
        count = 0
        call()
        return count

    return number_of


def steps_of(store: SqliteStore, call: Callable[[], object]) -> int:
    """The steps of SQLite in a call, in hundreds. The store's next transaction uses the connection
    that was returned last.
    """
    count = 0

    def step() -> None:
        nonlocal count
        count += 1

    with store.durable.lend() as connection:
        connection.raw.set_progress_handler(step, 100)
    call()
    with store.durable.lend() as connection:
        connection.raw.set_progress_handler(None, 0)
    return count


# --- the journal


def append(store: SqliteStore, number: int, subject: str = "s") -> None:
    def body(tx: Tx) -> None:
        for _ in range(number):
            tx.append(actor="t", kind="k", subject=subject)

    store.transact(body, scope=[], durable=False)


def trim(store: SqliteStore, keep: int) -> int:
    return store.transact(
        lambda tx: tx.trim(keep=keep, before=OLD, least=JOURNAL_KEEP_LEAST), scope=[]
    )


def test_a_trim_of_a_long_journal_takes_no_more_steps(tmp_path: Path) -> None:
    """It read the whole journal twice inside the gate: 120 ms with a million entries."""
    with closing(SqliteStore(tmp_path / "store.sqlite", boot_id="boot-1")) as store:
        steps = []
        for size in (JOURNAL_TRIM_MAX, 10 * JOURNAL_TRIM_MAX):
            append(store, size)
            trim(store, 100 * JOURNAL_TRIM_MAX)
            append(store, 5)
            steps.append(steps_of(store, lambda: trim(store, 100 * JOURNAL_TRIM_MAX)))
        assert steps[1] <= 1.1 * steps[0], steps


def test_a_trim_counts_anew_what_another_program_has_trimmed(tmp_path: Path) -> None:
    """A program that does not note the number of entries may use the store too. By the number that
    was noted, entries within the bound would be dropped.
    """
    path = tmp_path / "store.sqlite"
    with closing(SqliteStore(path, boot_id="boot-1")) as store:
        append(store, 20)
        assert trim(store, 15) == 5
        raw = sqlite3.connect(path)
        raw.execute("DELETE FROM journal WHERE revision <= (SELECT min(revision) + 7 FROM journal)")
        raw.commit()
        raw.close()
        append(store, 4)
        assert trim(store, 15) == 0
        append(store, 6)
        assert trim(store, 15) == 2


def test_each_namespace_counts_its_own_entries(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with (
        closing(SqliteStore(path, boot_id="boot-1")) as one,
        closing(SqliteStore(path, boot_id="boot-1", namespace="other")) as other,
    ):
        for _ in range(3):
            append(one, 4)
            append(other, 2)
        assert (trim(one, 10), trim(other, 10)) == (2, 0)
        append(other, 7)
        assert (trim(one, 10), trim(other, 10)) == (0, 3)
        assert len(one.journal().entries) == len(other.journal().entries) == 10


def test_recent_entries_are_found_from_the_end(
    hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole journal was read: 4 s with a million entries, for the last one of a subject."""
    store = hf.store
    assert isinstance(store, SqliteStore)
    append(store, 3 * JOURNAL_READ_MAX)
    append(store, 1, "rare")
    limits = []
    journal = store.journal

    def noted(cursor: str = "", *, limit: int = JOURNAL_READ_MAX, reverse: bool = False) -> object:
        limits.append(limit)
        return journal(cursor, limit=limit, reverse=reverse)

    monkeypatch.setattr(store, "journal", noted)
    [rare], _ = hf.log.chosen(subject="rare", limit=1)
    assert (rare.subject, limits) == ("rare", [JOURNAL_READ_MAX])
    later = rare.at + timedelta(seconds=1)
    assert (hf.log.chosen(begin=later)[0], limits) == ([], [JOURNAL_READ_MAX] * 2)


def test_entries_far_from_the_end_are_found_too(
    hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.primitives.journal.JOURNAL_READ_MAX", 4)
    monkeypatch.setattr("holdfast.primitives.journal.JOURNAL_SEARCHED_MAX", 16)
    store = hf.store
    assert isinstance(store, SqliteStore)
    for number in range(3):
        append(store, 1, f"rare-{number}")
        append(store, 10)
    for number, wanted in ((0, 1), (1, 1), (2, 1), (2, 2)):
        found, cursor = hf.log.chosen(subject=f"rare-{number}", limit=wanted)
        assert [entry.subject for entry in found] == [f"rare-{number}"]
        assert store.journal(cursor).entries == []
    whole = Journal(store, actor="t").tail(100)[0]
    assert hf.log.chosen(begin=whole[0].at)[0] == whole
    assert hf.log.chosen(begin=whole[-5].at)[0][-5:] == whole[-5:]


# --- lists


def test_a_list_reads_few_jobs_of_each_queue(
    hf: holdfast.Holdfast, decoded: Callable[[Callable[[], object]], int]
) -> None:
    """It read 256 jobs of each queue to return the newest: 150 ms with a hundred queues."""
    for number in range(60):
        hf.jobs.register_job("p", agent="a", agent_session=f"queue-{number % 3}")
    assert decoded(lambda: hf.jobs.list_jobs(limit=2)) <= 20
    assert len(hf.jobs.list_jobs()) == 60


def agent(hf: holdfast.Holdfast, name: str) -> Agent:
    return hf.agents.publish(
        name, backend="claude_headless", tool="claude", manifest_path="/m.json"
    )


def test_a_short_list_reads_few_agents(
    hf: holdfast.Holdfast, decoded: Callable[[Callable[[], object]], int]
) -> None:
    for number in range(20):
        agent(hf, f"agent-{number:02}")
    assert decoded(lambda: hf.agents.list_agents(limit=3)) == 3
    assert len(hf.agents.list_agents()) == 20


def test_locks_of_one_process_are_listed_with_one_probe_and_one_read(
    hf: holdfast.Holdfast,
    decoded: Callable[[Callable[[], object]], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each row was read twice and its process probed again."""
    for number in range(10):
        hf.locks.acquire(f"lock-{number}", by=f"job-{number}")
    probed: list[object] = []

    def noted(process: Holder, processes: Processes, *, embedded: bool) -> Liveness:
        probed.append(process)
        return probe(process, processes, embedded=embedded)

    monkeypatch.setattr(inspect, "probe", noted)
    listed = hf.locks.list_held()
    assert [status.holds[0].process.pid for status in listed if status.holds[0].process] == (
        [os.getpid()] * 10
    )
    assert len(probed) == 1
    assert decoded(hf.locks.list_held) == 10
    assert decoded(lambda: hf.locks.page(limit=5)) == 6


def test_a_lock_is_renewed_by_its_token_without_a_search(
    hf: holdfast.Holdfast, decoded: Callable[[Callable[[], object]], int], tmp_path: Path
) -> None:
    """All rows were read for each renewal over HTTP: 28 ms with ten thousand locks."""
    for number in range(20):
        hf.locks.acquire(f"lock-{number}", by=f"job-{number}")
    tokens = [hf.locks.acquire(name, by="job", process=None, ttl_s=60).token for name in "ab"]
    assert decoded(lambda: hf.locks.renew_token(tokens[0])) < 10
    with holdfast.connect(f"sqlite:{tmp_path}/store.sqlite") as other:
        assert decoded(lambda: other.locks.renew_token(tokens[0])) > 20
        assert decoded(lambda: other.locks.renew_token(tokens[1])) < 10
        assert other.locks.release_token(tokens[0])
    assert not hf.locks.release_token(tokens[0])
    assert hf.locks.acquire("a", by="other").token != tokens[0]


def test_a_new_listener_probes_few_of_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process that began to wait opened the FIFOs of all others: 9 ms with a thousand."""
    path = tmp_path / "store.sqlite"
    with (
        closing(SqliteStore(path, boot_id="boot-1")) as one,
        closing(SqliteStore(path, boot_id="boot-1")) as other,
        ExitStack() as stack,
    ):
        for _ in range(100):
            stack.enter_context(one.listen(["topic"]))
        opened: list[object] = []
        opening = os.open

        def noted(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            opened.append(path)
            return opening(path, flags, mode, dir_fd=dir_fd)

        monkeypatch.setattr(os, "open", noted)
        with other.listen():
            assert len(opened) < 80


def test_what_many_killed_listeners_left_goes_with_time(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with closing(SqliteStore(path, boot_id="boot-1")) as store, ExitStack() as stack:
        stack.enter_context(store.listen())
        folder = tmp_path / "store.sqlite-wake"
        left = [folder / f"99-{number:012x}" for number in range(100)]
        for fifo in left:
            os.mkfifo(fifo, 0o600)
        for _ in range(100):
            stack.enter_context(store.listen())
        assert not [fifo for fifo in left if fifo.exists()]
