"""The gateway chapter: before an agent in tmux where there is one, else before a command."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from holdfast.kernel.errors import Blocked, status_of
from holdfast.kernel.text import installing
from holdfast.runtime.doctor.machine import not_installed
from holdfast.surfaces.cli.tour.stage import PATIENCE_S, BrokenStep, Process, Stage

NAME = "tour-coder"
_NEXT = "tour-next"
_SOCKET_CHARS_MAX = 90
_AGENT = """
said() { echo "$1"; [ -z "$TOUR_SHOWS" ] || printf '> '; }
wait_for_go() { while [ ! -e "$TOUR_GO" ]; do sleep 0.05; done; }
done_with() { echo "$TOUR_AGENT $1" >>"$TOUR_ASKED"; case "$1" in long*) wait_for_go;; esac; }
[ -z "$TOUR_SHOWS" ] || printf '> '
while read -r line || [ -n "$line" ]; do
    done_with "$line"; said "agent $TOUR_AGENT did: $line"
done
"""
"""Writes down what it is asked for, and answers; what is long takes until it is told to go on."""


class Agent:
    """One agent, which is replaced by another of the same name now and then."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._asked = stage.folder / "asked"
        self._go = stage.folder / "go"
        self.number = 0
        self.in_tmux = _can_use_tmux(stage.folder)

    def begin(self) -> None:
        """Begin, in the place of one that was there."""
        self.number += 1
        if self.in_tmux:
            # Before the other ends: with its last tmux session a server ends too, and may refuse
            # whoever comes then.
            started = self._tmux(
                "new-session",
                "-d",
                "-s",
                _NEXT,
                "-x",
                "100",
                "-y",
                "30",
                *self._command(shows=True),
            )
            if started.returncode:
                raise BrokenStep(f"an agent begins in tmux: {started.stderr.strip()}")
            self._tmux("kill-session", "-t", f"={NAME}")
            self._tmux("rename-session", "-t", f"={_NEXT}", NAME)

    def finish_long(self) -> None:
        """Let it finish what takes long."""
        self._go.touch()

    def take_long(self) -> None:
        """What is long takes long again."""
        self._go.unlink(missing_ok=True)

    def asked(self) -> list[str]:
        """What was asked of which agent, in order."""
        return self._asked.read_text().splitlines() if self._asked.exists() else []

    def adapter(self) -> list[str]:
        """How a gateway reaches it."""
        if self.in_tmux:
            return [
                "--adapter",
                "tmux",
                "--session",
                NAME,
                "--ready-regex",
                "^> ?$",
                "--quiet-ms",
                "100",
            ]
        return ["--adapter", "command", "--", *self._command(shows=False)]

    def end(self) -> None:
        """End it, and the tmux that was made for it."""
        self.finish_long()
        if self.in_tmux:
            self._tmux("kill-server")

    def _command(self, *, shows: bool) -> list[str]:
        variables = {
            "TOUR_AGENT": str(self.number),
            "TOUR_ASKED": str(self._asked),
            "TOUR_GO": str(self._go),
        }
        words = [f"{name}={value}" for name, value in variables.items()]
        return ["env", *words, f"TOUR_SHOWS={'yes' if shows else ''}", "sh", "-c", _AGENT]

    def _tmux(self, *words: str) -> "subprocess.CompletedProcess[str]":
        environment = self._stage.environment
        return subprocess.run(
            ["tmux", *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )


def gateway_chapter(stage: Stage) -> None:
    """A prompt that is answered, one that outlives its gateway, and one that must not reach a
    stranger.
    """
    if lacking := not_installed("server"):
        stage.say(f"left out: a gateway needs {', '.join(lacking)} ({installing('server')})")
        return
    agent = Agent(stage)
    try:
        agent.begin()
        where = (
            "a tmux session" if agent.in_tmux else "a program (with tmux installed, a tmux session)"
        )
        stage.say(
            f"an agent works in {where}; `holdfast gateway serve {NAME}` stands in front of it "
            "and keeps what it is asked"
        )
        gateway = _answered(stage, agent)
        gateway = _restarted(stage, agent, gateway)
        _replaced(stage, agent, gateway)
    finally:
        agent.end()


def _answered(stage: Stage, agent: Agent) -> Process:
    gateway = _serve(stage, agent)
    status, printed = stage.outcome(
        stage.start("gateway", "prompt", NAME, "hello", "--wait", "--timeout", f"{PATIENCE_S:g}")
    )
    stage.holds(
        status == 0 and "agent 1 did: hello" in printed,
        f"`holdfast gateway prompt {NAME} hello --wait` brings the answer",
    )
    return gateway


def _restarted(stage: Stage, agent: Agent, gateway: Process) -> Process:
    stage.say(
        "the agent is busy; `deploy` is queued behind it; the gateway is killed with -9 and "
        "started again"
    )
    running, queued = _busy_with_one_behind(stage, agent, "long build", "deploy")
    _kill(stage, gateway)
    agent.finish_long()
    gateway = _serve(stage, agent)
    deployed = _client(stage).request(queued, wait_s=PATIENCE_S)
    stage.holds(
        deployed["state"] == "completed" and agent.asked().count("1 deploy") == 1,
        "`deploy` was delivered after the restart, once: it had been acknowledged, so it was on "
        "disk",
    )
    ended = _client(stage).request(running)
    stage.holds(
        ended["error_code"] == "interrupted_by_restart"
        and agent.asked().count("1 long build") == 1,
        "what ran at the kill is not typed a second time: its end says that the outcome is unknown",
    )
    return gateway


def _replaced(stage: Stage, agent: Agent, gateway: Process) -> None:
    stage.say(
        "again: busy, `drop the old tables` queued, kill -9. But this time another agent takes "
        "the same name"
    )
    _, queued = _busy_with_one_behind(stage, agent, "long review", "drop the old tables")
    _kill(stage, gateway)
    agent.begin()
    _serve(stage, agent)
    client = _client(stage)
    stage.until(
        lambda: client.status()["request_admission"] != "open",
        "the gateway sees that the agent is another one",
    )
    waiting = client.request(queued)
    stage.holds(
        waiting["state"] == "accepted" and not any(line.startswith("2 ") for line in agent.asked()),
        "the new agent is not asked to drop anything: it was not the one that was meant",
    )
    status, _ = stage.outcome(stage.start("gateway", "prompt", NAME, "hello again"))
    stage.holds(
        status == status_of(Blocked("")).exit,
        "and new prompts are refused until somebody decides (exit status 4)",
    )
    _reconciled(stage, agent, client.status()["managed_agent_instance_epoch"])


def _reconciled(stage: Stage, agent: Agent, epoch: int) -> None:
    stage.say(f"an operator decides: `holdfast gateway reconcile {NAME} discard --epoch {epoch}`")
    status, _ = stage.outcome(
        stage.start("gateway", "reconcile", NAME, "discard", "--epoch", str(epoch))
    )
    answer = _client(stage).prompt("hello again", wait_s=PATIENCE_S)
    text = str((answer.get("result") or {}).get("text"))
    stage.holds(status == 0 and "agent 2 did: hello again" in text, "the new agent answers")
    typed = ["1 hello", "1 long build", "1 deploy", "1 long review", "2 hello again"]
    stage.holds(
        agent.asked() == typed,
        "and has never heard of the tables: each prompt was typed once, and nothing else was",
    )


def _busy_with_one_behind(stage: Stage, agent: Agent, long: str, behind: str) -> tuple[str, str]:
    """Ask for something long, wait until the agent is at it, and queue something behind it; return
    both ids.
    """
    client = _client(stage)
    agent.take_long()
    running = client.prompt(long)["request_id"]
    stage.until(lambda: f"{agent.number} {long}" in agent.asked(), f"the agent is at `{long}`")
    queued = client.prompt(behind)
    return running, queued["request_id"]


def _serve(stage: Stage, agent: Agent) -> Process:
    gateway = stage.start("gateway", "serve", NAME, *agent.adapter())
    if not stage.line(gateway).startswith("gateway of "):
        raise BrokenStep(f"`holdfast gateway serve {NAME}` serves")
    return gateway


def _kill(stage: Stage, gateway: Process) -> None:
    gateway.kill()
    stage.outcome(gateway)


def _client(stage: Stage) -> Any:
    return stage.hf.gateway(NAME)


def _can_use_tmux(folder: Path) -> bool:
    """Is there a tmux, and is the folder's name short enough for its socket?"""
    socket = folder / f"tmux-{os.getuid()}" / "default"
    return (
        shutil.which("tmux") is not None
        and not not_installed("tmux")
        and len(str(socket)) < _SOCKET_CHARS_MAX
    )
