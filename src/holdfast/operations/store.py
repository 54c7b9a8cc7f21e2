"""The store itself: where it is. What works on its files is the command line's alone."""

from holdfast.kernel.text import shown
from holdfast.operations.operation import operation
from holdfast.runtime.connection import Holdfast
from holdfast.runtime.maintenance import Upkeep


@operation("GET /v1/store")
def info(hf: Holdfast) -> dict[str, str]:
    """Which store is served, without its password."""
    return {name: shown(fact) for name, fact in Upkeep(hf.settings).facts().items()}


OPERATIONS = [info]
