"""`holdfast locks acquire`, and what else takes locks for a command that ends at once."""

from functools import partial

from msgspec.structs import replace

from holdfast.kernel.codec import to_json
from holdfast.operations import locks as operations
from holdfast.operations.operation import Operation, Request, Wait
from holdfast.processes.signals import interruptible
from holdfast.surfaces.cli.connection import connected
from holdfast.surfaces.cli.lock_notes import WaitNotes
from holdfast.surfaces.cli.options import AsJson, Nonblock, Quiet
from holdfast.surfaces.cli.output import issue, remark
from holdfast.surfaces.cli.quick import quick_command


class AcquireOptions(Request, frozen=True, kw_only=True):
    """Whether it waits, and what it says."""

    nonblock: Nonblock = False
    quiet: Quiet = False
    as_json: AsJson = False


@quick_command("Take locks and print the token.")
def acquire(request: operations.Acquire, options: AcquireOptions) -> int:
    """Take locks, all or none, and print the token.

    \b
        token=$(holdfast locks acquire router-1 --by job-7 --pid $$)
        holdfast locks release "$token"

    This command ends at once, so something else must end the lock if `release` never comes: a
    process with --pid, or time with --ttl. On a store of several machines --pid needs a --ttl too,
    since the others cannot see the process. Where one command is all the lock is for, `holdfast
    locks run` is simpler. A job that holds all of it already gets its token again, and releasing
    that token frees it.
    """
    request = replace(request, timeout_s=0) if options.nonblock else request
    take(operations.acquire, request, quiet=options.quiet, as_json=options.as_json)
    return 0


def take(
    operation: Operation, request: operations.AcquireRequest, *, quiet: bool, as_json: bool
) -> None:
    """Take locks for a command that ends at once, and print the token."""
    with (
        interruptible(),
        connected() as hf,
        WaitNotes(hf, request.names, request.by, request.mode, quiet=quiet) as notes,
    ):
        wait = Wait(on_wait=notes.begin)
        grant: operations.GrantView = operation(hf, request, wait=wait)
        names = ", ".join(grant.names)
        issue(
            grant.token,
            to_json(grant) if as_json else str(grant.token),
            None if grant.reentered else partial(operations.give_back, hf, grant, wait),
            f"{names} was granted",
            f"holdfast locks release {grant.token}",
        )
        if grant.reentered and not quiet:
            remark(
                f"{names} was {request.by}'s already: this is the same token, "
                "and releasing it frees it"
            )
