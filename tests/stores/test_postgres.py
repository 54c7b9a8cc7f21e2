"""What only a database across a network can do to a store."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from operator import methodcaller
from typing import Any

import psycopg
import pytest

from holdfast import connect
from holdfast.kernel.errors import (
    InvalidValue,
    LockTimeout,
    RecordInvalid,
    SchemaTooNew,
    StoreUnavailable,
    Unavailable,
)
from holdfast.kernel.limits import TRANSACT_TIMEOUT_S
from holdfast.kernel.space import rows
from holdfast.kernel.store import BEGINNING, JOURNAL_TOPIC, Tx
from holdfast.stores.postgres import calls, connection, connections, latches, open_postgres, schema
from holdfast.stores.postgres.address import DatabaseUrl
from holdfast.stores.postgres.connection import TRUSTED_S, PostgresConnection, ServerClock
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing import faults
from holdfast.testing.conformance.harness import (
    OTHERS,
    PATIENCE_S,
    THINGS,
    Thing,
    append,
    heard,
    increment,
    put,
    take_all,
)
from tests.harness.errors import raises
from tests.harness.timeouts import NEVER_S, until
from tests.stores import postgres_server
from tests.stores.harnesses_postgres import be_patient
from tests.stores.postgres_proxy import Proxy
from tests.stores.postgres_server import Server, running

pytestmark = pytest.mark.prove

SECRET = "s3cr3t-w0rd"


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    with closing(open_postgres(postgres_url)) as store:
        yield store


@pytest.fixture
def proxy(postgres_server: Server) -> Iterator[Proxy]:
    with closing(Proxy(postgres_server.folder)) as proxy:
        yield proxy


@pytest.fixture
def distant(postgres_server: Server, postgres_url: str, proxy: Proxy) -> Iterator[PostgresStore]:
    """A store behind the proxy, on the same database as `store`."""
    with closing(
        open_postgres(postgres_url.replace(str(postgres_server.folder), str(proxy.folder)))
    ) as store:
        put(store, "sum")
        yield store


def terminate(url: str) -> int:
    """End all sessions of a database from the server's side, and return how many there were."""
    with psycopg.connect(url, autocommit=True) as connection:
        return len(
            connection.execute(
                "SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()",
                (int(PATIENCE_S * 1000),),
            ).fetchall()
        )


def once(action: Any) -> Any:
    """An action of a fault point that happens the first time only."""
    done: list[str] = []

    def act(point: str) -> None:
        if not done:
            done.append(point)
            action()

    return act


def total(store: PostgresStore) -> int:
    row = store.get(THINGS, "sum")
    assert row is not None
    return row.record.rank


# --- the clock ---


def test_the_clock_is_the_databases_and_is_read_again_when_stale(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    really, slept_s = time.clock_gettime, 0.0
    monkeypatch.setattr(time, "clock_gettime", lambda clock: really(clock) + slept_s)

    def set_database(hours: int) -> None:
        """The database's clock differs from this machine's by so many hours."""
        sql = (
            f"(extract(epoch FROM clock_timestamp() + interval '{hours} hours') * 1000000)::bigint"
        )
        monkeypatch.setattr(latches, "NOW", sql)

    def ahead(hours: int, seconds: float = 0.0) -> bool:
        """Is the store's clock that far ahead of this machine's?"""
        off = store.now() - datetime.now(UTC) - timedelta(hours=hours, seconds=seconds)
        return abs(off) < timedelta(seconds=10)

    set_database(5)
    assert ahead(5)
    # Counted on from the last answer, without another, while that is fresh.
    set_database(-7)
    slept_s = TRUSTED_S - 20
    assert ahead(5, slept_s)
    slept_s = TRUSTED_S + 1
    assert ahead(-7)
    # Every transaction's and snapshot's answer carries the time.
    set_database(3)
    store.transact(lambda tx: tx.now, scope=[THINGS])
    assert ahead(3)
    set_database(4)
    store.read(lambda tx: tx.now, scope=[THINGS])
    assert ahead(4)


def test_an_answer_that_is_read_late_does_not_put_the_clock_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed_s = 0.0
    monkeypatch.setattr(time, "clock_gettime", lambda _: passed_s)
    clock, begin = ServerClock(), datetime(2026, 1, 1, tzinfo=UTC)

    def after(answer_s: float, *, asked_s: float, came_s: float) -> float:
        """What the clock says when the server's answer has come."""
        nonlocal passed_s
        passed_s = came_s
        assert clock.saw(begin + timedelta(seconds=answer_s), asked_s) == begin + timedelta(
            seconds=answer_s
        )
        return (clock.now(lambda: begin) - begin).total_seconds()

    assert after(0.0, asked_s=0.0, came_s=0.25) == 0.0
    # It came quicker, and says that the first was late.
    assert after(1.0, asked_s=1.0, came_s=1.0) == 1.0
    assert after(2.0, asked_s=2.0, came_s=5.0) == 5.0
    # What no delay explains: it was set.
    assert after(3600.0, asked_s=6.0, came_s=6.0) == 3600.0
    assert after(7.0, asked_s=7.0, came_s=7.5) == 7.0


def test_a_process_that_stood_still_has_what_it_leases_for_the_whole_time(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the server's answer and its reading: another had the lock at once, and it was not
    told.
    """
    with connect(postgres_url) as hf, connect(postgres_url) as other:
        hf.locks.release(hf.locks.acquire("n", by="before"))
        saw, still_s = ServerClock.saw, [NEVER_S]

        def late(clock: ServerClock, at: datetime, asked_s: float) -> datetime:
            passed_s = sum(still_s)
            still_s.clear()
            return saw(clock, at - timedelta(seconds=passed_s), asked_s - passed_s)

        monkeypatch.setattr(ServerClock, "saw", late)
        hf.store.transact(lambda tx: tx.now, scope=[])
        assert not still_s
        grant = hf.locks.acquire("n", by="one", ttl_s=PATIENCE_S)
        assert other.locks.try_acquire("n", by="two") is None
        grant.check()


def test_an_unset_clock_is_not_guessed(store: PostgresStore) -> None:
    store.close()
    with raises(StoreUnavailable, closed=True):
        store.now()


# --- the journal ---


def test_a_follower_sees_every_entry_once_while_eight_threads_write(store: PostgresStore) -> None:
    writers, each = 8, 40
    done = threading.Event()

    def write(number: int) -> None:
        for i in range(each):

            def body(tx: Tx, i: int = i) -> None:
                # The revision is taken long before the commit, so that commits come in another
                # order.
                for part in range(3):
                    tx.append(actor="t", kind="k", subject=f"{number}.{i}.{part}")
                tx.get(THINGS, f"w{number}")
                tx.put(THINGS, f"w{number}", Thing(rank=i))

            store.transact(body, scope=[rows(THINGS)])

    def follow() -> list[str]:
        seen: list[str] = []
        cursor = BEGINNING
        with store.listen([JOURNAL_TOPIC]) as ears:
            while True:
                last = done.is_set()
                while (batch := store.journal(cursor, limit=7)).entries:
                    seen += [entry.subject for entry in batch.entries]
                    cursor = batch.cursor
                if last:
                    return seen
                ears.wait(0.05)

    put(store, "warm")
    with ThreadPoolExecutor(writers + 2) as pool:
        followers = [pool.submit(follow) for _ in range(2)]
        for future in [pool.submit(write, number) for number in range(writers)]:
            future.result(PATIENCE_S)
        done.set()
        first, second = (follower.result(PATIENCE_S) for follower in followers)
        assert first == second
        for seen in (first, second):
            assert len(seen) == len(set(seen)) == writers * each * 3
            for number in range(writers):
                mine = [subject for subject in seen if subject.startswith(f"{number}.")]
                assert mine == [f"{number}.{i}.{part}" for i in range(each) for part in range(3)]


def test_an_entry_waits_for_older_transactions_that_are_still_open(
    store: PostgresStore, postgres_url: str
) -> None:
    append(store, "first")
    with psycopg.connect(postgres_url) as older:
        older.execute("SELECT pg_current_xact_id()")
        append(store, "second")
        batch = store.journal()
        assert [entry.subject for entry in batch.entries] == ["first"]
        assert [entry.subject for entry in store.journal(reverse=True).entries] == ["first"]
        older.rollback()
        assert [entry.subject for entry in store.journal(batch.cursor).entries] == ["second"]


def test_transactions_are_ordered_as_numbers(store: PostgresStore, postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        for revision, xid in [(3, "10"), (1, "9"), (2, "100"), (4, "10")]:
            connection.execute(
                "INSERT INTO holdfast.journal (revision, xid, ns, at, actor, kind, subject, data) "
                "VALUES (%s, %s::xid8, 'default', now(), 't', 'k', %s, '{}')",
                (revision, xid, xid),
            )
    assert [entry.revision for entry in store.journal().entries] == [1, 3, 4, 2]
    journal = store.journal().cursor.partition(".")[0]
    assert [entry.revision for entry in store.journal(f"{journal}.0.9.1").entries] == [3, 4, 2]
    assert [entry.revision for entry in store.journal(limit=2, reverse=True).entries] == [2, 4]


@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        "1",
        "1.",
        ".1",
        "1.2",
        "1.2.x",
        "-1.2.3",
        "1.2.3.4",
        "9" * 30 + ".1.1",
        "1.1." + "9" * 19,
        "²1.1.1",
    ],
)
def test_a_bad_cursor_is_refused(store: PostgresStore, cursor: str) -> None:
    with pytest.raises(InvalidValue, match="cursor"):
        store.journal(cursor)


def test_a_damaged_entry_is_reported_as_damaged(store: PostgresStore, postgres_url: str) -> None:
    """What was wrong with its bytes came through as the decoder had it, which no caller reckons
    with.
    """
    revision = append(store, "told")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE holdfast.journal SET data = '[1'")
    for reverse in (False, True):
        with pytest.raises(RecordInvalid, match=f"journal entry {revision} is damaged"):
            store.journal(reverse=reverse)
    with pytest.raises(InvalidValue, match="a limit of -1"):
        store.journal(limit=-1)


def test_trim_keeps_what_is_asked_and_the_newest(store: PostgresStore) -> None:
    for i in range(10):
        append(store, f"s{i}")
    at = [entry.at for entry in store.journal().entries]
    hour = timedelta(hours=1)

    def trim(keep: int, before: Any) -> int:
        return store.transact(lambda tx: tx.trim(keep=keep, before=before), scope=[])

    def left() -> list[str]:
        return [entry.subject for entry in store.journal().entries]

    assert trim(100, at[0] - hour) == 0
    assert trim(6, at[0] - hour) == 4
    assert left() == [f"s{i}" for i in range(4, 10)]
    assert trim(100, at[7]) == 3
    assert left() == ["s7", "s8", "s9"]
    assert trim(1, at[0]) == 2
    assert trim(100, at[9] + hour) == 0
    assert left() == ["s9"]


# --- a commit whose connection is lost ---


@pytest.mark.parametrize(
    "point", ["postgres.commit.before", "postgres.commit.after", "postgres.write"]
)
def test_work_is_done_once_when_its_session_is_ended(
    store: PostgresStore, postgres_url: str, point: str
) -> None:
    put(store, "sum")
    with faults.at_point(point, once(lambda: terminate(postgres_url))):
        increment(store)
    assert total(store) == 1
    with faults.at_point(point, once(lambda: terminate(postgres_url))):
        token = store.put_new(THINGS, [("lock", Thing())])
    row = store.get(THINGS, "lock")
    assert token is not None and row is not None and row.revision == token
    with faults.at_point(point, once(lambda: terminate(postgres_url))):
        assert store.delete_if(THINGS, ["lock"], token) == 1
    assert store.get(THINGS, "lock") is None


@pytest.mark.parametrize("lose", ["before", "after"])
def test_a_lost_commit_is_looked_up_and_done_once(
    distant: PostgresStore, proxy: Proxy, lose: str
) -> None:
    proxy.lose = lose
    increment(distant)
    assert proxy.lost in (1, 3)
    assert total(distant) == 1


@pytest.mark.parametrize("lose", ["before", "after"])
def test_a_hot_path_lost_at_its_commit_reports_the_true_outcome(
    distant: PostgresStore, proxy: Proxy, lose: str
) -> None:
    proxy.lose = lose
    token = distant.put_new(THINGS, [("lock", Thing())])
    row = distant.get(THINGS, "lock")
    assert token is not None and row is not None and row.revision == token
    proxy.lost = 0
    assert distant.delete_if(THINGS, ["lock"], token) == 1
    assert proxy.lost in (1, 3)
    assert distant.get(THINGS, "lock") is None


def test_a_call_that_the_server_reads_too_late_changes_nothing(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outcome was asked for, and it was sent again by then."""
    late: list[Any] = []
    exchange = connection.exchange

    def lose_the_first(raw: PostgresConnection, statements: Any) -> Any:
        if late:
            return exchange(raw, statements)
        late.append(statements)
        raise psycopg.OperationalError("lost")

    monkeypatch.setattr(calls, "exchange", lose_the_first)
    token = store.put_new(THINGS, [("lock", Thing())])
    assert token is not None and store.delete_if(THINGS, ["lock"], token) == 1
    with (
        closing(store.connections.connect()) as raw,
        pytest.raises(psycopg.errors.DivisionByZero),
    ):
        exchange(raw, late[0])
    assert store.get(THINGS, "lock") is None


def test_calls_of_yesterday_are_forgotten_and_closed_ones_are_not(
    store: PostgresStore, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "_FORGET_EVERY", 1)
    with psycopg.connect(postgres_url, autocommit=True) as raw:
        raw.execute(
            "INSERT INTO holdfast.calls (session, number, result, closed, at) "
            "VALUES (1, 1, 1, false, now() - interval '25 hours'), "
            "(2, 1, 1, true, now() - interval '25 hours'), (3, 1, 1, false, now())"
        )
        with closing(open_postgres(postgres_url)) as other:
            put(other, "a")
        kept = raw.execute("SELECT session FROM holdfast.calls ORDER BY session").fetchall()
        assert kept == [(2,), (3,)]


def test_a_commit_that_cannot_be_looked_up_is_called_unknown(
    distant: PostgresStore, store: PostgresStore, proxy: Proxy
) -> None:
    proxy.lose = "for_good"

    def body(tx: Tx) -> None:
        tx.put(THINGS, "a", Thing())

    while not proxy.lost:
        # On a busy machine the time may be over before there is anything to commit.
        with pytest.raises((StoreUnavailable, LockTimeout)) as caught:
            distant.transact(body, scope=[THINGS], timeout_s=1.0)
    assert isinstance(caught.value, StoreUnavailable)
    assert caught.value.fields["outcome"] == "unknown"
    # The server may still be at it.
    until(lambda: store.get(THINGS, "a") is not None)


def test_a_body_that_swallows_a_failure_is_not_taken_for_committed(
    store: PostgresStore, postgres_url: str
) -> None:
    put(store, "sum")
    runs = []

    def body(tx: Tx) -> None:
        runs.append(1)
        if len(runs) == 1:
            terminate(postgres_url)
        with suppress(Exception):
            tx.put(THINGS, "sum", Thing(rank=5))

    store.transact(body, scope=[THINGS])
    assert len(runs) >= 2
    assert total(store) == 5


# --- servers that are gone, silent or wrong ---


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://user:{SECRET}@127.0.0.1:1/nowhere",
        f"postgresql://user@127.0.0.1:1/nowhere?password={SECRET}",
        f"postgresql://user:{SECRET}@no-such-host.invalid/nowhere",
    ],
)
def test_an_unreachable_server_is_named_without_the_password(url: str) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        open_postgres(url)
    assert caught.value.fields["outcome"] == "none"
    assert SECRET not in repr(caught.value) + str(caught.value.fields)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://user:{SECRET}:{SECRET}@host:port/x",
        f"postgresql://user:p@{SECRET}@host/x",
        f"postgresql://user:{SECRET}@host/x?nosuch=1",
        f"postgresql://user:{SECRET}@[::1/x",
        f"mysql://user:{SECRET}@host/x",
    ],
)
def test_an_invalid_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises((InvalidValue, StoreUnavailable)) as caught:
        open_postgres(url)
    assert SECRET not in str(caught.value)


def test_a_message_that_repeats_the_password_is_redacted() -> None:
    address = DatabaseUrl(f"postgresql://user:{SECRET}@host/x")
    assert SECRET not in address.redacted(f"no such role {SECRET}") + str(address)


def test_a_missing_database_is_reported(postgres_server: Server) -> None:
    with pytest.raises(StoreUnavailable, match="no-such-database"):
        open_postgres(postgres_server.url.replace("/postgres", "/no-such-database"))


@pytest.fixture
def limited_url(postgres_server: Server, postgres_url: str) -> Iterator[str]:
    """A role that may have exactly as many connections as a store opens with."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE ROLE limited LOGIN SUPERUSER")
        yield postgres_url.replace("holdfast@", "limited@")
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'limited'"
        )
        connection.execute("DROP OWNED BY limited CASCADE; DROP ROLE limited")


def _limit(url: str, connections: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            f"ALTER ROLE limited NOSUPERUSER CONNECTION LIMIT {connections}".encode()
        )


def _names_the_limit(error: StoreUnavailable) -> bool:
    assert "CONNECTION LIMIT" in error.message
    assert "does not answer" not in error.message
    return bool(error.fields["sqlstate"] == "53300" and error.fields["outcome"] == "none")


def test_a_role_that_lost_connect_gets_an_error_that_says_so(
    limited_url: str, postgres_url: str
) -> None:
    """The error said that the server does not answer, and to check that it runs."""
    _limit(postgres_url, 0)
    with pytest.raises(StoreUnavailable) as caught:
        open_postgres(limited_url)
    assert _names_the_limit(caught.value)


def test_a_store_whose_role_lost_connect_gets_an_error_that_says_so(
    limited_url: str, postgres_url: str
) -> None:
    with closing(open_postgres(limited_url)) as store:
        _limit(postgres_url, 0)
        while True:
            with pytest.raises((StoreUnavailable, LockTimeout)) as caught:
                store.get(THINGS, "k", timeout_s=1)
            # On a busy machine the time may be over before the server has refused anybody.
            if isinstance(caught.value, StoreUnavailable):
                break
        assert _names_the_limit(caught.value)


def test_roles_that_may_connect_and_not_use_the_store_are_known(
    store: PostgresStore, postgres_url: str
) -> None:
    """Advisory locks are of a database, and every role that may connect to it can take any: so it can stop
    all writers.
    """
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute("CREATE ROLE stranger LOGIN")
        try:
            assert "stranger" in store.administration.strangers()
            connection.execute(f"REVOKE CONNECT ON DATABASE {name} FROM PUBLIC".encode())
            assert store.administration.strangers() == []
            with pytest.raises(psycopg.OperationalError, match="CONNECT"):
                psycopg.connect(postgres_url.replace("holdfast@", "stranger@"))
        finally:
            connection.execute("DROP ROLE stranger")


def test_a_missing_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("holdfast.stores.postgres.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreUnavailable, match=r"pip install '.\[postgres\]'"):
        open_postgres("postgresql://host/x")


def test_a_newer_layout_is_refused(store: PostgresStore, postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("UPDATE holdfast.meta SET number = 99")
    with pytest.raises(SchemaTooNew, match="newer"):
        open_postgres(postgres_url)


def test_a_database_of_another_encoding_is_refused(postgres_server: Server) -> None:
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE odd TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    with pytest.raises(StoreUnavailable, match="UTF-8"):
        open_postgres(postgres_server.url.replace("/postgres", "/odd"))


def test_a_store_outlives_a_restart_of_its_server_and_wakes_its_listeners() -> None:
    with running() as server, closing(open_postgres(server.url)) as store:
        put(store, "sum")
        with store.listen(["topic"]) as ears:
            server.stop()
            started = time.monotonic()
            with pytest.raises(Unavailable) as caught:
                store.transact(
                    lambda tx: tx.put(THINGS, "b", Thing()), scope=[THINGS], timeout_s=0.3
                )
            assert caught.value.fields["outcome"] == "none"
            assert time.monotonic() - started < TRANSACT_TIMEOUT_S
            with ThreadPoolExecutor(1) as pool:
                # Started while there is no server; it waits for one within its time limit.
                patient = pool.submit(
                    store.transact,
                    lambda tx: tx.put(THINGS, "c", Thing()),
                    scope=[THINGS],
                    timeout_s=PATIENCE_S,
                )
                server.start()
                patient.result(PATIENCE_S)
            assert heard(ears)
            store.transact(lambda tx: tx.notify("topic"), scope=[THINGS])
            assert heard(ears)
        assert store.get(THINGS, "b") is None
        assert store.get(THINGS, "c") is not None


def test_a_silent_server_does_not_keep_a_caller_past_its_time(
    store: PostgresStore, postgres_url: str
) -> None:
    opened: dict[int, int] = {}

    def silence() -> None:
        sessions = (
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> "
            "pg_backend_pid()"
        )
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            # The session of a connection that was closed before may just be ending, and its pid may
            # soon be another's.
            for (pid,) in connection.execute(sessions).fetchall():
                with suppress(ProcessLookupError):
                    opened[pid] = os.pidfd_open(pid)
            for (pid,) in connection.execute(sessions).fetchall():
                with suppress(ProcessLookupError):
                    if pid in opened:
                        signal.pidfd_send_signal(opened[pid], signal.SIGSTOP)

    put(store, "a")
    started = time.monotonic()
    try:
        with (
            faults.at_point("postgres.commit.before", once(silence)),
            pytest.raises(StoreUnavailable) as caught,
        ):
            store.transact(lambda tx: tx.put(THINGS, "b", Thing()), scope=[THINGS], timeout_s=2)
    finally:
        for session in opened.values():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(session, signal.SIGCONT)
            os.close(session)
    assert caught.value.fields["outcome"] == "unknown"
    assert time.monotonic() - started < TRANSACT_TIMEOUT_S


def test_the_server_ends_an_idle_transaction(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a client that was stopped or cut off: others would wait for its latches."""
    limits = connections._SESSION_LIMITS.replace("'5000'", "'200'")
    assert limits != connections._SESSION_LIMITS
    monkeypatch.setattr(connections, "_SESSION_LIMITS", limits)
    inside, runs = threading.Event(), []

    def dawdle(tx: Tx) -> None:
        tx.count(THINGS)
        runs.append(1)
        inside.set()
        if len(runs) == 1:
            # Until the other has had its turn.
            assert store_is_written.wait(PATIENCE_S)
        tx.put(THINGS, "late", Thing())

    store_is_written = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(store.transact, dawdle, scope=[THINGS], timeout_s=PATIENCE_S)
        assert inside.wait(PATIENCE_S)
        put(store, "a")
        store_is_written.set()
        slow.result(PATIENCE_S)
    assert len(runs) > 1
    assert store.get(THINGS, "late") is not None


# --- rows ---


def test_records_that_are_not_there_yet_are_latched_too(store: PostgresStore) -> None:
    """Two that both find nothing and both put: the second must have seen the first."""
    barrier = threading.Barrier(8)

    def work(_: int) -> None:
        barrier.wait(PATIENCE_S)

        def body(tx: Tx) -> None:
            row = tx.get(THINGS, "sum")
            tx.put(THINGS, "sum", Thing(rank=row.record.rank + 1 if row else 1))

        store.transact(body, scope=[rows(THINGS)])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert total(store) == 8


def test_crossed_waits_end_and_both_are_done(store: PostgresStore) -> None:
    put(store, "a", Thing(rank=0))
    put(store, "b", Thing(rank=0))
    barrier = threading.Barrier(2)

    def work(keys: list[str]) -> None:
        met: list[int] = []

        def body(tx: Tx) -> None:
            for key in keys:
                row = tx.get(THINGS, key)
                assert row is not None
                tx.put(THINGS, key, Thing(rank=row.record.rank + 1))
                tx.count(THINGS)
                if not met:
                    met.append(1)
                    barrier.wait(PATIENCE_S)

        store.transact(body, scope=[rows(THINGS)])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, [["a", "b"], ["b", "a"]]))
    found = [store.get(THINGS, key) for key in "ab"]
    assert [row and row.record.rank for row in found] == [2, 2]


def test_tokens_of_one_key_only_grow_under_contention(store: PostgresStore) -> None:
    """Taken and given back by hot paths and by transactions whose revision is older than their
    latch.
    """
    given: list[int] = []
    mutex = threading.Lock()
    held = threading.Semaphore(1)

    def hot(_: int) -> None:
        for _ in range(40):
            token = store.put_new(THINGS, [("lock", Thing())])
            if token is not None:
                assert held.acquire(blocking=False)
                with mutex:
                    given.append(token)
                held.release()
                assert store.delete_if(THINGS, ["lock"], token) == 1

    def general(number: int) -> None:
        for _ in range(40):

            def body(tx: Tx) -> int | None:
                revision = tx.revision
                tx.append(actor="t", kind="k", subject="s")
                if tx.get(THINGS, "lock") is not None:
                    return None
                tx.put(THINGS, "lock", Thing())
                return revision

            token = store.transact(body, scope=[rows(THINGS)])
            if token is not None:
                assert held.acquire(blocking=False)
                with mutex:
                    given.append(token)
                held.release()
                assert store.delete_if(THINGS, ["lock"], token) == 1

    with ThreadPoolExecutor(6) as pool:
        futures = [pool.submit(hot, i) for i in range(3)] + [
            pool.submit(general, i) for i in range(3)
        ]
        for future in futures:
            future.result(PATIENCE_S)
    assert given == sorted(set(given))
    assert given


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the connections of the store of the test."""
    be_patient(monkeypatch)


@pytest.mark.usefixtures("patient")
def test_claims_do_not_wait_for_each_other(store: PostgresStore) -> None:
    for i in range(2):
        put(store, f"k{i}", Thing(owner="x", rank=i))
    inside, leave = threading.Event(), threading.Event()

    def dawdle(tx: Tx) -> str:
        row = tx.take_first(THINGS, "place", ("x",))
        assert row is not None
        inside.set()
        leave.wait(PATIENCE_S)
        tx.put(THINGS, row.key, Thing())
        return row.key

    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(store.transact, dawdle, scope=[rows(THINGS)])
        assert inside.wait(PATIENCE_S)
        assert take_all(store) == ["k1"]
        with pytest.raises(LockTimeout):
            store.transact(lambda tx: tx.get(THINGS, "k0"), scope=[rows(THINGS)], timeout_s=0.1)
        leave.set()
        assert slow.result(PATIENCE_S) == "k0"


def test_waits_for_several_latches_have_one_time_limit(
    store: PostgresStore, postgres_url: str
) -> None:
    """Each wait had the whole limit, and together they outlasted the client's patience."""
    put(store, "k")
    store.transact(lambda tx: None, scope=[OTHERS])
    keys = sorted(
        [(space.order, latches.space_key("default", space.name)) for space in (THINGS, OTHERS)]
    )

    def in_time() -> bool:
        with (
            psycopg.connect(postgres_url) as first,
            psycopg.connect(postgres_url) as second,
            ThreadPoolExecutor(1) as pool,
        ):
            for holder, (_, key) in zip((first, second), keys, strict=True):
                holder.execute("SELECT pg_advisory_xact_lock(%s)", (key,))
            waiting = pool.submit(
                store.transact,
                lambda tx: tx.get(THINGS, "k"),
                scope=[THINGS, OTHERS],
                timeout_s=1.0,
            )
            time.sleep(0.7)  # So that most of the limit is used up by the first latch.
            first.rollback()
            with pytest.raises((LockTimeout, StoreUnavailable)) as caught:
                waiting.result(PATIENCE_S)
            return isinstance(caught.value, LockTimeout)

    # A busy server may say so too late for the client's patience; the fault was that it did each
    # time.
    until(in_time)


def test_a_transaction_of_many_new_records_keeps_one_revision(store: PostgresStore) -> None:
    def body(tx: Tx) -> int:
        for i in range(300):
            tx.put(OTHERS, f"k{i:03}", Thing(rank=i))
        return tx.revision

    revision = store.transact(body, scope=[rows(OTHERS)])
    found = store.read(lambda tx: tx.range(OTHERS), scope=[OTHERS])
    assert [row.record.rank for row in found] == list(range(300))
    assert {row.revision for row in found} == {revision}


# --- exceptions ---


def test_connections_that_exceptions_meet_on_their_way_back_are_replaced(
    store: PostgresStore, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "sum")

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    def fail(tx: Tx) -> None:
        tx.get(THINGS, "sum")
        raise LookupError

    with monkeypatch.context() as patched:
        patched.setattr(connections, "_end_transaction", interrupted)
        for _ in range(connections.CONNECTIONS_MAX):
            with pytest.raises(KeyboardInterrupt):
                store.transact(fail, scope=[THINGS])
    with psycopg.connect(postgres_url, autocommit=True) as outside:
        open_ones = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state "
            "LIKE 'idle in %'"
        )
        until(lambda: outside.execute(open_ones).fetchone() == (0,))
    # By the same store, whose pool has made others, and by one beside it.
    increment(store)
    with closing(open_postgres(postgres_url)) as beside:
        increment(beside)


def test_a_listener_hears_again_after_memory_ran_out(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran_out = threading.Event()

    def out_of_memory(_: object) -> None:
        ran_out.set()
        raise MemoryError

    with store.listen(["topic"]) as ears:
        with monkeypatch.context() as patched:
            patched.setattr(store._listening, "_dispatch", out_of_memory)
            store.transact(lambda tx: tx.notify("topic"), scope=[])
            assert ran_out.wait(PATIENCE_S)
        # The notice was lost with its connection: everyone is woken once another listens.
        assert heard(ears)
        store.transact(lambda tx: tx.notify("topic"), scope=[])
        assert heard(ears)


# --- other matters ---


def test_text_that_no_database_keeps_is_refused(store: PostgresStore) -> None:
    for subject in ("a\0b", "\ud800"):
        with pytest.raises(InvalidValue):
            append(store, subject)
        assert store.get(THINGS, subject) is None
    assert store.journal().entries == []


def test_long_and_odd_topics_are_heard(store: PostgresStore) -> None:
    for topic in ("x" * 10_000, "new\nline", "\ud800", "日本"):
        with store.listen([topic]) as ears:
            store.transact(methodcaller("notify", topic), scope=[])
            assert heard(ears)


def test_a_lazy_transaction_is_lazy_and_the_next_is_not(store: PostgresStore) -> None:
    def setting(tx: Tx) -> str:
        return str(tx.rows("SELECT current_setting('synchronous_commit')", ())[0][0])  # type: ignore[attr-defined]

    assert store.transact(setting, scope=[THINGS], durable=False) == "off"
    assert store.transact(setting, scope=[THINGS]) == "on"


def test_a_child_does_not_keep_its_dead_parents_latch(
    store: PostgresStore, postgres_url: str
) -> None:
    """The server notices a death by the end of the connection, of which a forked child has a
    copy.
    """
    put(store, "a")
    ready, started = os.pipe()
    parent = os.fork()
    if parent == 0:
        own = open_postgres(postgres_url)

        def body(tx: Tx) -> None:
            tx.put(THINGS, "half", Thing())
            tx.count(THINGS)
            child = os.fork()
            if child == 0:
                signal.pause()
            os.write(started, child.to_bytes(4, "big"))
            signal.pause()

        own.transact(body, scope=[THINGS])
        os._exit(0)
    child = int.from_bytes(os.read(ready, 4), "big")
    try:
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        assert put(store, "b") > 0
        assert store.get(THINGS, "half") is None
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(ready)
        os.close(started)


@pytest.mark.parametrize(
    ("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)]
)
def test_a_machine_without_a_server_skips_by_name_and_fails_in_ci(
    monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setattr(postgres_server, "binaries", lambda: None)
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="PostgreSQL"), running():
        pass
