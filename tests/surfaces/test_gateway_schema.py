"""What the gateway's OpenAPI says is what it does: schemathesis asks for everything, rightly and wrongly."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from tests.surfaces.gateway_http import TOKEN, served

pytestmark = pytest.mark.slow

AUTHORISED = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    with served(Path(tmp_path_factory.mktemp("described")), depth_max=100_000, work=False) as gate:
        schema = schemathesis.openapi.from_url(f"{gate.url}/schema/openapi.json", headers=AUTHORISED)
        # Events never end.
        yield schema.exclude(path="/v1/events")


schema = schemathesis.pytest.from_fixture("described")


@schema.parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_answer_is_one_that_the_schema_tells_of(case: schemathesis.Case) -> None:
    case.call_and_validate(headers=AUTHORISED)
