"""`holdfast agents cleanup`."""

from collections.abc import Sequence

import click

from holdfast.domains.agents.cleanup import Item, Report
from holdfast.kernel.errors import Unavailable, status_of
from holdfast.kernel.limits import AGENT_GRACE_S
from holdfast.surfaces.cli.agents.options import json_option
from holdfast.surfaces.cli.connection import connected, store_options
from holdfast.surfaces.cli.locks.options import no_less_than_nothing
from holdfast.surfaces.cli.render import json_document, table


@click.command()
@click.option(
    "--grace",
    "grace_s",
    type=float,
    metavar="SECONDS",
    default=AGENT_GRACE_S,
    show_default=True,
    callback=no_less_than_nothing,
    help="Leave alone what expired, or was made without a record, more recently than this.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option(
    "--no-tmux-check",
    is_flag=True,
    help="Go by leases alone: ask neither tmux nor the process table.",
)
@json_option
@store_options
def cleanup(grace_s: float, dry_run: bool, no_tmux_check: bool, as_json: bool) -> int:
    """Remove what agents left behind, and say what was planned, removed, preserved and failed, each
    with its reason.

    It removes damaged records, records expired for longer than the grace, fresh records whose
    process is dead and whose tmux session is gone, folders without a record, and links in the place
    of such folders, but never what a link leads to. Exit status 6 when something could not be
    removed.
    """
    with connected(create=not dry_run) as hf:
        report = hf.agents.cleanup(grace_s=grace_s, dry_run=dry_run, tmux_check=not no_tmux_check)
    if as_json:
        json_document(report)
    else:
        table(
            ["", "agent", "why", ""], _rows(report), elastic=[""], empty="Nothing is left behind."
        )
    return status_of(Unavailable("")).exit if report.failed else 0


def _rows(report: Report) -> list[list[str]]:
    shown: list[tuple[str, Sequence[Item]]] = [
        ("preserved", report.preserved),
        ("failed", report.failed),
    ]
    shown.insert(0, ("planned", report.planned) if report.dry_run else ("removed", report.removed))
    return [
        [word, item.agent_id, item.why.value, item.detail or "-"]
        for word, items in shown
        for item in items
    ]
