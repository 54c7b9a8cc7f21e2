"""One suite over all stores, and the pinned list of what each skips."""

from pathlib import Path

import pytest

from holdfast.testing.conformance import ALL, CLOCKED, LATCHED, StoreConformance, skipped_by
from tests.stores.harnesses import (
    CardsHarness,
    FilesHarness,
    MemoryHarness,
    SheetHarness,
    SqliteHarness,
)

MEMORY = frozenset({CLOCKED, LATCHED})


class TestMemory(StoreConformance):
    capabilities = MEMORY

    @pytest.fixture
    def harness(self) -> MemoryHarness:
        return MemoryHarness()


class TestSqlite(StoreConformance):
    capabilities = ALL

    @pytest.fixture
    def harness(self, tmp_path: Path) -> SqliteHarness:
        return SqliteHarness(tmp_path)


class TestFiles(StoreConformance):
    capabilities = ALL

    @pytest.fixture
    def harness(self, tmp_path: Path) -> FilesHarness:
        return FilesHarness(tmp_path)


class TestFilesInOne(StoreConformance):
    capabilities = ALL

    @pytest.fixture
    def harness(self, tmp_path: Path) -> SheetHarness:
        return SheetHarness(tmp_path)


class TestFilesForEach(StoreConformance):
    capabilities = ALL

    @pytest.fixture
    def harness(self, tmp_path: Path) -> CardsHarness:
        return CardsHarness(tmp_path)


def test_the_skips_of_each_store_are_pinned() -> None:
    assert skipped_by(ALL) == []
    assert skipped_by(MEMORY) == [
        "test_a_killed_process_leaves_all_or_nothing_and_no_one_waiting",
        "test_a_notice_reaches_another_process",
        "test_a_store_works_on_after_fork_in_parent_and_child",
        "test_an_address_reaches_its_listener_from_another_process",
        "test_an_older_program_refuses_a_newer_store",
        "test_an_older_record_is_upgraded_and_indexed_anew",
        "test_processes_lose_no_update",
        "test_processes_take_each_record_once",
        "test_records_outlive_the_store_object",
    ]
