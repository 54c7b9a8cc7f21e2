"""The lock manager: who holds which resource, whose turn is next, and what happens when a holder dies."""

import contextlib
import os
import shlex
import time
from collections.abc import Iterable
from datetime import datetime
from itertools import count
from typing import NamedTuple, cast

from msgspec.structs import replace

from holdfast.kernel import lease as leases
from holdfast.kernel.errors import Corrupt, DeadlockDetected, Fenced, HoldfastError, InvalidValue, LeaseLost, LockTimeout
from holdfast.kernel.holder import THIS_PROCESS, Holder, Processes, ThisProcess
from holdfast.kernel.limits import (
    LOCK_NAMES_MAX,
    LOCK_PRIORITY_MAX,
    LOCK_SET_BYTES_MAX,
    LOCK_STATISTICS_EVERY_S,
    LOCK_TIMEOUT_S,
)
from holdfast.kernel.names import check_label
from holdfast.kernel.settings import LockSettings
from holdfast.kernel.store import Store
from holdfast.primitives.journal import Journal
from holdfast.primitives.keeper import Keeper
from holdfast.primitives.locks.asking import FREE, TIMED_OUT, Asking, Deadlocked, Given, Over, Room
from holdfast.primitives.locks.grant import Grant, lost
from holdfast.primitives.locks.lasting import Lasting
from holdfast.primitives.locks.oversight import Oversight, check_ttl, release
from holdfast.primitives.locks.record import LOCKS, Hold, Lock, Mode, Request, distinct
from holdfast.primitives.locks.statistics import Counting
from holdfast.primitives.locks.table import Table
from holdfast.primitives.locks.turns import Terms, Turns, lost_topic
from holdfast.primitives.locks.waiting import Ahead, Deadline, OnWait

_CONTENDED_MAX = 1024


class _NotGranted(NamedTuple):
    """How a request ended that was not granted."""

    request: Request
    over: Over
    timeout_s: float | None


class Locks(Oversight):
    """Locks on resources of any name.

    Promised: never two jobs that hold one resource, unless both share it; a set is taken whole or not at all; grants in order
    of arrival and priority, and nothing waits for ever behind others; a dead holder's grants pass to the next waiter at once;
    waiting uses no CPU; a wait that could never end raises DeadlockDetected. On another machine, death shows only when the
    lease runs out. Not promised: that work under a lock stops when the lock is lost; see `Grant`.

    Ownership is the job's, `by`: whoever says the same job is the same holder, in any thread or process. A job counts as
    waiting when one of its threads is, and so does a deadlock that another thread of it could have undone. A job `a/b` is a
    part of job `a`: what `a` holds is its own too, and `a` counts as waiting when it is; two parts of a job keep each other
    out.
    """

    def __init__(
        self, store: Store, journal: Journal, processes: Processes, settings: LockSettings | None = None, *, label: str = ""
    ) -> None:
        settings = settings or LockSettings()
        terms = Terms(settings.lease_s, settings.priority_age_s, settings.journal == "all")
        super().__init__(Room(store, journal, processes, terms, Counting(store), Lasting(store), {}))
        self._label = label
        self._keeper: Keeper[Grant] = Keeper(
            store,
            topic=lambda: lost_topic(self._prefix),
            renew=self._renew_kept,
            tick=self._tick,
            renew_every_s=terms.lease_s / 3,
            tick_every_s=LOCK_STATISTICS_EVERY_S,
        )
        self._begin_process()

    def _begin_process(self) -> None:
        self._prefix = os.urandom(6).hex()
        self._numbers = count(1)
        self._process: Holder | None = None
        self._contended: dict[str, None] = {}
        self._room.strays.clear()
        # Last: another thread goes on as soon as it sees this.
        self._pid = os.getpid()

    def _tick(self) -> None:
        """What is done in the background every few seconds."""
        self._room.withdraw_strays()
        self.clear_unread()
        self._counting.add_up()

    def acquire(
        self,
        names: str | Iterable[str],
        *,
        by: str,
        mode: Mode | str = Mode.EXCLUSIVE,
        timeout_s: float | None = LOCK_TIMEOUT_S,
        priority: int = 0,
        ttl_s: float | None = None,
        process: Holder | ThisProcess | None = THIS_PROCESS,
        on_wait: OnWait | None = None,
    ) -> Grant:
        """Hold all the names, and return the grant.

        What the job holds already is not waited for; if that is all, its own grant comes back and releasing it frees nothing.
        `timeout_s` None waits for as long as it takes. With `ttl_s` the grant ends by itself after so long unless renewed;
        without, it lives as long as `process`, which is this one unless told. `process` None needs a `ttl_s`.

        Raises LockTimeout (nothing is held), DeadlockDetected (waiting would never end), LeaseLost (it was taken away again
        before this process could wake), InvalidName and InvalidValue.
        """
        answer = self._asked(names, by, mode, timeout_s, priority, ttl_s, process, on_wait)
        if isinstance(answer, Grant):
            return answer
        raise self._refusal(answer)

    def try_acquire(
        self,
        names: str | Iterable[str],
        *,
        by: str,
        mode: Mode | str = Mode.EXCLUSIVE,
        timeout_s: float | None = 0,
        priority: int = 0,
        ttl_s: float | None = None,
        process: Holder | ThisProcess | None = THIS_PROCESS,
        on_wait: OnWait | None = None,
    ) -> Grant | None:
        """The same as `acquire`, and None instead of LockTimeout; without a time limit it does not wait at all."""
        answer = self._asked(names, by, mode, timeout_s, priority, ttl_s, process, on_wait)
        if isinstance(answer, Grant):
            return answer
        if answer.over.outcome != TIMED_OUT:
            raise self._refusal(answer)
        self._counting.count(answer.request.names, "timeouts")
        return None

    def hold(
        self,
        names: str | Iterable[str],
        *,
        by: str,
        mode: Mode | str = Mode.EXCLUSIVE,
        timeout_s: float | None = LOCK_TIMEOUT_S,
        priority: int = 0,
        ttl_s: float | None = None,
    ) -> Grant:
        """`acquire` for a `with` block, which releases at its end, and raises LeaseLost there if the grant was lost."""
        return self.acquire(names, by=by, mode=mode, timeout_s=timeout_s, priority=priority, ttl_s=ttl_s)

    def wait(
        self,
        names: str | Iterable[str],
        *,
        by: str,
        mode: Mode | str = Mode.EXCLUSIVE,
        timeout_s: float | None = LOCK_TIMEOUT_S,
        on_wait: OnWait | None = None,
    ) -> bool:
        """Wait until the names could be had in that mode, and take nothing; False when the time limit passed.

        Promised: there was a moment between call and return at which no other job held them, or their turn had come. Not
        promised: that it is still so. Raises DeadlockDetected when the job holds what the others wait for.
        """
        wanted, mode = self._names(names), _mode(mode)
        check_label(by, "job")
        _check_terms(THIS_PROCESS, 0, timeout_s, None)
        if not wanted:
            return True
        self._begin()
        asked = self._draft(self._new_id(), wanted, by, mode, 0, None, None, look=True)
        answer = Asking(self._room, asked, Deadline(timeout_s), on_wait).answer()
        if isinstance(answer, Deadlocked):
            raise self._deadlock(asked, answer)
        return isinstance(answer, Over) and answer.outcome == FREE

    def release(self, grant: Grant) -> bool:
        """End a grant, and hand over to whoever is next in the same step. True when it freed something.

        False, and nothing changed, for a second release, a re-entered grant, and one that was lost.
        """
        if grant.gone == "released" or grant.pid != os.getpid():
            # A forked child has a copy of its parent's grant, and not the grant.
            return False
        kept = self._keeper.discard(grant)
        if not grant.taken or (not kept and not grant.gone):
            # Taken from another grant of the job, or just being released by another thread.
            return False
        try:
            freed = self._freed(grant)
        except BaseException:
            self._keeper.add(grant)
            raise
        if freed:
            self._counting.held(grant.taken, time.monotonic() - grant.since_s)
            grant.gone = "released"
        else:
            grant.lose()
        return freed

    def leave(self, grant: Grant, *, raising: bool) -> None:
        """The end of a `with` block: release, and raise LeaseLost if there was nothing left to release."""
        if grant.pid != os.getpid():
            return
        if grant.reentered and raising:
            self.check(grant)
        if not self.release(grant) and grant.gone == "lost" and raising:
            raise lost(grant)

    def free(self, names: str | Iterable[str], *, by: str) -> tuple[str, ...]:
        """Let go of whatever a job holds of these names, by whichever grants, and return those that were freed.

        The rest of a set stays held. What another job holds is left alone.
        """
        wanted = self._names(names)
        check_label(by, "job")
        if not wanted:
            return ()
        self._begin()
        freed, rests = self._room.transact(lambda turns: _free(turns, wanted, by))
        for rest in rests:
            (self._lasting.keep if rest.names else self._lasting.end)(rest)
        return freed

    def renew(self, grant: Grant, ttl_s: float | None = None) -> None:
        """Begin the lease anew from now; `ttl_s` may give it another length. Raises LeaseLost when the grant is gone."""
        check_ttl(ttl_s)
        if not grant.taken:
            self.check(grant)
            return
        hold = self._renewed(grant.id, grant.taken, ttl_s or grant.ttl_s)
        if hold is None:
            self._keeper.discard(grant)
            grant.lose()
            raise lost(grant)
        grant.ttl_s = ttl_s or grant.ttl_s
        grant.untouched = False

    def check(self, grant: Grant) -> None:
        """Ask the store whether a grant is still in force. Raises LeaseLost when it is not."""
        try:
            if grant.gone:
                raise lost(grant)
            for name, token in grant.tokens.items():
                self.check_token(name, token)
        except Fenced:
            self._keeper.discard(grant)
            grant.lose()
            raise lost(grant) from None

    def close(self) -> None:
        """Stop renewing in the background and add up what was counted. Grants are not released. Works, as far as it can,
        when the store does not answer, and again."""
        if os.getpid() == self._pid:
            with contextlib.suppress(HoldfastError):
                self._keeper.close(lambda topic: self._store.transact(lambda tx: tx.notify(topic), scope=[LOCKS]))
                self._counting.add_up()

    def _asked(
        self,
        names: str | Iterable[str],
        by: str,
        mode: Mode | str,
        timeout_s: float | None,
        priority: int,
        ttl_s: float | None,
        process: Holder | ThisProcess | None,
        on_wait: OnWait | None,
    ) -> "Grant | _NotGranted":
        wanted = self._names(names)
        if mode is not Mode.EXCLUSIVE:
            mode = _mode(mode)
        check_label(by, "job")
        _check_terms(process, priority, timeout_s, ttl_s)
        self._begin()
        holder = self._this_process() if process is THIS_PROCESS else cast("Holder | None", process)
        if not wanted:
            return Grant(self, id="", by=by, mode=mode, names=(), taken=(), token=0)
        request_id, deadline = self._new_id(), Deadline(timeout_s)
        try:
            grant = self._quickly(request_id, wanted, by, mode, ttl_s, holder, deadline)
            if grant is None:
                request = self._draft(request_id, wanted, by, mode, priority, ttl_s, holder)
                asking = Asking(self._room, request, deadline, on_wait)
                answer = asking.answer()
                if isinstance(answer, Deadlocked):
                    raise self._deadlock(request, answer)
                if isinstance(answer, Over):
                    return _NotGranted(request, answer, timeout_s)
                self._remember(wanted, contended=asking.waited)
                grant = self._grant(request, answer)
            self._counting.granted(grant.taken)
            self._keeper.add(grant)
        except DeadlockDetected:
            raise
        except BaseException:
            # Whatever came between the grant and its taker, Ctrl-C included, nobody knows of it.
            self._room.withdraw(request_id, wanted)
            if self._room.strays:
                self._keeper.wake()
            raise
        return grant

    def _quickly(
        self,
        request_id: str,
        names: tuple[str, ...],
        by: str,
        mode: Mode,
        ttl_s: float | None,
        process: Holder | None,
        deadline: Deadline,
    ) -> Grant | None:
        """Take what nobody holds or waits for, in one statement; None when it is not so."""
        terms = self._room.terms
        if terms.tell_all or (self._contended and not self._contended.keys().isdisjoint(names)):
            return None
        lease = leases.grant(self._store.now(), terms.lease_s if ttl_s is None else ttl_s, explicit=ttl_s is not None)
        on_behalf = process is not None and process != self._process
        hold = Hold(
            id=request_id, by=by, mode=mode, names=names, lease=lease, process=process, on_behalf=on_behalf, ttl_s=ttl_s
        )
        lock = Lock(holds=(hold,))
        token = self._store.put_new(LOCKS, [(name, lock) for name in names], timeout_s=deadline.for_a_turn_s())
        if token is None:
            return None
        if process is None:
            self._lasting.keep(replace(hold, token=token))
        return Grant(
            self,
            id=hold.id,
            by=by,
            mode=mode,
            names=names,
            taken=names,
            token=token,
            ttl_s=ttl_s,
            untouched=True,
            unattended=process is None,
        )

    def _grant(self, request: Request, given: Given) -> Grant:
        """The grant behind an answer."""
        tokens = {name: hold.token for hold in given.own for name in hold.names if name in request.names}
        if given.hold is not None:
            tokens |= dict.fromkeys(given.hold.names, given.hold.token)
            self._lasting.keep(given.hold)
        return Grant(
            self,
            id=request.id,
            by=request.by,
            mode=request.mode,
            names=request.names,
            taken=() if given.hold is None else given.hold.names,
            token=max(tokens.values()),
            tokens=tokens,
            ttl_s=request.ttl_s,
            unattended=request.unattended,
        )

    def _remember(self, names: Iterable[str], *, contended: bool) -> None:
        """Names that had to be waited for are not tried the quick way, which would be in vain, until they are found free."""
        if contended:
            if len(self._contended) > _CONTENDED_MAX:
                self._contended = {}
            self._contended |= dict.fromkeys(names)
        else:
            for name in names:
                self._contended.pop(name, None)

    def _freed(self, grant: Grant) -> bool:
        freed = 0
        if grant.untouched:
            freed = self._store.delete_if(LOCKS, grant.taken, grant.token)
        if freed < len(grant.taken):
            freed += self._room.transact(lambda turns: release(turns, grant.id, grant.taken))
        if grant.unattended:
            self._lasting.forget(grant.id)
        return freed > 0

    def _renew_kept(self, grants: list[Grant]) -> list[Grant]:
        """A sign of life for grants without a time to live; return those, of all, that are gone."""
        lease_s = self._room.terms.lease_s

        def renew(turns: Turns) -> list[Grant]:
            due = [(grant, hold) for grant in grants if (hold := _due(turns.table, grant, turns.now, lease_s)) is not None]
            for _, hold in due:
                turns.renew(hold, None)
            return [grant for grant, _ in due]

        now = self._store.now()
        gone, due = self._room.read(
            lambda table: (
                [grant for grant in grants if _is_gone(table, grant)],
                any(_due(table, grant, now, lease_s) for grant in grants),
            )
        )
        if due:
            for grant in self._room.transact(renew):
                grant.untouched = False
        return gone

    def _draft(
        self,
        request_id: str,
        names: tuple[str, ...],
        by: str,
        mode: Mode,
        priority: int,
        ttl_s: float | None,
        process: Holder | None,
        *,
        look: bool = False,
    ) -> Request:
        now, this = self._store.now(), self._this_process()
        return Request(
            id=request_id,
            name=names[0],
            names=names,
            mode=mode,
            look=look,
            by=by,
            priority=priority,
            rank=0,
            arrival=0,
            arrived_at=now,
            process=this,
            grantee=None if process == this else process,
            unattended=process is None,
            ttl_s=ttl_s,
            lease=leases.grant(now, self._room.terms.lease_s),
            address="",
        )

    def _names(self, names: str | Iterable[str]) -> tuple[str, ...]:
        wanted = (names,) if isinstance(names, str) else distinct(list(names))
        for name in wanted:
            check_label(name, "resource")
        if len(wanted) > 1 and sum(len(name.encode()) for name in wanted) > LOCK_SET_BYTES_MAX:
            raise InvalidValue(
                f"the names of one request may have {LOCK_SET_BYTES_MAX} bytes together: ask for a name that stands for many"
            )
        if len(wanted) > LOCK_NAMES_MAX:
            raise InvalidValue(
                f"one request may have {LOCK_NAMES_MAX} names, not {len(wanted)}: ask for a name that stands for many"
            )
        return wanted

    def _new_id(self) -> str:
        return f"{self._prefix}-{next(self._numbers):x}"

    def _this_process(self) -> Holder:
        if self._process is None or self._pid != os.getpid():
            self._begin()
            self._process = self._processes.current(self._label)
        return self._process

    def _begin_here(self) -> None:
        if self._pid != os.getpid():
            self._keeper.begin_process()
            self._counting.begin_process()
            self._begin_process()

    def _refusal(self, refused: "_NotGranted") -> LockTimeout | LeaseLost:
        request, over = refused.request, refused.over
        names = ", ".join(request.names)
        if over.outcome != TIMED_OUT:
            return LeaseLost(
                f"{names} was granted to {request.by} and taken away before this process could wake, or its place in line was: "
                f"ask again if it is still needed. `holdfast log --subject {shlex.quote(request.names[0])}` tells more",
                names=list(request.names),
                by=request.by,
            )
        self._counting.count(request.names, "timeouts")
        who = ", ".join(sorted({_who(one) for one in over.ahead})) or "another job"
        return LockTimeout(
            f"{names} could not be had by {request.by} within {refused.timeout_s:g} s: {who} is ahead; nothing was taken. "
            f"`holdfast locks explain {shlex.quote(request.names[0])}` tells more",
            resource=request.names[0],
            names=list(request.names),
            by=request.by,
            ahead=[one.by for one in over.ahead],
            outcome="none",
        )

    def _deadlock(self, request: Request, answer: Deadlocked) -> DeadlockDetected:
        self._counting.count(request.names, "deadlocks")
        return DeadlockDetected(
            f"{request.by} would wait for ever: {answer.words}. Release what {request.by} holds and try again, or take all of "
            "it in one request",
            by=request.by,
            names=list(request.names),
            cycle=answer.words,
        )


def _is_gone(table: Table, grant: Grant) -> bool:
    """Was some of a grant taken away? A damaged record proves nothing."""
    try:
        return any(all(hold.token != token for hold in table.lock(name).holds) for name, token in grant.tokens.items())
    except Corrupt:
        return False


def _due(table: Table, grant: Grant, now: datetime, lease_s: float) -> Hold | None:
    """The hold of a grant that needs a sign of life."""
    if grant.ttl_s is not None or not grant.taken:
        return None
    try:
        hold = table.find_hold(grant.id, grant.taken)
    except Corrupt:
        return None
    return hold if hold is not None and leases.due(hold.lease, now, lease_s) else None


def _free(turns: Turns, names: tuple[str, ...], by: str) -> tuple[tuple[str, ...], list[Hold]]:
    """Let go of names; return those that were held, and what is left of each grant."""
    freed: dict[str, None] = {}
    rests: dict[str, Hold] = {}
    for name in names:
        for hold in turns.table.lock(name).holds:
            if hold.by == by:
                freed[name] = None
                rests[hold.id] = turns.release_part(hold, name)
    turns.hand_over(freed)
    return tuple(freed), list(rests.values())


def _who(one: Ahead) -> str:
    verb = "holds it" if one.holds else "is in line"
    return f"{one.by} ({'no process' if one.process is None else f'process {one.process.pid}'}, {verb})"


def _mode(mode: Mode | str) -> Mode:
    try:
        return Mode(mode)
    except ValueError:
        raise InvalidValue(f"{ascii(mode)[:40]} is no mode of a lock: use exclusive or shared", field="mode") from None


def _check_terms(process: Holder | ThisProcess | None, priority: int, timeout_s: float | None, ttl_s: float | None) -> None:
    if timeout_s != timeout_s:
        raise InvalidValue("timeout_s is not a number: give the seconds to wait, or None for no limit", field="timeout_s")
    if ttl_s is not None:
        check_ttl(ttl_s)
    if process is None and ttl_s is None:
        raise InvalidValue(
            "a grant that no process holds needs a ttl_s, or nothing would ever end it: give one, or the process that holds it",
            field="ttl_s",
        )
    if not -LOCK_PRIORITY_MAX <= priority <= LOCK_PRIORITY_MAX:
        raise InvalidValue(
            f"a priority of {priority} is not possible: use -{LOCK_PRIORITY_MAX} to {LOCK_PRIORITY_MAX}", field="priority"
        )
