"""The first moment of an agent in its pane: whether it comes up, and whether its program dies at
once.
"""

import os
import select
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from msgspec import UNSET

from holdfast.adapters.tmux import Pane, Tmux
from holdfast.domains.agents import Agent
from holdfast.kernel.errors import NotFound, Unavailable
from holdfast.kernel.holder import Liveness, probe
from holdfast.kernel.limits import AGENT_START_S
from holdfast.kernel.store import Listener
from holdfast.runtime.connection import Holdfast

_GLANCE_S = 0.02
_LEFT_S = 0.5
"""How long processes that are about to end have for that."""


class Startup:
    """An agent that `start` has reserved and begun in a pane.

    The pane's process publishes it with a child of its own as the holder, which then becomes the
    program.
    """

    def __init__(self, hf: Holdfast, tmux: Tmux, pane: Pane, reserved: Agent) -> None:
        self._hf = hf
        self._tmux = tmux
        self._pane = pane
        self._reserved = reserved

    def outlived(self, ears: Listener, moment_s: float) -> Agent | None:
        """Wait until the program has run for a moment, and return its record; None when it has
        ended. From then on its pane goes when it ends. Raises Unavailable when it does not come up
        in time.
        """
        with _end_of(self._pane.pid) as end:
            agent = self._published(ears, end)
            if agent is None:
                # Its record is removed, and the pane's process is about to end.
                _readable(end, AGENT_START_S)
                return None
            if self._dies(agent, end, moment_s):
                self._wait_for_end(agent, end)
                return None
        try:
            return agent if self._tmux.leave(self._pane) else None
        except Unavailable:
            # The program runs, whatever tmux does.
            return agent

    def _published(self, ears: Listener, end: Sequence[int]) -> Agent | None:
        reserved, over = self._reserved, False
        deadline = time.monotonic() + AGENT_START_S
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                agent = self._hf.agents.get(reserved.agent_id)
            except NotFound:
                # It was published, has ended, and was removed.
                return None
            if agent.generation_id != reserved.generation_id:
                return None
            if agent.token != reserved.token:
                return agent
            # Looked at before the record: a pane publishes before it can end.
            if over:
                return None
            woken = ears.wait(left_s, also=end)
            over = bool(woken.ready) or (not end and self._tmux.has_ended(self._pane))
        raise Unavailable(
            f"{reserved.agent_name} did not come up within {AGENT_START_S:g} s: `tmux attach -t "
            f"={reserved.session_name}` "
            "shows why",
            outcome="unknown",
        )

    def _dies(self, agent: Agent, end: Sequence[int], moment_s: float) -> bool:
        """Watch it for a moment from when it became the program, which may take its time on a busy
        machine.
        """
        if agent.holder is None or agent.holder.place != self._hf.processes.here():
            return False
        # The program itself: what it started may live on.
        program = agent.holder.leader
        death = self._hf.processes.death(program)
        if death is None:
            return (
                probe(program, self._hf.processes, embedded=self._hf.store.embedded)
                is Liveness.DEAD
            )
        try:
            ends = [*end, death]
            deadline = time.monotonic() + AGENT_START_S
            while not self._is_program(program.pid) and time.monotonic() < deadline:
                # The kernel tells nobody when a process becomes another program.
                if _readable(ends, _GLANCE_S):
                    return True
            return _readable(ends, moment_s)
        finally:
            os.close(death)

    def _wait_for_end(self, agent: Agent, end: Sequence[int]) -> None:
        """Wait until the pane's process has removed the record and ended.

        If it waits for processes that the program left, have it end them.
        """
        deadline = time.monotonic() + AGENT_START_S
        tree = agent.holder.tree if agent.holder is not None else UNSET
        while end and not _readable(end, _LEFT_S) and time.monotonic() < deadline:
            if tree and self._hf.processes.trees.survivors(tree):
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(end[0], signal.SIGTERM)

    def _is_program(self, pid: int) -> bool:
        """Has it executed its program? Until then it has the command line of its guardian."""
        seen = self._hf.processes.sight(pid)
        words = self._hf.processes.words
        return seen is None or words(pid) != words(seen.parent_pid)


@contextmanager
def _end_of(pid: int) -> Iterator[list[int]]:
    """A descriptor that becomes readable when a process ends, for the block; none when there is no
    such process here.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        yield []
        return
    try:
        yield [pidfd]
    finally:
        os.close(pidfd)


def _readable(fds: Sequence[int], timeout_s: float) -> bool:
    """Does one of them become readable in time? At once no when there is none."""
    if not fds:
        return False
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
