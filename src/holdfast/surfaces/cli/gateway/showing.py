"""`holdfast gateway status | requests`."""

from pathlib import Path
from typing import Any

import click

from holdfast.kernel import clock
from holdfast.kernel.limits import LIST_MAX
from holdfast.surfaces.cli.connection import store_options
from holdfast.surfaces.cli.gateway.options import (
    address_options,
    agent_argument,
    client,
    json_option,
)
from holdfast.surfaces.cli.hints import completed
from holdfast.surfaces.cli.render import clipped, json_document, pairs, short_moment, table

_STATES = ["accepted", "running", "completed", "failed"]


@click.command()
@agent_argument
@json_option
@address_options
@store_options
def status(agent: str, as_json: bool, url: str | None, token_file: Path | None) -> None:
    """How an agent's gateway and the agent itself are doing."""
    found = client(agent, url, token_file).status()
    if as_json:
        json_document(found)
        return
    hidden = ("schema_version", "protocol_version")
    facts = [
        (name, str(value))
        for name, value in found.items()
        if name not in hidden and value not in (None, "")
    ]
    pairs([*facts, *_next(agent, found)])


@click.command()
@agent_argument
@click.option("--state", type=click.Choice(_STATES), help="Only those in this state.")
@click.option(
    "--limit",
    type=click.IntRange(0, LIST_MAX),
    default=100,
    show_default=True,
    help="At most this many, the newest.",
)
@json_option
@address_options
@store_options
def requests(
    agent: str,
    state: str | None,
    limit: int,
    as_json: bool,
    url: str | None,
    token_file: Path | None,
) -> None:
    """List an agent's requests in the order they came."""
    found = client(agent, url, token_file).requests(state=state, limit=limit)
    if as_json:
        json_document(found)
        return
    table(
        ["request", "state", "epoch", "accepted", "kind", "what"],
        [_row(request) for request in found],
        elastic=["what"],
        empty=f"No requests. Hand one in: holdfast gateway prompt {agent} 'say hello'",
    )


def _next(agent: str, found: dict[str, Any]) -> list[tuple[str, str]]:
    """What to do about a gateway that takes no requests."""
    if found["gateway_health"] != "healthy":
        return [("what to do", completed(f"holdfast gateway serve {agent}"))]
    if found["request_admission"] == "blocked_reconciliation":
        decide = (
            f"holdfast gateway reconcile {agent} replay|discard --epoch "
            f"{found['managed_agent_instance_epoch']}"
        )
        return [("what to do", completed(f"holdfast gateway requests {agent}, then {decide}"))]
    if found["request_admission"] == "blocked_unavailable":
        return [("what to do", f"start {agent} again; what was accepted waits for it")]
    return []


def _row(request: dict[str, Any]) -> list[str]:
    at = clock.parse(request["accepted_at"], "accepted_at")
    state = (
        f"{request['state']} {request['error_code']}"
        if request["error_code"]
        else str(request["state"])
    )
    what = clipped(str(request["payload"].get("prompt", "")))
    return [
        request["request_id"],
        state,
        str(request["epoch"]),
        short_moment(at),
        request["kind"],
        what,
    ]
