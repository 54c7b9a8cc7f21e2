"""The guardian: a small process between the wrapper and the command, which knows when the last
process of the tree is gone.

It is a child subreaper: every process that the command starts, also a daemon that has left its
parent, becomes the guardian's child in the end. So it ends exactly when the tree has. It runs as
`python -I -S guardian_program.py`. It has a session of its own, so that Ctrl-C and Ctrl-Z reach the
command and not the guardian.

The wrapper sends orders: one to begin, and later LEAVE if the tree shall go on without a wrapper.
The guardian reports lines: `pid N` of the process that becomes the command; `executed`, or `unfit
ERRNO` if the command cannot be executed; `ended STATUS`; and then `left` or `alone`, which says
whether processes of the tree are left. `executed` may be missing for a command that ends at once.
"""

from __future__ import annotations

import errno
import marshal
import os
import select
import time

from holdfast.processes import cgroup, fifo, syscalls
from holdfast.processes.scan import GUARDIAN, descendants, stat

# Type checkers know this name. Importing `typing`, or the enumerations of `signal`, takes as long
# as everything else here.
TYPE_CHECKING = False

if TYPE_CHECKING:
    import signal
    from typing import Any, NoReturn
else:
    import _signal as signal

LEAVE = b"leave"
KILL_AGAIN_S = 0.05
_EXIT_NO_ORDER = 125
_EXIT_NOT_EXECUTABLE = 126
_CANNOT_BE_IGNORED = (signal.SIGKILL, signal.SIGSTOP)


def descendants_here() -> list[int]:
    return descendants([os.getpid()])


def is_descendant(pid: int) -> bool:
    """Is a process below this one? Then its pid cannot be another's: this process has not reaped
    it, or a process between them has not.
    """
    while pid > 1 and (seen := stat(pid)) is not None:
        if seen.parent == os.getpid():
            return True
        pid = seen.parent
    return False


class Guard:
    """Reaps a tree until it is empty, and ends it at SIGTERM."""

    def __init__(self, command: int, grace_s: float) -> None:
        self._command = command
        self.grace_s = grace_s
        self.status: int | None = None
        """The wait status of the command, once it has ended."""
        self._kill_s: float | None = None
        self._group = _own_group()
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD, signal.SIGTERM})

    def reap(self) -> bool:
        """Reap all processes that have ended; False when there are no children left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return True
                if pid == self._command:
                    self.status = status
        except ChildProcessError:
            return False

    def wait(self, fds: list[int]) -> list[int]:
        """Sleep until a signal arrives, a descriptor is ready, or it is time to kill; return the
        descriptors that are ready.
        """
        poll = select.poll()
        for fd in (self._woken, *fds):
            poll.register(fd, select.POLLIN)
        left_ms = None if self._kill_s is None else max(self._kill_s - time.monotonic(), 0) * 1000
        ready = [fd for fd, _ in poll.poll(left_ms)]
        if self._woken in ready and signal.SIGTERM in os.read(self._woken, 512):
            self.end()
        if self._kill_s is not None and time.monotonic() >= self._kill_s:
            if self._group is not None:
                cgroup.kill(self._group)
            # There may be no group, and root can move a process out of it.
            syscalls.kill(descendants_here, is_descendant)
            self._kill_s = time.monotonic() + KILL_AGAIN_S
        return ready

    def end(self) -> None:
        """Send SIGTERM to every process; `wait` kills those that are left after the grace."""
        if self._kill_s is None:
            syscalls.terminate(descendants_here(), is_descendant)
            self._kill_s = time.monotonic() + self.grace_s

    def close(self) -> None:
        """Remove the control group of a tree that is empty."""
        if self._group is not None:
            cgroup.remove(self._group)


class _Wrapper:
    """The process that started this one, at the other end of two pipes."""

    def __init__(self, orders: int, reports: int) -> None:
        self.orders = orders
        self._reports = reports
        self._unread = b""

    def report(self, line: str) -> None:
        try:
            os.write(self._reports, line.encode())
        except OSError:
            # The wrapper was killed. The tree must not lose its guardian by that.
            return

    def is_gone(self) -> bool:
        # The tree may end before the hang-up of the order pipe was read, so it is polled here.
        poll = select.poll()
        poll.register(self.orders, 0)
        return bool(poll.poll(0))

    def read_order(self) -> Any:
        """The next order, as `Command` writes it; None when not all of it has arrived. Raises
        EOFError when the wrapper is gone.
        """
        more = os.read(self.orders, 1 << 16)
        if not more:
            raise EOFError
        self._unread += more
        size = int.from_bytes(self._unread[:4], "little")
        if len(self._unread) < 4 or len(self._unread) < 4 + size:
            return None
        body, self._unread = self._unread[4 : 4 + size], self._unread[4 + size :]
        return marshal.loads(body)


def main(arguments: list[str]) -> None:
    """Guard one command."""
    orders, reports, leader = (int(one) for one in arguments)
    wrapper = _Wrapper(orders, reports)
    go, send_go = syscalls.pipe()
    # The kernel closes the child's end when the child executes the command.
    executed, executing = syscalls.pipe()
    syscalls.become_subreaper()
    os.set_inheritable(orders, False)
    os.set_inheritable(reports, False)
    command = cgroup.fork(_own_group())
    if not command:
        os.close(send_go)
        os.close(orders)
        _become_command(go, reports, leader=bool(leader))
    os.close(go)
    os.close(executing)
    _detach({orders, reports, send_go, executed})
    guard = Guard(command, 0.0)
    wrapper.report(f"pid {command}\n")
    order = _first_order(guard, wrapper)
    if order is None:
        os.kill(command, signal.SIGKILL)
        os.waitpid(command, 0)
        guard.close()
        os._exit(0)
    guard.grace_s = order["grace_s"]
    order["kept"] = _keep(order["fifo"])
    _keep(order["shared_fifo"])
    os.set_blocking(send_go, True)
    with open(send_go, "wb") as pipe:
        try:
            pipe.write(marshal.dumps(order))
            pipe.flush()
        except BrokenPipeError:
            # The child was killed while it waited.
            pass
    _guard_tree(guard, wrapper, order, executed)
    if order["fifo"] is not None:
        # Before this process closes it: an observer that the hang-up wakes must find that the tree
        # has ended.
        fifo.end(order["fifo"])
    if order["shared_fifo"] is not None and wrapper.is_gone():
        # No other command can begin in the shared tree.
        fifo.end(order["shared_fifo"])
    guard.close()
    os._exit(0)


def _first_order(guard: Guard, wrapper: _Wrapper) -> dict[str, Any] | None:
    """The order to begin; None when the wrapper died. Exits when the waiting child died."""
    while guard.reap():
        if wrapper.orders in guard.wait([wrapper.orders]):
            try:
                order = wrapper.read_order()
            except EOFError:
                return None
            if order is not None:
                return order  # type: ignore[no-any-return]
    wrapper.report(f"ended {guard.status}\nalone\n")
    guard.close()
    os._exit(0)


def _guard_tree(guard: Guard, wrapper: _Wrapper, order: dict[str, Any], executed: int) -> None:
    """Reap and report until the tree is empty."""
    any_left = guard.reap()
    reported = False
    fds = [wrapper.orders, executed]
    while any_left or not reported:
        if guard.status is not None and not reported:
            reported = True
            wrapper.report(f"ended {guard.status}\n{'left' if any_left else 'alone'}\n")
        if not any_left:
            return
        ready = guard.wait(fds)
        if executed in ready:
            # If the child reports `unfit`, it does so before its end closes this pipe.
            fds.remove(executed)
            wrapper.report("executed\n")
        if wrapper.orders in ready:
            try:
                if wrapper.read_order() == LEAVE:
                    order["bound"] = False
            except EOFError:
                fds.remove(wrapper.orders)
                if order["bound"]:
                    guard.end()
                elif order["caretaker"]:
                    _become_caretaker(order)
        any_left = guard.reap()


def _become_caretaker(order: dict[str, Any]) -> None:
    """Execute the program that renews the claim in the place of the wrapper. The tree stays this
    process's.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if order["kept"] is not None:
        os.set_inheritable(order["kept"], True)
    environment = {**os.environ, **order["caretaker_environment"]}
    try:
        os.execve(order["caretaker"][0], order["caretaker"], environment)
    except OSError:
        # The tree lives on. On other machines its claim ends with the lease.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _own_group() -> str | None:
    return cgroup.below_own(os.environ[GUARDIAN].rpartition(":")[2])


def _keep(path: str | None) -> int | None:
    try:
        return None if path is None else fifo.keep(path)
    except OSError:
        # Another program removed it. The mark is left.
        return None


def _detach(kept: set[int]) -> None:
    """Leave the terminal, the working folder and all files but these to the command."""
    # A session and not only a group of its own: otherwise this process would be the parent that
    # keeps the command's group from being orphaned, and its end would let the kernel send SIGHUP to
    # that group if a process of it is stopped.
    os.setsid()
    os.chdir("/")
    for number in signal.valid_signals() - {*_CANNOT_BE_IGNORED, signal.SIGCHLD, signal.SIGTERM}:
        if number < signal.SIGRTMIN:
            signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                # It was the descriptor of the listing itself.
                continue


def _become_command(go: int, reports: int, *, leader: bool) -> NoReturn:
    """Sleep until the order comes, then execute the command. Signals that come before stay
    pending.
    """
    try:
        if leader:
            os.setsid()
        with open(go, "rb") as pipe:
            raw = pipe.read()
        if not raw:
            # The wrapper is gone, so the claim may be another's.
            os._exit(_EXIT_NO_ORDER)
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
        # Python ignores these two signals and handles SIGINT. The command must not inherit that.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, order["mask"])
        if order["cwd"] is not None:
            os.chdir(order["cwd"])
        _execute([os.fsdecode(word) for word in order["words"]])
    except OSError as error:
        os.write(reports, f"unfit {error.errno or errno.ENOEXEC}\n".encode())
    except ValueError:
        os.write(reports, f"unfit {errno.EINVAL}\n".encode())
    finally:
        # This process must never go on as a second guardian.
        os._exit(_EXIT_NOT_EXECUTABLE)


def _execute(command: list[str]) -> NoReturn:
    if not command[0]:
        # execvp(3) would try each folder of PATH as the program.
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    import shutil

    # A script without a `#!` line is run by the shell, as execvp(3) does.
    os.execv("/bin/sh", ["/bin/sh", shutil.which(command[0]) or command[0], *command[1:]])
