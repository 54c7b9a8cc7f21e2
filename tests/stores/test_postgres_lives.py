"""Lives of a server: what it forgets when it crashes, is restored or replaced, and what must not
come of that.
"""

import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest

from holdfast.kernel import token
from holdfast.kernel.errors import StoreUnavailable
from holdfast.kernel.store import Tx
from holdfast.stores.postgres import attempt, open_postgres, schema
from holdfast.stores.postgres.connection import CallDeadline, PostgresConnection
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing.conformance.harness import PATIENCE_S, THINGS, Thing, append, put
from tests.stores import postgres_server as servers
from tests.stores.postgres_server import Server, running

pytestmark = pytest.mark.prove


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server of this module's own, that it may stop and crash."""
    with running() as server:
        yield server


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    url = server.database()
    yield url
    server.drop(url)


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    with closing(open_postgres(url)) as store:
        yield store


def life_of(store: PostgresStore) -> int:
    return store.connections.run(lambda raw: raw.incarnation, CallDeadline.after(PATIENCE_S))


def subjects(store: PostgresStore, cursor: str = "") -> list[str]:
    return [entry.subject for entry in store.journal(cursor).entries]


def test_an_ordinary_restart_begins_no_new_incarnation(
    server: Server, store: PostgresStore
) -> None:
    before, revision = life_of(store), put(store, "a")
    server.stop()
    server.start()
    assert put(store, "b") > revision
    assert life_of(store) == before


def test_after_a_crash_tokens_are_of_a_new_era_and_a_follower_goes_on(
    server: Server, store: PostgresStore
) -> None:
    append(store, "before")
    cursor, revision, before = store.journal().cursor, put(store, "a"), life_of(store)
    server.crash()
    server.start()
    assert token.era(put(store, "b")) > token.era(revision)
    assert life_of(store) > before
    append(store, "after")
    assert subjects(store, cursor) == ["after"]
    assert subjects(store) == ["before", "after"]


def test_a_follower_skips_no_entry_whose_transaction_has_a_number_that_was_given_before(
    store: PostgresStore, url: str
) -> None:
    """As after a crash that lost what a follower had seen: what comes then has smaller numbers than
    its cursor.
    """
    append(store, "seen")
    cursor = store.journal().cursor
    with psycopg.connect(url) as raw:
        raw.execute("UPDATE holdfast.journal SET xid = (xid::text::bigint + 1000)::text::xid8")
        raw.execute("TRUNCATE holdfast.life")
    journal, era, xid, revision = cursor.split(".")
    with closing(open_postgres(url)) as after:
        append(after, "new")
        assert subjects(after, f"{journal}.{era}.{int(xid) + 1000}.{revision}") == ["new"]


def test_the_number_of_a_lost_transaction_is_not_taken_for_that_of_another(
    store: PostgresStore,
) -> None:
    """A crash takes a transaction that was never written, and its number is given to one that is
    committed.
    """
    put(store, "a")

    def look(raw: PostgresConnection) -> list[str | None]:
        began = int(raw.execute("SELECT xid::text FROM holdfast.life").fetchall()[0][0])
        reused = raw.execute("BEGIN; SELECT pg_current_xact_id()::text")
        reused.nextset()
        number = reused.fetchall()[0][0]
        raw.execute("COMMIT")
        assert raw.execute("SELECT pg_xact_status(%s::xid8)", (number,)).fetchall() == [
            ("committed",)
        ]
        future = str(int(number) + 1_000_000)
        return [
            schema.fate(raw, number, raw.incarnation),
            schema.fate(raw, number, raw.incarnation - 1),
            schema.fate(raw, future, raw.incarnation - 1),
            schema.fate(raw, str(began - 1), raw.incarnation - 1),
        ]

    fates = store.connections.run(look, CallDeadline.after(PATIENCE_S))
    assert fates == ["committed", "aborted", "aborted", "committed"]


@pytest.mark.parametrize("flushed", [True, False])
def test_a_commit_in_doubt_at_a_crash_is_decided_by_what_survived(
    server: Server, store: PostgresStore, flushed: bool
) -> None:
    """The server crashes when it has the commit and before it answers; what it had not flushed is
    gone.
    """
    put(store, "sum", Thing(rank=0))
    runs: list[int] = []

    def run(raw: PostgresConnection) -> attempt.RunResult[int]:
        runs.append(1)
        raw.execute("BEGIN")
        xid = raw.execute("SELECT pg_current_xact_id()::text").fetchall()[0][0]
        raw.execute(f"UPDATE holdfast.s_{THINGS.name} SET rev = rev + 1".encode())
        if len(runs) > 1:
            raw.execute("COMMIT")
            return attempt.RunResult(len(runs))
        raw.execute("COMMIT" if flushed else "ROLLBACK")
        server.crash()
        server.start()
        return attempt.RunResult(len(runs), attempt.Doubt(xid, raw.incarnation))

    before = store.get(THINGS, "sum")
    assert attempt.run_to_end(store.connections, run, CallDeadline.after(PATIENCE_S)) == (
        1 if flushed else 2
    )
    after = store.get(THINGS, "sum")
    assert before is not None and after is not None and after.revision == before.revision + 1


def test_a_restored_dump_gives_no_token_again_and_shows_its_whole_journal(
    server: Server, store: PostgresStore, url: str
) -> None:
    found = servers.binaries()
    assert found is not None
    for i in range(3):
        append(store, f"s{i}")
    put(store, "a")
    dump = subprocess.run(
        [found / "pg_dump", "-n", "holdfast", "-d", url], check=True, capture_output=True
    ).stdout
    lost = put(store, "given after the dump")
    target = server.database()
    restore = [str(found / "psql"), "-q", "-v", "ON_ERROR_STOP=1", "-d", target]
    subprocess.run(restore, input=dump, check=True, capture_output=True)
    with psycopg.connect(target) as raw:
        # As if the dump came from a server that had counted much further.
        raw.execute("UPDATE holdfast.journal SET xid = (xid::text::bigint + 1000000)::text::xid8")
    with closing(open_postgres(target)) as restored:
        assert subjects(restored) == ["s0", "s1", "s2"]
        cursor = restored.journal().cursor
        assert put(restored, "b") > lost
        append(restored, "new")
        assert subjects(restored, cursor) == ["new"]
    server.drop(target)


def test_new_tables_of_an_older_layout_are_brought_up(store: PostgresStore, url: str) -> None:
    """The first layout knew no lives."""
    append(store, "old")
    with psycopg.connect(url) as raw:
        raw.execute("DROP TABLE holdfast.life")
        raw.execute("DROP INDEX holdfast.journal_order")
        raw.execute("ALTER TABLE holdfast.journal DROP COLUMN life")
        raw.execute("CREATE INDEX journal_order ON holdfast.journal (ns, xid, revision)")
        raw.execute("UPDATE holdfast.meta SET number = 1 WHERE name = 'layout'")
        raw.execute("DELETE FROM holdfast.meta WHERE name = 'journal'")
    with closing(open_postgres(url)) as newer:
        append(newer, "new")
        assert subjects(newer) == ["old", "new"]


def test_many_that_open_a_new_database_at_once_make_one_store(server: Server) -> None:
    for _ in range(4):
        url, barrier = server.database(), threading.Barrier(6)

        def begin(number: int, url: str = url, barrier: threading.Barrier = barrier) -> int:
            barrier.wait(PATIENCE_S)
            with closing(open_postgres(url)) as store:
                return put(store, f"k{number}")

        with ThreadPoolExecutor(6) as pool:
            revisions = list(pool.map(begin, range(6)))
        assert len(set(revisions)) == 6
        assert len({token.era(revision) for revision in revisions}) == 1
        server.drop(url)


def test_a_read_only_host_among_several_is_not_used(
    server: Server, url: str, store: PostgresStore
) -> None:
    name = url.partition("@/")[2].partition("?")[0]
    with psycopg.connect(server.url, autocommit=True) as raw:
        raw.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on".encode())

    def body(tx: Tx) -> None:
        tx.put(THINGS, "a", Thing())

    with closing(open_postgres(url)) as reading:
        # Alone it is taken: what says READ WRITE may write there all the same.
        reading.transact(body, scope=[THINGS])
    with (
        pytest.raises(StoreUnavailable, match="read-only"),
        closing(open_postgres(f"{url},{server.folder}")),
    ):
        pass
