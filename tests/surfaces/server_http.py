"""A server of a whole store over real HTTP, in this process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.http.http_server import HttpServer, bound
from holdfast.surfaces.http.server.application import ServerSide
from tests.harness.timeouts import PATIENCE_S

TOKEN = "t" * 43


class Served:
    """What a test works with."""

    def __init__(self, hf: Holdfast, side: ServerSide, port: int) -> None:
        self.hf = hf
        self.side = side
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=PATIENCE_S
        )


@contextmanager
def served(hf: Holdfast) -> Iterator[Served]:
    """Serve for the block, and stop gracefully."""
    listening = bound("127.0.0.1", 0)
    port = listening.getsockname()[1]
    side = ServerSide(hf, token=TOKEN, host="127.0.0.1", port=port)
    begun = threading.Event()
    server = HttpServer(side.app, on_begun=begun.set, on_stop=side.end_waits)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    assert begun.wait(PATIENCE_S)
    world = Served(hf, side, port)
    try:
        yield world
    finally:
        world.http.close()
        server.stop()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()
