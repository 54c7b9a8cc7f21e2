"""A short soak: everything at once, and some of it killed all the time. `make soak` is the long one."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools.soak.child import Board, Child, told
from tools.soak.parts import PARTS, cast

SECONDS = 8.0
ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_short_soak_shows_no_violation(store: str, request: pytest.FixtureRequest) -> None:
    if store == "postgres":
        # Skips, or fails in CI, where there is no PostgreSQL.
        request.getfixturevalue("postgres_server")
    words = ["--minutes", str(SECONDS / 60), "--seed", "20281", "--store", store, "--share", "0.4", "--pause", "0.3"]
    ran = subprocess.run([sys.executable, "-m", "tools.soak", *words], cwd=ROOT, capture_output=True, text=True, timeout=280)
    print(ran.stdout, ran.stderr)
    assert ran.returncode == 0, ran.stdout
    assert "violations=0" in ran.stdout
    counts = dict(word.split("=") for word in ran.stdout.split() if "=" in word)
    assert int(counts["operations"]) > 50
    assert int(counts["kills"]) > 3


def child(folder: Path, board: Board, name: str) -> Child:
    (folder / "witnesses").mkdir(exist_ok=True)
    return Child("memory:", folder, board, 0, name, 0, 1)


def test_two_that_have_one_thing_are_seen(tmp_path: Path) -> None:
    one, other = (child(tmp_path, Board(1), name) for name in ("one", "other"))
    with one.witness("thing") as alone:
        assert alone
        with other.witness("thing") as too:
            assert not too
        with other.witness("thing", shared=True) as shared:
            assert not shared
    with other.witness("thing") as now:
        assert now


def test_a_token_that_does_not_grow_is_seen(tmp_path: Path) -> None:
    one = child(tmp_path, Board(1), "one")
    for token in (1, 5, 5):
        with one.witness("thing", token=token):
            pass
    [wrong] = told(tmp_path, "violations")
    assert "the tokens of thing do not grow: 5 after 5" in str(wrong["what"])


def test_a_board_counts_for_all_and_each_part_is_played(tmp_path: Path) -> None:
    board = Board(3)
    for slot in (0, 2, 2):
        board.add(slot, "operations")
    assert (board.total("operations"), board.of(2, "operations"), board.total("recoveries")) == (3, 2, 0)
    assert {part.name for part, _ in cast(0.1)} == {part.name for part in PARTS}
