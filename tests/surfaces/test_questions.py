"""Questions as an operator and an agent meet them: over HTTP, on the command line, over MCP."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.adapters.gateway_folder import CurrentInstance, GatewayFolder
from holdfast.kernel.errors import Refused
from holdfast.kernel.limits import LABEL_CHARS_MAX
from holdfast.processes.procfs import Procfs
from holdfast.runtime.configuration import gateway_root
from holdfast.runtime.connection import Holdfast
from tests.surfaces.command import CommandLine
from tests.surfaces.gateway_http import TOKEN, Served, served
from tests.surfaces.mcp_agent import Agents, ToolError, agents_on

pytestmark = pytest.mark.prove


class Room:
    """A store, the gateway of an agent gpu, and a command line."""

    def __init__(self, hf: Holdfast, gate: Served, folder: Path, url: str) -> None:
        self.hf, self.gate, self.url = hf, gate, url
        self.folder = GatewayFolder(gateway_root(hf.settings, "gpu"))
        self.environment = {
            "HOLDFAST_STORE": url,
            "HOLDFAST_GATEWAY_ROOT": str(folder / "gateways"),
            "HOLDFAST_ACTOR": "boss",
        }
        self.command = CommandLine(folder, **self.environment)

    def asks(self, question_id: str = "q1", **more: Any) -> None:
        self.gate.agent.asks(question_id, **more)
        self.gate.gateway.look()
        self.folder.write_state(self.gate.gateway.status())

    def noted(self) -> list[dict[str, Any]]:
        return [
            entry.data
            for entry in self.gate.store.journal().entries
            if entry.kind == "gateway.question_answered"
        ]

    def waiting_job(self, queue: str = "tmux:HOLDFAST-gpu", detail: str = "flash it?") -> str:
        job_id = self.hf.jobs.register_job("flash", agent="a", agent_session=queue).job_id
        job = self.hf.jobs.pick_pending(queue)
        assert job is not None
        self.hf.job_events.publish(job_id, "permission_required", detail=detail, token=job.token)
        return job_id


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Room]:
    monkeypatch.setenv("HOLDFAST_GATEWAY_ROOT", str(tmp_path / "gateways"))
    url = f"sqlite:{tmp_path}/store.sqlite"
    with holdfast.connect(url) as hf:
        folder = GatewayFolder(gateway_root(hf.settings, "gpu"))
        folder.prepare()
        with served(folder.root) as gate:
            folder.token.write_text(TOKEN)
            instance = CurrentInstance(
                pid=os.getpid(),
                host="127.0.0.1",
                port=gate.port,
                managed_agent_instance_epoch=1,
                process=Procfs().current(),
            )
            folder.write_instance(instance)
            yield Room(hf, gate, tmp_path, url)


@pytest.fixture
def agents(room: Room, tmp_path: Path) -> Iterator[Agents]:
    with agents_on(room.url, tmp_path) as made:
        yield made


# --- the gateway's own HTTP ---


def test_a_question_is_answered_over_http_once(room: Room) -> None:
    room.asks("q1", free_text=False)
    http = room.gate.http
    [asked] = http.get("/v1/questions").json()["questions"]
    assert (asked["question_id"], asked["subject"]) == ("q1", "Bash: make flash")
    for wrong, code in (
        ({"reply": "maybe"}, "invalid_value"),
        ({"reply": ""}, "invalid_value"),
        ({"reply": "allow", "to": "x"}, "invalid_value"),
        ({"reply": "allow", "by": "a\nb"}, "invalid_name"),
        ({"reply": "allow", "by": "x" * (LABEL_CHARS_MAX + 1)}, "invalid_value"),
        ({}, "invalid_value"),
    ):
        refused = http.post("/v1/questions/q1/answer", json=wrong)
        assert (refused.status_code, refused.json()["code"]) == (422, code), wrong
    assert room.gate.agent.replies == []
    done = http.post("/v1/questions/q1/answer", json={"reply": "allow", "by": "boss"})
    assert (done.status_code, done.json()["question_id"]) == (200, "q1")
    over = http.post("/v1/questions/q1/answer", json={"reply": "deny"})
    assert (over.status_code, over.json()["code"]) == (404, "not_found")
    assert room.gate.agent.replies == [("q1", "allow")]
    [noted] = room.noted()
    assert (noted["by"], noted["claimed"], noted["reply"]) == ("boss", True, "allow")


def test_an_agent_that_is_away_gets_no_answer(room: Room) -> None:
    room.asks("q1")
    room.gate.agent.instance_id = None
    away = room.gate.http.post("/v1/questions/q1/answer", json={"reply": "allow"})
    assert (away.status_code, away.json()["code"]) == (503, "upstream_unavailable")
    assert room.gate.agent.replies == []


def test_a_sender_that_http_gives_is_claimed(room: Room) -> None:
    sent = room.gate.prompt("hello", sender="boss").json()["request_id"]
    shown = room.gate.ended(sent)
    assert (shown["sender"], shown["sender_claimed"]) == ("boss", True)
    for wrong in ("", "a\x1bb", "x" * (LABEL_CHARS_MAX + 1)):
        assert room.gate.prompt("hello", sender=wrong).status_code == 422
    nobody = room.gate.ended(room.gate.prompt("hello").json()["request_id"])
    assert (nobody["sender"], nobody["sender_claimed"]) == (None, False)


# --- the command line ---


def test_one_open_question_needs_no_name(room: Room) -> None:
    assert room.command("gateway", "questions").out == ""
    assert room.command("gateway", "answer", "gpu", "allow").status == 1
    room.asks("q1")
    [line] = room.command("gateway", "questions").out.splitlines()
    assert line.split("\t")[:2] == ["gpu", "q1"]
    assert line.split("\t")[3:] == ["Bash: make flash", "allow | deny | TEXT"]
    assert "Bash: make flash" in room.command("gateway", "status", "gpu").out
    assert room.command("gateway", "answer", "gpu", "allow").status == 0
    assert room.gate.agent.replies == [("q1", "allow")]
    assert [one["by"] for one in room.noted()] == ["boss"]

    room.asks("q2")
    room.asks("q3")
    ambiguous = room.command("gateway", "answer", "gpu", "allow")
    assert ambiguous.status == 4 and "q2, q3" in ambiguous.err
    assert room.command("gateway", "answer", "gpu", "q3", "use", "it").status == 2
    assert room.command("gateway", "answer", "gpu", "q3", "use another").status == 0
    assert room.gate.agent.replies[1:] == [("q3", "use another")]
    assert room.command("gateway", "answer", "gpu", "q3", "allow").status == 1


def test_a_gateway_at_an_address_is_answered_too(room: Room) -> None:
    room.asks("q1")
    at = ("--url", room.gate.url, "--token-file", str(room.folder.token))
    [asked] = json.loads(room.command("gateway", "questions", "gpu", *at, "--json").out)
    assert asked["question_id"] == "q1"
    assert room.command("gateway", "questions", *at).status == 2
    assert room.command("gateway", "answer", "gpu", "deny", *at).status == 0
    assert room.gate.agent.replies == [("q1", "deny")]


def test_a_killed_gateway_asks_nothing(room: Room) -> None:
    room.asks("q1")
    instance = room.folder.instance()
    assert instance is not None and instance.process is not None
    from msgspec.structs import replace

    from tests.surfaces.locking import a_dead_process

    room.folder.write_instance(replace(instance, process=a_dead_process()))
    assert json.loads(room.command("gateway", "questions", "--json").out) == []


def test_a_waiting_job_is_in_the_list_of_its_agent(room: Room) -> None:
    room.asks("q1")
    job_id = room.waiting_job()
    found = json.loads(room.command("gateway", "questions", "gpu", "--json").out)
    ids = [(one["source"], one["question_id"], one["job_id"]) for one in found]
    assert ids == [("gateway", "q1", None), ("job", f"job.{job_id}.1", job_id)]
    assert json.loads(room.command("gateway", "questions", "--json").out) == found
    assert room.command("gateway", "answer", "cpu", f"job.{job_id}.1", "allow").status == 1
    assert room.command("gateway", "answer", "gpu", f"job.{job_id}.1", "allow").status == 0
    assert room.command("gateway", "answer", "gpu", f"job.{job_id}.1", "allow").status == 1
    [_, answered] = room.hf.job_events.of_job(job_id)
    assert answered.data == {"answer": "allow", "question": 1, "by": "boss"}
    assert room.gate.agent.replies == []


def test_a_waiting_job_is_answered_without_a_gateway(room: Room) -> None:
    job_id = room.waiting_job("line of no agent")
    [asked] = json.loads(room.command("gateway", "questions", "--json").out)
    assert asked["agent"] == "line of no agent"
    assert room.command("gateway", "answer", "line of no agent", "allow").status == 0
    assert room.hf.jobs.get_job(job_id).waiting_since is None


# --- states ---


def test_agents_list_shows_what_an_agent_does(room: Room, tmp_path: Path) -> None:
    from holdfast.domains.agents import GatewayAddress

    agent = room.hf.agents.publish(
        "gpu", backend="claude_headless", tool="claude", manifest_path=str(tmp_path / "m.json")
    )
    where = GatewayAddress(
        host="127.0.0.1",
        port=room.gate.port,
        state_path=str(room.folder.state_path),
        protocol_version="v1",
    )
    room.hf.agents.attach_gateway(agent.agent_id, agent.generation_id, where)

    def work() -> dict[str, Any]:
        [one] = json.loads(room.command("agents", "list", "--json").out)
        found: dict[str, Any] = one["work"]
        return found

    room.gate.agent.activity = "Bash: make"
    room.asks("q1")
    known = work()
    assert (known["state"], known["questions"], known["gateway"]) == ("asking", 1, "serving")
    assert (known["activity"], known["idle_since"]) == ("Bash: make", None)
    room.gate.gateway.reply("q1", "allow")
    room.folder.write_state(room.gate.gateway.status())
    known = work()
    assert (known["state"], known["queue_depth"]) == ("ready", 0)
    assert known["idle_since"] == known["since"] is not None
    room.folder.remove_instance()
    assert (work()["state"], work()["gateway"]) == ("unknown", "gone")
    room.folder.state_path.unlink()
    assert work()["gateway"] == "elsewhere"


# --- MCP ---


def test_an_agent_answers_only_where_it_may_and_never_itself(room: Room, agents: Agents) -> None:
    room.asks("q1")
    asked = {"agent": "gpu", "question_id": "q1", "reply": "allow"}
    with pytest.raises(ToolError) as refused:
        agents("other", environment=room.environment).call("answer_question", **asked)
    assert (refused.value.code, refused.value.code) == (Refused.code, "refused")
    itself = agents("gpu", "--allow", "answer", environment=room.environment)
    for name in ("gpu", "HOLDFAST-gpu"):
        with pytest.raises(ToolError) as refused:
            itself.call("answer_question", **{**asked, "agent": name})
        assert refused.value.code == "refused"
    assert room.gate.agent.replies == []
    chief = agents("chief", "--allow", "answer", environment=room.environment)
    assert chief.call("whoami")["may"] == ["answer"]
    [found] = chief.call("find_agents")["questions"]
    assert (found["agent"], found["question_id"]) == ("gpu", "q1")
    assert chief.call("answer_question", **asked)["by"] == "chief"
    assert room.gate.agent.replies == [("q1", "allow")]
    assert [one["by"] for one in room.noted()] == ["chief"]


def test_a_prompt_over_mcp_has_the_servers_own_identity(room: Room, agents: Agents) -> None:
    chief = agents("chief", environment=room.environment)
    sent = chief.call("send_request", agent="gpu", prompt="hello", wait_s=25)
    assert sent["sender"] == "chief"
    with pytest.raises(ToolError) as refused:
        chief.call("send_request", agent="gpu", prompt="hello", sender="boss")
    assert refused.value.code == "invalid_value"


def test_a_worker_over_mcp_gets_the_answer_to_its_permission(room: Room, agents: Agents) -> None:
    worker = agents("gpu", environment=room.environment)
    job_id = room.hf.jobs.register_job("flash", agent="a", agent_session="gpu").job_id
    handle = worker.call("claim_job")["handle"]
    asked = worker.call(
        "report_job", job_id=job_id, outcome="permission_required", detail="flash it?"
    )
    assert asked["pending"] == []
    waiting = worker.call("wait", handle=handle, wait_s=0)
    assert (waiting["state"], waiting["answer"]) == ("waiting", None)
    waits = worker.begin("wait", handle=handle, wait_s=25)
    assert room.command("gateway", "answer", "gpu", "allow").status == 0
    answered = waits.result(30)
    assert (answered["state"], answered["answer"]["answer"]) == ("answered", "allow")
    assert answered["answer"]["by"] == "boss"
    [notice] = worker.call("status", handle=handle)["pending"]
    assert (notice["kind"], notice["handle"]) == ("job_answered", handle)
    done = worker.call("report_job", job_id=job_id, outcome="completed")
    assert done["pending"] == []


def test_stale_agents_are_cleaned_up_over_mcp(room: Room, agents: Agents, tmp_path: Path) -> None:
    from tests.surfaces.locking import a_dead_process

    room.hf.agents.publish(
        "old",
        backend="claude_headless",
        tool="claude",
        manifest_path=str(tmp_path / "m.json"),
        holder=a_dead_process(),
    )
    chief = agents("chief", environment=room.environment)
    planned = chief.call("clean_up_agents", dry_run=True)["planned"]
    assert len(planned) == 1
    removed = chief.call("clean_up_agents")["removed"]
    assert [one["agent_id"] for one in removed] == [one["agent_id"] for one in planned]
    assert room.hf.agents.list_agents() == []
