"""One process hosts the gateways of all agents of a machine."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from holdfast.adapters.gateway_folder import GatewayFolder
from holdfast.adapters.hosting_folder import HostingFolder
from holdfast.domains.agents import Agent
from holdfast.kernel.errors import STATUS, InvalidValue, NotFound, StoreCorrupt, Unavailable
from holdfast.runtime.configuration import gateway_root, hosting_root
from holdfast.runtime.connection import connect
from holdfast.runtime.host_process import ensure_hosted, host_of
from tests.harness.timeouts import PATIENCE_S, until
from tests.surfaces.agent_bench import AgentBench, Process, agent_bench, ended
from tests.surfaces.locking import line

pytestmark = pytest.mark.prove

SHELL = ("env", "PS1=> ", "bash", "--norc")
AT_ITS_PROMPT = ("--ready-regex", "^> ?$", "--quiet-ms", "100")
HOSTING = "hosting the gateways of all agents of this machine"


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentBench]:
    with agent_bench(tmp_path) as made:
        # `ensure_hosted` runs here, and must find what the commands of the bench find.
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("TMUX", raising=False)
        yield made
        if (record := host_of(made.hf)) is not None:
            os.kill(record.process.pid, signal.SIGKILL)
            ended(record.process.pid)


@contextmanager
def hosting(bench: AgentBench, *words: str) -> Iterator[Process]:
    process = bench.start(*(words or ("gateway", "serve", "--all")))
    try:
        assert line(process)
        yield process
    finally:
        process.kill()
        process.communicate()


def shell(bench: AgentBench, name: str, *words: str) -> Agent:
    return bench.start_agent(name, *AT_ITS_PROMPT, *words, command=SHELL)


def answers(bench: AgentBench, name: str) -> bool:
    return bench.hf.gateway(name).answers()


def hosted(bench: AgentBench) -> dict[str, str]:
    """The state of each gateway, as the host says."""
    record = HostingFolder(hosting_root(bench.hf.settings)).read()
    return {} if record is None else {one.agent: one.state for one in record.gateways}


def ask(bench: AgentBench, name: str, number: int) -> str:
    ran = bench("gateway", "prompt", name, f"echo sum-$(({number}+1))", "--wait", "--timeout", "60")
    assert ran.status == 0, ran.err
    return ran.out


def runs(bench: AgentBench, name: str) -> bool:
    return bool(bench.hf.gateway(name).requests(state="running"))


def test_agents_that_are_there_and_those_that_appear_get_their_gateways(bench: AgentBench) -> None:
    shell(bench, "early")
    with hosting(bench) as host:
        shell(bench, "late")
        for name in ("early", "late"):
            until(partial(answers, bench, name))
            record = bench.hf.agents.resolve(name).unwrap()
            instance = GatewayFolder(gateway_root(bench.hf.settings, name)).instance()
            assert record.gateway is not None and instance is not None
            assert (instance.pid, instance.port) == (host.pid, record.gateway.port)
        assert "sum-42" in ask(bench, "early", 41)
        assert "sum-8" in ask(bench, "late", 7)
        host.terminate()
        assert host.wait(PATIENCE_S) == 0
        for name in ("early", "late"):
            assert bench.hf.agents.resolve(name).unwrap().gateway is None


def test_one_that_goes_is_dropped_and_its_queue_is_kept(bench: AgentBench) -> None:
    agent = shell(bench, "gpu")
    with hosting(bench):
        until(lambda: answers(bench, "gpu"))
        ask(bench, "gpu", 1)
        bench.tmux("kill-session", "-t", f"={agent.session_name}")
        until(lambda: hosted(bench) == {})
        assert not answers(bench, "gpu")
        assert GatewayFolder(gateway_root(bench.hf.settings, "gpu")).queue.exists()
        # Started again, it is another instance. Nothing waits, so nobody has to decide.
        shell(bench, "gpu")
        until(lambda: answers(bench, "gpu"))
        assert "sum-6" in ask(bench, "gpu", 5)
        assert bench.hf.gateway("gpu").status()["managed_agent_instance_epoch"] == 2
        assert len(bench.hf.gateway("gpu").requests()) == 2


def test_a_generation_with_another_adapter_gets_a_new_gateway(bench: AgentBench) -> None:
    first = shell(bench, "gpu", "--tmux-session", "one")
    with hosting(bench):
        until(lambda: answers(bench, "gpu"))
        bench.kill(first, bench.tmux.pane_pid("one"))
        shell(bench, "gpu", "--tmux-session", "two", "--take-over")
        until(lambda: answers(bench, "gpu") and bench.hf.gateway("gpu").status()["detail"] == "")
        assert "sum-3" in ask(bench, "gpu", 2)
        assert "sum-3" in bench.tmux.screen("two")


def test_a_detached_gateway_stays_detached_until_somebody_asks(bench: AgentBench) -> None:
    for name in ("gpu", "cpu"):
        shell(bench, name)
    with hosting(bench) as host:
        until(lambda: answers(bench, "gpu") and answers(bench, "cpu"))
        assert bench("gateway", "detach", "gpu").status == 0
        until(lambda: hosted(bench) == {"gpu": "detached", "cpu": "serving"})
        assert (answers(bench, "gpu"), answers(bench, "cpu")) == (False, True)
        host.kill()
        host.wait(PATIENCE_S)
    # The next host knows it too.
    with hosting(bench):
        until(lambda: hosted(bench) == {"gpu": "detached", "cpu": "serving"})
        ensure_hosted(bench.hf, "gpu")
        assert answers(bench, "gpu")
        assert bench("gateway", "detach", "gpu").status == 0
        until(lambda: hosted(bench)["gpu"] == "detached")
        bench.tmux("kill-session", "-t", "=HOLDFAST-gpu")
        until(lambda: "gpu" not in hosted(bench))
        shell(bench, "gpu")
        until(lambda: answers(bench, "gpu"))


def test_a_gateway_with_a_process_of_its_own_is_left_alone_and_taken_over(
    bench: AgentBench,
) -> None:
    shell(bench, "gpu")
    own = bench.start("gateway", "serve", "gpu")
    try:
        assert line(own).startswith("gateway of gpu at ")
        with hosting(bench) as host:
            until(lambda: hosted(bench) == {"gpu": "held"})
            folder = GatewayFolder(gateway_root(bench.hf.settings, "gpu"))
            instance = folder.instance()
            assert instance is not None and instance.pid == own.pid
            own.kill()
            own.wait(PATIENCE_S)
            until(lambda: hosted(bench) == {"gpu": "serving"})
            instance = folder.instance()
            assert instance is not None and instance.pid == host.pid
            assert "sum-5" in ask(bench, "gpu", 4)
    finally:
        own.kill()
        own.communicate()


def test_a_second_host_is_refused_and_a_server_stands_by(bench: AgentBench) -> None:
    shell(bench, "gpu")
    with hosting(bench) as host:
        second = bench("gateway", "serve", "--all")
        assert second.status == 4
        assert f"process {host.pid} (`holdfast gateway serve --all`)" in second.err
        with hosting(bench, "serve", "--port", "0", "--json") as server:
            until(lambda: hosted(bench) == {"gpu": "serving"})
            host.terminate()
            assert host.wait(PATIENCE_S) == 0

            def taken_over() -> bool:
                record = host_of(bench.hf)
                return record is not None and record.process.pid == server.pid

            until(taken_over)
            until(lambda: answers(bench, "gpu"))
            server.terminate()
            assert server.wait(PATIENCE_S) == 0


def test_a_server_can_leave_the_gateways_to_others(bench: AgentBench) -> None:
    shell(bench, "gpu")
    with (
        hosting(bench, "serve", "--port", "0", "--json", "--no-gateways"),
        hosting(bench) as host,
    ):
        until(lambda: answers(bench, "gpu"))
        record = host_of(bench.hf)
        assert record is not None and record.process.pid == host.pid


def test_damage_of_one_does_not_touch_the_others(bench: AgentBench) -> None:
    """A queue that is no database, and a manifest that is none."""
    for name in ("damaged", "untrusted", "well"):
        shell(bench, name)
    folder = GatewayFolder(gateway_root(bench.hf.settings, "damaged"))
    folder.prepare()
    folder.queue.write_bytes(b"no database" * 1000)
    Path(bench.hf.agents.resolve("untrusted").unwrap().runtime.manifest_path).write_text("{")
    with hosting(bench):
        until(
            lambda: hosted(bench) == {"damaged": "failed", "untrusted": "failed", "well": "serving"}
        )
        assert "sum-3" in ask(bench, "well", 2)
        with pytest.raises(StoreCorrupt):
            ensure_hosted(bench.hf, "damaged", within_s=0.5)
        with pytest.raises(Unavailable, match=r"does not come up.* manifest "):
            ensure_hosted(bench.hf, "untrusted", within_s=0.5)


def test_a_stopped_agent_does_not_hold_up_the_end_of_the_others(bench: AgentBench) -> None:
    """Each runs a prompt that does not end: all are given up at the same time."""
    names = ["a", "b", "c", "d"]
    for name in names:
        shell(bench, name)
    with hosting(bench) as host:
        for name in names:
            until(partial(answers, bench, name))
            bench.hf.gateway(name).prompt("sleep 600")
        for name in names:
            until(partial(runs, bench, name))
        begun_s = time.monotonic()
        host.terminate()
        assert host.wait(PATIENCE_S) == 0
        # The grace of one gateway, and not of four.
        assert time.monotonic() - begun_s < 25
    with hosting(bench):
        for name in names:
            until(partial(answers, bench, name))
            (request,) = bench.hf.gateway(name).requests()
            assert (request["state"], request["error_code"]) == ("failed", "interrupted_by_restart")


def test_what_is_asked_for_is_hosted_in_the_background(bench: AgentBench) -> None:
    shell(bench, "gpu")
    ensure_hosted(bench.hf, "gpu")
    assert "sum-3" in ask(bench, "gpu", 2)
    record = host_of(bench.hf)
    assert record is not None
    pid = record.process.pid
    # It belongs to no terminal and no process tree, and only its owner reads its log.
    assert os.getsid(pid) == pid != os.getsid(0)
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"HOLDFAST_CUSTODY" not in environment and b"TMUX_PANE" not in environment
    folder = HostingFolder(hosting_root(bench.hf.settings))
    assert [oct(path.stat().st_mode & 0o777) for path in (folder.root, folder.log)] == [
        "0o700",
        "0o600",
    ]
    # A second one needs no second host.
    shell(bench, "cpu")
    ensure_hosted(bench.hf, "cpu")
    record = host_of(bench.hf)
    assert record is not None and record.process.pid == pid


def test_a_host_that_does_not_start_says_why(
    bench: AgentBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell(bench, "gpu")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(Unavailable, match="the host of gateways does not start"):
        ensure_hosted(bench.hf, "gpu")
    # Its own words, when it has some.
    script = bench.folder / "python"
    script.write_text("#!/bin/sh\necho the cable is loose >&2\nexit 6\n")
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(Unavailable, match="the cable is loose"):
        ensure_hosted(bench.hf, "gpu")


def test_nobody_hosts_what_is_not_there(bench: AgentBench) -> None:
    with pytest.raises(NotFound):
        ensure_hosted(bench.hf, "nobody")
    with connect("memory:") as alone, pytest.raises(InvalidValue):
        ensure_hosted(alone, "nobody")


@pytest.mark.parametrize("words", [("gpu",), ("--port", "9100"), ("--adapter", "tmux")])
def test_all_takes_nothing_that_is_about_one(bench: AgentBench, words: tuple[str, ...]) -> None:
    ran = bench("gateway", "serve", "--all", *words)
    assert ran.status == 2 and "leave one of both out" in ran.err, ran


def test_doctor_says_who_hosts(bench: AgentBench) -> None:
    shell(bench, "gpu")
    with hosting(bench) as host:
        until(lambda: answers(bench, "gpu"))
        findings = [json.loads(one) for one in bench("doctor", "--json").out.splitlines()]
        said = json.dumps(findings)
        assert f"process {host.pid} hosts" in said


def test_a_prompt_without_a_gateway_says_the_way_out(bench: AgentBench) -> None:
    shell(bench, "gpu")
    ran = bench("gateway", "prompt", "gpu", "hello")
    assert ran.status == 6
    assert "holdfast gateway serve --all" in ran.err


def test_twenty_agents_have_their_gateways_in_one_process(bench: AgentBench) -> None:
    names = [f"agent-{number}" for number in range(20)]
    for name in names:
        bench.start_agent(name, *AT_ITS_PROMPT, "--watch", "0", command=SHELL)
    with hosting(bench):
        until(lambda: set(hosted(bench).values()) == {"serving"} and len(hosted(bench)) == 20)
        ports = {
            agent.gateway.port
            for agent in bench.hf.agents.list_agents()
            if agent.gateway is not None
        }
        assert len(ports) == 20
        for name in names:
            assert "sum-2" in ask(bench, name, 1)


def test_a_host_is_ended_by_a_command(bench: AgentBench) -> None:
    shell(bench, "a", "--gateway")
    record = host_of(bench.hf)
    assert record is not None
    ran = bench("gateway", "detach", "--all")
    assert (ran.status, ran.err) == (0, "")
    assert str(record.process.pid) in ran.out
    ended(record.process.pid)
    again = bench("gateway", "detach", "--all")
    assert again.status == STATUS["not_found"].exit, again.err
    assert bench("gateway", "detach").status == bench("gateway", "detach", "a", "--all").status == 2


def test_a_server_that_hosts_is_not_ended_by_it(bench: AgentBench) -> None:
    with hosting(bench, "serve", "--port", "0") as server:
        until(lambda: host_of(bench.hf) is not None)
        ran = bench("gateway", "detach", "--all")
        assert ran.status == STATUS["refused"].exit, ran.err
        assert server.poll() is None
