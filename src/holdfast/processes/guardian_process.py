"""The wrapper's side of a guardian: its start, the orders to it, its reports, its exit status."""

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import IO

from holdfast.kernel.errors import Unavailable
from holdfast.processes import guardian
from holdfast.processes.scan import stat
from holdfast.processes.syscalls import above_streams, readable

Stream = int | IO[bytes] | None
_PROGRAM = os.path.join(os.path.dirname(guardian.__file__), "guardian_program.py")


class GuardianProcess:
    """A guardian that this process, or an earlier program of it, has started."""

    def __init__(
        self, pid: int, orders: int, reports: int, started: "subprocess.Popen[bytes] | None" = None
    ) -> None:
        self.pid = pid
        self.orders = orders
        self.reports = reports
        """Readable when the guardian has reported something, or has ended."""
        self.pidfd = os.pidfd_open(pid)
        self._started = started
        self._exit_status: int | None = None
        self._unread = b""
        self.command_pid: int | None = None
        self.command_fd: int | None = None
        self.executed = False
        self.unfit: OSError | None = None
        self.status: int | None = None
        self.left: bool | None = None

    @classmethod
    def start(
        cls,
        environment: Mapping[str, str],
        *,
        leader: bool,
        hands_on: bool,
        stdin: Stream,
        stdout: Stream,
        stderr: Stream,
    ) -> "GuardianProcess":
        """See `Command` for the arguments. Raises Unavailable when no process can be started."""
        orders, send_orders = (above_streams(fd) for fd in os.pipe())
        reports, send_reports = (above_streams(fd) for fd in os.pipe())
        # 0 if the group began outside of this pid namespace, as for a container's first process. To
        # setpgid(2) a 0 means a new group: then Ctrl-C would not reach the command, and the
        # guardian could not leave for a session of its own.
        group = os.getpgrp() or None
        words = [sys.executable, "-I", "-S", _PROGRAM]
        try:
            for fd in (orders, send_reports):
                os.set_inheritable(fd, hands_on)
            started = subprocess.Popen(
                [*words, str(orders), str(send_reports), str(int(leader))],
                env=environment,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                close_fds=not hands_on,
                pass_fds=() if hands_on else (orders, send_reports),
                # The group that it has anyway. Without this, and without a function to call in the
                # child, Python would use posix_spawn(3). glibc's ignores two signals in the child,
                # and so in the command.
                process_group=group,
                preexec_fn=_do_nothing if group is None else None,
            )
        except OSError as error:
            os.close(send_orders)
            os.close(reports)
            raise Unavailable(
                f"cannot start another process ({error.strerror}): end some, or raise `ulimit -u`",
                outcome="none",
            ) from None
        finally:
            os.close(orders)
            os.close(send_reports)
        return cls(started.pid, send_orders, reports, started)

    def has_ended(self) -> bool:
        return readable(self.pidfd)

    def reap(self) -> int:
        """Wait for the guardian's end; return its exit status: 0 when its tree is gone."""
        if self._started is not None:
            return self._started.wait()
        if self._exit_status is None:
            try:
                self._exit_status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            except ChildProcessError:
                # This process was started with SIGCHLD ignored. `Popen.wait` returns 0 then too.
                self._exit_status = 0
        return self._exit_status

    def order(self, order: object) -> None:
        try:
            view = memoryview(guardian.encode_order(order))
            while view:
                view = view[os.write(self.orders, view) :]
        except OSError:
            # The guardian was killed, which its reports will show.
            return

    def listen(self) -> bool:
        """Wait for the next reports and note them; False when the guardian reports no more."""
        more = os.read(self.reports, 4096)
        self._unread += more
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            word, _, number = line.partition(b" ")
            if word == b"pid":
                self.watch_command(int(number))
            elif word == b"executed":
                self.executed = True
            elif word == b"unfit":
                self.unfit = OSError(int(number), os.strerror(int(number)))
            elif word == b"ended":
                self.status = os.waitstatus_to_exitcode(int(number))
            elif word in (b"left", b"alone"):
                self.left = word == b"left"
        return bool(more)

    def watch_command(self, pid: int) -> None:
        """Open the guardian's child at once: later, another process may have its pid, or the
        guardian may be dead and its child any subreaper's.
        """
        self.command_pid = pid
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return
        seen = stat(pid)
        if seen is not None and seen.parent in (self.pid, os.getpid(), 1):
            self.command_fd = fd
        else:
            os.close(fd)

    def hang_up(self) -> None:
        """Close the order pipe. A guardian without orders ends the process that waits for them."""
        os.close(self.orders)
        self.orders = -1

    def close(self) -> None:
        for fd in (self.orders, self.reports, self.pidfd, self.command_fd):
            if fd is not None and fd >= 0:
                os.close(fd)


def _do_nothing() -> None:
    pass
