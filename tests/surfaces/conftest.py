"""What tests of the surfaces may ask for."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.surfaces.locking import Bench, bench


@pytest.fixture
def locks(tmp_path: Path) -> Iterator[Bench]:
    """`holdfast` on a store of its own, for commands under locks."""
    with bench(tmp_path) as made:
        yield made
