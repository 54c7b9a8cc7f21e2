"""`holdfast agents` as scripts use it: its output and exit status agree with the library."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.domains.agents import Agent, Manifest
from holdfast.domains.agents.manifest import TmuxHandle, as_json
from holdfast.kernel.agent_adapter import TmuxAdapter
from holdfast.runtime.connection import Holdfast, connect
from tests.harness.tmux_server import tmux_server
from tests.stores.harnesses import SqliteHarness
from tests.surfaces.command import CommandLine, Ran

pytestmark = pytest.mark.prove


class Registry(CommandLine):
    """`holdfast agents` on a store of its own."""

    def __init__(self, folder: Path, hf: Holdfast, url: str) -> None:
        super().__init__(folder, HOLDFAST_STORE=url, TMUX_TMPDIR=str(folder))
        self.hf = hf
        self.manifest = str(folder / "manifest.json")

    def damage(self, agent_id: str) -> None:
        """Cut a record off after its first character."""
        if self.hf.store.kind == "files":
            (self.folder / "registry" / "live_agents" / agent_id / "record.json").write_bytes(b"{")
        else:
            SqliteHarness(self.folder).damage("agents", agent_id, b"{")

    def publish(self, name: str = "gpu", *words: str) -> Agent:
        said = [
            "--manifest",
            self.manifest,
            "--backend",
            "claude_headless",
            "--tool",
            "claude",
            "--tmux-session",
            "s-1",
        ]
        ran = self("agents", "publish", name, *said, *words, "--json")
        assert ran.status == 0, ran.err
        return self.hf.agents.get(json.loads(ran.out)["agent_id"])

    def write_manifest(self, agent: Agent, **more: object) -> None:
        facts = {
            "agent_id": agent.agent_id,
            "agent_name": agent.agent_name,
            "generation_id": agent.generation_id,
            "backend": agent.identity.backend,
            "tool": agent.identity.tool,
            "working_directory": str(self.folder),
            "adapter": TmuxAdapter(),
            "tmux": TmuxHandle(session_name="s-1"),
            **more,
        }
        Path(self.manifest).write_bytes(as_json(Manifest(**facts)))  # type: ignore[arg-type]


@pytest.fixture(params=["sqlite:{}/store.sqlite", "files:{}/registry"], ids=["sqlite", "files"])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Registry]:
    url = request.param.format(tmp_path)
    with connect(url) as hf:
        yield Registry(tmp_path, hf, url)


def refused(ran: Ran, status: int, *words: str) -> None:
    assert ran.status == status
    assert ran.err.startswith("holdfast: ") and ran.err.count("\n") == 1
    assert all(word in ran.err for word in words), ran.err


def test_publish_refresh_get_remove(registry: Registry) -> None:
    agent = registry.publish(
        "gpu", "--pid", str(os.getpid()), "--lease", "600", "--agent-def-dir", str(registry.folder)
    )
    assert agent.holder == registry.hf.processes.of(os.getpid())
    assert (agent.lease_expires_at - agent.published_at).total_seconds() == 600
    generation = ["--generation", agent.generation_id]
    ran = registry("agents", "refresh", "gpu", *generation, "--lease", "6000")
    assert ran.status == 0 and agent.generation_id in ran.out
    after = registry.hf.agents.get(agent.agent_id)
    assert after.lease_expires_at > agent.lease_expires_at
    shown = json.loads(registry("agents", "get", "gpu", "--json").out)
    liveness = shown.pop("liveness")
    assert shown["token"] == agent.token and shown["generation_id"] == agent.generation_id
    assert liveness == {
        "lease": "alive",
        "process": "alive",
        "tmux_session": "dead",
        "gateway": None,
    }
    plain = registry("agents", "get", agent.agent_id).out
    assert "identity.tool" in plain and "is tmux session" in plain
    refused(registry("agents", "refresh", "gpu", "--generation", "g-2"), 4, "Stand down")
    refused(
        registry("agents", "refresh", "gpu", *generation, "--token", "1"), 4, "no longer counts"
    )
    refused(registry("agents", "remove", "gpu", "--generation", "g-2"), 4, "Stand down")
    assert registry("agents", "remove", "gpu", *generation).out == f"removed {agent.agent_id}\n"
    refused(registry("agents", "remove", agent.agent_id, *generation), 1, "there is no agent")
    refused(registry("agents", "refresh", agent.agent_id, *generation), 4, "nobody has it")
    refused(registry("agents", "get", "gpu"), 1, "holdfast agents list")


def test_a_one_shot_publish_records_no_process(registry: Registry) -> None:
    assert registry.publish().holder is None


def test_what_the_manifest_says_need_not_be_said(registry: Registry) -> None:
    agent = registry.publish()
    registry.write_manifest(agent, agent_def_dir=str(registry.folder))
    ran = registry("agents", "publish", "--manifest", registry.manifest, "--json")
    again = json.loads(ran.out)
    assert ran.status == 0
    assert (again["agent_id"], again["generation_id"]) == (agent.agent_id, agent.generation_id)
    assert again["token"] > agent.token
    assert again["terminal"] == {"kind": "tmux", "session_name": "s-1"}
    assert (
        again["runtime"]["agent_def_dir"]
        == again["runtime"]["session_root"]
        == str(registry.folder)
    )


def test_without_a_manifest_it_must_be_said(registry: Registry) -> None:
    ran = registry("agents", "publish", "gpu", "--manifest", registry.manifest)
    assert ran.status == 2 and "--backend is missing" in ran.err
    refused(
        registry("agents", "publish", "gpu", "--manifest", "m.json"), 2, "manifest_path", "absolute"
    )
    refused(registry("agents", "publish", "--manifest", "m.json"), 2, "manifest_path", "absolute")
    Path(registry.manifest).write_text("{}")
    refused(registry("agents", "publish", "gpu", "--manifest", registry.manifest), 2, "agent_id")


@pytest.mark.parametrize(
    "option",
    ["--tmux-session", "--session-root", "--agent-def-dir", "--id", "--generation", "--tool"],
)
def test_what_a_shell_left_blank_is_refused_and_not_passed_over(
    registry: Registry, option: str
) -> None:
    agent = registry.publish()
    registry.write_manifest(agent, agent_def_dir=str(registry.folder))
    field = {"--tmux-session": "session_name", "--id": "agent id"}.get(
        option, option.strip("-").replace("-", "_")
    )
    refused(registry("agents", "publish", "--manifest", registry.manifest, option, ""), 2, field)
    assert registry.hf.agents.list_agents() == [agent]
    if option in ("--session-root", "--id", "--tool"):
        refused(registry("agents", "start", "other", option, "", "--", "sleep", "600"), 2, field)
        assert registry.hf.agents.list_agents() == [agent]


def test_another_generation_is_refused_without_take_over(registry: Registry) -> None:
    first = registry.publish()
    words = ["--manifest", registry.manifest, "--backend", "claude_headless", "--tool", "x"]
    refused(registry("agents", "publish", "gpu", *words), 4, first.generation_id, "--take-over")
    assert registry("agents", "publish", "gpu", *words, "--take-over").status == 0


def test_list(registry: Registry) -> None:
    assert registry("agents", "list").out == ""
    agents = [
        registry.publish(name, "--lease", lease) for name, lease in (("b", "0.001"), ("a", "600"))
    ]
    rows = [row.split("\t") for row in registry("agents", "list").out.splitlines()]
    assert [row[0] for row in rows] == ["HOLDFAST-a", "HOLDFAST-b"]
    assert rows[0][1:5] == ["unknown", "-", "-", "none"]
    assert rows[0][6:] == ["-", "s-1", "claude"]
    assert [
        one["agent_id"] for one in json.loads(registry("agents", "list", "--fresh", "--json").out)
    ] == [agents[1].agent_id]
    on_a_terminal = registry.on_a_terminal("agents", "list", columns=120)
    assert "9 min" in on_a_terminal and "over for" in on_a_terminal
    registry.damage(agents[0].agent_id)
    ran = registry("agents", "list")
    assert ran.status == 7 and len(ran.out.splitlines()) == 1 and agents[0].agent_id in ran.err


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_looking_makes_no_store(tmp_path: Path, kind: str) -> None:
    command = CommandLine(tmp_path, HOLDFAST_STORE=f"{kind}:{tmp_path}/none")
    assert command("agents", "list").status == 0
    assert command("agents", "resolve", "gpu").status == 1
    assert command("agents", "target", "gpu").status == 1
    assert command("agents", "get", "gpu").status == 1
    assert command("agents", "cleanup", "--dry-run").status == 0
    assert not (tmp_path / "none").exists()


def test_resolve_gives_the_reason(registry: Registry) -> None:
    refused(registry("agents", "resolve", "gpu"), 1, "missing: ")
    agent = registry.publish()
    ran = registry("agents", "resolve", "HOUMAO-gpu")
    assert (ran.status, ran.out, ran.err) == (0, agent.agent_id + "\n", "")
    registry.publish("gpu", "--id", "second")
    refused(registry("agents", "resolve", "gpu"), 4, "ambiguous: ", "second")
    ran = registry("agents", "resolve", "gpu", "--json")
    answer = json.loads(ran.out)
    assert (ran.status, answer["record"], answer["reason"], ran.err) == (4, None, "ambiguous", "")
    assert set(answer["agent_ids"]) == {agent.agent_id, "second"}
    registry.damage("second")
    refused(registry("agents", "resolve", "second"), 1, "malformed: ")
    assert (
        json.loads(registry("agents", "resolve", "gpu", "--json").out)["record"]["agent_id"]
        == agent.agent_id
    )
    refused(registry("agents", "resolve", "../x"), 2, "agent name or id")


def test_target_trusts_nothing(registry: Registry) -> None:
    agent = registry.publish()
    refused(registry("agents", "target", "gpu"), 4, "manifest", "gone")
    registry.write_manifest(agent)
    refused(registry("agents", "target", "gpu"), 4, "no tmux session s-1")
    with tmux_server() as tmux:
        registry.environment.update(tmux.environment)
        tmux("new-session", "-d", "-s", "s-1", "sleep 600")
        ran = registry("agents", "target", "gpu")
        assert ran.status == 0 and "tmux session       s-1" in ran.out
        assert (
            json.loads(registry("agents", "target", "gpu", "--json").out)["session_name"] == "s-1"
        )
        refused(registry("agents", "target", "gpu", "--needs-agent-def-dir"), 4, "--agent-def-dir")
        folder = str(registry.folder)
        assert (
            registry(
                "agents", "target", "gpu", "--needs-agent-def-dir", "--agent-def-dir", folder
            ).status
            == 0
        )
        registry.write_manifest(agent, generation_id="earlier")
        refused(registry("agents", "target", "gpu"), 4, "generation earlier", agent.generation_id)
    refused(registry("agents", "target", "s-1"), 4, "not inferred", "HOLDFAST-gpu")
    registry.write_manifest(agent, tmux=TmuxHandle(session_name="s-2"))
    refused(registry("agents", "target", "gpu"), 4, "s-1", "s-2")


def test_cleanup_lists_what_it_did(registry: Registry) -> None:
    stale = registry.publish("stale", "--lease", "0.001")
    fresh = registry.publish("fresh")
    ran = registry("agents", "cleanup", "--grace", "0", "--dry-run")
    assert ran.status == 0
    assert [row.split("\t")[:3] for row in ran.out.splitlines()] == [
        ["planned", stale.agent_id, "expired"],
        ["preserved", fresh.agent_id, "fresh"],
    ]
    report = json.loads(
        registry("agents", "cleanup", "--grace", "0", "--no-tmux-check", "--json").out
    )
    assert [one["agent_id"] for one in report["removed"]] == [stale.agent_id]
    assert (report["dry_run"], report["failed"]) == (False, [])
    refused(registry("agents", "get", stale.agent_id), 1)
    assert registry("agents", "cleanup", "--grace", "nan").status == 2
    assert registry("agents", "cleanup", "--grace", "-1").status == 2


def test_the_prefix_and_exclusive_names_come_from_the_settings(registry: Registry) -> None:
    (registry.folder / "holdfast.toml").write_text(
        '[agents]\nprefix = "HOUMAO-"\nnames = "exclusive"\nlease_s = 100\n'
    )
    agent = registry.publish("gpu", "--id", "one")
    assert agent.agent_name == "HOUMAO-gpu"
    assert (agent.lease_expires_at - agent.published_at).total_seconds() == 100
    ran = registry(
        "agents",
        "publish",
        "gpu",
        "--manifest",
        registry.manifest,
        "--backend",
        "command",
        "--tool",
        "x",
        "--id",
        "two",
    )
    refused(ran, 4, "HOUMAO-gpu (one)")
    for wrong in ('prefix = "ACME-"', 'names = "both"', "lease_s = 0", "surprise = 1"):
        (registry.folder / "holdfast.toml").write_text(f"[agents]\n{wrong}\n")
        refused(registry("agents", "list"), 2)


@pytest.mark.parametrize("verb", ["run", "start"])
def test_a_command_is_needed(registry: Registry, verb: str) -> None:
    ran = registry("agents", verb, "gpu")
    assert ran.status == 2 and f"holdfast agents {verb} NAME -- COMMAND" in ran.err
    refused(registry("agents", verb, "HOLDFAST-", "--", "true"), 2, "reserved")
