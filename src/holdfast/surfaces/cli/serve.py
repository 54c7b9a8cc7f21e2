"""`holdfast serve`: a store over HTTP; and what every server's command has."""

from collections.abc import Iterator
from contextlib import contextmanager

import click

from holdfast.adapters.server_folder import ServerFolder
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import InvalidValue, Unavailable
from holdfast.kernel.limits import SERVER_PORT
from holdfast.kernel.text import installing
from holdfast.processes.procfs import Procfs
from holdfast.runtime.configuration import server_root
from holdfast.surfaces.cli.connection import connected, settings_here
from holdfast.surfaces.cli.logs import log_json_lines
from holdfast.surfaces.cli.output import answer, remark
from holdfast.surfaces.cli.store_options import store_options

LOOPBACK = ("127.0.0.1", "::1", "localhost")

host_option = click.option(
    "--host", default=LOOPBACK[0], show_default=True, help="The address to serve at."
)
allow_host_option = click.option(
    "--allow-host",
    "more_hosts",
    multiple=True,
    metavar="HOST:PORT",
    help="Another name it is served under; repeatable.",
)
log_json_option = click.option(
    "--log-json", is_flag=True, help="Log to stderr as JSON, one line per event."
)


expose_option = click.option(
    "--expose",
    is_flag=True,
    help="Serve beyond this machine: everybody with the token may do everything.",
)


def check_host(host: str, *, expose: bool) -> None:
    """Raises InvalidValue for an address that other machines reach, unless that is intended."""
    if not host:
        # It would be every address, and is mostly a shell variable that was not set.
        raise InvalidValue(
            f"the host given is empty: name one, or leave it out for {LOOPBACK[0]}", field="host"
        )
    if host not in LOOPBACK and not expose:
        raise InvalidValue(
            f"{host} can be reached from other machines, without TLS: serve at {LOOPBACK[0]} "
            "behind a proxy with TLS, or say --expose if everybody with the token may come in",
            field="host",
        )


def warn_if_exposed(host: str) -> None:
    """Say so when other machines reach the server."""
    if host not in LOOPBACK:
        remark("it is served beyond this machine, without TLS: put a proxy with TLS in front of it")


@contextmanager
def server_libraries() -> Iterator[None]:
    """For the import of a server. Raises Unavailable when a library is not installed."""
    try:
        yield
    except ImportError as error:
        library = (error.name or "").partition(".")[0]
        raise Unavailable(
            f"serving needs {library}: {installing('server')}", outcome="none"
        ) from None


@click.command()
@host_option
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=SERVER_PORT,
    show_default=True,
    help="The port; 0 for a free one.",
)
@allow_host_option
@expose_option
@click.option(
    "--link", is_flag=True, help="Print a new one-time link to the running server, and exit."
)
@click.option(
    "--no-gateways",
    is_flag=True,
    help="Leave the gateways of this machine's agents to another process.",
)
@log_json_option
@click.option("--json", "as_json", is_flag=True, help="Say where it is served as JSON.")
@store_options
def serve(
    host: str,
    port: int,
    more_hosts: tuple[str, ...],
    expose: bool,
    link: bool,
    no_gateways: bool,
    log_json: bool,
    as_json: bool,
) -> None:
    """Serve the store over HTTP, with a page for browsers, until Ctrl-C or SIGTERM.

    \b
        holdfast serve
        holdfast serve --link

    Every request needs the bearer token, which is made on first start in a file that only its owner
    reads; a browser gets in once, by the link that is printed. It has no TLS: to serve beyond this
    machine, put a proxy with TLS in front of it.

    It also hosts the gateways of this machine's agents, as `holdfast gateway serve --all` does.
    """
    if link:
        settings = settings_here()
        new = ServerFolder(server_root(settings)).new_link(Procfs(host_id=settings.host_id))
        answer(to_json({"link": new}) if as_json else new)
        return
    check_host(host, expose=expose)
    # Loaded here, so that no other command loads a server.
    with server_libraries():
        from holdfast.surfaces.cli.server_process import allow_descriptors, serve_store
    if log_json:
        log_json_lines()
    # Before the store is opened: it opens files for each thread.
    allow_descriptors(gateways=not no_gateways)
    with connected() as hf:
        serve_store(
            hf,
            host=host,
            port=port,
            more_hosts=more_hosts,
            as_json=as_json,
            gateways=not no_gateways,
        )
