"""The form of a record in a file: that of the source system's registry, versions 2 and 3, read as
it is and written as it was.
"""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.domains.agents import Reason
from holdfast.domains.agents.records import AGENTS, GatewayAddress, from_file, id_of, to_file
from holdfast.kernel.clock import render
from holdfast.kernel.errors import SchemaTooNew
from holdfast.kernel.holder import Holder
from holdfast.kernel.layout import FilePerRecord
from holdfast.kernel.settings import AgentSettings, Settings
from holdfast.runtime.connection import connected
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


ACTIVE_3: dict[str, Any] = {
    "schema_version": 3,
    "agent_name": "gpu",
    "agent_id": id_of("gpu"),
    "generation_id": "a1b2",
    "lifecycle": {
        "state": "active",
        "relaunchable": True,
        "state_updated_at": "2026-01-01T00:00:00Z",
        "stopped_at": None,
        "stop_reason": None,
    },
    "identity": {"backend": "claude_headless", "tool": "claude"},
    "runtime": ADOPTED["runtime"],
    "terminal": {"kind": "tmux", "current_session_name": "s2", "last_session_name": "s2"},
    "liveness": {
        "published_at": "2026-01-01T00:00:00Z",
        "lease_expires_at": "2125-12-08T00:00:00Z",
    },
    "gateway": {
        "host": "127.0.0.1",
        "port": 9999,
        "state_path": "/s.json",
        "protocol_version": "v1",
    },
    "mailbox": {
        "transport": "filesystem",
        "principal_id": "p",
        "address": "a",
        "filesystem_root": "/m",
        "bindings_version": "1",
    },
}
STOPPED_3: dict[str, Any] = {
    **ACTIVE_3,
    "lifecycle": {
        "state": "stopped",
        "relaunchable": True,
        "state_updated_at": "2026-01-03T00:00:00Z",
        "stopped_at": "2026-01-02T00:00:00Z",
        "stop_reason": "told to",
    },
    "terminal": {"kind": "tmux", "current_session_name": None, "last_session_name": "s2"},
    "liveness": None,
    "gateway": None,
}


@pytest.mark.parametrize("document", [ACTIVE_3, STOPPED_3], ids=["active", "stopped"])
def test_a_version_3_record_is_read_and_written_as_it_was(document: dict[str, Any]) -> None:
    agent = from_file(id_of("gpu"), document)
    assert to_file(agent) == document
    assert from_file(id_of("gpu"), json.loads(json.dumps(to_file(agent)))) == agent
    lives = document is ACTIVE_3
    assert (agent.session_name, agent.fresh(datetime(2027, 1, 1, tzinfo=UTC))) == (
        "s2" if lives else None,
        lives,
    )
    assert not agent.fresh(datetime(2126, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": "3"},
        {"surprise": 1},
        {"holder": None},
        {"agent_id": "another"},
        {"agent_name": " "},
        {"liveness": None},
        {"liveness": {**ACTIVE_3["liveness"], "lease_expires_at": "2026-01-01T00:00:00Z"}},
        {"liveness": {**ACTIVE_3["liveness"], "published_at": "2026-01-01T00:00:00"}},
        {"lifecycle": STOPPED_3["lifecycle"]},
        {"lifecycle": {**ACTIVE_3["lifecycle"], "stopped_at": "2026-01-01T00:00:00Z"}},
        {"lifecycle": {**ACTIVE_3["lifecycle"], "stop_reason": "why"}},
        {"lifecycle": {**ACTIVE_3["lifecycle"], "state": "asleep"}},
        {"lifecycle": {**STOPPED_3["lifecycle"], "state": "retired"}},
        {"terminal": {"kind": "tmux", "current_session_name": "s2"}},
        {"terminal": STOPPED_3["terminal"]},
        {"identity": {"backend": "gemini_headless", "tool": "gemini"}},
        {"gateway": {**ACTIVE_3["gateway"], "host": "localhost"}},
        {"gateway": {**ACTIVE_3["gateway"], "port": 0}},
        {"gateway": {**ACTIVE_3["gateway"], "protocol_version": "v2"}},
        {"mailbox": {"transport": "filesystem", "address": "a"}},
        {"mailbox": {**ACTIVE_3["mailbox"], "transport": "smoke"}},
    ],
    ids=lambda change: str(change)[:60],
)
def test_what_is_no_record_of_version_3_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        from_file(id_of("gpu"), {**ACTIVE_3, **change})


def test_a_file_of_version_3_has_no_field_of_ours_and_nothing_is_lost(tmp_path: Path) -> None:
    """Its readers refuse unknown fields. The rest is known to the next program all the same, and to
    no later generation that another program publishes.
    """
    url = f"files:{tmp_path}/registry"
    settings = Settings(store=url, agents=AgentSettings(prefix="", record_version=3))
    with connected(settings) as hf:
        holder = hf.processes.of(os.getpid())
        published = hf.agents.publish(
            "gpu",
            backend="local_interactive",
            tool="claude",
            manifest_path="/m.json",
            session_name="s1",
            holder=holder,
            lease_s=100.0,
            gateway=GatewayAddress(
                host="10.0.0.1", port=9999, state_path="/s.json", protocol_version="v1"
            ),
        )
    path = tmp_path / "registry" / "live_agents" / id_of("gpu") / "record.json"
    document = json.loads(path.read_text())
    assert document.keys() == ACTIVE_3.keys() and document["gateway"] is None
    with holdfast.connect(url) as hf:
        assert hf.agents.get(id_of("gpu")) == published
        assert published.holder == holder and published.token > 0 and published.lease_s == 100.0
        for name in ("published_at", "lease_expires_at"):
            assert document["liveness"][name] == render(getattr(published, name))
    path.write_text(json.dumps({**document, "generation_id": "another"}))
    with holdfast.connect(url) as hf:
        found = hf.agents.get(id_of("gpu"))
        assert (found.holder, found.token, found.gateway) == (None, 0, None)


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
