"""A command in custody, as the process sees it that started the command: the wrapper.

The command exists before its claim is asked for, so that it can be the claim's holder: its pid and
start do not change when it becomes the program. Until `begin` it sleeps, and it ends by itself if
the wrapper dies before that.

The claim that a command runs under.
"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import IO

import msgspec

from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import Unavailable
from holdfast.kernel.holder import Liveness
from holdfast.kernel.limits import TREE_GRACE_S
from holdfast.processes import cgroup, fifo
from holdfast.processes import guardian as guardians
from holdfast.processes.orphans import Orphans, has_children
from holdfast.processes.scan import GUARDIAN, MARK, stat
from holdfast.processes.shared_tree import SharedTree
from holdfast.processes.signals import EXIT_SIGNALLED
from holdfast.processes.trees import Trees, new_id

LEFTOVERS = ("wait", "keep", "end")
"""What becomes of processes that the command leaves behind: wait for them, leave them their claim,
or end them.
"""

Stream = int | IO[bytes] | None
_PROGRAM = os.path.join(os.path.dirname(guardians.__file__), "guardian_program.py")


class SavedCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command that has begun, on its way to the next program that its wrapper executes. That may
    be of another version, so unknown fields are allowed.
    """

    tree: str
    path: bytes
    grace_s: float
    guardian: int
    pid: int
    orders: int
    said: int
    status: int | None
    left: bool | None


class Command:
    """A process that becomes a command, with a guardian above it. Raises Unavailable when there can
    be no more processes.

    `mask` is the signal mask that the command gets. A `bound` command is ended when this process
    dies. A `leader` has a session of its own; any other stays in this process's group. `adopts`
    makes this process the one that orphans of the tree come to if the guardian is killed, unless it
    has other children now: it could not tell them apart. It must start no others while the command
    lives. `hands_on` gives the command every descriptor of this process, as a shell does.
    `environment` replaces this process's own. With `within`, the command's tree is the part `tree`
    of a tree that this process shares among its commands.
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
    ) -> None:
        self.tree = new_id() if tree is None else tree
        self._within = within
        self._words = list(words)
        self._mask = mask
        self._bound = bound
        self.grace_s = grace_s
        self._cwd = cwd
        self._orphans = Orphans(grace_s) if adopts and not has_children() else None
        if self._orphans is not None:
            guardians.become_subreaper()
        around = os.environ if environment is None else environment
        outer = around.get(MARK)
        named = self.tree if within is None else f"{within.id}:{self.tree}"
        own = {MARK: f"{outer}:{named}" if outer else named, GUARDIAN: named}
        orders, self._orders = (guardians.above_streams(fd) for fd in os.pipe())
        self._said, said = (guardians.above_streams(fd) for fd in os.pipe())
        # It is 0 if the group began outside of this pid namespace, as for a container's first
        # process. To setpgid(2) a 0 means a new group: then Ctrl-C would not reach the command, and
        # the guardian could not leave for a session of its own.
        group = os.getpgrp() or None
        try:
            for fd in (orders, said):
                os.set_inheritable(fd, hands_on)
            self._started: subprocess.Popen[bytes] | None = subprocess.Popen(
                [sys.executable, "-I", "-S", _PROGRAM, str(orders), str(said), str(int(leader))],
                env={**around, **own},
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                close_fds=not hands_on,
                pass_fds=() if hands_on else (orders, said),
                # The group that it has anyway. Without this Python would use posix_spawn(3), and
                # glibc's ignores two signals in the child, and so in the command.
                process_group=group,
                preexec_fn=_stay if group is None else None,
            )
        except OSError as error:
            os.close(self._orders)
            os.close(self._said)
            if self._orphans is not None:
                self._orphans.close()
            raise Unavailable(
                f"cannot start another process ({error.strerror}): end some, or raise `ulimit -u`",
                outcome="none",
            ) from None
        finally:
            os.close(orders)
            os.close(said)
        self._watch(self._started.pid)

    def _watch(self, guardian: int) -> None:
        """Begin to watch a guardian."""
        self.guardian = guardian
        self._guardian_fd = os.pidfd_open(guardian)
        self._guardian_status: int | None = None
        self._read = b""
        self._pid: int | None = None
        self._fd: int | None = None
        self._status: int | None = None
        self._trees: Trees | None = None
        self._kept: int | None = None
        self.path: str | None = None
        self._executed = False
        self._ending = False
        self._over = False
        self.began = False
        """Was it let become the command?"""
        self.unfit: OSError | None = None
        """Why the command could not be executed. Known once it was waited for, or `executed` was
        asked.
        """
        self.left: bool | None = None
        """Did the command leave processes behind? None while that is not known."""
        self.gone = False
        """Is it known that no process of the tree is left?"""
        self.unseen = False
        """Was the guardian killed before it could tell the exit status? Then the status is that of
        SIGKILL.
        """

    @classmethod
    def resume(cls, words: Sequence[str], saved: SavedCommand) -> "Command":
        """The command of an earlier program of this process."""
        command = cls.__new__(cls)
        command.tree, command._within = saved.tree, None
        command._words, command._mask, command._cwd = list(words), (), None
        command._bound, command._orphans = False, Orphans(saved.grace_s)
        command.grace_s = saved.grace_s
        command._orders, command._said = saved.orders, saved.said
        for fd in (saved.orders, saved.said):
            os.set_inheritable(fd, False)
        command._started = None
        command._watch(saved.guardian)
        command._pid = saved.pid
        command._fd = command._opened(saved.pid) if saved.status is None else None
        command._status, command.left = saved.status, saved.left
        command.path = os.fsdecode(saved.path)
        command.began = command._executed = True
        return command

    def save(self) -> SavedCommand | None:
        """The command as data, with descriptors that stay open when this process executes another
        program. None where that one could not go on with it, or must not: when the guardian or the
        FIFO is gone, or the tree is being ended.
        """
        while _readable(self._said, 0):
            if not self._listen():
                return None
        if self._pid is None or self._ending or self._bound or self._orphans is None:
            return None
        if self.path is None or not os.path.lexists(self.path):
            return None
        os.set_inheritable(self._orders, True)
        return SavedCommand(
            tree=self.tree,
            path=os.fsencode(self.path),
            grace_s=self.grace_s,
            guardian=self.guardian,
            pid=self._pid,
            orders=self._orders,
            said=self._said,
            status=self._status,
            left=self.left,
        )

    @property
    def pid(self) -> int:
        """The command's process. Raises Unavailable when its guardian could not start it."""
        while self._pid is None and self._listen():
            pass
        if self._pid is None:
            raise Unavailable(
                f"the guardian of {self._words[0]} ended before the command began: try again",
                outcome="none",
            )
        return self._pid

    @property
    def known(self) -> bool:
        """Has the guardian told the command's process? Until then `pid` waits."""
        return self._pid is not None

    @property
    def fd(self) -> int:
        """A descriptor that becomes readable when there is news of the command."""
        return self._said

    @property
    def unguarded(self) -> bool:
        """Was the guardian killed? Then the exit status may be unknown."""
        return _readable(self._guardian_fd, 0) and self._reap_guardian() != 0

    def begin(
        self, trees: Trees, environment: Mapping[str, str], caretaker: "Caretaker | None" = None
    ) -> None:
        """Let it become the command, with this added to its environment. `enter` comes first, where
        a claim is recorded.
        """
        if self._trees is None:
            self.enter(trees)
        order = {
            "words": [os.fsencode(word) for word in self._words],
            "environment": {name.encode(): value.encode() for name, value in environment.items()},
            "mask": [int(number) for number in self._mask],
            "cwd": self._cwd,
            "fifo": self.path,
            "shared_fifo": None if self._within is None else self._within.path,
            "bound": self._bound,
            "grace_s": self.grace_s,
            "caretaker": [] if caretaker is None else caretaker.words,
            "caretaker_environment": {} if caretaker is None else dict(caretaker.environment),
        }
        self.began = True
        self._order(order)
        # From here on the guardian keeps it. A wrapper that is stopped must not keep what has
        # ended.
        self._let_go()

    def enter(self, trees: Trees) -> str:
        """Make the tree known among the store's, before a claim names it; return its id. Raises
        StoreUnavailable.
        """
        self.path, self._trees = trees.begin(self.tree), trees
        # Until the guardian keeps it: the wait for a claim may be long, and a FIFO that nobody
        # keeps is swept.
        self._kept = None if self.path is None else fifo.keep(self.path)
        if self._within is not None:
            self._within.parts.add(self.tree)
        return self.tree

    def executed(self) -> bool:
        """Wait until the process has become the command; False when it could not, and `unfit` says
        why.
        """
        while not self._executed and self.unfit is None and self._status is None and self._listen():
            pass
        return self.unfit is None

    def ended(self, timeout_s: float = 0.0) -> bool:
        """Has the command ended, by now or within this time, whether or not it was waited for?"""
        if self._status is not None:
            return True
        try:
            _ = self.pid
        except Unavailable:
            return True
        return self._fd is None or _readable(self._fd, timeout_s)

    def poll(self) -> int | None:
        """The command's exit status as Python tells it, negative for a signal; None while it runs.
        Never waits.
        """
        while self._status is None and _readable(self._said, 0):
            if not self._listen():
                # The kernel closes the files of a process just before its end is complete.
                _readable(self._guardian_fd, None)
                break
        # Without its guardian the command may run for long.
        if self._status is None and _readable(self._guardian_fd, 0) and self.ended():
            self.wait()
        return self._status

    def wait(self) -> int:
        """Wait for the command's end, and return its exit status as Python tells it: negative for a
        signal.
        """
        self.began = True
        while self._status is None and self._listen():
            pass
        if self._status is None:
            self._status = self._adopted()
        return self._status

    def use(self, trees: Trees) -> None:
        """Find the tree among the store's, where this process resumed the command."""
        self._trees = trees

    def wait_for_tree(self, timeout_s: float | None = None) -> bool:
        """Wait until no process of the tree is left, or the time is up. Sleeps. True when none is
        left.
        """
        if self.left is False and self._status is not None:
            timeout_s = None
        if not _readable(self._guardian_fd, timeout_s):
            return False
        self.gone = self._reap_guardian() == 0 or self._wait_without_guardian(timeout_s)
        if self.gone and self._within is not None:
            self._within.parts.discard(self.tree)
        return self.gone

    def end_tree(self) -> None:
        """End every process of the tree: SIGTERM, the grace, SIGKILL. Does not wait. If the
        guardian was killed, `wait_for_tree` does it.
        """
        self._ending = True
        if self._orphans is not None:
            self._orphans.end()
        self._signal(self._guardian_fd, signal.SIGTERM)
        self._signal(self._guardian_fd, signal.SIGCONT)

    def leave(self) -> None:
        """Let the tree go on without this process, also a bound one."""
        self._order(guardians.LEAVE)

    def send(self, number: int) -> None:
        """Send the command a signal, unless it has ended."""
        if not self.ended() and self._fd is not None:
            self._signal(self._fd, number)

    def pass_on(self, arrived: signal.struct_siginfo) -> None:
        """Give the command a signal that came to this process, if it has not had that already."""
        if arrived.si_signo != signal.SIGCHLD and not self._had(arrived):
            self.send(arrived.si_signo)

    def dismiss(self) -> None:
        """End it, if it never became the command."""
        if not self.began:
            self.began = True
            os.close(self._orders)
            self._orders = -1
            self._reap_guardian()
            # Nothing was executed, so the tree has no other process.
            self.gone = True
            if self._within is not None:
                self._within.parts.discard(self.tree)
            self.close()

    def close(self) -> None:
        """Let go of the tree. Where its guardian was killed and no process is left, this removes
        its FIFO.
        """
        if self._over:
            return
        self._over = True
        self._let_go()
        if self.path is not None and (
            self.gone or (_readable(self._guardian_fd, 0) and self._reap_guardian() == 0)
        ):
            fifo.end(self.path)
            fifo.remove(self.path)
        for fd in (self._orders, self._said, self._guardian_fd, self._fd):
            if fd is not None and fd >= 0:
                os.close(fd)
        if self._orphans is not None:
            self._orphans.close()

    def _let_go(self) -> None:
        """Leave the FIFO to the guardian and the tree."""
        kept, self._kept = self._kept, None
        if kept is not None:
            os.close(kept)

    def _reap_guardian(self) -> int:
        """Wait for the guardian's end; return its exit status."""
        if self._started is not None:
            return self._started.wait()
        if self._guardian_status is None:
            try:
                self._guardian_status = os.waitstatus_to_exitcode(os.waitpid(self.guardian, 0)[1])
            except ChildProcessError:
                # This process was started to ignore the ends of its children, as `Popen.wait` takes
                # it too.
                self._guardian_status = 0
        return self._guardian_status

    def _wait_without_guardian(self, timeout_s: float | None) -> bool:
        """Wait for a tree whose guardian was killed, or end it if it is to be ended. True when no
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

    def _listen(self) -> bool:
        """Read what the guardian says, and wait for it; False when it says nothing more."""
        more = os.read(self._said, 4096)
        self._read += more
        *lines, self._read = self._read.split(b"\n")
        for line in lines:
            word, _, number = line.partition(b" ")
            if word == b"pid":
                self._pid = int(number)
                self._fd = self._opened(self._pid)
            elif word == b"executed":
                self._executed = True
            elif word == b"unfit":
                self.unfit = OSError(int(number), os.strerror(int(number)))
            elif word == b"ended":
                self._status = os.waitstatus_to_exitcode(int(number))
            elif word in (b"left", b"alone"):
                self.left = word == b"left"
        return bool(more)

    def _opened(self, pid: int) -> int | None:
        """A descriptor of the guardian's child; None when that has ended. At once: later, another
        process may have its pid, or the guardian may be dead and its child any subreaper's.
        """
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return None
        seen = stat(pid)
        if seen is not None and seen.parent in (self.guardian, os.getpid(), 1):
            return fd
        os.close(fd)
        return None

    def _adopted(self) -> int:
        """The exit status of a command whose guardian was killed."""
        # Its end comes before its children have another parent, and this returns after that.
        self._reap_guardian()
        self.left = True
        if self._orphans is not None and self._pid is not None:
            try:
                return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            except ChildProcessError:
                pass
        elif not self.ended() and self._fd is not None:
            _readable(self._fd, None)
        self.unseen = True
        return -signal.SIGKILL

    def _order(self, order: object) -> None:
        try:
            view = memoryview(guardians.framed(order))
            while view:
                view = view[os.write(self._orders, view) :]
        except OSError:
            # The guardian was killed, as `wait` will tell.
            return

    def _had(self, arrived: signal.struct_siginfo) -> bool:
        """Did it come from the terminal to both? A positive code is the kernel's, which sends them
        to the foreground group.
        """
        # But that the terminal is gone, as when a tmux session is killed, it tells the leader of
        # the session alone.
        alone = arrived.si_signo == signal.SIGHUP and os.getsid(0) == os.getpid()
        return arrived.si_code > 0 and not alone and _same_group(self.pid)

    def _signal(self, fd: int, number: int) -> None:
        try:
            signal.pidfd_send_signal(fd, number)
        except (ProcessLookupError, PermissionError):
            return


class Caretaker:
    """The program that a guardian becomes when its wrapper was killed, where a claim must be
    renewed.
    """

    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self.words = list(words)
        self.environment = dict(environment)


def _stay() -> None:
    """Change nothing. Python does not use posix_spawn(3) where a function is to be called in the
    child.
    """


def shell_status(code: int) -> int:
    """An exit status as shells tell it."""
    return code if code >= 0 else EXIT_SIGNALLED - code


def _readable(fd: int, timeout_s: float | None) -> bool:
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    return bool(waiting.poll(None if timeout_s is None else timeout_s * 1000))


def _same_group(pid: int) -> bool:
    try:
        return os.getpgid(pid) == os.getpgrp()
    except ProcessLookupError:
        return False


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
    """Does the end of its lease end it on its own machine too, where its tree is seen to live?"""
    ends_when_lost: bool = False
    """Is the tree ended when the claim is lost?"""
