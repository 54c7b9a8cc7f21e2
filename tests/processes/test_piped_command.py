"""A command with its input and output in threads: fed, read, and ended with all that it started."""

import os
import resource
import select
import signal
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest

from holdfast.kernel.errors import NotFound, Unavailable
from holdfast.processes.command import Command
from holdfast.processes.piped_command import PipedCommand
from holdfast.processes.trees import Trees
from holdfast.system.access import PRIVATE
from tests.harness.processes import state_of
from tests.harness.timeouts import PATIENCE_S, until


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


@pytest.fixture
def trees(tmp_path: Path) -> Trees:
    return Trees(lambda: tmp_path / "trees", lambda: PRIVATE)


def run(script: str, heard: Heard, trees: Trees, **more: Any) -> PipedCommand:
    how = {
        "cwd": None,
        "environment": {"PATH": os.environ["PATH"]},
        "stdin": b"",
        "each_line": heard.line,
    }
    return PipedCommand(["sh", "-c", script], trees, **{**how, **more})


def end(command: PipedCommand) -> int:
    command.end_tree()
    assert command.wait_for_tree(PATIENCE_S)
    return command.close()


def alive(pid: int) -> bool:
    return state_of(pid) not in (None, "Z")


DEAF = "sh -c 'trap \"\" TERM; echo $$; exec sleep 300'"


@pytest.mark.parametrize(
    "script", [f"{DEAF} & wait", f"trap '' TERM; {DEAF} & wait"], ids=["a child", "both"]
)
def test_what_ignores_sigterm_is_killed_after_the_grace(script: str, trees: Trees) -> None:
    heard = Heard()
    command = run(script, heard, trees, grace_s=0.2)
    [child] = heard.wait(1)
    assert end(command) in (-signal.SIGTERM, -signal.SIGKILL)
    assert not alive(child)


def test_a_child_has_the_grace_to_end_by_itself_and_no_longer_than_it_needs(trees: Trees) -> None:
    heard = Heard()
    child = "sh -c 'trap \"echo 1; exit\" TERM; echo $$; while :; do sleep 0.01; done'"
    command = run(f"{child} & wait", heard, trees, grace_s=PATIENCE_S)
    heard.wait(1)
    began = time.monotonic()
    end(command)
    assert time.monotonic() - began < PATIENCE_S / 2
    assert heard.wait(2)[1] == 1


def test_its_input_and_output(trees: Trees) -> None:
    heard = Heard()
    # More than a pipe holds, in both directions.
    content = b"".join(b"%d\n" % number for number in range(50_000))
    command = run("cat; exit 3", heard, trees, stdin=content)
    assert command.wait_for_tree(PATIENCE_S)
    assert command.over()
    assert command.close() == 3
    assert b"".join(heard.lines) == content


def test_a_command_that_reads_nothing_ends_all_the_same(trees: Trees) -> None:
    command = run("exec <&-; exit 0", Heard(), trees, stdin=bytes(1 << 20))
    assert command.wait_for_tree(PATIENCE_S)
    assert command.close() == 0


@pytest.mark.parametrize("how", ["command", "folder", "no permission"])
def test_a_command_that_cannot_be_executed(how: str, trees: Trees, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("echo")
    words = {
        "command": ["/no/such/command"],
        "folder": ["true"],
        "no permission": [str(tmp_path / "plain")],
    }[how]
    cwd = "/no/such/folder" if how == "folder" else None
    command = PipedCommand(
        words, trees, cwd=cwd, environment={**os.environ}, stdin=b"x", each_line=print
    )
    assert command.wait_for_tree(PATIENCE_S)
    with pytest.raises(Unavailable if how == "no permission" else NotFound) as caught:
        command.close()
    assert (cwd or words[0]) in caught.value.message
    assert os.listdir(tmp_path / "trees") == []


def test_no_descriptor_is_left_open(trees: Trees) -> None:
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        command = run("echo 1", Heard(), trees)
        assert command.wait_for_tree(PATIENCE_S)
        command.close()
    assert os.listdir("/proc/self/fd") == before


def test_the_guardian_was_killed(trees: Trees) -> None:
    """The tree is ended from outside, also what has a session of its own."""
    heard = Heard()
    command = run("setsid sh -c 'echo $$; exec sleep 300' & echo $$; wait", heard, trees)
    pids = heard.wait(2)
    assert not command.over()
    os.kill(command.guardian, signal.SIGKILL)
    assert select.select([command.fd], [], [], PATIENCE_S)[0]
    assert command.over()
    assert command.unguarded
    assert end(command) == -signal.SIGKILL
    assert [alive(pid) for pid in pids] == [False, False]


def test_a_command_whose_worker_died_as_it_was_started_never_begins(
    trees: Trees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its guardian and the process that would become the command exist already."""
    began = tmp_path / "began"
    readable, tell = os.pipe()

    def die(command: Command, *_: object) -> NoReturn:
        os.write(tell, b"%d %d" % (command.pid, command.guardian))
        os.kill(os.getpid(), signal.SIGKILL)
        os._exit(1)

    monkeypatch.setattr(Command, "begin", die)
    worker = os.fork()
    if not worker:
        try:
            run(f"echo > {began}", Heard(), trees)
        finally:
            os._exit(1)
    pids = [int(word) for word in os.read(readable, 100).split()]
    assert os.waitpid(worker, 0)[1] == signal.SIGKILL
    for pid in pids:
        until(lambda pid=pid: not alive(pid))  # type: ignore[misc]
    assert not began.exists()
    os.close(readable)
    os.close(tell)


def test_with_too_few_descriptors_it_says_so_and_keeps_none(trees: Trees) -> None:
    """An OSError came through, and left a pipe open."""
    end(run("true", Heard(), trees))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(os.listdir("/proc/self/fd"))
    said: list[str] = []
    command: PipedCommand | None = None
    limit = lowest_free()
    while command is None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        try:
            command = run("true", Heard(), trees)
        except Unavailable as error:
            said.append(error.message)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if command is not None:
            end(command)
        assert len(os.listdir("/proc/self/fd")) == opened
        limit += 1
    # It lacks none, then one more each time.
    assert len(said) > 1
    assert [message for message in said if "ulimit -n" not in message] == []


def lowest_free() -> int:
    fd = os.open("/", os.O_PATH)
    os.close(fd)
    return fd
