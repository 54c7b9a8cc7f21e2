"""What users see is what the snapshots say; the package says what a difference means."""

from pathlib import Path

import pytest

from tests.frozen import interface, layout, programs, scenario
from tests.frozen.snapshots import check, frozen


def test_openapi(tmp_path: Path) -> None:
    check(interface.openapi(tmp_path))


def test_commands() -> None:
    check(interface.commands())


def test_help() -> None:
    check(interface.help_texts())


def test_mcp(tmp_path: Path) -> None:
    check(interface.mcp(tmp_path))


def test_statuses() -> None:
    check(interface.statuses())


def test_python_names() -> None:
    check(interface.python_names())


def test_answers_on_sqlite(tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite"
    seen = scenario.play(f"sqlite:{store}", tmp_path)
    made = {"metrics.txt": seen.metrics, "layout.sqlite.txt": layout.sqlite_schema(store)}
    check({**scenario.texts(seen.answers), **made}, folder="answers")


def test_answers_on_files(tmp_path: Path) -> None:
    seen = scenario.play(f"files:{tmp_path}/store", tmp_path)
    usual = {name: frozen(name) for name in scenario.texts(seen.answers)}
    made = {
        "layout.files.txt": layout.tree(
            tmp_path / "store", leave_out=("parity-http", "job_logs.parity-http")
        )
    }
    check({"answers.files.txt": scenario.differing(seen.answers, usual), **made})


def test_layout_on_postgres(postgres_url: str) -> None:
    check({"layout.postgres.txt": layout.postgres_schema(postgres_url)})


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_programs(tmp_path: Path, kind: str) -> None:
    check(programs.play(kind, tmp_path))
