"""What agents need of the world outside, as ports: tmux, files, gateways. `adapters/` has the real
ones.
"""

from collections.abc import Collection
from typing import NamedTuple, Protocol

from holdfast.domains.agents.records import Gateway
from holdfast.kernel.holder import Liveness, Processes


class TmuxAddress(NamedTuple):
    """A tmux server that is not the user's own: by the name of its socket, as `tmux -L`, or by its
    path, as `tmux -S`.
    """

    socket_name: str | None = None
    socket_path: str | None = None


class TmuxSessions(Protocol):
    """The tmux sessions of this machine, as far as this user can see them."""

    def liveness(self, session_name: str) -> Liveness:
        """Is there a tmux session of exactly this name? UNKNOWN when tmux cannot be asked."""
        ...

    def panes(self, session_name: str, server: TmuxAddress | None = None) -> Collection[int] | None:
        """The processes of the live panes of the tmux session of exactly this name; none when there
        is no such tmux session. None when tmux cannot be asked, or does not answer. `server` says
        which tmux server; without it, the user's own.
        """
        ...


class Files(Protocol):
    """Files that records and manifests name. Paths are absolute."""

    def read(self, path: str) -> bytes | None:
        """What is in a file, up to one byte more than a manifest may have; None when there is none.
        Raises OSError.
        """
        ...

    def is_folder(self, path: str) -> bool:
        """Is there a folder at that path?"""
        ...


class Folders(Protocol):
    """Folders that agents have for themselves on this machine."""

    def remove(self, folder: str, agent_id: str, generation_id: str) -> None:
        """Remove a generation's folder, if it is the one that was made for it; one that a person
        named stays.
        """
        ...


class Gateways(Protocol):
    """Gateways, asked over the network."""

    def liveness(self, gateway: Gateway) -> Liveness:
        """Does it answer? DEAD when nothing listens there, UNKNOWN when that cannot be told."""
        ...


class Outside(NamedTuple):
    """All of it together."""

    processes: Processes
    sessions: TmuxSessions
    files: Files
    folders: Folders
    gateways: Gateways
