"""`holdfast locks run`: a command under a lock."""

import os
import signal
import threading
from functools import partial
from typing import Annotated, Literal

from msgspec import Meta

from holdfast.kernel.errors import HoldfastError, LockTimeout, status_of
from holdfast.kernel.limits import JOURNAL_READ_MAX, LOCK_PRIORITY_MAX
from holdfast.operations.lock_flags import NAMES, ModeSwitch, priority_flag, timeout_flag
from holdfast.operations.operation import Flag, Request
from holdfast.primitives.locks import Grant, Mode
from holdfast.primitives.locks.grant import lost
from holdfast.processes.command import Command
from holdfast.runtime.connection import Holdfast
from holdfast.runtime.custody import Claim, Custody
from holdfast.surfaces.cli.connection import connected
from holdfast.surfaces.cli.custody import LeftoversOption, attended, closing_quietly
from holdfast.surfaces.cli.lock_notes import JOB_VARIABLE, WaitNotes, own_job
from holdfast.surfaces.cli.options import Nonblock, Quiet
from holdfast.surfaces.cli.output import remark
from holdfast.surfaces.cli.quick import collect_garbage, quick_command

_PRIORITY = Meta(ge=-LOCK_PRIORITY_MAX, le=LOCK_PRIORITY_MAX)
LossPolicy = Literal["term", "ignore"]
_TAKEN_FROM_THE_LIVING = ("lock.kicked", "lock.lease_expired")


class RunUnderLock(Request, frozen=True, kw_only=True):
    """The lock of a command."""

    names: Annotated[list[str], NAMES]
    timeout_s: Annotated[float | None, timeout_flag(None)] = None
    mode: ModeSwitch = Mode.EXCLUSIVE
    conflict_exit_code: Annotated[
        int | None,
        Flag(
            "-E",
            "--conflict-exit-code",
            metavar="NUMBER",
            within=(0, 255),
            help="The exit status when the lock could not be acquired in time.  [default: 5]",
        ),
    ] = None
    shell_text: Annotated[
        str | None,
        Flag("-c", "--command", metavar="TEXT", help="Run this in a shell instead of a COMMAND."),
    ] = None
    by: Annotated[
        str | None,
        Flag("--by", metavar="JOB", help="Who holds it.  [default: a new name]"),
    ] = None
    priority: Annotated[int, _PRIORITY, priority_flag] = 0
    on_lost: Annotated[
        LossPolicy,
        Flag(
            "--on-lost",
            show_default=True,
            help="What to do with the command when the lock is taken away from it: "
            "end it with SIGTERM, or nothing.",
        ),
    ] = "term"


class RunOptions(Request, frozen=True, kw_only=True):
    """Whether it waits, what becomes of the command's processes, and what is said."""

    nonblock: Nonblock = False
    leftovers: LeftoversOption = "wait"
    quiet: Quiet = False


@quick_command("Run a command under locks, as flock(1) does.", runs_a_program=True)
def run(request: RunUnderLock, options: RunOptions, words: tuple[str, ...]) -> int:
    """Run a command while holding locks, and exit as it does.

    \b
        holdfast locks run router-1 -- ./flash.sh router-1
        holdfast locks run -n nightly -- make nightly || echo 'runs already'
        holdfast locks run router-1 router-2 -w 60 -c 'ping -c1 r1 && ping -c1 r2'

    All names or none are taken. The lock stays as long as any process of the command's tree runs,
    also a daemon that it left behind, and also if this process or the command itself is killed. It
    ends with the last of them. --leftovers says what is done about processes that the command
    leaves.

    The command finds HOLDFAST_LOCK_TOKEN, HOLDFAST_LOCK_NAMES (a line each) and HOLDFAST_LOCK_BY in
    its environment. By the last, a `locks run` inside it is a part of the same job: it does not
    wait for what the job around it holds, and two of them side by side keep each other out.

    Signals are forwarded to it. Exit status: the command's, 128+N when signal N ended it, 126 or
    127 when it cannot be run, 4 when the lock was lost or waiting would never end, 5 (or -E) when
    it could not be acquired in time.
    """
    command = _command(words, request.shell_text)
    by = own_job("run") if request.by is None else request.by
    timeout_s = 0 if options.nonblock else request.timeout_s
    attend = partial(_under_lock, request, by, timeout_s, options.quiet)
    try:
        return attended(command, attend, leftovers=options.leftovers)
    except LockTimeout as error:
        if not options.quiet:
            remark(error.message)
        code = request.conflict_exit_code
        return status_of(error).exit if code is None else code


def _command(words: tuple[str, ...], shell_text: str | None) -> list[str]:
    if bool(words) == (shell_text is not None):
        wrong = "a COMMAND and -c TEXT are given, of which one can be run"
        wrong = wrong if words else "no command is given"
        # Loaded here, for a mistake: a command that starts fast is not parsed by click.
        import click

        raise click.UsageError(
            f"{wrong}: say `holdfast locks run NAME... -- COMMAND`, or -c TEXT for a shell"
        )
    if shell_text is not None:
        return [os.environ.get("SHELL") or "/bin/sh", "-c", shell_text]
    return list(words)


def _under_lock(
    request: RunUnderLock, by: str, timeout_s: float | None, quiet: bool, custody: Custody
) -> int:
    try:
        hf = connected(create=custody.grant is None)
    except HoldfastError as error:
        if custody.grant is None:
            raise
        remark(f"{error.message}. The lock ends with its command all the same")
        return custody.finish()
    with closing_quietly(hf):
        if custody.grant is not None:
            grant = hf.locks.resume(custody.grant)
        else:
            with WaitNotes(hf, request.names, by, request.mode, quiet=quiet) as notes:
                grant = hf.locks.acquire(
                    request.names,
                    by=by,
                    mode=request.mode,
                    timeout_s=timeout_s,
                    priority=request.priority,
                    process=custody.holder(hf),
                    on_wait=notes.begin,
                )
        loss = _Loss(hf, grant, custody.command, request.on_lost)
        try:
            claim = Claim(
                kind="lock",
                token=grant.token,
                lease_s=hf.settings.locks.lease_s,
                ends_when_lost=request.on_lost == "term",
            )
            environment = {
                "HOLDFAST_LOCK_TOKEN": str(grant.token),
                "HOLDFAST_LOCK_NAMES": "\n".join(grant.names),
                JOB_VARIABLE: grant.by,
            }
            suspend = partial(hf.locks.suspend, grant)
            collect_garbage()
            status = custody.run(hf, environment, claim, suspend=suspend)
        finally:
            if not custody.kept:
                _release(hf, grant)
        return status_of(lost(grant)).exit if loss.happened() else status


def _release(hf: Holdfast, grant: Grant) -> None:
    try:
        hf.locks.release(grant)
    except HoldfastError as error:
        # The command has ended, and this must not hide its exit status.
        remark(f"{error.message}. The lock ends with its command all the same")


class _Loss:
    """Watches for the loss of a grant; says so, and ends the command unless --on-lost is ignore.

    A command that ends is a dead holder, whose grant the next in line may take before this process
    can release it. That is no loss: a grant is lost only if it was taken away before that.
    """

    def __init__(self, hf: Holdfast, grant: Grant, command: Command, on_lost: LossPolicy) -> None:
        self._hf = hf
        self._grant = grant
        self._command = command
        self._term = on_lost == "term"
        self._mutex = threading.Lock()
        self._reported = False
        # Read here and not in the thread, which may begin late.
        self._lost = grant.lost
        threading.Thread(target=self._watch, name="holdfast-loss", daemon=True).start()

    def happened(self) -> bool:
        """Was it lost, now that the command has ended and the grant was released?"""
        if self._grant.gone == "lost" and not self._reported:
            entries, _ = self._hf.log.tail(JOURNAL_READ_MAX)
            if any(
                one.kind in _TAKEN_FROM_THE_LIVING and one.data.get("token") == self._grant.token
                for one in entries
            ):
                self._say()
        return self._reported

    def _watch(self) -> None:
        self._lost.wait()
        if not self._command.ended():
            self._say()
            if self._term:
                self._command.send(signal.SIGTERM)

    def _say(self) -> None:
        with self._mutex:
            if not self._reported:
                self._reported = True
                remark(lost(self._grant).message)
