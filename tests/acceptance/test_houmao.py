"""A registry that Houmao's own code shares: it reads what Holdfast writes there, and the other way
round. Its code runs in an environment of its own.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.adapters.managed import ManagedAgent
from holdfast.domains.agents.records import id_of
from holdfast.domains.gateway import AgentState
from holdfast.kernel.agent_adapter import ManagedAdapter
from holdfast.kernel.errors import UpstreamUnavailable
from tests.harness.houmao_package import Houmao
from tests.harness.timeouts import PATIENCE_S, until
from tests.harness.tmux_server import TmuxServer, delivered, tmux_server
from tests.surfaces.command import CommandLine

pytestmark = pytest.mark.prove

GPU = id_of("gpu")
SENTINEL_S = 36_500 * 86_400.0
"""The lease that it gives an agent in tmux."""


class Tree(CommandLine):
    """`holdfast` and Houmao on one registry and one tmux server."""

    def __init__(self, folder: Path, tmux: TmuxServer) -> None:
        super().__init__(folder, **tmux.environment)
        self.tmux = tmux
        (folder / "holdfast.toml").write_text(
            'store = "files:registry"\n[agents]\nprefix = ""\nrecord_version = 3\n'
        )
        self.houmao = Houmao(folder, folder / "registry", tmux.environment)
        self.live = folder / "registry" / "live_agents"
        self.manifest = folder / "session" / "manifest.json"
        self.manifest.parent.mkdir()

    def publish(self, name: str, session: str, **more: Any) -> dict[str, Any]:
        """Publish as Houmao does."""
        facts = {"name": name, "session": session, "manifest_path": str(self.manifest), **more}
        found: dict[str, Any] = self.houmao("publish", **facts)
        return found

    def file(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.live / id_of(name) / "record.json").read_text())
        return found

    def cleanup(self, *words: str) -> dict[str, dict[str, str]]:
        report = json.loads(self("agents", "cleanup", *words, "--json").out)
        return {
            kind: {item["agent_id"]: item["why"] for item in report[kind]}
            for kind in ("planned", "removed", "preserved")
        }

    def said(self, *words: str) -> Any:
        ran = self(*words[:2], "--json", *words[2:])
        assert ran.status == 0, ran.err
        return json.loads(ran.out)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    with tmux_server() as tmux:
        yield Tree(tmp_path, tmux)


def test_its_agents_are_found_and_nobody_takes_them_over(tree: Tree) -> None:
    tree.tmux.listen("gpu-1")
    before = tree.publish("gpu", "gpu-1", lease_s=SENTINEL_S)
    for asked in ("gpu", "HOUMAO-gpu", "HOLDFAST-gpu", GPU):
        ran = tree("agents", "resolve", asked)
        assert (ran.status, ran.out, ran.err) == (0, f"{GPU}\n", ""), asked
    ran = tree("agents", "start", "gpu", "--", "sleep", "600")
    assert ran.status == 4 and "g-gpu" in ran.err
    assert tree.file("gpu") == before, "nothing was written"
    assert tree.cleanup()["preserved"] == {GPU: "fresh"}
    # Renewed by us, it is still theirs, unchanged but for its lease.
    assert tree("agents", "refresh", "gpu", "--generation", "g-gpu", "--lease", "90000").status == 0
    after = tree.houmao("resolve", name="gpu")
    assert {**after, "liveness": None} == {
        **before,
        "liveness": None,
        "lifecycle": {
            **before["lifecycle"],
            "state_updated_at": after["lifecycle"]["state_updated_at"],
        },
    }
    ends = [
        datetime.fromisoformat(one["liveness"]["lease_expires_at"].replace("Z", "+00:00"))
        for one in (before, after)
    ]
    assert ends[0] <= ends[1] > datetime.now(UTC) + timedelta(days=36_000)


def test_an_agent_with_and_one_without_prefix_are_two(tree: Tree) -> None:
    tree.publish("HOUMAO-cpu", "s1")
    assert tree("agents", "resolve", "cpu").out == f"{id_of('HOUMAO-cpu')}\n"
    tree.publish("cpu", "s2")
    assert tree("agents", "resolve", "cpu").out == f"{id_of('cpu')}\n"
    assert tree("agents", "resolve", "HOUMAO-cpu").out == f"{id_of('HOUMAO-cpu')}\n"
    for name in ("HOUMAO-new", "houmao-new", "Houmao_new"):
        ran = tree("agents", "start", name, "--", "sleep", "600")
        assert ran.status == 2 and "reserved" in ran.err and "write new" in ran.err, ran.err


def test_what_has_stopped_is_named_kept_and_not_renewed(tree: Tree) -> None:
    for name, state in (("old", "stopped"), ("gone", "retired"), ("new", "relaunching")):
        before = tree.publish(name, f"s-{name}", state=state)
        ran = tree("agents", "resolve", name)
        assert (ran.status, ran.out) == (1, "") and f"{name} " in ran.err and state in ran.err
        assert tree.houmao("resolve", name=name) is None
        assert tree.file(name) == before
    ran = tree("agents", "refresh", id_of("old"), "--generation", "g-old")
    assert ran.status == 4 and "stopped" in ran.err
    assert "stopped" in tree("agents", "list").out
    kept = tree.cleanup("--grace", "0")["preserved"]
    assert {id_of("old"): "stopped", id_of("gone"): "stopped"}.items() <= kept.items()
    assert tree.houmao("load", agent_id=id_of("old")) is not None


def test_an_agent_whose_tmux_session_is_gone_is_gone_whatever_its_lease(tree: Tree) -> None:
    tree.tmux.listen("other")
    tree.publish("gpu", "no-such-session", lease_s=SENTINEL_S)
    assert tree.cleanup("--dry-run", "--no-tmux-check")["planned"] == {}
    assert tree.cleanup()["removed"] == {GPU: "gone"}
    assert tree.houmao("resolve", name="gpu") is None
    tree.publish("gpu", "no-such-session", lease_s=SENTINEL_S)
    assert tree("agents", "start", "gpu", "--", "sleep", "600").status == 0, "it does not block"


def test_its_own_code_reads_what_is_started_here(tree: Tree) -> None:
    started = tree.said("agents", "start", "gpu", "--", "sleep", "600")
    found = tree.houmao("resolve", name="gpu")
    assert found == tree.houmao("resolve", name=GPU)
    assert (found["agent_id"], found["generation_id"]) == (GPU, started["generation_id"])
    assert found["terminal"]["current_session_name"] == "gpu"
    assert found["lifecycle"] == {**found["lifecycle"], "state": "active", "relaunchable": False}
    # Its cleanup removes what it cannot read, and what has no tmux session.
    assert tree.houmao("cleanup")[GPU][0] == "preserved"
    manifest = tree.houmao("load_manifest", path=found["runtime"]["manifest_path"])
    assert manifest["tmux_session_name"] == manifest["tmux"]["session_name"] == "gpu"
    assert manifest["registry_generation_id"] == found["generation_id"]
    # What its file has no place for is known here all the same.
    shown = tree.said("agents", "get", "gpu")
    assert shown["holder"]["pid"] == started["holder"]["pid"] and shown["token"] > 0
    assert shown["liveness"]["process"] == "alive"
    target = tree.said("agents", "target", "gpu")
    assert target["manifest"]["adapter"]["kind"] == "tmux"
    with pytest.raises(AssertionError, match="ownership conflict"):
        tree.publish("gpu", "another")
    tree.tmux("kill-session", "-t", "=gpu")
    until(lambda: not (tree.live / GPU).exists())


def test_what_a_record_of_version_3_has_no_place_for_is_refused(tree: Tree) -> None:
    ran = tree("agents", "run", "cpu", "--", "true")
    assert ran.status == 2 and "version 3" in ran.err and "in tmux" in ran.err
    assert not tree.live.exists() or not list(tree.live.iterdir())


def test_its_manifest_says_how_its_agent_is_reached(tree: Tree) -> None:
    """The gateway types into an agent that Houmao has started."""
    tree.tmux.listen("gpu-1")
    facts = {"name": "gpu", "session": "gpu-1", "tool": "listener"}
    tree.houmao("write_manifest", path=str(tree.manifest), **facts)
    tree.publish("gpu", "gpu-1")
    target = tree.said("agents", "target", "gpu")
    assert target["session_name"] == "gpu-1" and target["manifest"]["tool"] == "listener"
    with serving(tree, "gpu", "--ready-regex", "ready>"):
        assert tree("gateway", "prompt", "gpu", "hello", "--wait").status == 0
    assert tree.tmux.typed() == delivered(b"hello")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema_version": 5}, ["schema_version is 5", "reads 1, and 4"]),
        ({"schema_version": 3}, ["schema_version is 3", "reads 1, and 4"]),
        ({"registry_generation_id": "g-other"}, ["g-other"]),
        ({"registry_generation_id": None}, ["generation_id"]),
        ({"backend": "claude_headless"}, ["claude_headless", "gateway_authority"]),
        ({"agent_id": "other"}, ["other"]),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(
    tree: Tree, change: dict[str, Any], says: list[str]
) -> None:
    tree.tmux.listen("gpu-1")
    written = tree.houmao("write_manifest", path=str(tree.manifest), name="gpu", session="gpu-1")
    tree.publish("gpu", "gpu-1")
    tree.manifest.write_text(json.dumps({**written, **change}))
    for words in (("agents", "target", "gpu"), ("gateway", "serve", "gpu")):
        ran = tree(*words)
        assert ran.status != 0
        assert all(one in ran.err for one in says), ran.err
    assert tree.tmux.typed() == b""


def test_a_record_of_a_later_version_is_kept_and_named(tree: Tree) -> None:
    record = tree.publish("gpu", "gpu-1")
    path = tree.live / GPU / "record.json"
    path.write_text(json.dumps({**record, "schema_version": 4}))
    ran = tree("agents", "get", GPU)
    assert ran.status != 0 and "version 4" in ran.err and "knows 2 and 3" in ran.err
    assert tree.cleanup()["preserved"] == {GPU: "too_new"}


@contextmanager
def serving(tree: Tree, agent: str, *words: str) -> Iterator[dict[str, Any]]:
    """A gateway of an agent; yields its status when it answers."""
    ended = threading.Event()

    def serve() -> None:
        tree("gateway", "serve", agent, *words)
        ended.set()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        until(lambda: ended.is_set() or tree("gateway", "status", agent).status == 0)
        assert not ended.is_set()
        yield tree.said("gateway", "status", agent)
    finally:
        tree("gateway", "detach", agent)
        thread.join(PATIENCE_S)


def test_its_gateway_client_sees_that_a_gateway_is_there_and_gets_no_further(tree: Tree) -> None:
    tree("agents", "start", "gpu", "--", "sleep", "600")
    with serving(tree, "gpu") as status:
        until(lambda: tree.file("gpu")["gateway"])
        gateway = tree.houmao("resolve", name="gpu")["gateway"]
        assert (gateway["host"], gateway["port"]) == ("127.0.0.1", status["gateway_port"])
        found = tree.houmao("ask_gateway", host=gateway["host"], port=gateway["port"])
        assert found["health"] == {"protocol_version": "v1", "status": "ok"}
        # It sends no token.
        assert (found["status"]["status_code"], found["requests"]["status_code"]) == (401, 401)
        assert tree.said("gateway", "status", "gpu")["queue_depth"] == 0
    assert tree.file("gpu")["gateway"] is None


def managed(url: str, ref: str) -> ManagedAgent:
    return ManagedAgent(
        ManagedAdapter(managed_api_base_url=url, managed_agent_ref=ref, timeout_s=PATIENCE_S)
    )


def test_a_headless_agent_of_its_passive_server_is_prompted_and_interrupted(tree: Tree) -> None:
    tree.tmux.listen("brain-1")
    facts = {"name": "brain", "session": "brain-1", "folder": str(tree.manifest.parent)}
    with (
        tree.houmao.passive_server(**facts) as url,
        closing(managed(url, "brain")) as agent,
        closing(managed(url, "nobody")) as nobody,
    ):
        seen = agent.inspect()
        assert seen.instance_id is not None and seen.state is AgentState.READY, seen
        assert agent.interrupt(seen.instance_id) is False
        answer = agent.answer(agent.deliver("hello", seen.instance_id), threading.Event())
        assert (answer.text, answer.code, answer.known) == ("you said: hello", None, True)
        # A turn that runs: nothing else is taken, and it is interrupted.
        waiting = agent.deliver("wait", seen.instance_id)
        assert agent.inspect() == seen._replace(state=AgentState.WORKING)
        with pytest.raises(UpstreamUnavailable) as caught:
            agent.deliver("again", seen.instance_id)
        assert (caught.value.fields["outcome"], caught.value.fields["status"]) == ("none", 409)
        assert agent.interrupt(seen.instance_id) is True
        answer = agent.answer(waiting, threading.Event())
        assert answer.code == "agent_failed"
        assert nobody.inspect().instance_id is None


def test_its_passive_server_finds_an_agent_that_is_started_here(tree: Tree) -> None:
    tree.tmux.listen("keeps-the-server")
    tree("agents", "start", "gpu", "--", "sleep", "600")
    with (
        tree.houmao.passive_server() as url,
        closing(managed(url, "gpu")) as agent,
        httpx.Client(base_url=url, trust_env=False) as found,
    ):
        until(lambda: found.get("/houmao/agents/gpu").is_success)
        shown = found.get("/houmao/agents/gpu").json()
        assert (shown["agent_id"], shown["tmux_session_name"]) == (GPU, "gpu")
        assert shown["generation_id"] == tree.file("gpu")["generation_id"]
        # It looks for a tool that it knows, and `sleep` is none.
        until(lambda: "unavailable" in agent.inspect().detail, saw=agent.inspect)
        # Its server never types by itself, and the agent has no gateway.
        with pytest.raises(UpstreamUnavailable, match="No gateway attached"):
            agent.deliver("hello", "any")
        # The reason for a body without the kind of request.
        body = {"request_kind": "submit_prompt", "prompt": "hello"}
        assert found.post("/houmao/agents/gpu/requests", json=body).status_code == 422
