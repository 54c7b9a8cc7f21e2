"""A command in custody, as seen by the process that started it: the wrapper.

The command's process exists before its claim is requested, so that it can be the claim's holder:
its pid and start do not change when it becomes the program. Until `begin` it sleeps, and it ends by
itself if the wrapper dies before that.
"""

import os
import signal
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import Unavailable
from holdfast.kernel.holder import Liveness
from holdfast.kernel.limits import TREE_GRACE_S
from holdfast.processes import cgroup, fifo
from holdfast.processes.guardian import LEAVE
from holdfast.processes.guardian_process import GuardianProcess, Stream
from holdfast.processes.orphans import Orphans, has_children
from holdfast.processes.scan import GUARDIAN, MARK
from holdfast.processes.shared_tree import SharedTree
from holdfast.processes.signals import EXIT_SIGNALLED
from holdfast.processes.syscalls import become_subreaper, readable
from holdfast.processes.trees import Trees, new_id

LEFTOVERS = ("wait", "keep", "end")
"""What happens to processes that the command leaves behind: wait for them, leave the claim to them,
or end them.
"""


class Claim(Plain, frozen=True, kw_only=True):
    """A claim that a command runs under: a lock by its token, a workflow by its name, or an agent
    by its id and generation.
    """

    kind: str
    token: int
    lease_s: float
    name: str = ""
    generation_id: str = ""
    by_lease: bool = False
    """Does it end with its lease on its own machine too, where its tree is seen to live?"""
    ends_when_lost: bool = False
    """Is the tree ended when the claim is lost?"""


class Caretaker(NamedTuple):
    """The program that a guardian executes to renew the claim when its wrapper was killed."""

    words: list[str]
    environment: dict[str, str]


class SavedCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command that has begun, saved for the next program that its wrapper executes. That may be
    of another version, so unknown fields are allowed.
    """

    tree: str
    path: bytes
    grace_s: float
    guardian: int
    pid: int
    orders: int
    reports: int = msgspec.field(name="said")
    status: int | None
    left: bool | None


class Command:
    """A process that becomes a command, with a guardian above it. Raises Unavailable when no more
    processes can be started.

    `mask` is the signal mask that the command gets. A `bound` command is ended when this process
    dies. A `leader` has a session of its own; any other command stays in this process's group.
    `adopts` makes this process the parent of the tree's orphans if the guardian is killed. It has
    no effect if this process has children now, since it could not tell them apart; and this process
    must start no others while the command lives. `hands_on` gives the command every descriptor of
    this process, as a shell does. `environment` replaces this process's own. With `within`, the
    command's tree is the part `tree` of a tree that this process shares among its commands. A
    resumed command has a `guardian` already.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        mask: Collection[int] = (),
        bound: bool = False,
        leader: bool = False,
        adopts: bool = False,
        hands_on: bool = False,
        grace_s: float = TREE_GRACE_S,
        cwd: str | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: Stream = None,
        stdout: Stream = None,
        stderr: Stream = None,
        tree: str | None = None,
        within: SharedTree | None = None,
        guardian: GuardianProcess | None = None,
    ) -> None:
        self._words = list(words)
        self.tree = new_id() if tree is None else tree
        self.grace_s = grace_s
        self._mask = mask
        self._bound = bound
        self._cwd = cwd
        self._within = within
        self._trees: Trees | None = None
        self._kept: int | None = None
        self._ending = False
        self._closed = False
        self.path: str | None = None
        """The path of the tree's FIFO, once there is one."""
        self.began = False
        """Was `begin` called?"""
        self.gone = False
        """Is it known that no process of the tree is left?"""
        self.unseen = False
        """Was the guardian killed before it reported the exit status? Then `wait` returns that of
        SIGKILL.
        """
        self._orphans: Orphans | None = None
        if guardian is not None or (adopts and not has_children()):
            self._orphans = Orphans(grace_s)
            become_subreaper()
        if guardian is not None:
            self._guardian = guardian
            return
        inherited = os.environ if environment is None else environment
        outer = inherited.get(MARK)
        named = self.tree if within is None else f"{within.id}:{self.tree}"
        marks = {MARK: f"{outer}:{named}" if outer else named, GUARDIAN: named}
        try:
            self._guardian = GuardianProcess.start(
                {**inherited, **marks},
                leader=leader,
                hands_on=hands_on,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
            )
        except BaseException:
            if self._orphans is not None:
                self._orphans.close()
            raise

    @classmethod
    def resume(cls, words: Sequence[str], saved: SavedCommand) -> "Command":
        """The command of an earlier program of this process."""
        for fd in (saved.orders, saved.reports):
            os.set_inheritable(fd, False)
        guardian = GuardianProcess(saved.guardian, saved.orders, saved.reports)
        guardian.command_pid = saved.pid
        if saved.status is None:
            guardian.watch_command(saved.pid)
        guardian.status, guardian.left, guardian.executed = saved.status, saved.left, True
        command = cls(words, tree=saved.tree, grace_s=saved.grace_s, guardian=guardian)
        command.path = os.fsdecode(saved.path)
        command.began = True
        return command

    def save(self) -> SavedCommand | None:
        """The command as data, with descriptors that stay open when this process executes another
        program. None if that program could not continue, or must not: when the guardian or the FIFO
        is gone, or the tree is being ended.
        """
        while readable(self._guardian.reports):
            if not self._guardian.listen():
                return None
        pid = self._guardian.command_pid
        if pid is None or self._ending or self._bound or self._orphans is None:
            return None
        if self.path is None or not os.path.lexists(self.path):
            return None
        os.set_inheritable(self._guardian.orders, True)
        return SavedCommand(
            tree=self.tree,
            path=os.fsencode(self.path),
            grace_s=self.grace_s,
            guardian=self._guardian.pid,
            pid=pid,
            orders=self._guardian.orders,
            reports=self._guardian.reports,
            status=self._guardian.status,
            left=self._guardian.left,
        )

    @property
    def guardian(self) -> int:
        """The pid of the guardian."""
        return self._guardian.pid

    @property
    def pid(self) -> int:
        """The pid of the command. Raises Unavailable when the guardian could not start it."""
        while self._guardian.command_pid is None and self._guardian.listen():
            pass
        if self._guardian.command_pid is None:
            raise Unavailable(
                f"the guardian of {self._words[0]} ended before the command began: try again",
                outcome="none",
            )
        return self._guardian.command_pid

    @property
    def known(self) -> bool:
        """Has the guardian reported the command's pid? Until then `pid` waits."""
        return self._guardian.command_pid is not None

    @property
    def fd(self) -> int:
        """A descriptor that becomes readable when there is news of the command."""
        return self._guardian.reports

    @property
    def unguarded(self) -> bool:
        """Was the guardian killed? Then the exit status may be unknown."""
        return self._guardian.has_ended() and self._guardian.reap() != 0

    @property
    def unfit(self) -> OSError | None:
        """Why the command could not be executed. Known after `wait` or `executed`."""
        return self._guardian.unfit

    @property
    def left(self) -> bool | None:
        """Did the command leave processes behind? None while that is not known."""
        return self._guardian.left

    def enter(self, trees: Trees) -> str:
        """Make the tree's FIFO, before a claim names the tree; return its id. Raises
        StoreUnavailable.
        """
        self.path, self._trees = trees.begin(self.tree), trees
        # Until the guardian keeps it: the wait for a claim may be long, and a sweep removes a FIFO
        # that nobody keeps.
        self._kept = None if self.path is None else fifo.keep(self.path)
        if self._within is not None:
            self._within.parts.add(self.tree)
        return self.tree

    def begin(
        self, trees: Trees, environment: Mapping[str, str], caretaker: Caretaker | None = None
    ) -> None:
        """Let it become the command, with this added to its environment. Where a claim is recorded,
        `enter` comes first.
        """
        if self._trees is None:
            self.enter(trees)
        self.began = True
        self._guardian.order(
            {
                "words": [os.fsencode(word) for word in self._words],
                "environment": {
                    name.encode(): value.encode() for name, value in environment.items()
                },
                "mask": [int(number) for number in self._mask],
                "cwd": self._cwd,
                "fifo": self.path,
                "shared_fifo": None if self._within is None else self._within.path,
                "bound": self._bound,
                "grace_s": self.grace_s,
                "caretaker": [] if caretaker is None else caretaker.words,
                "caretaker_environment": {} if caretaker is None else caretaker.environment,
            }
        )
        # From here on the guardian keeps the FIFO. A stopped wrapper must not keep the claim of a
        # tree that has ended.
        self._stop_keeping()

    def use(self, trees: Trees) -> None:
        """Find the tree among the store's, where this process resumed the command."""
        self._trees = trees

    def executed(self) -> bool:
        """Wait until the process has become the command; False when it could not: see `unfit`."""
        guardian = self._guardian
        while not guardian.executed and guardian.unfit is None and guardian.status is None:
            if not guardian.listen():
                break
        return guardian.unfit is None

    def ended(self, timeout_s: float = 0.0) -> bool:
        """Has the command ended, now or within this time, whether or not it was waited for?"""
        if self._guardian.status is not None:
            return True
        try:
            _ = self.pid
        except Unavailable:
            return True
        fd = self._guardian.command_fd
        return fd is None or readable(fd, timeout_s)

    def poll(self) -> int | None:
        """The command's exit status, negative for a signal; None while it runs. Never waits."""
        guardian = self._guardian
        while guardian.status is None and readable(guardian.reports):
            if not guardian.listen():
                # The kernel closes the files of a process just before its end is complete.
                readable(guardian.pidfd, None)
                break
        # Without its guardian the command may run for long.
        if guardian.status is None and guardian.has_ended() and self.ended():
            self.wait()
        return guardian.status

    def wait(self) -> int:
        """Wait for the command's end; return its exit status, negative for a signal."""
        self.began = True
        while self._guardian.status is None and self._guardian.listen():
            pass
        if self._guardian.status is None:
            self._guardian.status = self._wait_without_guardian()
        return self._guardian.status

    def wait_for_tree(self, timeout_s: float | None = None) -> bool:
        """Sleep until no process of the tree is left, or the time is up. True when none is left."""
        if self.left is False and self._guardian.status is not None:
            # The guardian is about to end.
            timeout_s = None
        if not readable(self._guardian.pidfd, timeout_s):
            return False
        self.gone = self._guardian.reap() == 0 or self._wait_for_orphans(timeout_s)
        if self.gone:
            self._leave_shared_tree()
        return self.gone

    def end_tree(self) -> None:
        """End every process of the tree: SIGTERM, the grace, SIGKILL. Does not wait. If the
        guardian was killed, `wait_for_tree` does it.
        """
        self._ending = True
        if self._orphans is not None:
            self._orphans.end()
        _send(self._guardian.pidfd, signal.SIGTERM)
        _send(self._guardian.pidfd, signal.SIGCONT)

    def leave(self) -> None:
        """Let the tree go on without this process, also a bound one."""
        self._guardian.order(LEAVE)

    def send(self, number: int) -> None:
        """Send the command a signal, unless it has ended."""
        if not self.ended() and self._guardian.command_fd is not None:
            _send(self._guardian.command_fd, number)

    def pass_on(self, arrived: signal.struct_siginfo) -> None:
        """Give the command a signal that came to this process, unless the command got it too."""
        if arrived.si_signo == signal.SIGCHLD:
            return
        # A positive code means the kernel: the terminal sends its signals to the whole foreground
        # group. But that the terminal is gone, as when a tmux session is killed, the kernel tells
        # the session leader alone.
        to_leader = arrived.si_signo == signal.SIGHUP and os.getsid(0) == os.getpid()
        if arrived.si_code <= 0 or to_leader or not _same_group(self.pid):
            self.send(arrived.si_signo)

    def dismiss(self) -> None:
        """End it, if it never became the command."""
        if not self.began:
            self.began = True
            self._guardian.hang_up()
            self._guardian.reap()
            # Nothing was executed, so the tree has no other process.
            self.gone = True
            self._leave_shared_tree()
            self.close()

    def close(self) -> None:
        """Let go of the tree. If its guardian was killed and no process is left, remove its
        FIFO.
        """
        if self._closed:
            return
        self._closed = True
        self._stop_keeping()
        if self.path is not None and (
            self.gone or (self._guardian.has_ended() and self._guardian.reap() == 0)
        ):
            fifo.end(self.path)
            fifo.remove(self.path)
        self._guardian.close()
        if self._orphans is not None:
            self._orphans.close()

    def _stop_keeping(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            os.close(kept)

    def _leave_shared_tree(self) -> None:
        if self._within is not None:
            self._within.parts.discard(self.tree)

    def _wait_without_guardian(self) -> int:
        # The guardian's children have another parent before its end can be reaped.
        self._guardian.reap()
        self._guardian.left = True
        if self._orphans is not None and self._guardian.command_pid is not None:
            try:
                return os.waitstatus_to_exitcode(os.waitpid(self._guardian.command_pid, 0)[1])
            except ChildProcessError:
                pass
        elif not self.ended() and self._guardian.command_fd is not None:
            readable(self._guardian.command_fd, None)
        self.unseen = True
        return -signal.SIGKILL

    def _wait_for_orphans(self, timeout_s: float | None) -> bool:
        """Wait for a tree whose guardian was killed, or end it if that was asked. True when no
        process of it can be seen.
        """
        if self._orphans is not None:
            gone = self._orphans.wait(timeout_s)
        elif self._trees is not None:
            gone = (
                self._trees.end(self.tree, self.grace_s)
                if self._ending
                else self._trees.wait_for_end(self.tree, timeout_s)
            )
            gone = gone or self._trees.liveness(self.tree, in_sight=True) is not Liveness.ALIVE
        else:
            gone = True
        if gone and (group := cgroup.below_own(self.tree)) is not None:
            cgroup.remove(group)
        return gone


def shell_status(code: int) -> int:
    """An exit status as shells show it."""
    return code if code >= 0 else EXIT_SIGNALLED - code


def _send(pidfd: int, number: int) -> None:
    try:
        signal.pidfd_send_signal(pidfd, number)
    except (ProcessLookupError, PermissionError):
        return


def _same_group(pid: int) -> bool:
    try:
        return os.getpgid(pid) == os.getpgrp()
    except ProcessLookupError:
        return False
