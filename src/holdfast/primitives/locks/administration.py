"""Looking after locks: what an operator, or a program that was shown a token, asks and does."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from holdfast.kernel.errors import Fenced, InvalidValue, LeaseLost, NotFound, StillRunning
from holdfast.kernel.holder import Liveness, probe
from holdfast.kernel.limits import TREE_GRACE_S
from holdfast.kernel.names import check_label
from holdfast.kernel.store import Tx
from holdfast.primitives.deadline import Deadline
from holdfast.primitives.locks.inspect import (
    Explanation,
    Graph,
    LockCounts,
    LockLine,
    LockStatus,
    contention_of,
    counts_in,
    explain,
    graph_of,
    page_of,
    status_of,
)
from holdfast.primitives.locks.records import LOCK_WAITS, LOCKS, Hold, lock_in
from holdfast.primitives.locks.request import check_ttl
from holdfast.primitives.locks.statistics import LOCK_STATISTICS, LockStatistics
from holdfast.primitives.locks.transaction import SCOPE, Removed, Room, Suspect, Turns

_UNREAD_MAX = 100

Behind = Callable[[str], tuple[str, ...]]
"""Who is between a job and its process, as far as other parts of the store know. Whoever wires them
says it.
"""


def nobody(_: str) -> tuple[str, ...]:
    """Nobody, as far as anybody knows."""
    return ()


class Oversight:
    """The part of `Locks` that takes nothing for itself."""

    def __init__(self, room: Room, behind: Behind) -> None:
        self._room = room
        self._store = room.store
        self._processes = room.processes
        self._lasting = room.lasting
        self._counting = room.counting
        self._behind = behind

    def _begin_here(self) -> None:
        """Before anything else in a process, also in a forked child."""

    def _begin(self, deadline: Deadline | None = None) -> None:
        """Before the first use of the table. `deadline` is the caller's."""
        self._begin_here()
        self._lasting.begin(deadline=deadline)

    def check_token(self, name: str, token: int) -> None:
        """Is this the token of a grant that is in force on the name? Raises Fenced when it is not:
        refuse its bearer.

        For programs downstream that are shown a token with each write.
        """
        check_label(name, "resource")
        self._lasting.begin(to_look=True)
        holds = lock_in(self._store.get(LOCKS, name)).holds
        steady, now = self._room.steady, self._store.now()
        if any(
            hold.token == token and not steady.reclaimable(hold.lease, Liveness.ALIVE, now)
            for hold in holds
        ):
            return
        current = [hold.token for hold in holds]
        said = f"it is held with token {current[0]}" if current else "nobody holds it"
        raise Fenced(
            f"token {token} is not in force on {name}: {said}. Whoever shows it must stop work on "
            "it",
            resource=name,
            token=token,
            current=current,
        )

    def release_token(self, token: int) -> bool:
        """Release the grant that has this token, whoever took it; False when there is none any
        more.
        """
        hold = self._by_token(token)
        if hold is None:
            return False
        freed = self._room.transact(lambda turns: turns.release_if_held(hold.id, hold.names))
        self._lasting.end(hold)
        return freed

    def renew_token(self, token: int, ttl_s: float | None = None) -> Hold:
        """Renew the grant that has this token, and return it. Raises LeaseLost when there is none
        any more.
        """
        check_ttl(ttl_s)
        found = self._by_token(token)
        hold = None if found is None else self._renewed(found.id, found.names, ttl_s)
        if hold is None:
            raise LeaseLost(
                f"no grant has token {token} any more: stop work on what it guarded. `holdfast "
                "log` tells what became of it",
                token=token,
            )
        return hold

    def kick(
        self, name: str, *, why: str, by: str | None = None, end_tree: bool = False
    ) -> list[Hold]:
        """Take a resource away from its holders (from one job, with `by`), with all that the same
        grants hold.

        Journalled with who did it and why. The holders' tokens are stale from then on, and their
        processes are told. With `end_tree` every process of the commands that hold it is ended
        first. Raises NotFound when nobody holds it, and StillRunning, without taking anything away,
        when processes cannot be ended from here.
        """
        check_label(name, "resource")
        check_label(why, "reason")
        self._begin()
        ended = self._end_trees(name, by) if end_tree else []

        def body(turns: Turns) -> list[Hold]:
            holds = [hold for hold in turns.table.lock(name).holds if by in (None, hold.by)]
            for hold in holds:
                turns.take_away(hold, "lock.kicked", why=why)
            turns.hand_over([other for hold in holds for other in hold.names])
            return holds

        kicked = self._room.transact(body)
        if not kicked and not ended:
            whom = "nobody holds" if by is None else f"job {by} does not hold"
            raise NotFound(
                f"{whom} {name}: `holdfast locks status {name}` shows how it stands", resource=name
            )
        for hold in kicked:
            self._counting.count(hold.names, "kicks")
            self._lasting.end(hold)
        # A wrapper that lives releases the grant itself as soon as its tree has ended.
        return kicked or ended

    def _end_trees(self, name: str, by: str | None) -> list[Hold]:
        """End the processes of a resource's holders; return the grants that these had."""
        held = [
            hold for hold in lock_in(self._store.get(LOCKS, name)).holds if by in (None, hold.by)
        ]
        for process in [hold.process for hold in held if hold.process is not None]:
            if not process.tree or not self._processes.end_tree(process.tree, TREE_GRACE_S):
                raise StillRunning(
                    f"the processes of {name}'s holder cannot be ended from here: end process "
                    f"{process.pid} on host "
                    f"{process.host_id}, or take the lock away without --end-tree",
                    resource=name,
                    pid=process.pid,
                )
        return held

    def status(self, name: str) -> LockStatus:
        """Who holds a resource and who waits for it."""
        check_label(name, "resource")
        self._lasting.begin(to_look=True)
        return self._room.read(lambda table: status_of(table, name, self._store, self._processes))

    def list_held(self) -> list[LockStatus]:
        """The same of every resource that is held or waited for."""
        self._lasting.begin(to_look=True)
        names = self._store.read(
            lambda tx: [row.key for row in tx.range(LOCKS, damaged=[])], scope=[LOCKS]
        )
        return [status for name in names if (status := self.status(name)).holds or status.queue]

    def counts(self) -> LockCounts:
        """How many resources are held or waited for, and how many requests wait."""
        self._lasting.begin(to_look=True)
        return self._store.read(counts_in, scope=SCOPE)

    def page(self, *, after: str = "", limit: int = 100) -> list[LockLine]:
        """A line of up to `limit` resources that are held or waited for, in the order of their
        names, behind one of them. Reads no more than it returns. Raises InvalidValue for a negative
        limit.
        """
        if limit < 0:
            raise InvalidValue(f"limit is {limit}: give 0 or more", field="limit")
        self._lasting.begin(to_look=True)
        return self._store.read(
            lambda tx: page_of(tx, self._store, self._processes, after=after, limit=limit),
            scope=SCOPE,
        )

    def contention(self, *, limit: int = 100) -> Graph:
        """`graph` of the first `limit` requests that wait, by job, and nothing else: reads little,
        however much is held.
        """
        self._lasting.begin(to_look=True)
        return self._store.read(
            lambda tx: contention_of(tx, self._store, self._processes, limit=limit), scope=SCOPE
        )

    def explain(self, name: str) -> Explanation:
        """Why a resource is not free: who holds it, what that one waits for in turn, who is in
        line, and what can be done.
        """
        check_label(name, "resource")
        self._lasting.begin(to_look=True)
        found = self._room.read(lambda table: explain(table, name, self._store, self._processes))
        holds = (
            *found.status.holds,
            *(hold for blockage in found.blockages for hold in blockage.holds),
        )
        known = {by: self._behind(by) for by in dict.fromkeys(hold.by for hold in holds)}
        return replace(found, behind={by: links for by, links in known.items() if links})

    def graph(self) -> Graph:
        """Who waits for whom, over all resources."""
        self._lasting.begin(to_look=True)
        return self._store.read(lambda tx: graph_of(tx, self._store, self._processes), scope=SCOPE)

    def clear_unread(self) -> int:
        """Remove what requests were told whose processes died before they could read it; return how
        many there were. Done in the background now and then.
        """
        told = self._store.read(
            lambda tx: tx.find(LOCK_WAITS, "told", limit=_UNREAD_MAX), scope=[LOCK_WAITS]
        )
        self._room.steady.look()
        now = self._store.now()
        gone = [
            row
            for row in told
            if self._room.steady.reclaimable(
                row.record.lease,
                probe(row.record.process, self._processes, embedded=self._store.embedded),
                now,
            )
        ]
        if not gone:
            return 0

        def clear(tx: Tx) -> int:
            # One that was only out of sight may have read it meanwhile, and wait again under the
            # same key.
            unread = [
                row.key
                for row in gone
                if (found := tx.get(LOCK_WAITS, row.key)) and found.revision == row.revision
            ]
            return sum(tx.delete(LOCK_WAITS, key) for key in unread)

        return self._store.transact(clear, scope=[LOCK_WAITS])

    def statistics(self, *, own: bool = True) -> dict[str, LockStatistics]:
        """What each resource has been through, this process's latest counts included, unless `own`
        is False: to add those is a change.
        """
        self._begin_here()
        if own:
            self._counting.add_up()
        rows = self._store.read(lambda tx: tx.range(LOCK_STATISTICS), scope=[LOCK_STATISTICS])
        return {row.key: row.record for row in rows}

    def _renewed(self, hold_id: str, names: Sequence[str], ttl_s: float | None) -> Hold | None:
        hold, ended = self._room.transact(lambda turns: _renew(turns, hold_id, names, ttl_s))
        if hold is not None:
            self._lasting.keep(hold)
        if ended is not None:
            self._room.reaped([ended])
        return hold

    def _by_token(self, token: int) -> Hold | None:
        self._lasting.begin(to_look=True)
        rows = self._store.read(lambda tx: tx.range(LOCKS, damaged=[]), scope=[LOCKS])
        return next(
            (hold for row in rows for hold in lock_in(row).holds if hold.token == token), None
        )


def _renew(
    turns: Turns, hold_id: str, names: Sequence[str], ttl_s: float | None
) -> tuple[Hold | None, Removed | None]:
    """Renew a grant; one whose asked-for time is over is gone, whether or not another has come for
    it.
    """
    hold = turns.table.find_hold(hold_id, names)
    if hold is None:
        return None, None
    if turns.over(hold):
        return None, turns.reap([Suspect(hold.id, hold.names, hold.process, Liveness.ALIVE)])[0]
    return turns.renew(hold, ttl_s), None
