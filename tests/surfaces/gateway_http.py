"""A gateway over real HTTP, in this process, with an agent that does what the test says."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
from msgspec.structs import replace

from holdfast.domains.gateway import DeliveryWorker, Gateway
from holdfast.kernel.store import Store, Tx
from holdfast.primitives.journal import Journal
from holdfast.primitives.queue import Queue
from holdfast.primitives.queue.records import REQUESTS
from holdfast.processes.procfs import Procfs
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.surfaces.http.gateway import GatewaySide
from holdfast.surfaces.http.http_server import HttpServer, bound
from tests.harness.timeouts import PATIENCE_S
from tests.unit.scripted_agent import ScriptedAgent

TOKEN = "t" * 43


class Served:
    """What a test works with."""

    def __init__(self, gateway: Gateway, agent: ScriptedAgent, port: int, store: Store) -> None:
        self.gateway = gateway
        self.agent = agent
        self.store = store
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=PATIENCE_S
        )
        self.detached = threading.Event()

    def prompt(self, text: str = "hello", *, key: str | None = None, **more: Any) -> httpx.Response:
        body = {"schema_version": 1, "kind": "submit_prompt", "payload": {"prompt": text}, **more}
        return self.http.post(
            "/v1/requests", json=body, headers={} if key is None else {"Idempotency-Key": key}
        )

    def ended(self, request_id: str) -> dict[str, Any]:
        end_s = time.monotonic() + PATIENCE_S
        while True:
            # As long as may be asked for at once.
            found: dict[str, Any] = self.http.get(
                f"/v1/requests/{request_id}", params={"wait_s": 25}
            ).json()
            if found["state"] in ("completed", "failed"):
                return found
            assert time.monotonic() < end_s, found


def aged(store: Store, agent: str, request_id: str, days: float = 3) -> None:
    """Let a request have ended some days earlier than it did."""

    def body(tx: Tx) -> None:
        row = tx.get(REQUESTS, f"{agent}/{request_id}")
        assert row is not None and row.record.finished_at is not None
        tx.put(
            REQUESTS,
            row.key,
            replace(row.record, finished_at=row.record.finished_at - timedelta(days=days)),
        )

    store.transact(body, scope=[REQUESTS])


@contextmanager
def served(
    folder: Path,
    agent: ScriptedAgent | None = None,
    *,
    name: str = "gpu",
    depth_max: int = 50,
    work: bool = True,
) -> Iterator[Served]:
    """Serve for the block, and stop gracefully."""
    agent = agent or ScriptedAgent()
    store = SqliteStore(folder / "queue.sqlite", boot_id="boot-1")
    journal = Journal(store, actor="tester")
    gateway = Gateway(Queue(store, journal, name, depth_max=depth_max), journal, agent, Procfs())
    gateway.attach()
    gateway.look()
    worker = DeliveryWorker(gateway, inspect_every_s=0.02)
    listening = bound("127.0.0.1", 0)
    port = listening.getsockname()[1]
    gateway.served_at = ("127.0.0.1", port)
    begun = threading.Event()
    world = Served(gateway, agent, port, store)
    side = GatewaySide(gateway, token=TOKEN, host="127.0.0.1", port=port, detach=world.detached.set)
    server = HttpServer(side.app, on_begun=begun.set, on_stop=side.end_waits)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    assert begun.wait(PATIENCE_S)
    if work:
        worker.start()
    try:
        yield world
    finally:
        world.http.close()
        server.stop()
        thread.join(PATIENCE_S)
        worker.stop(grace_s=0.1)
        gateway.detach()
        store.close()
    assert not thread.is_alive()
