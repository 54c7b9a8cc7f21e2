"""Earlier attempts of a job whose processes may still work on it when the next attempt begins.

The reaper puts a job back when the tree of its dead worker is gone. But a job that an operator put back or tried again, or that
passed its time limit, can be picked while its old worker still ends the old command. So the next worker on the same machine
waits for that, and ends the old command by itself where its worker cannot.
"""

import os
from contextlib import suppress

from holdfast.domains.jobs import Job
from holdfast.kernel.holder import Liveness, attempt_tree
from holdfast.kernel.limits import TREE_GRACE_S
from holdfast.processes.procfs import Procfs


class Predecessors:
    """The process trees of a job's earlier attempts on this machine that were taken away from their workers."""

    def __init__(self, processes: Procfs, job: Job) -> None:
        self._processes = processes
        here = processes.here()
        # An attempt that was not taken away ended with its tree: its worker gave the verdict after that.
        self._trees = [
            attempt_tree(past.worker.tree, past.token or 0)
            for past in job.past_attempts
            if past.taken_away and past.worker is not None and past.worker.tree and past.worker.place == here
        ]
        self.fd: int | None = None
        """Becomes readable when one of the trees may have ended."""
        self.recheck_s: float | None = None
        """When to look again even if nothing was told."""

    def over(self) -> bool:
        """Are all of them gone? Asks those that are not to end, and kills what is left of them after the grace."""
        self.close()
        self._trees = [tree for tree in self._trees if self._lives(tree)]
        waits = [self._end(tree) for tree in self._trees]
        self.recheck_s = min(waits, default=None)
        self.fd = self._processes.trees.watch(self._trees[0]) if self._trees else None
        return not self._trees

    def close(self) -> None:
        """Stop watching."""
        fd, self.fd = self.fd, None
        if fd is not None:
            with suppress(OSError):
                os.close(fd)

    def _lives(self, tree: str) -> bool:
        return self._processes.tree_liveness(tree, in_sight=True) is Liveness.ALIVE

    def _end(self, tree: str) -> float:
        """Bring a tree nearer to its end; return after how many seconds to come back."""
        asked_s = self._processes.ask_tree(tree)
        if asked_s is not None and asked_s >= TREE_GRACE_S:
            self._processes.end_tree(tree, 0.0)
        # Of a tree that this process may not end, only the watched descriptor tells.
        return TREE_GRACE_S if asked_s is None else max(TREE_GRACE_S - asked_s, 1.0)
