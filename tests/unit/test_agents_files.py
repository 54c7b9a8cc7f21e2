"""The form of a record in a file: that of the source system's registry, version 2, read as it is
and written as it was.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domains.agents import Reason
from holdfast.domains.agents.records import AGENTS, from_file, id_of, to_file
from holdfast.kernel.errors import SchemaTooNew
from holdfast.kernel.holder import Holder
from holdfast.kernel.layout import FilePerRecord
from holdfast.kernel.settings import AgentSettings
from tests.unit.agent_world import World, world_of

GPU = id_of("HOUMAO-gpu")
ADOPTED: dict[str, Any] = {
    "schema_version": 2,
    "agent_name": "HOUMAO-gpu",
    "agent_id": GPU,
    "generation_id": "a1b2",
    "published_at": "2026-01-01T00:00:00+00:00",
    "lease_expires_at": "2026-01-02T00:00:00+00:00",
    "identity": {"backend": "claude_headless", "tool": "claude"},
    "runtime": {
        "manifest_path": "/run/gpu/manifest.json",
        "session_root": "/run/gpu",
        "agent_def_dir": "/defs",
    },
    "terminal": {"kind": "tmux", "session_name": "HOUMAO-gpu"},
}


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    with world_of("memory", tmp_path, request) as made:
        yield made


def test_the_layout_is_a_folder_an_agent() -> None:
    layout = AGENTS.layout
    assert isinstance(layout, FilePerRecord)
    assert (layout.folder, layout.name) == ("agents", "live_agents/{key}/record.json")


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"gateway": None, "mailbox": None},
        {
            "gateway": {
                "host": "127.0.0.1",
                "port": 9999,
                "state_path": "/s.json",
                "protocol_version": "v1",
            }
        },
        {"gateway": {"host": None, "port": None, "state_path": None, "protocol_version": None}},
        {"mailbox": {"transport": "filesystem", "address": "gpu@agents.localhost"}},
    ],
    ids=["plain", "nulls", "gateway", "no gateway", "mailbox"],
)
def test_a_version_2_record_is_read_and_written_as_it_was(more: dict[str, Any]) -> None:
    agent = from_file(GPU, {**ADOPTED, **more})
    assert (agent.token, agent.holder) == (0, None)
    written = to_file(agent)
    kept = {name: value for name, value in more.items() if value and any(value.values())}
    zulu = {
        name: ADOPTED[name].replace("+00:00", "Z") for name in ("published_at", "lease_expires_at")
    }
    assert written == {**ADOPTED, **zulu, **kept}
    assert from_file(GPU, json.loads(json.dumps(written))) == agent


def test_a_tree_of_version_2_records_is_read_with_its_prefix(world: World, tmp_path: Path) -> None:
    """The tree as it lies on the disk, through the declared layout, into the registry."""
    layout = AGENTS.layout
    assert isinstance(layout, FilePerRecord)
    for name in ("gpu", "cpu"):
        agent_id = id_of(f"HOUMAO-{name}")
        path = tmp_path / layout.name.format(key=agent_id)
        path.parent.mkdir(parents=True)
        path.write_text(
            json.dumps({**ADOPTED, "agent_id": agent_id, "agent_name": f"HOUMAO-{name}"})
        )
    for path in (tmp_path / "live_agents").glob("*/record.json"):
        world.put(layout.wire.read(path.parent.name, json.loads(path.read_text())))
    adopted = world.registry(AgentSettings(prefix="HOUMAO-"))
    for asked in ("gpu", "HOUMAO-gpu", "HOLDFAST-gpu", GPU):
        found = adopted.resolve_live_agent_record(asked)
        assert found is not None and found.agent_id == GPU
    assert world.agents.resolve("gpu").reason is Reason.OTHER_NAME
    # A publisher of this program meets it on the same id.
    with pytest.raises(Exception, match="a1b2"):
        world.publish("gpu", agents=adopted)


def test_what_holdfast_adds_is_in_the_file_too(world: World) -> None:
    holder = world.process(7)
    agent = world.publish(holder=holder)
    document = json.loads(json.dumps(to_file(agent)))
    assert document["token"] == agent.token
    assert Holder(**document["holder"]) == holder
    assert from_file(agent.agent_id, document) == agent


def test_a_process_tree_is_in_the_file_only_where_there_is_one() -> None:
    alone = {
        "host_id": "h",
        "boot_id": "b",
        "pid_ns": 1,
        "pid": 7,
        "start_ticks": 9,
        "label": "claude",
    }
    for holder in (alone, {**alone, "tree": "1000-7-9-0123456789abcdef"}):
        agent = from_file(GPU, {**ADOPTED, "holder": holder})
        assert to_file(agent)["holder"] == holder
        assert from_file(GPU, json.loads(json.dumps(to_file(agent)))) == agent


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 1},
        {"schema_version": True},
        {"schema_version": None},
        {"surprise": 1},
        {"agent_id": "another"},
        {"agent_id": "../x"},
        {"agent_name": ""},
        {"published_at": "2026-01-01T00:00:00"},
        {"lease_expires_at": "2026-01-01T00:00:00Z"},
        {"runtime": {}},
        {"identity": {"backend": "b", "tool": ""}},
        {"gateway": {"host": "h", "port": None, "state_path": "/s", "protocol_version": "v1"}},
        {"mailbox": "x"},
    ],
    ids=lambda change: str(change)[:40],
)
def test_what_is_no_record_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        from_file(GPU, {**ADOPTED, **change})


def test_what_a_newer_program_wrote_is_not_taken_for_damaged() -> None:
    with pytest.raises(SchemaTooNew) as caught:
        from_file(GPU, {**ADOPTED, "schema_version": 4, "surprise": 1})
    assert (caught.value.fields["key"], caught.value.fields["version"]) == (GPU, 4)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.sampled_from(sorted(ADOPTED)), json_values)
def test_hostile_documents_raise_what_a_store_expects(name: str, value: Any) -> None:
    try:
        agent = from_file(GPU, {**ADOPTED, name: value})
    except (ValueError, TypeError, KeyError, SchemaTooNew):
        return
    assert agent.agent_id == GPU
