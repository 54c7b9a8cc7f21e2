"""`holdfast holds`: counts that cannot leak."""

import click

from holdfast.kernel.codec import to_json
from holdfast.kernel.text import counted
from holdfast.primitives.holds import Hold
from holdfast.surfaces.answers.holds import HoldsSwept, dropped, taken
from holdfast.surfaces.cli.connection import connected, store_options
from holdfast.surfaces.cli.group import InOrder
from holdfast.surfaces.cli.locks.options import by_option, json_option, refuse_endless, ttl_option
from holdfast.surfaces.cli.output import answer, printable
from holdfast.surfaces.cli.quick import PID_MAX
from holdfast.surfaces.cli.render import json_document, moment, table

_subject = click.argument("subject")
_by = by_option("Who holds it.", required=True)


@click.group(cls=InOrder)
def holds() -> None:
    """Counted holds: how many use a subject, where whoever dies or runs out of time no longer
    counts.

    \b
        holdfast holds take host-7 --by run-1 --pid $$
        holdfast holds drop host-7 --by run-1
    """


@holds.command()
@_subject
@_by
@ttl_option("It ends after this long, unless taken again.")
@click.option(
    "--pid",
    type=click.IntRange(1, PID_MAX),
    help="It ends when this process does, such as a script's own: --pid $$.",
)
@json_option
@store_options
def take(subject: str, by: str, ttl_s: float | None, pid: int | None, as_json: bool) -> None:
    """Hold SUBJECT, and print how many do now. Taking it again is one hold, with a new time; --ttl
    or --pid ends it.
    """
    refuse_endless(ttl_s, pid, "hold")
    with connected() as hf:
        done = taken(hf, subject, by=by, ttl_s=ttl_s, pid=pid)
    answer(to_json(done) if as_json else str(done.count))


@holds.command()
@_subject
@_by
@json_option
@store_options
def drop(subject: str, by: str, as_json: bool) -> None:
    """Let go of SUBJECT, and print how many hold it still; exit status 1 when it was not held."""
    with connected() as hf:
        done = dropped(hf, subject, by=by)
    answer(to_json(done) if as_json else str(done.count))


@holds.command("list")
@click.argument("subject", required=False)
@json_option
@store_options
def list_(subject: str | None, as_json: bool) -> None:
    """List what is held and how often, or who holds SUBJECT."""
    with connected(create=False) as hf:
        if subject is None:
            counts = hf.holds.subjects()
            rows = [[name, str(count)] for name, count in counts.items()]
            empty = "Nothing is held. Try: holdfast holds take SUBJECT --by NAME --ttl 60"
            json_document(counts) if as_json else table(
                ["subject", "holders"], rows, elastic=["subject"], empty=empty
            )
            return
        found = hf.holds.holders(subject)
    if as_json:
        json_document(found)
    else:
        table(
            ["holder", "process", "ends"],
            [_row(hold) for hold in found],
            elastic=["holder"],
            empty="Nobody holds it.",
        )


@holds.command()
@json_option
@store_options
def sweep(as_json: bool) -> None:
    """Remove every holder that is gone. The next change of the same subject does it too."""
    with connected() as hf:
        done = HoldsSwept(swept=hf.holds.sweep())
    answer(to_json(done) if as_json else printable(f"swept {counted(done.swept, 'holder')}"))


def _row(hold: Hold) -> list[str]:
    ends = moment(hold.lease.expires_at) if hold.lease.explicit else "with it"
    return [hold.by, "none" if hold.process is None else str(hold.process.pid), ends]
