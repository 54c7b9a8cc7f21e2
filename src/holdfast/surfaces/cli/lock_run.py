"""`holdfast locks run`: a command under a lock; and what is said while a command waits for one."""

import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Annotated, Literal

import click
from msgspec import Meta

from holdfast.kernel.errors import HoldfastError, LockTimeout, status_of
from holdfast.kernel.limits import JOURNAL_READ_MAX, LABEL_CHARS_MAX, LOCK_PRIORITY_MAX
from holdfast.operations.lock_flags import NAMES, ModeSwitch, priority_flag, timeout_flag
from holdfast.operations.operation import Flag, Request
from holdfast.primitives.locks import Grant, Mode
from holdfast.primitives.locks.grant import lost
from holdfast.primitives.locks.inspect import HoldStatus, LockStatus
from holdfast.primitives.locks.records import PART, conflict
from holdfast.processes.command import Command
from holdfast.runtime.connection import Holdfast
from holdfast.runtime.custody import Claim, Custody
from holdfast.surfaces.cli.command import quiet_option, request_options
from holdfast.surfaces.cli.connection import connected, store_options
from holdfast.surfaces.cli.custody import Wrapper, attended, closing_quietly, leftovers_option
from holdfast.surfaces.cli.lock_text import span
from holdfast.surfaces.cli.output import remark

_PRIORITY = Meta(ge=-LOCK_PRIORITY_MAX, le=LOCK_PRIORITY_MAX)
LossPolicy = Literal["term", "ignore"]
JOB_VARIABLE = "HOLDFAST_LOCK_BY"
"""The job of a command under `locks run`; a `locks run` inside it is a part of that job."""
_PAUSE_S = 1.0
"""The least time between two lines."""
_SHARE = 100
"""Reading a long queue takes long: at most a hundredth of the time is spent on it."""
_TAKEN_FROM_THE_LIVING = ("lock.kicked", "lock.lease_expired")

nonblock_option = click.option(
    "-n",
    "--nonblock",
    "--nb",
    is_flag=True,
    help="Do not wait at all: exit status 5 when it is not free.",
)


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


@click.command(cls=Wrapper, short_help="Run a command under locks, as flock(1) does.")
@request_options(RunUnderLock)
@nonblock_option
@leftovers_option
@quiet_option
@store_options
def run(
    request: RunUnderLock, words: tuple[str, ...], nonblock: bool, leftovers: str, quiet: bool
) -> int:
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
    timeout_s = 0 if nonblock else request.timeout_s
    attend = partial(_under_lock, request, by, timeout_s, quiet)
    try:
        return attended(command, attend, leftovers=leftovers)
    except LockTimeout as error:
        if not quiet:
            remark(error.message)
        code = request.conflict_exit_code
        return status_of(error).exit if code is None else code


def _command(words: tuple[str, ...], shell_text: str | None) -> list[str]:
    if bool(words) == (shell_text is not None):
        wrong = "a COMMAND and -c TEXT are given, of which one can be run"
        wrong = wrong if words else "no command is given"
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


def own_job(verb: str) -> str:
    """A job of its own for a command without --by: under `locks run`, a part of that run's job."""
    own = f"{verb}-{os.getpid()}-{os.urandom(3).hex()}"
    around = os.environ.get(JOB_VARIABLE)
    part = f"{around}{PART}{own}"
    return part if around and len(part) <= LABEL_CHARS_MAX else own


class WaitNotes(AbstractContextManager["WaitNotes"]):
    """Says on stderr who holds what a request waits for, and again when that has changed. It starts
    with `begin`, which is for `on_wait` of a request.
    """

    def __init__(
        self, hf: Holdfast, names: Sequence[str], by: str, mode: Mode, *, quiet: bool
    ) -> None:
        self._hf = hf
        self._names = tuple(dict.fromkeys(names))
        self._by = by
        self._mode = mode
        self._quiet = quiet
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            # It is reading the store at most, which is closed next.
            self._thread.join(_PAUSE_S)

    def begin(self, _: object) -> None:
        """The request waits."""
        if self._thread is None and not self._quiet:
            self._thread = threading.Thread(target=self._run, name="holdfast-notes", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        # Polls: a waiter is not woken for what happens further ahead in its queue.
        said = ""
        while not self._over.is_set():
            began = time.monotonic()
            try:
                statuses = [self._hf.locks.status(name) for name in self._names]
                found = waiting_line(statuses, self._by, self._mode)
            except HoldfastError:
                # The waiter itself reports a store that does not answer.
                found = None
            if found is not None and found[0] != said and not self._over.is_set():
                said = found[0]
                remark(found[1])
            self._over.wait(max(_PAUSE_S, _SHARE * (time.monotonic() - began)))


def waiting_line(statuses: Sequence[LockStatus], by: str, mode: Mode) -> tuple[str, str] | None:
    """A key of what this process waits for, and that in words; None when it does not wait."""
    pid = os.getpid()
    ahead: set[tuple[str, object]] = set()
    held: dict[tuple[int, ...], list[str]] = {}
    holders: dict[tuple[int, ...], str] = {}
    waits = reclaimable = False
    for status in statuses:
        mine = [
            one
            for one in status.queue
            if one.by == by and one.process is not None and one.process.pid == pid
        ]
        if mine:
            waits = True
            ahead |= {
                (one.by, one.since)
                for one in status.queue
                if one.position < mine[0].position and one.by != by and not one.looks
            }
        against = [hold for hold in status.holds if hold.by != by and conflict(hold.mode, mode)]
        holds = [hold for hold in against if not hold.reclaimable]
        reclaimable = reclaimable or len(holds) < len(against)
        if holds:
            tokens = tuple(hold.token for hold in holds)
            held.setdefault(tokens, []).append(status.name)
            holders[tokens] = _holders(holds, status)
    if not waits or (reclaimable and not held and not ahead):
        # The holds of dead processes are granted in a moment.
        return None
    place = f"{len(ahead)} ahead of you" if ahead else "you are next"
    what = [f"{', '.join(names)}: held by {holders[tokens]}" for tokens, names in held.items()]
    if not what:
        names = ", ".join(status.name for status in statuses)
        what = [f"{names}: free, and others are before you"]
    return f"{held} {place}", f"waiting for {'; '.join([*what, place])}"


def _holders(holds: Sequence[HoldStatus], status: LockStatus) -> str:
    first = holds[0]
    process = "no process"
    if first.process is not None:
        process = f"process {first.process.pid}, {first.alive.value}"
    words = f"{first.by} ({process}) for {span(first.since, status.now)}"
    return words if len(holds) == 1 else f"{words} and {len(holds) - 1} more"
