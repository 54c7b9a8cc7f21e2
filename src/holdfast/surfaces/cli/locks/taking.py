"""`holdfast locks acquire`, `renew`, `release`, `wait` and `kick`."""

from collections.abc import Callable
from shlex import quote

import click

from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import STATUS, HoldfastError, Unavailable
from holdfast.kernel.limits import LOCK_TIMEOUT_S
from holdfast.primitives.locks import Grant, Mode
from holdfast.primitives.locks.policy import describe_obstruction
from holdfast.processes.signals import interruptible
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.answers.locks import (
    acquired,
    free_view,
    freed,
    grant_view,
    kicked_view,
    not_held,
    released,
    renewed_view,
)
from holdfast.surfaces.cli.connection import connected, store_options
from holdfast.surfaces.cli.locks.options import (
    by_option,
    json_option,
    limit_options,
    mode_of,
    mode_option,
    names_argument,
    own_job,
    priority_option,
    quiet_option,
    refuse_endless,
    ttl_option,
)
from holdfast.surfaces.cli.locks.telling import Telling
from holdfast.surfaces.cli.output import answer, printable, remark, write
from holdfast.surfaces.cli.quick import PID_MAX
from holdfast.surfaces.cli.render import clipped, moment


@click.command(short_help="Take locks and print the token.")
@names_argument
@by_option("The job that holds it.", required=True)
@ttl_option("It ends after this long, unless renewed.")
@click.option(
    "--pid",
    type=click.IntRange(1, PID_MAX),
    help="It ends when this process does, such as a script's own: --pid $$.",
)
@limit_options(LOCK_TIMEOUT_S)
@mode_option
@priority_option
@quiet_option
@json_option
@store_options
def acquire(
    names: tuple[str, ...],
    by: str,
    ttl_s: float | None,
    pid: int | None,
    timeout_s: float | None,
    nonblock: bool,
    shared: bool,
    priority: int,
    quiet: bool,
    as_json: bool,
) -> None:
    """Take locks, all or none, and print the token.

    \b
        token=$(holdfast locks acquire router-1 --by job-7 --pid $$)
        holdfast locks release "$token"

    This command ends at once, so something else must end the lock if `release` never comes: a
    process with --pid, or time with --ttl. On a store of several machines --pid needs a --ttl too,
    since the others cannot see the process. Where one command is all the lock is for, `holdfast
    locks run` is simpler. A job that holds all of it already gets its token again, and whoever
    releases that token frees it.
    """
    limit_s, mode = 0 if nonblock else timeout_s, mode_of(shared)
    take(
        names,
        by,
        ttl_s,
        pid,
        lambda _: limit_s,
        mode,
        lambda _: priority,
        quiet=quiet,
        as_json=as_json,
    )


def take(
    names: tuple[str, ...],
    by: str,
    ttl_s: float | None,
    pid: int | None,
    limit_s: Callable[[Holdfast], float | None],
    mode: Mode,
    priority: Callable[[Holdfast], int],
    *,
    quiet: bool,
    as_json: bool,
) -> None:
    """Take locks for a command that ends at once, and print the token. Its limit and priority may
    depend on the settings.
    """
    refuse_endless(ttl_s, pid, "lock")
    with interruptible(), connected() as hf, Telling(hf, names, by, mode, quiet=quiet) as telling:
        grant = acquired(
            hf,
            names,
            by=by,
            mode=mode,
            timeout_s=limit_s(hf),
            priority=priority(hf),
            ttl_s=ttl_s,
            pid=pid,
            on_wait=telling.begin,
        )
        try:
            write(to_json(grant_view(grant)) if as_json else str(grant.token))
        except OSError as error:
            raise _untold(hf, grant, error) from None
        except BaseException:
            # Interrupted before anybody was told of it.
            hf.locks.release(grant)
            raise
        if grant.reentered and not quiet:
            remark(
                f"{', '.join(grant.names)} was {by}'s already: this is the same token, and "
                "releasing it frees it"
            )


def _untold(hf: Holdfast, grant: Grant, error: OSError) -> Unavailable:
    """Nobody would know of the grant, so it is given back."""
    untold = (
        f"{', '.join(grant.names)} was granted, but the token could not be written "
        f"({error.strerror})"
    )
    try:
        hf.locks.release(grant)
    except HoldfastError as failed:
        return Unavailable(
            f"{untold}, and it could not be released ({failed.message}): `holdfast locks release "
            f"{grant.token}` does it",
            token=grant.token,
            outcome="unknown",
        )
    return Unavailable(f"{untold}: it was released again", outcome="none")


@click.command(short_help="Extend a lock by its token.")
@click.argument("token", type=int)
@ttl_option("How long from now.  [default: the time it was taken for]")
@json_option
@store_options
def renew(token: int, ttl_s: float | None, as_json: bool) -> None:
    """Extend the lock that has TOKEN, from now; exit status 4 when it is lost.

    \b
        holdfast locks renew "$token" --ttl 600

    It never ends earlier than it would have.
    """
    with connected() as hf:
        hold = hf.locks.renew_token(token, ttl_s)
    shown = f"{', '.join(hold.names)} held by {hold.by} until {moment(hold.lease.expires_at)}"
    answer(to_json(renewed_view(hold)) if as_json else printable(shown))


@click.command(short_help="Release a lock by its token or name.")
@click.argument("words", metavar="TOKEN | NAME...", nargs=-1, required=True)
@click.option(
    "--by", metavar="JOB", help="Release by name what this job holds, instead of by token."
)
@json_option
@store_options
def release(words: tuple[str, ...], by: str | None, as_json: bool) -> int:
    """Release the lock that has TOKEN, or what a job holds of some names.

    \b
        holdfast locks release "$token"
        holdfast locks release router-1 router-2 --by job-7

    Exit status 4 when no lock has that token any more, 1 when the job does not hold all of the
    names.
    """
    if by is not None:
        return release_names(words, by, as_json)
    token = _token(words)
    with connected() as hf:
        done = released(hf, token)
    answer(to_json(done) if as_json else f"released {token}")
    return 0


def _token(words: tuple[str, ...]) -> int:
    try:
        (word,) = words
        return int(word)
    except ValueError:
        raise click.UsageError(
            f"{clipped(' '.join(words))!a} is no token: give the number that `acquire` printed, "
            "or names and --by"
        ) from None


def release_names(names: tuple[str, ...], by: str, as_json: bool) -> int:
    """Let go of what a job holds of some names, and say of what; return the exit status."""
    with connected() as hf:
        done = freed(hf, names, by)
    answer(to_json(done) if as_json else printable(f"released {', '.join(done.released)}"))
    kept = [name for name in dict.fromkeys(names) if name not in done.released]
    if kept:
        remark(not_held(kept, by).message)
    return STATUS["not_found"].exit if kept else 0


@click.command(short_help="Wait until names are free, and take nothing.")
@names_argument
@limit_options(None)
@mode_option
@by_option("Who asks: what this job holds itself is not waited for.  [default: nobody]")
@quiet_option
@json_option
@store_options
def wait(
    names: tuple[str, ...],
    timeout_s: float | None,
    nonblock: bool,
    shared: bool,
    by: str | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Wait until all the names are free at once, and take nothing; exit status 5 when they are not
    in time.

    \b
        holdfast locks wait router-1 --timeout 60 && echo free

    Another may take them in the next instant: to have them, `run` or `acquire`.
    """
    job, mode = own_job("wait") if by is None else by, mode_of(shared)
    limit_s = 0 if nonblock else timeout_s
    with interruptible(), connected() as hf, Telling(hf, names, job, mode, quiet=quiet) as telling:
        why = hf.locks.wait_free(names, by=job, mode=mode, timeout_s=limit_s, on_wait=telling.begin)
    if as_json:
        answer(to_json(free_view(why)))
    if why is None:
        return 0
    first = why.holders[0].resource if why.holders else names[0]
    remark(
        f"{', '.join(names)} not free within {limit_s:g} s: {describe_obstruction(why, names)}. `holdfast "
        f"locks explain {quote(first)}` "
        "tells more"
    )
    return STATUS["lock_timeout"].exit


@click.command(short_help="Take a lock away from its holder.")
@click.argument("name")
@click.option(
    "--why", required=True, metavar="TEXT", help="The reason, for the journal and whoever held it."
)
@click.option("--by", metavar="JOB", help="Take it from this job alone, of several that share it.")
@click.option(
    "--end-tree",
    is_flag=True,
    help="End every process of the command that holds it first, by SIGTERM and SIGKILL.",
)
@json_option
@store_options
def kick(name: str, why: str, by: str | None, end_tree: bool, as_json: bool) -> None:
    """Take NAME away from whoever holds it, with all that was taken together with it.

    \b
        holdfast locks kick router-1 --why 'flash.sh has hung since noon'

    The next in line gets it at once. The holder is told, and its token is refused from then on, but
    its processes go on. --end-tree ends them first, on this machine.
    """
    with connected() as hf:
        kicked = hf.locks.kick(name, why=why, by=by, end_tree=end_tree)
    if as_json:
        answer(to_json(kicked_view(kicked)))
    else:
        lines = [
            f"took {', '.join(hold.names)} from {hold.by} (token {hold.token})" for hold in kicked
        ]
        answer(printable("\n".join(lines)))
