"""A workflow folder of another system is adopted in place and shared under its locks."""

import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.kernel.errors import EAgain, LockTimeout, NotLoaded
from holdfast.kernel.holder import Holder
from holdfast.processes.procfs import Procfs
from holdfast.runtime.connection import Holdfast
from holdfast.stores.files.store import FilesStore
from tests.harness.timeouts import NEVER_S
from tests.surfaces.command import CommandLine

LOCKER = (
    "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); print('mine', "
    "flush=True); sys.stdin.read()"
)


class Locker:
    """Another system's process, which has a lock of the folder until it ends."""

    def __init__(self, path: Path) -> None:
        words = [sys.executable, "-c", LOCKER, str(path)]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None and self._process.stdout.readline() == "mine\n"
        self.pid = self._process.pid

    @property
    def start_ns(self) -> int:
        return Procfs().of(self.pid).start_ticks * 10_000_000

    def end(self) -> None:
        self._process.communicate()


@contextmanager
def locked(path: Path) -> Iterator[Locker]:
    locker = Locker(path)
    try:
        yield locker
    finally:
        locker.end()


def moment() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def entry(name: str, recipe: str, pid: int, start_ns: int, **more: Any) -> dict[str, Any]:
    """A workflow as the other system writes it."""
    times = {"started_at": moment(), "last_renewed_at": moment(), "ttl_seconds": 600}
    return {
        "name": name,
        "recipe": recipe,
        "owner_pid": pid,
        "owner_start_ns": start_ns,
        **times,
        **more,
    }


def written(folder: Path, *workflows: dict[str, Any], **parts: Any) -> Path:
    """A file of the other system, with nothing of ours in it."""
    path = folder / "workflows.json"
    folder.mkdir(exist_ok=True)
    path.write_text(json.dumps({"workflows": list(workflows), **parts}))
    return path


def shown(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text())
    assert isinstance(found, dict)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def mine() -> tuple[int, int]:
    """This process as the other system writes one."""
    return os.getpid(), Procfs().current().start_ticks * 10_000_000


@contextmanager
def connected(folder: Path) -> Iterator[Holdfast]:
    with holdfast.connect(f"files:{folder}") as hf:
        yield hf


def test_a_folder_of_the_other_system_is_adopted_worked_and_keeps_its_fields(
    folder: Path, mine: tuple[int, int]
) -> None:
    path = written(
        folder,
        entry("train", "llama", *mine, gpu=0, notes={"who": "ops"}),
        entry("gone", "llama", 4_194_304, 10_000_000),
        swap_in_progress=None,
        version=3,
    )
    with connected(folder) as hf:
        assert [workflow.name for workflow in hf.workflows.list_workflows()] == ["train"]
        train = hf.workflows.get("train")
        assert (train.recipe, train.owner.pid, train.ttl_seconds) == ("llama", mine[0], 600)
        hf.workflows.renew("train", train.token)
        hf.workflows.register("eval", "llama")
        with hf.workflows.swap("llama"):
            during = shown(path)["swap_in_progress"]
            assert (during["target_recipe"], during["holder_pid"], during["holder_start_ns"]) == (
                "llama",
                *mine,
            )
    after = shown(path)
    assert after["version"] == 3 and after["swap_in_progress"] is None
    assert after["current_recipe"]["recipe"] == "llama"
    found = {workflow["name"]: workflow for workflow in after["workflows"]}
    assert sorted(found) == ["eval", "train"]
    assert (found["train"]["gpu"], found["train"]["notes"]) == (0, {"who": "ops"})
    assert (found["train"]["owner_pid"], found["train"]["owner_start_ns"]) == mine
    log = [
        json.loads(line)["event"] for line in (folder / "swap_log.jsonl").read_text().splitlines()
    ]
    assert log == ["swap_started", "swap_completed"]


@pytest.mark.prove
def test_the_commands_work_on_such_a_folder(
    folder: Path, mine: tuple[int, int], tmp_path: Path
) -> None:
    path = written(folder, entry("train", "llama", *mine, gpu=0))
    command = CommandLine(tmp_path, HOLDFAST_STORE=f"files:{folder}")
    assert [flow["name"] for flow in json.loads(command("workflows", "list", "--json").out)] == [
        "train"
    ]
    refused = command("swap", "to", "qwen", "--policy", "refuse", "--", "true")
    assert refused.status == 4 and f"workflow train (llama, process {mine[0]})" in refused.err
    assert command("workflows", "release", "train", "--token", "0").status == 0
    assert command("swap", "to", "qwen", "--", "true").status == 0
    assert (shown(path)["workflows"], shown(path)["current_recipe"]["recipe"]) == ([], "qwen")
    assert command("store", "check").out == "sound\n"


def test_while_the_other_system_has_its_lock_we_wait_and_say_so_when_it_takes_too_long(
    folder: Path, mine: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(folder, entry("train", "llama", *mine))
    before = path.read_bytes()
    defaults = FilesStore.transact.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "timeout_s", 0.2)
    with connected(folder) as hf, locked(folder / ".workflows.lock") as other:
        with pytest.raises(LockTimeout) as timed_out:
            hf.workflows.register("eval", "llama")
        assert timed_out.value.fields["resource"] == str(folder / ".workflows.lock")
        assert (timed_out.value.fields["holder_pid"], timed_out.value.fields["outcome"]) == (
            other.pid,
            "none",
        )
        assert path.read_bytes() == before
        # To look takes no lock.
        assert hf.workflows.get("train").recipe == "llama"
        other.end()
        assert hf.workflows.register("eval", "llama").workflow.name == "eval"


def test_our_change_takes_the_other_systems_lock(folder: Path, mine: tuple[int, int]) -> None:
    written(folder, entry("train", "llama", *mine))
    with connected(folder) as hf, open(folder / ".workflows.lock", "a") as other:
        seen: list[bool] = []

        def look(_: object) -> None:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                seen.append(True)
            else:
                seen.append(False)
                fcntl.flock(other, fcntl.LOCK_UN)

        hf.workflows._context.change(look)
        look(None)
    assert seen == [True, False]


def test_a_swap_of_the_other_system_counts_while_its_process_lives_with_the_lock(
    folder: Path, mine: tuple[int, int]
) -> None:
    with_lock = folder / ".swap.lock"
    folder.mkdir()
    with locked(with_lock) as other:
        marker = {
            "target_recipe": "qwen",
            "holder_pid": other.pid,
            "holder_start_ns": other.start_ns,
            "begun_at": moment(),
        }
        path = written(
            folder, entry("train", "qwen", *mine), swap_in_progress={**marker, "host": "gpu-1"}
        )
        with connected(folder) as hf:
            live, cleared = hf.workflows.reconcile_swap_marker()
            assert (
                live is not None
                and (live.recipe, live.holder.pid) == ("qwen", other.pid)
                and cleared is None
            )
            with pytest.raises(EAgain, match=f"a swap to qwen by process {other.pid} is under way"):
                hf.workflows.register("eval", "llama")
            assert hf.workflows.register("eval", "qwen").workflow.recipe == "qwen"
            with pytest.raises(LockTimeout, match=f"process {other.pid}"):
                hf.workflows.swap("qwen", timeout_s=0).__enter__()
            assert shown(path)["swap_in_progress"]["host"] == "gpu-1"
            other.end()
            live, cleared = hf.workflows.reconcile_swap_marker()
            assert live is None and cleared is not None and cleared.holder.pid == other.pid
            assert shown(path)["swap_in_progress"] is None
            log = [
                json.loads(line)["event"]
                for line in (folder / "swap_log.jsonl").read_text().splitlines()
            ]
            assert log == ["swap_refused", "orphan_marker_cleared"]


@pytest.mark.parametrize("left", ["the lock", "the process"])
def test_a_marker_of_the_other_system_without_its_lock_or_its_process_is_cleared(
    folder: Path, mine: tuple[int, int], left: str
) -> None:
    """Neither a lock that another process holds nor a process that released it keeps a dead swap's
    marker alive.
    """
    pid, start_ns = mine if left == "the process" else (4_194_304, 10_000_000)
    marker = {
        "target_recipe": "qwen",
        "holder_pid": pid,
        "holder_start_ns": start_ns,
        "begun_at": moment(),
    }
    path = written(folder, swap_in_progress=marker)
    with (
        locked(folder / (".swap.lock" if left == "the lock" else "elsewhere")),
        connected(folder) as hf,
    ):
        assert hf.workflows.register("eval", "llama").workflow.name == "eval"
        assert shown(path)["swap_in_progress"] is None
        # Its progress is unknown, so it may have begun to load.
        assert shown(path)["unknown_recipe"]["recipe"] == "qwen"


@pytest.mark.usefixtures("no_second_look")
def test_a_swap_that_waits_for_the_other_systems_goes_on_at_once_when_that_is_killed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before it can be watched, or while it is: nobody has to look again by itself."""
    folder.mkdir()
    death = Procfs.death
    for watched in (False, True):
        with locked(folder / ".swap.lock") as other:
            marker = {
                "target_recipe": "qwen",
                "holder_pid": other.pid,
                "holder_start_ns": other.start_ns,
                "begun_at": moment(),
            }
            written(folder, swap_in_progress=marker)

            def in_the_way(_: object, other: Locker = other, watched: bool = watched) -> None:
                if not watched:
                    other.end()

            def killed_when_watched(
                processes: Procfs, holder: Holder, other: Locker = other
            ) -> int | None:
                fd = death(processes, holder)
                threading.Thread(target=other.end).start()
                return fd

            monkeypatch.setattr(Procfs, "death", killed_when_watched if watched else death)
            with (
                connected(folder) as hf,
                hf.workflows.swap("llama", timeout_s=NEVER_S, on_wait=in_the_way),
            ):
                log = hf.workflows.swap_log()
            assert [event.event for event in log][-2:] == ["orphan_marker_cleared", "swap_started"]


@pytest.mark.parametrize("later", ["the recipe", "the failed load"])
def test_a_recipe_that_the_other_system_writes_beside_a_failed_load_counts_if_it_is_later(
    folder: Path, later: str
) -> None:
    """It was both: `swap status` said unknown, and work with that recipe began."""
    with connected(folder) as hf:
        with pytest.raises(ZeroDivisionError), hf.workflows.swap("qwen"):
            raise ZeroDivisionError
        path = folder / "workflows.json"
        document = shown(path)
        at = moment() if later == "the recipe" else "2001-01-01T00:00:00Z"
        path.write_text(
            json.dumps({**document, "current_recipe": {"recipe": "llama", "loaded_at": at}})
        )
        found = hf.workflows.swap_status()
        if later == "the recipe":
            assert (
                found.current is not None
                and found.current.recipe == "llama"
                and found.unknown is None
            )
            assert (
                hf.workflows.register("eval", "llama", loaded_only=True).workflow.recipe == "llama"
            )
        else:
            assert (
                found.current is None
                and found.unknown is not None
                and found.unknown.recipe == "qwen"
            )
            with pytest.raises(NotLoaded):
                hf.workflows.register("eval", "llama", loaded_only=True)
