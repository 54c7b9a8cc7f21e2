"""What several commands of `holdfast locks` ask for."""

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from holdfast.kernel.limits import LABEL_CHARS_MAX, LOCK_PRIORITY_MAX
from holdfast.primitives.locks import Mode
from holdfast.primitives.locks.records import PART

F = TypeVar("F", bound=Callable[..., Any])

JOB_VARIABLE = "HOLDFAST_LOCK_BY"
"""What a command under `locks run` finds its job in; a `locks run` inside it is a part of that job.
"""


def no_less_than_nothing(
    _: click.Context, parameter: click.Parameter, seconds: float | None
) -> float | None:
    """A time limit: none at all, or seconds from 0 on."""
    # Written so that what is not a number fails too.
    if seconds is not None and not seconds >= 0:
        raise click.BadParameter(
            f"{seconds} is not possible: give seconds from 0 on, such as 30 or 0.5", param=parameter
        )
    return seconds


def more_than_nothing(
    _: click.Context, parameter: click.Parameter, seconds: float | None
) -> float | None:
    """A time to live: a number of seconds that ends."""
    if seconds is not None and not 0 < seconds < float("inf"):
        raise click.BadParameter(
            f"{seconds} is not possible: give more than 0 seconds, such as 30 or 0.5",
            param=parameter,
        )
    return seconds


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
names_argument = click.argument("names", metavar="NAME...", nargs=-1, required=True)
quiet_option = click.option(
    "-q", "--quiet", is_flag=True, help="Do not say on stderr who is being waited for."
)
priority_option = click.option(
    "--priority",
    type=click.IntRange(-LOCK_PRIORITY_MAX, LOCK_PRIORITY_MAX),
    default=0,
    show_default=True,
    help="Higher goes first; each step is worth a few seconds of having come earlier.",
)


def by_option(words: str, *, required: bool = False) -> Callable[[F], F]:
    """--by JOB."""
    return click.option("--by", metavar="JOB", required=required, help=words)


mode_option = click.option(
    "-s/-x",
    "--shared/--exclusive",
    " /-e",
    "shared",
    default=False,
    help="Share it with others that share it, or have it alone (the default).",
)


def mode_of(shared: bool) -> Mode:
    """The mode that the user chose."""
    return Mode.SHARED if shared else Mode.EXCLUSIVE


def limit_options(
    default_s: float | None, words: str = "default: as long as it takes"
) -> Callable[[F], F]:
    """-w and -n, as flock(1) has them. `words` say what is so without a default."""
    shown = words if default_s is None else f"default: {default_s:g}"
    timeout = click.option(
        "-w",
        "--timeout",
        "--wait",
        "timeout_s",
        metavar="SECONDS",
        type=float,
        callback=no_less_than_nothing,
        default=default_s,
        help=f"Give up after this long, with exit status 5.  [{shown}]",
    )
    nonblock = click.option(
        "-n",
        "--nonblock",
        "--nb",
        is_flag=True,
        help="Do not wait at all: exit status 5 when it is not free.",
    )
    return lambda command: timeout(nonblock(command))


def ttl_option(words: str) -> Callable[[F], F]:
    """--ttl SECONDS."""
    return click.option(
        "--ttl", "ttl_s", metavar="SECONDS", type=float, callback=more_than_nothing, help=words
    )


def refuse_endless(ttl_s: float | None, pid: int | None, what: str) -> None:
    """Say in this command's words what nothing would end: it is over before what it takes."""
    if ttl_s is None and pid is None:
        raise click.UsageError(
            f"without a process nothing but time can end the {what}: give --ttl SECONDS, or --pid "
            "N of the process that has it"
        )


def own_job(verb: str) -> str:
    """A job that nobody else is, for a command that was not told one: under `locks run`, a part of
    that run's job.
    """
    own = f"{verb}-{os.getpid()}-{os.urandom(3).hex()}"
    around = os.environ.get(JOB_VARIABLE)
    part = f"{around}{PART}{own}"
    return part if around and len(part) <= LABEL_CHARS_MAX else own
