"""`GET /metrics`, as Prometheus scrapes it."""

from typing import Any

from litestar import get
from litestar.response import Response

from holdfast import __version__
from holdfast.runtime.connection import Holdfast
from holdfast.runtime.metrics.sources import metrics_of
from holdfast.runtime.metrics.text import CONTENT_TYPE
from holdfast.surfaces.http.server.routes import SECURED, problems


def metrics_routes(hf: Holdfast) -> list[Any]:
    """The route. The store of the connection is timed from here on."""
    metrics = metrics_of(hf, version=__version__)

    @get(
        "/metrics",
        sync_to_thread=True,
        media_type=CONTENT_TYPE,
        responses=problems(),
        security=SECURED,
        operation_id="server.metrics",
        tags=["server"],
    )
    def scrape() -> Response[str]:
        """Counters, gauges and histograms of this store and this machine.

        A part that cannot be read is missing, and `holdfast_metrics_part_up` says so.
        """
        return Response(
            metrics.text(), media_type=CONTENT_TYPE, headers={"Cache-Control": "no-store"}
        )

    return [scrape]
