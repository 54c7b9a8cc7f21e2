"""`holdfast locks run`: a command under a lock."""

import os
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import click

from holdfast.kernel.errors import HoldfastError, LockTimeout, status_of
from holdfast.kernel.holder import Holder
from holdfast.primitives.locks import Grant, Mode
from holdfast.primitives.locks.grant import lost
from holdfast.processes.command import Claim
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.cli.connection import connected, store_options
from holdfast.surfaces.cli.custody import Custody, attended, leftovers_option
from holdfast.surfaces.cli.locks.losing import ON_LOST, Losing
from holdfast.surfaces.cli.locks.options import (
    JOB_VARIABLE,
    by_option,
    limit_options,
    mode_of,
    mode_option,
    own_job,
    priority_option,
    quiet_option,
)
from holdfast.surfaces.cli.locks.telling import Telling
from holdfast.surfaces.cli.output import remark

_SEPARATOR = "--"


class Wrapper(click.Command):
    """A command that takes names, then `--`, then the words of another command.

    Where no name stands before the first `--`, that one ends the options as everywhere, so that a
    name may begin with a dash, and the next one behind a name begins the command.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before, found, command = _split(args)
        if found and not self._has_names(ctx, before):
            first, (more, _, rest) = command[:1], _split(command[1:])
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


def _split(words: list[str]) -> tuple[list[str], bool, list[str]]:
    if _SEPARATOR not in words:
        return words, False, []
    at = words.index(_SEPARATOR)
    return words[:at], True, words[at + 1 :]


class _Wish(NamedTuple):
    """What the lock is to be."""

    names: tuple[str, ...]
    by: str
    mode: Mode
    timeout_s: float | None
    priority: int
    quiet: bool
    on_lost: str


@click.command(cls=Wrapper, short_help="Run a command under locks, as flock(1) does.")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@limit_options(None)
@mode_option
@click.option(
    "-E",
    "--conflict-exit-code",
    type=click.IntRange(0, 255),
    metavar="NUMBER",
    help="The exit status when the lock could not be acquired in time.  [default: 5]",
)
@click.option(
    "-c",
    "--command",
    "shell_text",
    metavar="TEXT",
    help="Run this in a shell instead of a COMMAND.",
)
@by_option("Who holds it.  [default: a name of its own]")
@priority_option
@click.option(
    "--on-lost",
    type=click.Choice(ON_LOST),
    default=ON_LOST[0],
    show_default=True,
    help=(
        "What to do with the command when the lock is taken away from it: end it with SIGTERM, or "
        "nothing."
    ),
)
@leftovers_option
@quiet_option
@store_options
def run(
    names: tuple[str, ...],
    words: tuple[str, ...],
    shell_text: str | None,
    by: str | None,
    shared: bool,
    timeout_s: float | None,
    nonblock: bool,
    conflict_exit_code: int | None,
    priority: int,
    on_lost: str,
    leftovers: str,
    quiet: bool,
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

    Signals are passed on to it. Exit status: the command's, 128+N when signal N ended it, 126 or
    127 when it cannot be run, 4 when the lock was lost or waiting would never end, 5 (or -E) when
    it could not be acquired in time.
    """
    command = _command(words, shell_text)
    wish = _Wish(
        names,
        own_job("run") if by is None else by,
        mode_of(shared),
        0 if nonblock else timeout_s,
        priority,
        quiet=quiet,
        on_lost=on_lost,
    )
    try:
        return attended(command, partial(_under_lock, wish), leftovers=leftovers)
    except LockTimeout as error:
        if not quiet:
            remark(error.message)
        return status_of(error).exit if conflict_exit_code is None else conflict_exit_code


def _command(words: tuple[str, ...], shell_text: str | None) -> list[str]:
    if bool(words) == (shell_text is not None):
        wrong = (
            "no command is given"
            if not words
            else "a COMMAND and -c TEXT are given, of which one can be run"
        )
        raise click.UsageError(
            f"{wrong}: say `holdfast locks run NAME... -- COMMAND`, or -c TEXT for a shell"
        )
    if shell_text is not None:
        return [os.environ.get("SHELL") or "/bin/sh", "-c", shell_text]
    return list(words)


def _under_lock(wish: _Wish, custody: Custody) -> int:
    try:
        hf = connected(create=custody.grant is None)
    except HoldfastError as error:
        if custody.grant is None:
            raise
        remark(f"{error.message}. The lock ends with its command all the same")
        return custody.finish()
    try:
        grant = (
            _acquire(hf, wish, custody.holder(hf))
            if custody.grant is None
            else hf.locks.resume(custody.grant)
        )
        losing = Losing(hf, grant, custody.command, wish.on_lost)
        try:
            claim = Claim(
                kind="lock",
                token=grant.token,
                lease_s=hf.settings.locks.lease_s,
                ends_when_lost=wish.on_lost == ON_LOST[0],
            )
            status = custody.run(
                hf, _environment(grant), claim, suspend=partial(hf.locks.suspend, grant)
            )
        finally:
            if not custody.kept:
                _release(hf, grant)
        return status_of(lost(grant)).exit if losing.was_lost() else status
    finally:
        with suppress(HoldfastError):
            # What was done is done; only counts are lost here.
            hf.close()


def _acquire(hf: Holdfast, wish: _Wish, process: Holder) -> Grant:
    with Telling(hf, wish.names, wish.by, wish.mode, quiet=wish.quiet) as telling:
        return hf.locks.acquire(
            wish.names,
            by=wish.by,
            mode=wish.mode,
            timeout_s=wish.timeout_s,
            priority=wish.priority,
            process=process,
            on_wait=telling.begin,
        )


def _release(hf: Holdfast, grant: Grant) -> None:
    try:
        hf.locks.release(grant)
    except HoldfastError as error:
        # The command has ended, and what came of it must not be hidden by this.
        remark(f"{error.message}. The lock ends with its command all the same")


def _environment(grant: Grant) -> dict[str, str]:
    names = "\n".join(grant.names)
    return {
        "HOLDFAST_LOCK_TOKEN": str(grant.token),
        "HOLDFAST_LOCK_NAMES": names,
        JOB_VARIABLE: grant.by,
    }
