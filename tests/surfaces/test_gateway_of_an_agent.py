"""A gateway before an agent of the registry: reached by its manifest, and found by its record."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from holdfast.domains.agents import Agent, Reason
from holdfast.domains.agents.records import id_of
from holdfast.domains.gateway.adapter import CommandSpec
from holdfast.kernel.errors import AgentGone, HoldfastError, LeaseLost, status_of
from holdfast.kernel.holder import Holder, Liveness
from holdfast.kernel.settings import Settings
from holdfast.runtime.gateway_announcement import Announcement
from holdfast.runtime.gateway_identity import Served
from holdfast.surfaces.cli import gateway_process as process
from tests.harness.timeouts import PATIENCE_S, until
from tests.surfaces.agent_bench import AgentBench, Process, agent_bench
from tests.surfaces.locking import line

pytestmark = pytest.mark.prove

SHELL = ("env", "PS1=> ", "bash", "--norc")
AT_ITS_PROMPT = ("--ready-regex", "^> ?$", "--quiet-ms", "100")
BEFORE_IT = ("--adapter", "command", "--", "cat")
"""How to start a gateway before its agent is published, whose lease may be shorter than a busy
machine takes to start one.
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[AgentBench]:
    with agent_bench(tmp_path) as made:
        yield made


@pytest.fixture
def served(bench: AgentBench) -> Iterator[Process]:
    """A gateway before an agent in tmux, started with the agent's name alone."""
    bench.start_agent("gpu", command=SHELL)
    begun = bench.start("gateway", "serve", "gpu", *AT_ITS_PROMPT)
    assert line(begun).startswith("gateway of gpu at http://127.0.0.1:")
    yield begun
    begun.kill()
    begun.communicate()


def test_the_agents_record_says_where_its_gateway_is_while_it_is(
    bench: AgentBench, served: Process
) -> None:
    agent = bench.hf.agents.resolve("gpu").unwrap()
    assert agent.gateway is not None and agent.gateway.port > 0
    assert bench.hf.agents.liveness(agent).gateway is Liveness.ALIVE
    assert bench("gateway", "detach", "gpu").status == 0
    assert served.wait(PATIENCE_S) == 0
    assert bench.hf.agents.resolve("gpu").unwrap().gateway is None


def test_a_prompt_reaches_the_agent_of_that_name(bench: AgentBench, served: Process) -> None:
    ran = bench(
        "gateway", "prompt", "gpu", "echo sum-$((40+2))", "--wait", "--timeout", str(PATIENCE_S)
    )
    assert ran.status == 0, ran.err
    assert "sum-42" in ran.out


def test_all_forms_of_a_name_are_one_agent_with_one_gateway(
    bench: AgentBench, served: Process
) -> None:
    for name in ("HOLDFAST-gpu", "HOUMAO-gpu"):
        second = bench("gateway", "serve", name)
        assert second.status == 4, second.out
        assert (
            json.loads(bench("gateway", "status", name, "--json").out)["gateway_health"]
            == "healthy"
        )
    assert bench("gateway", "detach", "HOLDFAST-gpu").status == 0
    assert served.wait(PATIENCE_S) == 0


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"tmux": {"session_name": "somebody-else"}}, "tmux_session_mismatch"),
        ({"agent_name": "HOLDFAST-cpu"}, "manifest_mismatch"),
        ({"agent_id": "another"}, "manifest_mismatch"),
        ({"generation_id": "11111111-1111-4111-8111-111111111111"}, "generation_mismatch"),
    ],
)
def test_a_manifest_that_leads_elsewhere_is_not_followed(
    bench: AgentBench, wrong: dict[str, object], code: str
) -> None:
    manifest = Path(bench.start_agent("gpu", command=SHELL).runtime.manifest_path)
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | wrong))
    with pytest.raises(HoldfastError) as refused:
        bench.hf.agents.control_target("gpu")
    assert refused.value.code == code
    ran = bench("gateway", "serve", "gpu")
    assert (ran.status, ran.out) == (status_of(refused.value).exit, "")
    assert refused.value.message in ran.err


def test_a_manifest_that_cannot_be_read_is_refused_as_for_control_and_holds_nothing_up(
    bench: AgentBench,
) -> None:
    """The gateway waited for ever for a writer of a FIFO in the file's place."""
    manifest = Path(in_session(bench, "claude").runtime.manifest_path)
    manifest.unlink()
    for code in ("manifest_missing", "manifest_invalid"):
        with pytest.raises(HoldfastError) as refused:
            bench.hf.agents.control_target("gpu")
        ran = bench("gateway", "serve", "gpu")
        assert (refused.value.code, ran.status) == (code, 4), ran.err
        os.mkfifo(manifest) if code == "manifest_missing" else manifest.unlink()


def test_by_its_id_it_is_the_same_agent_with_the_same_gateway(
    bench: AgentBench, served: Process
) -> None:
    agent = bench.hf.agents.resolve("gpu").unwrap()
    for more in ((), ("--adapter", "command", "--", "cat")):
        second = bench("gateway", "serve", agent.agent_id, *more)
        assert (second.status, "runs already" in second.err) == (4, True), second
    for name in (agent.agent_id, "gpu"):
        assert (
            json.loads(bench("gateway", "status", name, "--json").out)["gateway_health"]
            == "healthy"
        )
        assert bench.hf.gateway(name).status()["agent"] == "gpu"


@pytest.mark.parametrize("agent_id", ["x1", "HOUMAO-x1"])
def test_an_agent_of_a_given_id_is_found_by_its_name_too(bench: AgentBench, agent_id: str) -> None:
    bench.start_agent("gpu", "--id", agent_id, command=SHELL)
    with serving(bench, "gpu") as first:
        assert first == "x1"
        assert bench.hf.agents.get(agent_id).gateway is not None
        for name in ("gpu", agent_id):
            assert bench("gateway", "serve", name).status == 4
            assert (
                json.loads(bench("gateway", "status", name, "--json").out)["gateway_health"]
                == "healthy"
            )
        # The name alone is ambiguous now.
        assert (
            bench(
                "agents", "start", "gpu", "--id", "x2", "--tmux-session", "other", "--", *SHELL
            ).status
            == 0
        )
        ran = bench("gateway", "serve", "gpu", "--adapter", "command", "--", "cat")
        assert ran.status == 4 and f"{agent_id}, x2" in ran.err


def test_a_second_gateway_ends_when_it_learns_that_its_agent_has_one(
    bench: AgentBench,
) -> None:
    """Before the agent is published, nothing shows that a name and an id are one."""
    agent_id = id_of("HOLDFAST-gpu")
    with serving(bench, "gpu", "--adapter", "command", "--", "cat"):
        second = bench.start("gateway", "serve", agent_id, "--adapter", "command", "--", "cat")
        try:
            assert line(second).startswith(f"gateway of {agent_id}")
            published(bench, lease_s=60)
            assert second.wait(PATIENCE_S) == 4
            reported = bench.hf.agents.get(agent_id).gateway
            assert reported is not None and reported.state_path.endswith("/gpu/state.json")
        finally:
            second.kill()
            second.communicate()


def test_an_agent_that_is_served_under_another_name_already_is_not_served_again(
    bench: AgentBench,
) -> None:
    with serving(bench, id_of("HOLDFAST-gpu"), "--adapter", "command", "--", "cat") as key:
        published(bench, lease_s=60)
        second = bench("gateway", "serve", "gpu")
        assert (second.status, f"detach {key}" in second.err) == (4, True), second


def published(
    bench: AgentBench, *, lease_s: float, holder: Holder | None = None, **more: object
) -> Agent:
    """An agent that is published by hand, so that nobody but a gateway renews its lease."""
    manifest = bench.folder / "manifest.json"
    facts = {
        "backend": "command",
        "tool": "cat",
        "manifest_path": str(manifest),
        "holder": holder,
        **more,
    }
    agent = bench.hf.agents.publish("gpu", lease_s=lease_s, **facts)  # type: ignore[arg-type]
    names = {"agent_id": agent.agent_id, "agent_name": agent.agent_name}
    manifest.write_text(json.dumps(names | {"adapter": {"kind": "command", "command": ["cat"]}}))
    return agent


@contextmanager
def serving(bench: AgentBench, *words: str) -> Iterator[str]:
    """A gateway for the block; what it is kept under."""
    process = bench.start("gateway", "serve", *words)
    try:
        said = line(process)
        assert said.startswith("gateway of "), said
        yield said.split()[2]
    finally:
        process.kill()
        process.communicate()


def expired(bench: AgentBench) -> bool:
    return bench.hf.agents.resolve("gpu").reason is Reason.EXPIRED


def test_a_gateway_keeps_its_agent_fresh_past_its_lease(bench: AgentBench) -> None:
    with serving(bench, "gpu", *BEFORE_IT):
        agent = published(bench, lease_s=1.5)
        refreshed = bench.outlives(agent)
        until(lambda: not expired(bench))
        record = bench.hf.agents.get(agent.agent_id)
        assert (record.token, record.lease_s) == (agent.token, 1.5)
        assert (record.lease_expires_at - refreshed.at).total_seconds() < 60, (
            "it keeps to the lease it was published with"
        )
    until(lambda: expired(bench))


def test_a_dead_agents_record_is_not_kept_alive(
    bench: AgentBench, sleeper: "subprocess.Popen[bytes]"
) -> None:
    with serving(bench, "gpu", *BEFORE_IT):
        agent = published(bench, lease_s=1.5, holder=bench.hf.processes.of(sleeper.pid))
        bench.until_logged("agent.refreshed", agent.agent_id, times=2)
        sleeper.kill()
        until(lambda: expired(bench))
        assert bench.hf.gateway("gpu").status()["gateway_health"] == "healthy"


def test_what_came_in_the_place_of_an_agent_does_not_keep_its_record_alive(
    bench: AgentBench,
) -> None:
    manifest = bench.folder / "manifest.json"
    bench.tmux.listen("claude")
    facts = {
        "backend": "local_interactive",
        "tool": "claude",
        "manifest_path": str(manifest),
        "session_name": "claude",
    }
    before_it = ("--adapter", "tmux", "--session", "claude")
    with serving(bench, "gpu", *before_it):
        agent = bench.hf.agents.publish("gpu", lease_s=1.5, **facts)  # type: ignore[arg-type]
        names = {
            "agent_id": agent.agent_id,
            "agent_name": agent.agent_name,
            "tmux": {"session_name": "claude"},
        }
        manifest.write_text(json.dumps(names | {"adapter": {"kind": "tmux"}}))
        bench.until_logged("agent.refreshed", agent.agent_id, times=2)
        bench.tmux.replace("claude")
        until(lambda: expired(bench))
        assert bench.hf.gateway("gpu").status()["managed_agent_instance_epoch"] == 2
    # Nor does a restarted gateway that sees the instance of its last look.
    with serving(bench, "gpu", *before_it):
        bench.hf.agents.refresh(agent.agent_id, agent.generation_id, lease_s=2)
        until(lambda: expired(bench))
        # The publisher of the new one is logged and recorded, at once.
        again = bench.hf.agents.publish("gpu", lease_s=1.5, **facts)  # type: ignore[arg-type]
        bench.until_logged(
            "agent.refreshed", again.agent_id, times=2, generation_id=again.generation_id
        )
        assert bench.hf.agents.get(again.agent_id).gateway is not None


def test_a_new_generation_gets_the_address_of_its_gateway(bench: AgentBench) -> None:
    first = published(bench, lease_s=60)
    with serving(bench, "gpu"):
        place = bench.hf.agents.resolve("gpu").unwrap().gateway
        assert place is not None
        second = published(bench, lease_s=60, take_over=True)
        assert (second.gateway, second.generation_id != first.generation_id) == (None, True)
        bench.until_logged("agent.gateway_changed", first.agent_id, times=2)
        assert bench.hf.agents.resolve("gpu").unwrap().gateway == place
        bench.hf.agents.remove(second.agent_id, second.generation_id)
        third = published(bench, lease_s=60)
        bench.until_logged("agent.gateway_changed", third.agent_id, times=3)
        assert bench.hf.agents.resolve("gpu").unwrap().gateway == place


def test_a_gateway_ends_when_another_generation_is_reached_otherwise(bench: AgentBench) -> None:
    published(bench, lease_s=60)
    gateway = bench.start("gateway", "serve", "gpu")
    try:
        assert line(gateway).startswith("gateway of gpu at ")
        # Its manifest first: the gateway checks as soon as it is published.
        manifest = bench.folder / "other.json"
        names = {"agent_id": id_of("HOLDFAST-gpu"), "agent_name": "HOLDFAST-gpu"}
        manifest.write_text(
            json.dumps(names | {"adapter": {"kind": "command", "command": ["tac"]}})
        )
        facts = {"backend": "command", "tool": "tac", "manifest_path": str(manifest)}
        other = bench.hf.agents.publish("gpu", lease_s=60, take_over=True, **facts)  # type: ignore[arg-type]
        assert gateway.wait(PATIENCE_S) == 4
        assert bench.hf.agents.get(other.agent_id).gateway is None
    finally:
        gateway.kill()
        gateway.communicate()


def in_session(bench: AgentBench, session_name: str, **more: object) -> Agent:
    """An agent that is published by hand in a tmux session, with a manifest of that kind."""
    manifest = bench.folder / f"{session_name}.json"
    names = {
        "agent_id": id_of("HOLDFAST-gpu"),
        "agent_name": "HOLDFAST-gpu",
        "tmux": {"session_name": session_name},
    }
    manifest.write_text(json.dumps(names | {"adapter": {"kind": "tmux"}}))
    facts = {
        "backend": "local_interactive",
        "tool": "claude",
        "manifest_path": str(manifest),
        "session_name": session_name,
    }
    return bench.hf.agents.publish("gpu", **facts, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "words", [(), ("--adapter", "tmux", "--session", "first")], ids=["by manifest", "by options"]
)
def test_a_gateway_does_not_type_into_a_session_that_has_lost_its_agent(
    bench: AgentBench, words: tuple[str, ...]
) -> None:
    """The one before stayed, as it may: prompts for the agent went on reaching it, though the agent
    was in another session.
    """
    bench.tmux.listen("first")
    in_session(bench, "first")
    gateway = bench.start("gateway", "serve", "gpu", *words)
    try:
        assert line(gateway).startswith("gateway of gpu at ")
        in_session(bench, "second", take_over=True)
        assert gateway.wait(PATIENCE_S) == 4
        assert "in tmux session second by now" in gateway.communicate()[1]
        assert bench("gateway", "prompt", "gpu", "astray").status == 6
        assert bench.tmux.typed() == b""
    finally:
        gateway.kill()
        gateway.communicate()


@pytest.mark.parametrize(
    "serving_then", [True, False], ids=["while it serves", "while it does not"]
)
def test_a_stranger_in_a_session_of_the_same_name_gets_no_prompt(
    bench: AgentBench, serving_then: bool
) -> None:
    """The prompt ran in the stranger's shell: the tmux session had the right name, and that was all
    that was compared.
    """
    agent = bench.start_agent("gpu", command=SHELL)
    ran = bench.folder / "ran"
    with ExitStack() as begun:
        if serving_then:
            begun.enter_context(serving(bench, "gpu", *AT_ITS_PROMPT))
        # With all that keep the record: nobody is left to remove it.
        bench.tmux("new-session", "-d", "-s", "keeps-the-server")
        bench.kill(agent, bench.tmux.pane_pid("HOLDFAST-gpu"))
        until(lambda: "HOLDFAST-gpu" not in bench.tmux.sessions())
        bench.tmux("new-session", "-d", "-s", "HOLDFAST-gpu", *SHELL)
        if serving_then:
            client = bench.hf.gateway("gpu")
            until(lambda: client.status()["request_admission"] == "blocked_unavailable")
            with pytest.raises(AgentGone) as refused:
                client.prompt(f"touch {ran}")
            assert refused.value.fields["reason"] == "process_dead"
        else:
            served = bench("gateway", "serve", "gpu", *AT_ITS_PROMPT)
            assert (served.status, served.out) == (6, ""), served
            assert "has ended" in served.err
        assert bench.tmux.screen("HOLDFAST-gpu").strip() == ">"
        assert not ran.exists()
        # The agent that is started in its place is served, where nothing waited for the other.
        bench.tmux("kill-session", "-t", "=HOLDFAST-gpu")
        bench.start_agent("gpu", "--take-over", command=SHELL)
        if not serving_then:
            begun.enter_context(serving(bench, "gpu", *AT_ITS_PROMPT))
        client = bench.hf.gateway("gpu")
        until(lambda: client.status()["request_admission"] == "open")
        assert "sum-42" in client.prompt("echo sum-$((40+2))", wait_s=PATIENCE_S)["result"]["text"]


def test_without_a_pattern_a_prompt_is_delivered_and_its_end_unknown(bench: AgentBench) -> None:
    bench.start_agent("gpu", command=SHELL)
    begun = bench.start("gateway", "serve", "gpu", "--settle", "0.5")
    try:
        assert line(begun).startswith("gateway of gpu at ")
        done = bench(
            "gateway",
            "prompt",
            "gpu",
            "sleep 600",
            "--wait",
            "--json",
            "--timeout",
            str(PATIENCE_S),
        )
        assert done.status == 0, done.err
        request = json.loads(done.out)
        assert (request["state"], request["result"]) == (
            "completed",
            {"receipt": "delivered", "end_unknown": True},
        )
        waiting = bench.hf.gateway("gpu").prompt("echo next")["request_id"]
        until(lambda: "sleep is" in bench.hf.gateway("gpu").status()["detail"])
        assert bench.hf.gateway("gpu").request(waiting)["state"] == "accepted"
        assert bench("gateway", "detach", "gpu").status == 0
        said = begun.communicate(timeout=PATIENCE_S)[1]
    finally:
        begun.kill()
        begun.communicate()
    assert said.count("no --ready-regex is set") == 1
    assert "echo next" not in bench.tmux.screen("HOLDFAST-gpu")


def test_options_override_the_manifest_with_a_notice(bench: AgentBench) -> None:
    agent = bench.start_agent("gpu", command=SHELL)
    begun = bench.start("gateway", "serve", "gpu", *AT_ITS_PROMPT, "--interrupt-key", "Escape")
    try:
        assert line(begun).startswith("gateway of gpu at ")
        bench.until_logged("agent.gateway_changed", agent.agent_id)
        assert bench("gateway", "detach", "gpu").status == 0
        said = begun.communicate(timeout=PATIENCE_S)[1]
    finally:
        begun.kill()
        begun.communicate()
    assert "the manifest of gpu is overridden by --interrupt-key, --quiet-ms, --ready-regex" in said
    assert "no --ready-regex" not in said
    for wrong, says in (
        (
            ("--prompt-as", "stdin"),
            "--prompt-as means nothing beside a manifest whose adapter is tmux",
        ),
        (("--ready-regex", "("), "no regular expression"),
        (("--interrupt-key", "C-z"), "interrupt"),
        (("--session", "other"), "its manifest says other"),
    ):
        ran = bench("gateway", "serve", "gpu", *wrong)
        assert ran.status in (2, 4), ran
        assert says in ran.err


_PUBLISHER = """
import sys
from holdfast.runtime.connection import connect
with connect(sys.argv[1]) as hf:
    for _ in range(5):
        hf.agents.publish("gpu", backend="command", tool="cat", manifest_path=sys.argv[2], lease_s=60, take_over=True)
"""


def test_sixteen_publishers_under_a_gateway_leave_its_address_in_the_last_record(
    bench: AgentBench,
) -> None:
    agent = published(bench, lease_s=60)
    with serving(bench, "gpu"):
        place = bench.hf.agents.get(agent.agent_id).gateway
        words = [
            sys.executable,
            "-c",
            _PUBLISHER,
            bench.environment["HOLDFAST_STORE"],
            agent.runtime.manifest_path,
        ]
        publishers = [subprocess.Popen(words) for _ in range(16)]
        assert {publisher.wait(2 * PATIENCE_S) for publisher in publishers} == {0}
        until(lambda: bench.hf.agents.get(agent.agent_id).gateway == place)
        assert bench.hf.agents.get(agent.agent_id).token > agent.token


def test_a_tmux_server_killed_and_restarted_under_a_gateway_keeps_no_agent_alive(
    bench: AgentBench,
) -> None:
    first = bench.start_agent("gpu", "--lease", "5", command=SHELL)
    with serving(bench, "gpu", *AT_ITS_PROMPT):
        bench.tmux("kill-server")
        until(lambda: bench.hf.agents.resolve("gpu").record is None)
        second = bench.start_agent("gpu", "--lease", "60", command=SHELL)
        assert second.generation_id != first.generation_id
        until(lambda: bench.hf.agents.get(second.agent_id).gateway is not None)
        gateway = bench.hf.gateway("gpu")
        until(lambda: gateway.status()["request_admission"] == "open")
        assert gateway.status()["managed_agent_instance_epoch"] == 2
        assert "sum-42" in gateway.prompt("echo sum-$((40+2))", wait_s=PATIENCE_S)["result"]["text"]


def test_an_agent_whose_id_is_the_name_of_another_is_not_reached_by_its_gateway(
    bench: AgentBench,
) -> None:
    """The two had one queue: a prompt for the one was delivered to the other."""
    with serving(bench, "gpu", *BEFORE_IT) as plain:
        first = published(bench, lease_s=60)
        bench.until_logged("agent.gateway_changed", first.agent_id, times=1)
        manifest = bench.folder / "worker.json"
        names = {"agent_id": "gpu", "agent_name": "HOLDFAST-worker"}
        command = ["sh", "-c", "echo by worker; cat"]
        manifest.write_text(
            json.dumps(names | {"adapter": {"kind": "command", "command": command}})
        )
        facts = {"backend": "command", "tool": "sh", "manifest_path": str(manifest)}
        second = bench.hf.agents.publish("worker", agent_id="gpu", **facts)  # type: ignore[arg-type]
        lone = bench("gateway", "prompt", "worker", "astray")
        assert (lone.status, "no gateway of worker runs" in lone.err) == (6, True), lone
        unclear = bench("gateway", "serve", "gpu")
        assert (unclear.status, "call the one with the id gpu worker" in unclear.err) == (
            4,
            True,
        ), unclear
        with serving(bench, "worker") as apart:
            assert (plain, apart != plain) == ("gpu", True)
            for word, said in (
                ("worker", "by worker\n"),
                (apart, "by worker\n"),
                ("gpu", ""),
                (first.agent_id, ""),
            ):
                assert (
                    bench("gateway", "prompt", word, f"for {word}", "--wait").out.rstrip("\n")
                    == f"{said}for {word}"
                )
            for agent, key in ((first, plain), (second, apart)):
                reported = bench.hf.agents.get(agent.agent_id).gateway
                assert reported is not None and Path(reported.state_path).parent.name == key
        # A restart may use the gateway's own name for it, too.
        with serving(bench, apart) as again:
            assert again == apart


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


def test_a_gateway_that_loses_its_agent_before_it_serves_does_not_begin_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another was found in the moment before there was a server to stop: it served on, and both had
    the agent.
    """

    @contextmanager
    def lost_at_once(_: Announcement, *, on_lost: Callable[[str], None]) -> Iterator[None]:
        on_lost("another gateway has taken over gpu")
        yield

    began: list[object] = []
    monkeypatch.setattr(process, "announced", lost_at_once)
    monkeypatch.setattr(process, "serve_alone", lambda *given: began.append(given))
    settings = Settings(store=f"sqlite:{tmp_path}/store.sqlite")
    served, spec = Served("gpu"), CommandSpec(command=("cat",))
    with pytest.raises(LeaseLost, match="another gateway has taken over"):
        process.serve_gateway(
            "gpu",
            served,
            spec,
            settings,
            adapt=lambda spec: spec,
            host="127.0.0.1",
            port=0,
            more_hosts=(),
            depth_max=10,
        )
    assert began == []
