"""The harness of the PostgreSQL store. It is sent to other processes, so it is nothing but a URL."""

import psycopg

from holdfast.kernel.store import Store
from holdfast.stores.postgres import open_postgres
from holdfast.testing.clock import ManualClock


class PostgresHarness:
    def __init__(self, url: str) -> None:
        self.clock = ManualClock()
        self.url = url

    def open(self, *, namespace: str = "default") -> Store:
        return open_postgres(self.url, namespace)

    def damage(self, space: str, key: str, data: bytes) -> None:
        with psycopg.connect(self.url) as connection:
            connection.execute(f"UPDATE holdfast.s_{space} SET value = %s WHERE key = %s".encode(), (data.decode(), key))
