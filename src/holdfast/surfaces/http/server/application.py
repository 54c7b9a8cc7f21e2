"""The server of a whole store as one application."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from litestar import Litestar
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import Components, OpenAPIType, SecurityScheme
from litestar.types import ASGIApp

from holdfast import __version__
from holdfast.kernel.limits import HTTP_BODY_BYTES_MAX
from holdfast.kernel.store import JOURNAL_TOPIC
from holdfast.operations import all_operations
from holdfast.operations.holds import TakeHold
from holdfast.operations.locks import Acquire
from holdfast.operations.network import LockRouters
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.http.access_gate import AccessGate, served_hosts
from holdfast.surfaces.http.changes import Changes
from holdfast.surfaces.http.metrics import metrics_routes
from holdfast.surfaces.http.openapi import say_one_of, say_strict
from holdfast.surfaces.http.page import page_routes
from holdfast.surfaces.http.problems import HANDLERS
from holdfast.surfaces.http.queries import refuse_unknown_query
from holdfast.surfaces.http.reference import Reference
from holdfast.surfaces.http.server.executor import Executor
from holdfast.surfaces.http.server.path_names import PathNames
from holdfast.surfaces.http.server.routes import route_of
from holdfast.surfaces.http.server.sessions import (
    BEGIN_PATH,
    PROOF_PATH,
    Sessions,
    link_to,
    session_routes,
)
from holdfast.surfaces.http.server.status_routes import status_routes

_ENDED_BY_SOMETHING = (Acquire.__name__, LockRouters.__name__, TakeHold.__name__)
"""Claims that need one of `ttl_s` and `pid`."""

_PUBLIC = frozenset({"/health", "/", "/schema", BEGIN_PATH, PROOF_PATH})
_PUBLIC_BELOW = ("/assets/", "/schema/")
"""What is the same for everybody: no file of the page and no line of the reference says anything of
the store. A browser shows no token when it loads a page.
"""


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
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{port}"
        self.sessions = Sessions(token, port, ended_file=ended_file)
        self._changes = Changes(hf.store, [JOURNAL_TOPIC])
        self._executor = Executor(hf)
        gate = AccessGate(
            self._litestar(self._routes(hf)),
            token=token,
            hosts=served_hosts(host, port, more_hosts),
            public=_PUBLIC,
            public_below=_PUBLIC_BELOW,
            in_session=self.sessions.lets_in,
        )
        # Around the gate, which must see the path that is routed.
        self.app: ASGIApp = PathNames(gate)

    def new_link(self) -> str:
        """A link for a browser, that can be used once."""
        return link_to(self.url, self.sessions.new_code())

    def end_waits(self) -> None:
        """Let everybody go who only waits. Called on the server's loop."""
        self._changes.end_waits()
        self._executor.end_waits()

    def _routes(self, hf: Holdfast) -> list[Any]:
        """All that is served: each part brings its own."""
        return [
            *status_routes(hf, self._changes),
            *session_routes(self.sessions, self.url),
            *(route_of(operation, self._executor) for operation in all_operations()),
            *page_routes(hf),
            *metrics_routes(hf),
        ]

    def _litestar(self, routes: list[Any]) -> ASGIApp:
        app = Litestar(
            routes,
            before_request=refuse_unknown_query,
            exception_handlers=HANDLERS,
            lifespan=[self._alive],
            logging_config=None,
            request_max_body_size=HTTP_BODY_BYTES_MAX,
            openapi_config=OpenAPIConfig(
                title="Holdfast",
                version=__version__,
                description="Keeps agents, jobs and shared resources from stepping on each other.",
                components=Components(
                    security_schemes={"bearer": SecurityScheme(type="http", scheme="bearer")}
                ),
                use_handler_docstrings=True,
                render_plugins=[Reference()],
            ),
        )
        say_strict(app)
        say_one_of(
            app, _ENDED_BY_SOMETHING, {"ttl_s": OpenAPIType.NUMBER, "pid": OpenAPIType.INTEGER}
        )
        return app

    @asynccontextmanager
    async def _alive(self, _: Litestar) -> AsyncIterator[None]:
        self._changes.start()
        try:
            yield
        finally:
            self._changes.close()
            self._executor.close()
