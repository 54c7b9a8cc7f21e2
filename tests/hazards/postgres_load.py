"""Work on one PostgreSQL store by several machines, and what must be true of it however the server
was treated meanwhile.

A machine is a process with a host id of its own, so that the others cannot probe it. Each does
rounds of: count in a record of its own and in one of all, register a job, claim one and complete
it, hold a lock. It keeps what it was told, and tells its parent of every round: of those that were
acknowledged as a whole, and of what was in the way of the others.
"""

import faulthandler
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import holdfast
from holdfast.kernel.errors import Unavailable
from holdfast.kernel.space import rows
from holdfast.kernel.store import BEGINNING, JOURNAL_TOPIC, Entry, Store, Tx
from holdfast.runtime.connection import Holdfast
from holdfast.stores.postgres import open_postgres
from holdfast.testing.conformance.harness import THINGS, Thing
from tests.harness.timeouts import PATIENCE_S, until

LABEL, LOCK, ALL = "load", "load-lock", "all"
CALL_S = 4.0
"""The time limit of a count: shorter than some outages, so that callers get errors from them."""


class Turn(NamedTuple):
    """A turn with the lock: by CLOCK_MONOTONIC, which is one for all processes of this machine."""

    token: int
    begun_s: float
    ended_s: float


class Report(NamedTuple):
    """The answers that one machine got."""

    name: str
    counted: int
    unsure: int
    registered: list[str]
    claims: list[tuple[str, int]]
    completed: list[str]
    turns: list[Turn]
    errors: Counter[str]


class Round(NamedTuple):
    """A machine's report after each round."""

    whole: bool
    errors: Counter[str]
    """All that it ever met."""


class Machine:
    """What runs in a process."""

    def __init__(self, hf: Holdfast, name: str, call_s: float) -> None:
        self._hf = hf
        self._call_s = call_s
        self._rounds = 0
        self.report = Report(name, 0, 0, [], [], [], [], Counter())

    def round(self) -> "Round":
        """One of everything."""
        self._rounds += 1
        steps = (self._count, self._register, self._work, self._lock)
        done = [self._try(step) for step in steps]
        return Round(all(done), self.report.errors)

    def _try(self, step: Any) -> bool:
        try:
            step()
        except Unavailable as error:
            self.report.errors[f"{error.code} {error.fields.get('outcome')}"] += 1
            return False
        return True

    def _count(self) -> None:
        before = self._own()

        def body(tx: Tx) -> None:
            for key in (self.report.name, ALL):
                row = tx.get(THINGS, key)
                tx.put(THINGS, key, Thing(rank=row.record.rank + 1 if row else 1))
            tx.append(actor=self.report.name, kind="load.counted", subject=self.report.name)

        try:
            self._hf.store.transact(body, scope=[rows(THINGS)], timeout_s=self._call_s)
        except Unavailable as error:
            found = self._own() - before
            # The truth: an outcome "none" changed nothing, and an unknown one was done once at
            # most.
            if found > (error.fields["outcome"] == "unknown"):
                raise AssertionError(f"{found} after {error.message}") from error
            self.report = self.report._replace(unsure=self.report.unsure + found)
            raise
        assert self._own() == before + 1
        self.report = self.report._replace(counted=self.report.counted + 1)

    def _own(self) -> int:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                row = self._hf.store.get(THINGS, self.report.name)
                return row.record.rank if row else 0
            except Unavailable:
                if time.monotonic() > deadline:
                    raise

    def _register(self) -> None:
        name = f"{self.report.name}-{self._rounds}"
        self._hf.jobs.register_job("work", agent="a", agent_session=LABEL, job_id=name)
        self.report.registered.append(name)

    def _work(self) -> None:
        job = self._hf.jobs.pick_pending(LABEL, wait_s=CALL_S)
        if job is None:
            return
        assert job.token is not None
        self.report.claims.append((job.job_id, job.token))
        while True:
            try:
                self._hf.jobs.update_status(job.job_id, "completed", token=job.token)
                break
            except Unavailable as error:
                self.report.errors[f"{error.code} {error.fields.get('outcome')}"] += 1
                if error.fields.get("outcome") == "unknown" and self._is_completed(job.job_id):
                    break
        self.report.completed.append(job.job_id)

    def _is_completed(self, job_id: str) -> bool:
        while True:
            try:
                return self._hf.jobs.get_job(job_id).status.value == "completed"
            except Unavailable:
                continue

    def _lock(self) -> None:
        grant = self._hf.locks.acquire(LOCK, by=self.report.name, timeout_s=PATIENCE_S / 2)
        begun_s = time.monotonic()
        ended_s = time.monotonic()
        if not grant.gone:
            self.report.turns.append(Turn(grant.token, begun_s, ended_s))
        grant.release()


def _run(parent: Connection, url: str, name: str, stacks: Path, call_s: float) -> None:
    os.environ["HOLDFAST_HOST_ID"] = name
    with stacks.open("w") as file:
        faulthandler.register(signal.SIGUSR1, file)
        _work_for(parent, url, name, call_s)


def _work_for(parent: Connection, url: str, name: str, call_s: float) -> None:
    try:
        with holdfast.connect(url) as hf:
            machine = Machine(hf, name, call_s)
            while not parent.poll():
                parent.send(machine.round())
            parent.send(machine.report)
    except BaseException:
        parent.send(traceback.format_exc())


class Peer:
    """A machine, as its parent sees it."""

    def __init__(self, url: str, name: str, folder: Path, call_s: float) -> None:
        self._stacks = folder / name
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(
            target=_run, args=(theirs, url, name, self._stacks, call_s), daemon=True
        )
        self._process.start()
        theirs.close()
        self._last: Any = None

    def hear(self) -> Any:
        """The next that it says; a machine that is silent, gone or in error fails the test."""
        assert self.pipe.poll(PATIENCE_S), f"a machine says nothing: {self.state()}"
        try:
            self._last = self.pipe.recv()
        except EOFError:
            raise AssertionError(f"a machine is gone: {self.state()}") from None
        assert not isinstance(self._last, str), self._last
        return self._last

    def state(self) -> str:
        """What it said last, and where it is in its program."""
        # Who has just hung up is about to end.
        self._process.join(0.1)
        assert self._process.pid is not None
        if self._process.exitcode is None:
            os.kill(self._process.pid, signal.SIGUSR1)
            until(self._stacks.read_text)
        where = self._stacks.read_text()
        return (
            f"{self._stacks.name}, ended with {self._process.exitcode}, said {self._last}, stands "
            f"at\n{where}"
        )

    def join(self) -> None:
        """Wait until it has ended by itself."""
        self._process.join(PATIENCE_S)
        assert self._process.exitcode == 0, f"a machine did not end well: {self.state()}"

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self.pipe.close()


class Load:
    """Running machines."""

    def __init__(self, peers: Sequence[Peer]) -> None:
        self._peers = {peer.pipe: peer for peer in peers}

    def progress(self, rounds: int = 1) -> None:
        """Return when every machine has done so many whole rounds from now on."""
        for peer in self._peers.values():
            while peer.pipe.poll():
                peer.hear()
        missing = Counter(dict.fromkeys(self._peers, rounds))
        deadline = time.monotonic() + PATIENCE_S
        while missing := +missing:
            ready = wait(list(missing), deadline - time.monotonic())
            assert ready, "\n".join(
                ["no progress:", *(self._peers[pipe].state() for pipe in missing)]
            )
            for pipe in ready:
                assert isinstance(pipe, Connection)
                missing[pipe] -= self._peers[pipe].hear().whole

    def end(self) -> list[Report]:
        """Let the machines finish their round, and return their reports when all have ended: an
        open transaction of a killed machine briefly hides later entries from followers.
        """
        for peer in self._peers.values():
            peer.pipe.send("end")
        reported = []
        for peer in self._peers.values():
            while not isinstance(said := peer.hear(), Report):
                continue
            reported.append(said)
        for peer in self._peers.values():
            peer.join()
        return reported


@contextmanager
def load(url: str, machines: int = 4, *, call_s: float = CALL_S) -> Iterator[Load]:
    """Machines that work until the block ends or `end` is called. `call_s` is the time limit of
    their counts.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        peers = (Peer(url, f"machine-{number}", folder, call_s) for number in range(machines))
        yield Load([stack.enter_context(closing(peer)) for peer in peers])


class Follower:
    """Follows a journal through whatever happens to its server."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cursor = BEGINNING
        self.seen: list[Entry] = []

    def follow(self, until: Any) -> None:
        """Read until the event is set and nothing is left."""
        while True:
            last = until.is_set()
            try:
                with self._store.listen([JOURNAL_TOPIC]) as ears:
                    while (batch := self._store.journal(self._cursor, limit=50)).entries:
                        self.seen += batch.entries
                        self._cursor = batch.cursor
                    if last:
                        return
                    ears.wait(0.5)
            except Unavailable:
                continue


def check(hf: Holdfast, reports: Sequence[Report], seen: Sequence[Entry]) -> None:
    """Nothing is lost or done twice, tokens only grow, and the journal agrees with the records."""
    counts = {one.name: hf.store.get(THINGS, one.name) for one in reports}
    found = {name: row.record.rank if row else 0 for name, row in counts.items()}
    assert found == {one.name: one.counted + one.unsure for one in reports}
    together = hf.store.get(THINGS, ALL)
    assert together is not None and together.record.rank == sum(found.values())

    claims = [claim for one in reports for claim in one.claims]
    assert len({job for job, _ in claims}) == len(claims), "a job was claimed twice"
    assert len({token for _, token in claims}) == len(claims)
    for one in reports:
        for job in one.registered:
            hf.jobs.get_job(job)
    ran = [
        (entry.subject, entry.data["token"]) for entry in seen if entry.data.get("to") == "running"
    ]
    assert len(dict(ran)) == len(ran), "a job ran twice"
    assert set(claims) <= set(ran)
    for job in (job for one in reports for job in one.completed):
        assert hf.jobs.get_job(job).status.value == "completed"

    turns = sorted(turn for one in reports for turn in one.turns)
    assert turns
    assert all(a.token < b.token and a.ended_s <= b.begun_s for a, b in pairwise(turns))
    _check_journal(hf, seen, found)


def _check_journal(hf: Holdfast, seen: Sequence[Entry], found: dict[str, int]) -> None:
    revisions = [entry.revision for entry in seen]
    assert len(set(revisions)) == len(revisions), "an entry was seen twice"
    stored, cursor = [], BEGINNING
    while (batch := hf.store.journal(cursor)).entries:
        stored += [entry.revision for entry in batch.entries]
        cursor = batch.cursor
    # Asserted one by one: which of the two has more shows where to look.
    assert not (missed := set(stored) - set(revisions)), (
        f"never shown to who followed: {sorted(missed)}"
    )
    assert not (gone := set(revisions) - set(stored)), [
        entry for entry in seen if entry.revision in gone
    ]
    assert revisions == stored
    assert Counter(entry.subject for entry in seen if entry.kind == "load.counted") == Counter(
        found
    )
    registered = [entry.subject for entry in seen if entry.kind == "job.registered"]
    assert len(set(registered)) == len(registered)


@contextmanager
def followed(url: str) -> Iterator[Follower]:
    """A follower of the store, beside; when the block ends it has seen everything."""
    done = threading.Event()
    with closing(open_postgres(url)) as store:
        follower = Follower(store)
        thread = threading.Thread(target=follower.follow, args=(done,))
        thread.start()
        try:
            yield follower
        finally:
            done.set()
            thread.join()
