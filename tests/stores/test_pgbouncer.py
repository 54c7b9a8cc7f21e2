"""PgBouncer between a store and its server: a session each is all that is needed, and less is
refused in words.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest

import holdfast
from holdfast.kernel.errors import StoreUnavailable
from holdfast.stores.postgres import open_postgres
from holdfast.testing.conformance.harness import put
from holdfast.testing.conformance.hostile import Hostile
from holdfast.testing.conformance.journal import JournalSuite
from holdfast.testing.conformance.transactions import Transactions
from tests.harness.requirements import skip_or_fail
from tests.harness.timeouts import PATIENCE_S, until
from tests.stores.harnesses_postgres import POSTGRES, PostgresHarness
from tests.stores.postgres_server import Server

pytestmark = pytest.mark.prove

_SETTINGS = """
[databases]
* = host={server} user=holdfast
[pgbouncer]
unix_socket_dir = {folder}
listen_addr =
listen_port = 6432
auth_type = any
pool_mode = {mode}
max_client_conn = 500
default_pool_size = 90
logfile = {folder}/log
pidfile = {folder}/pid
ignore_startup_parameters = extra_float_digits
"""


def _binary() -> str:
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if found is None:
        skip_or_fail("no PgBouncer here: apt-get install pgbouncer")
    return found


@contextmanager
def pooling(server: Server, mode: str) -> Iterator[Path]:
    """A PgBouncer before a server, for the block; the folder of its socket. It does not run as
    root.
    """
    binary, folder = _binary(), Path(tempfile.mkdtemp(prefix="hfpb-"))
    if server.user:
        os.chown(folder, server.user["user"], server.user["group"])
    settings = folder / "pgbouncer.ini"
    settings.write_text(_SETTINGS.format(server=server.folder, folder=folder, mode=mode))
    process = subprocess.Popen(
        [binary, "-q", str(settings)], cwd=folder, stderr=subprocess.DEVNULL, **server.user
    )
    try:
        # It does not report when it is ready.
        until(lambda: process.poll() is not None or _listens(folder / ".s.PGSQL.6432"))
        yield folder
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        shutil.rmtree(folder, ignore_errors=True)


def _listens(path: Path) -> bool:
    """The file exists before anybody can connect."""
    with socket.socket(socket.AF_UNIX) as asking:
        return asking.connect_ex(str(path)) == 0


@pytest.fixture(scope="module")
def sessions(postgres_server: Server) -> Iterator[Path]:
    with pooling(postgres_server, "session") as folder:
        yield folder


def through(url: str, server: Server, folder: Path) -> str:
    return url.replace(str(server.folder), str(folder)) + "&port=6432"


class TestSessions(Transactions, Hostile, JournalSuite):
    """The shipped suite, but for its races of processes, through a pooler that gives each client a
    session.
    """

    capabilities = POSTGRES

    @pytest.fixture
    def harness(
        self, postgres_url: str, postgres_server: Server, sessions: Path
    ) -> PostgresHarness:
        return PostgresHarness(through(postgres_url, postgres_server, sessions))


def test_locks_and_wake_ups_go_through_a_pooler_of_sessions(
    postgres_url: str, postgres_server: Server, sessions: Path
) -> None:
    url = through(postgres_url, postgres_server, sessions)
    with holdfast.connect(url) as first, holdfast.connect(url) as second:
        grant = first.locks.acquire("a", by="one")
        got: list[int] = []
        waiting = threading.Thread(
            target=lambda: got.append(
                second.locks.acquire("a", by="two", timeout_s=PATIENCE_S).token
            )
        )
        waiting.start()
        first.locks.release(grant)
        waiting.join(PATIENCE_S)
        assert got and got[0] > grant.token
        with first.workflows.swap("llama") as swap:
            with psycopg.connect(postgres_url, autocommit=True) as raw:
                raw.execute(
                    "SELECT pg_terminate_backend(pid, 10000) FROM pg_locks WHERE locktype = "
                    "'advisory' AND objsubid = 1 "
                    "AND database = (SELECT oid FROM pg_database WHERE datname = "
                    "current_database())"
                )
            assert swap.lost.wait(PATIENCE_S)
            swap.fail("the session has ended")


@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_a_pooler_of_transactions_is_refused_when_connecting(
    postgres_url: str, postgres_server: Server, mode: str
) -> None:
    with closing(open_postgres(postgres_url)) as store:
        put(store, "k")
    with pooling(postgres_server, mode) as folder:
        url = through(postgres_url, postgres_server, folder)
        with pytest.raises(StoreUnavailable, match="pool_mode = session") as refused:
            open_postgres(url)
        assert refused.value.fields["outcome"] == "none"
        # Also while others are connected to it, so that no session of the pool is free.
        with psycopg.connect(url) as busy:
            if mode == "transaction":
                busy.execute("SELECT 1")
            with pytest.raises(StoreUnavailable, match="pool_mode = session"):
                open_postgres(url)
