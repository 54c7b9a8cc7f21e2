"""Commands that run another program under a claim: what they check before, say, and wait for."""

import os
import shlex
import signal
from collections.abc import Callable

import click

from holdfast.app import Holdfast
from holdfast.kernel.holder import Holder, survivors_named
from holdfast.kernel.wording import counted
from holdfast.processes.claim import Claim
from holdfast.processes.command import LEFTOVERS, Caretaker, Command, shell_status
from holdfast.processes.signals import Interrupted, Passing, drop
from holdfast.surfaces.cli.output import remark

EXIT_NOT_FOUND = 127
EXIT_NOT_EXECUTABLE = 126
"""As shells have it."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
LEAVE = "leave"
"""What `attended` does about processes that outlive their claim: nothing, and the claim is over."""
_NAMED_S = 0.5
"""Processes that are about to end need not be named."""

leftovers_option = click.option(
    "--leftovers",
    type=click.Choice(LEFTOVERS),
    default=LEFTOVERS[0],
    show_default=True,
    help="What to do about processes that the command leaves running: wait for them, keep the claim for them and exit, or end "
    "them.",
)


class Custody:
    """A command that waits for its claim, and then runs under it."""

    def __init__(self, command: Command, passing: Passing, words: list[str], leftovers: str, undone: str) -> None:
        self.command = command
        self._passing = passing
        self._words = words
        self._leftovers = leftovers
        self._undone = undone
        self.kept = False
        """Do processes go on under the claim, so that it must not be released?"""

    def holder(self, hf: Holdfast, label: str | None = None) -> Holder:
        """The command's tree as the holder of a claim."""
        name = os.path.basename(self._words[0]) if label is None else label
        return hf.processes.of(self.command.pid, name, self.command.enter(hf.processes.trees))

    def drop_signals(self) -> None:
        """From here on, signals do nothing: what cleans up after a claim must not be interrupted."""
        self._passing.deliver = drop

    def run(
        self,
        hf: Holdfast,
        environment: dict[str, str],
        claim: Claim | None = None,
        on_end: Callable[[int], None] = lambda _: None,
    ) -> int:
        """Let the command begin, wait for its tree, and return its exit status as a shell tells it. `claim` is cared for on
        other machines' behalf if this process is killed. `on_end` gets the status as soon as the command has ended, before its
        tree is waited for."""
        self._passing.deliver = self.command.pass_on
        caretaker = None if claim is None else _caretaker(hf, self.command, claim)
        self.command.begin(hf.processes.trees, environment, caretaker)
        hf.processes.trees.sweep()
        status = shell_status(self.command.wait())
        if self.command.unfit is not None:
            self._passing.deliver = drop
            status = self._explain(self.command.unfit)
        on_end(status)
        if self.command.unfit is None and self.command.left:
            self._see_to_leftovers(hf)
        self._passing.deliver = drop
        if not self.kept:
            self.command.wait_for_tree()
        return status

    def _explain(self, why: OSError) -> int:
        if isinstance(why, FileNotFoundError | NotADirectoryError):
            remark(f"{_not_there(self._words)}; {self._undone}")
            return EXIT_NOT_FOUND
        if isinstance(why, PermissionError):
            remark(f"{_not_executable(self._words)}; {self._undone}")
        else:
            remark(f"{self._words[0]} cannot be executed: {why.strerror}; {self._undone}")
        return EXIT_NOT_EXECUTABLE

    def _see_to_leftovers(self, hf: Holdfast) -> None:
        # If the guardian was killed, only this process knows those that lost both signs, and only this one renews the claim.
        if self._leftovers == LEAVE or (self._leftovers == "keep" and not self.command.unguarded):
            self.command.leave()
            self.kept = True
            return
        self._passing.deliver = self._end_by_signal
        if self._leftovers == "end":
            self.command.end_tree()
        elif not self.command.wait_for_tree(_NAMED_S):
            left = hf.processes.trees.survivors(self.command.tree)
            if left:
                living = counted(len(left), "process of it lives", "processes of it live")
                remark(
                    f"{self._words[0]} has ended, and {living}: {survivors_named(left)}. The claim stays until they end; "
                    "Ctrl-C ends them"
                )
        self.command.wait_for_tree()

    def _end_by_signal(self, arrived: signal.struct_siginfo) -> None:
        if arrived.si_signo in _ENDING:
            self.command.end_tree()


def attended(
    words: list[str],
    attend: Callable[[Custody], int],
    *,
    unbegun: str = "nothing was locked",
    undone: str = "the lock was released",
    leftovers: str = LEFTOVERS[0],
    bound: bool = False,
) -> int:
    """Run a command under a claim, and return its exit status. `attend` takes the claim, and runs the command; if it ends
    before that, however it ends, the command never begins. A `bound` command is ended when this process dies.

    A command that cannot be run is refused before anything is claimed or waited for, with `unbegun`.
    """
    if (unfit := _unfit(words)) is not None:
        remark(f"{unfit[1]}; {unbegun}")
        return unfit[0]
    passing = Passing()
    # Before the store is opened: the guardian starts meanwhile, and the command inherits nothing of the store.
    command = Command(words, mask=passing.before, bound=bound, adopts=True)
    try:
        passing.begin(_Interrupting(passing, command))
        return attend(Custody(command, passing, words, leftovers, undone))
    except Interrupted as stopped:
        if stopped.number != signal.SIGCHLD:
            raise
        remark(f"the process that was to become {words[0]} was killed while it waited: it was not run")
        return shell_status(command.wait())
    finally:
        passing.deliver = drop
        command.dismiss()
        command.close()


def _caretaker(hf: Holdfast, command: Command, claim: Claim) -> Caretaker | None:
    if hf.store.embedded and not claim.by_lease:
        # The tree alone keeps it, and loading the caretaker takes time.
        return None
    from holdfast.caretaker import caretaker_for

    return caretaker_for(hf, command, claim)


class _Interrupting:
    """What signals do as long as the command has not begun: they end the wait for the claim, once, so that cleaning up is not
    interrupted in turn."""

    def __init__(self, passing: Passing, command: Command) -> None:
        self._passing = passing
        self._command = command

    def __call__(self, arrived: signal.struct_siginfo) -> None:
        # SIGCHLD also comes when the guardian is stopped or continued. It may interrupt the very read that waits for the
        # command's pid: a second read in here would take that line away from the first, which then waits for ever.
        if arrived.si_signo != signal.SIGCHLD or (self._command.known and self._command.ended()):
            self._passing.deliver = drop
            raise Interrupted(arrived.si_signo)


def _unfit(words: list[str]) -> tuple[int, str] | None:
    """The exit status and the words for a command that cannot be run, as far as that can be known before; None for any
    other."""
    import shutil

    if shutil.which(words[0]) is not None:
        return None
    if shutil.which(words[0], os.F_OK) is not None or (os.sep in words[0] and os.path.isdir(words[0])):
        return EXIT_NOT_EXECUTABLE, _not_executable(words)
    return EXIT_NOT_FOUND, _not_there(words)


def _not_there(words: list[str]) -> str:
    return f"there is no command {shlex.quote(words[0])}: give a path, or one that is on your PATH"


def _not_executable(words: list[str]) -> str:
    return f"{words[0]} may not be executed: `chmod +x` it, or name the program that reads it"
