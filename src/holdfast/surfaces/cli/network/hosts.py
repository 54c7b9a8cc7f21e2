"""`holdfast network hosts`."""

import click

from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.store import Damage
from holdfast.surfaces.answers.network import host_added, host_of, hosts_of, unregistered
from holdfast.surfaces.cli.connection import connected, store_options
from holdfast.surfaces.cli.group import InOrder
from holdfast.surfaces.cli.locks.options import json_option
from holdfast.surfaces.cli.network.options import shown, since
from holdfast.surfaces.cli.output import answer, damage_told, printable
from holdfast.surfaces.cli.render import json_document, pairs, table


@click.group(cls=InOrder)
def hosts() -> None:
    """Registered hosts: names, addresses and MACs are each unique."""


@hosts.command()
@click.argument("name")
@click.option(
    "--ip",
    "primary_ip",
    required=True,
    metavar="ADDRESS",
    help="Its address, with or without a mask.",
)
@click.option(
    "--router",
    "connected_to",
    required=True,
    metavar="NAME",
    help="The router that it is connected to.",
)
@click.option("--mac", "mac_address", required=True, metavar="MAC", help="Its MAC address.")
@click.option(
    "--info", multiple=True, metavar="KEY=VALUE", help="Something else to keep with it; repeatable."
)
@json_option
@store_options
def add(
    name: str,
    primary_ip: str,
    connected_to: str,
    mac_address: str,
    info: tuple[str, ...],
    as_json: bool,
) -> None:
    """Register a host; exit status 4, naming the other, when its name, address or MAC is taken."""
    more = dict(_pair(word) for word in info)
    with connected() as hf:
        hf.network.register_host(name, primary_ip, connected_to, mac_address, more)
        facts = host_added(hf, name)
    answer(to_json(facts) if as_json else printable(f"registered {name}"))


@hosts.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="End the leases on it too.")
@json_option
@store_options
def remove(name: str, force: bool, as_json: bool) -> None:
    """Unregister a host; exit status 4 when runs lease it, 1 when there is none."""
    with connected() as hf:
        done = unregistered(hf, name, force=force)
    answer(to_json(done) if as_json else printable(f"unregistered {name}"))


@hosts.command("list")
@click.option("--router", metavar="NAME", help="Only those connected to it.")
@json_option
@store_options
def list_(router: str | None, as_json: bool) -> int:
    """List hosts by name; exit status 7 if there are damaged records, which are named on stderr."""
    damaged: Damage = []
    with connected(create=False) as hf:
        found = hf.network.list_all_hosts(damaged=damaged)
    chosen = hosts_of(found, router)
    if as_json:
        json_document(chosen)
    else:
        table(
            ["host", "address", "router", "mac", "registered"],
            [
                [
                    name,
                    info["primary_ip"],
                    info["connected_to"],
                    info["mac_address"],
                    since(info.get("registered_at_timestamp")),
                ]
                for name, info in chosen.items()
            ],
            elastic=["host", "router"],
            empty=(
                "No hosts. Register one: holdfast network hosts add NAME --ip ADDRESS --router "
                "NAME --mac MAC"
            ),
        )
    return damage_told(damaged)


@hosts.command()
@click.argument("name")
@json_option
@store_options
def get(name: str, as_json: bool) -> None:
    """Show one host; exit status 1 when there is none."""
    with connected(create=False) as hf:
        info = host_of(hf, name)
        count = hf.network.get_host_lease_count(name)
    if as_json:
        json_document(info)
    else:
        pairs(
            [
                ("host", name),
                *((key, shown(value)) for key, value in info.items()),
                ("leases", str(count)),
            ]
        )


def _pair(word: str) -> tuple[str, str]:
    key, separator, value = word.partition("=")
    if not key or not separator:
        raise InvalidValue(f"{ascii(word)[:60]} is no KEY=VALUE: write it as rack=7", field="info")
    return key, value
