"""`holdfast mcp` with a small client, which kills it now and then. Everything that it held passes
on at once.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import Any

from holdfast.kernel.errors import Unavailable
from holdfast.runtime.connection import Holdfast
from proof.soak import job_parts, lock_parts
from proof.soak.child import Child, settle_first

_END_S = 60.0
_NO_STORE = 6
"""The exit status of a command that cannot reach its store: the database is down."""
_HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "soak", "version": "1"},
}


class ToolFailed(Exception):
    """A tool answered with an error."""


class Hands:
    """A `holdfast mcp`, and the calls of its tools. It dies with its client."""

    def __init__(self, child: Child) -> None:
        words = [
            "mcp",
            "--as",
            child.name,
            "--store",
            child.url,
            *(f"--queue={label}" for label in job_parts.LABELS),
        ]
        with (child.folder / "mcp.log").open("a") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.surfaces.cli.entry", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                preexec_fn=settle_first,
            )
        self._last = 0
        self._said("initialize", _HELLO)
        self._write({"method": "notifications/initialized"})
        self.by: str = self.call("whoami")["by"]

    def call(self, tool: str, **arguments: object) -> dict[str, Any]:
        """The answer of a tool. Raises ToolFailed, EOFError."""
        answer: dict[str, Any] = self._said("tools/call", {"name": tool, "arguments": arguments})
        if answer["isError"]:
            raise ToolFailed(f"{tool}: {answer['structuredContent']['error']}")
        content: dict[str, Any] = answer["structuredContent"]
        return content

    def begin(self, tool: str, **arguments: object) -> None:
        """Send a call without waiting for its answer: the next step ends the server."""
        self._ask("tools/call", {"name": tool, "arguments": arguments})

    def kill(self) -> bool:
        """Kill it; return whether the kill ended it."""
        self._process.kill()
        self._process.communicate()
        return self._process.returncode == -signal.SIGKILL

    def close(self) -> int:
        """Close the connection, as a client does at its end; return the exit status."""
        self._process.communicate(timeout=_END_S)
        return self._process.returncode

    def _said(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._ask(method, parameters)
        line = self._process.stdout.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)["result"]
            return answer
        status = self._process.wait(_END_S)
        if status == _NO_STORE:
            raise Unavailable("`holdfast mcp` found no store", outcome="none")
        raise EOFError(f"`holdfast mcp` ended by itself, with {status}")

    def _ask(self, method: str, parameters: dict[str, Any]) -> None:
        self._last += 1
        self._write({"id": self._last, "method": method, "params": parameters})

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self._process.stdin.flush()


_hands: dict[int, Hands | None] = {}
"""The servers of this process, by its id: each lasts for many turns. None when they were killed."""


def mcp(child: Child, hf: Holdfast) -> bool:
    """Takes locks or a job through the tools. Then it releases them, or its process is killed and
    others get them at once.
    """
    if child.draining:
        if (last := _hands.pop(os.getpid(), None)) is not None and (status := last.close()):
            child.wrong(f"`holdfast mcp` ended with {status} when its client hung up")
        return False
    hands = _hands.get(os.getpid()) or _begun(child)
    try:
        [doing] = child.draw.choices([_lock, _job, _interrupted], [12, 8, 1])
        doing(child, hf, hands)
        child.did()
    except (ToolFailed, Unavailable) as error:
        if isinstance(error, ToolFailed) and "unavailable" not in str(error):
            raise
        # The database is being restarted, and the outcome is unknown: everything ends with the
        # process.
        child.count("unsure")
        if _hands[os.getpid()] is not None:
            _killed(child, hf, hands)
    child.pause(0.1)
    return True


def _begun(child: Child) -> Hands:
    hands = Hands(child)
    if os.getpid() in _hands:
        child.count("restarts")
    _hands[os.getpid()] = hands
    return hands


def _lock(child: Child, hf: Holdfast, hands: Hands) -> None:
    names = sorted(child.draw.sample(lock_parts.NAMES, child.draw.choice([1, 2])))
    shared = child.draw.random() < 0.3
    held = hands.call("acquire", names=names, shared=shared, wait_s=1.0)
    if held["state"] == "held":
        with contextlib.ExitStack() as seen:
            for name in names:
                if not seen.enter_context(
                    child.witness(name, shared=shared, token=held["tokens"][name])
                ):
                    child.wrong(f"{name} is held by another too: {held}")
            child.pause(0.02)
    else:
        child.count("refused")
    if child.draw.random() < 0.03:
        _killed(child, hf, hands)
    elif not hands.call("release", handle=held["handle"])["released"] and held["state"] == "held":
        child.wrong(f"{names} were lost by an agent that lives: {held}")


def _job(child: Child, hf: Holdfast, hands: Hands) -> None:
    job = hands.call("claim_job", queue=child.draw.choice(job_parts.LABELS), wait_s=0.3)["job"]
    if job is None:
        return
    job_id = job["job_id"]
    with child.witness(f"job-{job_id}", token=job["token"]) as alone:
        if not alone:
            child.wrong(
                f"{job_id} was claimed twice: attempt {job['attempt']}, token {job['token']}"
            )
        child.pause(0.02)
    if child.draw.random() < 0.03:
        _killed(child, hf, hands)
        now = hf.jobs.get_job(job_id)
        if now.token == job["token"]:
            child.wrong(f"{job_id} is still the one's that was killed: {now}")
        return
    try:
        hands.call("report_job", job_id=job_id, outcome="completed")
    except ToolFailed:
        if hf.jobs.get_job(job_id).status.value == "completed":
            child.tell("done", job=job_id, token=job["token"])
        raise
    child.tell("done", job=job_id, token=job["token"])


def _interrupted(child: Child, hf: Holdfast, hands: Hands) -> None:
    """Killed with a queued request, or while it is granted."""
    hands.begin("acquire", names=child.draw.sample(lock_parts.NAMES, 3), wait_s=5.0)
    child.pause(0.1)
    _killed(child, hf, hands)


def _killed(child: Child, hf: Holdfast, hands: Hands) -> None:
    """Kill it. The next one gets what it had without waiting for a lease."""
    _hands[os.getpid()] = None
    if hands.kill():
        child.count("kills")
    for lock in hf.locks.list_held():
        for hold in lock.holds:
            if hold.by == hands.by and not hold.reclaimable:
                child.wrong(f"{lock.name} is still the one's that was killed: {hold}")
