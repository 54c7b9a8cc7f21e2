"""A simulated machine: processes and process trees that begin and end when a test says so."""

import os
import threading
from itertools import count

from holdfast.kernel.errors import NotFound
from holdfast.kernel.holder import Holder, Liveness, Place, ProcessStat, Survivor


class Machine:
    """A machine whose processes start and end when the test says so."""

    def __init__(self, host_id: str = "host-1") -> None:
        self.place = Place(host_id, "boot-1", 1)
        self._ticks = count(1000)
        self._mutex = threading.Lock()
        self._living: dict[int, int] = {}
        self.stopped: set[int] = set()
        self.parents: dict[int, int] = {}
        self._watched: dict[int, list[int]] = {}

    def begin(self, pid: int) -> "ProcessTable":
        """Start a process. A reused pid gets other start ticks."""
        self._living[pid] = next(self._ticks)
        return ProcessTable(self, pid)

    def end(self, pid: int) -> None:
        """Kill a process: the descriptors of its watchers hang up."""
        with self._mutex:
            del self._living[pid]
            for fd in self._watched.pop(pid, []):
                os.close(fd)

    def process_stat(self, pid: int) -> ProcessStat | None:
        ticks = self._living.get(pid)
        if ticks is None:
            return None
        return ProcessStat(
            start_ticks=ticks,
            zombie=False,
            stopped=pid in self.stopped,
            parent_pid=self.parents.get(pid, 0),
        )

    def watch(self, pid: int, start_ticks: int) -> int | None:
        """A descriptor for the watcher to close; the other end closes when the process ends."""
        with self._mutex:
            if self._living.get(pid) != start_ticks:
                return None
            watched, kept = os.pipe()
            self._watched.setdefault(pid, []).append(kept)
            return watched

    def close(self) -> None:
        for pid in list(self._living):
            self.end(pid)


class NoTrees:
    """The part of the port `Processes` about process trees, on a machine that has none."""

    def tree_liveness(self, tree: str, *, in_sight: bool) -> Liveness:
        raise NotImplementedError

    def watch_tree(self, tree: str) -> int | None:
        raise NotImplementedError

    def terminate_tree(self, tree: str) -> float | None:
        raise NotImplementedError

    def end_tree(self, tree: str, grace_s: float) -> bool:
        raise NotImplementedError

    def survivors(self, tree: str) -> list[Survivor]:
        raise NotImplementedError


class ProcessTable(NoTrees):
    """The port `Processes` as one process of a simulated machine sees it."""

    def __init__(self, machine: Machine, pid: int) -> None:
        self.machine = machine
        self.pid = pid

    def here(self) -> Place:
        return self.machine.place

    def process_stat(self, pid: int) -> ProcessStat | None:
        return self.machine.process_stat(pid)

    def boot_lives(self, boot_id: str) -> bool:
        return False

    def current(self, label: str = "") -> Holder:
        return self.of(self.pid, label)

    def of(self, pid: int, label: str = "") -> Holder:
        seen = self.machine.process_stat(pid)
        if seen is None or seen.start_ticks is None:
            raise NotFound(f"there is no live process {pid}", pid=pid)
        return Holder(
            **self.machine.place._asdict(), pid=pid, start_ticks=seen.start_ticks, label=label
        )

    def death(self, holder: Holder) -> int | None:
        if holder.place != self.machine.place:
            return None
        return self.machine.watch(holder.pid, holder.start_ticks)


class Trees:
    """The process trees of a machine: each lives until it is ended."""

    def __init__(self, *living: str) -> None:
        self._mutex = threading.Lock()
        self._living: dict[str, list[int]] = {tree: [] for tree in living}
        self.asked: list[str] = []
        """The trees that somebody wanted to end."""
        self.was_asked = threading.Event()

    def begin(self, tree: str) -> None:
        self._living[tree] = []

    def end(self, tree: str) -> None:
        with self._mutex:
            for fd in self._living.pop(tree):
                os.close(fd)

    def lives(self, tree: str) -> bool:
        return tree in self._living

    def watch(self, tree: str) -> int | None:
        with self._mutex:
            if not self.lives(tree):
                return None
            watched, kept = os.pipe()
            self._living[tree].append(kept)
            return watched


class TreeTable(ProcessTable):
    """The process table of a machine that has process trees too."""

    def __init__(self, machine: Machine, pid: int, trees: Trees) -> None:
        super().__init__(machine, pid)
        self.trees = trees

    def tree_liveness(self, tree: str, *, in_sight: bool) -> Liveness:
        return Liveness.ALIVE if self.trees.lives(tree) else Liveness.DEAD

    def survivors(self, tree: str) -> list[Survivor]:
        return [Survivor(7, "load.sh")] if self.trees.lives(tree) else []

    def end_tree(self, tree: str, grace_s: float) -> bool:
        self.trees.asked.append(tree)
        self.trees.was_asked.set()
        return False

    def death(self, holder: Holder) -> int | None:
        first = super().death(holder)
        return (
            self.trees.watch(holder.tree)
            if first is None and holder.tree and holder.place == self.here()
            else first
        )
