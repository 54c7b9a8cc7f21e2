"""The queues that are compared: each is used as its documentation shows, and set to sync what it
acknowledges.

The work is the same for all: store a job, take the next one, complete it. Each step survives a power
loss once it is acknowledged. Each measurement imports its own library.
"""

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import holdfast
from bench.work import PROMPT, SESSION

HOLDFAST = "Holdfast, sqlite"
HOLDFAST_APART = "Holdfast, sqlite, claimed apart"
HOLDFAST_POSTGRES = "Holdfast, PostgreSQL"
SKIP_LOCKED = "SKIP LOCKED by hand"
PROCRASTINATE = "procrastinate"
AHEAD = 100
"""Jobs that wait from the start, so that no worker finds the queue empty."""
GROWING = 1000
"""After this much work the log of a SQLite file has its full size."""

_BODY = json.dumps({"prompt": PROMPT, "agent": "claude", "agent_session": SESSION})


class Peer(Protocol):
    """One process's side of a queue."""

    def put(self) -> None:
        """Store a job."""
        ...

    def __call__(self) -> bool:
        """Store a job, take the next, and complete it."""
        ...

    def close(self) -> None:
        """Disconnect."""
        ...


Opens = Callable[..., Peer]


@dataclass(frozen=True)
class Kind:
    """A queue that takes part."""

    name: str
    opens: Opens
    module: str
    distribution: str = ""
    server: str = ""
    alone: bool = False
    """Whether only one process at a time can use it."""
    lacks: str = ""
    """What it does not do that the others do."""


def take_part(servers: Mapping[str, str | None]) -> tuple[list[Kind], list[str]]:
    """The queues that can be measured here, with the addresses of their servers, and the names of
    the others.
    """
    able, absent = [], []
    for kind in KINDS:
        address = servers.get(kind.server)
        if importlib.util.find_spec(kind.module) is None:
            absent.append(kind.name)
        elif kind.server and not address:
            absent.append(f"{kind.name} (its server)")
        else:
            able.append(
                replace(kind, opens=partial(kind.opens, address=address)) if kind.server else kind
            )
    return able, absent


def prepare(folder: Path, *, opens: Opens) -> None:
    """A queue that has been in use for a while, with jobs that wait."""
    peer = opens(folder, -1)
    for _ in range(AHEAD):
        peer.put()
    peer.close()


class Holdfast:
    """Register; then complete and claim the next in one transaction."""

    def __init__(self, folder: Path, number: int) -> None:
        self._begin(holdfast.connect(f"sqlite:{folder / 'store.sqlite'}"), number)

    def _begin(self, hf: holdfast.Holdfast, number: int) -> None:
        self._hf = hf
        self._jobs = hf.jobs
        self._holder = hf.processes.current()
        self._current = (
            None if number < 0 else self._jobs.pick_pending(SESSION, holder=self._holder)
        )

    def put(self) -> None:
        self._jobs.register_job(PROMPT, agent="claude", agent_session=SESSION)

    def __call__(self) -> bool:
        self.put()
        job = self._current
        assert job is not None
        assert job.token is not None
        self._current = self._jobs.finish_and_pick(
            job.job_id, "completed", token=job.token, agent_session=SESSION, holder=self._holder
        ).picked
        return True

    def close(self) -> None:
        self._hf.close()


class HoldfastApart(Holdfast):
    """Register, claim and complete in a transaction each."""

    def _begin(self, hf: holdfast.Holdfast, number: int) -> None:
        super()._begin(hf, -1)

    def __call__(self) -> bool:
        self.put()
        job = self._jobs.pick_pending(SESSION, holder=self._holder)
        assert job is not None
        self._jobs.update_status(job.job_id, "completed", token=job.token)
        return True


class HoldfastPostgres(Holdfast):
    """The same on PostgreSQL, in a namespace a round."""

    def __init__(self, folder: Path, number: int, *, address: str) -> None:
        self._begin(
            holdfast.connect(address, namespace=f"n{folder.name.replace('_', 'x')}"), number
        )


class Huey:
    """The storage of huey: taking a job removes it."""

    def __init__(self, folder: Path, number: int) -> None:
        from huey.storage import SqliteStorage

        self._storage = SqliteStorage(
            "bench", filename=str(folder / "huey.db"), fsync=True, timeout=20
        )

    def put(self) -> None:
        self._storage.enqueue(_BODY.encode())

    def __call__(self) -> bool:
        self.put()
        assert self._storage.dequeue() is not None
        return True

    def close(self) -> None:
        self._storage.close()


class PersistQueue:
    """The queue of persist-queue that has acknowledgements."""

    def __init__(self, folder: Path, number: int) -> None:
        import persistqueue

        self._queue = persistqueue.SQLiteAckQueue(str(folder / "persist"), auto_commit=True)

    def put(self) -> None:
        self._queue.put(_BODY)

    def __call__(self) -> bool:
        self.put()
        item = self._queue.get(block=False)
        self._queue.ack(item)
        return True

    def close(self) -> None:
        self._queue.close()


class Litequeue:
    """litequeue, set to sync: by default it does not."""

    def __init__(self, folder: Path, number: int) -> None:
        from litequeue import LiteQueue

        self._queue = LiteQueue(str(folder / "lite.db"), timeout=20)
        self._queue.conn.execute("PRAGMA synchronous = FULL")

    def put(self) -> None:
        self._queue.put(_BODY)

    def __call__(self) -> bool:
        self.put()
        taken = self._queue.pop()
        assert taken is not None
        self._queue.done(taken.message_id)
        return True

    def close(self) -> None:
        self._queue.close()


class _Database:
    """A connection to a schema of the round's own."""

    def __init__(self, folder: Path, number: int, *, address: str) -> None:
        import psycopg

        name = f"b{folder.name.replace('-', '_')}".lower()
        self._raw = psycopg.connect(address, autocommit=True, prepare_threshold=0)
        if number < 0:
            self._raw.execute(f"CREATE SCHEMA {name}".encode())
        self._raw.execute(f"SET search_path = {name}".encode())
        if number < 0:
            self._make()

    def _make(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._raw.close()


class SkipLocked(_Database):
    """What is written by hand: a table, and FOR UPDATE SKIP LOCKED."""

    _TAKE = (
        "UPDATE jobs SET status = 'running', started_at = now() WHERE id = (SELECT id FROM jobs "
        "WHERE status = 'pending' "
        "ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id, body"
    )

    def _make(self) -> None:
        self._raw.execute(
            "CREATE TABLE jobs (id bigserial PRIMARY KEY, status text NOT NULL DEFAULT 'pending', "
            "body text NOT NULL, "
            "created_at timestamptz NOT NULL DEFAULT now(), started_at timestamptz, finished_at "
            "timestamptz)"
        )
        self._raw.execute("CREATE INDEX ON jobs (id) WHERE status = 'pending'")

    def put(self) -> None:
        self._raw.execute("INSERT INTO jobs (body) VALUES (%s)", (_BODY,))

    def __call__(self) -> bool:
        self.put()
        taken = self._raw.execute(self._TAKE).fetchone()
        assert taken is not None
        self._raw.execute(
            "UPDATE jobs SET status = 'completed', finished_at = now() WHERE id = %s", (taken[0],)
        )
        return True


class Procrastinate(_Database):
    """The statements of procrastinate, without the rest of it."""

    _PUT = (
        "SELECT unnest(procrastinate_defer_jobs_v1(ARRAY[ROW('q', 'task', 0, NULL, NULL, "
        "%s::jsonb, NULL)"
        "::procrastinate_job_to_defer_v1]))"
    )

    def __init__(self, folder: Path, number: int, *, address: str) -> None:
        super().__init__(folder, number, address=address)
        self._worker: Any = self._raw.execute(
            "SELECT * FROM procrastinate_register_worker_v1()"
        ).fetchall()[0][0]

    def _make(self) -> None:
        from procrastinate.schema import SchemaManager

        self._raw.execute(SchemaManager.get_schema().encode(), prepare=False)

    def put(self) -> None:
        self._raw.execute(self._PUT, (_BODY,))

    def __call__(self) -> bool:
        self.put()
        taken = self._raw.execute(
            "SELECT id FROM procrastinate_fetch_job_v2(NULL, %s)", (self._worker,)
        ).fetchone()
        assert taken is not None
        self._raw.execute("SELECT procrastinate_finish_job_v1(%s, 'succeeded', false)", (taken[0],))
        return True


class Redis:
    """Two lists of redis: a job moves to the second while it is worked on."""

    def __init__(self, folder: Path, number: int, *, address: str) -> None:
        import redis

        self._client: Any = redis.Redis(unix_socket_path=address)
        self._waiting, self._taken = f"{folder.name}:waiting", f"{folder.name}:taken"

    def put(self) -> None:
        self._client.rpush(self._waiting, _BODY)

    def __call__(self) -> bool:
        self.put()
        taken = self._client.lmove(self._waiting, self._taken, "LEFT", "RIGHT")
        assert taken is not None
        self._client.lrem(self._taken, 1, taken)
        return True

    def close(self) -> None:
        self._client.close()


_NOTHING_TAKEN_BACK = "a killed worker's job is lost"
_BY_AGE = "a killed worker's job is found by its age alone"

KINDS = (
    Kind(HOLDFAST, Holdfast, "holdfast"),
    Kind(HOLDFAST_APART, HoldfastApart, "holdfast"),
    Kind("huey, fsync", Huey, "huey", "huey", lacks=f"no acknowledgement: {_NOTHING_TAKEN_BACK}"),
    Kind(
        "persist-queue, SQLiteAckQueue",
        PersistQueue,
        "persistqueue",
        "persist-queue",
        alone=True,
        lacks="one process",
    ),
    Kind("litequeue, FULL", Litequeue, "litequeue", "litequeue", lacks=_BY_AGE),
    Kind(
        "redis, AOF always",
        Redis,
        "redis",
        "redis",
        server="redis",
        lacks="no order of priority, no record of what was done",
    ),
    Kind(SKIP_LOCKED, SkipLocked, "psycopg", "psycopg", server="postgres", lacks=_BY_AGE),
    Kind(
        PROCRASTINATE,
        Procrastinate,
        "procrastinate",
        "procrastinate",
        server="postgres",
        lacks="a killed worker's job is found by its heartbeat",
    ),
    Kind(HOLDFAST_POSTGRES, HoldfastPostgres, "psycopg", server="postgres"),
)
"""All of them, in the order of the page."""


def peers(kinds: Sequence[Kind]) -> list[str]:
    """The names of those that are not Holdfast."""
    return [kind.name for kind in kinds if not kind.name.startswith("Holdfast")]
