"""A registry of agents on any store, on a clock, a machine and a tmux that do what a test tells
them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from holdfast.adapters.agent_files import GenerationFolders, ManifestFiles
from holdfast.domains.agents import Agent, Agents, GatewayAddress, Manifest
from holdfast.domains.agents.manifest import TmuxHandle, as_json
from holdfast.domains.agents.ports import AgentPorts, TmuxAddress
from holdfast.domains.agents.records import AGENTS
from holdfast.kernel.agent_adapter import TmuxAdapter
from holdfast.kernel.holder import Holder, Liveness
from holdfast.kernel.settings import AgentSettings
from holdfast.kernel.store import Debris, Entry, Store
from holdfast.primitives.journal import Journal
from holdfast.stores.files.store import FilesStore
from holdfast.testing.clock import ManualClock
from tests.harness.machine import Machine, ProcessTable
from tests.harness.stores import ClockedStore
from tests.stores.harnesses import MemoryHarness, SqliteHarness

LEASE_S = AgentSettings().lease_s
GATEWAY = GatewayAddress(
    host="127.0.0.1", port=8123, state_path="/state.json", protocol_version="v1"
)
_namespaces = count(1)


def _postgres(_: Path, request: pytest.FixtureRequest) -> Any:
    # Here, so that the other stores' tests need no driver.
    from tests.stores.harnesses_postgres import PostgresHarness

    return PostgresHarness(request.getfixturevalue("module_database"))


class AgentFolders:
    """The source's folders."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self._root = folder / "state"

    def open(self, *, namespace: str = "default") -> Store:
        return FilesStore(
            self._root,
            boot_id="boot-1",
            clock=self.clock,
            folders={"agents": "."},
            retry_delay_s=0.001,
        )

    def damage(self, _: str, key: str, data: bytes) -> None:
        (self._root / "live_agents" / key / "record.json").write_bytes(data)


HARNESSES: dict[str, Callable[[Path, pytest.FixtureRequest], Any]] = {
    "memory": lambda *_: MemoryHarness(),
    "sqlite": lambda folder, _: SqliteHarness(folder),
    "files": lambda folder, _: AgentFolders(folder),
    "postgres": _postgres,
}
"""How each store is opened and damaged."""

STORES = [
    pytest.param(kind, marks=pytest.mark.prove) if kind == "postgres" else kind
    for kind in HARNESSES
]


class FakeTmux:
    """The tmux sessions that a test says there are; None: tmux cannot be asked."""

    def __init__(self) -> None:
        self.sessions: set[str] | None = set()
        self.pane_pids: dict[str, list[int]] = {}
        self.servers: list[TmuxAddress | None] = []
        self.asked = 0

    def liveness(self, session_name: str) -> Liveness:
        self.asked += 1
        if self.sessions is None:
            return Liveness.UNKNOWN
        return Liveness.ALIVE if session_name in self.sessions else Liveness.DEAD

    def panes(self, session_name: str, server: TmuxAddress | None = None) -> list[int] | None:
        self.servers.append(server)
        if self.sessions is None:
            return None
        return self.pane_pids.get(session_name, [99]) if session_name in self.sessions else []


class FakeGateways:
    """Gateways that answer as a test says."""

    def __init__(self) -> None:
        self.verdict = Liveness.ALIVE

    def liveness(self, gateway: GatewayAddress) -> Liveness:
        return self.verdict


class World:
    """One store, and the registry as processes of one machine see it."""

    def __init__(
        self,
        store: Store,
        clock: ManualClock,
        folder: Path,
        damage: Callable[[str, str, bytes], None],
    ) -> None:
        self.clock = clock
        self.folder = folder
        self.store = ClockedStore(store, clock)
        self.journal = Journal(self.store, actor="tester")
        self.machine = Machine()
        self.seat = self.machine.begin(1)
        self.tmux = FakeTmux()
        self.gateways = FakeGateways()
        self._damage = damage
        self.agents = self.registry()

    def registry(
        self,
        settings: AgentSettings | None = None,
        *,
        seat: ProcessTable | None = None,
        debris: Debris | None = None,
    ) -> Agents:
        """The registry by other settings, or as seen from another process."""
        folders = GenerationFolders(lambda: self.folder)
        ports = AgentPorts(seat or self.seat, self.tmux, ManifestFiles(), folders, self.gateways)
        return Agents(self.store, self.journal, lambda: ports, settings, debris=debris)

    def publish(self, name: str = "gpu", agents: Agents | None = None, **more: Any) -> Agent:
        """Publish an agent that is fine, but for what the test says."""
        facts: dict[str, Any] = {
            "backend": "claude_headless",
            "tool": "claude",
            "manifest_path": str(self.folder / "manifest.json"),
            "session_name": "s-1",
            **more,
        }
        return (agents or self.agents).publish(name, **facts)

    def manifest(self, agent: Agent, **more: Any) -> None:
        """Write the manifest that agrees with a record, but for what the test says."""
        facts: dict[str, Any] = {
            "agent_id": agent.agent_id,
            "agent_name": agent.agent_name,
            "generation_id": agent.generation_id,
            "backend": agent.identity.backend,
            "tool": agent.identity.tool,
            "working_directory": "/",
            "adapter": TmuxAdapter(),
            "tmux": TmuxHandle(session_name=agent.session_name or ""),
            **more,
        }
        ManifestFiles().write(agent.runtime.manifest_path, as_json(Manifest(**facts)))

    def in_pane(self, pid: int = 7, session_name: str = "s-1") -> Holder:
        """A process that lives in the pane of a tmux session of its own."""
        assert self.tmux.sessions is not None
        self.tmux.sessions.add(session_name)
        self.tmux.pane_pids[session_name] = [pid]
        return self.process(pid)

    def process(self, pid: int) -> Holder:
        """A process that lives on the machine."""
        return self.machine.begin(pid).current()

    def damage(self, agent_id: str, data: bytes) -> None:
        """Overwrite what is stored under an id."""
        self._damage("agents", agent_id, data)

    def put(self, agent: Agent) -> None:
        """Store a record as another program would have written it, without asking."""
        self.store.transact(lambda tx: tx.put(AGENTS, agent.agent_id, agent), scope=[AGENTS])

    def logged(self) -> list[Entry]:
        """The journal so far."""
        return [entry for batch in self.journal.since() for entry in batch.entries]

    def kinds(self) -> list[str]:
        """The entries of the journal, one word each."""
        return [entry.kind for entry in self.logged()]

    def close(self) -> None:
        self.machine.close()
        self.store.close()


@contextmanager
def world_of(kind: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    harness = HARNESSES[kind](folder, request)
    made = World(
        harness.open(namespace=f"a{next(_namespaces)}"), harness.clock, folder, harness.damage
    )
    try:
        yield made
    finally:
        made.close()
