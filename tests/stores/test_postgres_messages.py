"""What goes over the wire: how few messages, how often a body runs, and what a notice may not do to
a commit.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from operator import methodcaller
from typing import Any

import psycopg
import pytest

from holdfast import connect
from holdfast.domains.jobs import reaper, registry
from holdfast.domains.jobs.records import JOBS
from holdfast.kernel.errors import Collision, InvalidValue
from holdfast.kernel.space import rows
from holdfast.kernel.store import Tx
from holdfast.primitives import journal
from holdfast.stores.postgres import connection, listener, open_postgres, transaction
from holdfast.stores.postgres.connection import PostgresConnection
from holdfast.stores.postgres.connections import CONNECTIONS_MAX, Lent
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing.conformance.harness import OTHERS, PATIENCE_S, THINGS, Thing, heard, put
from tests.harness.timeouts import NEVER_S, until
from tests.stores.harnesses_postgres import be_patient

pytestmark = pytest.mark.prove


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    with closing(open_postgres(postgres_url)) as store:
        put(store, "warm")
        store.transact(lambda tx: tx.put(OTHERS, "warm", Thing()), scope=[OTHERS])
        yield store


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the messages of transactions were sent over, once for each."""
    over: list[object] = []
    really = connection._results

    def results(raw: PostgresConnection) -> Any:
        over.append(raw)
        return really(raw)

    monkeypatch.setattr(connection, "_results", results)
    return over


def test_new_keys_that_nobody_looked_at_are_put_by_one_run(
    store: PostgresStore, sent: list[object]
) -> None:
    runs: list[int] = []

    def body(tx: Tx) -> int:
        runs.append(1)
        for i in range(5):
            tx.put(THINGS, f"a{i}", Thing())
            tx.put(OTHERS, f"b{i}", Thing())
        tx.append(actor="t", kind="k", subject="s")
        return tx.revision

    revision = store.transact(body, scope=[rows(THINGS), rows(OTHERS)])
    assert len(runs) == 1
    assert len(sent) == 2
    found = store.read(
        lambda tx: [*tx.range(THINGS, prefix="a"), *tx.range(OTHERS, prefix="b")],
        scope=[THINGS, OTHERS],
    )
    assert [row.revision for row in found] == [revision] * 10


def test_a_key_put_after_its_journal_entry_is_put_by_one_run(store: PostgresStore) -> None:
    """It is latched after its revision was taken; nobody took another meanwhile."""
    runs: list[int] = []

    def body(tx: Tx) -> None:
        runs.append(1)
        tx.append(actor="t", kind="k", subject="s")
        tx.put(THINGS, "late", Thing())

    store.transact(body, scope=[rows(THINGS)])
    assert len(runs) == 1


def test_a_key_latched_late_is_put_with_a_greater_revision_than_one_that_came_and_went(
    store: PostgresStore,
) -> None:
    runs: list[int] = []
    tokens: list[int] = []

    def body(tx: Tx) -> int:
        runs.append(1)
        tx.append(actor="t", kind="k", subject="s")
        if len(runs) == 1:
            token = store.put_new(THINGS, [("late", Thing())])
            assert token is not None and store.delete_if(THINGS, ["late"], token) == 1
            tokens.append(token)
        tx.put(THINGS, "late", Thing())
        return tx.revision

    tokens.append(store.transact(body, scope=[rows(THINGS)]))
    assert len(runs) == 2
    assert tokens == sorted(set(tokens))


def test_what_a_body_put_it_sees(store: PostgresStore) -> None:
    def body(tx: Tx) -> list[object]:
        tx.put(THINGS, "a", Thing(rank=1))
        tx.put(THINGS, "a", Thing(rank=2))
        tx.put(THINGS, "b", Thing(rank=3))
        row = tx.get(THINGS, "a")
        return [
            row and row.record.rank,
            tx.delete(THINGS, "b"),
            tx.get(THINGS, "b"),
            row and row.revision == tx.revision,
        ]

    assert store.transact(body, scope=[rows(THINGS)]) == [2, True, None, True]


@pytest.fixture
def nothing_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done at one revision in a thousand, or once in a second, is not done."""
    monkeypatch.setattr(journal, "JOURNAL_TRIM_EVERY", 1 << 62)
    monkeypatch.setattr(registry, "JOBS_PRUNE_EVERY", 1 << 62)
    monkeypatch.setattr(reaper, "JOBS_SWEEP_EVERY_S", NEVER_S)


@pytest.mark.usefixtures("nothing_now_and_then")
def test_a_job_is_registered_claimed_and_ended_in_two_messages_each(
    postgres_url: str, sent: list[object]
) -> None:
    with connect(postgres_url) as hf:
        for _ in range(3):
            hf.jobs.register_job("x", agent="a", agent_session="s")
        hf.jobs.pick_pending("s")
        sent.clear()
        hf.jobs.register_job("x", agent="a", agent_session="s")
        assert len(sent) == 2
        sent.clear()
        job = hf.jobs.pick_pending("s")
        assert job is not None and len(sent) == 2
        sent.clear()
        job = hf.jobs.finish_and_pick(job.job_id, "completed", token=job.token or 0).picked
        assert job is not None and len(sent) == 3
        sent.clear()
        job = hf.jobs.finish_and_pick(
            job.job_id, "completed", token=job.token or 0, agent_session="s"
        ).picked
        assert job is not None and len(sent) == 2
        sent.clear()
        hf.jobs.update_status(job.job_id, "completed", token=job.token)
        assert len(sent) == 2
        assert hf.jobs.pick_pending("s") is None
        # A worker without a job checks once for dead and overdue ones.
        assert len(sent) == 6


def test_a_lock_is_taken_and_released_in_a_message_each(
    postgres_url: str, sent: list[object]
) -> None:
    with connect(postgres_url) as hf:
        hf.locks.release(hf.locks.acquire("warm", by="j"))
        sent.clear()
        grant = hf.locks.acquire("n", by="j")
        assert len(sent) == 1
        hf.locks.release(grant)
        assert len(sent) == 2


def test_an_announced_row_is_asked_for_with_the_one_before_it(
    store: PostgresStore, sent: list[object]
) -> None:
    for i in range(2):
        put(store, f"k{i}", Thing(owner="x", rank=i))
    sent.clear()

    def body(tx: Tx) -> str | None:
        tx.will_take(THINGS, "place", ("x",))
        assert tx.get(THINGS, "k0") is not None
        row = tx.take_first(THINGS, "place", ("x",), but_for=["k0"])
        return None if row is None else row.key

    assert store.transact(body, scope=[rows(THINGS)]) == "k1"

    def change(tx: Tx) -> str | None:
        tx.will_take(THINGS, "place", ("x",))
        assert tx.get(THINGS, "k0") is not None
        tx.put(THINGS, "k0", Thing(owner="y"))
        row = tx.take_first(THINGS, "place", ("x",))
        return None if row is None else row.key

    assert store.transact(change, scope=[rows(THINGS)]) == "k1"

    def both(tx: Tx) -> str | None:
        tx.will_take(THINGS, "place", ("x",))
        assert tx.get(THINGS, "warm") is not None
        row = tx.take_first(THINGS, "place", ("x",))
        assert row is not None
        tx.put(THINGS, row.key, Thing(owner="z"))
        return row.key

    sent.clear()
    assert store.transact(both, scope=[rows(THINGS)]) == "k1"
    assert len(sent) == 2


def test_a_failed_notification_does_not_undo_its_change(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        listener, "_NOTIFY", "SELECT 1 / (cardinality(%s::text[]) - cardinality(%s::text[]) - 0)"
    )
    monkeypatch.setattr(listener, "notices", lambda *_: (listener._NOTIFY, [["a"], ["a"]]))
    monkeypatch.setattr("holdfast.stores.postgres.transaction.notices", listener.notices)
    runs: list[int] = []

    def body(tx: Tx) -> None:
        runs.append(1)
        tx.put(THINGS, "a", Thing())
        tx.notify("topic")

    store.transact(body, scope=[THINGS])
    assert len(runs) == 1
    assert store.get(THINGS, "a") is not None


def test_nobody_is_notified_where_nobody_listens(store: PostgresStore, postgres_url: str) -> None:
    """Seen by a session that listens without the sign of one."""
    with (
        psycopg.connect(postgres_url, autocommit=True) as raw,
        closing(open_postgres(postgres_url)) as other,
    ):
        raw.execute("LISTEN holdfast")

        def noted() -> list[str]:
            store.transact(lambda tx: tx.notify("topic"), scope=[THINGS])
            raw.execute("SELECT 1")
            return [notice.payload for notice in raw.notifies(timeout=0)]

        assert noted() == []
        with other.listen(["topic"]) as ears:
            assert noted() == ["default\ntopic"]
            assert heard(ears)


def test_a_statement_is_known_by_its_name_after_a_failure_too(store: PostgresStore) -> None:
    def refuse(tx: Tx) -> None:
        tx.get(THINGS, "never-seen-before")
        tx.find(THINGS, "place", ("x",), reverse=True)
        raise ZeroDivisionError

    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            store.transact(refuse, scope=[rows(THINGS)])
    assert (
        store.transact(
            lambda tx: tx.find(THINGS, "place", ("x",), reverse=True), scope=[rows(THINGS)]
        )
        == []
    )


@pytest.mark.parametrize("bound", ["_PREPARED_MAX", "_PARAMETERS_MAX"])
def test_statements_beyond_a_bound_are_sent_with_their_text(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(connection, bound, 0)
    with closing(open_postgres(postgres_url)) as store:
        put(store, "it's 100%", Thing(owner="o'%s"))
        row = store.get(THINGS, "it's 100%")
        assert row is not None and row.record.owner == "o'%s"
        with Lent(store.connections, _soon()) as raw:
            assert not any("%s" in sql for sql in raw.prepared)


def test_a_server_that_ends_the_session_in_a_message_is_understood(store: PostgresStore) -> None:
    """Its last words come before the end of the message, which never does."""
    with closing(store.connections.connect()) as raw:
        with pytest.raises(psycopg.errors.AdminShutdown):
            connection.exchange(
                raw,
                [
                    connection.bound("SELECT pg_terminate_backend(pg_backend_pid())"),
                    connection.bound("SELECT 1"),
                ],
            )
        with pytest.raises(psycopg.OperationalError):
            connection.exchange(raw, [connection.bound("SELECT 1")])


def test_a_message_larger_than_any_buffer_is_sent_and_answered(store: PostgresStore) -> None:
    """Both ways at once: neither side waits for the other to read first."""
    large = "x" * 3_000_000
    with closing(store.connections.connect()) as raw:
        answers = connection.exchange(
            raw, [connection.bound("SELECT %s::text", (large,)) for _ in range(4)]
        )
        assert [answer.rows for answer in answers] == [[(large,)]] * 4


def test_after_a_failure_the_rest_is_skipped_and_the_session_goes_on(store: PostgresStore) -> None:
    with closing(store.connections.connect()) as raw:
        statements = [
            connection.bound("SELECT 1 / %s::integer", (0,)),
            connection.bound("CREATE TABLE never (x integer)"),
        ]
        for _ in range(2):
            with pytest.raises(psycopg.errors.DivisionByZero):
                connection.exchange(raw, statements)
        assert connection.exchange(
            raw, [connection.bound("SELECT to_regclass(%s)::text", ("never",))]
        )[0].rows == [(None,)]


@pytest.mark.parametrize("conforming", ["on", "off"])
def test_text_arrives_as_it_was_sent(postgres_url: str, conforming: str) -> None:
    """Also where the server takes a backslash for an escape by default."""
    name = postgres_url.partition("@/")[2].partition("?")[0]
    with psycopg.connect(postgres_url, autocommit=True) as raw:
        raw.execute(
            f"ALTER DATABASE {name} SET standard_conforming_strings = {conforming}".encode()
        )
        raw.execute(
            f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'".encode()
        )
    hostile = [
        "'",
        "''",
        "\\",
        "\\'",
        "\\x41",
        "%s",
        "$1",
        "'; DROP SCHEMA holdfast CASCADE; --",
        "é日本",
        "\n\t\x01",
        "{}",
        "E'",
    ]
    with closing(open_postgres(postgres_url)) as store:
        for text in hostile:

            def body(tx: Tx, text: str = text) -> None:
                tx.get(THINGS, text)
                tx.put(THINGS, text, Thing(owner=text))
                tx.append(actor=text, kind=text, subject=text, data={text: text})

            store.transact(body, scope=[rows(THINGS)])
            row = store.get(THINGS, text)
            assert row is not None and row.record.owner == text
            found = store.read(methodcaller("find", THINGS, "place", (text,)), scope=[THINGS])
            assert [row.key for row in found] == [text]
        assert [(entry.subject, entry.data) for entry in store.journal().entries] == [
            (text, {text: text}) for text in hostile
        ]
        with pytest.raises(InvalidValue, match="NUL"):
            store.transact(lambda tx: tx.append(actor="t", kind="k", subject="a\0b"), scope=[])


def test_the_connection_at_hand_goes_back_to_the_pool_in_time_and_is_closed_with_it(
    store: PostgresStore,
) -> None:
    connections = store.connections
    with Lent(connections, _soon()) as raw:
        pass
    with Lent(connections, _soon()) as again:
        assert again is raw
        with Lent(connections, _soon()) as other:
            assert other is not raw
        raw.at_hand_until = 0.0
    assert connections._at_hand is other
    store.close()
    assert raw.closed and other.closed


def test_a_returned_connection_goes_to_the_waiter_for_the_pool(store: PostgresStore) -> None:
    connections = store.connections
    with ExitStack() as all_of_them, ThreadPoolExecutor(1) as pool:
        lent = [
            all_of_them.enter_context(Lent(connections, _soon())) for _ in range(CONNECTIONS_MAX)
        ]
        waiting = pool.submit(store.get, THINGS, "warm")
        until(lambda: connections._asking)
        all_of_them.close()
        assert waiting.result(PATIENCE_S) is not None
        assert len(set(lent)) == CONNECTIONS_MAX


def _soon() -> Any:
    from holdfast.stores.postgres.connection import CallDeadline

    return CallDeadline.after(PATIENCE_S)


def test_a_key_latched_late_after_a_new_one_gets_a_greater_revision_too(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look took a revision more, which nobody used: it hid those that others had taken between
    the two.
    """
    runs: list[int] = []
    tokens: list[int] = []
    exchange = connection.exchange

    def and_another(*given: Any) -> Any:
        answers = exchange(*given)
        if not tokens:
            token = store.put_new(THINGS, [("late", Thing())])
            assert token is not None and store.delete_if(THINGS, ["late"], token) == 1
            tokens.append(token)
        return answers

    def body(tx: Tx) -> int:
        runs.append(1)
        tx.put(THINGS, "new", Thing())
        assert tx.get(THINGS, "warm") is not None
        tx.put(THINGS, "late", Thing())
        return tx.revision

    monkeypatch.setattr(transaction, "exchange", and_another)
    tokens.append(store.transact(body, scope=[rows(THINGS)]))
    assert len(runs) == 2
    assert tokens == sorted(set(tokens))


def _other(store: PostgresStore) -> int:
    """Somebody else puts and removes what the body is about to put; return the token that was
    theirs.
    """
    token = store.put_new(THINGS, [("late", Thing())])
    assert token is not None and store.delete_if(THINGS, ["late"], token) == 1
    return token


def test_numbers_for_more_entries_hide_nobody_elses(store: PostgresStore) -> None:
    tokens: list[int] = []

    def body(tx: Tx) -> int:
        for number in range(3):
            tx.append(actor="t", kind="t", subject=str(number))
            if not tokens:
                tokens.append(_other(store))
        tx.put(THINGS, "late", Thing())
        return tx.revision

    tokens.append(store.transact(body, scope=[rows(THINGS)]))
    assert tokens == sorted(set(tokens))


def test_a_number_taken_beside_the_revision_hides_nobody_elses(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if another had taken a number between the two that one statement takes."""
    for key in ("a", "b"):
        put(store, key)
    tokens: list[int] = []
    take = transaction.PostgresTx._take

    def apart(tx: transaction.PostgresTx, row: Any) -> None:
        revision, xid, *more = row
        if more and not tokens:
            tokens.append(_other(store))
            with Lent(store.connections, _soon()) as raw:
                more = list(
                    connection.exchange(
                        raw, [connection.bound("SELECT nextval('holdfast.revision')")]
                    )[0].rows[0]
                )
        take(tx, (revision, xid, *more))

    def body(tx: Tx) -> int:
        assert tx.get(THINGS, "a") is not None and tx.get(THINGS, "b") is not None
        tx.put(THINGS, "b", Thing())
        tx.put(THINGS, "late", Thing())
        return tx.revision

    monkeypatch.setattr(transaction.PostgresTx, "_take", apart)
    tokens.append(store.transact(body, scope=[rows(THINGS)]))
    assert tokens == sorted(set(tokens))


def test_a_job_under_an_id_of_its_own_is_registered_beside_a_claim(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for every claim that was under way, and kept out all that came meanwhile."""
    be_patient(monkeypatch)
    claiming, go_on = threading.Event(), threading.Event()
    with connect(postgres_url) as hf, ThreadPoolExecutor(3) as pool:
        hf.jobs.register_job("x", agent="a", agent_session="s")

        runs: list[int] = []

        def dawdle(tx: Tx) -> None:
            runs.append(1)
            assert tx.take_first(JOBS, "turn", ("s",)) is not None
            claiming.set()
            assert go_on.wait(PATIENCE_S)

        claim = pool.submit(hf.store.transact, dawdle, scope=[rows(JOBS)])
        assert claiming.wait(PATIENCE_S)
        try:
            assert (
                hf.jobs.register_job("y", agent="a", agent_session="s", job_id="mine").job_id
                == "mine"
            )
        finally:
            go_on.set()
        claim.result(PATIENCE_S)
        assert len(runs) == 1, "the server did not have to end it for the other's sake"
        # And of two who want one id, one gets it.
        both = [
            pool.submit(hf.jobs.register_job, "z", agent="a", agent_session="s", job_id="ours")
            for _ in range(2)
        ]
        assert sorted(type(one.exception(PATIENCE_S)) is Collision for one in both) == [False, True]
