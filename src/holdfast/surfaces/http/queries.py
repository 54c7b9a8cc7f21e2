"""Query parameters: a name that a route does not know is refused, as it is more often a slip than
meant for nobody.
"""

from typing import Any

from litestar import Request

from holdfast.kernel.errors import InvalidValue


def takes(*names: str) -> dict[str, Any]:
    """What a route's `opt` says of its query."""
    return {"query": frozenset(names)}


async def refuse_unknown_query(request: Request[Any, Any, Any]) -> None:
    """Before a route is called: raise InvalidValue for parameters that it does not take.

    Async, though it waits for nothing: the framework would give anything else a thread, which costs
    as much as the rest of a request.
    """
    known = request.route_handler.opt.get("query", frozenset())
    if unknown := sorted(set(request.query_params) - known):
        takes_which = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
        raise InvalidValue(
            f"{unknown[0][:60]!a} is no parameter of {request.url.path}: {takes_which}",
            field="query",
        )
