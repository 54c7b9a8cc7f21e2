"""What is served of the server itself, and of the journal as it grows: /health, /ready and the
events.
"""

import asyncio
from typing import Annotated, Any

from litestar import get
from litestar.params import HeaderParameter
from litestar.response import Stream

from holdfast import __version__
from holdfast.kernel.codec import Plain
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.http.changes import Changes
from holdfast.surfaces.http.server.routes import SECURED, problems
from holdfast.surfaces.http.sse import events, place_of


class Health(Plain, frozen=True, kw_only=True):
    """That the server itself answers. It says nothing of the store."""

    status: str = "ok"
    version: str = __version__


class Ready(Plain, frozen=True, kw_only=True):
    """That the store answers."""

    status: str = "ready"
    store: str
    namespace: str


def status_routes(hf: Holdfast, changes: Changes) -> list[Any]:
    """The routes that are about no operation."""
    refusals = {status: spec for status, spec in problems().items() if status in (403, 413, 422)}

    @get(
        "/health",
        sync_to_thread=False,
        responses=refusals,
        operation_id="server.health",
        tags=["server"],
    )
    def health() -> Health:
        """Does the server itself answer? Needs no token."""
        return Health()

    @get(
        "/ready",
        responses=problems(),
        security=SECURED,
        operation_id="server.ready",
        tags=["server"],
    )
    async def ready() -> Ready:
        """Does the store answer?"""
        await asyncio.to_thread(hf.store.journal, limit=1, reverse=True)
        return Ready(store=hf.store.kind, namespace=hf.store.namespace)

    @get(
        "/v1/events",
        media_type="text/event-stream",
        responses=problems(),
        security=SECURED,
        operation_id="log.events",
        tags=["log"],
    )
    async def stream(
        last_event_id: Annotated[
            str | None, HeaderParameter(name="Last-Event-ID", required=False)
        ] = None,
    ) -> Stream:
        """What happens, as server-sent events; after Last-Event-ID, or from now on."""
        if last_event_id is not None:
            # Before the answer begins, so that a wrong one is refused.
            place_of(last_event_id)
        # So that a client is told why, and not only that the stream ends, when the store does not
        # answer.
        await asyncio.to_thread(hf.store.journal, limit=1, reverse=True)
        told = events(hf.store, changes, last_event_id, lambda _: True)
        return Stream(told, media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    return [health, ready, stream]
