"""From a name to a live record and to what may be controlled: every stale outcome, every hard
error, each with its code.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.domains.agents import Agent, Reason
from holdfast.domains.agents import manifest as manifests
from holdfast.domains.agents.manifest import TmuxHandle
from holdfast.domains.agents.ports import TmuxAddress
from holdfast.domains.agents.records import id_of
from holdfast.domains.gateway.adapter import spec_of_manifest
from holdfast.kernel import errors
from holdfast.kernel.agent_adapter import RestAdapter, TmuxAdapter
from holdfast.kernel.clock import render
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import Ambiguous, InvalidValue, NotFound
from holdfast.kernel.limits import MANIFEST_BYTES_MAX
from holdfast.kernel.settings import AgentSettings
from tests.unit.agent_world import LEASE_S, STORES, World, world_of

GPU = id_of("HOLDFAST-gpu")


@pytest.fixture(params=STORES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with world_of(request.param, tmp_path, request) as made:
        yield made


def stale(world: World, reason: Reason, asked: str = "gpu", ids: tuple[str, ...] = ()) -> None:
    """Nothing live is found, and the verdict says why; control is refused for the same reason."""
    assert world.agents.resolve_live_agent_record(asked) is None
    verdict = world.agents.resolve(asked)
    assert (verdict.record, verdict.reason, verdict.agent_ids) == (None, reason, ids)
    assert verdict.detail
    with pytest.raises(Ambiguous if reason is Reason.AMBIGUOUS else NotFound) as caught:
        world.agents.control_target(asked)
    assert caught.value.fields["reason"] == reason.value


# --- stale outcomes ---


def test_missing(world: World) -> None:
    stale(world, Reason.MISSING)
    stale(world, Reason.MISSING, "x" * 128)


@pytest.mark.parametrize("asked", ["gpu", GPU])
def test_malformed(world: World, asked: str) -> None:
    world.publish()
    world.publish("other")
    for junk in (b"{", b"[]", b"null", b"\x7f"):
        world.damage(GPU, junk)
        stale(world, Reason.MALFORMED, asked, (GPU,))
    assert world.agents.resolve_live_agent_record("other") is not None


@pytest.mark.parametrize("asked", ["gpu", GPU])
@pytest.mark.parametrize(
    "change",
    [
        {"surprise": 1},
        {"tool": "claude"},
        {"agent_name": " "},
        {"agent_name": None},
        {"published_at": "2026-01-01T00:00:00"},
        {"lease_expires_at": "2025-01-01T00:00:00Z"},
        {"lease_expires_at": "2027-01-01T00:00:00"},
        {"lease_expires_at": 17},
        {"identity": {"backend": "x"}},
        {"terminal": {"kind": "screen", "session_name": "s"}},
        {"schema_version": 1},
        {"schema_version": 3},
        {"schema_version": "2"},
        {"token": "1"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_schema_invalid(world: World, asked: str, change: dict[str, Any]) -> None:
    agent = world.publish()
    world.damage(GPU, json.dumps({**json.loads(to_json(agent)), **change}).encode())
    stale(world, Reason.SCHEMA_INVALID, asked, (GPU,))


@pytest.mark.parametrize("asked", ["gpu", GPU])
def test_expired(world: World, asked: str) -> None:
    agent = world.publish()
    world.clock.advance(LEASE_S)
    assert world.agents.resolve_live_agent_record(asked) == agent, (
        "fresh up to and including the last instant"
    )
    world.clock.advance(0.000_001)
    stale(world, Reason.EXPIRED, asked, (GPU,))
    assert f"ended at {render(agent.lease_expires_at)}:" in world.agents.resolve(asked).detail


def test_published_under_another_name(world: World) -> None:
    world.publish("other", agent_id=GPU)
    stale(world, Reason.OTHER_NAME, "gpu", (GPU,))
    assert world.agents.resolve_live_agent_record(GPU) is not None


def test_published_under_the_other_prefix(world: World) -> None:
    adopted = world.publish(agents=world.registry(AgentSettings(prefix="HOUMAO-")))
    assert adopted.agent_name == "HOUMAO-gpu"
    stale(world, Reason.OTHER_NAME, "gpu", (adopted.agent_id,))
    stale(world, Reason.OTHER_NAME, "HOUMAO-gpu", (adopted.agent_id,))


def test_ambiguous(world: World) -> None:
    world.publish(agent_id="one")
    world.publish(agent_id="two")
    stale(world, Reason.AMBIGUOUS, "gpu", ("one", "two"))
    assert "one, two" in world.agents.resolve("gpu").detail
    assert world.agents.resolve_live_agent_record("one") is not None
    world.clock.advance(LEASE_S + 1)
    three = world.publish(agent_id="three")
    assert world.agents.resolve_live_agent_record("gpu") == three, (
        "expired ones do not make it ambiguous"
    )


# --- what is stale hides nothing ---


def test_a_damaged_namesake_hides_nothing(world: World) -> None:
    world.publish(agent_id="one")
    two = world.publish(agent_id="two")
    world.damage("one", b"{")
    assert world.agents.resolve_live_agent_record("gpu") == two


def test_a_damaged_record_is_not_taken_for_one_that_was_asked_for(world: World) -> None:
    world.publish("other")
    world.damage(id_of("HOLDFAST-other"), b"{")
    stale(world, Reason.MISSING)


def test_an_id_counts_before_a_name_while_it_is_fresh(world: World) -> None:
    by_id = world.publish("other", agent_id="gpu")
    by_name = world.publish("gpu", agent_id="g")
    assert world.agents.resolve_live_agent_record("gpu") == by_id
    world.clock.advance(LEASE_S - 1)
    world.agents.refresh("g", by_name.generation_id)
    world.clock.advance(2)
    found = world.agents.resolve_live_agent_record("gpu")
    assert found is not None and found.agent_id == "g"


# --- control ---


def target(world: World, agent: Agent | None = None, **more: Any) -> Agent:
    """An agent that may be controlled, but for what the test says of its manifest."""
    published = world.publish(holder=world.in_pane()) if agent is None else agent
    world.manifest(published, **more)
    return published


def refused(
    world: World, kind: type[errors.Untrusted], asked: str = "gpu", **how: Any
) -> errors.Untrusted:
    with pytest.raises(errors.Untrusted) as caught:
        world.agents.control_target(asked, **how)
    assert type(caught.value) is kind
    return caught.value


def test_a_consistent_record_may_be_controlled(world: World) -> None:
    agent = target(world)
    for asked in ("gpu", agent.agent_id):
        found = world.agents.control_target(asked)
        assert (found.record, found.session_name, found.agent_def_dir) == (agent, "s-1", None)
        assert found.manifest.generation_id == agent.generation_id


def test_a_manifest_by_hand_may_name_it_without_the_prefix(world: World) -> None:
    target(world, agent_name="gpu")
    assert world.agents.control_target("gpu").session_name == "s-1"


def test_manifest_path_relative(world: World) -> None:
    agent = world.publish()
    world.put(replace(agent, runtime=replace(agent.runtime, manifest_path="manifest.json")))
    refused(world, errors.ManifestPathRelative)


def test_manifest_missing(world: World) -> None:
    world.publish()
    assert refused(world, errors.ManifestMissing).fields["manifest_path"].endswith("manifest.json")
    world.publish("below", manifest_path=str(world.folder / "file" / "manifest.json"))
    (world.folder / "file").write_text("")
    refused(world, errors.ManifestMissing, "below")


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[1]", b"\xff\xfe", b"{" * 5000, b" " * (MANIFEST_BYTES_MAX + 2)]
)
def test_manifest_invalid(world: World, data: bytes) -> None:
    agent = world.publish()
    Path(agent.runtime.manifest_path).write_bytes(data)
    refused(world, errors.ManifestInvalid)


def test_a_manifest_that_is_no_file_is_invalid(world: World) -> None:
    agent = world.publish()
    Path(agent.runtime.manifest_path).mkdir()
    refused(world, errors.ManifestInvalid)
    Path(agent.runtime.manifest_path).rmdir()
    os.mkfifo(agent.runtime.manifest_path)
    refused(world, errors.ManifestInvalid)


def test_manifest_mismatch(world: World) -> None:
    agent = world.publish()
    world.manifest(agent, agent_id="another")
    refused(world, errors.ManifestMismatch)
    world.manifest(agent, agent_name="HOLDFAST-another")
    assert "HOLDFAST-another" in refused(world, errors.ManifestMismatch).message


@pytest.mark.parametrize("backend", ["cao_rest", "houmao_server_rest", "command", "unheard_of"])
def test_not_tmux_backed(world: World, backend: str) -> None:
    target(
        world, backend=backend, adapter=RestAdapter(base_url="http://127.0.0.1:1", terminal_id="t")
    )
    assert refused(world, errors.NotTmuxBacked).fields["backend"] == backend


@pytest.mark.parametrize(
    "backend", ["local_interactive", "claude_headless", "codex_headless", "mytool_headless"]
)
def test_tmux_backed(world: World, backend: str) -> None:
    target(world, backend=backend)
    assert world.agents.control_target("gpu").manifest.backend == backend


def test_tmux_session_mismatch(world: World) -> None:
    agent = target(world, tmux=TmuxHandle(session_name="s-2"))
    fields = refused(world, errors.TmuxSessionMismatch).fields
    assert (fields["published"], fields["manifest"]) == ("s-1", "s-2")
    world.manifest(agent, tmux=None)
    refused(world, errors.TmuxSessionMismatch)
    # Nothing falls back to another that would do.
    other: dict[str, Any] = {
        "manifest_path": str(world.folder / "other.json"),
        "session_name": "s-3",
        "holder": world.in_pane(8, "s-3"),
    }
    target(world, world.publish("other", **other))
    assert world.agents.control_target("other").session_name == "s-3"
    refused(world, errors.TmuxSessionMismatch)


def test_name_not_stated(world: World) -> None:
    agent = target(world)
    error = refused(world, errors.NameNotStated, "s-1")
    assert error.fields["agent_ids"] == [agent.agent_id]
    assert world.agents.resolve("s-1").reason is Reason.MISSING


def test_agent_def_dir_missing(world: World) -> None:
    agent = target(world)
    assert world.agents.control_target("gpu").agent_def_dir is None
    refused(world, errors.AgentDefDirMissing, needs_agent_def_dir=True)
    world.manifest(agent, agent_def_dir="/defs")
    refused(world, errors.AgentDefDirMissing)


def test_agent_def_dir_relative(world: World) -> None:
    agent = target(world)
    world.put(replace(agent, runtime=replace(agent.runtime, agent_def_dir="defs")))
    refused(world, errors.AgentDefDirRelative)
    refused(world, errors.AgentDefDirRelative, agent_def_dir="./here")


def test_agent_def_dir_gone(world: World) -> None:
    target(world, world.publish(agent_def_dir=str(world.folder / "defs"), holder=world.in_pane()))
    refused(world, errors.AgentDefDirGone)
    (world.folder / "defs").write_text("a file is no folder")
    refused(world, errors.AgentDefDirGone)


def test_an_override_beats_the_record(world: World) -> None:
    agent = target(
        world, world.publish(agent_def_dir=str(world.folder / "gone"), holder=world.in_pane())
    )
    found = world.agents.control_target("gpu", str(world.folder))
    assert (found.record, found.agent_def_dir) == (agent, str(world.folder))
    refused(world, errors.AgentDefDirGone, agent_def_dir=str(world.folder / "gone too"))


# --- the process behind the name ---


def test_generation_mismatch(world: World) -> None:
    agent = target(world, generation_id="earlier")
    fields = refused(world, errors.GenerationMismatch).fields
    assert (fields["published"], fields["manifest"]) == (agent.generation_id, "earlier")


def test_a_dead_process_is_refused_though_its_tmux_session_has_another_process(
    world: World,
) -> None:
    target(world)
    world.machine.end(7)
    assert refused(world, errors.ProcessDead).fields["pid"] == 7
    # A stranger makes a tmux session of the same name, and is even given the same pid.
    world.tmux.pane_pids["s-1"] = [50]
    refused(world, errors.ProcessDead)
    world.in_pane()
    refused(world, errors.ProcessDead)
    world.tmux.sessions = set()
    refused(world, errors.ProcessDead)


def test_a_live_process_whose_tmux_session_is_gone_or_replaced(world: World) -> None:
    target(world)
    world.tmux.pane_pids["s-1"] = [50, 51]
    refused(world, errors.ProcessNotInSession)
    world.tmux.sessions = {"s-12"}
    refused(world, errors.TmuxSessionGone)
    world.tmux.sessions, world.tmux.pane_pids["s-1"] = {"s-1"}, []
    refused(world, errors.TmuxSessionGone)


def test_a_descendant_of_a_panes_process_is_in_it(world: World) -> None:
    """A command under `agents run` in a shell is the child of a child of the pane's process."""
    agent = target(world)
    for pid in (20, 21):
        world.machine.begin(pid)
    world.machine.parents.update({7: 21, 21: 20, 20: 1})
    world.tmux.pane_pids["s-1"] = [50, 20]
    assert world.agents.control_target("gpu").record == agent
    # Nor does one whose parent died count any more: it is not the pane's program.
    world.machine.end(21)
    refused(world, errors.ProcessNotInSession)


def test_parents_in_a_circle_end(world: World) -> None:
    target(world)
    world.machine.parents.update({7: 8, 8: 7})
    world.machine.begin(8)
    world.tmux.pane_pids["s-1"] = [50]
    refused(world, errors.ProcessNotInSession)


def test_what_cannot_be_seen_is_refused_in_words_of_its_own(world: World) -> None:
    agent = target(world)
    world.tmux.sessions = None
    assert "tmux does not say" in refused(world, errors.TargetUnknown).message
    world.tmux.sessions = {"s-1"}
    assert agent.holder is not None
    world.put(replace(agent, holder=replace(agent.holder, host_id="elsewhere")))
    assert "cannot be seen" in refused(world, errors.TargetUnknown).message
    world.put(replace(agent, holder=replace(agent.holder, pid_ns=99)))
    refused(world, errors.TargetUnknown)


def test_a_record_without_a_process_is_judged_by_its_tmux_session(world: World) -> None:
    agent = target(world, world.publish())
    if not world.store.embedded:
        # It may be on any machine, and a tmux session of that name here another's.
        refused(world, errors.TargetUnknown)
        return
    refused(world, errors.TmuxSessionGone)
    world.tmux.sessions = {"s-1"}
    assert world.agents.control_target("gpu").record == agent
    world.tmux.sessions = None
    refused(world, errors.TargetUnknown)


@pytest.mark.parametrize(
    "server", [TmuxAddress(), TmuxAddress(socket_name="lab"), TmuxAddress(socket_path="/run/tmux")]
)
def test_the_tmux_server_that_the_manifest_names_is_asked(
    world: World, server: TmuxAddress
) -> None:
    said = {name: value for name, value in server._asdict().items() if value is not None}
    target(world, adapter=TmuxAdapter(**said))
    world.agents.control_target("gpu")
    assert world.tmux.servers == [server if said else None]


def test_every_hard_error_has_a_code_of_its_own() -> None:
    kinds = errors.Untrusted.__subclasses__()
    assert len({kind.code for kind in kinds} | {"untrusted"}) == len(kinds) + 1 == 16


# --- manifests ---

MANIFEST = {
    "agent_id": "gpu-7",
    "agent_name": "HOLDFAST-gpu",
    "generation_id": "g-1",
    "backend": "local_interactive",
    "tool": "claude",
    "working_directory": "/home",
    "adapter": {"kind": "tmux"},
}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"surprise": 1}, "surprise"),
        ({"tool": " "}, "tool"),
        ({"agent_name": "a.b"}, "agent_name"),
        ({"schema_version": 2}, "schema_version"),
        ({"adapter": {"kind": "telnet"}}, "adapter.kind"),
        ({"adapter": {"kind": "tmux", "quiet_ms": -1}}, "adapter.quiet_ms"),
        ({"adapter": {"kind": "tmux", "ready_regex": "("}}, "ready_regex"),
        ({"adapter": {"kind": "tmux", "settle_s": 0}}, "adapter.settle_s"),
        ({"adapter": {"kind": "command"}}, "adapter"),
        ({"adapter": {"kind": "command", "command": []}}, "adapter.command"),
        (
            {"adapter": {"kind": "rest", "base_url": "ftp://x", "terminal_id": "t"}},
            "adapter.base_url",
        ),
        ({"adapter": {"kind": "managed", "managed_agent_ref": "a"}}, "managed_api_base_url"),
        ({"tmux": {"session_name": ""}}, "tmux.session_name"),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
)
def test_a_wrong_manifest_is_refused_with_its_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        manifests.from_json(json.dumps({**MANIFEST, **change}).encode())
    assert field in caught.value.message


@pytest.mark.parametrize(
    "adapter",
    [
        {"kind": "tmux", "interrupt": "Escape", "ready_regex": "> $"},
        {"kind": "command", "command": ["claude", "-p"], "prompt_as": "argument"},
        {
            "kind": "rest",
            "base_url": "http://127.0.0.1:9889",
            "terminal_id": "t1",
            "preset": "houmao_server",
        },
        {"kind": "managed", "managed_api_base_url": "http://h:1", "managed_agent_ref": "a"},
    ],
    ids=lambda adapter: adapter["kind"],
)
def test_a_manifest_is_the_same_written_and_read(adapter: dict[str, Any]) -> None:
    read = manifests.from_json(json.dumps({**MANIFEST, "adapter": adapter}).encode())
    assert manifests.from_json(manifests.as_json(read)) == read
    assert json.loads(manifests.as_json(read))["adapter"]["kind"] == adapter["kind"]


_WAITS = {"timeout_s": 5.0, "answer_timeout_s": 60.0}


@pytest.mark.parametrize(
    ("adapter", "elsewhere"),
    [
        (
            {
                "kind": "tmux",
                "interrupt": "Escape",
                "quiet_ms": 1,
                "ready_regex": "> $",
                "socket_name": "lab",
                "socket_path": "/run/tmux",
                "answer_timeout_s": 60.0,
                "settle_s": 2.0,
                "profile": "claude",
                "reports": "/run/reports",
                "question_timeout_s": 60.0,
            },
            {"session"},
        ),
        (
            {"kind": "command", "command": ["x"], "prompt_as": "argument", "timeout_s": 60.0},
            {"working_directory"},
        ),
        *(
            (
                {
                    "kind": kind,
                    "command": ["x"],
                    "profile": "codex",
                    "session_id": "s",
                    "environment": "/run/x/environment",
                    "answer_timeout_s": 60.0,
                    "question_timeout_s": 60.0,
                    **more,
                },
                {"working_directory"},
            )
            for kind, more in (("acp", {"mode": "plan"}), ("codex_app_server", {}))
        ),
        (
            {
                "kind": "rest",
                "base_url": "http://h",
                "terminal_id": "t",
                "preset": "cao",
                "paths": {"key": "/k"},
                "prefix": "/x",
                "interrupt_key": "Escape",
                **_WAITS,
            },
            set(),
        ),
        (
            {
                "kind": "managed",
                "managed_api_base_url": "http://h",
                "managed_agent_ref": "a",
                **_WAITS,
            },
            set(),
        ),
    ],
    ids=["tmux", "command", "acp", "codex_app_server", "rest", "managed"],
)
def test_a_manifest_can_say_every_setting_that_its_gateway_knows(
    adapter: dict[str, Any], elsewhere: set[str]
) -> None:
    """One that said how long to wait for an answer was used by the gateway, and no manifest to
    everything else.
    """
    written = {**MANIFEST, "tmux": {"session_name": "s"}, "adapter": adapter}
    kept = json.loads(manifests.as_json(manifests.from_json(json.dumps(written).encode())))
    assert kept["adapter"] == adapter
    spec = spec_of_manifest(kept)
    assert len(adapter) - 1 == len(set(spec.__struct_fields__) - elsewhere)


@given(st.binary(max_size=300) | st.text(max_size=100).map(str.encode))
def test_hostile_bytes_are_no_manifest(data: bytes) -> None:
    with pytest.raises(InvalidValue):
        manifests.from_json(data)
