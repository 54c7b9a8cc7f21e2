"""Real processes that acquire and release locks when a test commands them to."""

import contextlib
import fcntl
import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import holdfast
from holdfast.kernel import faults as points
from holdfast.primitives.locks import Grant
from holdfast.primitives.locks.records import LOCK_WAITS, LOCKS
from holdfast.primitives.locks.wait import Ahead
from holdfast.runtime.connection import Holdfast
from holdfast.testing import faults
from proof.parent import end_with_parent
from tests.harness.stopped_processes import stop_outside
from tests.harness.timeouts import PATIENCE_S

RENEWALS_MAX = 20
"""How many signs of life are waited for. Long enough for any machine; nothing here takes it unless
it fails.
"""


STORES = ["sqlite", pytest.param("postgres", marks=pytest.mark.prove)]


class Granted(NamedTuple):
    """A process's report of a grant. `key` names it in later calls; `at_s` is its time, by
    CLOCK_MONOTONIC.
    """

    key: str
    names: tuple[str, ...]
    taken: tuple[str, ...]
    token: int
    at_s: float


class Actor:
    """What runs in a process: its connection, its grants, and the calls it makes on request."""

    def __init__(self, parent: Connection, url: str) -> None:
        self._parent = parent
        self._url = url
        self._grants: dict[str, Grant] = {}
        self._witnesses: dict[str, int] = {}
        self._hf: Holdfast | None = None

    @property
    def hf(self) -> Holdfast:
        if self._hf is None:
            self._hf = holdfast.connect(self._url)
        return self._hf

    def run(self) -> None:
        """Do what the parent says until it hangs up."""
        while True:
            call, arguments, more = self._parent.recv()
            try:
                answer = getattr(self, call)(*arguments, **more)
            except BaseException as error:
                answer = error
                error.add_note(traceback.format_exc())
            try:
                self._parent.send(("done", answer))
            except (TypeError, AttributeError) as error:
                self._parent.send(("done", AssertionError(f"cannot be sent: {answer!r}: {error}")))

    def say(self, word: str) -> None:
        """Tell the parent something in the middle of a call."""
        self._parent.send((word, None))

    def connect(self) -> int:
        """Connect, so that this costs nothing later."""
        assert self.hf.locks is not None
        return os.getpid()

    def acquire(self, names: str | Sequence[str], **more: Any) -> Granted:
        grant = self.hf.locks.acquire(names, on_wait=self._waits, **more)
        at_s = time.monotonic()
        key = f"{os.getpid()}-{len(self._grants)}"
        self._grants[key] = grant
        return Granted(key, grant.names, grant.taken, grant.token, at_s)

    def _waits(self, _: Sequence[Ahead]) -> None:
        self.say("waits")

    def try_acquire(self, names: str | Sequence[str], **more: Any) -> bool:
        return self.hf.locks.try_acquire(names, **more) is not None

    def wait(self, names: str | Sequence[str], **more: Any) -> bool:
        return self.hf.locks.wait(names, on_wait=self._waits, **more)

    def release(self, key: str) -> bool:
        return self.hf.locks.release(self._grants[key])

    def renew(self, key: str) -> None:
        self.hf.locks.renew(self._grants[key])

    def check(self, key: str) -> None:
        self._grants[key].check()

    def check_token(self, name: str, token: int) -> None:
        self.hf.check_token(name, token)

    def lost(self, key: str) -> bool:
        """Whether this process is notified within some time that the grant was lost."""
        return self._grants[key].lost.wait(PATIENCE_S)

    def is_lost(self, key: str) -> bool:
        return self._grants[key].lost.is_set()

    def free(self, names: str | Sequence[str], by: str) -> tuple[str, ...]:
        return self.hf.locks.free(names, by=by)

    def kick(self, name: str, why: str) -> int:
        return len(self.hf.locks.kick(name, why=why))

    def acquire_and_give_up(self, names: str | Sequence[str], by: str) -> None:
        """Ask, and be interrupted as soon as that has to wait."""

        def interrupted(_: Sequence[Ahead]) -> None:
            raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt):
            self.hf.locks.acquire(names, by=by, on_wait=interrupted)

    def acquire_and_run_out(self, names: str | Sequence[str], by: str) -> None:
        """Ask, and be out of time as soon as that has to wait."""
        over = os.eventfd(0)
        try:
            got = self.hf.locks.try_acquire(
                names,
                by=by,
                timeout_s=PATIENCE_S,
                on_wait=lambda _: os.eventfd_write(over, 1),
                stop_fd=over,
            )
            assert got is None
        finally:
            os.close(over)

    def use(self, names: str | Sequence[str], by: str) -> None:
        """Take and release a free name."""
        grant = self.hf.locks.acquire(names, by=by)
        assert self.hf.locks.release(grant)

    def arm(self, at: int) -> None:
        """Be killed at the fault point number `at` from here on."""
        passed = 0

        def count(point: str) -> None:
            nonlocal passed
            passed += 1
            if passed == at + 1:
                faults.kill(point)

        points.hook = count

    def arm_at(self, point: str) -> None:
        """Be killed at the next fault point of that name."""
        points.hook = lambda reached: faults.kill(reached) if reached == point else None

    def stop_at(self, *names: str) -> None:
        """Stand still at the next fault point of such a name, until SIGCONT."""

        def stop(reached: str) -> None:
            if reached in names:
                points.hook = None
                faults.stop(reached)

        points.hook = stop

    def witness(self, folder: Path, names: Sequence[str]) -> None:
        """Take the kernel's own lock on a file for each name. Raises when another process has it:
        two held one resource.
        """
        for name in names:
            fd = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._witnesses[name] = fd
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def unwitness(self) -> None:
        while self._witnesses:
            os.close(self._witnesses.popitem()[1])

    def take_turns(self, folder: Path, names: Sequence[str], turns: int | None, seed: int) -> int:
        """Take random sets of the names over and over, as one that holds must find it."""
        chosen = random.Random(seed)
        done = 0
        while turns is None or done < turns:
            some = chosen.sample(names, chosen.randint(1, min(2, len(names))))
            with self.hf.locks.hold(some, by=f"job-{os.getpid()}", timeout_s=PATIENCE_S):
                self.witness(folder, some)
                self.unwitness()
            done += 1
            if turns is None:
                self.say("turn")
        return done

    def close(self) -> None:
        self.hf.close()

    def nap(self) -> None:
        """Block until a signal comes."""
        self.say("naps")
        signal.pause()


class Process:
    """A process as its parent sees it."""

    def __init__(self, url: str, *, host: str | None = None, folder: Path | None = None) -> None:
        self._url = url
        self._pipe, theirs = Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                # It must not outlive the tests, however those end.
                end_with_parent()
                signal.signal(signal.SIGINT, signal.default_int_handler)
                self._pipe.close()
                if host is not None:
                    os.environ["HOLDFAST_HOST_ID"] = host
                if folder is not None:
                    os.chdir(folder)
                Actor(theirs, url).run()
            finally:
                os._exit(1)
        theirs.close()
        self.alive = True

    def __getattr__(self, call: str) -> Callable[..., Any]:
        """A call that the process makes, to its end."""

        def make(*arguments: Any, **more: Any) -> Any:
            self.begin(call, *arguments, **more)
            return self.result()

        return make

    def begin(self, call: str, *arguments: Any, **more: Any) -> None:
        """Let it begin a call."""
        self._pipe.send((call, arguments, more))

    def heard(self, word: str) -> Any:
        """Wait until it says a word, and return what it says with it; what the call raised is
        raised here.
        """
        while True:
            assert self._pipe.poll(PATIENCE_S), f"process {self.pid} never said {word!r}"
            said, what = self._pipe.recv()
            if said == "done" and isinstance(what, BaseException):
                raise what
            if said == word:
                return what
            assert said != "done", f"it is done ({what!r}) and never said {word!r}"

    def result(self) -> Any:
        """What its call returned, or raised."""
        return self.heard("done")

    def line_up(self, names: str | Sequence[str], *, by: str, **more: Any) -> "Process":
        """Request a held name; return when the request is queued."""
        self.begin("acquire", names, by=by, **{"timeout_s": PATIENCE_S, **more})
        self.heard("waits")
        return self

    def look(self, names: str | Sequence[str], *, by: str, **more: Any) -> "Process":
        """The same for `wait`."""
        self.begin("wait", names, by=by, **{"timeout_s": PATIENCE_S, **more})
        self.heard("waits")
        return self

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> float:
        """Kill it with -9 and return when that was. It stays a zombie, as it does under a parent
        that does not look.
        """
        at_s = time.monotonic()
        os.kill(self.pid, signal.SIGKILL)
        return at_s

    def die(self) -> None:
        """Kill it, and wait until it is dead for everybody to see."""
        self.kill()
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def stop(self) -> None:
        """SIGSTOP, and wait until it stands still, at a moment at which it keeps nobody out of the
        store.
        """
        stop_outside(self.pid, self._url)

    def stop_after_renewal(self) -> None:
        """Let it stand still just after its next sign of life; elsewhere it might keep everybody
        out of the store.
        """
        # The thread that does its writing may not have left yet when the one that renews is
        # stopped.
        stop_outside(
            self.pid,
            self._url,
            lambda: self.stop_at("sqlite.notify.after", "postgres.commit.after"),
            RENEWALS_MAX,
        )

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def was_killed(self) -> bool:
        """Wait until its call is over (False) or it is dead (True)."""
        while True:
            assert self._pipe.poll(PATIENCE_S)
            try:
                said, what = self._pipe.recv()
            except (EOFError, ConnectionResetError):
                return True
            if said == "done":
                if isinstance(what, BaseException):
                    raise what
                return False

    def end(self) -> int:
        """Kill it, if it lives, and clear it away; return how it ended."""
        self._pipe.close()
        if not self.alive:
            return 0
        self.alive = False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    @property
    def pipe(self) -> Connection:
        return self._pipe


class Crowd:
    """The processes of a test, on one store; none is left at its end."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._all: list[Process] = []
        self._hf: Holdfast | None = None

    def process(self, *, host: str | None = None, folder: Path | None = None) -> Process:
        """A new process."""
        made = Process(self.url, host=host, folder=folder)
        self._all.append(made)
        return made

    def processes(self, number: int) -> list[Process]:
        """Some new processes, each connected already."""
        made = [self.process() for _ in range(number)]
        for process in made:
            process.begin("connect")
        for process in made:
            assert process.result() == process.pid
        return made

    @property
    def hf(self) -> Holdfast:
        """The parent's own eyes."""
        if self._hf is None:
            self._hf = holdfast.connect(self.url)
        return self._hf

    def holders(self, name: str) -> list[str]:
        return [hold.by for hold in self.hf.locks.status(name).holds]

    def queue(self, name: str) -> list[str]:
        return [request.by for request in self.hf.locks.status(name).queue]

    def rows(self) -> list[str]:
        """Every row of the lock table, of resources and of requests; but for what the dead did not
        read, which is cleared away in the background now and then.
        """
        self.hf.locks.clear_unread()

        def keys(tx: Any) -> list[str]:
            return [
                f"{space.name}/{row.key}"
                for space in (LOCKS, LOCK_WAITS)
                for row in tx.range(space)
            ]

        return self.hf.store.read(keys, scope=[LOCKS, LOCK_WAITS])

    def close(self) -> None:
        for process in self._all:
            process.end()
        if self._hf is not None:
            self._hf.close()


@contextlib.contextmanager
def crowd_on(kind: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[Crowd]:
    """A crowd on a new store of that kind."""
    url = (
        f"sqlite:{folder / 'store.sqlite'}"
        if kind == "sqlite"
        else request.getfixturevalue("postgres_url")
    )
    # Made before there are several processes to make it; and what it takes is loaded once, not in
    # each child.
    with holdfast.connect(url) as hf:
        hf.locks.release(hf.locks.acquire("first", by="parent"))
    with closing(Crowd(url)) as made:
        yield made
