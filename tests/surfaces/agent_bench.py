"""`holdfast agents` for tests, on a store and a tmux of its own: each step waits for what the step
before it made happen.
"""

import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from holdfast.domains.agents import Agent
from holdfast.kernel.store import Entry
from holdfast.runtime.connection import Holdfast, connect
from tests.harness.journal import until_logged
from tests.harness.processes import stat_of
from tests.harness.timeouts import PATIENCE_S
from tests.harness.tmux_server import TmuxServer, tmux_server
from tests.surfaces.command import CommandLine
from tests.surfaces.locking import HOLDING, line, put_down

Process = subprocess.Popen[str]


class AgentBench(CommandLine):
    """`holdfast`, a look into its store, and the tmux that it uses."""

    def __init__(self, folder: Path, hf: Holdfast, url: str, tmux: TmuxServer) -> None:
        super().__init__(
            folder, HOLDFAST_STORE=url, XDG_STATE_HOME=str(folder / "state"), **tmux.environment
        )
        self.hf = hf
        self.tmux = tmux
        self._started: list[Process] = []

    def run(self, *words: str) -> Process:
        """Start `holdfast agents run WORDS`; its input is ours to end."""
        process = self.start("agents", "run", *words, stdin=subprocess.PIPE)
        self._started.append(process)
        return process

    def hold(self, name: str, *words: str) -> tuple[Process, int]:
        """Run an agent that lives until its input ends, and wait until it does; return it and the
        command's process id.
        """
        process = self.run(name, *words, "--", *HOLDING)
        return process, int(line(process))

    def start_agent(
        self, name: str, *words: str, command: tuple[str, ...] = ("sleep", "600")
    ) -> Agent:
        """Start an agent in tmux, and return its record."""
        ran = self("agents", "start", name, *words, "--json", "--", *command)
        assert ran.status == 0, ran.err
        # By its id, which finds it even where its lease is over for a moment.
        return self.hf.agents.get(json.loads(ran.out)["agent_id"])

    def until_logged(self, kind: str, agent_id: str, times: int = 1, **data: object) -> Entry:
        """Wait until the journal has so many entries with this data; return the last of them."""
        found = count(1)
        return until_logged(
            self.hf,
            kind,
            lambda entry: (
                entry.subject == agent_id
                and data.items() <= entry.data.items()
                and next(found) == times
            ),
        )

    def outlives(self, agent: Agent) -> Entry:
        """Wait until an agent was refreshed behind the end that its lease has in this record,
        however late that was read; return the journal's entry. A busy machine may let the lease end
        for a moment before that.
        """
        return until_logged(
            self.hf,
            "agent.refreshed",
            lambda entry: entry.subject == agent.agent_id and entry.at > agent.lease_expires_at,
        )

    def kill(self, agent: Agent, runner: int) -> None:
        """Kill an agent with -9, and all that care for its record; wait until its process tree is
        gone.
        """
        assert agent.holder is not None
        # Opened before: the death of a pane's first process may end the others in the pane.
        holder = os.pidfd_open(agent.holder.pid)
        try:
            self.kill_keepers(agent, runner)
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(holder, signal.SIGKILL)
        finally:
            os.close(holder)
        self.tree_ends(agent)

    def kill_keepers(self, agent: Agent, runner: int) -> None:
        """Kill the process that runs an agent with -9, and the guardian of the agent, which would
        keep its record and then remove it. The agent lives on.
        """
        assert agent.holder is not None
        guardian = int(stat_of(agent.holder.pid)[1])
        for pid in (guardian, runner):
            os.kill(pid, signal.SIGKILL)
            ended(pid)

    def tree_ends(self, agent: Agent) -> None:
        """Wait until no process of an agent's tree is left."""
        assert agent.holder is not None and agent.holder.tree
        trees, tree = self.hf.processes.trees, agent.holder.tree
        assert trees.wait_for_end(tree, PATIENCE_S), (
            trees.liveness(tree, in_sight=True),
            trees.survivors(tree),
        )

    def own_folders(self) -> list[Path]:
        """What agents have left in the state folder."""
        return sorted((self.folder / "state").rglob("manifest.json"))

    def close(self) -> None:
        for process in self._started:
            put_down(process)


@contextmanager
def agent_bench(folder: Path, url: str | None = None) -> Iterator[AgentBench]:
    url = url or f"sqlite:{folder}/store.sqlite"
    with tmux_server() as tmux, connect(url) as hf:
        made = AgentBench(folder, hf, url, tmux)
        try:
            yield made
        finally:
            made.close()


def ended(pid: int) -> None:
    """Wait until a process has ended, or is one that nobody has waited for."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([pidfd], [], [], PATIENCE_S)[0], f"process {pid} lives on"
    finally:
        os.close(pidfd)
