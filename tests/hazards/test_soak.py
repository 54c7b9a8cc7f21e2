"""A short soak: everything at once, and some of it killed all the time. `make soak` is the long
one.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.kernel.errors import Unavailable
from proof.soak import supervisor, tree_process
from proof.soak.calls import Answer, Unheard, to_be_repeated
from proof.soak.child import Board, Child, read_log
from proof.soak.outcome import COLUMNS, Plan, Tally
from proof.soak.parts import PARTS, cast
from proof.soak.tree_process import overlaps
from tests.harness.timeouts import until
from tests.surfaces import broker

SECONDS = (8.0, 40.0)
"""How long a soak lasts; the second, where the machine was too busy for enough to happen in the
first.
"""
FAULT_SECONDS = (3.0, 15.0, 45.0)
ROOT = Path(__file__).parent.parent.parent


class Soaked(NamedTuple):
    """What a soak printed: its status, its counts in all, and those of each kind."""

    status: int
    said: str

    @property
    def counts(self) -> dict[str, int]:
        return {
            name: int(count)
            for word in self.said.split()
            if "=" in word
            for name, count in [word.split("=")]
            if count.isdigit()
        }

    @property
    def kinds(self) -> dict[str, dict[str, int]]:
        rows = [line.split() for line in self.said.splitlines() if line.startswith("  ")]
        return {
            kind: dict(zip(COLUMNS, map(int, counts), strict=True)) for kind, *counts in rows[1:]
        }


def soaked(store: str, seconds: float, *words: str) -> Soaked:
    command = [
        sys.executable,
        "-m",
        "proof.soak",
        "--minutes",
        str(seconds / 60),
        "--seed",
        "20281",
        "--store",
        store,
        *words,
    ]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    print(ran.stdout, ran.stderr)
    return Soaked(ran.returncode, ran.stdout)


@pytest.mark.prove
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_short_soak_shows_no_violation(store: str, request: pytest.FixtureRequest) -> None:
    # Skip here, or fail in CI, where a program is missing: the soak itself cannot skip.
    broker.program()
    if store == "postgres":
        request.getfixturevalue("postgres_server")
    beside = {"broker", "gateway", "server", *(["database"] if store == "postgres" else [])}
    for seconds in SECONDS:
        done = soaked(store, seconds, "--share", "0.4", "--pause", "0.3")
        assert (done.status, done.counts["violations"]) == (0, 0), done.said
        assert set(done.kinds) == {part.name for part in PARTS} | beside
        # Each was killed, and came to serve again before the end.
        least = min(
            done.kinds[kind][what]
            for kind in beside
            for what in ("kills", "restarts", "recoveries")
        )
        if least >= 1 and done.counts["operations"] > 50:
            break
    else:
        raise AssertionError(done.said)
    # Trees were killed, and their claims passed on: a tree that began had a witness.
    assert all(
        done.kinds[kind]["kills"] >= 1 and done.kinds[kind]["operations"] >= 1
        for kind in ("lock_tree", "job_tree")
    )
    assert sum(counts["kills"] for counts in done.kinds.values()) == done.counts["kills"]


@pytest.mark.prove
@pytest.mark.parametrize(
    ("fault", "parts", "found"),
    [
        # By a witness: two have one thing.
        ("unseen_holder", ["locker"], "is held by another too"),
        # By a worker that lives, or the witness of the next one.
        (
            "live_worker_judged_dead",
            ["producer", "worker"],
            "a worker that lives lost|was claimed twice",
        ),
        # By the last look: what was killed is not cleared.
        ("kept_holds", ["counter"], "holds of dead processes are left"),
        # By the last look: the journal does not tell what the records show.
        ("missing_journal", ["counter"], "the journal has holds that do not exist"),
        # By the final check, from a server's answer: its clients know of a job that does not exist.
        ("lost_job", ["caller", "worker"], "a registered job is lost: caller"),
        # By the first process of a tree: one of the tree before it lives.
        ("no_tree", ["lock_tree"], "two trees have tree-"),
    ],
)
def test_a_planted_fault_is_found(fault: str, parts: list[str], found: str) -> None:
    words = [word for part in parts for word in ("--part", part)]
    # A tree takes long to start, and longer if what starts it is killed all the time. A soak ends
    # once it finds a fault.
    lengths, pause = (FAULT_SECONDS[1:], "2") if fault == "no_tree" else (FAULT_SECONDS, "0.3")
    soaks = (
        soaked("sqlite", seconds, "--plant", fault, "--pause", pause, *words) for seconds in lengths
    )
    done = next((soak for soak in soaks if soak.status), None)
    assert done is not None and done.status == 1 and done.counts["violations"] >= 1
    assert re.search(found, done.said), done.said
    [left] = re.findall("its files are in (.*)", done.said)
    # Trees of a planted fault may still be writing there as they end.
    until(lambda: _is_removed(left))


def _is_removed(folder: str) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    return not Path(folder).exists()


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


def test_a_process_that_works_after_the_next_tree_began_is_seen() -> None:
    in_order = ["first 1-7 1 7", "works 1-7 2 8", "first 3-9 3 9", "works 3-9 3 9"]
    assert overlaps(in_order) == []
    assert overlaps([*in_order, "works 1-7 2 8"]) == [
        "process 2 of tree 1-7 worked after tree 3-9 had begun"
    ]


def test_a_tree_that_begins_while_another_lives_is_seen(tmp_path: Path) -> None:
    (tmp_path / "trees").mkdir()
    words = [
        sys.executable,
        "-I",
        "-S",
        tree_process.__file__,
        str(tmp_path / "trees" / "claim"),
        "first",
        "0",
    ]
    assert subprocess.run(words).returncode == 0
    assert read_log(tmp_path, "violations") == []
    with subprocess.Popen([*words[:-1], "600"]) as other:
        try:
            until(lambda: f" {other.pid} " in (tmp_path / "trees" / "claim").read_text())
            assert subprocess.run(words).returncode == 0
        finally:
            other.kill()
    [wrong] = read_log(tmp_path, "violations")
    assert f"process {other.pid} of" in str(wrong["what"])
    assert subprocess.run(words).returncode == 0
    assert len(read_log(tmp_path, "violations")) == 1


def test_a_token_that_does_not_grow_is_seen(tmp_path: Path) -> None:
    one = child(tmp_path, Board(1), "one")
    for token in (1, 5, 5):
        with one.witness("thing", token=token):
            pass
    [wrong] = read_log(tmp_path, "violations")
    assert "the tokens of thing do not grow: 5 after 5" in str(wrong["what"])


@pytest.mark.parametrize("killed", [True, False])
def test_one_that_was_killed_before_a_soak_ran_dry_did_not_end_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    monkeypatch.setattr(supervisor, "hurry", lambda: None)
    soak = supervisor.Supervisor(Plan("sqlite", 1, 1, parts=("locker",), share=0.01), tmp_path)
    with subprocess.Popen(["sleep", "600"]) as process:
        [slot] = soak._slots[:1]
        soak._slots = [slot]
        slot.pid = process.pid
        slot.kill()
        slot.killed = killed
        soak._run_dry([])
        process.returncode = 0
    assert soak._violations() == ([] if killed else [f"supervisor-0: {slot.name} ended with -9"])


def test_nobody_waits_for_ever_for_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proof.soak.child.CONNECT_S", 0.15)
    asks = Child("postgresql://nobody@127.0.0.1:1/none", tmp_path, Board(1), 0, "one", 0, 0)
    with pytest.raises(Unavailable):
        asks.connect()


def test_a_board_counts_for_all_and_each_part_is_played(tmp_path: Path) -> None:
    board = Board(3)
    for slot in (0, 2, 2):
        board.add(slot, "operations")
    assert (board.total("operations"), board.of(2, "operations"), board.total("recoveries")) == (
        3,
        2,
        0,
    )
    assert {part.name for part, _ in cast(0.1)} == {part.name for part in PARTS}
    assert {part.name for part, _ in cast(0.1, ["locker", "watcher"])} == {"locker", "watcher"}


def test_a_tally_counts_the_events_of_each_kind() -> None:
    tally = Tally()
    for kind, what in [("server", "kills"), ("server", "restarts"), ("worker", "kills")]:
        tally.add(kind, what)
    assert (tally.total("kills"), tally.of("server", "kills"), tally.of("worker", "restarts")) == (
        2,
        1,
        0,
    )
    head, server, worker = (line.split() for line in str(tally).splitlines())
    assert (
        tuple(head) == COLUMNS
        and server == ["server", "0", "0", "1", "0", "0", "1", "0"]
        and worker[3] == "1"
    )


@pytest.mark.parametrize(
    ("status", "fields", "again"),
    [
        (200, {}, False),
        (409, {}, False),
        # It timed out waiting for a lock, and that is the answer.
        (504, {"by": "somebody"}, False),
        (504, {"outcome": "none"}, True),
        (503, {"outcome": "none"}, True),
        (429, {}, True),
    ],
)
def test_a_client_asks_again_only_where_nothing_was_done(
    status: int, fields: dict[str, str], again: bool
) -> None:
    assert to_be_repeated(Answer(status, {"fields": fields})) is again
    with pytest.raises(Unheard):
        to_be_repeated(Answer(503, {"fields": {"outcome": "unknown"}}))
