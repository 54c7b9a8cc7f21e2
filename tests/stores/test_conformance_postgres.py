"""The shipped suite over PostgreSQL, and the pinned list of what it skips."""

import pytest

from holdfast.testing.conformance import StoreConformance, skipped_by
from tests.stores.harnesses_postgres import POSTGRES, PostgresHarness, be_patient

pytestmark = pytest.mark.prove


class TestPostgres(StoreConformance):
    capabilities = POSTGRES

    @pytest.fixture
    def harness(self, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> PostgresHarness:
        be_patient(monkeypatch)
        return PostgresHarness(postgres_url)


def test_the_skips_are_pinned() -> None:
    assert skipped_by(POSTGRES) == [
        "test_now_is_the_passed_clock",
        "test_trim_keeps_what_is_asked_and_the_newest",
    ]
