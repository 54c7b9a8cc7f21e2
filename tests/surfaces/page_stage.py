"""A store with real processes on it, and a real `holdfast serve` before it, for tests of the page
and for its pictures.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from holdfast.domains.agents.records import AGENTS
from holdfast.domains.jobs import Job
from holdfast.domains.jobs.records import JOBS
from holdfast.kernel.store import Tx
from holdfast.primitives.locks.records import LOCKS
from holdfast.runtime.connection import Holdfast, connect
from tests.harness.journal import until_logged
from tests.harness.timeouts import PATIENCE_S
from tests.surfaces.locking import HOLDING, Bench, Process, line

_JOB = """
import sys, holdfast
hf, by, grants = holdfast.connect(sys.argv[1]), sys.argv[2], []
for names in sys.argv[3:]:
    grants.append(hf.locks.acquire(names.split(","), by=by, timeout_s=None))
    print("has", names, flush=True)
for names in sys.stdin:
    if names.strip() == "let go":
        [hf.locks.release(grant) for grant in grants]
    else:
        grants.append(hf.locks.acquire(names.split(), by=by, timeout_s=None))
    print("has", names, flush=True)
"""
"""A job that acquires and releases locks on request."""


class PageStage(Bench):
    """A store, its server, and those who use it."""

    port = 0
    server: Process | None = None

    def serve(self) -> str:
        """Start the server, on the same port as before, and return a link for a browser."""
        self.server = self.start(
            "serve", "--no-gateways", "--port", str(self.port), "--json", stdin=subprocess.DEVNULL
        )
        answer = json.loads(line(self.server))
        self.port = int(answer["url"].rpartition(":")[2])
        return str(answer["link"])

    def link(self) -> str:
        """One more link for a browser."""
        done = self("serve", "--link", "--json")
        return str(json.loads(done.out)["link"])

    def kill_server(self) -> None:
        """As a crash does."""
        assert self.server is not None
        self.server.send_signal(signal.SIGKILL)
        self.server.communicate()
        self.server = None

    def begin(self, *words: str) -> Process:
        """Start `holdfast WORDS`, to live until the stage is left; its input is ours."""
        process = self.start(*words, stdin=subprocess.PIPE)
        self._started.append(process)
        return process

    def holder(self, by: str, *names: str) -> Process:
        """A process that holds these for a job, each argument one set, and return when it does."""
        process = self._job(by, *names)
        for _ in names:
            assert line(process).startswith("has")
        return process

    def waiter(self, by: str, names: str) -> Process:
        """A process that waits for these, and return when it is in line."""
        process = self._job(by, names)
        self.waiting(names.partition(",")[0], by)
        return process

    def asks(self, process: Process, by: str, name: str) -> None:
        """Let a holder wait for one more, and return when it is in line."""
        assert process.stdin is not None
        process.stdin.write(f"{name}\n")
        process.stdin.flush()
        self.waiting(name, by)

    def lets_go(self, process: Process) -> None:
        """Let a holder release all it has."""
        assert process.stdin is not None
        process.stdin.write("let go\n")
        process.stdin.flush()

    def job(self, prompt: str, label: str = "tmux:claude-a", **more: Any) -> Job:
        """Register a job."""
        return self.hf.jobs.register_job(prompt, agent="claude-code", agent_session=label, **more)

    def end_all(self) -> None:
        """End all but the server."""
        super().close()
        self._started.clear()

    def close(self) -> None:
        """End everything."""
        if self.server is not None:
            self.server.terminate()
            self.server.communicate(timeout=PATIENCE_S)
        super().close()

    def _job(self, by: str, *names: str) -> Process:
        pipe = subprocess.PIPE
        words = [sys.executable, "-c", _JOB, self.environment["HOLDFAST_STORE"], by, *names]
        process = subprocess.Popen(
            words, env=self.environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )
        self._started.append(process)
        return process


@contextmanager
def stage(folder: Path) -> Iterator[PageStage]:
    """A stage for the block."""
    url = f"sqlite:{folder}/state/store.sqlite"
    with connect(url) as hf:
        made = PageStage(folder, hf, url)
        try:
            yield made
        finally:
            made.close()


def crowd(made: PageStage) -> None:
    """A night in a lab: agents alive and dead, routers fought for, jobs in every state, a gateway,
    a swap that waits.
    """
    flash = made.holder("flash-41", "router-1,router-2")
    made.holder("train-llama", "gpu-0")
    made.holder("soak-12", "board-7", "psu-3")
    made.holder("soak-13", "board-8")
    made.waiter("verify-42", "router-1")
    made.waiter("verify-43", "router-2")
    made.waiter("nightly", "router-1")
    made.asks(flash, "flash-41", "board-7")
    made.waiter("eval-qwen", "gpu-0")
    gone = made.holder("burn-in-9", "board-9")
    made.waiter("burn-in-10", "board-9")
    gone.kill()
    gone.wait()
    _agents(made)
    _jobs(made)
    line(
        made.begin("gateway", "serve", "reviewer", "--adapter", "command", "--", "tr", "a-z", "A-Z")
    )
    made.hf.gateway("reviewer").prompt(
        "read the last change and say what is wrong with it", wait_s=10
    )
    line(made.begin("workflows", "run", "tuning", "--recipe", "llama-70b", "-q", "--", *HOLDING))
    made.begin("swap", "to", "qwen-7b", "--timeout", "600", "-q", "--", "true")
    until_logged(made.hf, "swap.started")


def _agents(made: PageStage) -> None:
    manifest = made.folder / "manifest.json"
    manifest.write_text("{}")
    here = made.hf.processes.current()
    dead = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    holder = made.hf.processes.of(dead.pid)
    dead.communicate()
    for name, tool, process in (
        ("planner", "claude-code", here),
        ("reviewer", "codex", here),
        ("gpu", "claude-code", None),
        ("tester", "aider", holder),
    ):
        made.hf.agents.publish(
            name, backend="command", tool=tool, manifest_path=str(manifest), holder=process
        )


def _jobs(made: PageStage) -> None:
    hf = made.hf
    for number, prompt in enumerate(
        ("Port the parser to the new grammar", "Write the release notes", "Find the flaky test")
    ):
        job = made.job(prompt, f"tmux:claude-{number}")
        hf.jobs.pick_pending(f"tmux:claude-{number}", holder=hf.processes.current())
        if number:
            hf.job_events.publish(
                job.job_id, "progress", detail=f"{number * 40} % done", data={"files": number * 7}
            )
    hf.job_events.publish(job.job_id, "permission_required", detail="may it delete build/?")
    failed = made.job("Upgrade the compiler", "tmux:ci")
    picked = hf.jobs.pick_pending("tmux:ci", holder=hf.processes.current())
    assert picked is not None
    hf.jobs.update_status(
        failed.job_id, "error", token=picked.token, error="exit status 2: 14 tests failed"
    )
    done = made.job("Sort the changelog", "tmux:docs")
    picked = hf.jobs.pick_pending("tmux:docs", holder=hf.processes.current())
    assert picked is not None
    hf.jobs.update_status(done.job_id, "completed", token=picked.token, result="sorted")
    for prompt in ("Bisect the slow start", "Measure the cold path", "Draw the architecture"):
        made.job(prompt, "tmux:claude-b", priority=len(prompt) % 3)


def fill(hf: Holdfast, many: int) -> None:
    """So many jobs, agents and held locks, written straight into the store, as registering each
    would take a while.
    """
    job = hf.jobs.register_job("number 0", agent="claude-code", agent_session="tmux:0")
    agent = hf.agents.publish("agent-0", backend="codex_headless", tool="codex", manifest_path="/m")
    name = f"HOLDFAST-{agent.agent_id}"

    def body(tx: Tx) -> None:
        for number in range(1, many):
            twin = f"job{number:05}"
            tx.put(
                JOBS,
                twin,
                replace(job, job_id=twin, prompt=f"number {number}", arrival=job.arrival + number),
            )
            one = f"agent-{number:05}"
            tx.put(
                AGENTS,
                one,
                replace(agent, agent_id=one, agent_name=name.replace(agent.agent_id, one)),
            )

    hf.store.transact(body, scope=[JOBS, AGENTS], timeout_s=60)
    hf.locks.acquire("lock-00000", by="crowd")
    row = hf.store.get(LOCKS, "lock-00000")
    assert row is not None
    for begin in range(1, many, 200):
        names = [f"lock-{number:05}" for number in range(begin, min(begin + 200, many))]
        hf.store.put_new(LOCKS, [(one, row.record) for one in names])
