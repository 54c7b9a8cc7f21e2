"""`holdfast serve --link`: a new one-time link to the server that runs."""

from holdfast.adapters.server_folder import ServerFolder
from holdfast.kernel.codec import to_json
from holdfast.processes.procfs import Procfs
from holdfast.runtime.configuration import load_settings
from holdfast.runtime.paths import server_root
from holdfast.surfaces.cli.connection import given
from holdfast.surfaces.cli.output import answer


def tell_link(*, as_json: bool) -> None:
    """Ask the server for a link, and print it."""
    said = given()
    settings = load_settings(store=said.store, namespace=said.namespace)
    link = ServerFolder(server_root(settings)).new_link(Procfs(host_id=settings.host_id))
    answer(to_json({"link": link}) if as_json else link)
