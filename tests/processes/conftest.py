"""The stores that custody is shown on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.trees import bench_on
from tests.surfaces.locking import Bench


@pytest.fixture(params=["sqlite", "files", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new, empty store."""
    if request.param == "postgres":
        found: str = request.getfixturevalue("postgres_url")
        return found
    return f"{request.param}:{tmp_path}/state/store"


@pytest.fixture
def bench(url: str, tmp_path: Path) -> Iterator[Bench]:
    """`holdfast` on that store."""
    with bench_on(url, tmp_path) as made:
        yield made
