"""The start of an agent in a tmux pane: its environment, its first moment, and its exit status.

tmux gives a pane the environment of its server, which may be another user's. The words of a command
are visible to everybody, those that start a tmux server stay in the process list as long as it
runs, and every window of a session finds what the session got with `-e`. So the environment goes
through a FIFO that only its owner can open: none of it is ever on a disk. And tmux does not always
learn the exit status of a pane: the pane reports it by another FIFO.
"""

import os
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress

from msgspec import UNSET

from holdfast.adapters.tmux import Ended, Pane, Tmux
from holdfast.domains.agents import Agent
from holdfast.domains.agents.ownership import topic_of
from holdfast.kernel.errors import (
    AgentEnded,
    Collision,
    HoldfastError,
    InvalidValue,
    NotFound,
    Unavailable,
    status_of,
)
from holdfast.kernel.holder import Liveness, probe
from holdfast.kernel.limits import AGENT_START_S
from holdfast.kernel.store import Listener
from holdfast.processes.scan import MARK
from holdfast.processes.signals import EXIT_SIGNALLED
from holdfast.runtime import pane_program
from holdfast.runtime.agent_launch import Launch
from holdfast.runtime.configuration import default_store
from holdfast.runtime.connection import Holdfast
from holdfast.stores.listener import readable

_CARRIED = (
    "PATH",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "HOLDFAST_ACTOR",
    "HOLDFAST_HOST_ID",
    "XDG_STATE_HOME",
)
"""Every window of the tmux session finds these as they are here. `ps` shows them, so none is a
secret.
"""
_STATUS_BYTES_MAX = 16
_POLL_S = 0.02
_LEFT_S = 0.5
"""How long processes that are about to end have for that."""


def check_command(program: str) -> None:
    """Raises InvalidValue for a program that is not there.

    The pane of the agent would say so too, and be gone before anybody could read it.
    """
    if shutil.which(program) is None:
        raise InvalidValue(
            f"there is no command {shlex.quote(program)}: give a path, or one that is on your PATH",
            field="command",
        )


def start_in_tmux(hf: Holdfast, launch: Launch, *, watch_s: float) -> Agent:
    """Start an agent in a new tmux session; return its record once its program has run for
    `watch_s`. The pane's command publishes the reserved generation with its own process.

    Raises InvalidValue for a store in memory, Collision when there is such a tmux session,
    AgentEnded when the program ended at once, and Unavailable when it does not come up in time.
    Nothing is left of it then.
    """
    if hf.store.ephemeral:
        raise InvalidValue(
            "an agent in tmux is another process, and cannot share a memory: store", field="store"
        )
    tmux, name = Tmux(server=launch.server), launch.session_name or launch.name
    if tmux.liveness(name) is Liveness.ALIVE:
        raise Collision(
            f"there is a tmux session {name} already: choose another name with --tmux-session, or "
            "end it",
            session_name=name,
        )
    # Without a process yet: a refusal is reported here, and the pane resumes this generation.
    reserved, pane = launch.publish(None), None
    try:
        launch.write_manifest()
        with closing(ExitStatus(launch.root)) as status:
            with (
                hand_over(environment_of_agent(hf), launch.root) as path,
                hf.store.listen([topic_of(launch.agent_id)]) as listener,
            ):
                pane = tmux.start(
                    name,
                    reading_command(path, launch.pane_command(status.path)),
                    folder=launch.folder,
                    environment=_environment_of_session(hf),
                )
                agent = Startup(hf, tmux, pane, reserved).survived(listener, watch_s)
            if agent is None:
                raise _ended(reserved, tmux, pane, status.read())
        return agent
    except AgentEnded:
        # The process that removes the record may have been killed with the agent.
        with suppress(HoldfastError):
            hf.agents.remove(reserved.agent_id, reserved.generation_id)
        launch.clear_away()
        raise
    except BaseException:
        with suppress(HoldfastError):
            if pane is not None:
                tmux.leave(pane)
            hf.agents.remove(reserved.agent_id, reserved.generation_id, token=reserved.token)
            launch.clear_away()
        raise


def _ended(reserved: Agent, tmux: Tmux, pane: Pane, status: int | None) -> AgentEnded:
    """Remove the pane of an agent that has ended; return the error that says how it ended."""
    try:
        ended = tmux.remove(pane)
    except Unavailable:
        ended = Ended(None, "")
    status = ended.status if status is None else status
    how = "nobody knows how" if status is None else f"with exit status {status}"
    if status is not None and status > EXIT_SIGNALLED:
        with suppress(ValueError):
            how = f"{how} ({signal.Signals(status - EXIT_SIGNALLED).name})"
    advice = "An agent's command must stay in the foreground. " if status == 0 else ""
    seen = f"Its last screen:\n{ended.screen}" if ended.screen.strip() else "Its screen was empty"
    return AgentEnded(
        f"{reserved.agent_name} ended as soon as it had begun, {how}. Its record and tmux session "
        f"are removed. {advice}{seen}",
        agent_id=reserved.agent_id,
        exit_status=status,
        screen=ended.screen,
    )


def _environment_of_session(hf: Holdfast) -> dict[str, str]:
    """The variables of the tmux session: without them every window has those of the tmux server."""
    carried = {name: os.environ[name] for name in _CARRIED if os.environ.get(name)}
    # The URL of a server may have a password in it.
    return {**carried, **_store_variables(hf)} if hf.store.embedded else carried


def environment_of_agent(hf: Holdfast) -> dict[bytes, bytes]:
    """The environment of this process without the variables about its terminal, and the chosen
    store.
    """
    # Without the mark of custody: the pane is no part of the process tree around this command, and
    # goes on after it.
    left_out = {*pane_program.OF_TERMINAL, MARK.encode()}
    around = {name: value for name, value in os.environb.items() if name and name not in left_out}
    store = {name.encode(): os.fsencode(value) for name, value in _store_variables(hf).items()}
    return {**around, **store}


def _store_variables(hf: Holdfast) -> dict[str, str]:
    store = hf.settings.store or default_store(os.environ)
    return {"HOLDFAST_STORE": store, "HOLDFAST_NAMESPACE": hf.settings.namespace}


class Startup:
    """An agent that was reserved and begun in a pane. The pane's process publishes it with a child
    as the holder, which then becomes the program.
    """

    def __init__(self, hf: Holdfast, tmux: Tmux, pane: Pane, reserved: Agent) -> None:
        self._hf = hf
        self._tmux = tmux
        self._pane = pane
        self._reserved = reserved

    def survived(self, listener: Listener, moment_s: float) -> Agent | None:
        """Wait until the program has run for a moment, and return its record; None when it has
        ended. From then on its pane goes when it ends. Raises Unavailable when it does not come up
        in time.
        """
        with _end_of(self._pane.pid) as end:
            agent = self._published(listener, end)
            if agent is None:
                # Its record is removed, and the pane's process is about to end.
                if end:
                    readable(end, AGENT_START_S)
                return None
            if self._dies(agent, end, moment_s):
                self._wait_for_end(agent, end)
                return None
        try:
            return agent if self._tmux.leave(self._pane) else None
        except Unavailable:
            # The program runs, whatever tmux does.
            return agent

    def _published(self, listener: Listener, end: Sequence[int]) -> Agent | None:
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
            # Checked before the record was read: a pane publishes before it can end.
            if over:
                return None
            woken = listener.wait(left_s, also=end)
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
            while time.monotonic() < deadline:
                # Until it has executed its program, it has the command line of its guardian.
                seen, words = self._hf.processes.process_stat(program.pid), self._hf.processes.words
                if seen is None or words(program.pid) != words(seen.parent_pid):
                    break
                # The kernel notifies nobody when a process executes another program.
                if readable(ends, _POLL_S):
                    return True
            return bool(readable(ends, moment_s))
        finally:
            os.close(death)

    def _wait_for_end(self, agent: Agent, end: Sequence[int]) -> None:
        """Wait until the pane's process has removed the record and ended. If it waits for processes
        that the program left, make it end them.
        """
        deadline = time.monotonic() + AGENT_START_S
        tree = agent.holder.tree if agent.holder is not None else UNSET
        while end and not readable(end, _LEFT_S) and time.monotonic() < deadline:
            if tree and self._hf.processes.trees.survivors(tree):
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(end[0], signal.SIGTERM)


@contextmanager
def hand_over(environment: Mapping[bytes, bytes], folder: str) -> Iterator[str]:
    """The path of a FIFO from which these variables can be read once, for the block. Raises
    Unavailable.
    """
    # Not an open file of this process: a tmux server of another group may not open those.
    path = os.path.join(folder, f".environment-{os.getpid()}")
    _make_fifo(path)
    # A variable can hold anything but a zero.
    data = b"\0".join(name + b"=" + value for name, value in environment.items())
    threading.Thread(
        target=_write_once, args=(path, data), name="holdfast-environment", daemon=True
    ).start()
    try:
        yield path
    finally:
        # A writer whose reader never came is released by this reader.
        with suppress(OSError):
            end = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
            os.unlink(path)
            os.close(end)


def _write_once(path: str, data: bytes) -> None:
    # Without O_CREAT: when the FIFO is gone, no file takes its place.
    with (
        suppress(OSError),
        open(os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "wb") as file,
    ):
        file.write(data)


def _make_fifo(path: str) -> None:
    try:
        os.mkfifo(path, 0o600)
    except OSError as error:
        raise Unavailable(
            f"{path} cannot be made ({error.strerror}): name another folder with --session-root",
            outcome="none",
        ) from None


def reading_command(path: str, command: Sequence[str]) -> list[str]:
    """The words of a program that reads the variables and then executes the command."""
    # Isolated and without site packages: the tmux server's environment has no effect on it, and it
    # starts fast.
    return [sys.executable, "-I", "-S", os.path.abspath(pane_program.__file__), path, *command]


class ExitStatus:
    """The reader's end of a FIFO by which a pane reports its exit status. Raises Unavailable."""

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, f".exit-{os.getpid()}")
        _make_fifo(self.path)
        self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)

    def read(self) -> int | None:
        """The status; None when none was reported."""
        try:
            return int(os.read(self._fd, _STATUS_BYTES_MAX) or b"-")
        except (BlockingIOError, ValueError):
            return None

    def close(self) -> None:
        os.close(self._fd)
        with suppress(FileNotFoundError):
            os.unlink(self.path)


@contextmanager
def exit_status_reporter(path: str | None) -> Iterator[Callable[[int], None]]:
    """In the pane: the function that reports an exit status once, if `agents start` still listens.
    A command that is started meanwhile does not inherit the FIFO.
    """
    fd = None
    if path is not None:
        with suppress(OSError):
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)

    reported = False

    def report(status: int) -> None:
        nonlocal reported
        with suppress(OSError):
            if fd is not None and not reported:
                reported = True
                os.write(fd, b"%d" % status)

    try:
        yield report
    except HoldfastError as error:
        report(status_of(error).exit)
        raise
    finally:
        if fd is not None:
            os.close(fd)


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
