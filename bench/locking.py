"""The locks that are compared: each library used the way its documentation shows, in its fastest
proper setting.

Each measurement imports its own library. The report names those that are not installed, and a library
that installs hooks into the interpreter slows down only itself.
"""

import fcntl
import importlib.metadata
import importlib.util
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import holdfast

LEASE_S = 1.0
"""The lease of redis-py's locks where a holder is killed. It is too short for real use, where it must
be longer than the longest pause of a holder.
"""
LONG_LEASE_S = 60.0
"""Their lease where many processes take turns, so that no holder loses its lock while it waits for a
processor.
"""

HOLDFAST = "Holdfast, sqlite"
HOLDFAST_POSTGRES = "Holdfast, PostgreSQL"
FLOCK = "flock"
FILELOCK = "filelock"
FASTENERS = "fasteners"
REDIS = "redis-py"
ADVISORY = "PostgreSQL advisory lock"
LIBRARIES = (FILELOCK, FASTENERS, "portalocker", "tooz, file driver", "diskcache")
"""The Python libraries that need no server. Holdfast is compared with the fastest of them."""


class Peer(Protocol):
    """One process's side of a kind of lock: connected, for a fixed set of names."""

    def acquire(self, names: Sequence[str]) -> None:
        """Wait until all are held. The names are sorted, so that a peer that takes one by one
        cannot deadlock.
        """
        ...

    def release(self, names: Sequence[str]) -> None:
        """Release the last acquired locks."""
        ...

    def close(self) -> None:
        """Disconnect."""
        ...


Opens = Callable[..., Peer]
"""Makes a worker's side from a folder, the worker's number, the names, and the `address` of the
server if it needs one. It is a module's function or a partial of one, so that a process can receive
it.
"""


@dataclass(frozen=True)
class Kind:
    """A kind of lock: the peer, and what it does besides exclusion."""

    name: str
    opens: Opens
    module: str
    """The module that must be importable."""
    package: str = ""
    """The distribution whose version is reported."""
    owner: str = "none"
    token: str = "none"
    killed: str = "freed by the kernel"
    """What happens to the lock of a killed holder."""
    order: str = "none"
    """The order in which waiters get it, and how they wait."""
    server: str = ""
    """The key of the server that it needs, among the running ones."""
    limit: bool = False


def take_part(
    kinds: Sequence[Kind], servers: Mapping[str, str | None]
) -> tuple[list[Kind], list[str]]:
    """The kinds that can be measured here, with the addresses of their servers, and the names of
    the others.
    """
    able, absent = [], []
    for kind in kinds:
        address = servers.get(kind.server)
        if importlib.util.find_spec(kind.module) is None:
            absent.append(kind.name)
        elif kind.server and not address:
            absent.append(f"{kind.name} (its server)")
        elif kind.server:
            able.append(replace(kind, opens=partial(kind.opens, address=address)))
        else:
            able.append(kind)
    return able, absent


def prepare(folder: Path, *, opens: Opens, names: Sequence[str]) -> None:
    """Create what the first use of a name creates, so that no round does, and load what its workers
    need.
    """
    peer = opens(folder, 0, names)
    for name in names:
        peer.acquire([name])
        peer.release([name])
    peer.close()


def version(kind: Kind) -> str:
    """The library and its version, if there is one."""
    return f"{kind.package} {importlib.metadata.version(kind.package)}" if kind.package else ""


class Flock:
    """The bare system call on files that stay open."""

    def __init__(self, folder: Path, number: int, names: Sequence[str]) -> None:
        self._files = {
            name: os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600) for name in names
        }

    def acquire(self, names: Sequence[str]) -> None:
        for name in names:
            fcntl.flock(self._files[name], fcntl.LOCK_EX)

    def release(self, names: Sequence[str]) -> None:
        for name in reversed(names):
            fcntl.flock(self._files[name], fcntl.LOCK_UN)

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)


class OneByOne:
    """Objects with `acquire` and `release`, one for each name: the form of most libraries."""

    def __init__(self, locks: dict[str, Any]) -> None:
        self._locks = locks

    def acquire(self, names: Sequence[str]) -> None:
        for name in names:
            self._locks[name].acquire()

    def release(self, names: Sequence[str]) -> None:
        for name in reversed(names):
            self._locks[name].release()

    def close(self) -> None:
        pass


class Semaphore(OneByOne):
    """POSIX semaphores, which belong to the system and are in no folder."""

    def __init__(self, folder: Path, number: int, names: Sequence[str]) -> None:
        import posix_ipc

        super().__init__(
            {
                name: posix_ipc.Semaphore(
                    f"/{folder.name}-{name}", posix_ipc.O_CREAT, initial_value=1
                )
                for name in names
            }
        )

    def close(self) -> None:
        for semaphore in self._locks.values():
            semaphore.unlink()
            semaphore.close()


class Filelock(OneByOne):
    """filelock.FileLock. It is a little faster when threads share the state of a lock than with its
    default.
    """

    def __init__(self, folder: Path, number: int, names: Sequence[str]) -> None:
        from filelock import FileLock

        super().__init__({name: FileLock(folder / name, thread_local=False) for name in names})


class Fasteners(OneByOne):
    """fasteners.InterProcessLock."""

    def __init__(self, folder: Path, number: int, names: Sequence[str]) -> None:
        from fasteners import InterProcessLock

        super().__init__({name: InterProcessLock(folder / name) for name in names})


class Portalocker(OneByOne):
    """portalocker.Lock that blocks in the kernel, on an unbuffered file."""

    def __init__(self, folder: Path, number: int, names: Sequence[str]) -> None:
        from portalocker import Lock, LockFlags

        super().__init__(
            {
                name: Lock(folder / name, "ab", flags=LockFlags.EXCLUSIVE, buffering=0)
                for name in names
            }
        )


class PortalockerOpen:
    """portalocker.lock and unlock on files that the caller keeps open: flock itself, with the
    errors translated.
    """

    def __init__(self, folder: Path, number: int, names: Sequence[str]) -> None:
        import portalocker

        self._lock, self._unlock, self._how = (
            portalocker.lock,
            portalocker.unlock,
            portalocker.LockFlags.EXCLUSIVE,
        )
        self._files = {name: (folder / name).open("ab", buffering=0) for name in names}

    def acquire(self, names: Sequence[str]) -> None:
        for name in names:
            self._lock(self._files[name], self._how)

    def release(self, names: Sequence[str]) -> None:
        for name in reversed(names):
            self._unlock(self._files[name])

    def close(self) -> None:
        for file in self._files.values():
            file.close()


class Tooz(OneByOne):
    """Locks of a tooz coordinator with its file driver."""

    def __init__(self, folder: Path, number: int, names: Sequence[str]) -> None:
        from tooz.coordination import get_coordinator

        self._coordinator = get_coordinator(f"file://{folder}", f"member-{number}".encode())
        self._coordinator.start()
        super().__init__({name: self._coordinator.get_lock(name.encode()) for name in names})

    def close(self) -> None:
        self._coordinator.stop()


class Diskcache(OneByOne):
    """diskcache.Lock, in a cache that evicts nothing, as its recipe requires, and syncs nothing, as
    Holdfast's locks do not.
    """

    def __init__(self, folder: Path, number: int, names: Sequence[str]) -> None:
        from diskcache import Cache, Lock

        self._cache = Cache(str(folder), eviction_policy="none", sqlite_synchronous=0)
        super().__init__({name: Lock(self._cache, name) for name in names})

    def close(self) -> None:
        self._cache.close()


class Redis(OneByOne):
    """redis-py's Lock with a lease, over the server's socket file, and with the parser in C that
    its documentation advises.
    """

    lease_s = LEASE_S

    def __init__(self, folder: Path, number: int, names: Sequence[str], address: str) -> None:
        from redis import Redis as Client

        self._client = Client(unix_socket_path=address)
        lock = partial(self._client.lock, timeout=self.lease_s)
        super().__init__({name: lock(f"{folder.name}-{name}") for name in names})

    def close(self) -> None:
        self._client.close()


class RedisLongLease(Redis):
    """The same with a lease that outlasts the round."""

    lease_s = LONG_LEASE_S


class Advisory:
    """PostgreSQL's advisory locks of a session: one prepared statement takes a set, one releases
    it.
    """

    def __init__(self, folder: Path, number: int, names: Sequence[str], address: str) -> None:
        import psycopg

        self._connection = psycopg.connect(address, autocommit=True, prepare_threshold=0)
        self._run = self._connection.cursor(binary=True).execute
        self._numbers = {name: zlib.crc32(f"{folder.name}-{name}".encode()) for name in names}
        self._calls: dict[tuple[str, int], bytes] = {}

    def acquire(self, names: Sequence[str]) -> None:
        self._call("pg_advisory_lock", names)

    def release(self, names: Sequence[str]) -> None:
        self._call("pg_advisory_unlock", names)

    def _call(self, function: str, names: Sequence[str]) -> None:
        # Columns are computed from left to right, so the locks are taken in the order of the names.
        statement = self._calls.get((function, len(names)))
        if statement is None:
            statement = ("SELECT " + ", ".join(f"{function}(%s::bigint)" for _ in names)).encode()
            self._calls[function, len(names)] = statement
        self._run(statement, [self._numbers[name] for name in names])

    def close(self) -> None:
        self._connection.close()


class Holdfast:
    """Holdfast: one job a process, one request for all the names."""

    def __init__(self, folder: Path, number: int, names: Sequence[str], address: str = "") -> None:
        self._app = holdfast.connect(address or f"sqlite:{folder / 'store.sqlite'}")
        self._locks = self._app.locks
        self._job = f"job-{number}"
        self._grant: Any = None

    def acquire(self, names: Sequence[str]) -> None:
        self._grant = self._locks.acquire(names[0] if len(names) == 1 else names, by=self._job)

    def release(self, names: Sequence[str]) -> None:
        self._locks.release(self._grant)

    def close(self) -> None:
        self._app.close()


class HoldfastPostgres(Holdfast):
    """The same on PostgreSQL. A database serves all rounds, so the names carry the round's
    folder.
    """

    def __init__(self, folder: Path, number: int, names: Sequence[str], address: str) -> None:
        super().__init__(folder, number, names, address)
        self._round = folder.name

    def acquire(self, names: Sequence[str]) -> None:
        super().acquire([f"{self._round}-{name}" for name in names])


_POLLS = "none: each tries again {}"

KINDS = (
    Kind(
        HOLDFAST,
        Holdfast,
        "holdfast",
        "holdfast",
        owner="the job",
        token="grows with each grant",
        killed="passed to the next at once",
        order="of arrival, by priority; woken",
    ),
    Kind(FILELOCK, Filelock, "filelock", "filelock", order=_POLLS.format("every 50 ms")),
    Kind(
        FASTENERS,
        Fasteners,
        "fasteners",
        "fasteners",
        order=_POLLS.format("after 10 ms, growing to 100 ms"),
    ),
    Kind(
        "portalocker", Portalocker, "portalocker", "portalocker", order="none: the kernel wakes all"
    ),
    Kind(
        "tooz, file driver",
        Tooz,
        "tooz",
        "tooz",
        order=_POLLS.format("after 10 ms, growing to 100 ms"),
    ),
    Kind(
        "diskcache",
        Diskcache,
        "diskcache",
        "diskcache",
        owner="none: anybody's release frees it",
        killed="stays for ever, or until an expiry",
        order=_POLLS.format("every 1 ms"),
    ),
    Kind(
        REDIS,
        Redis,
        "redis",
        "redis",
        owner="checked at release",
        token="random, so it fences nothing",
        killed="stays until its lease ends",
        order=_POLLS.format("every 100 ms"),
        server="redis",
    ),
    Kind(
        ADVISORY,
        Advisory,
        "psycopg",
        "psycopg",
        owner="the session",
        killed="freed when the connection ends",
        order="of arrival; woken",
        server="postgres",
    ),
    Kind(
        HOLDFAST_POSTGRES,
        HoldfastPostgres,
        "psycopg",
        "holdfast",
        owner="the job",
        token="grows with each grant",
        killed="passed to the next at once, by lease across machines",
        order="of arrival, by priority; woken",
        server="postgres",
    ),
    Kind(FLOCK, Flock, "fcntl", order="none: the kernel wakes all", limit=True),
    Kind(
        "portalocker.lock, file left open",
        PortalockerOpen,
        "portalocker",
        "portalocker",
        order="none: the kernel wakes all",
        limit=True,
    ),
    Kind(
        "posix_ipc semaphore",
        Semaphore,
        "posix_ipc",
        "posix_ipc",
        killed="stays for ever",
        limit=True,
    ),
)
"""All of them, in the order of the page."""


def long_leases(kinds: Sequence[Kind]) -> list[Kind]:
    """The kinds, with long leases where they have any."""
    return [replace(kind, opens=RedisLongLease) if kind.opens is Redis else kind for kind in kinds]


def kinds(*names: str) -> list[Kind]:
    """Some of them by name."""
    return [kind for name in names for kind in KINDS if kind.name == name]
