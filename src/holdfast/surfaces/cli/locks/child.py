"""The process that becomes the command of `locks run`, and of other commands that run one under a claim.

It is there before the lock or the agent's id is asked for, so that it can be the holder: its process id and start do not change
when it becomes the command. Until then it sleeps, and it ends by itself if whoever should tell it to begin has died.
"""

import errno
import os
import shlex
import signal
from collections.abc import Callable, Collection, Mapping
from typing import NoReturn

import msgspec

from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import Unavailable
from holdfast.surfaces.cli.locks.passing import EXIT_SIGNALLED, Interrupted, Passing, drop
from holdfast.surfaces.cli.output import printable, remark

EXIT_NOT_FOUND = 127
EXIT_NOT_EXECUTABLE = 126
"""As shells have it."""
_EXIT_UNTOLD = 125
_PR_SET_PDEATHSIG = 1

_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


class Child:
    """A process that has not become its command yet, and then is it. `mask` is the signal mask that the command gets, `undone`
    what is said to have become of what it held if it cannot be run. A `bound` one is sent SIGTERM if this process dies.

    To be made before anything is opened that the command should not have. Raises Unavailable when there can be no more
    processes.
    """

    def __init__(self, command: list[str], mask: Collection[int], *, undone: str, bound: bool) -> None:
        told, self._telling = os.pipe()
        self._excuse, excusing = os.pipe()
        try:
            self.pid = os.fork()
        except OSError as error:
            raise Unavailable(
                f"cannot start another process ({error.strerror}): end some, or raise `ulimit -u`", outcome="none"
            ) from None
        if not self.pid:
            os.close(self._telling)
            _become(command, told, excusing, mask, undone, bound=bound)
        os.close(told)
        os.close(excusing)
        self._fd = os.pidfd_open(self.pid)
        self._begun = False
        self.began = False
        """Was it let become the command?"""
        self.unfit = False
        """Could the command not be run? Known once it was waited for."""

    def begin(self, environment: Mapping[str, str]) -> None:
        """Let it become the command, with this added to its environment."""
        self._begun = self.began = True
        try:
            with open(self._telling, "wb") as pipe:
                pipe.write(to_json(environment) + b"\n")
        except BrokenPipeError:
            # It was killed meanwhile, as `wait` will tell.
            return

    def ended(self) -> bool:
        """Has it, whether or not it was waited for?"""
        try:
            return os.waitid(os.P_PIDFD, self._fd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def wait(self) -> int:
        """Wait for its end; return its exit status as a shell tells it."""
        self._begun = True
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        # Its end of this pipe closes as it becomes the command, and says something only if that fails.
        with open(self._excuse, "rb") as pipe:
            self.unfit = pipe.read() != b""
        return code if code >= 0 else EXIT_SIGNALLED - code

    def send(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        try:
            signal.pidfd_send_signal(self._fd, number)
        except ProcessLookupError:
            return

    def pass_on(self, arrived: signal.struct_siginfo) -> None:
        """Give it a signal that came to this process, if it has not had that already."""
        if arrived.si_signo != signal.SIGCHLD and not self._had(arrived):
            self.send(arrived.si_signo)

    def _had(self, arrived: signal.struct_siginfo) -> bool:
        """Did it come from the terminal to both? A positive code is the kernel's, which sends them to the foreground group."""
        # But that the terminal is gone, as when a tmux session is killed, it tells the leader of the session alone.
        alone = arrived.si_signo == signal.SIGHUP and os.getsid(0) == os.getpid()
        return arrived.si_code > 0 and not alone and _same_group(self.pid)

    def dismiss(self) -> None:
        """End it, if it never became the command."""
        if not self._begun:
            self._begun = True
            self.send(signal.SIGKILL)
            os.waitpid(self.pid, 0)
            os.close(self._telling)


class Interrupting:
    """What signals do as long as the child has not begun: they end the wait for it, once, so that cleaning up is not
    interrupted in turn."""

    def __init__(self, passing: Passing, child: Child) -> None:
        self._passing = passing
        self._child = child

    def __call__(self, arrived: signal.struct_siginfo) -> None:
        if arrived.si_signo != signal.SIGCHLD or self._child.ended():
            self._passing.deliver = drop
            raise Interrupted(arrived.si_signo)


def attended(
    command: list[str],
    attend: Callable[[Child, Passing], int],
    *,
    unbegun: str = "nothing was locked",
    undone: str = "the lock was released",
    bound: bool = False,
) -> int:
    """Have a process become a command under a claim, and return its exit status. `attend` takes the claim, lets the process
    begin, and waits for it; ended before that, by whatever comes, it never becomes the command. For the rest see `Child`.

    A command that cannot be run is refused before anything is claimed or waited for, with `unbegun`.
    """
    if (unfit := _unfit(command)) is not None:
        remark(f"{unfit[1]}; {unbegun}")
        return unfit[0]
    passing = Passing()
    # Before the store is opened, so that the command inherits nothing of it.
    child = Child(command, passing.before, undone=undone, bound=bound)
    try:
        passing.begin(Interrupting(passing, child))
        return attend(child, passing)
    except Interrupted as stopped:
        if stopped.number != signal.SIGCHLD:
            raise
        remark(f"the process that was to become {command[0]} was killed while it waited: it was not run")
        return child.wait()
    finally:
        passing.deliver = drop
        child.dismiss()


def _unfit(command: list[str]) -> tuple[int, str] | None:
    """The exit status and the words for a command that cannot be run, as far as that can be known before; None for any
    other."""
    import shutil

    if shutil.which(command[0]) is not None:
        return None
    if shutil.which(command[0], os.F_OK) is not None or (os.sep in command[0] and os.path.isdir(command[0])):
        return EXIT_NOT_EXECUTABLE, _not_executable(command)
    return EXIT_NOT_FOUND, _not_there(command)


def _not_there(command: list[str]) -> str:
    return f"there is no command {shlex.quote(command[0])}: give a path, or one that is on your PATH"


def _not_executable(command: list[str]) -> str:
    return f"{command[0]} may not be executed: `chmod +x` it, or name the program that reads it"


def _same_group(pid: int) -> bool:
    try:
        return os.getpgid(pid) == os.getpgrp()
    except ProcessLookupError:
        return False


def _become(command: list[str], told: int, excusing: int, mask: Collection[int], undone: str, *, bound: bool) -> NoReturn:
    """Sleep, and become the command when told so. Signals that come in the meantime wait until then."""
    try:
        if bound:
            _bind()
        with open(told, "rb") as pipe:
            words = pipe.read()
        if not words.endswith(b"\n"):
            # Nobody is left to tell: the lock may be another's.
            os._exit(_EXIT_UNTOLD)
        for name, value in msgspec.json.decode(words, type=dict[str, str]).items():
            # As UTF-8 in every locale.
            os.environb[name.encode()] = value.encode()
        for number in _IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _execute(command)
    except FileNotFoundError:
        _give_up(_not_there(command), undone, EXIT_NOT_FOUND, excusing)
    except PermissionError:
        _give_up(_not_executable(command), undone, EXIT_NOT_EXECUTABLE, excusing)
    except OSError as error:
        _give_up(f"{command[0]} cannot be executed: {error.strerror}", undone, EXIT_NOT_EXECUTABLE, excusing)
    finally:
        # Whatever else went wrong: this must never go on as a second `holdfast`.
        os._exit(EXIT_NOT_EXECUTABLE)


def _bind() -> None:
    """Have the kernel send this process, and what it becomes, SIGTERM when its parent dies."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _execute(command: list[str]) -> NoReturn:
    try:
        if not command[0]:
            # Each folder of PATH would be taken for it.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        os.execvp(command[0], command)
    except OSError as error:
        if error.errno == errno.ENOTDIR:
            raise FileNotFoundError(error.errno, error.strerror) from None
        if error.errno != errno.ENOEXEC:
            raise
    import shutil

    # A script without a first line that says what reads it is the shell's, as for execvp(3).
    os.execv("/bin/sh", ["/bin/sh", shutil.which(command[0]) or command[0], *command[1:]])


def _give_up(message: str, undone: str, status: int, excusing: int) -> NoReturn:
    try:
        os.write(excusing, b".")
        os.write(2, f"holdfast: {printable(message)}; {undone}\n".encode(errors="backslashreplace"))
    finally:
        os._exit(status)
