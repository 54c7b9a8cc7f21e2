"""A gateway before an agent of the registry: reached by its manifest, and found by its record."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.kernel.errors import HoldfastError, status_of
from holdfast.kernel.holder import Liveness
from tests.surfaces.agent_bench import AgentBench, Process, agent_bench
from tests.surfaces.locking import PATIENCE_S, line

pytestmark = pytest.mark.slow

SHELL = ("env", "PS1=> ", "bash", "--norc")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[AgentBench]:
    with agent_bench(tmp_path) as made:
        yield made


@pytest.fixture
def served(bench: AgentBench) -> Iterator[Process]:
    """A gateway before an agent in tmux, of which it is told nothing but the name."""
    bench.start_agent("gpu", command=SHELL)
    process = bench.start("gateway", "serve", "gpu")
    assert line(process).startswith("gateway of gpu at http://127.0.0.1:")
    yield process
    process.kill()
    process.communicate()


def test_the_agents_record_says_where_its_gateway_is_while_it_is(bench: AgentBench, served: Process) -> None:
    agent = bench.hf.agents.resolve("gpu").unwrap()
    assert agent.gateway is not None and agent.gateway.port > 0
    assert bench.hf.agents.liveness(agent).gateway is Liveness.ALIVE
    assert bench("gateway", "detach", "gpu").status == 0
    assert served.wait(PATIENCE_S) == 0
    assert bench.hf.agents.resolve("gpu").unwrap().gateway is None


def test_a_prompt_reaches_the_agent_of_that_name(bench: AgentBench, served: Process) -> None:
    ran = bench("gateway", "prompt", "gpu", "echo sum-$((40+2))", "--wait", "--timeout", str(PATIENCE_S))
    assert ran.status == 0, ran.err
    assert "sum-42" in ran.out


def test_all_forms_of_a_name_are_one_agent_with_one_gateway(bench: AgentBench, served: Process) -> None:
    for name in ("HOLDFAST-gpu", "HOUMAO-gpu"):
        second = bench("gateway", "serve", name)
        assert second.status == 4, second.out
        assert json.loads(bench("gateway", "status", name, "--json").out)["gateway_health"] == "healthy"
    assert bench("gateway", "detach", "HOLDFAST-gpu").status == 0
    assert served.wait(PATIENCE_S) == 0


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"tmux": {"session_name": "somebody-else"}}, "tmux_session_mismatch"),
        ({"agent_name": "HOLDFAST-cpu"}, "manifest_mismatch"),
        ({"agent_id": "another"}, "manifest_mismatch"),
    ],
)
def test_a_manifest_that_leads_elsewhere_is_not_followed(bench: AgentBench, wrong: dict[str, object], code: str) -> None:
    manifest = Path(bench.start_agent("gpu", command=SHELL).runtime.manifest_path)
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | wrong))
    with pytest.raises(HoldfastError) as refused:
        bench.hf.agents.control_target("gpu")
    assert refused.value.code == code
    ran = bench("gateway", "serve", "gpu")
    assert (ran.status, ran.out) == (status_of(refused.value).exit, "")
    assert refused.value.message in ran.err


def test_no_gateway_for_nobody(bench: AgentBench) -> None:
    ran = bench("gateway", "serve", "nobody")
    assert ran.status == 1
    assert "holdfast agents start nobody" in ran.err and "--adapter" in ran.err


def test_a_gateway_serves_though_its_agent_is_in_no_registry(bench: AgentBench) -> None:
    process = bench.start("gateway", "serve", "helper", "--adapter", "command", "--", "cat")
    try:
        assert line(process).startswith("gateway of helper at ")
        assert bench("gateway", "prompt", "helper", "hello", "--wait").out.strip() == "hello"
        assert bench("gateway", "detach", "helper").status == 0
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.communicate()
