"""A lock of a database session: one holder among all sessions, gone with its connection."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast.kernel.errors import StoreUnavailable
from holdfast.stores.postgres.store import PostgresStore
from tests.harness.timeouts import PATIENCE_S

pytestmark = pytest.mark.prove


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(postgres_url)) as opened:
        yield opened


def terminate(url: str, pid: int) -> None:
    """End a session of the server, and return once it is gone."""
    with psycopg.connect(url, autocommit=True) as connection:
        assert connection.execute(
            "SELECT pg_terminate_backend(%s, %s)", (pid, int(PATIENCE_S * 1000))
        ).fetchone() == (True,)


def backend_of(contender: Any) -> int:
    """The session of the server that holds a contender's lock. A test ends it, as a restart of the
    server or an administrator does.
    """
    pid: int = contender._raw.info.backend_pid
    return pid


def test_one_session_holds_it_at_a_time(store: PostgresStore, postgres_url: str) -> None:
    lock = store.session_lock("swap")
    assert not lock.is_held()
    with (
        closing(PostgresStore(postgres_url)) as elsewhere,
        closing(PostgresStore(postgres_url, namespace="n2")) as apart,
    ):
        first, second, third = (
            one.session_lock("swap").contender() for one in (store, elsewhere, apart)
        )
        assert first.try_take() and first.try_take() and first.has_it()
        assert not second.try_take() and not second.has_it()
        assert third.try_take(), "another namespace is another lock"
        assert lock.is_held() and elsewhere.session_lock("swap").is_held()
        assert not store.session_lock("other").is_held()
        first.close()
        first.close()
        assert not lock.is_held() and not first.has_it()
        assert second.try_take()
        second.close()
        third.close()


def test_a_session_that_was_ended_has_no_lock(store: PostgresStore, postgres_url: str) -> None:
    lock = store.session_lock("swap")
    with closing(lock.contender()) as contender:
        assert contender.try_take()
        terminate(postgres_url, backend_of(contender))
        assert not lock.is_held()
        assert not contender.has_it()
        with pytest.raises(StoreUnavailable):
            contender.try_take()


def test_a_lost_request_connection_is_opened_again(store: PostgresStore, postgres_url: str) -> None:
    lock = store.session_lock("swap")
    assert not lock.is_held()
    assert lock._asking is not None
    terminate(postgres_url, lock._asking.info.backend_pid)
    assert not lock.is_held()


def test_a_forked_child_neither_has_nor_keeps_nor_frees_it(store: PostgresStore) -> None:
    lock = store.session_lock("swap")
    contender = lock.contender()
    assert contender.try_take()
    readable, telling = os.pipe()
    child = os.fork()
    if not child:
        fine = not contender.has_it()
        contender.close()
        fine = fine and lock.is_held()
        os.write(telling, b"1" if fine else b"0")
        signal.pause()
    assert os.read(readable, 1) == b"1"
    assert contender.has_it()
    contender.close()
    assert not lock.is_held(), "while the child lives"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(readable)
    os.close(telling)


def test_a_child_forked_while_a_thread_asks_can_ask(store: PostgresStore) -> None:
    """It waited for a thread that it did not have."""
    lock = store.session_lock("swap")
    assert not lock.is_held()
    with lock._mutex:
        child = os.fork()
        if not child:
            signal.alarm(int(PATIENCE_S))
            free = False
            try:
                free = not lock.is_held()
            finally:
                os._exit(0 if free else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not lock.is_held(), "the parent's connection is as it was"


def test_many_waiters_hold_it_one_at_a_time(store: PostgresStore) -> None:
    lock = store.session_lock("swap")
    taken: list[bool] = []
    barrier = threading.Barrier(6)

    def want() -> None:
        contender = lock.contender()
        barrier.wait(PATIENCE_S)
        taken.append(contender.try_take())
        barrier.wait(PATIENCE_S)
        contender.close()

    threads = [threading.Thread(target=want) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(taken) == [False] * 5 + [True]


def test_a_waiter_outlives_its_connection(store: PostgresStore, postgres_url: str) -> None:
    lock = store.session_lock("swap")
    with closing(lock.contender()) as first, closing(lock.contender()) as second:
        assert first.try_take() and not second.try_take()
        terminate(postgres_url, backend_of(second))
        assert not second.try_take()
        first.close()
        assert second.try_take() and second.has_it()


def test_a_server_that_ends_idle_sessions_does_not_end_it(
    store: PostgresStore, postgres_url: str
) -> None:
    """A load takes minutes, in which nothing is said."""
    with psycopg.connect(postgres_url, autocommit=True) as raw:
        if raw.info.server_version < 140000:
            pytest.skip("this server ends no idle sessions")
        raw.execute(f"ALTER DATABASE {raw.info.dbname} SET idle_session_timeout = '1min'".encode())
    with closing(store.session_lock("swap").contender()) as contender:
        assert contender._raw.execute("SHOW idle_session_timeout").fetchone() == ("0",)


def test_a_watched_lock_reports_the_end_of_its_session(
    store: PostgresStore, postgres_url: str
) -> None:
    lost = threading.Event()
    with closing(store.session_lock("swap").contender()) as contender:
        assert contender.try_take()
        contender.watch(lost.set)
        assert contender.has_it() and not lost.wait(0.2)
        terminate(postgres_url, backend_of(contender))
        assert lost.wait(PATIENCE_S)
    with closing(store.session_lock("swap").contender()) as contender:
        lost.clear()
        assert contender.try_take()
        contender.watch(lost.set)
    assert not lost.is_set(), "closed by its own will"


def test_a_swap_whose_session_ends_stops_its_command_and_changes_nothing(
    postgres_url: str, tmp_path: Path
) -> None:
    """It learned of it only when the command had ended, and loaded beside the next swap until
    then.
    """
    environment = {**os.environ, "HOLDFAST_STORE": postgres_url, "XDG_STATE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "holdfast.surfaces.cli.entry", "swap", "to", "llama", "--"]
    script = "import os, time; print('loading', flush=True); time.sleep(600)"
    with subprocess.Popen(
        [*command, sys.executable, "-c", script],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as swapping:
        assert swapping.stdout is not None and swapping.stdout.readline() == "loading\n"
        with psycopg.connect(postgres_url, autocommit=True) as raw:
            raw.execute(
                "SELECT pg_terminate_backend(l.pid, 10000) FROM pg_locks l JOIN pg_stat_activity "
                "a USING (pid) "
                "WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND a.datname = "
                "current_database()"
            )
        _, said = swapping.communicate(timeout=PATIENCE_S)
    assert swapping.returncode == 4, said
    assert "SIGTERM" in said and "Traceback" not in said
    with holdfast.connect(postgres_url) as hf:
        assert hf.workflows.swap_status().current is None


def test_a_lock_whose_watcher_never_started_is_released(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: threading.Thread) -> None:
        raise KeyboardInterrupt

    lock = store.session_lock("swap")
    contender = lock.contender()
    assert contender.try_take()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            contender.watch(lambda: None)
    contender.close()
    assert not lock.is_held()
    os.close(contender._stop_fd)
