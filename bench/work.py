"""The measured work: Holdfast's way, and the raw way, which writes the same rows into the same tables.

The raw side does only what SQLite needs: it checks nothing, encodes only the key and the number,
wakes nobody, and prepares its statements once.
"""

import fcntl
import os
import random
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

import holdfast
from holdfast.domains.jobs.records import JOBS, Job
from holdfast.kernel.codec import Record, to_json
from holdfast.kernel.space import Space, rows
from holdfast.kernel.store import Store, Tx

STORE = "store.sqlite"
RAW = "raw.sqlite"
FILE = "file"

SESSION = "tmux:claude-a"
PROMPT = (
    "Look at the failing test in the payment module, find the cause, and propose the smallest "
    "change that fixes it."
)
ENTRY = {"agent_session": SESSION}
READ_KEYS = 1000

FULL = "power loss"
"""What a durable change survives."""
KILL = "kill -9"
"""What a volatile change survives."""

GROWING_CHANGES = 1000
"""After this many changes the log has its full size on both sides. A file that still grows costs
more to sync.
"""

_BUSY_TIMEOUT_S = 10.0
_FILE_BYTES = 16 << 20
_BLOCK_BYTES = 4096
_REGION_BLOCKS = 128
_OWNER_BYTES = 64


class Mark(Record, frozen=True, kw_only=True):
    """A small volatile record, as a lock's is."""

    owner: str


MARKS = Space("bench_marks", Mark, volatile=True)
MARK = Mark(owner="x" * _OWNER_BYTES)


def url_of(folder: Path) -> str:
    """The address of the store of a round."""
    return f"sqlite:{folder / STORE}"


def open_store(folder: Path) -> Store:
    """The store of a round."""
    return holdfast.connect(url_of(folder)).store


def prepare_nothing(_: Path) -> None:
    """The folder was prepared once, for all rounds."""


def prepare_store(folder: Path) -> None:
    """A store whose tables exist."""
    store = open_store(folder)
    store.transact(change("first"), scope=[rows(JOBS)])
    store.put_new(MARKS, [("first", MARK)])
    store.close()


def prepare_filled(folder: Path) -> None:
    """A store with records to read."""
    prepare_store(folder)
    store = open_store(folder)
    for number in range(READ_KEYS):
        store.transact(change(f"job-{number}"), scope=[rows(JOBS)], durable=False)
    store.close()


def prepare_raw(folder: Path) -> None:
    """A database of the same tables and rows as a new store's durable file."""
    prepare_store(folder)
    _copy(folder / STORE, folder / RAW)


def prepare_raw_filled(folder: Path) -> None:
    """A database of the same tables and rows as a store with records to read."""
    prepare_filled(folder)
    _copy(folder / STORE, folder / RAW)


def prepare_raw_volatile(folder: Path) -> None:
    """A database with only the volatile table and without a counter, as somebody would create it by
    hand.
    """
    prepare_store(folder)
    [volatile] = (
        path for path in folder.iterdir() if ".locks-" in path.name and path.suffix == ".sqlite"
    )
    _copy(volatile, folder / RAW)


def prepare_pending(folder: Path, pending: int) -> None:
    """A store with so many pending jobs of one queue, in rows as Holdfast writes them."""
    with holdfast.connect(url_of(folder)) as hf:
        hf.jobs.register_job(PROMPT, agent="claude", agent_session=SESSION)
        model = hf.jobs.list_jobs()[0]
    first = model.arrival + 1
    template = msgspec.structs.replace(model, job_id="%s", arrival=-99, topic_prefix="%s")
    record = to_json(template).replace(b'"%s"', b'"%b"').replace(b"-99", b"%d")
    # Each place ends with the job's number, or is none.
    places = [place and place[:-8] for place in JOBS.index_keys(template)]

    def key(number: int) -> str:
        # Ids are random: the order of the keys is not that of the queue.
        return f"20260101-000000-{number * 2654435761 % (1 << 32):08x}"

    def row(number: int) -> tuple[object, ...]:
        job_id = key(number)
        turn = (number + (1 << 63)).to_bytes(8, "big")
        value = record % (job_id.encode(), number, f"holdfast/jobs/{job_id}".encode())
        return ("default", job_id, number, value, *(place and place + turn for place in places))

    raw = sqlite3.connect(folder / STORE, isolation_level=None)
    # Nobody has the file open, and nothing is lost that a new round could not make.
    raw.execute("PRAGMA journal_mode = DELETE")
    raw.execute("PRAGMA journal_mode = OFF")
    raw.execute("PRAGMA synchronous = OFF")
    raw.execute("PRAGMA cache_size = -200000")
    raw.execute("BEGIN")
    raw.executemany(_insert(JOBS), map(row, sorted(range(first, first + pending - 1), key=key)))
    raw.execute("UPDATE meta SET number = ? WHERE name = 'revision'", (first + pending,))
    raw.execute("COMMIT")
    raw.execute("PRAGMA journal_mode = WAL")
    raw.close()


def prepare_file(folder: Path) -> None:
    """A file whose blocks all exist, so that a sync writes only data."""
    with (folder / FILE).open("wb") as file:
        file.write(os.urandom(_FILE_BYTES))
        file.flush()
        os.fsync(file.fileno())


def change(key: str) -> Callable[[Tx], None]:
    """One change as the domains make it: a record with an index, and its journal entry."""

    def body(tx: Tx) -> None:
        job = Job(
            job_id=key,
            created_at=tx.now,
            updated_at=tx.now,
            prompt=PROMPT,
            agent="claude",
            agent_session=SESSION,
            arrival=tx.revision,
        )
        tx.put(JOBS, key, job)
        tx.append(actor="bench/1", kind="job.registered", subject=key, data=ENTRY)

    return body


class _Keys:
    """Unique keys in random order, like random ids."""

    def __init__(self, number: int) -> None:
        self._bits = random.Random(number).getrandbits
        self._number = number

    def next(self) -> str:
        return f"{self._bits(48):012x}{self._number:02d}"


class DurableChangeNew:
    """Holdfast: one durable transaction, on a store that was just opened. Safe for threads."""

    def __init__(self, folder: Path, number: int) -> None:
        self._store = open_store(folder)
        self._keys = _Keys(number)

    def __call__(self) -> bool:
        self._store.transact(change(self._keys.next()), scope=[rows(JOBS)])
        return True

    def close(self) -> None:
        self._store.close()


class DurableChange(DurableChangeNew):
    """The same on a store that has been in use for a while."""

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(folder, number)
        for _ in range(GROWING_CHANGES if number == 0 else 0):
            self._store.transact(change(self._keys.next()), scope=[rows(JOBS)], durable=False)


class RawDurableChangeNew:
    """SQLite: the same rows in one transaction, by a connection that syncs at each commit."""

    def __init__(self, folder: Path, number: int) -> None:
        self._raw = _connect(folder, "FULL")
        self._keys = _Keys(number)
        at = datetime.now(UTC)
        blank = Job(
            job_id="%s",
            created_at=at,
            updated_at=at,
            prompt=PROMPT,
            agent="claude",
            agent_session=SESSION,
            arrival=-99,
        )
        self._record = to_json(blank).replace(b'"%s"', b'"%b"').replace(b"-99", b"%d")
        # Each place ends with the job's number, or is none.
        self._places = [place and place[:-8] for place in JOBS.index_keys(blank)]
        self._insert = _insert(JOBS)
        self._entry = ("default", int(at.timestamp() * 1e6), "bench/1", "job.registered")
        self._data = to_json(ENTRY)

    def __call__(self) -> bool:
        key = self._keys.next()
        run = self._raw.execute
        try:
            run("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        # The row's own number is the revision, so that no counter has to be read.
        rev = run(
            "INSERT INTO journal (ns, at, actor, kind, subject, data) VALUES (?, ?, ?, ?, ?, ?)",
            (*self._entry, key, self._data),
        ).lastrowid
        assert rev is not None
        places = [place and place + rev.to_bytes(8, "big") for place in self._places]
        run(self._insert, ("default", key, rev, self._record % (key.encode(), rev), *places))
        run("COMMIT")
        return True

    def close(self) -> None:
        self._raw.close()


class RawDurableChange(RawDurableChangeNew):
    """The same on a database that has been in use for a while."""

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(folder, number)
        if number == 0:
            self._raw.execute("PRAGMA synchronous = OFF")
            for _ in range(GROWING_CHANGES):
                self()
            self._raw.execute("PRAGMA synchronous = FULL")


class RawInTurn(RawDurableChange):
    """The limit of Holdfast's way: the raw statements, in turns by a bare flock, with one fdatasync
    each.
    """

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(folder, number)
        self._raw.execute("PRAGMA synchronous = NORMAL")
        self._raw.execute("SELECT count(*) FROM meta").fetchone()
        self._turn = os.open(folder / "turn", os.O_RDWR | os.O_CREAT, 0o600)
        self._log = os.open(folder / f"{RAW}-wal", os.O_RDONLY)

    def __call__(self) -> bool:
        if not hasattr(self, "_log"):
            return super().__call__()
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        done = super().__call__()
        fcntl.flock(self._turn, fcntl.LOCK_UN)
        os.fdatasync(self._log)
        return done

    def close(self) -> None:
        os.close(self._log)
        os.close(self._turn)
        super().close()


class Append:
    """The limit: 4 KB written to existing blocks, and synced. Each worker has its own blocks."""

    def __init__(self, folder: Path, number: int) -> None:
        self._fd = os.open(folder / FILE, os.O_RDWR)
        self._block = os.urandom(_BLOCK_BYTES)
        self._first = number * _REGION_BLOCKS
        self._count = 0

    def __call__(self) -> bool:
        self._count += 1
        os.pwrite(
            self._fd, self._block, (self._first + self._count % _REGION_BLOCKS) * _BLOCK_BYTES
        )
        os.fdatasync(self._fd)
        return True

    def close(self) -> None:
        os.close(self._fd)


class VolatilePair:
    """Holdfast: put a volatile record that must be new, and delete it by its token."""

    def __init__(self, folder: Path, number: int) -> None:
        self._store = open_store(folder)
        self._key = f"lock-{number}"

    def __call__(self) -> bool:
        token = self._store.put_new(MARKS, [(self._key, MARK)])
        assert token is not None
        assert self._store.delete_if(MARKS, [self._key], token) == 1
        return True

    def close(self) -> None:
        self._store.close()


class RawVolatilePair:
    """SQLite: the same insert and delete, each a transaction of its own."""

    def __init__(self, folder: Path, number: int) -> None:
        self._raw = _connect(folder, "OFF")
        self._key = f"lock-{number}"
        self._value = to_json(MARK)
        self._rev = 1 << 52

    def __call__(self) -> bool:
        self._rev += 1
        self._raw.execute(
            "INSERT INTO s_bench_marks (ns, key, rev, value) VALUES (?, ?, ?, ?)",
            ("default", self._key, self._rev, self._value),
        )
        self._raw.execute(
            "DELETE FROM s_bench_marks WHERE ns = ? AND key = ? AND rev = ?",
            ("default", self._key, self._rev),
        )
        return True

    def close(self) -> None:
        self._raw.close()


class VolatileChange:
    """Holdfast: a transaction that puts one volatile record."""

    def __init__(self, folder: Path, number: int) -> None:
        self._store = open_store(folder)
        self._key = f"lock-{number}"

    def __call__(self) -> bool:
        self._store.transact(lambda tx: tx.put(MARKS, self._key, MARK), scope=[MARKS])
        return True

    def close(self) -> None:
        self._store.close()


class RawVolatileChange:
    """SQLite: the same row, put by one statement."""

    def __init__(self, folder: Path, number: int) -> None:
        self._raw = _connect(folder, "OFF")
        self._key = f"lock-{number}"
        self._value = to_json(MARK)
        self._rev = 1 << 52

    def __call__(self) -> bool:
        self._rev += 1
        self._raw.execute(
            "INSERT INTO s_bench_marks (ns, key, rev, value) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (ns, key) DO UPDATE SET rev = excluded.rev, value = excluded.value",
            ("default", self._key, self._rev, self._value),
        )
        return True

    def close(self) -> None:
        self._raw.close()


class Read:
    """Holdfast: a record by its key."""

    def __init__(self, folder: Path, number: int) -> None:
        self._store = open_store(folder)
        self._count = number

    def __call__(self) -> bool:
        self._count += 1
        assert self._store.get(JOBS, f"job-{self._count % READ_KEYS}") is not None
        return True

    def close(self) -> None:
        self._store.close()


class RawRead:
    """SQLite: the same row, as bytes."""

    def __init__(self, folder: Path, number: int) -> None:
        self._raw = _connect(folder, "NORMAL")
        self._count = number

    def __call__(self) -> bool:
        self._count += 1
        sql = "SELECT value, rev FROM s_jobs WHERE ns = ? AND key = ?"
        assert (
            self._raw.execute(sql, ("default", f"job-{self._count % READ_KEYS}")).fetchone()
            is not None
        )
        return True

    def close(self) -> None:
        self._raw.close()


def _insert(space: Space[Any]) -> str:
    """The statement that inserts a record, as the store's own."""
    columns = ["ns", "key", "rev", "value", *(f"by_{name}" for name in space.indexes)]
    marks = ", ".join("?" * len(columns))
    return f"INSERT INTO s_{space.name} ({', '.join(columns)}) VALUES ({marks})"


def _connect(folder: Path, synchronous: str) -> sqlite3.Connection:
    raw = sqlite3.connect(folder / RAW, timeout=_BUSY_TIMEOUT_S, isolation_level=None)
    raw.execute(f"PRAGMA synchronous = {synchronous}")
    return raw


def _copy(source: Path, target: Path) -> None:
    """Create the source's tables in the target, with its own statements, and copy the rows."""
    raw = sqlite3.connect(target, isolation_level=None)
    raw.execute("PRAGMA journal_mode = WAL")
    raw.execute("ATTACH ? AS source", (str(source),))
    made = raw.execute(
        "SELECT type, name, sql FROM source.sqlite_master WHERE sql IS NOT NULL"
    ).fetchall()
    for kind, name, sql in made:
        raw.execute(sql)
        if kind == "table":
            raw.execute(f"INSERT INTO main.{name} SELECT * FROM source.{name}")
    raw.close()
