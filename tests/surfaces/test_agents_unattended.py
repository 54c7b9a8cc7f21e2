"""Unattended agents on the command line: the host of gateways runs them, in a protocol."""

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.adapters.gateway_folder import GatewayFolder
from holdfast.kernel.errors import NotFound
from holdfast.runtime.configuration import gateway_root
from holdfast.runtime.host_process import host_of
from tests.harness.processes import state_of
from tests.harness.timeouts import until
from tests.surfaces.agent_bench import AgentBench, agent_bench, ended
from tests.surfaces.command import Ran
from tests.surfaces.locking import line

pytestmark = pytest.mark.prove

PROGRAM = str(Path(__file__).parents[1] / "agents" / "protocol_program.py")
SECRET = "sk-never-shown"


class Boss:
    """The agent `boss`, a program that notes what it gets."""

    def __init__(self, bench: AgentBench, folder: Path) -> None:
        self.bench, self.folder = bench, folder
        folder.mkdir()

    def start(self, *options: str, how: tuple[str, ...] = (), kind: str = "acp") -> Ran:
        protocol = "codex_app_server" if kind == "app" else "acp"
        command = (sys.executable, PROGRAM, kind, str(self.folder), *how)
        words = ("--unattended", "--protocol", protocol, *options, "--", *command)
        return self.bench("agents", "start", "boss", *words)

    def noted(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def pids(self) -> list[int]:
        """All processes that it ever was."""
        return [int(pid) for pid in self.noted("starts")]

    def living(self) -> list[int]:
        return [pid for pid in self.pids() if state_of(pid) not in (None, "Z")]

    def environment_files(self) -> list[Path]:
        return sorted((self.bench.folder / "state").rglob("environment"))

    def shown(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.bench("agents", "get", "boss", "--json").out)
        return found

    def ask(self, text: str) -> str:
        ran = self.bench("agents", "send", "boss", text, "--wait", "--timeout", "60")
        assert ran.status == 0, ran.err
        return ran.out.strip()

    def has_record(self) -> bool:
        try:
            self.bench.hf.agents.resolve("boss").unwrap()
        except NotFound:
            return False
        return True


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentBench]:
    with agent_bench(tmp_path) as made:
        # `host_of` runs here, and must find what the commands of the bench find.
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made
        kill_host(made)


@pytest.fixture
def boss(bench: AgentBench, tmp_path: Path) -> Iterator[Boss]:
    made = Boss(bench, tmp_path / "boss")
    yield made
    kill_host(bench)
    for pid in made.pids():
        ended(pid)


def kill_host(bench: AgentBench) -> None:
    if (record := host_of(bench.hf)) is not None:
        os.kill(record.process.pid, signal.SIGKILL)
        ended(record.process.pid)


@pytest.mark.parametrize("kind", ["acp", "app"])
def test_it_is_started_prompted_looked_at_and_stopped(boss: Boss, kind: str) -> None:
    ran = boss.start(kind=kind)
    assert (ran.status, ran.out.split()[0]) == (0, "HOLDFAST-boss"), ran.err
    assert boss.ask("say hello") == "hello"
    shown = boss.shown()
    assert shown["identity"]["backend"] == {"acp": "acp", "app": "codex_app_server"}[kind]
    assert (shown["terminal"], shown["holder"], shown["work"]["state"]) == (None, None, "ready")
    [pid] = boss.living()
    assert "draws no screen" in boss.bench("agents", "logs", "boss").out
    attached = boss.bench("agents", "attach", "boss")
    assert attached.status == 4 and "agents send boss" in attached.err
    again = boss.start(kind=kind)
    assert again.status == 4 and boss.living() == [pid]
    assert boss.ask("say still") == "still"
    stopped = boss.bench("agents", "stop", "boss")
    assert stopped.status == 0 and stopped.out.startswith("stopped HOLDFAST-boss"), stopped.err
    assert boss.living() == []
    assert not boss.has_record() and boss.environment_files() == []
    logs = boss.bench("agents", "logs", "boss")
    assert "the gateway was stopped" in logs.out and "exited" in logs.err
    assert boss.bench("agents", "stop", "boss").status == 0
    # What it said is over: the next start is another conversation.
    assert boss.start(kind=kind).status == 0
    assert len(boss.noted("sessions")) == 2


def test_restart_goes_on_with_the_conversation(boss: Boss) -> None:
    assert boss.start().status == 0
    nothing = boss.bench("agents", "restart", "boss")
    assert "nothing was said" in nothing.out, nothing.err
    boss.ask("say one")
    last = boss.noted("sessions")[-1]
    first = boss.shown()["generation_id"]
    went_on = boss.bench("agents", "restart", "boss", "--json")
    assert json.loads(went_on.out)["conversation"] == last
    assert boss.shown()["generation_id"] != first
    assert boss.ask("say two") == "two"
    # Also a long time after it was stopped.
    boss.bench("agents", "stop", "boss")
    assert f"conversation {last} goes on" in boss.bench("agents", "restart", "boss").out
    assert boss.noted("sessions")[-1] == last
    assert boss.bench("gateway", "status", "boss").out.count("epoch  1") == 1
    fresh = json.loads(boss.bench("agents", "restart", "boss", "--fresh", "--json").out)
    assert (fresh["conversation"], fresh["why"]) == (None, "as asked")
    assert boss.noted("sessions")[-1] != last
    back = json.loads(boss.bench("agents", "restart", "boss", "--conversation", last, "--json").out)
    assert back["conversation"] == last
    assert boss.ask("say three") == "three"
    assert boss.noted("prompts") == ["say one", "say two", "say three"]
    assert len(boss.living()) == 1


def test_it_has_the_environment_of_the_command_that_started_it(boss: Boss) -> None:
    # The host is there already, and knows nothing of the key.
    assert boss.start().status == 0
    boss.bench("agents", "stop", "boss")
    boss.bench.environment |= {"API_KEY": SECRET, "HOLDFAST_WORKFLOW": "another's", "TMUX": "x,1,0"}
    assert boss.start().status == 0
    [pid] = boss.living()
    block = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    found = dict(entry.decode().split("=", 1) for entry in block if entry)
    assert found["API_KEY"] == SECRET
    assert found["HOLDFAST_AGENT_NAME"] == "HOLDFAST-boss"
    assert {"HOLDFAST_WORKFLOW", "TMUX"}.isdisjoint(found)
    [path] = boss.environment_files()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    with_it = subprocess.run(
        ["grep", "-rlF", SECRET, boss.bench.folder], capture_output=True, text=True, check=False
    )
    assert with_it.stdout.split() == [str(path)]
    log = boss.bench("log").out
    words = Path(f"/proc/{pid}/cmdline").read_text()
    assert "agent.published" in log and SECRET not in log + words
    # A restart brings its own.
    boss.bench.environment["API_KEY"] = "another"
    boss.bench("agents", "restart", "boss")
    [pid] = boss.living()
    assert b"API_KEY=another" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


@pytest.mark.parametrize(
    ("how", "said"),
    [("dies", "exit status 1: no such model"), ("login", "needs a login"), ("old", "version 2")],
)
def test_one_that_does_not_start_is_removed_and_says_why(boss: Boss, how: str, said: str) -> None:
    ran = boss.start(how=(how,))
    assert (ran.status, ran.out) == (1, "") and said in ran.err
    assert boss.living() == [] and boss.environment_files() == []
    assert not boss.has_record()
    # The name is free at once.
    assert boss.start().status == 0
    assert boss.ask("say yes") == "yes"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--", "no-such-agent"), 2, "there is no command no-such-agent"),
        ((), 2, "--tool NAME"),
        (("--tool", "shell"), 2, "no command that speaks a protocol"),
        (("--tool", "nothing"), 1, "there is no profile 'nothing'"),
        (("--tmux-session", "x", "--", "cat"), 2, "--tmux-session"),
        (("--ready-regex", "x", "--", "cat"), 2, "--ready-regex"),
        (("--leftovers", "keep", "--", "cat"), 2, "--leftovers keep"),
        (("--protocol", "codex_app_server", "--mode", "plan", "--", "cat"), 2, "--mode"),
    ],
)
def test_a_start_that_cannot_be(
    bench: AgentBench, words: tuple[str, ...], status: int, said: str
) -> None:
    ran = bench("agents", "start", "boss", "--unattended", *words)
    assert (ran.status, ran.out) == (status, "") and said in ran.err, ran
    assert bench.hf.agents.list_agents() == [] and host_of(bench.hf) is None


def test_options_of_an_unattended_agent_mean_nothing_in_tmux(bench: AgentBench) -> None:
    ran = bench("agents", "start", "boss", "--mode", "plan", "--", "sleep", "600")
    assert ran.status == 2 and "--mode" in ran.err
    assert bench.hf.agents.list_agents() == []


def test_a_killed_host_leaves_nothing_and_the_next_goes_on(boss: Boss) -> None:
    assert boss.start().status == 0
    boss.ask("say one")
    held = boss.bench("agents", "send", "boss", "child").out.strip()
    waits = boss.bench("agents", "send", "boss", "say after").out.strip()
    until(lambda: boss.noted("children"))
    pids = [int(pid) for pid in boss.noted("children")[0].split()]
    kill_host(boss.bench)
    host = boss.bench.start("gateway", "serve", "--all")
    try:
        assert line(host)
        gateway = boss.bench.hf.gateway("boss")
        until(gateway.answers)
        for pid in pids:
            ended(pid)
        assert gateway.request(waits, wait_s=60)["state"] == "completed"
        cut = gateway.request(held)
        assert (cut["state"], cut["error_code"]) == ("failed", "interrupted_by_restart")
        assert boss.ask("say last") == "last"
    finally:
        host.kill()
        host.communicate()
    assert boss.noted("prompts") == ["say one", "child", "say after", "say last"]
    assert len(boss.noted("sessions")) == 1


def test_it_is_stopped_when_its_host_is_dead(boss: Boss) -> None:
    assert boss.start().status == 0
    kill_host(boss.bench)
    ran = boss.bench("agents", "stop", "boss")
    assert ran.status == 0, ran.err
    assert not boss.has_record() and boss.environment_files() == []
    assert boss.living() == []


def test_an_agent_cannot_stop_itself(boss: Boss) -> None:
    assert boss.start().status == 0
    [pid] = boss.living()
    block = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    [mark] = [entry.decode() for entry in block if entry.startswith(b"HOLDFAST_CUSTODY=")]
    boss.bench.environment["HOLDFAST_CUSTODY"] = mark.partition("=")[2]
    ran = boss.bench("agents", "stop", "boss")
    assert ran.status == 2 and "cannot stop itself" in ran.err
    assert boss.living() == [pid]


def test_of_one_that_does_not_come_back_the_gateway_says_that_it_tries_again(boss: Boss) -> None:
    assert boss.start().status == 0
    boss.ask("say one")
    # Its environment is lost, so it cannot be started again.
    [path] = boss.environment_files()
    path.unlink()
    os.kill(boss.living()[0], signal.SIGKILL)

    def status() -> str:
        return boss.bench("gateway", "status", "boss").out

    until(lambda: "tries again by itself" in status(), saw=status)
    assert "agents restart" in status()
    logs = boss.bench("agents", "logs", "boss").out
    assert "its last process ended at" in logs and str(path) in logs
    assert GatewayFolder(gateway_root(boss.bench.hf.settings, "boss")).program_end() is not None
    assert boss.bench("agents", "restart", "boss").status == 0
    assert boss.ask("say two") == "two"


def test_a_relative_command_is_one_in_its_folder(boss: Boss) -> None:
    script = boss.folder / "agent"
    script.write_text(f"#!/bin/sh\nexec {sys.executable} {PROGRAM} acp {boss.folder}\n")
    script.chmod(0o700)
    words = ("agents", "start", "boss", "--unattended", "--", "./agent")
    elsewhere = boss.bench(*words)
    assert elsewhere.status == 2 and "there is no command ./agent" in elsewhere.err
    assert boss.bench(*words, cwd=boss.folder).status == 0
    assert boss.ask("say hello") == "hello"
    assert boss.bench("agents", "restart", "boss").status == 0
    assert boss.ask("say again") == "again"
