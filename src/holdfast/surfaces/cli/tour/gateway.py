"""The gateway chapter: in front of an agent in tmux where there is one, else of a command."""

import os
import shutil
import subprocess
from pathlib import Path

from holdfast.adapters.gateway_client import GatewayClient
from holdfast.kernel.errors import Blocked, status_of
from holdfast.kernel.text import installing
from holdfast.runtime.doctor.machine import not_installed
from holdfast.surfaces.cli.tour.steps import PATIENCE_S, BrokenStep, Process, Tour

NAME = "tour-coder"
_NEXT = "tour-next"
_SOCKET_CHARS_MAX = 90
_AGENT = """
said() { echo "$1"; [ -z "$TOUR_SHOWS" ] || printf '> '; }
wait_for_go() { while [ ! -e "$TOUR_GO" ]; do sleep 0.05; done; }
done_with() { echo "$TOUR_AGENT $1" >>"$TOUR_PROMPTS"; case "$1" in long*) wait_for_go;; esac; }
[ -z "$TOUR_SHOWS" ] || printf '> '
while read -r line || [ -n "$line" ]; do
    done_with "$line"; said "agent $TOUR_AGENT did: $line"
done
"""
"""Writes its prompts to a file, and answers. A prompt that begins with `long` takes until a file
appears.
"""


class DemoAgent:
    """One agent, which may be replaced by another of the same name."""

    def __init__(self, tour: Tour) -> None:
        self._environment = tour.environment
        self._prompts = tour.folder / "prompts"
        self._go = tour.folder / "go"
        self.number = 0
        self.in_tmux = _can_use_tmux(tour.folder)

    def begin(self) -> None:
        """Begin, in the place of the agent that is there."""
        self.number += 1
        if self.in_tmux:
            # Before the other ends: a tmux server ends with its last session, and may refuse a
            # session that comes at that moment.
            size = ("-x", "100", "-y", "30")
            started = self._tmux(
                "new-session", "-d", "-s", _NEXT, *size, *self._command(shows=True)
            )
            if started.returncode:
                raise BrokenStep(f"an agent begins in tmux: {started.stderr.strip()}")
            self._tmux("kill-session", "-t", f"={NAME}")
            self._tmux("rename-session", "-t", f"={_NEXT}", NAME)

    def finish_long(self) -> None:
        """Let it finish a long prompt."""
        self._go.touch()

    def take_long(self) -> None:
        """Let the next long prompt take long."""
        self._go.unlink(missing_ok=True)

    def prompts(self) -> list[str]:
        """The prompts that each agent got, in order."""
        return self._prompts.read_text().splitlines() if self._prompts.exists() else []

    def adapter(self) -> list[str]:
        """The options by which a gateway reaches it."""
        if not self.in_tmux:
            return ["--adapter", "command", "--", *self._command(shows=False)]
        ready = ["--ready-regex", "^> ?$", "--quiet-ms", "100"]
        return ["--adapter", "tmux", "--session", NAME, *ready]

    def end(self) -> None:
        """End it, and the tmux server that was started for it."""
        self.finish_long()
        if self.in_tmux:
            self._tmux("kill-server")

    def _command(self, *, shows: bool) -> list[str]:
        variables = {
            "TOUR_AGENT": self.number,
            "TOUR_PROMPTS": self._prompts,
            "TOUR_GO": self._go,
            "TOUR_SHOWS": "yes" if shows else "",
        }
        words = [f"{name}={value}" for name, value in variables.items()]
        return ["env", *words, "sh", "-c", _AGENT]

    def _tmux(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["tmux", *words],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )


def gateway_chapter(tour: Tour) -> None:
    """A prompt that is answered, one that survives its gateway, and one for an agent that was
    replaced.
    """
    if lacking := not_installed("server"):
        tour.say(f"left out: a gateway needs {', '.join(lacking)} ({installing('server')})")
        return
    agent = DemoAgent(tour)
    try:
        agent.begin()
        where = "a program (with tmux installed, a tmux session)"
        where = "a tmux session" if agent.in_tmux else where
        tour.say(
            f"an agent works in {where}; `holdfast gateway serve {NAME}` stores its prompts and "
            "delivers them"
        )
        gateway = _serve(tour, agent)
        wait = ("--wait", "--timeout", f"{PATIENCE_S:g}")
        status, printed = tour.run("gateway", "prompt", NAME, "hello", *wait)
        tour.check(
            status == 0 and "agent 1 did: hello" in printed,
            f"`holdfast gateway prompt {NAME} hello --wait` prints the answer",
        )
        gateway = _restart(tour, agent, gateway)
        _replace(tour, agent, gateway)
    finally:
        agent.end()


def _restart(tour: Tour, agent: DemoAgent, gateway: Process) -> Process:
    tour.say(
        "the agent is busy, `deploy` is queued; the gateway is killed with -9 and started again"
    )
    running, queued = _queue_behind(tour, agent, "long build", "deploy")
    _kill(tour, gateway)
    agent.finish_long()
    gateway = _serve(tour, agent)
    deployed = _client(tour).request(queued, wait_s=PATIENCE_S)
    tour.check(
        deployed["state"] == "completed" and agent.prompts().count("1 deploy") == 1,
        "`deploy` was delivered after the restart, once: an accepted prompt is on disk",
    )
    ended = _client(tour).request(running)
    tour.check(
        ended["error_code"] == "interrupted_by_restart"
        and agent.prompts().count("1 long build") == 1,
        "the prompt that ran is not typed again: it ends with the outcome unknown",
    )
    return gateway


def _replace(tour: Tour, agent: DemoAgent, gateway: Process) -> None:
    tour.say(
        "again: the agent is busy, `drop the old tables` is queued, and the gateway is killed with "
        "-9. This time another agent takes the same name"
    )
    _, queued = _queue_behind(tour, agent, "long review", "drop the old tables")
    _kill(tour, gateway)
    agent.begin()
    _serve(tour, agent)
    client = _client(tour)
    tour.until(
        lambda: client.status()["request_admission"] != "open",
        "the gateway sees that the agent is another one",
    )
    waiting = client.request(queued)
    tour.check(
        waiting["state"] == "accepted"
        and not any(line.startswith("2 ") for line in agent.prompts()),
        "the new agent does not get that prompt: it was for the old one",
    )
    status, _ = tour.run("gateway", "prompt", NAME, "hello again")
    tour.check(
        status == status_of(Blocked("")).exit,
        "new prompts are refused until somebody decides (exit status 4)",
    )
    epoch = str(client.status()["managed_agent_instance_epoch"])
    words = ("gateway", "reconcile", NAME, "discard", "--epoch", epoch)
    tour.say(f"an operator decides: `holdfast {' '.join(words)}`")
    status, _ = tour.run(*words)
    answer = client.prompt("hello again", wait_s=PATIENCE_S)
    text = str((answer.get("result") or {}).get("text"))
    tour.check(status == 0 and "agent 2 did: hello again" in text, "the new agent answers")
    typed = ["1 hello", "1 long build", "1 deploy", "1 long review", "2 hello again"]
    tour.check(
        agent.prompts() == typed,
        "nobody dropped the tables: each other prompt was typed once, and nothing else",
    )


def _queue_behind(tour: Tour, agent: DemoAgent, long: str, behind: str) -> tuple[str, str]:
    """Give the agent a long prompt, wait until it works on it, and queue another; return both
    ids.
    """
    client = _client(tour)
    agent.take_long()
    running = client.prompt(long)["request_id"]
    tour.until(lambda: f"{agent.number} {long}" in agent.prompts(), f"the agent works on `{long}`")
    return running, client.prompt(behind)["request_id"]


def _serve(tour: Tour, agent: DemoAgent) -> Process:
    gateway = tour.start("gateway", "serve", NAME, *agent.adapter())
    if not tour.line(gateway).startswith("gateway of "):
        raise BrokenStep(f"`holdfast gateway serve {NAME}` serves")
    return gateway


def _kill(tour: Tour, gateway: Process) -> None:
    gateway.kill()
    tour.outcome(gateway)


def _client(tour: Tour) -> GatewayClient:
    return tour.hf.gateway(NAME)


def _can_use_tmux(folder: Path) -> bool:
    """Is there a tmux, and is the folder's name short enough for its socket?"""
    socket = folder / f"tmux-{os.getuid()}" / "default"
    return (
        shutil.which("tmux") is not None
        and not not_installed("tmux")
        and len(str(socket)) < _SOCKET_CHARS_MAX
    )
