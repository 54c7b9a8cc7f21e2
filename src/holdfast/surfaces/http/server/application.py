"""The server of a whole store as one application: every operation under /v1, the page, sessions,
metrics and events.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from litestar import Litestar, get
from litestar.openapi.spec import OpenAPIType, Schema
from litestar.response import Response
from litestar.types import ASGIApp

from holdfast import __version__
from holdfast.kernel.codec import Plain
from holdfast.kernel.store import JOURNAL_TOPIC
from holdfast.operations import all_operations
from holdfast.runtime.connection import Holdfast
from holdfast.runtime.metrics.sources import CONTENT_TYPE, Metrics
from holdfast.surfaces.http.access import AccessGate, served_hosts
from holdfast.surfaces.http.events import Changes, events_route
from holdfast.surfaces.http.http_server import in_url
from holdfast.surfaces.http.openapi import application
from holdfast.surfaces.http.page.routes import page_routes
from holdfast.surfaces.http.problems import PUBLIC_PROBLEMS, SECURED
from holdfast.surfaces.http.server.executor import Executor
from holdfast.surfaces.http.server.routes import SlashesInNames, problems, route_of
from holdfast.surfaces.http.server.sessions import (
    BEGIN_PATH,
    PROOF_PATH,
    Sessions,
    link_to,
    session_routes,
)

_PUBLIC = frozenset({"/health", "/", "/schema", BEGIN_PATH, PROOF_PATH})
_PUBLIC_BELOW = ("/assets/", "/schema/")
"""The same for everybody, and nothing of the store: a browser shows no token when it loads a page.
"""


class Health(Plain, frozen=True, kw_only=True):
    """That the server itself answers. It says nothing of the store."""

    status: str = "ok"
    version: str = __version__


class Ready(Plain, frozen=True, kw_only=True):
    """That the store answers."""

    status: str = "ready"
    store: str
    namespace: str


class ServerSide:
    """The application, and what ends its waits when the server stops.

    `more_hosts` are further values of Host that are served; `ended_file` keeps the sessions that
    were logged out.
    """

    def __init__(
        self,
        hf: Holdfast,
        *,
        token: str,
        host: str,
        port: int,
        more_hosts: Iterable[str] = (),
        ended_file: Path | None = None,
    ) -> None:
        self.url = f"http://{in_url(host)}:{port}"
        self.sessions = Sessions(token, port, ended_file=ended_file)
        self._changes = Changes(hf.store, [JOURNAL_TOPIC])
        self._executor = Executor(hf)
        gate = AccessGate(
            self._litestar(hf),
            token=token,
            hosts=served_hosts(host, port, more_hosts),
            public=_PUBLIC,
            public_below=_PUBLIC_BELOW,
            in_session=self.sessions.lets_in,
        )
        # Around the gate, which must see the path that is routed.
        self.app: ASGIApp = SlashesInNames(gate)

    def new_link(self) -> str:
        """A link for a browser, that can be used once."""
        return link_to(self.url, self.sessions.new_code())

    def end_waits(self) -> None:
        """End all waits. Called on the server's loop."""
        self._changes.end_waits()
        self._executor.end_waits()

    def _litestar(self, hf: Holdfast) -> Litestar:
        events = events_route(
            hf.store,
            self._changes,
            lambda _: True,
            statuses=(429,),
            operation_id="log.events",
            tags=["log"],
        )
        operations = [one for one in all_operations() if one.served]
        app = application(
            [
                *status_routes(hf),
                events,
                *session_routes(self.sessions, self.url),
                *(route_of(one, self._executor) for one in operations),
                *page_routes(hf),
            ],
            self._changes,
            title="Holdfast",
            description="Keeps agents, jobs and shared resources from stepping on each other.",
            close=self._executor.close,
        )
        schemas = app.openapi_schema.components.schemas or {}
        for kind in {one.request for one in operations if one.request.one_of}:
            schemas[kind.__name__].any_of = [
                Schema(required=[name], properties={name: Schema(type=OpenAPIType(json_type))})
                for name, json_type in kind.one_of.items()
            ]
        return app


def status_routes(hf: Holdfast) -> list[Any]:
    """The routes of the server itself: whether it and its store answer, and its metrics."""
    metrics = Metrics(hf, version=__version__)
    secured: dict[str, Any] = {"responses": problems(), "security": SECURED, "tags": ["server"]}

    @get(
        "/health",
        sync_to_thread=False,
        responses=PUBLIC_PROBLEMS,
        operation_id="server.health",
        tags=["server"],
    )
    def health() -> Health:
        """Does the server itself answer? Needs no token."""
        return Health()

    @get("/ready", **secured, operation_id="server.ready")
    async def ready() -> Ready:
        """Does the store answer?"""
        await asyncio.to_thread(hf.store.journal, limit=1, reverse=True)
        return Ready(store=hf.store.kind, namespace=hf.store.namespace)

    @get(
        "/metrics",
        sync_to_thread=True,
        media_type=CONTENT_TYPE,
        **secured,
        operation_id="server.metrics",
    )
    def scrape() -> Response[str]:
        """Counters, gauges and histograms of this store and this machine.

        A part that cannot be read is missing, and `holdfast_metrics_part_up` says so.
        """
        headers = {"Cache-Control": "no-store"}
        return Response(metrics.text(), media_type=CONTENT_TYPE, headers=headers)

    return [health, ready, scrape]
