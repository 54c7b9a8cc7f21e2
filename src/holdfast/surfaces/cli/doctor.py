"""`holdfast doctor`: what is wrong here, and how to fix it."""

import shutil
import sys
import textwrap

import click
from msgspec.structs import replace

from holdfast.runtime.doctor import Finding, Severity, examine
from holdfast.runtime.doctor.finding import exit_status
from holdfast.surfaces.cli.command import json_option
from holdfast.surfaces.cli.hints import chosen, completed
from holdfast.surfaces.cli.output import printable
from holdfast.surfaces.cli.render import json_document
from holdfast.surfaces.cli.store_options import store_options

_COLOURS = {Severity.OK: "green", Severity.WARN: "yellow", Severity.FAIL: "red"}
_INDENT = 19


@click.command()
@json_option
@store_options
def doctor(as_json: bool) -> int:
    """Look for what is wrong here, and say how to fix it. Changes nothing.

    It checks settings, disk, permissions, store, clock, tmux, broker, gateways and server, what
    dead processes left, and events that wait to be sent. No check takes long. The exit status is 0
    when nothing fails, else the greatest status of the failures.
    """
    findings: list[Finding] = []
    for finding in examine(chosen.get("store"), chosen.get("namespace")):
        findings.append(finding)
        if not as_json:
            click.echo(_line(finding))
    status = exit_status(findings)
    if as_json:
        shown = [replace(finding, fix=completed(finding.fix)) for finding in findings]
        json_document({"well": status == 0, "findings": shown})
    else:
        click.echo(_summed(findings))
    return status


def _line(finding: Finding) -> str:
    verdict = click.style(
        f"{finding.verdict.value:<4}",
        fg=_COLOURS[finding.verdict],
        bold=finding.verdict is Severity.FAIL,
    )
    words = printable(
        f"{finding.says}. To fix: {completed(finding.fix)}" if finding.fix else finding.says
    ).replace("\n", " ")
    if sys.stdout.isatty():
        width = max(shutil.get_terminal_size().columns, _INDENT + 20)
        lines = textwrap.wrap(
            words, width - _INDENT, break_long_words=False, break_on_hyphens=False
        )
        words = ("\n" + " " * _INDENT).join(lines)
    return f"{verdict}  {finding.check:<11}  {words}"


def _summed(findings: list[Finding]) -> str:
    counts = [
        (number, what)
        for what in ("fail", "warn")
        if (number := sum(one.verdict.value == what for one in findings))
    ]
    if not counts:
        return click.style("all well", fg="green")
    return ", ".join(f"{number} {what}" for number, what in counts)
