"""Whose a pane is: the gateway that types into it is noted in tmux itself, beside the pane.

Gateways with other names and other stores may be told of one tmux session and know nothing of each other; what they have in
common is its tmux server. It sets the mark and checks it in the same step in which it pastes, so that of two gateways one is
refused, also one that was stopped for long and goes on.
"""

import re
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from holdfast.kernel.errors import Held
from holdfast.kernel.holder import Holder, Liveness, Processes, probe

MARK = "@holdfast_gateway"
"""The option of a pane that names the gateway which types into it."""

_PARTS = re.compile(r"([A-Za-z0-9_-]+)/([0-9a-f]{8})/([0-9]{1,18})/([0-9]{1,18})/([0-9]{1,18})\Z")


class Mark(NamedTuple):
    """One gateway: the agent's name with the folder it is kept in, and the process."""

    agent: str
    home: str
    pid: int
    start_ticks: int
    pid_ns: int

    def __str__(self) -> str:
        # Nothing in it means anything to tmux.
        return "/".join(map(str, self))

    def liveness(self, processes: Processes) -> Liveness:
        """Of the process: a tmux server and its options end with the machine, so it is one of this boot."""
        host_id, boot_id, _ = processes.here()
        process = Holder(host_id=host_id, boot_id=boot_id, pid_ns=self.pid_ns, pid=self.pid, start_ticks=self.start_ticks)
        return probe(process, processes, embedded=True)


def own_mark(agent: str, folder: Path, processes: Processes) -> Mark:
    """The mark of this process, as the gateway of an agent that is kept in a folder."""
    process = processes.current()
    home = f"{crc32(bytes(folder.absolute())):08x}"
    return Mark(agent, home, process.pid, process.start_ticks, process.pid_ns)


def mark_in(text: str) -> Mark | None:
    """The mark that an option shows; None where there is none, or nobody's."""
    found = _PARTS.match(text)
    return None if found is None else Mark(found[1], found[2], int(found[3]), int(found[4]), int(found[5]))


def served(session: str, by: Mark, liveness: Liveness, unmark: str) -> Held:
    """Another gateway has the pane. `unmark` is the command that takes its mark away."""
    gone = f"; if that one is gone, `{unmark}`" if liveness is Liveness.UNKNOWN else ""
    return Held(
        f"the gateway of {by.agent}, pid {by.pid}, types into tmux session {session} already: use that one, or stop it with "
        f"`holdfast gateway detach {by.agent}`{gone}",
        agent=by.agent,
        pid=by.pid,
        session=session,
    )
