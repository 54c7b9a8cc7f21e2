"""The lock manager: who holds which resource, whose turn is next, and what happens when a holder
dies.
"""

import contextlib
import math
import os
import sys
import time
import weakref
from collections.abc import Iterable
from typing import cast

from msgspec.structs import replace

from holdfast.kernel import lease as leases
from holdfast.kernel.errors import DeadlockDetected, Fenced, HoldfastError, LeaseLost, LockTimeout
from holdfast.kernel.holder import THIS_PROCESS, Holder, Processes, ThisProcess
from holdfast.kernel.limits import LOCK_STATISTICS_EVERY_S, LOCK_TIMEOUT_S
from holdfast.kernel.names import check_label
from holdfast.kernel.settings import LockSettings
from holdfast.kernel.store import Store
from holdfast.primitives.deadline import Deadline
from holdfast.primitives.journal import Journal
from holdfast.primitives.locks.administration import Behind, Oversight, nobody
from holdfast.primitives.locks.grant import Grant, Lasting, SavedGrant, Suspended, lost
from holdfast.primitives.locks.obstruction import Obstruction, obstruction_of
from holdfast.primitives.locks.records import LOCKS, Hold, Lock, Mode
from holdfast.primitives.locks.refusal import deadlocked, shut_out, taken_away, timed_out
from holdfast.primitives.locks.renewal import renew_all
from holdfast.primitives.locks.request import (
    FREE,
    TIMED_OUT,
    Asker,
    Asking,
    Deadlocked,
    Given,
    Over,
    Wish,
    check_names,
    check_ttl,
    wished,
)
from holdfast.primitives.locks.statistics import Counting
from holdfast.primitives.locks.table import Table
from holdfast.primitives.locks.transaction import Footprint, Room, Terms, asker_of, lost_topic
from holdfast.primitives.locks.wait import OnWait
from holdfast.primitives.renewal import Keeper

_CONTENDED_MAX = 1024

_CLOSING_S = 1.0
"""How long closing tries to write what was counted. Where the store is shut, only counts are lost.
"""


class Locks(Oversight):
    """Locks on resources of any name.

    Promised: never two jobs that hold one resource, unless both share it; a set is taken whole or
    not at all; grants in order of arrival and priority, and nothing waits for ever behind others; a
    dead holder's grants pass to the next waiter at once; waiting uses no CPU; a wait that could
    never end raises DeadlockDetected. On another machine, death shows only when the lease runs out.
    Not promised: that work under a lock stops when the lock is lost; see `Grant`.

    Ownership is the job's, `by`: whoever says the same job is the same holder, in any thread or
    process. A job counts as waiting when one of its threads is, and so does a deadlock that another
    thread of it could have undone. A job `a/b` is a part of job `a`: what `a` holds is its own too,
    and `a` counts as waiting when it is; two parts of a job keep each other out.
    """

    def __init__(
        self,
        store: Store,
        journal: Journal,
        processes: Processes,
        settings: LockSettings | None = None,
        *,
        label: str = "",
        behind: Behind = nobody,
    ) -> None:
        settings = settings or LockSettings()
        terms = Terms(settings.lease_s, settings.priority_age_s, settings.journal == "all")
        super().__init__(
            Room(store, journal, processes, terms, Counting(store), Lasting(store), {}), behind
        )
        self._asker = Asker(store, processes, terms.lease_s, label)
        self._keeper: Keeper[Grant] = Keeper(
            store,
            topic=lambda: lost_topic(self._asker.prefix),
            renew=lambda grants: renew_all(self._room, grants, self._keeper.keeps),
            tick=self._tick,
            behind=lambda: bool(self._room.strays),
            renew_every_s=terms.lease_s / 3,
            tick_every_s=LOCK_STATISTICS_EVERY_S,
        )
        self._begin_process()
        _all.add(self)

    def _begin_process(self) -> None:
        self._contended: dict[str, None] = {}
        self._room.strays.clear()
        # Last: another thread goes on as soon as it sees this.
        self._asker.begin_process()

    def _tick(self) -> None:
        """What is done in the background every few seconds."""
        if not self._room.withdraw_strays():
            # The store is shut. To wait there for anything else would put this off, and a request
            # that nobody stands behind any more may be granted meanwhile.
            return
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
        stop_fd: int | None = None,
    ) -> Grant:
        """Hold all the names, and return the grant.

        What the job holds already is not waited for; if that is all, its own grant comes back and
        releasing it frees nothing. `timeout_s` None waits for as long as it takes. With `ttl_s` the
        grant ends by itself after so long unless renewed; without, it lives as long as `process`,
        which is this one unless told. `process` None needs a `ttl_s`. A wait also ends, as if its
        time had passed, when the descriptor `stop_fd` becomes readable.

        Raises LockTimeout (nothing is held; its fields name the holders and the place in line),
        DeadlockDetected (waiting would never end), LeaseLost (it was taken away again before this
        process could wake), InvalidName and InvalidValue.
        """
        wish = wished(names, by, mode, timeout_s, priority, ttl_s, process)
        # And nothing more: Ctrl-C could come out of it, and nobody would know of the grant.
        return self._asked(wish, on_wait, stop_fd, explain=True)  # type: ignore[return-value]

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
        stop_fd: int | None = None,
    ) -> Grant | None:
        """The same as `acquire`, and None instead of LockTimeout; without a time limit it does not
        wait at all.
        """
        wish = wished(names, by, mode, timeout_s, priority, ttl_s, process)
        return self._asked(wish, on_wait, stop_fd, explain=False)

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
        """`acquire` for a `with` block, which releases at its end, and raises LeaseLost there if
        the grant was lost.
        """
        return self.acquire(
            names, by=by, mode=mode, timeout_s=timeout_s, priority=priority, ttl_s=ttl_s
        )

    def wait(
        self,
        names: str | Iterable[str],
        *,
        by: str,
        mode: Mode | str = Mode.EXCLUSIVE,
        timeout_s: float | None = LOCK_TIMEOUT_S,
        on_wait: OnWait | None = None,
        stop_fd: int | None = None,
    ) -> bool:
        """Wait until the names could be had in that mode, and take nothing; False when the time
        limit passed, or the descriptor `stop_fd` became readable.

        Promised: there was a moment between call and return at which no other job held them, or
        their turn had come. Not promised: that it is still so. Raises DeadlockDetected when the job
        holds what the others wait for.
        """
        return (
            self.wait_free(
                names, by=by, mode=mode, timeout_s=timeout_s, on_wait=on_wait, stop_fd=stop_fd
            )
            is None
        )

    def wait_free(
        self,
        names: str | Iterable[str],
        *,
        by: str,
        mode: Mode | str = Mode.EXCLUSIVE,
        timeout_s: float | None = LOCK_TIMEOUT_S,
        on_wait: OnWait | None = None,
        stop_fd: int | None = None,
    ) -> Obstruction | None:
        """The same as `wait`, and None when the names were free; otherwise who held them when the
        time was over.
        """
        wish = wished(names, by, mode, timeout_s, look=True)
        if not wish.names:
            return None
        deadline = Deadline(timeout_s)
        self._begin(deadline)
        draft = self._asker.draft(self._asker.new_id(), wish, self._asker.this_process())
        try:
            answer = Asking(self._room, draft, deadline, Footprint(), on_wait, stop_fd).answer()
        finally:
            self._mind_strays()
        if isinstance(answer, Deadlocked):
            self._counting.count(wish.names, "deadlocks")
            raise deadlocked(wish, answer)
        if isinstance(answer, Given) or answer.outcome == FREE:
            return None
        assert answer.obstruction is not None
        return answer.obstruction

    def obstruction(
        self, names: str | Iterable[str], *, by: str, mode: Mode | str = Mode.EXCLUSIVE
    ) -> Obstruction:
        """What is in the way of a request for these names as of now: that of the job if it waits
        for them, else a new one.
        """
        wish = wished(names, by, mode, 0)
        self._begin()
        if not wish.names:
            return Obstruction(
                at=self._store.now(), holders=(), holders_count=0, ahead=(), position=1
            )
        draft = self._asker.draft(self._asker.new_id(), wish, self._asker.this_process())
        # Behind all that wait, as it is not in line itself.
        new = replace(draft, rank=sys.maxsize, arrival=sys.maxsize)

        def look(table: Table) -> Obstruction:
            own = (
                one
                for one in table.of_job(by)
                if (one.by, one.names, one.mode) == (by, wish.names, wish.mode)
            )
            return obstruction_of(table, next(own, new), self._store.now())

        return self._room.read(look)

    def release(self, grant: Grant) -> bool:
        """End a grant, and hand over to whoever is next in the same step. True when it freed
        something.

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

    def abandon(self, grant: Grant) -> None:
        """Let go of a grant to which nobody will come back: now, or in the background as soon as
        the store answers.
        """
        if grant.pid == os.getpid() and grant.taken and self._keeper.discard(grant):
            grant.gone = "released"
            self._withdraw(grant.id, grant.taken)

    def leave(self, grant: Grant, *, raising: bool) -> None:
        """The end of a `with` block: release, and raise LeaseLost if there was nothing left to
        release.
        """
        if grant.pid != os.getpid():
            return
        if grant.reentered and raising:
            self.check(grant)
        if not self.release(grant) and grant.gone == "lost" and raising:
            raise lost(grant)

    def free(self, names: str | Iterable[str], *, by: str) -> tuple[str, ...]:
        """Let go of whatever a job holds of these names, by whichever grants, and return those that
        were freed.

        The rest of a set stays held, and a grant of this process is then that of the rest. What
        another job holds is left alone.
        """
        wanted = check_names(names)
        check_label(by, "job")
        if not wanted:
            return ()
        self._begin()
        # Not kept meanwhile: whoever looks after them would take what is let go of for lost.
        mine = [
            one
            for one in self._keeper.kept()
            if one.by == by and not set(one.taken).isdisjoint(wanted)
        ]
        mine = [grant for grant in mine if self._keeper.discard(grant)]
        try:
            freed, rests = self._room.transact(lambda turns: turns.free(wanted, by))
            for grant in mine:
                grant.let_go(wanted)
        finally:
            for grant in mine:
                if not grant.gone:
                    self._keeper.add(grant)
        for rest in rests:
            (self._lasting.keep if rest.names else self._lasting.end)(rest)
        return freed

    def renew(self, grant: Grant, ttl_s: float | None = None) -> None:
        """Begin the lease anew from now; `ttl_s` may give it another length. Raises LeaseLost when
        the grant is gone.
        """
        check_ttl(ttl_s)
        if grant.gone:
            # Whoever was told that it is lost has stopped, though the store may not know yet that
            # its time is over.
            raise lost(grant)
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
        grant.ends_s = self._ends_s(hold)
        self._keeper.add(grant)

    def check(self, grant: Grant) -> None:
        """Ask the store whether a grant is still in force. Raises LeaseLost when it is not."""
        try:
            if grant.gone:
                raise lost(grant)
            for name, token in grant.tokens.items():
                self.check_token(name, token)
        except Fenced:
            # Still kept: what is left of it is its holder's until that lets go.
            grant.lose()
            raise lost(grant) from None

    def suspend(self, grant: Grant) -> Suspended | None:
        """Stop looking after a grant, so that the next program that this process executes can
        `resume` it. Nobody renews the grant in between: its process alone keeps it.

        Returns None, and goes on looking after the grant, where the grant lives by its lease (on a
        store that other machines use), where another grant of the job holds some of it, and where
        the store's notices reach only the program that listens. Raises LeaseLost.
        """
        if not self._store.embedded or grant.ttl_s is not None or grant.taken != grant.names:
            return None
        kept = self._keeper.discard(grant)
        try:
            listener = self._store.listen([lost_topic(asker_of(grant.id))])
            # With open ears: a loss is seen here, or heard.
            self.check(grant)
            fds = listener.outlive()
            if not fds:
                listener.__exit__(None, None, None)
                return None
            kept = False
            return Suspended(grant.saved(), listener, fds)
        finally:
            if kept:
                self._keeper.add(grant)

    def resume(self, saved: SavedGrant) -> Grant:
        """The grant that an earlier program of this process suspended. If it was lost since,
        `Grant.lost` is set soon.
        """
        self._begin_here()
        self._asker.resume(saved.id)
        grant = Grant(
            self,
            id=saved.id,
            by=saved.by,
            mode=saved.mode,
            names=saved.names,
            taken=saved.names,
            token=saved.token,
        )
        grant.since_s = saved.since_s
        self._keeper.add(grant)
        return grant

    def close(self) -> None:
        """Stop renewing in the background and add up what was counted. Grants are not released.
        Works, as far as it can, when the store does not answer, and again.
        """
        if not self._asker.elsewhere():
            self._keeper.close()
            self._room.withdraw_strays()
            with contextlib.suppress(HoldfastError):
                self._counting.add_up(_CLOSING_S)

    def _asked(
        self, wish: Wish, on_wait: OnWait | None, stop_fd: int | None, *, explain: bool
    ) -> Grant | None:
        """Get what is wished for. When its time passed, None; or, if it is to `explain`, raises
        LockTimeout, which says why. Raises DeadlockDetected and LeaseLost.
        """
        deadline = Deadline(wish.timeout_s)
        self._begin(deadline)
        if not wish.names:
            return Grant(self, id="", by=wish.by, mode=wish.mode, names=(), taken=(), token=0)
        if self._room.strays:
            self._room.clear(wish.names, deadline)
        if wish.process is None:
            # Nobody will be there to see the clock set forward under it.
            self._room.steady.look()
        holder = (
            self._asker.this_process()
            if wish.process is THIS_PROCESS
            else cast("Holder | None", wish.process)
        )
        request_id, footprint = self._asker.new_id(), Footprint()
        grant: Grant | None = None
        try:
            grant = self._quickly(request_id, wish, holder, deadline, footprint, stop_fd)
            if grant is None:
                draft = self._asker.draft(request_id, wish, holder)
                asking = Asking(
                    self._room, draft, deadline, footprint, on_wait, stop_fd, explain=explain
                )
                answer = asking.answer()
                if isinstance(answer, Given):
                    self._remember(wish.names, contended=asking.waited)
                    grant = self._grant(request_id, wish, answer, deadline)
                else:
                    over = self._not_given(wish, answer)
            if grant is not None:
                self._counting.granted(grant.taken)
                self._keeper.add(grant)
                return grant
        except (DeadlockDetected, LeaseLost):
            raise
        except BaseException as error:
            # Whatever came between the grant and its taker, Ctrl-C included, nobody knows of it.
            if grant is not None:
                self._keeper.discard(grant)
            if footprint.possible:
                self._withdraw(request_id, wish.names, later=isinstance(error, LockTimeout))
            if explain and isinstance(error, LockTimeout):
                raise shut_out(wish, error) from None
            raise
        if explain:
            raise timed_out(wish, over)
        return None

    def _withdraw(self, request_id: str, names: tuple[str, ...], *, later: bool = False) -> None:
        try:
            self._room.withdraw(request_id, names, later=later)
        except BaseException:
            # There was no memory for it, or no room on the stack.
            self._room.strays[request_id] = names
            raise
        finally:
            self._mind_strays()

    def _mind_strays(self) -> None:
        """See to it that what could not be withdrawn now is withdrawn later."""
        if self._room.strays:
            self._keeper.wake()

    def _not_given(self, wish: Wish, answer: Deadlocked | Over) -> Over:
        if isinstance(answer, Deadlocked):
            self._counting.count(wish.names, "deadlocks")
            raise deadlocked(wish, answer)
        if answer.outcome != TIMED_OUT:
            raise taken_away(wish)
        if wish.timeout_s is not None:
            # Without a limit it was given up, and did not run out of time.
            self._counting.count(wish.names, "timeouts")
        return answer

    def _quickly(
        self,
        request_id: str,
        wish: Wish,
        process: Holder | None,
        deadline: Deadline,
        footprint: Footprint,
        stop_fd: int | None,
    ) -> Grant | None:
        """Take what nobody holds or waits for, in one statement; None when it is not so."""
        terms, names, ttl_s = self._room.terms, wish.names, wish.ttl_s
        if terms.tell_all or (self._contended and not self._contended.keys().isdisjoint(names)):
            return None
        hold = Hold(
            id=request_id,
            by=wish.by,
            mode=wish.mode,
            names=names,
            lease=leases.grant(
                self._store.now(),
                terms.lease_s if ttl_s is None else ttl_s,
                explicit=ttl_s is not None,
            ),
            process=process,
            on_behalf=process is not None and process != self._asker.process,
            ttl_s=ttl_s,
        )
        lock = Lock(holds=(hold,))
        items = [(name, lock) for name in names]

        def put(limit_s: float) -> int | None:
            return footprint.step(lambda: self._store.put_new(LOCKS, items, timeout_s=limit_s))

        token = deadline.insist(put, stop_fd=stop_fd)
        if token is None:
            return None
        if process is None:
            self._lasting.keep(replace(hold, token=token), deadline)
        return Grant(
            self,
            id=request_id,
            by=wish.by,
            mode=wish.mode,
            names=names,
            taken=names,
            token=token,
            ttl_s=ttl_s,
            untouched=True,
            unattended=process is None,
            ends_s=self._ends_s(hold),
        )

    def _grant(self, request_id: str, wish: Wish, given: Given, deadline: Deadline) -> Grant:
        """The grant behind an answer."""
        tokens = {
            name: hold.token for hold in given.own for name in hold.names if name in wish.names
        }
        # What was entered again keeps the time that it was taken for.
        own_ttls = [hold.ttl_s for hold in given.own if hold.ttl_s is not None]
        if given.hold is not None:
            tokens |= dict.fromkeys(given.hold.names, given.hold.token)
            self._lasting.keep(given.hold, deadline)
        return Grant(
            self,
            id=request_id,
            by=wish.by,
            mode=wish.mode,
            names=wish.names,
            taken=() if given.hold is None else given.hold.names,
            token=max(tokens.values()),
            tokens=tokens,
            ttl_s=wish.ttl_s if given.hold is not None else min(own_ttls, default=None),
            unattended=wish.process is None,
            ends_s=math.inf if given.hold is None else self._ends_s(given.hold),
        )

    def _ends_s(self, hold: Hold) -> float:
        """When a grant is over by itself, on this process's clock. Without a time of its own it
        never is while its process lives: a lease that ran out, in an outage or while the process
        was stopped, is renewed if nobody took it.
        """
        if not hold.lease.explicit:
            return math.inf
        # By the store's clock: it may have been granted long before this process woke to take it.
        return time.monotonic() + (hold.lease.expires_at - self._store.now()).total_seconds()

    def _remember(self, names: Iterable[str], *, contended: bool) -> None:
        """Names that had to be waited for are not tried the quick way, which would be in vain,
        until they are found free.
        """
        if contended:
            if len(self._contended) > _CONTENDED_MAX:
                self._contended = {}
            self._contended |= dict.fromkeys(names)
        else:
            for name in names:
                self._contended.pop(name, None)

    def _freed(self, grant: Grant) -> bool:
        freed = 0
        if grant.untouched and grant.ttl_s is None:
            # With a time to live, the store's clock says whether there is anything left to let go
            # of.
            freed = self._store.delete_if(LOCKS, grant.taken, grant.token)
        if freed < len(grant.taken):
            freed += self._room.transact(lambda turns: turns.release_if_held(grant.id, grant.taken))
        if grant.unattended:
            self._lasting.forget(grant.id)
        return freed > 0

    def _begin_here(self) -> None:
        if self._asker.elsewhere():
            self._keeper.begin_process()
            self._counting.begin_process()
            self._begin_process()


_all: weakref.WeakSet[Locks] = weakref.WeakSet()


def _after_fork() -> None:
    """In a forked child, while it has one thread: of several that came later, one would clear away
    what another has taken.
    """
    for locks in list(_all):
        with contextlib.suppress(Exception):
            locks._begin_here()


os.register_at_fork(after_in_child=_after_fork)
