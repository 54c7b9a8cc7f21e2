"""A command in custody, as seen by the process that started it: the wrapper.

The command's process exists before its claim is requested, so that it can be the claim's holder:
its pid and start do not change when it becomes the program. Until `begin` it sleeps, and it ends by
itself if the wrapper dies before that.
"""

import marshal
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import IO, Any

import msgspec

from holdfast.kernel.errors import Unavailable
from holdfast.kernel.holder import Liveness
from holdfast.kernel.limits import TREE_GRACE_S
from holdfast.processes import cgroup, fifo
from holdfast.processes.guardian import LEAVE
from holdfast.processes.orphans import Orphans
from holdfast.processes.scan import GUARDIAN, MARK, stat
from holdfast.processes.syscalls import become_subreaper, pipe, readable
from holdfast.processes.trees import SharedTree, Trees, new_id
from holdfast.system.access import LACKING

Stream = int | IO[bytes] | None
_PROGRAM = os.path.join(os.path.dirname(__file__), "guardian_program.py")


class Caretaker(msgspec.Struct, frozen=True):
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
    command's tree is the part `tree` of a tree that this process shares among its commands. `saved`
    is the command of an earlier program of this process, which goes on.
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
        saved: SavedCommand | None = None,
    ) -> None:
        self._words = list(words)
        self._mask = mask
        self._bound = bound
        self._cwd = cwd
        self._within = within
        self._trees: Trees | None = None
        self._kept: int | None = None
        self._orphans: Orphans | None = None
        self._ending = False
        self._closed = False
        self._started: subprocess.Popen[bytes] | None = None
        self._guardian_status: int | None = None
        self._unread = b""
        self._pid: int | None = None
        self._pidfd: int | None = None
        self._executed = False
        self.gone = False
        """Is it known that no process of the tree is left?"""
        self.unseen = False
        """Was the guardian killed before it reported the exit status? Then `wait` returns that of
        SIGKILL.
        """
        self.unfit: OSError | None = None
        """Why the command could not be executed. Known after `wait` or `executed`."""
        if saved is not None:
            self._resume(saved)
            return
        self.tree = new_id() if tree is None else tree
        self.grace_s = grace_s
        self.path: str | None = None
        """The path of the tree's FIFO, once there is one."""
        self.began = False
        """Was `begin` called?"""
        self._status: int | None = None
        self.left: bool | None = None
        """Did the command leave processes behind? None while that is not known."""
        self._adopts = adopts and not _has_children()
        if self._adopts:
            become_subreaper()
        inherited = os.environ if environment is None else environment
        outer = inherited.get(MARK)
        named = self.tree if within is None else f"{within.id}:{self.tree}"
        marks = {MARK: f"{outer}:{named}" if outer else named, GUARDIAN: named}
        # `fd` is readable when there is news of the command.
        orders, self._orders, self.fd, reports = two_pipes()
        # 0 if the group began outside of this pid namespace, as for a container's first process. To
        # setpgid(2) a 0 means a new group: then Ctrl-C would not reach the command, and the
        # guardian could not leave for a session of its own.
        group = os.getpgrp() or None
        try:
            for fd in (orders, reports):
                os.set_inheritable(fd, hands_on)
            self._started = subprocess.Popen(
                [sys.executable, "-I", "-S", _PROGRAM, f"{orders}", f"{reports}", f"{leader:d}"],
                env={**inherited, **marks},
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                close_fds=not hands_on,
                pass_fds=() if hands_on else (orders, reports),
                # The group that it has anyway. Without this, and without a function to call in the
                # child, Python would use posix_spawn(3). glibc's ignores two signals in the child,
                # and so in the command.
                process_group=group,
                preexec_fn=_do_nothing if group is None else None,
            )
            self.guardian = self._started.pid
            self._guardian_fd = os.pidfd_open(self.guardian)
        except OSError as error:
            os.close(self._orders)
            os.close(self.fd)
            if self._started is not None:
                # The guardian was started, and ends because its orders are closed.
                self._started.wait()
            raise _not_started(error) from None
        finally:
            os.close(orders)
            os.close(reports)

    def _resume(self, saved: SavedCommand) -> None:
        for fd in (saved.orders, saved.reports):
            os.set_inheritable(fd, False)
        become_subreaper()
        self._adopts = True
        self.tree, self.path = saved.tree, os.fsdecode(saved.path)
        self.grace_s = saved.grace_s
        self.began = self._executed = True
        self._orders, self.fd = saved.orders, saved.reports
        self.guardian = saved.guardian
        self._guardian_fd = os.pidfd_open(saved.guardian)
        self._pid, self._status, self.left = saved.pid, saved.status, saved.left
        if saved.status is None:
            self._watch_command(saved.pid)

    def save(self) -> SavedCommand | None:
        """The command as data, with descriptors that stay open when this process executes another
        program. None if that program could not continue, or must not: when the guardian or the FIFO
        is gone, or the tree is being ended.
        """
        while readable(self.fd):
            if not self._listen():
                return None
        if self._pid is None or self._ending or self._bound or not self._adopts:
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
            reports=self.fd,
            status=self._status,
            left=self.left,
        )

    @property
    def pid(self) -> int:
        """The pid of the command. Raises Unavailable when the guardian could not start it."""
        while self._pid is None:
            if not self._listen():
                raise Unavailable(
                    f"the guardian of {self._words[0]} ended before the command began: try again",
                    outcome="none",
                )
        return self._pid

    @property
    def known(self) -> bool:
        """Has the guardian reported the command's pid? Until then `pid` waits."""
        return self._pid is not None

    @property
    def unguarded(self) -> bool:
        """Was the guardian killed? Then the exit status may be unknown."""
        return readable(self._guardian_fd) and self._reap_guardian() != 0

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

    def become(self, words: Sequence[str]) -> None:
        """Change the words of a command that has not begun."""
        self._words = list(words)

    def begin(
        self, trees: Trees, environment: Mapping[str, str], caretaker: Caretaker | None = None
    ) -> None:
        """Let it become the command, with this added to its environment. Where a claim is recorded,
        `enter` comes first.
        """
        if self._trees is None:
            self.enter(trees)
        self.began = True
        self._order(
            {
                "words": list(map(os.fsencode, self._words)),
                "environment": {
                    name.encode(): value.encode() for name, value in environment.items()
                },
                "mask": list(map(int, self._mask)),
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
        if self._kept is not None:
            os.close(self._kept)
            self._kept = None

    def use(self, trees: Trees) -> None:
        """Find the tree among the store's, where this process resumed the command."""
        self._trees = trees

    def executed(self) -> bool:
        """Wait until the process has become the command; False when it could not: see `unfit`."""
        while not self._executed and self.unfit is None and self._status is None:
            if not self._listen():
                break
        return self.unfit is None

    def ended(self, timeout_s: float = 0.0) -> bool:
        """Has the command ended, now or within this time, whether or not it was waited for?"""
        while self._status is None and self._pid is None:
            if not self._listen():
                return True
        if self._status is not None or self._pidfd is None:
            return True
        return readable(self._pidfd, timeout_s)

    def poll(self) -> int | None:
        """The command's exit status, negative for a signal; None while it runs. Never waits."""
        while self._status is None and readable(self.fd):
            if not self._listen():
                # The kernel closes the files of a process just before its end is complete.
                readable(self._guardian_fd, None)
                break
        # Without its guardian the command may run for long.
        if self._status is None and readable(self._guardian_fd) and self.ended():
            self.wait()
        return self._status

    def wait(self) -> int:
        """Wait for the command's end; return its exit status, negative for a signal."""
        self.began = True
        while self._status is None and self._listen():
            pass
        if self._status is None:
            self._status = self._wait_without_guardian()
        return self._status

    def wait_for_tree(self, timeout_s: float | None = None) -> bool:
        """Sleep until no process of the tree is left, or the time is up. True when none is left."""
        if self.left is False and self._status is not None:
            # The guardian is about to end.
            timeout_s = None
        if not readable(self._guardian_fd, timeout_s):
            return False
        self.gone = self._reap_guardian() == 0 or self._wait_for_orphans(timeout_s)
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
        _send(self._guardian_fd, signal.SIGTERM)
        _send(self._guardian_fd, signal.SIGCONT)

    def leave(self) -> None:
        """Let the tree go on without this process, also a bound one."""
        self._order(LEAVE)

    def send(self, number: int) -> None:
        """Send the command a signal, unless it has ended."""
        if not self.ended() and self._pidfd is not None:
            _send(self._pidfd, number)

    def forward(self, arrived: signal.struct_siginfo) -> None:
        """Give the command a signal that came to this process, unless the command got it too."""
        if arrived.si_signo == signal.SIGCHLD:
            return
        # A positive code means the kernel: the terminal sends its signals to the whole foreground
        # group. But when the terminal is gone, as when a tmux session is killed, the kernel signals
        # the session leader alone.
        to_leader = arrived.si_signo == signal.SIGHUP and os.getsid(0) == os.getpid()
        if arrived.si_code <= 0 or to_leader or not _same_group(self.pid):
            self.send(arrived.si_signo)

    def close(self) -> None:
        """Release the tree; end the process first if it never became the command. If its guardian
        was killed and no process is left, remove its FIFO.
        """
        if self._closed:
            return
        self._closed = True
        if not self.began:
            self.began = True
            # A guardian without orders ends the process that waits for them.
            os.close(self._orders)
            self._orders = -1
            self._reap_guardian()
            # Nothing was executed, so the tree has no other process.
            self.gone = True
            if self._within is not None:
                self._within.parts.discard(self.tree)
        if self.path is not None and (
            self.gone or (readable(self._guardian_fd) and self._reap_guardian() == 0)
        ):
            fifo.end(self.path)
            fifo.remove(self.path)
        for fd in (self._kept, self._orders, self.fd, self._guardian_fd, self._pidfd):
            if fd is not None and fd >= 0:
                os.close(fd)
        if self._orphans is not None:
            self._orphans.close()

    def _order(self, order: Any) -> None:
        """Write an order as the guardian reads it: its length, then its content."""
        body = marshal.dumps(order)
        view = memoryview(len(body).to_bytes(4, "little") + body)
        try:
            while view:
                view = view[os.write(self._orders, view) :]
        except OSError:
            # The guardian was killed, which its reports will show.
            return

    def _listen(self) -> bool:
        """Wait for the next reports and note them; False when the guardian reports no more."""
        more = os.read(self.fd, 4096)
        *lines, self._unread = (self._unread + more).split(b"\n")
        for line in lines:
            word, _, number = line.partition(b" ")
            if word == b"pid":
                self._pid = int(number)
                self._watch_command(self._pid)
            elif word == b"executed":
                self._executed = True
            elif word == b"unfit":
                self.unfit = OSError(int(number), os.strerror(int(number)))
            elif word == b"ended":
                self._status = os.waitstatus_to_exitcode(int(number))
            elif word in (b"left", b"alone"):
                self.left = word == b"left"
        return bool(more)

    def _watch_command(self, pid: int) -> None:
        """Open the guardian's child at once: later, another process may have its pid, or the
        guardian may be dead and its child any subreaper's.
        """
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return
        seen = stat(pid)
        if seen is not None and seen.parent in (self.guardian, os.getpid(), 1):
            self._pidfd = fd
        else:
            os.close(fd)

    def _reap_guardian(self) -> int:
        """Wait for the guardian's end; return its exit status: 0 when its tree is gone."""
        if self._started is not None:
            return self._started.wait()
        if self._guardian_status is None:
            try:
                _, status = os.waitpid(self.guardian, 0)
                self._guardian_status = os.waitstatus_to_exitcode(status)
            except ChildProcessError:
                # This process was started with SIGCHLD ignored. `Popen.wait` returns 0 then too.
                self._guardian_status = 0
        return self._guardian_status

    def _wait_without_guardian(self) -> int:
        # The guardian's children have another parent before its end can be reaped.
        self._reap_guardian()
        self.left = True
        if self._adopts and self._pid is not None:
            try:
                return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            except ChildProcessError:
                pass
        elif not self.ended() and self._pidfd is not None:
            readable(self._pidfd, None)
        self.unseen = True
        return -signal.SIGKILL

    def _wait_for_orphans(self, timeout_s: float | None) -> bool:
        """Wait for a tree whose guardian was killed, or end it if that was requested. True when no
        process of it can be seen.
        """
        if self._adopts:
            if self._orphans is None:
                self._orphans = Orphans(self.grace_s)
                # `end_tree` may have run before: it sets `_ending` first, so one of the two ends
                # the orphans.
                if self._ending:
                    self._orphans.end()
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


def two_pipes() -> tuple[int, int, int, int]:
    """The ends of two pipes, of each the reader first. Raises Unavailable."""
    first: tuple[int, ...] = ()
    try:
        first = reader, writer = pipe()
        return reader, writer, *pipe()
    except OSError as error:
        for fd in first:
            os.close(fd)
        raise _not_started(error) from None


def _not_started(error: OSError) -> Unavailable:
    why, advice = LACKING.get(error.errno or 0, (error.strerror, "end some, or raise `ulimit -u`"))
    return Unavailable(f"cannot start another process ({why}): {advice}", outcome="none")


def _has_children() -> bool:
    """Has this process children already? A process has if a shell that started some became it."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _do_nothing() -> None:
    pass


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
