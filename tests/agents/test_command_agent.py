"""The command adapter with real programs."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from holdfast.adapters import command
from holdfast.adapters.command import CommandAgent
from holdfast.domains.gateway import AgentState, Answer
from holdfast.domains.gateway.adapter import CommandSpec
from holdfast.kernel.errors import InvalidValue, UpstreamUnavailable
from holdfast.processes.procfs import Procfs
from holdfast.processes.trees import Trees
from holdfast.system.access import PRIVATE
from tests.harness.processes import state_of
from tests.harness.timeouts import PATIENCE_S, until

pytestmark = pytest.mark.prove

ECHO = [sys.executable, "-c", "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())"]
ARGUMENT = [sys.executable, "-c", "import sys; print(ascii(sys.argv[1:]))"]
HOSTILE = 'it\'s "x" $(touch pwned) `touch pwned`\n; touch pwned\t#{pid} ä 🙂 ' + "y" * 100_000


def agent(folder: Path, argv: list[str], **how: object) -> CommandAgent:
    spec = CommandSpec(command=tuple(argv), **how)  # type: ignore[arg-type]
    return CommandAgent(
        spec, note=folder / "run" / "agent-process.json", processes=processes_in(folder)
    )


def processes_in(folder: Path) -> Procfs:
    """The processes as a gateway has them: with FIFOs of trees in its folder."""
    processes = Procfs()
    processes.find_trees(lambda: folder / "run" / "trees", lambda: PRIVATE)
    return processes


def outcome_of(one: CommandAgent, prompt: str, stop: threading.Event | None = None) -> Answer:
    seen = one.inspect()
    assert seen.instance_id is not None and seen.state is AgentState.READY
    return one.answer(one.deliver(prompt, seen.instance_id), stop or threading.Event())


def test_a_prompt_arrives_byte_for_byte_on_stdin_and_runs_nothing(tmp_path: Path) -> None:
    answer = outcome_of(agent(tmp_path, ECHO, working_directory=str(tmp_path)), HOSTILE)
    assert (answer.text, answer.source, answer.code) == (HOSTILE, "stdout", None)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["run", "run/trees"]


def test_a_prompt_is_one_argument(tmp_path: Path) -> None:
    one = agent(tmp_path, ARGUMENT, prompt_as="argument")
    assert outcome_of(one, "a 'b' $(c)\n*").text.strip() == ascii(["a 'b' $(c)\n*"])
    one.check("x" * (128 * 1024 - 1))
    with pytest.raises(InvalidValue):
        one.check("x" * 128 * 1024)


def test_a_program_that_fails_says_how(tmp_path: Path) -> None:
    script = "import sys; print('half'); print('no such model', file=sys.stderr); sys.exit(3)"
    answer = outcome_of(agent(tmp_path, [sys.executable, "-c", script]), "x")
    assert (answer.code, answer.text, answer.facts) == (
        "agent_failed",
        "half\n",
        {"exit_status": 3},
    )
    assert answer.detail == "exit status 3: no such model"


def test_a_missing_program_is_an_unavailable_agent(tmp_path: Path) -> None:
    assert "no program" in agent(tmp_path, ["nosuch-program"]).inspect().detail
    assert (
        "no folder" in agent(tmp_path, ECHO, working_directory=str(tmp_path / "x")).inspect().detail
    )
    with pytest.raises(UpstreamUnavailable) as caught:
        agent(tmp_path, [str(tmp_path)]).deliver("x", "any")
    assert caught.value.fields["outcome"] == "none"


def test_another_command_line_is_another_instance(tmp_path: Path) -> None:
    names = {
        agent(tmp_path, ECHO).inspect().instance_id,
        agent(tmp_path, [*ECHO, "more"]).inspect().instance_id,
        agent(tmp_path, ECHO, working_directory=str(tmp_path)).inspect().instance_id,
    }
    assert len(names) == 3
    assert agent(tmp_path, ECHO).inspect().instance_id in names


def sleeper(folder: Path, handler: str) -> list[str]:
    """A program with a child, which reports that it runs and then handles signals in its own way."""
    script = (
        "import signal, sys, time, subprocess, pathlib\n"
        f"{handler}\n"
        "subprocess.Popen(['sleep', "
        f"'1000'])\npathlib.Path({str(folder / 'begun')!r}).write_text('x')\ntime.sleep(1000)"
    )
    return [sys.executable, "-c", script]


@pytest.mark.parametrize(
    ("handler", "ended_by"),
    [
        ("", "KeyboardInterrupt"),
        ("signal.signal(signal.SIGINT, signal.SIG_IGN)", "SIGTERM"),
        (
            "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, "
            "signal.SIG_IGN)",
            "SIGKILL",
        ),
    ],
)
def test_an_interrupt_ends_the_program_however_stubborn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handler: str, ended_by: str
) -> None:
    # One that obeys has all the time that a busy machine takes to end it.
    monkeypatch.setattr(command, "_ESCALATE_S", 0.3 if handler else PATIENCE_S)
    one = agent(tmp_path, sleeper(tmp_path, handler))
    assert one.interrupt("any") is False
    instance = one.inspect().instance_id
    assert instance is not None
    delivery = one.deliver("x", instance)
    group = delivery.handle.command.pid
    until((tmp_path / "begun").exists)
    assert one.inspect().state is AgentState.WORKING
    assert one.interrupt(instance)
    answer = one.answer(delivery, threading.Event())
    assert answer.code == "agent_failed" and ended_by in answer.detail
    _gone(group)


def test_an_interrupt_ends_what_the_program_began_and_what_ignores_it(tmp_path: Path) -> None:
    # A shell without job control lets what it puts into the background ignore SIGINT.
    one = agent(tmp_path, ["sh", "-c", f"sleep 1000 & touch {tmp_path}/begun; wait"])
    delivery = one.deliver("x", "any")
    until((tmp_path / "begun").exists)
    assert one.interrupt("any")
    assert one.answer(delivery, threading.Event()).code == "agent_failed"
    _gone(delivery.handle.command.pid)


def _gone(group: int) -> None:
    """Until nobody of a process group is left but those that their new parent has not waited for
    yet.
    """

    def nobody() -> bool:
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] not in "ZX":
                return False
        return True

    until(nobody)


def test_a_time_limit_a_flood_and_a_stop_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = outcome_of(agent(tmp_path, ["sleep", "1000"], timeout_s=0.2), "x")
    assert (late.code, "within 0.2 s" in late.detail) == ("timeout", True)
    monkeypatch.setattr(command, "_OUTPUT_BYTES_MAX", 10_000)
    assert "more than 10000 bytes" in outcome_of(agent(tmp_path, ["yes"]), "x").detail
    assert (
        "more than 10000 bytes" in outcome_of(agent(tmp_path, ["sh", "-c", "yes >&2"]), "x").detail
    )
    stop = threading.Event()
    stop.set()
    assert outcome_of(agent(tmp_path, ["sleep", "1000"]), "x", stop).code == "stopped"


def test_what_a_killed_gateway_left_running_is_ended_by_the_next(tmp_path: Path) -> None:
    first = agent(tmp_path, sleeper(tmp_path, ""))
    delivery = first.deliver("x", "any")
    group = delivery.handle.command.pid
    until((tmp_path / "begun").exists)
    second = agent(tmp_path, ECHO)
    assert not delivery.handle.command.ended()
    assert second.inspect().state is AgentState.READY
    assert delivery.handle.command.ended()
    _gone(group)
    assert first.answer(delivery, threading.Event()).detail.startswith("ended by SIGTERM")


def test_a_note_of_an_earlier_version_ends_the_process_group_that_it_names(tmp_path: Path) -> None:
    left = subprocess.Popen(["sh", "-c", "sleep 1000 & wait"], start_new_session=True)
    named = Procfs().of(left.pid)
    note = tmp_path / "run" / "agent-process.json"
    note.parent.mkdir()
    note.write_text(
        json.dumps({"pid": left.pid, "start_ticks": named.start_ticks, "boot_id": named.boot_id})
    )
    assert agent(tmp_path, ECHO).inspect().state is AgentState.READY
    assert left.wait(PATIENCE_S) == -signal.SIGKILL
    assert not note.exists()
    _gone(left.pid)


def test_a_note_about_another_process_ends_no_process(tmp_path: Path) -> None:
    note = tmp_path / "run" / "agent-process.json"
    note.parent.mkdir()
    mine = {"pid": os.getpid(), "start_ticks": 1, "boot_id": Procfs().boot_id()}
    for words in (
        json.dumps(mine),
        "{",
        "[]",
        json.dumps({**mine, "pid": "x"}),
        json.dumps({**mine, "boot_id": "other"}),
    ):
        note.write_text(words)
        agent(tmp_path, ECHO).inspect()
        assert not note.exists()


def test_a_failed_note_means_that_nothing_started_and_the_next_may_start(
    tmp_path: Path,
) -> None:
    one = agent(tmp_path, ["sh", "-c", f"touch {tmp_path}/begun"])
    (tmp_path / "run").write_text("in the way")
    with pytest.raises(UpstreamUnavailable) as caught:
        one.deliver("x", "any")
    assert caught.value.fields["outcome"] == "none"
    (tmp_path / "run").unlink()
    assert not (tmp_path / "begun").exists()
    assert outcome_of(one, "x").code is None
    assert (tmp_path / "begun").exists()


def test_on_a_full_disk_nothing_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def __enter__(self) -> "Full":
            return self

        def __exit__(self, *ended: object) -> None:
            return None

        def write(self, _: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    one = agent(tmp_path, ECHO)
    monkeypatch.setattr(tempfile, "TemporaryFile", Full)
    with pytest.raises(UpstreamUnavailable, match="No space left") as caught:
        one.deliver("x", "any")
    assert caught.value.fields["outcome"] == "none"
    monkeypatch.undo()
    assert outcome_of(one, "x").text == "x"


def test_a_program_begins_with_the_signals_and_files_that_it_would_have_anyway(
    tmp_path: Path,
) -> None:
    script = (
        "grep -E 'SigIgn|SigBlk' /proc/self/status; ls -v /proc/self/fd; readlink /proc/self/fd/100"
    )
    anyway = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, check=False
    ).stdout.split()
    *found, fifo = outcome_of(agent(tmp_path, ["sh", "-c", f"{script}; true"]), "x").text.split()
    # Beside the three that each program has, `ls` has the folder that it reads, and a tree has its
    # FIFO.
    assert anyway[4:] == ["0", "1", "2", "3"]
    assert found == [*anyway, "100"]
    assert Path(fifo).parent == tmp_path / "run" / "trees"


def test_a_process_with_a_high_descriptor_is_watched_too(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2000:
        pytest.skip("no more than so many files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    many = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:
        assert outcome_of(agent(tmp_path, ECHO), "x").text == "x"
    finally:
        for fd in many:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_interrupt_after_the_end_of_a_program_sends_no_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = agent(tmp_path, ECHO)
    delivery = one.deliver("x", "any")
    process, interrupted = delivery.handle.command, []
    wait = process.wait

    def interrupt_behind_the_end() -> int:
        # Once it has been waited for, its pid may be given to another.
        status: int = wait()
        interrupted.append(one.interrupt("any"))
        return status

    monkeypatch.setattr(process, "wait", interrupt_behind_the_end)
    assert one.answer(delivery, threading.Event()).text == "x"
    assert interrupted == [False]


def test_what_does_not_end_is_not_worked_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = agent(tmp_path, sleeper(tmp_path, ""))
    delivery = first.deliver("x", "any")
    until((tmp_path / "begun").exists)
    second = agent(tmp_path, ECHO)
    with monkeypatch.context() as patched:
        # As when a process waits for a disk.
        patched.setattr(Trees, "end", lambda trees, tree, grace_s: False)
        for _ in range(2):
            seen = second.inspect()
            assert seen.instance_id is None and f"pid {delivery.handle.command.pid}" in seen.detail
    assert second.inspect().instance_id is not None
    assert first.answer(delivery, threading.Event()).detail.startswith("ended by SIGTERM")


def test_closing_ends_what_runs(tmp_path: Path) -> None:
    one = agent(tmp_path, sleeper(tmp_path, ""))
    delivery = one.deliver("x", "any")
    until((tmp_path / "begun").exists)
    one.close()
    assert one.answer(delivery, threading.Event()).detail.startswith("ended by SIGTERM")
    _gone(delivery.handle.command.pid)


def test_what_a_program_leaves_is_ended_before_the_next_prompt(tmp_path: Path) -> None:
    script = f"setsid sleep 1000 & echo $! > {tmp_path}/left; echo done"
    one = agent(tmp_path, ["sh", "-c", script])
    answer = outcome_of(one, "x")
    assert (answer.text, answer.code) == ("done\n", None)
    left = int((tmp_path / "left").read_text())
    assert state_of(left) in (None, "Z")
    assert list((tmp_path / "run" / "trees").iterdir()) == []


def test_without_its_guardian_a_program_is_still_interrupted_and_its_tree_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_ESCALATE_S", 0.3)
    script = (
        f"trap '' INT TERM; setsid sleep 1000 & echo $! > {tmp_path}/left; touch "
        f"{tmp_path}/begun; while :; do sleep 1; done"
    )
    one = agent(tmp_path, ["sh", "-c", script])
    delivery = one.deliver("x", "any")
    until((tmp_path / "begun").exists)
    os.kill(delivery.handle.command.guardian, signal.SIGKILL)
    assert one.interrupt("any")
    answer = one.answer(delivery, threading.Event())
    assert (answer.code, answer.facts) == ("agent_failed", {}) and "guardian" in answer.detail
    assert state_of(int((tmp_path / "left").read_text())) in (None, "Z")
    _gone(delivery.handle.command.pid)
    assert list((tmp_path / "run" / "trees").iterdir()) == []
    assert one.inspect().state is AgentState.READY


def test_no_command_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue):
        agent(tmp_path, [])
