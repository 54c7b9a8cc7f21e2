"""`holdfast agents list` and `get`."""

import sys
from datetime import datetime

import click

from holdfast.domains.agents import Agent
from holdfast.domains.agents.liveness import Parts, process_liveness, survivors_of
from holdfast.kernel.codec import to_plain
from holdfast.kernel.holder import survivors_named
from holdfast.kernel.limits import LIST_MAX
from holdfast.kernel.store import Damage
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.answers.agents import AgentView, agent_view
from holdfast.surfaces.cli.agents.options import agent_argument, json_option
from holdfast.surfaces.cli.connection import connected, store_options
from holdfast.surfaces.cli.locks.words import span
from holdfast.surfaces.cli.output import damage_told
from holdfast.surfaces.cli.render import json_document, moment, pairs, table


@click.command("list")
@click.option("--fresh", is_flag=True, help="Only those whose lease is not over.")
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=LIST_MAX,
    show_default=True,
    help="At most this many.",
)
@json_option
@store_options
def list_(fresh: bool, limit: int, as_json: bool) -> int:
    """List agents by name; exit status 7 if there are damaged records, which are named on
    stderr.
    """
    damaged: Damage = []
    with connected(create=False) as hf:
        found = hf.agents.list_agents(fresh=fresh, limit=limit, damaged=damaged)
        now = hf.store.now()
        if as_json:
            json_document(found)
        else:
            table(
                ["agent", "lease", "process", "tmux session", "tool", "id"],
                [_row(hf, agent, now) for agent in found],
                elastic=["agent", "tmux session", "id"],
                empty="No agents. Start one: holdfast agents start NAME -- COMMAND",
            )
    return damage_told(damaged)


@click.command()
@agent_argument
@json_option
@store_options
def get(asked: str, as_json: bool) -> None:
    """Show one agent, fresh or not, and what is known of its parts: lease, process, tmux session,
    gateway.
    """
    with connected(create=False) as hf:
        found = agent_view(hf, asked)
        left = [] if as_json else survivors_of(found, hf.processes, embedded=hf.store.embedded)
    if as_json:
        json_document(found)
    else:
        pairs(
            [
                *_facts(found),
                *_liveness(found.liveness),
                *([("processes left", survivors_named(left))] if left else []),
            ]
        )


def _row(hf: Holdfast, agent: Agent, now: datetime) -> list[str]:
    process = "-"
    alive = process_liveness(agent, hf.processes, embedded=hf.store.embedded)
    if agent.holder is not None and alive is not None:
        process = f"{agent.holder.pid} {alive.value}"
        if left := survivors_of(agent, hf.processes, embedded=hf.store.embedded):
            process = f"{process}, {len(left)} left"
    lease = _lease(agent, now)
    return [
        agent.agent_name,
        lease,
        process,
        agent.session_name or "-",
        agent.identity.tool,
        agent.agent_id,
    ]


def _lease(agent: Agent, now: datetime) -> str:
    if not sys.stdout.isatty():
        return moment(agent.lease_expires_at)
    if not agent.fresh(now):
        return f"over for {span(agent.lease_expires_at, now)}"
    return f"{span(now, agent.lease_expires_at)} left"


def _facts(found: AgentView) -> list[tuple[str, str]]:
    """The record's fields, those of its parts with a dot."""
    facts: list[tuple[str, str]] = []
    for name, value in to_plain(found).items():
        if name == "liveness":
            continue
        parts = (
            {f"{name}.{inner}": each for inner, each in value.items()}
            if isinstance(value, dict)
            else {name: value}
        )
        facts += [(path, "-" if each is None else str(each)) for path, each in parts.items()]
    return facts


def _liveness(parts: Parts) -> list[tuple[str, str]]:
    return [
        (f"is {name.replace('_', ' ')}", value or "none") for name, value in to_plain(parts).items()
    ]
