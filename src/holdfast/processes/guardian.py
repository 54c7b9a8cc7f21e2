"""The guardian of a command: a small process between the wrapper and the command, which knows when
the last process is gone.

It is a child subreaper: whatever the command starts, also a daemon that has left its parent,
becomes the guardian's child in the end. So it ends exactly when the tree has. It runs as `python -I
-S guardian_program.py`, without the rest of the program, and has a session of its own, so that
Ctrl-C and Ctrl-Z reach the command and not the guardian.

The wrapper writes to it: the order to begin, and later LEAVE if the tree is to go on without a
wrapper. It writes lines to the wrapper: `pid N` of the process that becomes the command, `unfit
ERRNO` if it cannot be executed and `executed` if it was, `ended STATUS` when it has ended, and then
`alone` or `left`, whether processes of the tree are left. Of a command that ends at once,
`executed` may not be said.
"""

from __future__ import annotations

import errno
import marshal
import os
import select
import time

from holdfast.processes import cgroup, fifo, libc
from holdfast.processes import kill as killing
from holdfast.processes.scan import GUARDIAN, descendants, stat

# Type checkers know this name. `typing`, and the enumerations of `signal`, would take as long as
# everything else here.
TYPE_CHECKING = False

if TYPE_CHECKING:
    import signal
    from typing import Any, NoReturn
else:
    import _signal as signal

LEAVE = b"leave"
EXIT_UNTOLD = 125
EXIT_NOT_EXECUTABLE = 126
KILL_AGAIN_S = 0.05
_PR_SET_CHILD_SUBREAPER = 36
_CANNOT_BE_IGNORED = (signal.SIGKILL, signal.SIGSTOP)


def become_subreaper() -> None:
    """Let orphans of this process's tree become its children. It stays so when another program is
    executed.
    """
    libc.call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def above_streams(fd: int) -> int:
    """The same file under a number that standard input, output and error cannot have, where those
    were closed.
    """
    if fd > 2:
        return fd
    import fcntl

    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return moved


def framed(message: Any) -> bytes:
    """A message to the guardian."""
    body = marshal.dumps(message)
    return len(body).to_bytes(4, "little") + body


def own_group() -> str | None:
    """The folder of the control group that belongs to the tree of this guardian, whether or not it
    could be made.
    """
    return cgroup.below_own(os.environ[GUARDIAN].rpartition(":")[2])


class Guard:
    """Reaps a tree until it is empty, and ends it when SIGTERM asks for that. `also` are
    descriptors that `react` is called with when they become readable.
    """

    def __init__(self, command: int, grace_s: float) -> None:
        self._command = command
        self.grace_s = grace_s
        self._kill_s: float | None = None
        self.status: int | None = None
        """The command's wait status."""
        self._group = own_group()
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD, signal.SIGTERM})

    def reap(self) -> bool:
        """Take note of all that have ended; False when there are no children left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return True
                if pid == self._command:
                    self.status = status
        except ChildProcessError:
            return False

    def rest(self, also: list[int]) -> list[int]:
        """Sleep until something happens; return which of the descriptors are ready."""
        waiting = select.poll()
        for fd in (self._woken, *also):
            waiting.register(fd, select.POLLIN)
        left_ms = None if self._kill_s is None else max(self._kill_s - time.monotonic(), 0) * 1000
        ready = [fd for fd, _ in waiting.poll(left_ms)]
        if self._woken in ready and signal.SIGTERM in os.read(self._woken, 512):
            self.end()
        if self._kill_s is not None and time.monotonic() >= self._kill_s:
            if self._group is not None:
                cgroup.kill(self._group)
            # Not all need be in the group: there may be none, and root can move a process out.
            killing.kill(below, is_below)
            self._kill_s = time.monotonic() + KILL_AGAIN_S
        return ready

    def end(self) -> None:
        """Ask every process to end, and kill what is left after the grace."""
        if self._kill_s is None:
            killing.ask(below(), is_below)
            self._kill_s = time.monotonic() + self.grace_s

    def close(self) -> None:
        """Remove the control group of a tree that is empty."""
        if self._group is not None:
            cgroup.remove(self._group)


def below() -> list[int]:
    """The processes below this one."""
    return descendants([os.getpid()])


def is_below(pid: int) -> bool:
    """Is a process below this one? Then its pid cannot be another's by now."""
    while pid > 1 and (seen := stat(pid)) is not None:
        if seen.parent == os.getpid():
            return True
        pid = seen.parent
    return False


class _Wrapper:
    """The process that started this one."""

    def __init__(self, orders: int, words: int) -> None:
        self.orders = orders
        self.words = words
        self._read = b""

    def tell(self, line: str) -> None:
        try:
            os.write(self.words, line.encode())
        except OSError:
            # It was killed. Nobody asks, and the tree must not lose its guardian by it.
            return

    def is_gone(self) -> bool:
        """Has it died, or closed its end? The tree may end before its order pipe was looked at."""
        waiting = select.poll()
        waiting.register(self.orders, 0)
        return bool(waiting.poll(0))

    def order(self) -> Any:
        """The next order that has come; None when there is none yet. Raises EOFError when the
        wrapper is gone.
        """
        more = os.read(self.orders, 1 << 16)
        if not more:
            raise EOFError
        self._read += more
        size = int.from_bytes(self._read[:4], "little")
        if len(self._read) < 4 or len(self._read) < 4 + size:
            return None
        body, self._read = self._read[4 : 4 + size], self._read[4 + size :]
        return marshal.loads(body)


def main(arguments: list[str]) -> None:
    """Guard one command."""
    orders, words, leader = (int(one) for one in arguments)
    wrapper = _Wrapper(orders, words)
    told, tell = (above_streams(fd) for fd in os.pipe())
    # The kernel closes the child's end when the child executes the command.
    executed, executing = (above_streams(fd) for fd in os.pipe())
    become_subreaper()
    os.set_inheritable(orders, False)
    os.set_inheritable(words, False)
    command = cgroup.fork(own_group())
    if not command:
        os.close(tell)
        os.close(orders)
        _become(told, words, leader=bool(leader))
    os.close(told)
    os.close(executing)
    _withdraw({orders, words, tell, executed})
    guard = Guard(command, 0.0)
    wrapper.tell(f"pid {command}\n")
    order = _first_order(guard, wrapper)
    if order is None:
        os.kill(command, signal.SIGKILL)
        os.waitpid(command, 0)
        guard.close()
        os._exit(0)
    guard.grace_s = order["grace_s"]
    order["kept"] = _keep(order["fifo"])
    _keep(order["shared_fifo"])
    os.set_blocking(tell, True)
    with open(tell, "wb") as pipe:
        try:
            pipe.write(marshal.dumps(order))
            pipe.flush()
        except BrokenPipeError:
            # It was killed while it waited.
            pass
    _attend(guard, wrapper, order, executed)
    if order["fifo"] is not None:
        # Before this process closes it: an observer that the hang-up wakes must find that the tree
        # has ended.
        fifo.end(order["fifo"])
    if order["shared_fifo"] is not None and wrapper.is_gone():
        # Nobody will begin another command in this tree.
        fifo.end(order["shared_fifo"])
    guard.close()
    os._exit(0)


def _attend(guard: Guard, wrapper: _Wrapper, order: dict[str, Any], executed: int) -> None:
    """Until the tree is empty."""
    there = guard.reap()
    told = False
    listening = [wrapper.orders, executed]
    while there or not told:
        if guard.status is not None and not told:
            told = True
            wrapper.tell(f"ended {guard.status}\n{'left' if there else 'alone'}\n")
        if not there:
            return
        ready = guard.rest(listening)
        if executed in ready:
            # After `unfit`, if that was said: the child says it before it ends.
            listening.remove(executed)
            wrapper.tell("executed\n")
        if wrapper.orders in ready:
            try:
                if wrapper.order() == LEAVE:
                    order["bound"] = False
            except EOFError:
                listening.remove(wrapper.orders)
                if order["bound"]:
                    guard.end()
                elif order["caretaker"]:
                    _hand_over(order)
        there = guard.reap()


def _hand_over(order: dict[str, Any]) -> None:
    """Become the program that cares for the claim in the place of the wrapper. The tree stays this
    process's.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if order["kept"] is not None:
        os.set_inheritable(order["kept"], True)
    try:
        os.execve(
            order["caretaker"][0],
            order["caretaker"],
            {**os.environ, **order["caretaker_environment"]},
        )
    except OSError:
        # The tree lives on; its claim lasts as long as the lease on other machines.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _first_order(guard: Guard, wrapper: _Wrapper) -> dict[str, Any] | None:
    """The order to begin; None when the wrapper died before, or the process that waits did."""
    while guard.reap():
        if wrapper.orders in guard.rest([wrapper.orders]):
            try:
                order = wrapper.order()
            except EOFError:
                return None
            if order is not None:
                return order  # type: ignore[no-any-return]
    wrapper.tell(f"ended {guard.status}\nalone\n")
    guard.close()
    os._exit(0)


def _keep(path: str | None) -> int | None:
    try:
        return None if path is None else fifo.keep(path)
    except OSError:
        # Another program removed it. The mark is left.
        return None


def _withdraw(own: set[int]) -> None:
    """Leave the terminal, the folder and every file to the command."""
    # A session of its own: with a group alone, this process would be the parent that keeps the
    # command's group from being orphaned, and its end would let the kernel hang up that group if a
    # process of it is stopped.
    os.setsid()
    os.chdir("/")
    for number in signal.valid_signals() - {*_CANNOT_BE_IGNORED, signal.SIGCHLD, signal.SIGTERM}:
        if number < signal.SIGRTMIN:
            signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in own:
            try:
                os.close(int(name))
            except OSError:
                # The listing's own.
                continue


def _become(told: int, words: int, *, leader: bool) -> NoReturn:
    """Sleep, and become the command when told to. Signals that come in the meantime wait until
    then.
    """
    try:
        if leader:
            os.setsid()
        with open(told, "rb") as pipe:
            raw = pipe.read()
        if not raw:
            # The wrapper is gone, so the claim may be another's.
            os._exit(EXIT_UNTOLD)
        order = marshal.loads(raw)
        for path in (order["fifo"], order["shared_fifo"]):
            if (kept := _keep(path)) is not None:
                fifo.bequeath(kept)
        os.environb.pop(GUARDIAN.encode(), None)
        for name, value in order["environment"].items():
            if value is None:
                os.environb.pop(name, None)
            else:
                os.environb[name] = value
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, order["mask"])
        if order["cwd"] is not None:
            os.chdir(order["cwd"])
        _execute([os.fsdecode(word) for word in order["words"]])
    except OSError as error:
        os.write(words, f"unfit {error.errno or errno.ENOEXEC}\n".encode())
    except ValueError:
        os.write(words, f"unfit {errno.EINVAL}\n".encode())
    finally:
        # This process must never go on as a second guardian.
        os._exit(EXIT_NOT_EXECUTABLE)


def _execute(command: list[str]) -> NoReturn:
    if not command[0]:
        # Each folder of PATH would be taken for the program.
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    import shutil

    # A script without a first line that names its interpreter is the shell's, as for execvp(3).
    os.execv("/bin/sh", ["/bin/sh", shutil.which(command[0]) or command[0], *command[1:]])
