"""`holdfast agents tools`: the tools that Holdfast knows, and what it knows of each."""

import os

import click

from holdfast.adapters.agent_tool import known_tools
from holdfast.surfaces.cli.command import json_option
from holdfast.surfaces.cli.output import remark
from holdfast.surfaces.cli.render import json_document, table


@click.command()
@json_option
def tools(as_json: bool) -> None:
    """List the tools that have a profile: the built-in ones, and your own ones.

    For a prompt in tmux: is it known that the tool is ready, that it received the prompt, that it
    answered it, and what it asks?
    """
    found = known_tools(os.environ)
    if as_json:
        json_document([one._asdict() for one in found])
        return
    table(
        ["tool", "programs", "known in tmux", "resumes", "protocol"],
        [
            [
                one.name,
                " ".join(one.programs) or "-",
                ", ".join(one.in_tmux),
                "yes" if one.resumes else "-",
                " ".join(one.protocol) or "-",
            ]
            for one in found
        ],
        elastic=["programs", "known in tmux"],
        empty="No tools.",
    )
    for one in found:
        if one.advice:
            remark(f"{one.name} reports more after: {one.advice}")
