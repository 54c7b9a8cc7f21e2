"""Programs that fork with a store open, run by `python -m tests.hazards.fork_parents NAME PATH
...`.

Each change that a store has acknowledged is a line `acked KEY`, and each refusal a line `refused`.
They go on at each line that they read.
"""

import ctypes
import errno
import gc
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from holdfast.kernel.errors import HoldfastError, StoreUnavailable
from holdfast.kernel.store import Tx
from holdfast.stores.sqlite import gate, handles, wal
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.stores.sqlite.users import Users
from holdfast.testing.conformance.harness import THINGS, VOLATILE, Thing, put

FORK = multiprocessing.get_context("fork")


def say(line: str) -> None:
    """In one write, so that lines of several processes stay whole."""
    os.write(1, f"{line}\n".encode())


def hear() -> None:
    """Wait for a line, without a buffer that a child would inherit."""
    while os.read(0, 1) not in (b"\n", b""):
        pass


def write(store: SqliteStore, key: str) -> None:
    put(store, key)
    say(f"acked {key}")


def try_write(path: str, key: str, inherited: SqliteStore | None = None) -> bool:
    """Write with an inherited store, or with one of this process's own, and print the outcome."""
    try:
        store = inherited or open_store(path)
        write(store, key)
        put(store, key, space=VOLATILE)
    except StoreUnavailable as error:
        named = "spawn" in str(error) and "forkserver" in str(error)
        say("refused" if named and error.fields["outcome"] == "none" else f"strange: {error}")
        return False
    return True


def open_store(path: str) -> SqliteStore:
    return SqliteStore(Path(path), boot_id="boot-1")


def forked(work: Callable[[], object]) -> int:
    """Fork a child that does the work; return its pid."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return child


# --- a thread that waits at the gate, and a worker that connects by itself ---


def waiting_thread(path: str, how: str) -> None:
    """The gate is shut from outside. A thread waits there, and another starts a worker, whose first
    line to read is the sign to go on.
    """
    store = open_store(path)
    write(store, "parent")
    say("open")
    hear()
    waiting = threading.Thread(target=write, args=(store, "waiting"), daemon=True)
    waiting.start()
    say("waiting")
    hear()
    begun = {"fork": _by_os_fork, "process": _by_process, "grandchild": _by_grandchild}[how](path)
    say("forked")
    waiting.join()
    store.close()
    say("closed")
    sys.exit(begun())


def _by_os_fork(path: str) -> Callable[[], int]:
    child = forked(lambda: _worker(path))
    return lambda: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _by_process(path: str) -> Callable[[], int]:
    worker = FORK.Process(target=_worker, args=(path,))
    worker.start()

    def ended() -> int:
        worker.join()
        return worker.exitcode or 0

    return ended


def _by_grandchild(path: str) -> Callable[[], int]:
    def child() -> None:
        grandchild = forked(lambda: _worker(path))
        assert os.waitpid(grandchild, 0)[1] == 0

    pid = forked(child)
    return lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _worker(path: str) -> None:
    hear()
    store = None
    for number in range(12):
        try:
            store = store or open_store(path)
        except StoreUnavailable as error:
            say(
                "refused"
                if "spawn" in str(error) and "forkserver" in str(error)
                else f"strange: {error}"
            )
            return
        write(store, f"worker {number}")
        say("worked")
        hear()


# --- busy threads ---


def busy_threads(path: str, threads: str, children: str, how: str, wait_s: str) -> None:
    """Threads read and write without an end while children are forked, which write by the inherited
    store or by their own. A fork waits for the threads for that long.
    """
    handles.FORK_WAIT_S = float(wait_s)
    store = open_store(path)
    stop = threading.Event()
    begun = threading.Semaphore(0)

    def busy(number: int) -> None:
        space = VOLATILE if number % 2 else THINGS
        while not stop.is_set():
            try:
                if number % 3:
                    store.get(space, "busy")
                else:
                    put(store, f"busy {number}", space=space)
            except HoldfastError:
                # Nothing is promised to those who wait while others take all the time.
                pass
            begun.release()

    working = [
        threading.Thread(target=busy, args=(number,), daemon=True) for number in range(int(threads))
    ]
    for thread in working:
        thread.start()
    for _ in working:
        begun.acquire()
    _CHILDREN[how](path, store, int(children))
    stop.set()
    say("ended")
    os._exit(0)


def _many_forks(path: str, store: SqliteStore, children: int) -> None:
    for number in range(children):
        child = forked(partial(try_write, path, f"child {number}", store if number % 2 else None))
        assert os.waitpid(child, 0)[1] == 0


def _many_exits(path: str, store: SqliteStore, children: int) -> None:
    """Children that end as programs do, so that the interpreter frees what they inherited."""
    for number in range(children):
        child = os.fork()
        if child == 0:
            try_write(path, f"child {number}", store if number % 2 else None)
            gc.collect()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0


def _many_processes(path: str, store: SqliteStore, children: int) -> None:
    workers = [
        FORK.Process(target=try_write, args=(path, f"child {n}", store if n % 2 else None))
        for n in range(children)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0


def _pool(path: str, store: SqliteStore, children: int) -> None:
    with FORK.Pool(2) as pool:
        pool.starmap(try_write, [(path, f"child {number}") for number in range(children)])


def _executor(path: str, store: SqliteStore, children: int) -> None:
    with ProcessPoolExecutor(2, mp_context=FORK) as pool:
        list(
            pool.map(
                try_write, [path] * children, [f"child {number}" for number in range(children)]
            )
        )


_CHILDREN = {
    "fork": _many_forks,
    "exit": _many_exits,
    "process": _many_processes,
    "pool": _pool,
    "executor": _executor,
}


# --- a server that forks its workers ---


def prefork_server(path: str, workers: str, rounds: str) -> None:
    """As gunicorn does with `preload`: the store is open before the workers are forked, and one
    that is killed is replaced.
    """
    store = open_store(path)
    write(store, "server")
    children: dict[int, int] = {}
    # Not the standard input, which is the server's: a worker would read what is said to it.
    waiting, ending = os.pipe()

    def serve(number: int) -> None:
        os.close(ending)
        own = open_store(path) if number % 2 else store
        for change in range(5):
            write(own, f"worker {number}.{change}")
            put(own, f"worker {number}", space=VOLATILE)
        say("served")
        os.read(waiting, 1)
        write(own, f"worker {number} again")

    def begin(number: int) -> None:
        children[forked(lambda: serve(number))] = number

    for number in range(int(workers)):
        begin(number)
        write(store, f"server {number}")
    for round_ in range(int(rounds)):
        hear()
        victim = next(iter(children))
        os.kill(victim, 9)
        os.waitpid(victim, 0)
        del children[victim]
        begin(int(workers) + round_)
        write(store, f"server {int(workers) + round_}")
    say("begun")
    os.close(ending)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    store.close()
    say("ended")


# --- forks at bad moments ---


def inside_a_transaction(path: str) -> None:
    """The child continues the transaction of its parent, and commits it."""
    store = open_store(path)
    parent = os.getpid()

    def body(tx: Tx) -> int:
        tx.put(THINGS, "inside", Thing())
        child = os.fork()
        if child == 0:
            tx.put(THINGS, "child", Thing())
        else:
            assert os.waitpid(child, 0)[1] == 0
        return child

    try:
        store.transact(body, scope=[THINGS])
    except StoreUnavailable as error:
        assert os.getpid() != parent
        say("refused" if "spawn" in str(error) else f"strange: {error}")
        try_write(path, "child after")
        try_write(path, "child after", store)
        sys.exit(0)
    assert os.getpid() == parent
    write(store, "after")
    store.close()


def without_hooks(path: str) -> None:
    """A C library forks, so that Python's hooks do not run."""
    store = open_store(path)
    write(store, "before")
    child = ctypes.CDLL(None).fork()
    if child == 0:
        try_write(path, "child", store)
        try_write(path, "child")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    write(store, "after")
    store.close()


def failing_hook(path: str, error: str) -> None:
    """The child cannot release: the program has closed its descriptors, or no memory is left."""
    store = open_store(path)
    write(store, "before")
    inside, leave = threading.Event(), threading.Event()

    def dawdle(tx: Tx) -> None:
        inside.set()
        leave.wait()

    slow = threading.Thread(target=lambda: store.transact(dawdle, scope=[THINGS]), daemon=True)
    slow.start()
    inside.wait()
    handles.FORK_WAIT_S = 0

    def fail(*_: object) -> None:
        raise OSError(errno.EBADF, "") if error == "EBADF" else MemoryError

    usual = (wal.Log.close, gate.Gate.abandon, Users.close)

    def put_back() -> None:
        wal.Log.close, gate.Gate.abandon, Users.close = usual  # type: ignore[method-assign]

    # The last hook of all.
    os.register_at_fork(after_in_child=put_back, after_in_parent=put_back)
    wal.Log.close = gate.Gate.abandon = Users.close = fail  # type: ignore[method-assign, assignment]
    child = forked(lambda: (try_write(path, "child", store), try_write(path, "child")))
    assert os.waitpid(child, 0)[1] == 0
    leave.set()
    slow.join()
    write(store, "after")
    store.close()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
