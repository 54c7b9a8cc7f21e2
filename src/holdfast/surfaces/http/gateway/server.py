"""A gateway's HTTP side as one application."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial

from litestar import Litestar
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme
from litestar.types import ASGIApp

from holdfast import __version__
from holdfast.domains.gateway import Gateway
from holdfast.domains.gateway.proof import proof_of
from holdfast.kernel.limits import HTTP_BODY_BYTES_MAX
from holdfast.kernel.store import JOURNAL_TOPIC
from holdfast.primitives.queue.transaction import topic_of
from holdfast.surfaces.http.access_gate import AccessGate, served_hosts
from holdfast.surfaces.http.changes import Changes
from holdfast.surfaces.http.gateway.routes import Counter, routes
from holdfast.surfaces.http.gateway.shared_commit import SharedCommits
from holdfast.surfaces.http.openapi import say_strict
from holdfast.surfaces.http.problems import HANDLERS
from holdfast.surfaces.http.queries import refuse_unknown_query
from holdfast.surfaces.http.reference import Reference


class GatewaySide:
    """The application, and what ends its waits when the server stops."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        token: str,
        host: str,
        port: int,
        more_hosts: Iterable[str] = (),
        detach: Callable[[], None] = lambda: None,
    ) -> None:
        self._changes = Changes(gateway.queue.store, [JOURNAL_TOPIC, topic_of(gateway.agent)])
        self._accepts = SharedCommits(gateway.accept, lambda: gateway.queue.head().depth)
        prove = partial(proof_of, token, port=port)
        counter = Counter(gateway, self._changes, self._accepts, detach=detach, prove=prove)
        hosts = served_hosts(host, port, more_hosts)
        self.app: ASGIApp = AccessGate(
            self._litestar(counter), token=token, hosts=hosts, public=frozenset({"/health"})
        )

    def end_waits(self) -> None:
        """Let everybody go who only waits. Called on the server's loop."""
        self._changes.end_waits()

    def _litestar(self, counter: Counter) -> ASGIApp:
        app = Litestar(
            routes(counter),
            before_request=refuse_unknown_query,
            exception_handlers=HANDLERS,
            lifespan=[self._alive],
            logging_config=None,
            request_max_body_size=HTTP_BODY_BYTES_MAX,
            openapi_config=OpenAPIConfig(
                title=f"Holdfast gateway of {counter.gateway.agent}",
                version=__version__,
                components=Components(
                    security_schemes={"bearer": SecurityScheme(type="http", scheme="bearer")}
                ),
                use_handler_docstrings=True,
                render_plugins=[Reference()],
            ),
        )
        say_strict(app)
        return app

    @asynccontextmanager
    async def _alive(self, _: Litestar) -> AsyncIterator[None]:
        self._changes.start()
        try:
            yield
        finally:
            self._changes.close()
            self._accepts.close()
