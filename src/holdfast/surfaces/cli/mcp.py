"""`holdfast mcp`: the tools of agents, over standard input and output."""

import sys

import click
from msgspec.structs import replace

from holdfast.kernel.errors import InvalidValue, Unavailable
from holdfast.kernel.text import installing
from holdfast.runtime.connection import connected
from holdfast.surfaces.cli.connection import settings_here
from holdfast.surfaces.cli.hints import completed
from holdfast.surfaces.cli.logs import log_json_lines
from holdfast.surfaces.cli.serve import log_json_option
from holdfast.surfaces.cli.store_options import store_options


@click.command(short_help="The tools of agents, for an MCP client.")
@click.option(
    "--as",
    "label",
    metavar="LABEL",
    help="Who the agent is.  [HOLDFAST_ACTOR; the agent that runs it; mcp]",
)
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="LABEL",
    help="A queue it may claim jobs from; repeatable.  [--as]",
)
@click.option(
    "--allow",
    "may",
    type=click.Choice(["answer"]),
    multiple=True,
    help="What it may do beside its own work; repeatable. answer: the questions of other agents.",
)
@log_json_option
@store_options
def mcp(label: str | None, queues: tuple[str, ...], may: tuple[str, ...], log_json: bool) -> None:
    """Serve the tools of agents over standard input and output, for one agent, until it ends.

    A client such as a coding agent starts this by itself; put this into its configuration:

    \b
        {"mcpServers": {"holdfast":
            {"command": "holdfast", "args": ["mcp", "--as", "claude-a"]}}}

    What the agent holds is this process's: its locks, jobs, recipes and swaps end with it, however
    it ends. Standard output belongs to the protocol; logs go to stderr.
    """
    if sys.stdin is None:
        raise InvalidValue(
            "standard input is closed, and the client speaks there: start it from an MCP client"
        )
    # Here, so that no other command loads the SDK.
    try:
        from holdfast.surfaces.mcp.server import serve
    except ImportError as error:
        raise Unavailable(
            f"the MCP server needs {error.name}: {installing('mcp')}", outcome="none"
        ) from None
    from holdfast.surfaces.mcp.claims import Session
    from holdfast.surfaces.mcp.identity import agent_above, identify

    if log_json:
        log_json_lines()
    settings = settings_here()
    with connected(settings) as hf:
        me = identify(label or settings.actor, queues, agent_above(hf))
    serve(Session(connected(replace(settings, actor=me.by)), me, may), completed)
