"""The ports of the agents' rules: tmux, files, gateways. `adapters/` implements them."""

from collections.abc import Collection
from typing import NamedTuple, Protocol

from msgspec import Struct

from holdfast.domains.agents.records import GatewayAddress
from holdfast.domains.agents.runs import AgentRuns
from holdfast.kernel.holder import Liveness, Processes


class TmuxAddress(NamedTuple):
    """A tmux server other than the user's own: by its socket's name (`tmux -L`) or path (`-S`)."""

    socket_name: str | None = None
    socket_path: str | None = None


class TmuxSessions(Protocol):
    """The tmux sessions of this machine that this user can see."""

    def liveness(self, session_name: str) -> Liveness:
        """Is there a tmux session of exactly this name? UNKNOWN when tmux does not answer."""
        ...

    def panes(self, session_name: str, server: TmuxAddress | None = None) -> Collection[int] | None:
        """The pids of the live panes of the tmux session of exactly this name; empty when there is
        no such session, None when tmux does not answer. Without `server`: the user's own server.
        """
        ...


class Files(Protocol):
    """Files that records and manifests name. Paths are absolute."""

    def read(self, path: str) -> bytes | None:
        """The content of a file, up to one byte more than a manifest may have; None when there is
        no file. Raises OSError.
        """
        ...

    def is_folder(self, path: str) -> bool: ...


class AgentFolders(Protocol):
    """The folders that Holdfast makes for agents on this machine."""

    def remove(self, folder: str, agent_id: str, generation_id: str) -> None:
        """Remove the folder that was made for a generation; a folder that a person named stays."""
        ...


class GatewayProbe(Protocol):
    """Gateways, probed over the network."""

    def liveness(self, gateway: GatewayAddress) -> Liveness:
        """Does it answer? DEAD when nothing listens there, UNKNOWN for any other failure."""
        ...


class AgentPorts(Struct, frozen=True):
    """All ports together. `embedded`: the store is on this machine, and so are its processes.
    Without `runs`, nothing is noted of agents that have ended.
    """

    processes: Processes
    sessions: TmuxSessions
    files: Files
    folders: AgentFolders
    gateways: GatewayProbe
    embedded: bool = False
    runs: AgentRuns | None = None
