"""A command that is run for a job: fed, listened to, and ended with all it started when it must be.

It is killed by the kernel when the process that runs it dies, so that two attempts of one job do not work side by side.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from holdfast.kernel.errors import NotFound, Unavailable

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
GRACE_S = 10.0
"""How long a command has to end by itself after SIGTERM."""
_KILLED_S = 2.0
"""How long the kernel has to end what it was told to kill; only a disk that does not answer takes longer."""


class Command:
    """A running command in a process group of its own. `told` gets each line of its output, in a thread.

    To be made in the thread that lives as long as it should. Raises NotFound when there is no such command or folder, and
    Unavailable when it cannot be started.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        cwd: str | None,
        environment: Mapping[str, str],
        stdin: bytes,
        told: Callable[[bytes], None],
    ) -> None:
        self._told = told
        try:
            self._process = subprocess.Popen(
                list(words),
                cwd=cwd,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=partial(_die_with_parent, os.getpid()),
            )
        except FileNotFoundError as error:
            missing = f"the folder {cwd}" if cwd is not None and error.filename == cwd else f"the command {words[0]}"
            raise NotFound(f"{missing} is not there: name one that is", command=words[0]) from None
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise Unavailable(f"{words[0]} cannot be started: {error}", outcome="none") from None
        self.fd = os.pidfd_open(self._process.pid)
        """Readable once it has ended."""
        self._feeder = threading.Thread(target=self._feed, args=(stdin,), daemon=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._feeder.start()
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def ended(self) -> int | None:
        """Its exit status as Python tells it, negative for a signal; None while it runs."""
        return self._process.poll()

    def stop(self, grace_s: float = GRACE_S) -> None:
        """End it and what it started: by SIGTERM, and by SIGKILL whatever of its group does not heed that in time.

        Not promised for what has left the group by making a session of its own.
        """
        self._signal(signal.SIGTERM)
        # Its end is not asked for in between: while it is not known, nobody else can be given its number, which is the group's.
        self._wait_for_group(grace_s)
        self._signal(signal.SIGKILL)
        self._wait_for_group(_KILLED_S)
        self._process.wait()

    def close(self) -> int:
        """Wait for its end and for the last of its output; return its exit status."""
        code = self._process.wait()
        # What it left in the background may keep its output open; that is nobody's to wait for.
        self._reader.join(1.0)
        self._feeder.join(1.0)
        os.close(self.fd)
        return code

    def _signal(self, number: int) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _wait_for_group(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while (members := self._members()) and (left_s := deadline - time.monotonic()) > 0:
            _wait_for_one(members, left_s)

    def _members(self) -> list[int]:
        """The processes of its group that have not ended."""
        return [int(name) for name in os.listdir("/proc") if name.isdecimal() and _runs_in(name, self._process.pid)]

    def _feed(self, content: bytes) -> None:
        assert self._process.stdin is not None
        try:
            with self._process.stdin as pipe:
                pipe.write(content)
        except (BrokenPipeError, ConnectionResetError):
            # It need not read what it is given.
            return

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            for line in pipe:
                self._told(line)


def _runs_in(pid: str, group: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name, which may hold anything, ends at the last bracket. Then: state, parent, group.
            state, _, its_group = file.read().rpartition(b")")[2].split()[:3]
    except (OSError, ValueError):
        return False
    return int(its_group) == group and state not in (b"Z", b"X")


def _wait_for_one(pids: Sequence[int], timeout_s: float) -> None:
    """Sleep until one of these has ended, or the time is up."""
    poll = select.poll()
    with contextlib.ExitStack() as stack:
        for pid in pids:
            try:
                fd = os.pidfd_open(pid)
            except OSError:
                # It has ended meanwhile.
                return
            stack.callback(os.close, fd)
            poll.register(fd, select.POLLIN)
        poll.poll(timeout_s * 1000)


def _die_with_parent(parent: int) -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # It died before the kernel knew: nobody would tell this process of it any more.
        os.kill(os.getpid(), signal.SIGKILL)
