"""Processes of past attempts that live on this machine, and how they are ended.

The reaper puts a job back when the tree of its dead worker is gone. But an operator may put a job
back, or retry it, while processes of an earlier attempt still work: a live worker needs time to end
them, a stopped worker cannot end them, and a command that reported its own end may still clean up.
Two attempts at one job must not run side by side. So a pick on the same machine skips such a job
until those processes are gone. Other machines cannot see them.

A pick does not sleep for the grace: the first one sends SIGTERM, and the first one after the grace
sends SIGKILL, in any process. This is done outside of transactions; only `old_trees` may be called
inside one, since it reads nothing.
"""

import time

from msgspec import Struct

from holdfast.domains.jobs.records import Job
from holdfast.kernel.holder import Holder, Liveness, Processes, Survivor, attempt_tree, probe
from holdfast.kernel.limits import JOBS_TREE_AGAIN_S, TREE_GRACE_S


class OldTree(Struct, frozen=True):
    """The process tree of a past attempt. `here` is true if it is in this process's pid namespace.
    Of a tree in another namespace only the FIFO can be seen, and it cannot be ended from here.
    `taken_away` is true if the attempt ended without a verdict of its worker.
    """

    id: str
    here: bool
    taken_away: bool


class LiveTree(Struct, frozen=True):
    """The live tree of a past attempt, and after how many seconds to check it again."""

    id: str
    again_s: float


class Leftovers:
    """The processes that past attempts at the jobs of one store left on this machine."""

    def __init__(self, processes: Processes, *, embedded: bool) -> None:
        self._processes = processes
        self._embedded = embedded
        self._unkillable: dict[str, float] = {}
        """Trees that SIGKILL did not end, and when to try again: each try takes seconds."""

    def old_trees(self, job: Job) -> list[OldTree]:
        """The trees of a job's past attempts on this machine, live or not."""
        if not job.past_attempts:
            return []
        here = self._processes.here()
        return [
            OldTree(
                attempt_tree(past.worker.tree, past.token or 0),
                past.worker.place == here,
                past.taken_away,
            )
            for past in job.past_attempts
            if past.worker is not None and past.worker.tree and past.worker.place[:2] == here[:2]
        ]

    def end_old(self, job: Job) -> list[LiveTree]:
        """Ask the trees of a job's past attempts to end, or kill them when the grace is over.
        Return those that live.
        """
        alive: list[LiveTree] = []
        for old in self.old_trees(job):
            if not self._lives(old):
                continue
            again_s = self.ask_or_kill(old.id) if old.here else None
            if again_s is None and not self._lives(old):
                continue
            # A tree that cannot be ended from here is watched. The watch may miss its end, for
            # example when no descriptor is left, so it is also checked again later.
            alive.append(LiveTree(old.id, JOBS_TREE_AGAIN_S if again_s is None else again_s))
        return alive

    def survivors(self, job: Job) -> list[Survivor]:
        """The live processes of a job's past attempts, as far as they can be seen."""
        live = [old.id for old in self.old_trees(job) if self._lives(old)]
        return [one for tree in live for one in self._processes.survivors(tree)]

    def ask_or_kill(self, tree: str) -> float | None:
        """Ask a tree to end, or kill it after the grace. Return after how many seconds to come
        back; None when this process can do no more: the tree was killed, cannot be killed, or is
        another user's.
        """
        asked_s = self._processes.terminate_tree(tree)
        if asked_s is None:
            return None
        if asked_s < TREE_GRACE_S:
            return TREE_GRACE_S - asked_s
        due = time.monotonic() >= self._unkillable.get(tree, 0.0)
        if due and not self._processes.end_tree(tree, 0.0):
            self._unkillable[tree] = time.monotonic() + JOBS_TREE_AGAIN_S
        return None

    def end_of_dead_worker(self, job: Job) -> None:
        """End the processes that a dead worker left, when its running job was taken away. A live
        worker is notified and ends its command itself. Sleeps until they are gone, for longer than
        the grace only if SIGKILL does not end them.
        """
        holder = job.claimed_by
        if holder is None or not holder.tree or self._probe(holder.leader) is not Liveness.DEAD:
            return
        if self._probe(holder) is Liveness.ALIVE:
            self._processes.end_tree(holder.tree, TREE_GRACE_S)

    def _probe(self, holder: Holder) -> Liveness:
        return probe(holder, self._processes, embedded=self._embedded)

    def _lives(self, old: OldTree) -> bool:
        # A worker removes the FIFO of an attempt before it gives its verdict. So /proc, which is
        # slow to search, is searched only for attempts that ended without a verdict.
        in_sight = old.here and old.taken_away
        return self._processes.tree_liveness(old.id, in_sight=in_sight) is Liveness.ALIVE
