"""A command that waits for its claim, runs under it, and is waited for with its whole tree.

While the claim is requested, signals end the wait. While the command runs, they are forwarded to
it. Afterwards they end the processes that it left behind.
"""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal

import msgspec

from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import HoldfastError
from holdfast.kernel.holder import Holder, survivors_named
from holdfast.kernel.lease import renew_every_s
from holdfast.kernel.text import counted
from holdfast.primitives.locks.grant import SavedGrant, Suspended
from holdfast.processes.command import Command, SavedCommand
from holdfast.processes.signals import EXIT_SIGNALLED, Interrupted, SignalForwarder, drop
from holdfast.runtime.connection import Holdfast

# As shells have it.
_EXIT_NOT_FOUND = 127
_EXIT_NOT_EXECUTABLE = 126
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# The environment variable in which a wrapper on standby keeps its own state.
_SAVED = "HOLDFAST_STANDBY"
Leftovers = Literal["wait", "keep", "end"]
"""What happens to processes that the command leaves behind: wait for them, leave the claim to them,
or end them.
"""
LEAVE = "leave"
"""They live on, and the claim ends."""
# Processes that are about to end need not be named.
_NAMED_S = 0.5

Suspend = Callable[[], Suspended | None]


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


class Program(msgspec.Struct, frozen=True):
    """The program that runs a command: how it speaks to its user, and which module, with which
    arguments, Python executes to run it again. None for arguments means that it never goes on
    standby.
    """

    say: Callable[[str], None]
    module: str
    arguments: Sequence[str] | None


class _Saved(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a wrapper on standby."""

    command: SavedCommand
    grant: SavedGrant
    fds: tuple[int, ...]
    named: bool


class Custody:
    """A command that waits for its claim, and then runs under it."""

    def __init__(
        self,
        words: list[str],
        program: Program,
        signals: SignalForwarder,
        saved: _Saved | None,
        *,
        undone: str,
        leftovers: str,
        bound: bool,
    ) -> None:
        self.command = Command(
            words,
            mask=signals.original_mask,
            bound=bound,
            adopts=True,
            hands_on=True,
            saved=None if saved is None else saved.command,
        )
        self._words = words
        self._program = program
        self._signals = signals
        self._undone = undone
        self._leftovers = leftovers
        self._named = saved is not None and saved.named
        self._status = None if saved is None else saved.command.status
        self.grant = None if saved is None else saved.grant
        """The grant that an earlier program of this process suspended. The command has begun then.
        """
        self.kept = False
        """Do processes go on under the claim, so that it must not be released?"""

    def holder(self, hf: Holdfast, label: str | None = None) -> Holder:
        """The command's tree as the holder of a claim."""
        name = os.path.basename(self._words[0]) if label is None else label
        return hf.processes.of(self.command.pid, name, self.command.enter(hf.processes.trees))

    def drop_signals(self) -> None:
        """Ignore signals from here on: the release of a claim must not be interrupted."""
        self._signals.deliver = drop

    def run(
        self,
        hf: Holdfast,
        environment: dict[str, str],
        claim: Claim | None = None,
        on_end: Callable[[int], None] | None = None,
        suspend: Suspend | None = None,
    ) -> int:
        """Let the command begin, wait for its tree, and return its exit status as shells show it.

        A caretaker renews `claim` for other machines if this process is killed. `on_end` gets the
        status as soon as the command has ended, before its tree is waited for. With `suspend`, this
        process goes on standby if the wait is long: when there is something to do, the command line
        is run again, with `Custody.grant`.
        """
        if self.grant is not None:
            self.command.use(hf.processes.trees)
        else:
            self._signals.deliver = self.command.forward
            caretaker = None
            # The tree alone keeps a claim on an embedded store, and loading the caretaker takes
            # time.
            if claim is not None and (claim.by_lease or not hf.store.embedded):
                from holdfast.runtime.caretaker import caretaker_for

                caretaker = caretaker_for(hf, self.command, claim)
            self.command.begin(hf.processes.trees, environment, caretaker)
            hf.processes.trees.sweep()
        self._wait(hf, self.command.ended, suspend)
        status = _shell_status(self.command)
        if self.command.unfit is not None:
            self._signals.deliver = drop
            status = self._explain(self.command.unfit)
        if on_end is not None:
            on_end(status)
        if self.command.unfit is None and self.command.left:
            self._handle_leftovers(hf, suspend)
        self._signals.deliver = drop
        if not self.kept:
            self.command.wait_for_tree()
        return status

    def finish(self) -> int:
        """Wait for a command that was resumed, and its tree, without the store; return its exit
        status as shells show it.
        """
        status = _shell_status(self.command)
        if self._leftovers != "keep":
            self.command.wait_for_tree()
        return status

    def _wait(self, hf: Holdfast, over: Callable[[float], bool], suspend: Suspend | None) -> None:
        """Wait as long as this process stays loaded, and then on standby, from which it does not
        return here.
        """
        after_s = hf.settings.locks.standby_after_s
        while suspend is not None and after_s < float("inf") and not over(after_s):
            with suppress(HoldfastError):
                self._stand_by(hf, suspend)
                return

    def _stand_by(self, hf: Holdfast, suspend: Suspend) -> None:
        """Wait on standby; returns where that is not possible. Raises HoldfastError when the store
        does not answer.
        """
        command = self.command.save()
        if self._program.arguments is None or command is None or (suspended := suspend()) is None:
            return
        from holdfast.processes.standby import stand_by

        every_s = renew_every_s(hf.settings.locks.lease_s)
        saved = _Saved(command=command, grant=suspended.grant, fds=suspended.fds, named=self._named)
        os.environ[_SAVED] = msgspec.json.encode(saved).decode()
        with suppress(HoldfastError):
            hf.close()
        numbers = self._signals.end()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, AttributeError):
                stream.flush()
        stand_by(
            self._program.module,
            self._program.arguments,
            reports=command.reports,
            fds=suspended.fds,
            numbers=numbers - {signal.SIGCHLD},
            path=os.fsdecode(command.path),
            every_s=every_s,
            status=command.status,
        )

    def _explain(self, why: OSError) -> int:
        """Say why the command could not be executed; return the exit status of shells for that."""
        status, text = (
            (_EXIT_NOT_FOUND, _not_found(self._words))
            if isinstance(why, FileNotFoundError | NotADirectoryError)
            else (_EXIT_NOT_EXECUTABLE, _not_executable(self._words))
            if isinstance(why, PermissionError)
            else (_EXIT_NOT_EXECUTABLE, f"{self._words[0]} cannot be executed: {why.strerror}")
        )
        self._program.say(f"{text}; {self._undone}")
        return status

    def _handle_leftovers(self, hf: Holdfast, suspend: Suspend | None) -> None:
        # If the guardian was killed, only this process knows the processes that lost both FIFO and
        # mark, and only this process renews the claim. So it does not leave them.
        if self._leftovers == LEAVE or (self._leftovers == "keep" and not self.command.unguarded):
            self.command.leave()
            self.kept = True
            return
        self._signals.deliver = self._end_by_signal
        if self._leftovers == "end":
            self.command.end_tree()
        elif not self._named and not self.command.wait_for_tree(_NAMED_S):
            self._named = True
            left = hf.processes.trees.survivors(self.command.tree)
            if left:
                living = counted(len(left), "process of it lives", "processes of it live")
                self._program.say(
                    f"{self._words[0]} has ended, and {living}: {survivors_named(left)}. "
                    "The claim stays until they end; Ctrl-C ends them"
                )
        self._wait(hf, self.command.wait_for_tree, suspend)
        self.command.wait_for_tree()

    def deliver(self, arrived: signal.struct_siginfo) -> None:
        """What a signal does to a command that was resumed."""
        (self.command.forward if self._status is None else self._end_by_signal)(arrived)

    def interrupt(self, arrived: signal.struct_siginfo) -> None:
        """What a signal does before the command has begun: it ends the wait for the claim. Further
        signals are dropped, so that they do not interrupt the cleanup.
        """
        # SIGCHLD also comes when the guardian is stopped or continued. It may interrupt the very
        # read that waits for the command's pid: a second read in here would take that line away
        # from the first, which would then wait for ever.
        if arrived.si_signo != signal.SIGCHLD or (self.command.known and self.command.ended()):
            self.drop_signals()
            raise Interrupted(arrived.si_signo)

    def _end_by_signal(self, arrived: signal.struct_siginfo) -> None:
        if arrived.si_signo in _ENDING:
            self.command.end_tree()


def run_in_custody(
    words: list[str],
    attend: Callable[[Custody], int],
    program: Program,
    *,
    unbegun: str,
    undone: str,
    leftovers: str,
    bound: bool,
) -> int:
    """Run a command under a claim, and return its exit status as shells show it.

    `attend` takes the claim and calls `Custody.run`; if it ends before that, in whatever way, the
    command never begins. A `bound` command is ended when this process dies. A command that cannot
    be executed is refused before anything is claimed. `unbegun` and `undone` say in messages what
    became of the claim then, and when the command cannot be executed after all.
    """
    saved = None if _SAVED not in os.environ else _restore(os.environ.pop(_SAVED))
    if saved is None and not _is_program(words[0], os.X_OK):
        status, why = _refusal(words)
        program.say(f"{why}; {unbegun}")
        return status
    signals = SignalForwarder()
    # Before the store is opened: the guardian starts meanwhile, and the command inherits nothing of
    # the store.
    custody = Custody(
        words, program, signals, saved, undone=undone, leftovers=leftovers, bound=bound
    )
    try:
        signals.begin(custody.interrupt if saved is None else custody.deliver)
        return attend(custody)
    except Interrupted as stopped:
        if stopped.number != signal.SIGCHLD:
            raise
        program.say(
            f"the process that was to become {words[0]} was killed while it waited: it was not run"
        )
        return _shell_status(custody.command)
    finally:
        signals.deliver = drop
        custody.command.close()


def _shell_status(command: Command) -> int:
    """Wait for a command; return its exit status as shells show it."""
    code = command.wait()
    return code if code >= 0 else EXIT_SIGNALLED - code


def _restore(text: str) -> _Saved:
    """The state that this process saved when it went on standby."""
    saved = msgspec.json.decode(text, type=_Saved)
    # They stay open as long as this program runs: they keep the store in use until it has opened
    # the store itself.
    for fd in saved.fds:
        os.set_inheritable(fd, False)
    return saved


def _refusal(words: list[str]) -> tuple[int, str]:
    """The exit status and the message for a command that cannot be executed."""
    if _is_program(words[0], os.F_OK) or (os.sep in words[0] and os.path.isdir(words[0])):
        return _EXIT_NOT_EXECUTABLE, _not_executable(words)
    return _EXIT_NOT_FOUND, _not_found(words)


def _is_program(word: str, mode: int) -> bool:
    """Is there such a file, in a folder of PATH or where the word says? `shutil.which` says it too,
    but loads the modules of archives, which takes longer than the search.
    """
    folders = [""] if os.path.dirname(word) else os.get_exec_path()
    paths = [os.path.join(folder, word) for folder in folders]
    return any(os.access(path, mode) and not os.path.isdir(path) for path in paths)


def _not_found(words: list[str]) -> str:
    # Loaded here, for a mistake: a command that runs another one must start fast.
    import shlex

    return f"there is no command {shlex.quote(words[0])}: give a path, or one that is on your PATH"


def _not_executable(words: list[str]) -> str:
    return f"{words[0]} may not be executed: `chmod +x` it, or name the program that reads it"
