"""Every tool beside the library: the same result, and the same code for a refusal. One row for each
tool, with a case that succeeds and its most telling error. `library` gives the result of the same
operation there, as far as the tool shows it; `wrong_library` raises the error of the refusal.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import holdfast
from holdfast.kernel.codec import to_plain
from holdfast.kernel.errors import HoldfastError
from holdfast.operations.job_views import view_of
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.mcp.tools import TOOLS
from tests.harness.timeouts import PATIENCE_S
from tests.hazards.gateway_process import AGENT, GatewayProcess
from tests.surfaces.mcp_agent import Agent, Document, ToolError, agents_on

pytestmark = pytest.mark.prove


class World:
    """A store with an agent at it over MCP, a library beside, and another agent with a gateway."""

    def __init__(self, hf: Holdfast, agent: Agent) -> None:
        self.hf = hf
        self.agent = agent

    def job(self) -> str:
        """A job that the agent has claimed; what a test before this one has put back is out of its
        way.
        """
        for left in self.hf.jobs.list_jobs(status="pending"):
            self.hf.jobs.cancel(left.job_id)
        job_id = self.hf.jobs.register_job("sort", agent="t", agent_session="a").job_id
        assert self.agent.call("claim_job")["job"]["job_id"] == job_id
        return job_id

    def lock(self, name: str) -> str:
        """A lock that the agent holds."""
        handle: str = self.agent.takes(name)["handle"]
        return handle

    def request(self) -> str:
        """A request that the other agent has answered."""
        answered: str = self.hf.gateway(AGENT).prompt("hello", wait_s=25)["request_id"]
        return answered


class Row(NamedTuple):
    """A tool in the table."""

    tool: str
    arguments: Callable[[World], Document]
    shown: Callable[[Document], Any]
    library: Callable[[World, Document], Any]
    wrong: Callable[[World], Document]
    wrong_library: Callable[[World], object]


def _failed(world: World) -> Document:
    job_id = world.job()
    world.agent.call("report_job", job_id=job_id, outcome="error", detail="no disk")
    return {"job_id": job_id}


def _job(hf: Holdfast, job_id: str) -> Any:
    return to_plain(view_of(hf.jobs.get_job(job_id)))


def _registered(world: World) -> Any:
    """The same with the library, in a queue of its own; what differs by nature is left out."""
    return _general(
        to_plain(
            view_of(world.hf.jobs.register_job("sort", agent="t", agent_session="q", timeout_sec=9))
        )
    )


def _general(job: Document) -> Document:
    own = ("job_id", "created_at", "updated_at", "arrival", "topic_prefix")
    return {name: value for name, value in job.items() if name not in own}


def _claimed(world: World, answer: Document) -> Any:
    return _job(world.hf, answer["job"]["job_id"])


def _ended(world: World, answer: Document) -> Any:
    return _job(world.hf, answer["job"]["job_id"])


def _one_lock(world: World, answer: Document) -> Any:
    [hold] = world.hf.locks.status("r1").holds
    return ("held", ["r1"], hold.mode.value, hold.token, {"r1": hold.token})


def _explained(world: World, answer: Document) -> Any:
    explained = to_plain(world.hf.locks.explain("r3"))
    explained["status"]["now"] = answer["lock"]["status"]["now"]
    return explained


def _no_such_workflow(world: World) -> object:
    return world.hf.workflows.release("nosuch", 1)


def _kicked(world: World) -> Document:
    handle = world.lock("r5")
    world.hf.locks.kick("r5", why="test")
    return {"handle": handle, "wait_s": 0}


def _kicked_library(world: World) -> None:
    grant = world.hf.locks.acquire("r6", by="other")
    world.hf.locks.kick("r6", why="test")
    world.hf.locks.check(grant)


def _taken_away(world: World) -> Document:
    job_id = world.job()
    world.hf.jobs.requeue(job_id)
    return {"job_id": job_id, "outcome": "completed"}


def _stale_verdict(world: World) -> object:
    job_id = world.hf.jobs.register_job("p", agent="t", agent_session="s").job_id
    picked = world.hf.jobs.pick_pending("s")
    assert picked is not None
    world.hf.jobs.requeue(job_id)
    return world.hf.jobs.update_status(job_id, "completed", token=picked.token)


ROWS = [
    Row(
        "whoami",
        lambda world: {},
        lambda answer: (answer["label"], answer["store"], answer["namespace"], answer["queues"]),
        lambda world, answer: ("a", world.hf.store.kind, world.hf.store.namespace, ["a"]),
        lambda world: {"name": "root"},
        lambda world: holdfast.connect(""),
    ),
    Row(
        "find_agents",
        lambda world: {"name": AGENT},
        lambda answer: [one["agent_id"] for one in answer["agents"]],
        lambda world, answer: [world.hf.agents.resolve(AGENT).unwrap().agent_id],
        lambda world: {"name": "nobody"},
        lambda world: world.hf.agents.resolve("nobody").unwrap(),
    ),
    Row(
        "send_request",
        lambda world: {"agent": AGENT, "prompt": "hello", "idempotency_key": "k1", "wait_s": 25},
        lambda answer: (answer["request_id"], answer["state"], answer["epoch"], answer["answer"]),
        lambda world, answer: _request(
            world, world.hf.gateway(AGENT).prompt("hello", idempotency_key="k1")["request_id"]
        ),
        lambda world: {"agent": "nobody", "prompt": "hello"},
        lambda world: world.hf.gateway("nobody").prompt("hello"),
    ),
    Row(
        "request_status",
        lambda world: {"request_id": f"request:{AGENT}/{world.request()}"},
        lambda answer: (answer["request_id"], answer["state"], answer["epoch"], answer["answer"]),
        lambda world, answer: _request(world, answer["request_id"]),
        lambda world: {"agent": AGENT, "request_id": "nosuch"},
        lambda world: world.hf.gateway(AGENT).request("nosuch"),
    ),
    Row(
        "answer_question",
        lambda world: {"agent": AGENT, "question_id": _asked(world), "reply": "allow"},
        lambda answer: (answer["subject"], answer["reply"], answer["by"]),
        lambda world, answer: ("flash it?", *_answer(world, answer["question_id"])),
        lambda world: {"agent": AGENT, "question_id": "nosuch", "reply": "allow"},
        lambda world: world.hf.gateway(AGENT).reply("nosuch", "allow"),
    ),
    Row(
        "clean_up_agents",
        lambda world: {"dry_run": True},
        lambda answer: (answer["dry_run"], answer["planned"], answer["removed"]),
        lambda world, answer: (True, world.hf.agents.cleanup(dry_run=True).planned, []),
        lambda world: {"dry_run": "yes"},
        lambda world: world.hf.agents.cleanup(grace_s=-1),
    ),
    Row(
        "create_job",
        lambda world: {"prompt": "sort", "queue": "q", "agent": "t", "timeout_s": 9},
        lambda answer: _general(answer["job"]),
        lambda world, answer: _registered(world),
        lambda world: {"prompt": "sort", "queue": "q\n"},
        lambda world: world.hf.jobs.register_job("sort", agent="t", agent_session="q\n"),
    ),
    Row(
        "claim_job",
        lambda world: {
            "queue": world.hf.jobs.register_job("sort", agent="t", agent_session="a").agent_session
        },
        lambda answer: answer["job"],
        _claimed,
        lambda world: {"wait_s": "soon"},
        lambda world: world.hf.jobs.pick_pending("a", wait_s=float("nan")),
    ),
    Row(
        "report_job",
        lambda world: {"job_id": world.job(), "outcome": "completed", "detail": "sorted"},
        lambda answer: answer["job"],
        _ended,
        _taken_away,
        _stale_verdict,
    ),
    Row(
        "retry_job",
        _failed,
        lambda answer: answer["job"],
        _ended,
        lambda world: {"job_id": world.job()},
        lambda world: world.hf.jobs.retry(
            world.hf.jobs.register_job("p", agent="t", agent_session="s").job_id
        ),
    ),
    Row(
        "acquire",
        lambda world: {"names": ["r1"], "wait_s": 25},
        lambda answer: (
            answer["state"],
            answer["names"],
            answer["mode"],
            answer["token"],
            answer["tokens"],
        ),
        _one_lock,
        lambda world: {"names": ["r1\n"]},
        lambda world: world.hf.locks.acquire("r1\n", by="x"),
    ),
    Row(
        "wait",
        lambda world: {"handle": world.lock("r2"), "wait_s": 0},
        lambda answer: (answer["state"], answer["token"]),
        lambda world, answer: ("held", world.hf.locks.status("r2").holds[0].token),
        _kicked,
        _kicked_library,
    ),
    Row(
        "status",
        lambda world: {"lock": "r3"} if world.lock("r3") else {},
        lambda answer: answer["lock"],
        _explained,
        lambda world: {"job_id": "nosuch"},
        lambda world: world.hf.jobs.get_job("nosuch"),
    ),
    Row(
        "release",
        lambda world: {"handle": world.lock("r4")},
        lambda answer: answer["released"],
        lambda world, answer: world.hf.locks.status("r4").holds == (),
        lambda world: {"handle": "recipe:999"},
        _no_such_workflow,
    ),
    Row(
        "use_recipe",
        lambda world: {"recipe": "small"},
        lambda answer: (answer["recipe"], answer["token"]),
        lambda world, answer: next(
            (one.recipe, one.token) for one in world.hf.workflows.list_workflows()
        ),
        lambda world: {"recipe": "\n"},
        lambda world: world.hf.workflows.register("w", "\n"),
    ),
    Row(
        "yield_or_swap",
        lambda world: {"action": "swap", "recipe": "small", "wait_s": 25},
        lambda answer: (answer["state"], answer["recipe"], answer["token"]),
        lambda world, answer: _marker(world),
        lambda world: {"action": "yield", "handle": "recipe:999"},
        _no_such_workflow,
    ),
]


def _asked(world: World) -> str:
    """A question of a job that the other agent works on."""
    job_id = world.hf.jobs.register_job("flash", agent="t", agent_session=AGENT).job_id
    picked = world.hf.jobs.pick_pending(AGENT)
    assert picked is not None
    asked = ("permission_required", "flash it?")
    event = world.hf.job_events.publish(job_id, asked[0], detail=asked[1], token=picked.token).event
    return f"job.{job_id}.{event.seq}"


def _answer(world: World, question_id: str) -> tuple[str, str]:
    _, job_id, seq = question_id.split(".")
    data = world.hf.job_events.answer_to(job_id, int(seq)) or {}
    return data["answer"], data["by"]


def _request(world: World, request_id: str) -> Any:
    found = world.hf.gateway(AGENT).request(request_id, wait_s=25)
    return (found["request_id"], found["state"], found["epoch"], found["result"]["text"])


def test_a_requests_handle_is_accepted_wherever_its_id_is(world: World) -> None:
    sent = world.agent.call("send_request", agent=AGENT, prompt="hello")
    waited = world.agent.call("wait", handle=sent["handle"])
    assert (waited["state"], waited["request"]["request_id"]) == ("completed", sent["request_id"])
    shown = world.agent.call("status", handle=sent["handle"])["request"]
    assert (
        shown
        == waited["request"]
        == _without_pending(world.agent.call("request_status", request_id=sent["handle"]))
    )
    with pytest.raises(ToolError) as refused:
        world.agent.call("release", handle=sent["handle"])
    assert refused.value.code == "not_found"


def _without_pending(answer: Document) -> Document:
    return {name: value for name, value in answer.items() if name != "pending"}


def _marker(world: World) -> Any:
    marker = world.hf.workflows.swap_status().marker
    assert marker is not None
    return ("ready", marker.recipe, marker.token)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("mcp")
    url = f"sqlite:{folder}/s.sqlite"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_server").database()
    patch = pytest.MonkeyPatch()
    patch.setenv("HOLDFAST_GATEWAY_ROOT", str(folder / "gateways"))
    with (
        holdfast.connect(url) as hf,
        GatewayProcess(folder, store=url) as gateway,
        agents_on(url, folder) as agents,
    ):
        _publish(hf, folder)
        gateway.start()
        yield World(
            hf,
            agents(
                *("a", "--allow", "answer"),
                environment={"HOLDFAST_GATEWAY_ROOT": str(folder / "gateways")},
            ),
        )
    patch.undo()


def _publish(hf: Holdfast, folder: Path) -> None:
    manifest = folder / "manifest.json"
    manifest.write_text("{}")
    hf.agents.publish(AGENT, backend="claude_headless", tool="claude", manifest_path=str(manifest))


def test_every_tool_is_in_the_table() -> None:
    assert sorted(row.tool for row in ROWS) == sorted(TOOLS)


@pytest.mark.parametrize("row", ROWS, ids=[row.tool for row in ROWS])
def test_a_tool_gives_what_the_library_gives(row: Row, world: World) -> None:
    answer = world.agent.call(row.tool, **row.arguments(world))
    assert to_plain(row.shown(answer)) == to_plain(row.library(world, answer))


@pytest.mark.parametrize("row", ROWS, ids=[row.tool for row in ROWS])
def test_a_tool_is_refused_with_the_librarys_code(row: Row, world: World) -> None:
    with pytest.raises(HoldfastError) as expected:
        row.wrong_library(world)
    with pytest.raises(ToolError) as caught:
        world.agent.call(row.tool, **row.wrong(world))
    assert caught.value.code == expected.value.code
    assert caught.value.next


def test_a_prompt_that_is_taken_back_is_cancelled_if_it_was_not_begun(world: World) -> None:
    gateway = world.hf.gateway(AGENT)
    world.agent.call("send_request", agent=AGENT, prompt="long")
    asked = world.agent.begin("send_request", agent=AGENT, prompt="never", wait_s=25)
    end_s = time.monotonic() + PATIENCE_S
    while not (
        waiting := [
            one for one in gateway.requests(state="accepted") if one["payload"]["prompt"] == "never"
        ]
    ):
        assert time.monotonic() < end_s
    asked.cancel()
    with pytest.raises(CancelledError):
        asked.result(PATIENCE_S)
    assert gateway.request(waiting[0]["request_id"], wait_s=20)["error_code"] == "cancelled"
    stopped = world.agent.call("send_request", agent=AGENT, kind="interrupt", wait_s=25)
    assert stopped["state"] == "completed"
