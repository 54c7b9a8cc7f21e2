"""Commands that run another program under a claim: what they check before, say, and wait for."""

import os
import shlex
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

import click
import msgspec

from holdfast.kernel.errors import HoldfastError
from holdfast.kernel.holder import Holder, survivors_named
from holdfast.kernel.text import counted
from holdfast.primitives.locks.grant import SavedGrant, Suspended
from holdfast.processes.command import (
    LEFTOVERS,
    Caretaker,
    Claim,
    Command,
    SavedCommand,
    shell_status,
)
from holdfast.processes.signals import Interrupted, Passing, drop
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.cli.connection import given
from holdfast.surfaces.cli.output import remark

EXIT_NOT_FOUND = 127
EXIT_NOT_EXECUTABLE = 126
"""As shells have it."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_SAVED = "HOLDFAST_STANDBY"
"""The environment variable by which a wrapper on standby leaves itself what it must know."""
LEAVE = "leave"
"""What `attended` does about processes that outlive their claim: nothing, and the claim is over."""
_NAMED_S = 0.5
"""Processes that are about to end need not be named."""

leftovers_option = click.option(
    "--leftovers",
    type=click.Choice(LEFTOVERS),
    default=LEFTOVERS[0],
    show_default=True,
    help="What to do about processes that the command leaves running: wait for them, keep the "
    "claim for them and exit, or end "
    "them.",
)


Suspend = Callable[[], Suspended | None]


_SEPARATOR = "--"


class Wrapper(click.Command):
    """A command that takes names, then `--`, then the words of another command.

    Where no name stands before the first `--`, that one ends the options as everywhere, so that a
    name may begin with a dash, and the next one behind a name begins the command.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before, found, command = _split_words(args)
        if found and not self._has_names(ctx, before):
            first, (more, _, rest) = command[:1], _split_words(command[1:])
            before, command = [*before, _SEPARATOR, *first, *more], rest
        left = super().parse_args(ctx, before)
        ctx.params["words"] = tuple(command)
        return left

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), _SEPARATOR, "COMMAND [ARGUMENT]..."]

    def _has_names(self, ctx: click.Context, args: list[str]) -> bool:
        options, _, _ = self.make_parser(ctx).parse_args(list(args))
        arguments = [
            parameter.name for parameter in self.params if isinstance(parameter, click.Argument)
        ]
        given = [options.get(name) for name in arguments]
        # An empty word is a name, if a wrong one, as of a variable that is not set.
        return any(isinstance(one, str) or (isinstance(one, tuple | list) and one) for one in given)


def _split_words(words: list[str]) -> tuple[list[str], bool, list[str]]:
    if _SEPARATOR not in words:
        return words, False, []
    at = words.index(_SEPARATOR)
    return words[:at], True, words[at + 1 :]


class _Saved(msgspec.Struct, frozen=True, kw_only=True):
    """What a wrapper on standby leaves to itself."""

    command: SavedCommand
    grant: SavedGrant
    fds: tuple[int, ...]
    named: bool


class Custody:
    """A command that waits for its claim, and then runs under it."""

    def __init__(
        self,
        command: Command,
        passing: Passing,
        words: list[str],
        leftovers: str,
        undone: str,
        saved: _Saved | None,
    ) -> None:
        self.command = command
        self._passing = passing
        self._words = words
        self._leftovers = leftovers
        self._undone = undone
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
        """Ignore signals from here on: cleaning up after a claim must not be interrupted."""
        self._passing.deliver = drop

    def run(
        self,
        hf: Holdfast,
        environment: dict[str, str],
        claim: Claim | None = None,
        on_end: Callable[[int], None] = lambda _: None,
        suspend: Suspend | None = None,
    ) -> int:
        """Let the command begin, wait for its tree, and return its exit status as a shell tells it.

        `claim` is cared for on other machines' behalf if this process is killed. `on_end` gets the
        status as soon as the command has ended, before its tree is waited for. With `suspend`, this
        process goes on standby if that takes long: the command line is run again then, with
        `Custody.grant`, when there is something to do.
        """
        if self.grant is not None:
            self.command.use(hf.processes.trees)
        else:
            self._passing.deliver = self.command.pass_on
            caretaker = None if claim is None else _caretaker(hf, self.command, claim)
            self.command.begin(hf.processes.trees, environment, caretaker)
            hf.processes.trees.sweep()
        self._wait(hf, self.command.ended, suspend)
        status = shell_status(self.command.wait())
        if self.command.unfit is not None:
            self._passing.deliver = drop
            status = self._explain(self.command.unfit)
        on_end(status)
        if self.command.unfit is None and self.command.left:
            self._see_to_leftovers(hf, suspend)
        self._passing.deliver = drop
        if not self.kept:
            self.command.wait_for_tree()
        return status

    def finish(self) -> int:
        """Wait for a command that was resumed, and its tree, without the store; return its exit
        status as a shell tells it.
        """
        status = shell_status(self.command.wait())
        if self._leftovers != "keep":
            self.command.wait_for_tree()
        return status

    def _wait(self, hf: Holdfast, over: Callable[[float], bool], suspend: Suspend | None) -> None:
        """Wait for as long as this process stays loaded, and then on standby, from which it does
        not come back here.
        """
        after_s = hf.settings.locks.standby_after_s
        while suspend is not None and after_s < float("inf") and not over(after_s):
            with suppress(HoldfastError):
                self._stand_by(hf, suspend)
                return

    def _stand_by(self, hf: Holdfast, suspend: Suspend) -> None:
        """Wait on standby; returns where that cannot be done.

        Raises HoldfastError when the store does not answer.
        """
        arguments, command = given().arguments, self.command.save()
        if arguments is None or command is None or (suspended := suspend()) is None:
            return
        from holdfast.processes.standby import stand_by

        every_s = hf.settings.locks.lease_s / 3
        saved = _Saved(command=command, grant=suspended.grant, fds=suspended.fds, named=self._named)
        os.environ[_SAVED] = msgspec.json.encode(saved).decode()
        with suppress(HoldfastError):
            hf.close()
        numbers = self._passing.end()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, AttributeError):
                stream.flush()
        stand_by(
            "holdfast.surfaces.cli.entry",
            arguments,
            said=command.said,
            fds=suspended.fds,
            numbers=numbers - {signal.SIGCHLD},
            path=os.fsdecode(command.path),
            every_s=every_s,
            status=command.status,
        )

    def _explain(self, why: OSError) -> int:
        if isinstance(why, FileNotFoundError | NotADirectoryError):
            remark(f"{_not_there(self._words)}; {self._undone}")
            return EXIT_NOT_FOUND
        if isinstance(why, PermissionError):
            remark(f"{_not_executable(self._words)}; {self._undone}")
        else:
            remark(f"{self._words[0]} cannot be executed: {why.strerror}; {self._undone}")
        return EXIT_NOT_EXECUTABLE

    def _see_to_leftovers(self, hf: Holdfast, suspend: Suspend | None) -> None:
        # If the guardian was killed, only this process knows those that lost both signs, and only
        # this one renews the claim.
        if self._leftovers == LEAVE or (self._leftovers == "keep" and not self.command.unguarded):
            self.command.leave()
            self.kept = True
            return
        self._passing.deliver = self._end_by_signal
        if self._leftovers == "end":
            self.command.end_tree()
        elif not self._named and not self.command.wait_for_tree(_NAMED_S):
            self._named = True
            left = hf.processes.trees.survivors(self.command.tree)
            if left:
                living = counted(len(left), "process of it lives", "processes of it live")
                remark(
                    f"{self._words[0]} has ended, and {living}: {survivors_named(left)}. The claim "
                    "stays until they end; "
                    "Ctrl-C ends them"
                )
        self._wait(hf, self.command.wait_for_tree, suspend)
        self.command.wait_for_tree()

    def deliver(self, arrived: signal.struct_siginfo) -> None:
        """What a signal does to a command that was resumed."""
        (self.command.pass_on if self._status is None else self._end_by_signal)(arrived)

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
    """Run a command under a claim, and return its exit status.

    `attend` takes the claim, and runs the command; if it ends before that, however it ends, the
    command never begins. A `bound` command is ended when this process dies.

    A command that cannot be run is refused before anything is claimed or waited for, with
    `unbegun`.
    """
    saved = _resumed()
    if saved is None and (unfit := _unfit(words)) is not None:
        remark(f"{unfit[1]}; {unbegun}")
        return unfit[0]
    passing = Passing()
    # Before the store is opened: the guardian starts meanwhile, and the command inherits nothing of
    # the store.
    resumed = None if saved is None else Command.resume(words, saved.command)
    command = resumed or Command(
        words, mask=passing.before, bound=bound, adopts=True, hands_on=True
    )
    custody = Custody(command, passing, words, leftovers, undone, saved)
    try:
        passing.begin(_Interrupting(passing, command) if saved is None else custody.deliver)
        return attend(custody)
    except Interrupted as stopped:
        if stopped.number != signal.SIGCHLD:
            raise
        remark(
            f"the process that was to become {words[0]} was killed while it waited: it was not run"
        )
        return shell_status(command.wait())
    finally:
        passing.deliver = drop
        command.dismiss()
        command.close()


def _resumed() -> _Saved | None:
    """What this process left to itself when it went on standby; None when it did not."""
    text = os.environ.pop(_SAVED, None)
    if text is None:
        return None
    saved = msgspec.json.decode(text, type=_Saved)
    # Open for as long as this program runs: they keep the store in use until it has opened the
    # store itself.
    for fd in saved.fds:
        os.set_inheritable(fd, False)
    return saved


def _caretaker(hf: Holdfast, command: Command, claim: Claim) -> Caretaker | None:
    if hf.store.embedded and not claim.by_lease:
        # The tree alone keeps it, and loading the caretaker takes time.
        return None
    from holdfast.runtime.caretaker import caretaker_for

    return caretaker_for(hf, command, claim)


class _Interrupting:
    """What signals do as long as the command has not begun: they end the wait for the claim, once,
    so that cleaning up is not interrupted in turn.
    """

    def __init__(self, passing: Passing, command: Command) -> None:
        self._passing = passing
        self._command = command

    def __call__(self, arrived: signal.struct_siginfo) -> None:
        # SIGCHLD also comes when the guardian is stopped or continued. It may interrupt the very
        # read that waits for the command's pid: a second read in here would take that line away
        # from the first, which then waits for ever.
        if arrived.si_signo != signal.SIGCHLD or (self._command.known and self._command.ended()):
            self._passing.deliver = drop
            raise Interrupted(arrived.si_signo)


def _unfit(words: list[str]) -> tuple[int, str] | None:
    """The exit status and the words for a command that cannot be run, as far as that can be known
    before; None for any other.
    """
    import shutil

    if shutil.which(words[0]) is not None:
        return None
    if shutil.which(words[0], os.F_OK) is not None or (
        os.sep in words[0] and os.path.isdir(words[0])
    ):
        return EXIT_NOT_EXECUTABLE, _not_executable(words)
    return EXIT_NOT_FOUND, _not_there(words)


def _not_there(words: list[str]) -> str:
    return f"there is no command {shlex.quote(words[0])}: give a path, or one that is on your PATH"


def _not_executable(words: list[str]) -> str:
    return f"{words[0]} may not be executed: `chmod +x` it, or name the program that reads it"
