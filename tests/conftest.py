"""What tests of every room may ask for."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.stores.postgres_server import Server


@pytest.fixture(scope="session")
def postgres_server() -> "Iterator[Server]":
    """One real PostgreSQL for all the tests of a run, begun by the first that asks."""
    # Here, so that tests that need no database load no driver.
    from tests.stores.postgres_server import running

    with running() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: "Server") -> Iterator[str]:
    """The URL of a new, empty database of that server."""
    url = postgres_server.database()
    yield url
    postgres_server.drop(url)
