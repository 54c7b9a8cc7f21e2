"""A registry folder of another program: its records are found by name, and a command removes its
debris, even while other processes publish in it.
"""

import json
import multiprocessing
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.domains.agents.records import id_of
from tests.harness.timeouts import PATIENCE_S
from tests.surfaces.command import CommandLine

pytestmark = pytest.mark.prove

PREFIX = "HOUMAO-"
GPU = id_of(f"{PREFIX}gpu")
HOUR_S = 3600.0
PUBLISH = ("--manifest", "/run/y/manifest.json", "--backend", "claude_headless", "--tool", "claude")


def record(name: str, *, ends_in_s: float = HOUR_S, **more: Any) -> dict[str, Any]:
    """A record of version 2 as the other program writes it."""
    now = datetime.now(UTC).replace(microsecond=0)
    return {
        "schema_version": 2,
        "agent_name": PREFIX + name,
        "agent_id": id_of(PREFIX + name),
        "generation_id": f"g-{name}",
        "published_at": (now - timedelta(days=1)).isoformat(),
        "lease_expires_at": (now + timedelta(seconds=ends_in_s)).isoformat(),
        "identity": {"backend": "claude_headless", "tool": "claude"},
        "runtime": {
            "manifest_path": "/run/x/manifest.json",
            "session_root": "/run/x",
            "agent_def_dir": "/defs",
        },
        "terminal": {"kind": "tmux", "session_name": PREFIX + name},
        "mailbox": {"transport": "filesystem", "address": f"{name}@agents.localhost"},
        **more,
    }


class Tree(CommandLine):
    """`holdfast agents` on such a tree, with its prefix in the configuration."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, TMUX_TMPDIR=str(folder))
        self.live = folder / "registry" / "live_agents"
        self.live.mkdir(parents=True)
        self.configure(f'[agents]\nprefix = "{PREFIX}"\n')
        for name in ("gpu", "cpu"):
            self.write(record(name))

    def configure(self, more: str = "") -> None:
        (self.folder / "holdfast.toml").write_text(f'store = "files:registry"\n{more}')

    def write(self, document: dict[str, Any]) -> None:
        self.put(document["agent_id"], json.dumps(document))

    def put(self, agent_id: str, text: str) -> None:
        (self.live / agent_id).mkdir()
        (self.live / agent_id / "record.json").write_text(text)

    def bare(self, agent_id: str, *, age_s: float) -> None:
        """A folder without a record, made so long ago; in it what a killed publisher left."""
        (self.live / agent_id).mkdir()
        (self.live / agent_id / ".record.json.x7f.tmp").write_text('{"agent_')
        then = time.time() - age_s
        os.utime(self.live / agent_id, (then, then))

    def read(self, agent_id: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.live / agent_id / "record.json").read_text())
        return found

    def picture(self) -> dict[str, bytes | None]:
        """Everything in the tree, links not followed."""
        return {
            str(path.relative_to(self.live)): path.read_bytes()
            if path.is_file() and not path.is_symlink()
            else None
            for path in self.live.rglob("*")
        }

    def cleanup(self, *words: str) -> dict[str, Any]:
        ran = self("agents", "cleanup", *words, "--json")
        assert ran.status == 0, ran.err
        report: dict[str, Any] = json.loads(ran.out)
        return report


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def whys(items: list[dict[str, str]]) -> dict[str, str]:
    return {item["agent_id"]: item["why"] for item in items}


def test_its_records_are_found_under_each_form_of_their_names(tree: Tree) -> None:
    before = tree.picture()
    for asked in ("gpu", "HOUMAO-gpu", "HOLDFAST-gpu", GPU):
        ran = tree("agents", "resolve", asked)
        assert (ran.status, ran.out, ran.err) == (0, f"{GPU}\n", "")
    rows = [row.split("\t")[0] for row in tree("agents", "list").out.splitlines()]
    assert rows == ["HOUMAO-cpu", "HOUMAO-gpu"]
    assert tree.picture() == before
    tree.configure()
    ran = tree("agents", "resolve", "gpu")
    assert (ran.status, ran.out) == (1, ""), "without its prefix the tree has no such name"
    assert tree("agents", "resolve", GPU).out == f"{GPU}\n"


def test_a_publisher_meets_it_and_its_owner_refreshes_and_removes_it(tree: Tree) -> None:
    ran = tree("agents", "publish", "gpu", *PUBLISH)
    assert ran.status == 4 and "g-gpu" in ran.err
    before = tree.read(GPU)
    assert tree("agents", "refresh", "gpu", "--generation", "g-gpu", "--lease", "90000").status == 0
    after = tree.read(GPU)
    assert datetime.fromisoformat(after.pop("lease_expires_at")) > datetime.fromisoformat(
        before.pop("lease_expires_at")
    )
    assert datetime.fromisoformat(after.pop("published_at")) == datetime.fromisoformat(
        before.pop("published_at")
    )
    assert after == before
    assert tree("agents", "remove", "gpu", "--generation", "g-other").status == 4
    assert tree("agents", "remove", "gpu", "--generation", "g-gpu").status == 0
    assert not (tree.live / GPU).exists()
    assert tree("agents", "publish", "gpu", *PUBLISH).status == 0
    assert tree.read(GPU)["agent_name"] == "HOUMAO-gpu"


def test_debris_is_listed_by_a_dry_run_and_then_removed(tree: Tree, tmp_path: Path) -> None:
    long_over, just_over = record("old", ends_in_s=-HOUR_S), record("new", ends_in_s=-5)
    for document in (long_over, just_over, record("naive", published_at="2026-01-01T00:00:00")):
        tree.write(document)
    tree.put("cut", '{"agent_id": "cu')
    tree.put("newer", json.dumps(record("newer", agent_id="newer", schema_version=4)))
    tree.bare("bare", age_s=HOUR_S)
    tree.bare("young", age_s=0)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "record.json").write_text("precious")
    (tree.live / "link").symlink_to(elsewhere)
    goes = {
        long_over["agent_id"]: "expired",
        id_of("HOUMAO-naive"): "damaged",
        "cut": "damaged",
        "bare": "no_record",
    }
    goes |= {"link": "link"}
    stays = {GPU: "fresh", id_of("HOUMAO-cpu"): "fresh", just_over["agent_id"]: "in_grace"}
    stays |= {"young": "in_grace", "newer": "too_new"}

    before = tree.picture()
    report = tree.cleanup("--dry-run")
    assert (whys(report["planned"]), whys(report["preserved"])) == (goes, stays)
    assert report["removed"] == report["failed"] == []
    assert tree.picture() == before

    report = tree.cleanup()
    assert (whys(report["removed"]), whys(report["preserved"])) == (goes, stays)
    assert report["failed"] == []
    assert {path.name for path in tree.live.iterdir()} == set(stays)
    assert (elsewhere / "record.json").read_text() == "precious"
    assert tree.cleanup()["planned"] == []
    logged = [json.loads(line) for line in tree("log", "--json").out.splitlines()]
    assert {
        entry["subject"] for entry in logged if entry["kind"] == "agent.cleaned"
    } == goes.keys() - {"bare", "link"}


@pytest.mark.parametrize("kind", ["folder", "record", "file", "dangling"])
def test_a_link_in_the_place_of_an_agents_folder_is_named_and_cleaned_away_without_its_target(
    tree: Tree, tmp_path: Path, kind: str
) -> None:
    """It kept the id from everybody, and no cleanup took it away."""
    elsewhere, link = tmp_path / "elsewhere", tree.live / id_of(f"{PREFIX}tpu")
    if kind == "file":
        elsewhere.write_text("precious")
    elif kind != "dangling":
        elsewhere.mkdir()
        (elsewhere / ("record.json" if kind == "record" else "precious")).write_text("precious")
    before = sorted(
        (path.name, path.read_bytes())
        for path in elsewhere.parent.rglob("elsewhere*")
        if path.is_file()
    )
    inside = sorted(os.listdir(elsewhere)) if elsewhere.is_dir() else []
    link.symlink_to(elsewhere)
    ran = tree("agents", "publish", "tpu", *PUBLISH)
    assert ran.status == 6 and f"{link} is a symbolic link" in ran.err
    assert whys(tree.cleanup("--dry-run")["planned"]) == {link.name: "link"} and link.is_symlink()
    report = tree.cleanup()
    assert whys(report["removed"]) == {link.name: "link"} and report["failed"] == []
    assert not os.path.lexists(link)
    assert (sorted(os.listdir(elsewhere)) if elsewhere.is_dir() else []) == inside
    assert before == sorted(
        (path.name, path.read_bytes())
        for path in elsewhere.parent.rglob("elsewhere*")
        if path.is_file()
    )
    assert tree("agents", "publish", "tpu", *PUBLISH).status == 0


@contextmanager
def immutable(path: Path) -> Iterator[None]:
    """`chattr +i`: nobody removes, replaces or changes the file, root included."""
    if subprocess.run(["chattr", "+i", str(path)], capture_output=True, check=False).returncode:
        pytest.skip("no chattr +i here: be root, on a file system that has it")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", str(path)], check=True)


@contextmanager
def bound(path: Path) -> Iterator[None]:
    """A file mounted over itself, read-only: its name cannot be removed."""
    if subprocess.run(
        ["mount", "--bind", "-o", "ro", str(path), str(path)], capture_output=True, check=False
    ).returncode:
        pytest.skip("cannot mount here: be root")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.parametrize("fixed", [immutable, bound])
def test_a_record_that_cannot_be_removed_is_reported_as_failed_and_stops_no_other(
    tree: Tree, fixed: Callable[[Path], AbstractContextManager[None]]
) -> None:
    """It was reported as removed, stayed, and blocked every later change."""
    stuck, other = record("stuck", ends_in_s=-HOUR_S), record("other", ends_in_s=-HOUR_S)
    tree.write(stuck)
    tree.write(other)
    path = tree.live / stuck["agent_id"] / "record.json"
    before = path.read_bytes()
    with fixed(path):
        ran = tree("agents", "cleanup", "--json")
        report = json.loads(ran.out)
        assert ran.status == 6
        assert (whys(report["failed"]), whys(report["removed"])) == (
            {stuck["agent_id"]: "expired"},
            {other["agent_id"]: "expired"},
        )
        assert str(path) in report["failed"][0]["detail"]
        assert path.read_bytes() == before and not (tree.live / other["agent_id"]).exists()
        logged = [json.loads(line) for line in tree("log", "--json").out.splitlines()]
        assert [entry["subject"] for entry in logged if entry["kind"] == "agent.cleaned"] == [
            other["agent_id"]
        ]
        # Nor can it be replaced, and the error says so.
        ran = tree("agents", "publish", "stuck", *PUBLISH)
        assert ran.status == 6 and str(path) in ran.err
        assert tree("agents", "publish", "tpu", *PUBLISH).status == 0
        assert path.read_bytes() == before
    assert whys(tree.cleanup()["removed"]) == {stuck["agent_id"]: "expired"} and not path.exists()


def test_a_folder_in_the_place_of_a_record_is_reported_as_failed(tree: Tree) -> None:
    (tree.live / "odd" / "record.json").mkdir(parents=True)
    ran = tree("agents", "cleanup", "--json")
    assert ran.status == 6 and whys(json.loads(ran.out)["failed"]) == {"odd": "damaged"}
    assert (tree.live / "odd" / "record.json").is_dir()


def _publish(task: tuple[str, str]) -> list[str]:
    """Publish, let it lapse and publish again; return what was not there when it must have been."""
    url, name = task
    lost = []
    facts: dict[str, Any] = {
        "backend": "command",
        "tool": "t",
        "manifest_path": "/m.json",
        "take_over": True,
    }
    with holdfast.connect(url) as hf:
        for turn in range(10):
            hf.agents.publish(name, lease_s=0.000_001, **facts)
            live = hf.agents.publish(name, **facts)
            if hf.agents.resolve_live_agent_record(name) != live:
                lost.append(f"{name} in turn {turn}")
    return lost


def test_debris_goes_and_nothing_else_while_processes_publish(tree: Tree) -> None:
    """With no grace time: a publisher between making a folder and filling it is not disturbed."""
    debris = {f"bare-{number}" for number in range(20)} | {f"cut-{number}" for number in range(20)}
    for key in debris:
        if key.startswith("bare"):
            tree.bare(key, age_s=HOUR_S)
        else:
            tree.put(key, "{")
    names = [f"p{number}" for number in range(3)]
    url = f"files:{tree.folder}/registry"
    with multiprocessing.get_context("spawn").Pool(len(names)) as pool:
        publishing = pool.map_async(_publish, [(url, name) for name in names], chunksize=1)
        reports = [tree.cleanup("--grace", "0", "--dry-run")]
        while not publishing.ready() or len(reports) < 3:
            reports.append(tree.cleanup("--grace", "0"))
        lost = publishing.get(PATIENCE_S)
    assert not any(lost), lost
    assert debris <= whys(reports[0]["planned"]).keys()
    assert debris <= {key for report in reports for key in whys(report["removed"])}
    assert not any(report["failed"] for report in reports)
    published = {id_of(f"HOLDFAST-{name}") for name in names}
    assert {path.name for path in tree.live.iterdir()} == {GPU, id_of("HOUMAO-cpu"), *published}
