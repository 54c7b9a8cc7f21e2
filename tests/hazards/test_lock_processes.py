"""Locks among real processes that are killed: whoever is next goes on, and nothing stays held or in
line.

The processes themselves are here too, for the other tests of locks: each does what it is told, one
call after the other, in its main thread, and tells how far it is.
"""

import contextlib
import ctypes
import fcntl
import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import holdfast
from holdfast.kernel import faults as points
from holdfast.kernel.errors import LockTimeout
from holdfast.primitives.locks import Grant
from holdfast.primitives.locks.records import LOCK_WAITS, LOCKS
from holdfast.primitives.locks.wait import Ahead
from holdfast.runtime.connection import Holdfast
from holdfast.testing import faults
from tests.harness import stopped_processes
from tests.harness.stopped_processes import stop_outside
from tests.harness.timeouts import PATIENCE_S
from tests.hazards.postgres_sessions import outlived

RENEWALS_MAX = 20
"""How many signs of life are waited for. Long enough for any machine; nothing here takes it unless
it fails.
"""

STORES = ["sqlite", pytest.param("postgres", marks=pytest.mark.prove)]


class Granted(NamedTuple):
    """What a process tells of a grant. `key` names it in later calls, `at_s` is when it came, by
    CLOCK_MONOTONIC.
    """

    key: str
    names: tuple[str, ...]
    taken: tuple[str, ...]
    token: int
    at_s: float


class Actor:
    """What runs in a process: its connection, its grants, and the calls it can be told to make."""

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
        """Was the grant lost, as far as this process is told within some time?"""
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
        """Take and let go, which nobody is in the way of."""
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


_PR_SET_PDEATHSIG = 1


class Process:
    """A process as its parent sees it."""

    def __init__(self, url: str, *, host: str | None = None, folder: Path | None = None) -> None:
        self._url = url
        self._pipe, theirs = Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                # It must not outlive the tests, however those end.
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
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
        """Let it ask for what is not to be had; returns once its request stands in line."""
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


@pytest.fixture(params=STORES)
def crowd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Crowd]:
    with crowd_on(request.param, tmp_path, request) as made:
        yield made


# --- the processes themselves ---


def test_what_a_process_raises_and_how_it_ends_is_told(crowd: Crowd) -> None:
    one, two = crowd.processes(2)
    one.acquire("a", by="one")
    with pytest.raises(LockTimeout, match="one"):
        two.acquire("a", by="two", timeout_s=0)
    two.begin("nap")
    two.heard("naps")
    two.kill()
    assert two.was_killed()
    assert two.end() == -signal.SIGKILL


def test_two_that_hold_one_resource_would_be_noticed(tmp_path: Path, crowd: Crowd) -> None:
    """The witness of the other tests can fail."""
    one, two = crowd.processes(2)
    one.witness(tmp_path, ["a"])
    with pytest.raises(BlockingIOError):
        two.witness(tmp_path, ["a"])


# --- holders that are killed ---


@pytest.mark.prove
@pytest.mark.usefixtures("no_second_look")
def test_the_next_waiter_is_woken_by_its_holders_death(crowd: Crowd) -> None:
    """How soon is the benchmark's to say."""
    waiter, *holders = crowd.processes(8)
    for holder in holders:
        holder.acquire("a", by="holder")
        waiter.line_up("a", by="waiter")
        holder.kill()
        granted = waiter.result()
        assert waiter.release(granted.key)
    assert crowd.rows() == []


def test_a_killed_holders_whole_set_is_free(crowd: Crowd) -> None:
    holder, one, two = crowd.processes(3)
    holder.acquire(["a", "b", "c"], by="holder")
    one.line_up("a", by="one")
    two.line_up(["b", "c"], by="two")
    holder.kill()
    assert one.result().names == ("a",)
    assert two.result().names == ("b", "c")


def test_a_killed_sharer_is_one_less(crowd: Crowd) -> None:
    first, second, waiter = crowd.processes(3)
    first.acquire("a", by="first", mode="shared")
    granted = second.acquire("a", by="second", mode="shared")
    waiter.line_up("a", by="waiter")
    first.kill()
    # The waiter looks when the first dies, and must not mistake it for the second.
    waiter.heard("waits")
    assert crowd.holders("a") == ["second"]
    assert second.release(granted.key)
    waiter.result()


@pytest.mark.parametrize("deep", [1, 3])
def test_a_holder_and_the_first_in_line_killed_at_once(crowd: Crowd, deep: int) -> None:
    *dying, live = crowd.processes(deep + 2)
    dying[0].acquire("a", by="holder")
    for number, process in enumerate(dying[1:]):
        process.line_up("a", by=f"waiter{number}")
    live.line_up("a", by="live")
    for process in dying:
        process.kill()
    granted = live.result()
    assert crowd.holders("a") == ["live"]
    assert live.release(granted.key)
    assert crowd.rows() == []


def test_a_waiter_killed_in_the_middle_of_the_line(crowd: Crowd) -> None:
    holder, first, middle, last = crowd.processes(4)
    granted = holder.acquire("a", by="holder")
    for by, process in (("first", first), ("middle", middle), ("last", last)):
        process.line_up("a", by=by)
    middle.kill()
    # The one behind sees to it that it is gone, and then has another just ahead.
    last.heard("waits")
    assert crowd.queue("a") == ["first", "last"]
    assert holder.release(granted.key)
    granted = first.result()
    assert first.release(granted.key)
    last.result()


def test_a_waiter_killed_just_as_it_is_granted(crowd: Crowd) -> None:
    """It stands still, so that the grant certainly comes before it can wake."""
    holder, first, last = crowd.processes(3)
    granted = holder.acquire("a", by="holder")
    first.line_up("a", by="first")
    last.line_up("a", by="last")
    first.stop()
    assert holder.release(granted.key)
    assert crowd.holders("a") == ["first"]
    first.kill()
    last.result()


def test_a_stopped_waiter_is_granted_and_goes_on_where_it_was(crowd: Crowd) -> None:
    holder, first, last = crowd.processes(3)
    granted = holder.acquire("a", by="holder")
    first.line_up("a", by="first")
    last.line_up("a", by="last")
    first.stop()
    holder.release(granted.key)
    first.go_on()
    granted = first.result()
    assert crowd.queue("a") == ["last"]
    first.release(granted.key)
    last.result()


def test_stopping_one_that_never_leaves_its_transaction_is_given_up(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = crowd.process()
    monkeypatch.setattr(stopped_processes, "STOPS_MAX", 3)
    monkeypatch.setattr(stopped_processes, "is_inside", lambda *_: True)
    with pytest.raises(AssertionError, match="each of 3 times"):
        one.stop()
    one.die()
    with pytest.raises(AssertionError, match="ended and cannot stop"):
        stopped_processes.wait_until_stopped(one.pid)


def test_a_killed_looker_and_a_killed_upgrader_leave_nothing(crowd: Crowd) -> None:
    holder, looker, upgrader = crowd.processes(3)
    granted = holder.acquire("a", by="holder", mode="shared")
    upgrader.acquire("a", by="upgrader", mode="shared")
    looker.look("a", by="looker")
    upgrader.line_up("a", by="upgrader")
    looker.die()
    upgrader.die()
    assert holder.release(granted.key)
    fresh = crowd.process()
    granted = fresh.acquire("a", by="fresh")
    assert fresh.release(granted.key)
    assert crowd.rows() == []


def test_a_holder_killed_while_it_waits_for_more(crowd: Crowd) -> None:
    """Its grants and its place in line go, on both names."""
    dying, other, waiter = crowd.processes(3)
    dying.acquire("a", by="dying")
    granted = other.acquire("b", by="other")
    dying.line_up(["a", "b"], by="dying")
    waiter.line_up("a", by="waiter")
    dying.kill()
    waiter.result()
    assert other.release(granted.key)
    fresh = crowd.process()
    granted = fresh.acquire("b", by="fresh")
    assert fresh.release(granted.key)
    assert crowd.rows() == ["locks/a"]


def test_crossed_locks_of_which_one_side_was_killed(crowd: Crowd) -> None:
    """The living one is not told of a deadlock with the dead."""
    one, two = crowd.processes(2)
    one.acquire("a", by="one")
    two.acquire("b", by="two")
    two.line_up("a", by="two")
    two.die()
    assert one.acquire("b", by="one").names == ("b",)


def test_a_job_begun_again_after_its_process_was_killed_holds_for_itself(crowd: Crowd) -> None:
    """The same job in a new process must not build on the grant of the dead one, which anybody may
    take over.
    """
    first, again, other = crowd.processes(3)
    old = first.acquire("a", by="job")
    first.die()
    new = again.acquire("a", by="job")
    assert new.taken == ("a",)
    assert new.token > old.token
    assert not other.try_acquire("a", by="other")
    again.check(new.key)
    assert again.release(new.key)


def test_another_process_with_the_pid_of_the_holder_is_not_the_holder(crowd: Crowd) -> None:
    """Pids come round again; the start time does not."""
    (live,) = crowd.processes(1)
    process = crowd.hf.processes.of(live.pid)
    reused = holdfast.kernel.holder.Holder(
        **process.place._asdict(),
        pid=process.pid,
        start_ticks=process.start_ticks - 1,
        label="the earlier one",
    )
    held = crowd.hf.locks.acquire("a", by="job", process=reused)
    waiter = crowd.process()
    assert waiter.acquire("a", by="waiter", timeout_s=0).token > held.token
    # The living one that has the pid now is another matter.
    crowd.hf.locks.acquire("b", by="job", process=process)
    assert not waiter.try_acquire("b", by="waiter")
    live.kill()
    waiter.acquire("b", by="waiter")


# --- many ---


@pytest.mark.prove
def test_killed_at_random_moments_under_load(crowd: Crowd, tmp_path: Path) -> None:
    """Never two at once, and at the end everything is to be had again."""
    names = [f"r{number}" for number in range(3)]
    chosen = random.Random(7)
    running: list[Process] = []
    for number in range(30):
        while len(running) < 4:
            process = crowd.process()
            process.begin("take_turns", tmp_path, names, None, seed=100 * number + len(running))
            running.append(process)
        # Let some turns pass, a different number each time, and kill whoever it may be.
        for _ in range(chosen.randint(1, 12)):
            _a_turn(running)
        victim = running.pop(chosen.randrange(len(running)))
        victim.kill()
        assert victim.end() == -signal.SIGKILL, "it ended by itself"
    for process in running:
        process.kill()
        assert process.end() == -signal.SIGKILL, "it ended by itself"
    outlived(crowd.hf, crowd.url)
    (last,) = crowd.processes(1)
    granted = last.acquire(names, by="last")
    assert last.release(granted.key)
    assert crowd.rows() == []


def _a_turn(running: Sequence[Process]) -> None:
    ready = wait([process.pipe for process in running], PATIENCE_S)
    assert ready, "nobody gets a turn"
    for process in running:
        if process.pipe in ready:
            said, what = process.pipe.recv()
            if isinstance(what, BaseException):
                raise what
            assert said == "turn"


@pytest.mark.prove
@pytest.mark.parametrize(("kind", "number", "turns"), [("sqlite", 100, 5), ("postgres", 30, 5)])
def test_a_hundred_processes_on_one_lock_all_get_it(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, number: int, turns: int
) -> None:
    with crowd_on(kind, tmp_path, request) as crowd:
        processes = crowd.processes(number)
        began_s = time.monotonic()
        for seed, process in enumerate(processes):
            process.begin("take_turns", tmp_path, ["a"], turns, seed=seed)
        assert [process.result() for process in processes] == [turns] * number
        took_s = time.monotonic() - began_s
        print(f"{number} processes, {turns} turns each: {took_s:.2f} s")
        assert took_s < PATIENCE_S
        assert crowd.rows() == []
