"""Workflows in a folder of plain files: the form of the file, the locks beside it and the log."""

import json
import os
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from holdfast.adapters.journal_mirror import swap_log_file
from holdfast.adapters.signal_files import workflows_in_folder
from holdfast.domains.workflows import (
    CurrentRecipe,
    Phase,
    Preempt,
    SwapMarker,
    UnknownRecipe,
    Workflow,
    Workflows,
)
from holdfast.domains.workflows.wire import (
    CURRENT_RECIPE,
    SCOPE,
    SWAP_LOG,
    SWAP_MARKER,
    UNKNOWN_RECIPE,
    WORKFLOWS,
)
from holdfast.kernel.clock import SystemClock
from holdfast.kernel.errors import LockTimeout
from holdfast.kernel.holder import Holder
from holdfast.kernel.layout import OneFile, Wire
from holdfast.kernel.space import Space
from holdfast.primitives.journal import Journal
from holdfast.processes.procfs import Procfs
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.system.flock import FlockLock

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)
OWNER = Holder(host_id="h", boot_id="b", pid_ns=4, pid=5, start_ticks=678, label="me")

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.integers(0, 1 << 40)
instants = st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - bounds are naive
holders = st.builds(
    Holder,
    host_id=texts,
    boot_id=texts,
    pid_ns=numbers,
    pid=numbers,
    start_ticks=numbers,
    label=texts,
    tree=st.just(UNSET) | st.just("0-5-678-00112233445566ff"),
)
others = st.dictionaries(st.just("foreign") | st.just("notes"), texts | numbers, max_size=2)
workflows = st.builds(
    Workflow,
    name=st.just("w"),
    recipe=texts,
    owner=holders,
    started_at=instants,
    last_renewed_at=instants,
    ttl_seconds=st.floats(0.001, 1e6),
    preemptible=st.booleans(),
    preempt_signal_path=st.none() | texts,
    token=numbers,
    preempt=st.sampled_from(Preempt),
    preempt_swap=st.none() | numbers,
    others=others,
    schema_version=st.just(1),
)
markers = st.builds(
    SwapMarker,
    recipe=texts,
    holder=holders,
    begun_at=instants,
    token=numbers,
    phase=st.none() | st.sampled_from(Phase),
    reload=st.booleans(),
    others=others,
    schema_version=st.just(1),
)
unknowns = st.builds(
    UnknownRecipe,
    recipe=texts,
    before=st.none() | texts,
    began_at=instants,
    ended_at=st.none() | instants,
    exit_status=st.none() | numbers,
    why=texts,
    token=numbers,
    by=texts,
    others=others,
    schema_version=st.just(1),
)
currents = st.builds(
    CurrentRecipe,
    recipe=texts,
    loaded_at=instants,
    token=numbers,
    by=texts,
    others=others,
    schema_version=st.just(1),
)


def layout(
    space: Space[Workflow] | Space[SwapMarker] | Space[CurrentRecipe] | Space[UnknownRecipe],
) -> OneFile[Any]:
    assert isinstance(space.layout, OneFile)
    return space.layout


@given(record=workflows | markers | currents | unknowns)
def test_what_is_written_is_read_back_with_another_programs_fields(
    record: Workflow | SwapMarker | CurrentRecipe | UnknownRecipe,
) -> None:
    spaces: dict[type, Any] = {
        Workflow: WORKFLOWS,
        SwapMarker: SWAP_MARKER,
        CurrentRecipe: CURRENT_RECIPE,
        UnknownRecipe: UNKNOWN_RECIPE,
    }
    wire = layout(spaces[type(record)]).wire
    document = json.loads(json.dumps(wire.write(record)))
    assert wire.read("w", document) == record


def test_the_parts_of_the_file_are_a_list_and_three_that_may_be_null() -> None:
    assert {
        layout(space).part for space in (WORKFLOWS, SWAP_MARKER, CURRENT_RECIPE, UNKNOWN_RECIPE)
    } == {
        "workflows",
        "swap_in_progress",
        "current_recipe",
        "unknown_recipe",
    }
    for space in (WORKFLOWS, SWAP_MARKER, CURRENT_RECIPE, UNKNOWN_RECIPE):
        assert (layout(space).folder, layout(space).name) == ("workflows", "workflows.json")
    listed = layout(WORKFLOWS)
    documents = {"b": {"name": "b"}, "a": {"name": "a"}}
    assert listed.gather(documents) == [{"name": "a"}, {"name": "b"}]
    assert dict(listed.spread(listed.gather(documents))) == documents
    assert list(listed.spread(None)) == []
    single = layout(SWAP_MARKER)
    assert single.gather({}) is None and list(single.spread(None)) == []
    assert single.gather(dict(single.spread({"x": 1}))) == {"x": 1}


def _wire(space: Space[Any]) -> Wire[Any]:
    assert isinstance(space.layout, OneFile)
    return space.layout.wire


def test_a_file_of_the_source_system_is_read() -> None:
    document = {
        "name": "train",
        "recipe": "llama",
        "owner_pid": 4242,
        "owner_start_ns": 123_450_000_000,
        "started_at": 1767268800.5,
        "last_renewed_at": "2026-01-01T12:00:05Z",
        "ttl_seconds": 60,
        "gpu": 0,
    }
    workflow = _wire(WORKFLOWS).read("train", document)
    assert (workflow.owner.pid, workflow.owner.start_ticks, workflow.owner.host_id) == (
        4242,
        12345,
        "",
    )
    assert workflow.started_at == datetime(2026, 1, 1, 12, 0, 0, 500_000, UTC)
    assert workflow.others == {"gpu": 0}
    marker = _wire(SWAP_MARKER).read(
        "only",
        {
            "target_recipe": "q",
            "holder_pid": 1,
            "holder_start_ns": 10_000_000,
            "begun_at": "2026-01-01T12:00:00Z",
        },
    )
    assert (marker.recipe, marker.holder.start_ticks, marker.token) == ("q", 1, 0)


def test_only_a_process_tree_is_written_as_one() -> None:
    workflow = Workflow(
        name="w",
        recipe="r",
        owner=OWNER,
        started_at=AT,
        last_renewed_at=AT,
        ttl_seconds=60,
        token=7,
        others={"gpu": 0},
    )
    assert "owner_tree" not in _wire(WORKFLOWS).write(workflow)
    marker = SwapMarker(
        recipe="r", holder=replace(OWNER, tree="0-5-678-00112233445566ff"), begun_at=AT, token=7
    )
    document = _wire(SWAP_MARKER).write(marker)
    assert document["holder_tree"] == "0-5-678-00112233445566ff"
    assert _wire(SWAP_MARKER).read("only", {**document, "holder_tree": None}) == replace(
        marker, holder=OWNER
    )
    with pytest.raises(TypeError):
        _wire(SWAP_MARKER).read("only", {**document, "holder_tree": 5})


def test_records_of_an_earlier_version_are_read() -> None:
    holder = {
        "host_id": "h",
        "boot_id": "b",
        "pid_ns": 4,
        "pid": 5,
        "start_ticks": 678,
        "label": "me",
    }
    marker = {
        "recipe": "q",
        "holder": holder,
        "begun_at": "2026-01-01T12:00:00Z",
        "token": 7,
        "others": {},
        "schema_version": 1,
    }
    read = SWAP_MARKER.decode("only", json.dumps(marker))
    assert (read.recipe, read.token, read.phase, read.reload) == ("q", 7, None, False)
    in_a_file = _wire(SWAP_MARKER).write(read)
    del in_a_file["phase"], in_a_file["reload"]
    assert _wire(SWAP_MARKER).read("only", in_a_file) == read


def test_a_workflow_that_would_end_beyond_the_calendar_is_refused() -> None:
    """Read as one, it failed every read of all the others."""
    document = {
        "recipe": "llama",
        "owner_pid": 1,
        "owner_start_ns": 0,
        "started_at": 0,
        "last_renewed_at": 253402300799,
    }
    with pytest.raises(ValueError, match="calendar"):
        _wire(WORKFLOWS).read("train", document)


@given(
    document=st.dictionaries(
        st.sampled_from(
            [
                "name",
                "recipe",
                "owner_pid",
                "owner_start_ns",
                "started_at",
                "token",
                "preempt",
                "ttl_seconds",
            ]
        ),
        st.none() | texts | numbers | st.lists(numbers, max_size=1),
    )
)
def test_an_invalid_document_raises_what_a_layout_may_raise(
    document: dict[str, object],
) -> None:
    for space in SCOPE:
        try:
            _wire(space).read("w", document)
        except (ValueError, TypeError, KeyError, msgspec.MsgspecError):
            continue


class Folder:
    """A store, and workflows whose locks and log lie in a folder as the layout says."""

    def __init__(self, path: Path, store: SqliteStore) -> None:
        self.path = path
        self.journal = Journal(store, actor="tester")
        own = path / ".holdfast"
        self.workflows: Workflows = workflows_in_folder(
            path / "workflows",
            own,
            store,
            self.journal,
            Procfs(),
            mirror=swap_log_file(path / "workflows" / SWAP_LOG, own, self.journal),
            label="me",
        )

    def log(self) -> list[dict[str, Any]]:
        return [
            json.loads(line)
            for line in (self.path / "workflows" / "swap_log.jsonl").read_text().splitlines()
        ]


@pytest.fixture
def folder(tmp_path: Path):  # type: ignore[no-untyped-def]
    with closing(
        SqliteStore(tmp_path / "s.sqlite", boot_id=Procfs().boot_id(), clock=SystemClock())
    ) as store:
        yield Folder(tmp_path, store)


def test_the_swap_lock_is_a_flock_in_the_folder_for_the_whole_swap(folder: Folder) -> None:
    lock = FlockLock(folder.path / "workflows" / ".swap.lock")
    with folder.workflows.swap("llama"):
        assert lock.is_held()
    assert not lock.is_held()


def test_the_log_mirrors_the_swap_events_of_the_journal(folder: Folder) -> None:
    with folder.workflows.swap("llama"):
        pass
    folder.workflows.register("train", "llama")
    with pytest.raises(LockTimeout):
        folder.workflows.swap("qwen", timeout_s=0).__enter__()
    log = folder.log()
    assert [line["event"] for line in log] == [
        "swap_started",
        "swap_completed",
        "swap_started",
        "swap_refused",
    ]
    assert [line["event"] for line in log] == [event.event for event in folder.workflows.swap_log()]
    assert all({"at", "recipe", "who", "revision"} <= line.keys() for line in log)


@pytest.mark.parametrize("lost", ["cursor", "line", "both", "foreign"])
def test_no_line_is_missing_or_there_twice_when_its_writer_died_in_between(
    folder: Folder, lost: str
) -> None:
    log, cursor = (
        folder.path / "workflows" / "swap_log.jsonl",
        folder.path / ".holdfast" / "swap_log.cursor",
    )
    with folder.workflows.swap("llama"):
        pass
    before = folder.log()
    with mock.patch.object(folder.workflows._context, "mirror"):
        with folder.workflows.swap("qwen"):
            pass
    assert folder.log() == before
    written, mark = log.read_bytes(), cursor.read_bytes()
    if lost in ("line", "both"):
        # Cut off in the middle of a line: a power loss, or a kill between two writes.
        assert folder.workflows.mirror is not None
        folder.workflows.mirror.catch_up()
        log.write_bytes(log.read_bytes()[: len(written) + 20])
        cursor.write_bytes(mark)
    if lost in ("cursor", "both"):
        cursor.unlink()
    if lost == "foreign":
        with log.open("ab") as file:
            file.write(b'{"event": "another program was here"}\n')
    with folder.workflows.swap("third"):
        pass
    revisions = [line["revision"] for line in folder.log() if "revision" in line]
    assert revisions == sorted(set(revisions))
    assert [line["event"] for line in folder.log() if "revision" in line] == [
        "swap_started",
        "swap_completed",
    ] * 3


def test_a_log_that_cannot_be_written_fails_nothing(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    (folder.path / "workflows" / "swap_log.jsonl").mkdir()
    with folder.workflows.swap("llama"):
        pass
    assert folder.workflows.swap_status().current is not None
    assert "swap log not written" in caplog.text
    os.rmdir(folder.path / "workflows" / "swap_log.jsonl")
    folder.workflows.register("x", "llama")
    assert [line["event"] for line in folder.log()] == ["swap_started", "swap_completed"]


def test_processes_of_another_program_are_judged_by_pid_and_start(folder: Folder) -> None:
    context = folder.workflows._context
    me = Procfs().current()
    foreign = Holder(host_id="", boot_id="", pid_ns=0, pid=me.pid, start_ticks=me.start_ticks)
    reused = Holder(host_id="", boot_id="", pid_ns=0, pid=me.pid, start_ticks=me.start_ticks - 1)
    assert [context.liveness(one).value for one in (foreign, reused)] == ["alive", "dead"]
