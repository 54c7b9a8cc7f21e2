"""Agents of real processes that race, are killed or stopped: an id has one generation at a time,
and the loser is notified.
"""

import multiprocessing
import os
import signal
import tempfile
import uuid
from collections.abc import Iterator
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.domains.agents import Agent
from holdfast.domains.agents.records import id_of
from holdfast.kernel.errors import Held, HoldfastError, LeaseLost
from holdfast.kernel.store import Entry
from holdfast.runtime.connection import Holdfast
from holdfast.testing import faults
from tests.harness.children import KILLED, exit_status_of
from tests.harness.stopped_processes import stop_outside
from tests.harness.stores import store_url
from tests.harness.timeouts import PATIENCE_S, until
from tests.stores.harnesses import IN_MEMORY
from tests.surfaces.agent_bench import agent_bench
from tests.surfaces.locking import end, remark

PROCESSES = 16
GPU = id_of("HOLDFAST-gpu")


@pytest.fixture(params=["sqlite", "files", pytest.param("postgres", marks=pytest.mark.prove)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return store_url(request, tmp_path)


@pytest.fixture
def hf(url: str) -> Iterator[Holdfast]:
    with holdfast.connect(url) as connected:
        yield connected


def publish(hf: Holdfast, name: str = "gpu", **more: Any) -> Agent:
    facts: dict[str, Any] = {"backend": "command", "tool": "t", "manifest_path": "/m.json", **more}
    return hf.agents.publish(name, **facts)


def entries(hf: Holdfast) -> list[Entry]:
    return [entry for batch in hf.log.since() for entry in batch.entries]


def _race(url: str, barrier: Barrier, outcomes: Any) -> None:
    with holdfast.connect(url) as hf:
        generation_id = str(uuid.uuid4())
        hf.agents.resolve("gpu")
        barrier.wait(PATIENCE_S)
        try:
            publish(hf, generation_id=generation_id)
            outcomes.put((generation_id, "won", None))
        except HoldfastError as error:
            outcomes.put((generation_id, error.code, error.fields.get("generation_id")))


def race(url: str) -> list[tuple[str, str, str | None]]:
    """The outcomes of a number of processes that publish one id at once."""
    context = multiprocessing.get_context("fork")
    barrier, outcomes = context.Barrier(PROCESSES), context.Queue()
    workers = [
        context.Process(target=_race, args=(url, barrier, outcomes)) for _ in range(PROCESSES)
    ]
    for worker in workers:
        worker.start()
    found = [outcomes.get(timeout=PATIENCE_S) for _ in workers]
    for worker in workers:
        worker.join(PATIENCE_S)
    return found


@pytest.mark.prove
def test_one_of_sixteen_publishers_of_an_id_wins(hf: Holdfast, url: str) -> None:
    first = publish(hf, lease_s=0.001)
    while hf.agents.resolve("gpu").record is not None:
        continue
    # All of them find it stale, and all may take it over.
    found = race(url)
    [winner] = [generation for generation, outcome, _ in found if outcome == "won"]
    assert hf.agents.resolve("gpu").unwrap().generation_id == winner
    losers = [
        (outcome, blocking) for generation, outcome, blocking in found if generation != winner
    ]
    assert losers == [("held", winner)] * (PROCESSES - 1)
    with pytest.raises(LeaseLost) as caught:
        hf.agents.refresh(GPU, first.generation_id)
    assert caught.value.fields["current"] == winner
    assert [entry.kind for entry in entries(hf)] == [
        "agent.published",
        "agent.taken_over",
        "agent.published",
    ]


def test_a_killed_publisher_is_dead_though_nobody_reaped_it(hf: Holdfast, url: str) -> None:
    sleeper = os.fork()
    if not sleeper:
        signal.pause()
        os._exit(1)
    publish(hf, holder=hf.processes.of(sleeper))
    with pytest.raises(Held):
        publish(hf)
    os.kill(sleeper, signal.SIGSTOP)
    os.waitid(os.P_PID, sleeper, os.WSTOPPED)
    with pytest.raises(Held):
        publish(hf)
    os.kill(sleeper, signal.SIGKILL)
    os.waitid(os.P_PID, sleeper, os.WEXITED | os.WNOWAIT)
    publish(hf)
    os.waitpid(sleeper, 0)


def _change(hf: Holdfast, verb: str, agent: Agent) -> None:
    if verb == "publish":
        publish(hf, agent.agent_name, agent_id=agent.agent_id, take_over=True, generation_id="g-2")
    elif verb == "refresh":
        hf.agents.refresh(agent.agent_id, agent.generation_id, lease_s=10**6)
    elif verb == "remove":
        hf.agents.remove(agent.agent_id, agent.generation_id)
    else:
        hf.agents.cleanup(grace_s=0, tmux_check=False)


TOLD = {
    "publish": ["agent.taken_over", "agent.published"],
    "refresh": ["agent.refreshed"],
    "remove": ["agent.removed"],
    "cleanup": ["agent.cleaned"],
}


@pytest.mark.prove
@pytest.mark.parametrize(
    # In files there are many points: a record that is replaced, and one that goes.
    ("kind", "verb"),
    [*(("sqlite", verb) for verb in TOLD), ("files", "publish"), ("files", "cleanup")],
)
def test_killed_at_every_point_of_a_change_it_happened_whole_or_not_at_all(
    kind: str, verb: str
) -> None:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        _killed_at_every_point(f"{kind}:{folder}/store", verb)


def _change_dying(url: str, verb: str, agent: Agent, at: int) -> None:
    with holdfast.connect(url) as mine, faults.armed(at=at, action=faults.kill):
        _change(mine, verb, agent)


def _killed_at_every_point(url: str, verb: str) -> None:
    lease_s = 0.001 if verb == "cleanup" else 600
    with holdfast.connect(url) as hf:
        points = faults.recorded(lambda: _change(hf, verb, publish(hf, "first", lease_s=lease_s)))
    happened = set()
    for at in range(len(points)):
        with holdfast.connect(url) as hf:
            agent = publish(hf, f"run-{at}", generation_id="g-1", lease_s=lease_s)
            while verb == "cleanup" and hf.agents.resolve(agent.agent_id).record is not None:
                continue
        assert exit_status_of(partial(_change_dying, url, verb, agent, at)) in (0, KILLED)
        with holdfast.connect(url) as hf:
            logged = [entry.kind for entry in entries(hf) if entry.subject == agent.agent_id][1:]
            assert logged in ([], TOLD[verb])
            happened.add(bool(logged))
            after = {one.agent_id: one for one in hf.agents.list_agents()}.get(agent.agent_id)
            if not logged:
                assert after == agent
            elif verb in ("remove", "cleanup"):
                assert after is None
            else:
                assert after is not None and after != agent
                assert after.generation_id == ("g-2" if verb == "publish" else "g-1")
    assert happened == {False, True}


@pytest.mark.prove
@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_an_agent_stopped_past_its_lease_learns_that_it_was_replaced(
    tmp_path: Path, kind: str
) -> None:
    url = f"{kind}:{tmp_path}/store"
    with agent_bench(tmp_path, url) as bench:
        process, pid = bench.hold("gpu", "--lease", "2")
        first = bench.hf.agents.get(GPU)
        bench.until_logged("agent.refreshed", GPU)
        stop_outside(process.pid, url)
        os.kill(pid, signal.SIGSTOP)
        while bench.hf.agents.resolve("gpu").record is not None:
            continue
        # Its process lives, but its lease is over and another may come.
        second = publish(bench.hf)
        for one in (pid, process.pid):
            os.kill(one, signal.SIGCONT)
        # Until it reports: the end of its input would end it as well.
        assert "another generation's by now" in remark(process)
        assert end(process)[0] == 4
        assert bench.hf.agents.get(GPU) == second
        last = entries(bench.hf)[-1]
        assert (last.kind, last.data["generation_id"]) == (
            "agent.published",
            second.generation_id,
        ), "its late refresh is not logged"
        with pytest.raises(LeaseLost):
            bench.hf.agents.refresh(GPU, first.generation_id)


@pytest.mark.prove
@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_a_restarted_tmux_session_of_the_same_name_is_no_proof_of_death(
    tmp_path: Path, kind: str
) -> None:
    """A tmux session that was replaced by hand blocks the id until the lease ends, or an operator
    takes it over: nothing is guessed.
    """
    with agent_bench(tmp_path, f"{kind}:{tmp_path}/store") as bench:
        first = bench.start_agent("gpu")
        assert first.holder is not None
        # A server that has just lost its last session ends, together with anything that is started
        # at that moment.
        bench.tmux("new-session", "-d", "-s", "keeps-the-server")
        bench.kill(first, bench.tmux.pane_pid("HOLDFAST-gpu"))
        until(lambda: "HOLDFAST-gpu" not in bench.tmux.sessions())
        bench.tmux("new-session", "-d", "-s", "HOLDFAST-gpu", "sleep 600")
        ran = bench("agents", "start", "gpu", "--tmux-session", "other", "--", "sleep", "600")
        assert ran.status == 4 and "not proved to be gone" in ran.err
        bench.start_agent("gpu", "--tmux-session", "other", "--take-over")
        assert bench.until_logged("agent.taken_over", first.agent_id).data["why"] == "operator"
