"""A primary with a synchronous standby, each a real server."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.harness.timeouts import PATIENCE_S, until
from tests.stores.postgres_server import Server

STANDBY = "standby"
FOR_STANDBY = {
    "wal_level": "replica",
    "max_wal_senders": "4",
    "wal_retrieve_retry_interval": "100ms",
}
"""Settings of a primary, and of a standby that may become one."""


@contextmanager
def replicated(primary: Server) -> Iterator[Server]:
    """A standby of a server that runs with the settings FOR_STANDBY: from here on it waits for it
    at each commit.
    """
    folder = Path(tempfile.mkdtemp(prefix="hfsb-"))
    try:
        if primary.user:
            os.chown(folder, primary.user["user"], primary.user["group"])
        copy: list[str | Path] = [
            primary.binaries / "pg_basebackup",
            "-D",
            folder / "data",
            "-h",
            primary.folder,
            "-U",
            "holdfast",
            "-c",
            "fast",
        ]
        subprocess.run(
            [*copy, "--no-sync", "-X", "stream"],
            check=True,
            capture_output=True,
            cwd=folder,
            **primary.user,
        )
        (folder / "data" / "standby.signal").touch()
        source = f"host={primary.folder} user=holdfast application_name={STANDBY}"
        standby = Server(
            folder, primary.binaries, primary.user, {**primary.settings, "primary_conninfo": source}
        )
        try:
            standby.start()
            _synchronise(primary)
            yield standby
        finally:
            standby.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def promote(standby: Server) -> None:
    """Make the standby a primary that waits for nobody, and return when it is."""
    with psycopg.connect(standby.url, autocommit=True) as raw:
        assert raw.execute("SELECT pg_promote(true, %s)", (int(PATIENCE_S),)).fetchall() == [
            (True,)
        ]


def _synchronise(primary: Server) -> None:
    """Let the primary wait for its standby from now on, and return when it does."""
    with psycopg.connect(primary.url, autocommit=True) as raw:
        raw.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{STANDBY}'".encode())
        raw.execute("SELECT pg_reload_conf()")
        asked = "SELECT sync_state FROM pg_stat_replication"
        until(
            lambda: raw.execute(asked).fetchall() == [("sync",)],
            saw=lambda: raw.execute(asked).fetchall(),
        )
