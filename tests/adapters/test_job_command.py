"""A command that is run for a job: ended with all it started."""

import os
import select
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.adapters.job_command import Command
from tests.patience import PATIENCE_S
from tests.processes import state_of


class Heard:
    """The lines of a command, to be waited for."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self._more = threading.Condition()

    def line(self, line: bytes) -> None:
        with self._more:
            self.lines.append(line)
            self._more.notify_all()

    def wait(self, number: int) -> list[int]:
        with self._more:
            assert self._more.wait_for(lambda: len(self.lines) >= number, PATIENCE_S)
            return [int(line) for line in self.lines[:number]]


def run(script: str, heard: Heard) -> Command:
    environment = {"PATH": os.environ["PATH"]}
    return Command(["sh", "-c", script], cwd=None, environment=environment, stdin=b"", told=heard.line)


def alive(pid: int) -> bool:
    return state_of(pid) not in (None, "Z")


DEAF = "sh -c 'trap \"\" TERM; echo $$; exec sleep 300'"


@pytest.mark.parametrize("script", [f"{DEAF} & wait", f"trap '' TERM; {DEAF} & wait"], ids=["a child", "both"])
def test_what_ignores_sigterm_is_killed_with_its_group_after_the_grace(script: str) -> None:
    heard = Heard()
    command = run(script, heard)
    [child] = heard.wait(1)
    try:
        command.stop(grace_s=0.2)
        assert not alive(child)
        assert command.close() in (-signal.SIGTERM, -signal.SIGKILL)
    finally:
        if alive(child):
            os.kill(child, signal.SIGKILL)


def test_a_child_has_the_grace_to_end_by_itself_and_no_longer_than_it_needs(tmp_path: object) -> None:
    heard = Heard()
    child = "sh -c 'trap \"echo 1; exit\" TERM; echo $$; while :; do sleep 0.01; done'"
    command = run(f"{child} & wait", heard)
    heard.wait(1)
    began = time.monotonic()
    command.stop(grace_s=PATIENCE_S)
    assert time.monotonic() - began < PATIENCE_S / 2
    command.close()
    assert heard.wait(2)[1] == 1


def test_a_command_whose_worker_died_as_it_was_started_never_begins(tmp_path: Path) -> None:
    """Between the fork and the moment in which the kernel is told, some milliseconds: it ran on beside the next attempt."""
    began = tmp_path / "began"
    told, telling = os.pipe()
    worker = os.fork()
    if not worker:
        own = os.getpid()

        def orphaned() -> None:
            os.write(telling, b"%d" % os.getpid())
            os.kill(own, signal.SIGKILL)
            while os.getppid() == own:
                pass

        try:
            os.register_at_fork(after_in_child=orphaned)
            run(f"echo > {began}", Heard())
        finally:
            os._exit(1)
    command = int(os.read(told, 100))
    with suppress(ProcessLookupError):
        ended = os.pidfd_open(command)
        assert select.select([ended], [], [], PATIENCE_S)[0]
        os.close(ended)
    os.waitpid(worker, 0)
    assert not began.exists()
    os.close(told)
    os.close(telling)
