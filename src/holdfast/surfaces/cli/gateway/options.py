"""Options that commands of the gateway share, and the client they work with."""

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import click

from holdfast.adapters.gateway_client import GatewayClient
from holdfast.kernel.errors import HoldfastError, InvalidValue
from holdfast.kernel.settings import Settings
from holdfast.runtime.configuration import load_settings
from holdfast.runtime.connection import connected
from holdfast.runtime.gateway_identity import gateway_key, gateway_place
from holdfast.runtime.paths import gateway_agent
from holdfast.surfaces.cli.connection import given
from holdfast.surfaces.cli.render import clipped

F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
agent_argument = click.argument("agent")


def address_options(command: F) -> F:
    """Add --url and --token-file: for a gateway on another machine, or in a folder of its own."""
    command = click.option(
        "--token-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="The file with its token; with --url.",
    )(command)
    return click.option(
        "--url",
        help="Where the gateway is, when its folder is not here, such as http://10.0.0.7:9100.",
    )(command)


def settings_here() -> Settings:
    """The settings in force, with what the user said of the store."""
    said = given()
    return load_settings(store=said.store, namespace=said.namespace)


def client(agent: str, url: str | None, token_file: Path | None) -> GatewayClient:
    """The client for an agent's gateway."""
    if (url is None) != (token_file is None):
        raise InvalidValue(
            "--url needs --token-file, and the other way round: give both or neither"
        )
    token = None if token_file is None else token_file.read_text().strip()
    settings = settings_here()
    root = gateway_place(settings, agent, lambda: _key(agent, settings))
    return GatewayClient(agent, root=root, url=url, token=token)


def _key(agent: str, settings: Settings) -> str:
    """What the agent's gateway is kept under, as far as the store says: a gateway works without."""
    with suppress(HoldfastError), closing(connected(settings, create=False)) as hf:
        return gateway_key(agent, hf.agents.resolve(agent).record, settings, hf.store)
    return gateway_agent(agent)


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Say on a terminal what is being waited for, and wipe it away afterwards."""
    shown = sys.stderr is not None and sys.stderr.isatty()
    if shown:
        click.echo(f"waiting for {what} ...", err=True, nl=False)
    try:
        yield
    finally:
        if shown:
            click.echo("\r\x1b[K", err=True, nl=False)


def summary(request: dict[str, Any]) -> str:
    """A request in one line."""
    words = f"{request['request_id']} is {request['state']}"
    if request.get("error_code"):
        return f"{words}: {request['error_code']}: {request.get('error_detail') or ''}"
    result = request.get("result") or {}
    if result.get("text"):
        return f"{words}: {clipped(str(result['text']), 200)}"
    return f"{words} ({result['receipt']})" if "receipt" in result else words
