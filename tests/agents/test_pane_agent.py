"""Which process in a pane is the agent, on a real tmux: its replacement gets nothing, even in the
same pane.
"""

import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.adapters import tmux_agent
from holdfast.adapters.tmux_agent import TmuxAgent
from holdfast.adapters.tmux_pane import Screen
from holdfast.domains.gateway import AgentState, Observation
from holdfast.domains.gateway.adapter import TmuxSpec
from holdfast.kernel.errors import Fenced, UpstreamUnavailable
from holdfast.kernel.holder import Holder
from holdfast.processes.procfs import Procfs
from tests.harness.timeouts import until
from tests.harness.tmux_server import LISTENER, TmuxServer, delivered, tmux_server

pytestmark = pytest.mark.prove

READY = r"^(ready> ?|shell\$ ?)$"


class Shell:
    """A pane with a shell, from which agents are started."""

    def __init__(self, tmux: TmuxServer) -> None:
        self.tmux = tmux
        tmux(
            "new-session",
            "-d",
            "-s",
            "claude",
            "-x",
            "100",
            "-y",
            "30",
            "env PS1='shell$ ' bash --norc",
        )
        self.shows("shell$")
        self.process: Holder | None = None

    def type(self, line: str) -> None:
        self.tmux("send-keys", "-t", "=claude:", "-l", line)
        self.tmux("send-keys", "-t", "=claude:", "Enter")

    def start_agent(self) -> None:
        self.type(shlex.join([sys.executable, str(LISTENER), str(self.tmux.folder / "heard")]))
        self.shows("ready>")

    def shows(self, last: str) -> None:
        until(lambda: self.tmux.screen("claude").rstrip().endswith(last))

    def gateway(self, **how: Any) -> TmuxAgent:
        spec = TmuxSpec(
            session="claude",
            socket_path=str(self.tmux.socket),
            **{"quiet_ms": 100, "ready_regex": READY, **how},
        )
        return TmuxAgent(
            spec,
            agent="helper",
            folder=self.tmux.folder,
            processes=Procfs(),
            process=lambda: self.process,
        )


@pytest.fixture
def shell() -> Iterator[Shell]:
    with tmux_server() as tmux:
        yield Shell(tmux)


def ready(agent: TmuxAgent) -> str:
    until(lambda: agent.inspect().state is AgentState.READY)
    found = agent.inspect().instance_id
    assert found is not None
    return found


def gone(agent: TmuxAgent, reason: str) -> Observation:
    until(lambda: agent.inspect().reason == reason)
    seen = agent.inspect()
    assert seen.instance_id is None
    return seen


def test_an_agent_that_exits_to_its_shell_is_gone_and_no_prompt_runs_there(shell: Shell) -> None:
    shell.start_agent()
    agent = shell.gateway()
    one = ready(agent)
    agent.answer(agent.deliver("hello", one), threading.Event())
    shell.tmux("send-keys", "-t", "=claude:", "C-d")
    shell.shows("shell$")
    assert "start the agent there again" in gone(agent, "exited_to_shell").detail
    ran = shell.tmux.folder / "ran"
    with pytest.raises(Fenced):
        agent.deliver(f"touch {ran}", one)
    # Nor does the next gateway take the shell for the agent.
    agent.close()
    later = shell.gateway()
    gone(later, "exited_to_shell")
    with pytest.raises(Fenced):
        later.deliver(f"touch {ran}", one)
    assert shell.tmux.typed() == delivered(b"hello") + b"\x04"
    assert not ran.exists()
    # Another agent from the same shell is another instance.
    shell.start_agent()
    two = ready(later)
    assert two != one
    with pytest.raises(Fenced):
        later.deliver("old", one)
    later.deliver("new", two)
    assert shell.tmux.typed() == delivered(b"hello") + b"\x04" + delivered(b"new")


def test_the_shell_of_an_agent_that_dies_between_paste_and_enter_does_not_run_the_prompt(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It reads nothing, so that what is pasted is left for the shell.
    shell.type("sh -c 'stty raw -echo; echo ready\\>; exec sleep 1000'")
    shell.shows("ready>")
    agent = shell.gateway()
    one = ready(agent)
    wait = agent._await_enter

    def kill_first(prompt: str, screen: Screen, paste: str) -> None:
        os.kill(int(one.rpartition(":")[2].partition(".")[0]), signal.SIGKILL)
        wait(prompt, screen, paste)

    monkeypatch.setattr(agent, "_await_enter", kill_first)
    ran = shell.tmux.folder / "ran"
    with pytest.raises(
        UpstreamUnavailable, match="another program was in the pane before Enter"
    ) as unknown:
        agent.deliver(f"touch {ran}", one)
    assert unknown.value.fields["outcome"] == "unknown"
    # Its timer has fired by now too.
    shell.tmux.typed()
    shell.shows(f"touch {ran}")
    # What the shell ran would be done before this.
    shell.tmux("send-keys", "-t", "=claude:", "C-u")
    shell.type("echo end-of-it")
    until(lambda: "\nend-of-it" in shell.tmux.screen("claude"))
    assert not ran.exists()


def test_an_agent_that_is_suspended_waits_and_is_the_same_when_it_is_back(shell: Shell) -> None:
    shell.start_agent()
    agent = shell.gateway()
    one = ready(agent)
    process = int(one.rpartition(":")[2].partition(".")[0])
    os.kill(process, signal.SIGSTOP)
    shell.shows("shell$")
    until(lambda: agent.inspect().state is AgentState.WORKING)
    seen = agent.inspect()
    assert (seen.instance_id, "not in the foreground" in seen.detail) == (one, True)
    for act in (lambda: agent.deliver("touch ran", one), lambda: agent.interrupt(one)):
        with pytest.raises(Fenced, match="not in the foreground"):
            act()
    assert shell.tmux.typed() == b""
    shell.type("fg")
    until(lambda: "not in the foreground" not in agent.inspect().detail)
    assert agent.inspect().instance_id == one


def test_a_shell_that_is_the_agent_is_busy_while_it_runs_a_command(shell: Shell) -> None:
    agent = shell.gateway()
    one = ready(agent)
    delivery = agent.deliver("cat", one)
    until(
        lambda: agent.inspect().state is AgentState.WORKING and "cat is" in agent.inspect().detail
    )
    assert agent.inspect().instance_id == one
    # What it runs is interrupted, since nothing else could be meant.
    assert agent.interrupt(one)
    assert "cat" in agent.answer(delivery, threading.Event()).text
    assert ready(agent) == one


def test_a_program_that_a_shell_runs_for_a_moment_is_not_taken_for_the_agent(shell: Shell) -> None:
    shell.type("cat")
    agent = shell.gateway(ready_regex=r"^shell\$ ?$")
    until(lambda: agent.inspect().instance_id is not None)
    shell.tmux("send-keys", "-t", "=claude:", "C-c")
    shell.shows("shell$")
    one = ready(agent)
    assert one.endswith(
        f":{shell.tmux.pane_pid('claude')}.{Procfs().of(shell.tmux.pane_pid('claude')).start_ticks}"
    )


def test_an_agent_that_was_never_ready_is_not_confused_with_its_shell_either(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.start_agent()
    agent = shell.gateway(ready_regex="^never$")
    until(lambda: agent.inspect().instance_id is not None)
    assert "@holdfast_agent" not in shell.tmux("show-options", "-p", "-t", "=claude:")
    # It stays in the foreground for longer than what a shell runs for its prompt.
    monkeypatch.setattr(tmux_agent, "_STAY_S", 0.0)
    agent.inspect()
    shell.tmux("send-keys", "-t", "=claude:", "C-d")
    gone(agent, "exited_to_shell")


def test_only_the_process_of_the_record_is_typed_to(shell: Shell, tmp_path: Path) -> None:
    shell.start_agent()
    free = shell.gateway()
    pid = int(ready(free).rpartition(":")[2].partition(".")[0])
    free.close()
    shell.process = Procfs().of(pid)
    agent = shell.gateway()
    one = ready(agent)
    agent.answer(agent.deliver("hello", one), threading.Event())
    os.kill(pid, signal.SIGKILL)
    assert f"process {pid} has ended" in gone(agent, "process_dead").detail
    # Somebody else's program comes into the same pane, and into one of the same name.
    shell.start_agent()
    gone(agent, "process_dead")
    shell.tmux("new-session", "-d", "-s", "keeps-the-server")
    shell.tmux("kill-session", "-t", "=claude")
    shell.tmux.listen()
    gone(agent, "process_dead")
    with pytest.raises(Fenced):
        agent.deliver("touch ran", one)
    assert shell.tmux.typed() == delivered(b"hello")
    # It lives, elsewhere.
    shell.process = Procfs().current()
    gone(agent, "process_not_in_session")
    assert "@holdfast_gateway" not in shell.tmux("show-options", "-p", "-t", "=claude:")
    # The record names the process that runs.
    shell.process = Procfs().of(shell.tmux.pane_pid("claude"))
    agent.answer(agent.deliver("again", ready(agent)), threading.Event())
    assert shell.tmux.typed() == delivered(b"hello", b"again")


def test_a_process_that_cannot_be_judged_from_here_is_not_typed_to(shell: Shell) -> None:
    shell.start_agent()
    here = Procfs().of(shell.tmux.pane_pid("claude"))
    shell.process = Holder(
        host_id="elsewhere", boot_id=here.boot_id, pid_ns=here.pid_ns, pid=here.pid, start_ticks=1
    )
    gone(shell.gateway(), "target_unknown")
