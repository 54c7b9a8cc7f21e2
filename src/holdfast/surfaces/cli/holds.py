"""`holdfast holds`: counts that cannot leak."""

import click

from holdfast.kernel.text import counted
from holdfast.operations import holds as operations
from holdfast.surfaces.cli.command import CommandGroup, json_option
from holdfast.surfaces.cli.connection import connected
from holdfast.surfaces.cli.render import json_document, moment, table
from holdfast.surfaces.cli.store_options import store_options


@click.group(cls=CommandGroup)
def holds() -> None:
    """Counted holds: how many use a subject. Holders that died or expired do not count.

    \b
        holdfast holds take host-7 --by run-1 --pid $$
        holdfast holds drop host-7 --by run-1
    """


@holds.operation(operations.take)
def take(done: operations.HoldCount) -> str:
    """Hold SUBJECT, and print how many do now; --ttl or --pid ends it.

    Taking it again is one hold, with a new time.
    """
    return str(done.count)


@holds.operation(operations.drop)
def drop(done: operations.HoldCount) -> str:
    """Release SUBJECT, and print how many hold it still; exit status 1 when it was not held."""
    return str(done.count)


@holds.command("list")
@click.argument("subject", required=False)
@json_option
@store_options
def list_(subject: str | None, as_json: bool) -> None:
    """List held subjects with their counts, or the holders of SUBJECT."""
    with connected(create=False) as hf:
        if subject is None:
            counts = operations.list_(hf)
        else:
            found = operations.holders(hf, operations.HoldSubject(subject=subject))
    if as_json:
        json_document(counts if subject is None else found)
    elif subject is None:
        rows = [[name, str(count)] for name, count in counts.items()]
        empty = "Nothing is held. Try: holdfast holds take SUBJECT --by NAME --ttl 60"
        table(["subject", "holders"], rows, elastic=["subject"], empty=empty)
    else:
        rows = [
            [
                hold.by,
                "none" if hold.process is None else str(hold.process.pid),
                moment(hold.lease.expires_at) if hold.lease.explicit else "with it",
            ]
            for hold in found
        ]
        table(["holder", "process", "ends"], rows, elastic=["holder"], empty="Nobody holds it.")


@holds.operation(operations.sweep)
def sweep(done: operations.HoldsSwept) -> str:
    return f"swept {counted(done.swept, 'holder')}"
