"""The store itself over HTTP: where it is. What works on its files is the command line's."""

from holdfast.runtime.connection import Holdfast
from holdfast.runtime.maintenance import Upkeep
from holdfast.surfaces.cli.output import printable
from holdfast.surfaces.http.server.operation import operation


@operation("GET", "/v1/store")
def info(hf: Holdfast) -> dict[str, str]:
    """Which store is served, without its password."""
    return {name: printable(fact) for name, fact in Upkeep(hf.settings).facts().items()}


OPERATIONS = [info]
