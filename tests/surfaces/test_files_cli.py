"""The command line on a files store: the same commands, and a way out of every trouble."""

import json
from pathlib import Path

import pytest

from holdfast.kernel.errors import InvalidValue
from holdfast.runtime.connection import connect
from tests.surfaces.command import CommandLine


@pytest.fixture
def holdfast(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path, HOLDFAST_STORE=f"files:{tmp_path}/state")


def _register(holdfast: CommandLine, prompt: str) -> str:
    done = holdfast(
        "jobs",
        "register",
        "--prompt",
        prompt,
        "--agent",
        "a",
        "--agent-session",
        "tmux:a",
        "--json",
    )
    assert done.status == 0, done.err
    return str(json.loads(done.out)["job_id"])


def test_looking_makes_nothing(holdfast: CommandLine, tmp_path: Path) -> None:
    assert holdfast("jobs", "list").status == 0
    assert holdfast("store", "check").status == 1
    assert not (tmp_path / "state").exists()


def test_a_store_is_shown_checked_saved_and_brought_back(
    holdfast: CommandLine, tmp_path: Path
) -> None:
    first = _register(holdfast, "one")
    facts = json.loads(holdfast("store", "info", "--json").out)
    assert facts["store"] == f"files:{tmp_path}/state" and facts["chosen_by"] == "HOLDFAST_STORE"
    assert holdfast("store", "check").out == "sound\n"
    assert holdfast("store", "backup", "saved").status == 0
    second = _register(holdfast, "two")
    done = holdfast("store", "restore", "saved", "--yes")
    assert done.status == 0, done.err
    assert [job["job_id"] for job in json.loads(holdfast("jobs", "list", "--json").out)] == [first]
    assert holdfast("jobs", "get", "--job", second).status == 1


def test_a_damaged_inner_store_is_found_and_restored(holdfast: CommandLine, tmp_path: Path) -> None:
    job = _register(holdfast, "one")
    assert holdfast("store", "backup", "saved").status == 0
    inner = tmp_path / "state" / ".holdfast" / "store.sqlite"
    later = _register(holdfast, "two")
    inner.write_bytes(b"garbage" * 2000)
    assert holdfast("jobs", "list").status == 7
    assert holdfast("store", "check").status == 7
    done = holdfast("store", "restore", "saved", "--yes")
    assert done.status == 0, done.err
    assert [found["job_id"] for found in json.loads(holdfast("jobs", "list", "--json").out)] == [
        job
    ]
    [damaged] = inner.parent.glob("store.sqlite.replaced-*Z")
    assert damaged.read_bytes() == b"garbage" * 2000
    assert f"is saved in {damaged}" in done.out
    # Its files were newer than the backup, and are replaced too.
    files = damaged.with_name(f"{damaged.name}-files") / "default" / "jobs"
    assert sorted(path.name for path in files.glob("*.json")) == sorted(
        [f"{job}.json", f"{later}.json"]
    )


def test_a_record_is_taken_out(holdfast: CommandLine) -> None:
    job = _register(holdfast, "one")
    done = holdfast("store", "remove", "jobs", job)
    assert done.status == 0, done.err
    assert json.loads(holdfast("jobs", "list", "--json").out) == []
    assert holdfast("store", "remove", "jobs", job).status == 1


def test_settings_of_files_are_taken_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text('store = "files:state"\n[files]\nretry_attempts = 0\n')
    holdfast = CommandLine(tmp_path)
    done = holdfast("jobs", "list")
    assert done.status == 2 and "retry_attempts" in done.err
    (tmp_path / "holdfast.toml").write_text(
        'store = "files:state"\n[files]\nretry_attempts = 2\n[files.folders]\njobs = "elsewhere"\n'
    )
    assert holdfast("jobs", "list").status == 0
    assert json.loads(holdfast("store", "info", "--json").out)["store"] == f"files:{tmp_path}/state"


def test_folders_are_for_a_files_store(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="plain files"):
        connect(f"sqlite:{tmp_path}/s.sqlite", folders={"jobs": "."})
    with connect(f"files:{tmp_path}/state", folders={"jobs": "."}) as hf:
        assert hf.store.kind == "files"
