"""The measured work on PostgreSQL: Holdfast's way, and the raw way, on the same rows of the same tables.

One database serves all rounds, and each round has its own namespace. The raw side does only what
PostgreSQL needs: it checks and encodes nothing, wakes nobody, and its statements are prepared.
"""

import multiprocessing
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import holdfast
from bench.work import PROMPT, SESSION
from holdfast.domains.jobs.records import JOBS, Job
from holdfast.kernel.codec import to_json
from holdfast.kernel.order import span

_TOPIC = "bench"
_COLUMNS = "ns, key, rev, value, by_turn"


def prepare_jobs(folder: Path, *, address: str, jobs: int) -> None:
    """Pending jobs in the round's namespace, and tables as the server keeps them after a while of
    use.
    """
    import psycopg

    with holdfast.connect(address, namespace=folder.name) as hf:
        hf.jobs.list_jobs()
    now = datetime.now(UTC)
    with psycopg.connect(address, autocommit=True) as raw:
        with raw.cursor().copy(f"COPY holdfast.s_jobs ({_COLUMNS}) FROM STDIN".encode()) as rows:
            for number in range(jobs):
                key = f"job-{number:06}"
                job = Job(
                    job_id=key,
                    created_at=now,
                    updated_at=now,
                    prompt=PROMPT,
                    agent="claude",
                    agent_session=SESSION,
                    priority=0,
                    arrival=number + 1,
                    timeout_sec=60.0,
                    idle_timeout_sec=60.0,
                    expected_artifacts=(),
                )
                rows.write_row(
                    (folder.name, key, number + 1, to_json(job).decode(), JOBS.index_keys(job)[0])
                )
        raw.execute("VACUUM ANALYZE holdfast.s_jobs")


def prepare_nothing(folder: Path, *, address: str) -> None:
    """The tables alone."""
    with (
        holdfast.connect(address, namespace=folder.name) as hf,
        hf.locks.acquire("warm", by="bench"),
    ):
        pass


class Claim:
    """A worker that claims one job after the other."""

    def __init__(self, folder: Path, number: int, *, address: str) -> None:
        self._app = holdfast.connect(address, namespace=folder.name)

    def __call__(self) -> bool:
        return self._app.jobs.pick_pending(SESSION) is not None

    def close(self) -> None:
        self._app.close()


class RawClaim:
    """The same by hand: lock the first free job, write it, write the journal's row, commit."""

    _FIND = (
        "SELECT key, value FROM holdfast.s_jobs WHERE ns = %s AND by_turn >= %s AND by_turn < %s "
        "ORDER BY by_turn, key LIMIT 1 FOR UPDATE SKIP LOCKED"
    )
    _TAKE = (
        "UPDATE holdfast.s_jobs SET rev = nextval('holdfast.revision'), value = %s, by_turn = NULL "
        "WHERE ns = %s AND key = %s RETURNING rev"
    )
    _TELL = (
        "INSERT INTO holdfast.journal (revision, ns, at, actor, kind, subject, data) "
        "VALUES (%s, %s, now(), 'bench', 'job.status_changed', %s, "
        '\'{"from":"pending","to":"running","attempt":1}\')'
    )

    def __init__(self, folder: Path, number: int, *, address: str) -> None:
        import psycopg

        self._raw = psycopg.connect(address, prepare_threshold=0)
        self._ns = folder.name
        self._span = span((SESSION,))

    def __call__(self) -> bool:
        found = self._raw.execute(self._FIND, (self._ns, *self._span)).fetchone()
        if found is None:
            self._raw.rollback()
            return False
        key, value = found
        taken = self._raw.execute(
            self._TAKE, (value.replace('"pending"', '"running"'), self._ns, key)
        ).fetchall()
        self._raw.execute(self._TELL, (taken[0][0], self._ns, key))
        self._raw.commit()
        return True

    def close(self) -> None:
        self._raw.close()


class LockPair:
    """Take a lock and release it."""

    def __init__(self, folder: Path, number: int, *, address: str) -> None:
        self._app = holdfast.connect(address, namespace=folder.name)
        self._job = f"job-{number}"

    def __call__(self) -> bool:
        self._app.locks.release(self._app.locks.acquire("lock", by=self._job))
        return True

    def close(self) -> None:
        self._app.close()


class RawLockPair:
    """A row that names the holder: one statement inserts it, one deletes it."""

    def __init__(self, folder: Path, number: int, *, address: str) -> None:
        import psycopg

        self._raw = psycopg.connect(address, autocommit=True, prepare_threshold=0)
        self._raw.execute(
            "CREATE TABLE IF NOT EXISTS row_lock (name text PRIMARY KEY, owner text NOT NULL, at "
            "timestamptz)"
        )
        self._name, self._owner = folder.name, f"job-{number}"

    def __call__(self) -> bool:
        put = "INSERT INTO row_lock VALUES (%s, %s, now()) ON CONFLICT DO NOTHING"
        taken = self._raw.execute(put, (self._name, self._owner)).rowcount
        gone = self._raw.execute(
            "DELETE FROM row_lock WHERE name = %s AND owner = %s", (self._name, self._owner)
        ).rowcount
        return taken == gone == 1

    def close(self) -> None:
        self._raw.close()


class Wake:
    """Wake another process, and wait for its answer through a pipe."""

    def __init__(self, folder: Path, number: int, *, address: str) -> None:
        self._app = holdfast.connect(address, namespace=folder.name)
        self._echo = Echo(_listen, address, folder.name)

    def __call__(self) -> bool:
        self._app.store.transact(lambda tx: tx.notify(_TOPIC), scope=[])
        return self._echo.heard()

    def close(self) -> None:
        self._echo.close()
        self._app.close()


class RawWake:
    """The same with only NOTIFY and LISTEN."""

    def __init__(self, folder: Path, number: int, *, address: str) -> None:
        import psycopg

        self._raw = psycopg.connect(address, autocommit=True, prepare_threshold=0)
        self._echo = Echo(_listen_raw, address, folder.name)

    def __call__(self) -> bool:
        self._raw.execute("SELECT pg_notify(%s, '')", (_TOPIC,))
        return self._echo.heard()

    def close(self) -> None:
        self._echo.close()
        self._raw.close()


class Echo:
    """A process that listens, and reports each wake-up."""

    def __init__(self, listen: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._receive, send = context.Pipe(duplex=False)
        self._process = context.Process(target=listen, args=(send, *arguments), daemon=False)
        # A worker is a daemon, which may not have children unless this is set.
        multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
        self._process.start()
        assert self.heard()

    def heard(self) -> bool:
        self._receive.recv_bytes()
        return True

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def _listen(send: Connection, address: str, namespace: str) -> None:
    with holdfast.connect(address, namespace=namespace) as hf, hf.store.listen([_TOPIC]) as ears:
        send.send_bytes(b"ready")
        while True:
            if ears.wait(None).notified:
                send.send_bytes(b"woken")


def _listen_raw(send: Connection, address: str, _: str) -> None:
    import psycopg

    with closing(psycopg.connect(address, autocommit=True)) as raw:
        raw.execute(f"LISTEN {_TOPIC}".encode())
        send.send_bytes(b"ready")
        for _notice in raw.notifies():
            send.send_bytes(b"woken")
