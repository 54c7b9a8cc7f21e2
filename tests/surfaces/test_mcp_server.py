"""`holdfast mcp` itself: what it accepts and refuses, its identity, its outputs, and a store that
is down for a while.
"""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import CancelledError, as_completed
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.kernel.limits import (
    LABEL_CHARS_MAX,
    LOCK_NAMES_MAX,
    MCP_CALLS_MAX,
    MCP_HANDLES_MAX,
    MCP_LINE_BYTES_MAX,
    MCP_WAIT_MAX_S,
)
from holdfast.surfaces.mcp.tools import TOOLS
from tests.harness.timeouts import PATIENCE_S
from tests.stores.postgres_server import running
from tests.surfaces.command import ENTRY, CommandLine
from tests.surfaces.mcp_agent import Agent, Agents, ToolError, agents_on

pytestmark = pytest.mark.prove


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Agents]:
    with agents_on(f"sqlite:{tmp_path}/s.sqlite", tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    """Agents that stay from test to test."""
    folder = tmp_path_factory.mktemp("mcp")
    with agents_on(f"sqlite:{folder}/s.sqlite", folder) as made:
        yield made


@pytest.fixture(scope="module")
def agent(lasting: Agents) -> Agent:
    """One that nothing is left in the hand of."""
    return lasting("tmux:claude-a", "--queue", "q1", "--queue", "q2")


# --- the descriptions of the tools ---


LIST_BYTES_MAX = 15_000
"""A model reads the whole list before its first call."""


def test_every_tool_says_what_it_takes(agent: Agent) -> None:
    tools = agent.tools()
    assert [tool.name for tool in tools] == list(TOOLS)
    for tool in tools:
        assert tool.input_schema["type"] == "object"
        assert tool.input_schema["additionalProperties"] is False
        assert 60 < len(tool.description or "") < 400
        for name, argument in tool.input_schema["properties"].items():
            assert {"type", "enum"} & set(argument), (tool.name, name)
        # Other languages do not know Python's patterns, and a reference costs a second reading.
        assert "$" not in json.dumps(tool.input_schema)


def test_the_list_of_tools_is_short(tmp_path: Path) -> None:
    raw = Raw(CommandLine(tmp_path, HOLDFAST_STORE=f"sqlite:{tmp_path}/s.sqlite"))
    raw.begin()
    listed = raw.ask(2, "tools/list")
    raw.process.communicate(timeout=PATIENCE_S)
    assert len(json.dumps(listed, separators=(",", ":")).encode()) < LIST_BYTES_MAX


# --- what is refused ---


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("acquire", {}, "names"),
        ("acquire", {"names": []}, "names"),
        ("acquire", {"names": "x"}, "names"),
        ("acquire", {"names": ["x"], "by": "somebody else"}, "by"),
        ("acquire", {"names": ["x"], "wait_s": MCP_WAIT_MAX_S + 1}, "wait_s"),
        ("acquire", {"names": ["x"], "wait_s": -1}, "wait_s"),
        ("acquire", {"names": ["x"], "wait_s": True}, "wait_s"),
        ("acquire", {"names": ["x"], "ttl_s": 0}, "ttl_s"),
        ("acquire", {"names": ["x" * (LABEL_CHARS_MAX + 1)]}, "resource"),
        ("acquire", {"names": [f"n{number}" for number in range(LOCK_NAMES_MAX + 1)]}, "names"),
        ("claim_job", {"queue": "another agent's"}, "queue"),
        ("create_job", {"prompt": "p", "queue": "q", "workdir": "relative"}, "workdir"),
        ("create_job", {"prompt": "", "queue": "q"}, "prompt"),
        ("report_job", {"job_id": "x", "outcome": "splendid"}, "outcome"),
        ("send_request", {"agent": "x", "kind": "interrupt", "prompt": "p"}, "prompt"),
        ("send_request", {"agent": "x"}, "prompt"),
        ("status", {"lock": "x", "job_id": "y"}, "not both"),
        ("status", {"handle": "x", "job_id": "y"}, "not both"),
        ("request_status", {"request_id": "x"}, "agent"),
        ("yield_or_swap", {"action": "swap"}, "recipe"),
        ("yield_or_swap", {"action": "loaded", "recipe": "r"}, "handle"),
        ("use_recipe", {"recipe": {"$ref": "x"}}, "recipe"),
    ],
)
def test_wrong_arguments_are_refused_by_name(
    agent: Agent, tool: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ToolError) as refused:
        agent.call(tool, **arguments)
    assert refused.value.code in ("invalid_value", "invalid_name")
    assert message in refused.value.message
    assert agent.call("whoami")["holdings"] == []


def test_a_tool_that_is_not_there_names_those_that_are(agent: Agent) -> None:
    with pytest.raises(ToolError) as refused:
        agent.call("rm_rf")
    assert refused.value.code == "not_found"
    assert "claim_job" in refused.value.message


def test_a_command_in_a_message_is_about_the_servers_own_store(
    agents: Agents, tmp_path: Path
) -> None:
    """An agent with a shell runs it there, where no option of the server chooses the store."""
    chosen = f"sqlite:{tmp_path}/other.sqlite"
    with pytest.raises(ToolError) as refused:
        agents("a", "--store", chosen, "--namespace", "lab").call("retry_job", job_id="nosuch")
    assert f"`holdfast --store {chosen} --namespace lab jobs list`" in refused.value.message


def test_an_agent_that_is_not_there_is_not_asked_again_and_again(agent: Agent) -> None:
    for tool, more in (("send_request", {"prompt": "p"}), ("request_status", {"request_id": "r"})):
        with pytest.raises(ToolError) as refused:
            agent.call(tool, agent="nobody", **more)
        assert (refused.value.code, "find_agents" in refused.value.next) == ("unavailable", True)


def test_a_job_that_was_not_claimed_cannot_be_reported(agent: Agent) -> None:
    job_id = agent.call("create_job", prompt="p", queue="elsewhere")["job"]["job_id"]
    with pytest.raises(ToolError) as refused:
        agent.call("report_job", job_id=job_id, outcome="completed")
    assert refused.value.code == "not_found"
    assert agent.call("status", job_id=job_id)["job"]["status"] == "pending"


# --- handles ---


@pytest.fixture
def handles(lasting: Agents, agent: Agent) -> Iterator[dict[str, str]]:
    """A handle of every kind that needs no gateway."""
    with holdfast.connect(lasting.store) as hf:
        record = hf.agents.publish(
            "gpu", backend="claude_headless", tool="claude", manifest_path="/nosuch.json"
        )
        agent.call("create_job", prompt="mine", queue="q1")
        made = {
            "agent": agent.call("find_agents")["agents"][0]["handle"],
            "created": agent.call("create_job", prompt="p", queue="elsewhere")["handle"],
            "claimed": agent.call("claim_job", queue="q1")["handle"],
            "lock": agent.takes("of a handle")["handle"],
            "recipe": agent.call("use_recipe", recipe="r", any_recipe=True)["handle"],
        }
        yield made
        for held in agent.call("whoami")["holdings"]:
            agent.call("release", handle=held["handle"])
        for left in hf.jobs.list_jobs(status="pending"):
            hf.jobs.cancel(left.job_id)
        hf.agents.remove(record.agent_id, record.generation_id)


def test_status_takes_every_handle(agent: Agent, handles: dict[str, str]) -> None:
    found = {kind: agent.call("status", handle=handle) for kind, handle in handles.items()}
    assert found["agent"]["agent"]["handle"] == handles["agent"]
    assert found["created"]["job"]["status"] == "pending"
    assert found["claimed"]["job"]["status"] == "running"
    for kind, state in (("claimed", "held"), ("lock", "held"), ("recipe", "registered")):
        [holding] = found[kind]["holdings"]
        assert (holding["handle"], holding["state"]) == (handles[kind], state)


def test_a_jobs_handle_is_accepted_wherever_its_id_is(
    agent: Agent, handles: dict[str, str]
) -> None:
    job = handles["claimed"]
    assert agent.call("report_job", job_id=job, outcome="progress")["handle"] == job
    assert agent.call("report_job", job_id=job, outcome="error", detail="e")["handle"] is None
    assert agent.call("status", job_id=job)["job"]["error"] == "e"
    waited = agent.call("wait", handle=job)
    assert (waited["state"], waited["job"]["error"]) == ("error", "e")
    assert agent.call("retry_job", job_id=job)["job"]["status"] == "pending"
    waited = agent.call("wait", handle=job, wait_s=0.1)
    assert (waited["handle"], waited["state"]) == (job, "pending")


def test_an_agents_handle_is_accepted_wherever_its_name_is(
    agent: Agent, handles: dict[str, str]
) -> None:
    [found] = agent.call("find_agents", name=handles["agent"])["agents"]
    assert found["handle"] == handles["agent"] == f"agent:{found['agent_id']}"
    with pytest.raises(ToolError) as refused:
        agent.call("send_request", agent=handles["agent"], prompt="p")
    assert refused.value.code == "unavailable"


@pytest.mark.parametrize(
    ("tool", "kind", "code"),
    [
        ("release", "agent", "not_found"),
        ("release", "created", "not_found"),
        ("wait", "agent", "invalid_value"),
        ("wait", "claimed", "invalid_value"),
        ("wait", "recipe", "invalid_value"),
    ],
)
def test_a_handle_that_makes_no_sense_is_refused_with_what_to_do(
    agent: Agent, handles: dict[str, str], tool: str, kind: str, code: str
) -> None:
    with pytest.raises(ToolError) as refused:
        agent.call(tool, handle=handles[kind])
    assert refused.value.code == code
    assert handles[kind] in refused.value.message and "status" in refused.value.message


def test_a_handle_of_another_kind_names_the_tool_that_returns_the_right_one(
    agent: Agent, handles: dict[str, str]
) -> None:
    for tool, arguments, right in (
        ("report_job", {"job_id": handles["lock"], "outcome": "completed"}, "claim_job"),
        ("retry_job", {"job_id": handles["agent"]}, "claim_job"),
        ("send_request", {"agent": handles["created"], "prompt": "p"}, "find_agents"),
        ("request_status", {"request_id": handles["recipe"]}, "send_request"),
        ("status", {"job_id": handles["lock"]}, "claim_job"),
    ):
        with pytest.raises(ToolError) as refused:
            agent.call(tool, **arguments)
        assert refused.value.code == "not_found" and right in refused.value.message, tool
    for tool in ("wait", "status", "release"):
        with pytest.raises(ToolError) as refused:
            agent.call(tool, handle="swap:99")
        assert refused.value.code == "not_found" and "whoami" in refused.value.message


def test_handles_are_bounded_and_so_are_calls(lasting: Agents, agent: Agent) -> None:
    b = lasting("b")
    held = agent.takes("x")
    handles = [b.takes(f"n{number}")["handle"] for number in range(MCP_HANDLES_MAX - 1)]
    waiting = b.call("acquire", names=["x"])["handle"]
    with pytest.raises(ToolError) as refused:
        b.call("acquire", names=["one more"])
    assert refused.value.code == "full"
    b.call("release", handle=handles[0])
    assert b.takes("one more")["state"] == "held"
    calls = [b.begin("wait", handle=waiting, wait_s=25) for _ in range(MCP_CALLS_MAX + 1)]
    refusal = next(as_completed(calls, timeout=PATIENCE_S)).exception()
    assert isinstance(refusal, ToolError)
    assert refusal.code == "full"
    for call in calls:
        call.cancel()
        with suppress(CancelledError, ToolError):
            call.result(PATIENCE_S)
    assert b.call("wait", handle=waiting, wait_s=0)["state"] == "waiting"
    agent.call("release", handle=held["handle"])


# --- who the caller is ---


def test_the_label_is_what_the_operator_says(agents: Agents, agent: Agent) -> None:
    me = agent.call("whoami")
    assert (me["label"], me["queues"]) == ("tmux:claude-a", ["q1", "q2"])
    assert (
        agents(None, environment={"HOLDFAST_ACTOR": "of/the environment"}).call("whoami")["label"]
        == "of/the environment"
    )
    assert agents(None).call("whoami")["label"] == "mcp"


def test_a_label_does_not_make_it_a_part_of_anothers_job(agents: Agents) -> None:
    with holdfast.connect(agents.store) as hf, hf.locks.hold("x", by="job-1"):
        assert agents("job-1/x").call("acquire", names=["x"])["state"] == "waiting"


def test_it_knows_the_agent_that_it_belongs_to(agents: Agents) -> None:
    tool = ("bash", "-c", '"$@"; exit $?', "bash")
    me = agents(None, before=(*ENTRY, "agents", "run", "gpu", "--", *tool)).call("whoami")
    assert (me["agent_name"], me["label"], me["queues"]) == (
        "HOLDFAST-gpu",
        "HOLDFAST-gpu",
        ["HOLDFAST-gpu"],
    )
    found = agents("b").call("find_agents")["agents"]
    assert [(one["agent_id"], one["process"]) for one in found] == [(me["agent_id"], "alive")]


def test_what_becomes_of_a_job_is_in_the_audit_log_before_the_answer(
    lasting: Agents, agent: Agent
) -> None:
    job_id = agent.call("create_job", prompt="p", queue="q1")["job"]["job_id"]
    assert agent.call("claim_job", queue="q1")["job"]["job_id"] == job_id
    agent.call("report_job", job_id=job_id, outcome="completed", detail="done")
    (logged,) = lasting.folder.glob(f"*-job-logs/{job_id}/events.ndjson")
    recorded = [json.loads(line) for line in logged.read_text().splitlines()]
    assert [(one["event"], one.get("to")) for one in recorded if one["event"] != "published"] == [
        ("registered", None),
        ("status_changed", "running"),
        ("status_changed", "completed"),
    ]


def test_the_journal_names_the_process_that_acted(lasting: Agents, agent: Agent) -> None:
    agent.call("create_job", prompt="p", queue="q")
    with holdfast.connect(lasting.store) as hf:
        actors = {
            entry.actor
            for batch in hf.log.since()
            for entry in batch.entries
            if entry.kind == "job.registered"
        }
    assert actors == {agent.call("whoami")["by"]}


# --- standard input and output ---


class Raw:
    """`holdfast mcp` at the end of two pipes."""

    def __init__(self, command: CommandLine) -> None:
        self.process = command.start("-v", "mcp", stdin=subprocess.PIPE)

    def say(self, message: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(message + "\n")
        self.process.stdin.flush()

    def ask(self, number: int, method: str, **params: Any) -> Any:
        self.say(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}))
        return self.hear(number)

    def hear(self, number: int | str) -> Any:
        assert self.process.stdout is not None
        answer = json.loads(self.process.stdout.readline())
        assert answer["id"] == number
        return answer["result"]

    def begin(self) -> Any:
        hello = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        }
        welcome = self.ask(1, "initialize", **hello)
        self.say(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}))
        return welcome


def test_rubbish_and_endless_lines_are_skipped_and_stdout_has_nothing_else(tmp_path: Path) -> None:
    raw = Raw(CommandLine(tmp_path, HOLDFAST_STORE=f"sqlite:{tmp_path}/s.sqlite"))
    assert "pending" in raw.begin()["instructions"]
    raw.say("no json")
    raw.say("")
    raw.say(
        '{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": "'
        + "x" * MCP_LINE_BYTES_MAX
        + '"}'
    )
    assert "bytes" in raw.hear(7)["structuredContent"]["error"]["message"]
    raw.say(
        r'{"method":"tools/call","params":{"name":"acquire","arguments":{"names": ["\ud800"]}}, '
        r'"jsonrpc": "2.0", "id": "8"}'
    )
    assert "JSON" in raw.hear("8")["structuredContent"]["error"]["message"]
    raw.say("[" * 100_000)
    done = raw.ask(2, "tools/call", name="acquire", arguments={"names": ["x"]})
    assert done["structuredContent"] == json.loads(done["content"][0]["text"])
    out, err = raw.process.communicate(timeout=PATIENCE_S)
    assert (raw.process.returncode, out) == (0, "")
    assert "skipped" in err


def test_a_client_that_was_killed_is_as_one_that_went(tmp_path: Path) -> None:
    """The server's process ends by the end of its input, also when nobody closed it on purpose."""
    script = (
        "import subprocess, sys, os, signal\n"
        f"child = subprocess.Popen({[*ENTRY, 'mcp']!r}, stdin=subprocess.PIPE, "
        "stdout=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = CommandLine(tmp_path, HOLDFAST_STORE=f"sqlite:{tmp_path}/s.sqlite")
    client = subprocess.Popen(
        [sys.executable, "-c", script], env=command.environment, stdout=subprocess.PIPE, text=True
    )
    assert client.stdout is not None
    pid = int(client.stdout.readline())
    with suppress(ProcessLookupError):
        death = os.pidfd_open(pid)
        assert select.select([death], [], [], PATIENCE_S)[0]
        os.close(death)
    assert client.wait(PATIENCE_S) == -signal.SIGKILL
    client.stdout.close()


# --- the store goes and comes ---


def test_a_database_that_is_restarted_leaves_the_server_usable(tmp_path: Path) -> None:
    with running() as server:
        url = server.database()
        with agents_on(url, tmp_path) as agents:
            a, b = agents("a"), agents("b")
            held = a.takes("x")
            waiting = b.stands(b.call("acquire", names=["x"]))
            server.stop()
            with pytest.raises(ToolError) as away:
                a.call("create_job", prompt="p", queue="q")
            assert away.value.code == "store_unavailable"
            assert [one["kind"] for one in away.value.pending] == ["store_unavailable"]
            server.start()
            assert a.call("create_job", prompt="p", queue="a")["job"]["status"] == "pending"
            assert a.call("claim_job")["job"]["prompt"] == "p"
            assert a.pending() == {}
            assert a.call("release", handle=held["handle"])["released"] is True
            assert b.call("wait", handle=waiting["handle"], wait_s=25)["state"] == "held"


# --- the command ---


def test_the_command_says_how_it_is_used(tmp_path: Path) -> None:
    said = CommandLine(tmp_path)("mcp", "--help")
    assert said.status == 0
    assert '"mcpServers"' in said.out
    assert "--queue" in said.out


def test_without_the_sdk_it_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['mcp'] = None\nfrom holdfast.kernel.errors import Unavailable\n"
        "from holdfast.surfaces.cli.root import run\n"
        "try:\n    run(['mcp', '--store', 'memory:'])\nexcept Unavailable as error:\n    "
        "print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert done.stdout.startswith("the MCP server needs mcp")
    assert done.stdout.endswith(": pip install '.[mcp]' in the checkout of Holdfast\n")


def test_an_unusable_store_is_reported_before_the_server_listens(tmp_path: Path) -> None:
    said = CommandLine(tmp_path)("mcp", "--store", "postgresql://nobody@/nothing?host=/nonexistent")
    assert said.status == 6
    assert said.out == ""


def test_without_an_input_it_says_so(tmp_path: Path) -> None:
    said = CommandLine(tmp_path, HOLDFAST_STORE=f"sqlite:{tmp_path}/s.sqlite").shell(
        "holdfast mcp <&-"
    )
    assert (said.status, said.out) == (2, "")
    assert "standard input is closed" in said.err


def test_an_agent_that_goes_while_the_database_is_away_does_not_stay(tmp_path: Path) -> None:
    """Its client is not there any more to kill it, and asking the store about each lock would take
    a minute.
    """
    with running() as server:
        url = server.database()
        raw = Raw(CommandLine(tmp_path, HOLDFAST_STORE=url))
        raw.begin()
        names = [f"n{number}" for number in range(6)]
        for number, name in enumerate(names, 2):
            arguments = {"names": [name], "wait_s": 25}
            held = raw.ask(number, "tools/call", name="acquire", arguments=arguments)[
                "structuredContent"
            ]
            assert held["state"] == "held"
        server.stop()
        raw.process.communicate(timeout=PATIENCE_S)
        assert raw.process.returncode == 0
        server.start()
        with holdfast.connect(url) as hf:
            # Every reader sees its death.
            hf.locks.acquire(names, by="next", timeout_s=PATIENCE_S).release()
