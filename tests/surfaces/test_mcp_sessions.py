"""Agents over MCP: real processes, the official client, real kills. On SQLite and on PostgreSQL."""

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, NamedTuple

import pytest

import holdfast
from holdfast.kernel.codec import to_plain
from holdfast.kernel.store import JOURNAL_TOPIC
from holdfast.runtime.connection import Holdfast
from tests.harness.timeouts import PATIENCE_S
from tests.surfaces.mcp_agent import Agent, Agents, ToolError, agents_on

pytestmark = pytest.mark.prove

AT_ONCE_S = 15.0
"""Half as long as any lease; a busy machine may need some of it."""


class Crowd(NamedTuple):
    """A store, the library beside, and three agents at it that stay from test to test."""

    hf: Holdfast
    agents: Agents
    a: Agent
    b: Agent
    c: Agent

    def let_go(self) -> None:
        for agent in (self.a, self.b, self.c):
            for held in agent.call("whoami")["holdings"]:
                agent.call("release", handle=held["handle"])


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def gathered(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Crowd]:
    folder = tmp_path_factory.mktemp("mcp")
    url = f"sqlite:{folder}/s.sqlite"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_server").database()
    with holdfast.connect(url) as hf, agents_on(url, folder) as agents:
        yield Crowd(
            hf, agents, *(agents(label, "--queue", label, "--queue", "work") for label in "abc")
        )


@pytest.fixture
def crowd(gathered: Crowd) -> Iterator[Crowd]:
    yield gathered
    gathered.let_go()


def until(hf: Holdfast, true: Callable[[], bool]) -> None:
    """Sleep until something is true. The journal reports most changes, and a second look at the
    store the others.
    """
    deadline = time.monotonic() + PATIENCE_S
    with hf.store.listen([JOURNAL_TOPIC]) as ears:
        while not true():
            left_s = deadline - time.monotonic()
            assert left_s > 0, "it never came to be"
            ears.wait(min(left_s, 0.1))


def in_line(hf: Holdfast, name: str) -> list[str]:
    return [one.by.partition("#")[0] for one in hf.locks.status(name).queue]


def held_by(hf: Holdfast, name: str) -> list[str]:
    return [one.by.partition("#")[0] for one in hf.locks.status(name).holds]


def before(asked: dict[str, Any]) -> list[tuple[str, bool]]:
    """Who is said to be before an agent, and whether that one holds it."""
    return [(one["by"].partition("#")[0], one["holds"]) for one in asked["ahead"]]


def taken_back(call: "Future[Any]") -> None:
    call.cancel()
    with pytest.raises(CancelledError):
        call.result(PATIENCE_S)


def test_a_killed_agents_job_and_locks_pass_on_at_once(crowd: Crowd) -> None:
    hf, b = crowd.hf, crowd.b
    a = crowd.agents("doomed", "--queue", "work")
    job_id = b.call("create_job", prompt="sort", queue="work")["job"]["job_id"]
    assert a.call("claim_job")["job"]["job_id"] == job_id
    assert a.takes("x", "y")["state"] == "held"
    waiting = b.stands(b.call("acquire", names=["y", "x"]))
    assert (waiting["state"], waiting["ahead"][0]["by"].partition("#")[0]) == ("waiting", "doomed")
    turn = b.begin("wait", handle=waiting["handle"], wait_s=25)
    killed_s = time.monotonic()
    os.kill(a.pid, signal.SIGKILL)
    assert turn.result(PATIENCE_S)["state"] == "held"
    again = b.call("claim_job", queue="work")["job"]
    assert time.monotonic() - killed_s < AT_ONCE_S
    assert (again["job_id"], again["attempt"]) == (job_id, 2)
    assert (
        b.call("report_job", job_id=job_id, outcome="completed", detail="sorted")["job"]["result"]
        == "sorted"
    )
    assert hf.jobs.get_job(job_id).result == "sorted"


def test_a_request_keeps_its_place_between_two_calls(crowd: Crowd) -> None:
    hf, _, a, b, c = crowd
    held = a.takes("x")
    first = b.stands(b.call("acquire", names=["x"]))
    second = c.begin("acquire", names=["x"], wait_s=25)
    until(hf, lambda: in_line(hf, "x") == ["b", "c"])
    assert (first["position"], before(first)) == (1, [("a", True)])
    with crowd.agents.passing("d") as last:
        # Behind others that wait, the holder is named too.
        answer = last.stands(last.call("acquire", names=["x"]))
        assert (answer["position"], before(answer)) == (
            3,
            [("a", True), ("b", False), ("c", False)],
        )
        assert answer["ahead"][0]["since"] == to_plain(hf.locks.status("x").holds[0].since)
    still = b.call("wait", handle=first["handle"], wait_s=0.1)
    assert (still["state"], in_line(hf, "x")) == ("waiting", ["b", "c"])
    assert a.call("release", handle=held["handle"])["released"] is True
    # Nobody of b waits at this moment, and it is b's turn all the same.
    until(hf, lambda: held_by(hf, "x") == ["b"])
    # The store knows it before b does.
    until(hf, lambda: b.pending() == {first["handle"]: "lock_granted"})
    assert b.pending() == {}
    assert b.call("release", handle=first["handle"])["released"] is True
    assert second.result(PATIENCE_S)["state"] == "held"


def test_a_revoked_grant_is_reported_until_it_is_acted_on(crowd: Crowd) -> None:
    hf, a = crowd.hf, crowd.a
    lock = a.takes("x")
    job = hf.jobs.register_job("p", agent="t", agent_session="a")
    a.call("claim_job")
    hf.locks.kick("x", why="test")
    hf.jobs.cancel(job.job_id)
    expected = {lock["handle"]: "lease_lost", f"job:{job.job_id}": "job_cancelled"}
    assert a.pending() == expected
    assert a.pending() == expected
    assert a.call("release", handle=lock["handle"])["released"] is False
    with pytest.raises(ToolError) as fenced:
        a.call("report_job", job_id=job.job_id, outcome="completed")
    assert fenced.value.code == "fenced"
    assert "stop" in fenced.value.next
    assert a.pending() == {}


def test_a_job_that_took_too_long_is_reported(crowd: Crowd) -> None:
    a, b = crowd.a, crowd.b
    job_id = b.call("create_job", prompt="p", queue="a", timeout_s=0.2)["job"]["job_id"]
    assert a.call("claim_job")["job"]["job_id"] == job_id
    ended = b.call("status", job_id=job_id, wait_s=25)["job"]
    assert (ended["status"], ended["error_code"]) == ("error", "timed_out")
    assert a.pending() == {f"job:{job_id}": "job_timed_out"}


def test_an_agent_is_asked_to_yield_and_another_swaps(crowd: Crowd) -> None:
    hf, a, b = crowd.hf, crowd.a, crowd.b
    work = a.call("use_recipe", recipe="small")
    assert work["swap_needed"] is True
    swap = b.stands(b.call("yield_or_swap", action="swap", recipe="large"))
    assert (swap["state"], swap["ahead"][0]["by"].partition("#")[0]) == ("waiting", "a")
    with pytest.raises(ToolError) as early:
        b.call("yield_or_swap", action="loaded", handle=swap["handle"])
    assert early.value.code == "eagain"
    until(hf, lambda: a.pending() == {work["handle"]: "preemption_asked"})
    ready = b.begin("wait", handle=swap["handle"], wait_s=25)
    assert a.call("yield_or_swap", action="yield", handle=work["handle"])["state"] == "ended"
    assert ready.result(PATIENCE_S)["state"] == "ready"
    with pytest.raises(ToolError) as refused:
        a.call("use_recipe", recipe="small")
    assert refused.value.code == "eagain"
    assert b.call("yield_or_swap", action="loaded", handle=swap["handle"])["state"] == "ended"
    assert a.call("status")["recipes"]["current"] == "large"
    assert [event.event for event in hf.workflows.swap_log()][-1] == "swap_completed"
    assert a.call("yield_or_swap", action="swap", recipe="large", wait_s=25)["state"] == "loaded"
    with pytest.raises(ToolError) as refused:
        a.call("use_recipe", recipe="small")
    assert refused.value.code == "not_loaded" and "yield_or_swap" in refused.value.next


def test_agents_that_each_swap_to_their_own_recipe_do_not_wait_for_each_other(crowd: Crowd) -> None:
    hf, a, b = crowd.hf, crowd.a, crowd.b
    mine = a.call("use_recipe", recipe="one", any_recipe=True, preemptible=False)
    its = b.call("use_recipe", recipe="two", any_recipe=True, preemptible=False)
    first = a.stands(a.call("yield_or_swap", action="swap", recipe="one"))
    assert first["state"] == "waiting"
    with pytest.raises(ToolError) as refused:
        b.call("yield_or_swap", action="swap", recipe="two", wait_s=25)
    assert refused.value.code == "deadlock" and "yield" in refused.value.next
    assert b.call("yield_or_swap", action="yield", handle=its["handle"])["state"] == "ended"
    assert a.call("wait", handle=first["handle"], wait_s=25)["state"] == "ready"
    ended = a.call("yield_or_swap", action="failed", handle=first["handle"], why="no such model")
    assert "unknown" in ended["next"]
    answer = b.call("status")["recipes"]
    assert (
        answer["current"] is None
        and "the load of one" in answer["unknown"]
        and "no such model" in answer["unknown"]
    )
    with pytest.raises(ToolError) as unknown:
        b.call("use_recipe", recipe="one")
    assert unknown.value.code == "not_loaded"
    a.call("release", handle=mine["handle"])
    with hf.workflows.swap("small"):
        pass


def test_a_killed_swapper_blocks_nobody(crowd: Crowd) -> None:
    hf, b = crowd.hf, crowd.b
    a = crowd.agents("doomed")
    assert a.call("yield_or_swap", action="swap", recipe="huge", wait_s=25)["state"] == "ready"
    os.kill(a.pid, signal.SIGKILL)
    assert b.call("yield_or_swap", action="swap", recipe="other", wait_s=25)["state"] == "ready"
    current = hf.workflows.swap_status().current
    assert current is None or current.recipe != "huge"


def test_what_the_client_takes_back_is_withdrawn(crowd: Crowd) -> None:
    hf, a, b = crowd.hf, crowd.a, crowd.b
    held = a.takes("x")
    asked = b.begin("acquire", names=["x"], wait_s=25)
    until(hf, lambda: in_line(hf, "x") == ["b"])
    taken_back(asked)
    until(hf, lambda: in_line(hf, "x") == [])
    picking = b.begin("claim_job", wait_s=25)
    taken_back(picking)
    # The next answer comes behind the end of what was taken back, or shows it as none of b's.
    until(hf, lambda: b.call("whoami")["holdings"] == [])
    swap = a.call("yield_or_swap", action="swap", recipe="r", wait_s=25)
    swapping = b.begin("yield_or_swap", action="swap", recipe="s", wait_s=25)
    until(hf, lambda: any(one["handle"].startswith("swap") for one in b.call("whoami")["holdings"]))
    taken_back(swapping)
    until(hf, lambda: b.call("whoami")["holdings"] == [])
    assert a.call("release", handle=swap["handle"])["released"] is True
    assert a.call("release", handle=held["handle"])["released"] is True
    job = hf.jobs.register_job("p", agent="t", agent_session="b")
    assert b.call("claim_job")["job"]["job_id"] == job.job_id


def test_taking_a_wait_back_keeps_the_place(crowd: Crowd) -> None:
    hf, a, b = crowd.hf, crowd.a, crowd.b
    held = a.takes("x")
    waiting = b.stands(b.call("acquire", names=["x"]))
    taken_back(b.begin("wait", handle=waiting["handle"], wait_s=25))
    assert b.call("wait", handle=waiting["handle"], wait_s=0)["state"] == "waiting"
    assert in_line(hf, "x") == ["b"]
    a.call("release", handle=held["handle"])
    assert b.call("wait", handle=waiting["handle"])["state"] == "held"


def test_a_deadlock_names_the_way_out(crowd: Crowd) -> None:
    a, b = crowd.a, crowd.b
    a.takes("x")
    b.takes("y")
    waiting = a.stands(a.call("acquire", names=["y"]))
    with pytest.raises(ToolError) as caught:
        b.takes("x")
    assert caught.value.code == "deadlock"
    assert "one call" in caught.value.next
    assert a.call("wait", handle=waiting["handle"], wait_s=0)["state"] == "waiting"


@pytest.mark.parametrize("how", ["closing", "SIGTERM"])
def test_an_agent_that_ends_releases_in_order(how: str, crowd: Crowd) -> None:
    hf, agents = crowd.hf, crowd.agents
    job_id, before = f"of-{how}", len(_kinds(hf))
    hf.jobs.register_job("p", agent="t", agent_session="going", job_id=job_id)
    held = hf.locks.acquire("z", by="other")
    with agents.passing("going") as a:
        pid = a.pid
        death = os.pidfd_open(pid)
        a.takes("x", "y")
        a.call("claim_job")
        a.call("use_recipe", recipe="r", any_recipe=True)
        a.call("acquire", names=["z"])
        a.begin("wait", handle=a.call("acquire", names=["z"])["handle"])
        until(hf, lambda: len(in_line(hf, "z")) == 2)
        if how == "SIGTERM":
            os.kill(pid, signal.SIGTERM)
            until(hf, lambda: _dead(death))
    assert _dead(death)
    os.close(death)
    assert (held_by(hf, "x"), held_by(hf, "y"), in_line(hf, "z")) == ([], [], [])
    kinds = _kinds(hf)[before:]
    # Withdrawn and released by itself, not found dead by others.
    assert kinds.count("lock.withdrawn") == 2
    assert "workflow.released" in kinds
    job = hf.jobs.get_job(job_id)
    assert (job.status.value, job.error_code) == ("pending", None)
    hf.jobs.cancel(job_id)
    hf.locks.release(held)


def _kinds(hf: Holdfast) -> list[str]:
    return [entry.kind for batch in hf.log.since() for entry in batch.entries]


def _dead(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 0)[0])


def test_two_agents_of_one_label_keep_each_other_out(crowd: Crowd) -> None:
    a = crowd.a
    assert a.takes("x")["state"] == "held"
    with crowd.agents.passing("a") as twin:
        assert twin.call("acquire", names=["x"])["state"] == "waiting"
    again = a.takes("x")
    assert (again["state"], again["reentered"]) == ("held", True)
    assert a.call("release", handle=again["handle"])["released"] is False
    assert held_by(crowd.hf, "x") == ["a"]


def test_a_lock_with_a_time_to_live_expires_and_says_so(crowd: Crowd) -> None:
    hf, a, b = crowd.hf, crowd.a, crowd.b
    lock = a.call("acquire", names=["x"], ttl_s=5, wait_s=25)
    assert b.call("acquire", names=["x"], wait_s=25)["state"] == "held"
    assert a.pending() == {lock["handle"]: "lease_lost"}
    with pytest.raises(ToolError) as gone:
        a.call("wait", handle=lock["handle"])
    assert gone.value.code == "lease_lost"
    assert held_by(hf, "x") == ["b"]
