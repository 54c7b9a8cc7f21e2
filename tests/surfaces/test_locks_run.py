"""`holdfast locks run` as flock(1) users expect it: real commands, real signals, real kills."""

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.kernel.limits import LOCK_NAMES_MAX
from tests.harness.processes import children
from tests.harness.stopped_processes import stop_outside
from tests.harness.timeouts import PATIENCE_S
from tests.surfaces.locking import Bench, Process, end, line, nested, remark, trapping

pytestmark = pytest.mark.prove


def run(locks: Bench, *words: str) -> tuple[int, str, str]:
    return tuple(locks("locks", "run", *words))  # type: ignore[return-value]


# The command and its exit status


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "exit 255"], 255),
        (["sh", "-c", "kill -TERM $$"], 143),
        (["sh", "-c", "kill -KILL $$"], 137),
    ],
)
def test_the_exit_status_is_the_commands(locks: Bench, command: list[str], status: int) -> None:
    assert run(locks, "a", "--", *command) == (status, "", "")
    assert locks.nothing_left()


def test_a_command_that_cannot_be_run_is_one_line_and_releases(
    locks: Bench, tmp_path: Path
) -> None:
    for command, status, says in (
        ("nosuch", 127, "there is no command nosuch"),
        (str(tmp_path / "nosuch"), 127, "there is no command"),
        (f"{__file__}/x", 127, "there is no command"),
        ("", 127, "there is no command"),
        (str(tmp_path), 126, "may not be executed"),
        (__file__, 126, "chmod +x"),
    ):
        ran = run(locks, "a", "--", command)
        assert ran[0] == status, command
        assert says in ran[2]
        assert ran[2].count("\n") == 1
        assert locks.nothing_left()


def test_a_script_without_a_first_line_is_the_shells(locks: Bench, tmp_path: Path) -> None:
    script = tmp_path / "hf-script"
    script.write_text('echo "said $1"\n')
    script.chmod(0o700)
    assert run(locks, "a", "--", str(script), "it") == (0, "said it\n", "")
    locks.environment["PATH"] += f":{tmp_path}"
    assert run(locks, "a", "--", "hf-script", "it") == (0, "said it\n", "")


def test_the_command_gets_its_words_and_pipes_untouched(locks: Bench) -> None:
    words = ["a b", "--", "-n", "--help", "", "é", "$HOME", "\udcff"]
    echo = [sys.executable, "-c", "import sys; print([ascii(word) for word in sys.argv[1:]])"]
    status, out, err = run(locks, "a", "--", *echo, *words)
    assert (status, err) == (0, "")
    assert out.strip() == str([ascii(word) for word in words])
    ran = locks.shell("echo hello | holdfast locks run a -- cat | tr a-z A-Z")
    assert ran == (0, "HELLO\n", "")


def test_a_shell_with_c(locks: Bench) -> None:
    assert run(locks, "a", "-c", "echo one; echo two | tr t T; exit 3") == (3, "one\nTwo\n", "")
    locks.environment["SHELL"] = "/bin/echo"
    assert run(locks, "a", "-c", "as words") == (0, "-c as words\n", "")


def test_the_command_knows_its_lock(locks: Bench) -> None:
    variables = '"$HOLDFAST_LOCK_BY|$HOLDFAST_LOCK_TOKEN|$HOLDFAST_LOCK_NAMES"'
    check = nested("token", "check", "b", "$HOLDFAST_LOCK_TOKEN")
    status, out, _ = run(locks, "a b", "b", "--by", "job-7", "-c", f"echo {variables}; {check}")
    assert status == 0
    said, in_force = out.split("token ", 1)
    by, token, names = said.split("|")
    assert (by, names) == ("job-7", "a b\nb\n")
    assert in_force == f"{token} is in force on b\n"
    # Afterwards it is not.
    ran = locks("token", "check", "b", token)
    assert (ran.status, ran.out) == (4, "")
    assert token.strip() in ran.err


def test_the_commands_own_process_is_the_holder(locks: Bench) -> None:
    process, pid = locks.hold("a", "--by", "job-7")
    [hold] = locks.hf.locks.status("a").holds
    assert hold.process is not None
    assert (hold.process.pid, hold.process.label, hold.by) == (pid, "sh", "job-7")
    assert process.pid != pid
    assert end(process)[0] == 0
    assert locks.nothing_left()


def test_without_by_each_run_is_a_job_of_its_own(locks: Bench) -> None:
    process, _ = locks.hold("a")
    [hold] = locks.hf.locks.status("a").holds
    assert re.fullmatch(rf"run-{process.pid}-[0-9a-f]{{6}}", hold.by)
    assert run(locks, "-n", "a", "--", "true")[0] == 5


# Waiting


def test_a_holder_learns_that_it_is_waited_for(locks: Bench) -> None:
    first, pid = locks.hold("a", "b", "--by", "job-1")
    second = locks.run("a", "--by", "job-2", "--", "echo", "second")
    output = remark(second)
    assert re.fullmatch(
        rf"holdfast: waiting for a: held by job-1 \(process {pid}, alive\) for .* s; you are next",
        output,
    )
    third = locks.run("b", "a", "--by", "job-3", "--", "echo", "third")
    assert re.match(
        r"holdfast: waiting for b, a: held by job-1 \(.*\) for .* s; 1 ahead of you$", remark(third)
    )
    quiet = locks.run("-q", "a", "--by", "job-4", "--", "echo", "quiet")
    locks.waiting("a", "job-4")
    # When the one ahead leaves, the next line reports it.
    second.send_signal(signal.SIGINT)
    assert end(second)[0] == 130
    assert re.search(r"held by job-1 .*; you are next$", remark(third))
    assert end(first)[0] == 0
    assert end(third)[:2] == (0, "third\n")
    assert end(quiet) == (0, "quiet\n", "")
    assert locks.nothing_left()


def test_in_order_of_arrival_and_priority(locks: Bench, tmp_path: Path) -> None:
    first, _ = locks.hold("a", "--by", "job-1")
    others = []
    for by, words in (("job-2", []), ("job-3", []), ("job-4", ["--priority", "10"])):
        others.append(locks.run("a", "--by", by, *words, "-c", f"echo {by} >> order"))
        locks.waiting("a", by)
    end(first)
    assert [end(other)[0] for other in others] == [0, 0, 0]
    assert (tmp_path / "order").read_text().split() == ["job-4", "job-2", "job-3"]


def test_a_timed_out_waiter_reads_the_holder_and_its_queue_position(locks: Bench) -> None:
    _, pid = locks.hold("b", "--by", "job-1")
    locks.run("b", "--by", "job-2", "--", "true")
    locks.waiting("b", "job-2")
    status, out, err = run(locks, "-n", "a", "b", "--by", "job-3", "--", "echo", "no")
    assert (status, out) == (5, "")
    assert (
        f"b is held by job-1 (process {pid}) since " in err
        and ", 1 waiter ahead" in err
        and "locks explain b`" in err
    )


@pytest.mark.parametrize(("command", "status"), [("nosuch", 127), (__file__, 126), ("", 127)])
def test_a_command_that_cannot_be_run_is_not_waited_for(
    locks: Bench, command: str, status: int
) -> None:
    """The one that holds it may hold it for hours, and the mistake shows only then."""
    locks.hold("a", "--by", "job-1")
    assert run(locks, "a", "--by", "job-2", "--", command)[:2] == (status, "")
    # The end of a wait without a grant is journalled, however short it was.
    entries = [entry for entry in locks.hf.log.tail(100)[0] if entry.kind.startswith("lock.")]
    assert entries == []


def test_a_lock_not_granted_in_time(locks: Bench) -> None:
    locks.hold("a", "--by", "job-1")
    for words in (
        ["-n"],
        ["--nonblock"],
        ["--nb"],
        ["-w", "0"],
        ["--timeout", "0.05"],
        ["--wait", ".05"],
    ):
        status, out, err = run(locks, *words, "a", "--", "echo", "no")
        assert (status, out) == (5, ""), words
        assert "job-1" in err
        assert "holdfast locks explain a" in err
    for code in ("9", "0", "255"):
        assert run(locks, "-n", "-E", code, "a", "--", "echo", "no")[:2] == (int(code), "")
    assert run(locks, "-w", ".05", "--conflict-exit-code", "9", "-q", "a", "--", "echo", "no") == (
        9,
        "",
        "",
    )
    assert [hold.by for hold in locks.hf.locks.status("a").holds] == ["job-1"]
    assert locks.hf.locks.status("a").queue == ()


def test_shared_and_exclusive(locks: Bench) -> None:
    first, _ = locks.hold("-s", "a", "--by", "job-1")
    second, _ = locks.hold("--shared", "a", "--by", "job-2")
    assert run(locks, "-n", "a", "--", "true")[0] == 5
    assert run(locks, "-n", "-s", "-x", "a", "--", "true")[0] == 5
    assert run(locks, "-n", "-x", "-s", "a", "--", "echo", "also") == (0, "also\n", "")
    third = locks.run("-e", "a", "--by", "job-3", "--", "echo", "alone")
    assert "and 1 more; you are next" in remark(third)
    end(first)
    end(second)
    assert end(third)[:2] == (0, "alone\n")


def test_all_names_or_none(locks: Bench) -> None:
    locks.hold("b", "--by", "job-1")
    assert run(locks, "-n", "a", "b", "c", "--", "true")[0] == 5
    assert locks.free("a")
    assert locks.free("c")
    assert run(locks, "-n", "a", "a", "c", "--", "echo", "both")[:2] == (0, "both\n")


# Within one another


def test_a_run_inside_a_run_does_not_wait_for_itself(locks: Bench) -> None:
    inner = nested("locks", "run", "a", "c", "--", "echo", "inside")
    still = nested("locks", "run", "-n", "-q", "--by", "other", "a", "--", "true")
    status, out, err = run(locks, "a", "b", "-c", f"{inner}; {still}; echo $?")
    # The end of the inner one has freed what it took itself, and nothing else.
    assert (status, out, err) == (0, "inside\n5\n", "")
    assert locks.nothing_left()


def test_two_runs_side_by_side_inside_a_run_keep_each_other_out(locks: Bench) -> None:
    second = nested("locks", "run", "-n", "-q", "c", "--", "true")
    # It runs while the first one holds, but as what it is called by the command around both.
    first = nested(
        "locks", "run", "c", "-c", shlex.quote(f'HOLDFAST_LOCK_BY="$AROUND" {second}; echo $?')
    )
    status, out, _ = run(locks, "a", "-c", f'export AROUND="$HOLDFAST_LOCK_BY"; {first}')
    assert (status, out) == (0, "5\n")


def test_a_part_with_a_job_of_its_own_is_kept_out(locks: Bench) -> None:
    inner = nested("locks", "run", "-n", "-q", "--by", "part", "a", "--", "true")
    assert run(locks, "a", "-c", f"{inner}; echo $?") == (0, "5\n", "")


def test_one_of_a_deadlock_is_refused_and_the_other_goes_on(locks: Bench) -> None:
    def crossing(first: str, second: str, by: str) -> Process:
        inner = nested("locks", "run", "-q", second, "--", "echo", "both")
        process = locks.run(first, "--by", by, "-c", f"echo up; read go; {inner}")
        assert line(process) == "up"
        return process

    one, other = crossing("a", "b", "job-1"), crossing("b", "a", "job-2")
    assert one.stdin is not None
    one.stdin.write("go\n")
    one.stdin.flush()
    locks.waiting("b", "job-1")
    _, output = other.communicate("go\n", timeout=PATIENCE_S)
    assert other.returncode == 4
    assert re.search(
        r"job-2/run-\S+ waits for a, held by job-1; job-1/run-\S+ waits for b, held by job-2",
        output,
    )
    assert end(one)[:2] == (0, "both\n")
    assert locks.nothing_left()


# Signals


@pytest.mark.parametrize(
    "name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM"]
)
def test_signals_are_passed_on(locks: Bench, name: str) -> None:
    process = locks.run("a", "--", *trapping(name))
    assert line(process) == "up"
    process.send_signal(signal.Signals[name])
    assert end(process) == (42, "got\n", "")
    assert locks.nothing_left()


def test_a_command_that_a_signal_ends(locks: Bench) -> None:
    process, _ = locks.hold("a")
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 143
    assert locks.nothing_left()


def test_ctrl_c_on_a_terminal_reaches_the_command_once(locks: Bench) -> None:
    """The terminal sends it to both: passed on as well, it would be the second, which many programs
    take for an order to drop everything.
    """
    script = (
        "import os, select, signal, sys\n"
        "count = []\n"
        "reads, writes = os.pipe()\n"
        "os.set_blocking(writes, False)\n"
        # A signal just before a read that blocks is handled after it only; this ends the wait.
        "signal.set_wakeup_fd(writes)\n"
        "signal.signal(signal.SIGINT, lambda *_: (count.append(1), os.write(1, b'int %d\\n' % "
        "len(count))))\n"
        "os.write(1, b'up\\n')\n"
        "while 0 not in select.select([0, reads], [], [])[0]: os.read(reads, 1)\n"
        "sys.exit(40 + len(count))"
    )
    ours, theirs = pty.openpty()
    # A session of its own, whose terminal this is.
    process = locks.run(
        "a", "--", sys.executable, "-c", script, preexec_fn=lambda: _take_terminal(theirs)
    )
    os.close(theirs)
    assert line(process) == "up"
    for number in (1, 2, 3):
        os.write(ours, b"\x03")
        assert line(process) == f"int {number}"
    assert process.stdin is not None
    process.stdin.write("\n")
    assert end(process)[0] == 43
    os.close(ours)


def _take_terminal(fd: int) -> None:
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(fd, termios.TIOCSCTTY, 0)
    os.tcsetpgrp(fd, os.getpgrp())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_while_waiting_leaves_nothing_behind(
    locks: Bench, tmp_path: Path, number: signal.Signals
) -> None:
    first, _ = locks.hold("a", "--by", "job-1")
    second = locks.run("a", "b", "--by", "job-2", "-q", "--", "touch", "ran")
    locks.waiting("a", "job-2")
    second.send_signal(number)
    assert end(second) == (128 + number, "", "")
    assert locks.hf.locks.status("a").queue == ()
    assert locks.hf.locks.status("b").queue == ()
    assert end(first)[0] == 0
    assert locks.nothing_left()
    assert not (tmp_path / "ran").exists()


def test_a_signal_that_is_to_be_ignored_is(locks: Bench) -> None:
    """As under nohup(1), for the wait and for the command."""
    first, _ = locks.hold("a", "--by", "job-1")
    script = "import signal; print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    words = ["a", "--by", "job-2", "-q", "--", sys.executable, "-c", script]
    second = locks.run(*words, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    locks.waiting("a", "job-2")
    second.send_signal(signal.SIGHUP)
    end(first)
    assert end(second) == (0, "True\n", "")


def test_the_command_begins_with_the_signals_of_the_caller(locks: Bench) -> None:
    """Nothing is blocked or ignored in it that was not before: a pipe that is closed ends it, as it
    would without a lock.
    """
    status = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]
    plain = subprocess.run(status, capture_output=True, text=True, check=True, restore_signals=True)
    assert run(locks, "a", "--", *status) == (0, plain.stdout, "")
    assert (
        locks.shell("holdfast locks run a -- yes | head -1; echo ${PIPESTATUS[0]}").out
        == "y\n141\n"
    )


# Kills


def test_killing_the_wrapper_alone_does_not_free_the_lock(locks: Bench) -> None:
    process, pid = locks.hold("a", "--by", "job-1")
    process.kill()
    process.wait()
    [hold] = locks.hf.locks.status("a").holds
    assert (hold.by, hold.alive.value, hold.reclaimable) == ("job-1", "alive", False)
    assert run(locks, "-n", "a", "--", "true")[0] == 5
    # The next one gets it when the command ends.
    second = locks.run("a", "--by", "job-2", "--", "echo", "next")
    assert f"(process {pid}, alive)" in remark(second)
    end(process)
    assert end(second)[:2] == (0, "next\n")
    assert locks.nothing_left()


def test_killing_the_command_ends_the_lock(locks: Bench) -> None:
    process, pid = locks.hold("a", "--by", "job-1")
    second = locks.run("a", "--by", "job-2", "-q", "--", "echo", "next")
    locks.waiting("a", "job-2")
    os.kill(pid, signal.SIGKILL)
    assert end(process)[0] == 137
    assert end(second) == (0, "next\n", "")
    assert locks.nothing_left()


def test_killing_a_waiting_wrapper_never_runs_the_command(locks: Bench, tmp_path: Path) -> None:
    first, _ = locks.hold("a", "--by", "job-1")
    second = locks.run("a", "--by", "job-2", "--", "touch", "ran")
    locks.waiting("a", "job-2")
    second.kill()
    # Its output ends with the last process that has it: the one that would have become the command.
    end(second)
    end(first)
    assert run(locks, "a", "--", "echo", "free")[:2] == (0, "free\n")
    assert not (tmp_path / "ran").exists()
    assert locks.nothing_left()


def test_killing_what_would_become_the_command(locks: Bench, tmp_path: Path) -> None:
    first, _ = locks.hold("a", "--by", "job-1")
    second = locks.run("a", "--by", "job-2", "-q", "--", "touch", "ran")
    locks.waiting("a", "job-2")
    [guardian] = children(second.pid)
    [child] = children(guardian)
    os.kill(child, signal.SIGKILL)
    status, _, err = end(second)
    assert status == 137
    assert "was killed while it waited" in err
    assert locks.hf.locks.status("a").queue == ()
    end(first)
    assert not (tmp_path / "ran").exists()


# A lock that is taken away


def test_a_lost_lock_is_reported_and_ends_the_command(locks: Bench) -> None:
    process = locks.run("a", "b", "--by", "job-1", "--", *trapping("SIGTERM"))
    assert line(process) == "up"
    kicked = locks("locks", "kick", "b", "--why", "it hangs")
    assert kicked.status == 0
    assert re.fullmatch(r"took a, b from job-1 \(token \d+\)\n", kicked.out)
    status, out, err = end(process)
    assert (status, out) == (4, "got\n")
    assert "the grant of a, b to job-1" in err
    assert "holdfast log --subject a" in err


def test_a_lost_lock_whose_command_is_left_alone(locks: Bench) -> None:
    process, _ = locks.hold("a", "--by", "job-1", "--on-lost", "ignore")
    assert locks("locks", "kick", "a", "--why", "it hangs", "--by", "job-1").status == 0
    assert "was taken away" in remark(process)
    assert process.poll() is None
    assert end(process)[0] == 4


def test_a_lock_lost_just_before_the_end_is_still_reported(locks: Bench) -> None:
    """Also when the end of the command comes before the news."""
    process, pid = locks.hold("a", "--by", "job-1")
    # It can neither receive nor send until it continues.
    stop_outside(process.pid, locks.url)
    assert locks("locks", "kick", "a", "--why", "it hangs").status == 0
    os.kill(pid, signal.SIGKILL)
    process.send_signal(signal.SIGCONT)
    status, _, err = end(process)
    assert status == 4
    assert "was taken away" in err


def test_a_command_that_ends_is_no_loss(locks: Bench) -> None:
    """Even when the next in line sees its end before it is released."""
    process, pid = locks.hold("a", "--by", "job-1")
    stop_outside(process.pid, locks.url)
    second = locks.run("a", "--by", "job-2", "-q", "--", "echo", "next")
    locks.waiting("a", "job-2")
    os.kill(pid, signal.SIGTERM)
    assert end(second) == (0, "next\n", "")
    process.send_signal(signal.SIGCONT)
    assert end(process) == (143, "", "")


# Words


def test_odd_names(locks: Bench) -> None:
    for name in ("my router", "räuter \u2192", "a'b\"c", "/dev/ttyUSB0", "*", "x" * 256):
        assert run(locks, name, "-c", 'echo "$HOLDFAST_LOCK_NAMES"') == (0, f"{name}\n", "")
    # Behind a first `--`, names may begin with a dash, and a second one begins the command.
    for words, names in ((["-x"], "-x"), (["--help", "b"], "--help\nb")):
        assert run(locks, "--", *words, "--", "sh", "-c", 'echo "$HOLDFAST_LOCK_NAMES"') == (
            0,
            f"{names}\n",
            "",
        )
    assert run(locks, "-c", 'echo "$HOLDFAST_LOCK_NAMES"', "--", "--") == (0, "--\n", "")


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        ([], 2, "NAME"),
        (["a"], 2, "holdfast locks run NAME... -- COMMAND"),
        (["a", "b", "--"], 2, "holdfast locks run NAME... -- COMMAND"),
        (["--", "echo", "hi"], 2, "holdfast locks run NAME... -- COMMAND"),
        (["a", "echo", "hi"], 2, "holdfast locks run NAME... -- COMMAND"),
        (["a", "-c", "x", "--", "y"], 2, "of which one can be run"),
        (["", "--", "true"], 2, "resource"),
        (["x" * 257, "--", "true"], 2, "256 characters"),
        (["a\x1bb", "--", "true"], 2, "control characters"),
        (["a", "--by", "", "--", "true"], 2, "job"),
        (["a", "--by", "x\ny", "--", "true"], 2, "control characters"),
        (["a", "-w", "-1", "--", "true"], 2, "from 0 on"),
        (["a", "-w", "nan", "--", "true"], 2, "nan is not a number"),
        (["a", "-w", "soon", "--", "true"], 2, "soon"),
        (["a", "-E", "256", "--", "true"], 2, "255"),
        (["a", "--priority", "1001", "--", "true"], 2, "1000"),
        (["a", "--on-lost", "explode", "--", "true"], 2, "explode"),
        (["a", "--nosuch", "--", "true"], 2, "--nosuch"),
        (["--store", "nonsense", "a", "--", "true"], 2, "sqlite:PATH"),
        (["--store", "sqlite:/proc/nowhere/s.sqlite", "a", "--", "true"], 6, "--store"),
        (
            [*(f"n{number}" for number in range(LOCK_NAMES_MAX + 1)), "--", "true"],
            2,
            f"{LOCK_NAMES_MAX} names",
        ),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_bad_input_gets_one_clear_error_and_runs_nothing(
    locks: Bench, tmp_path: Path, words: list[str], status: int, says: str
) -> None:
    # What would be run leaves a trace.
    words = [*words[:-1], "touch", "ran"] if words[-1:] == ["true"] else words
    ran = run(locks, *words)
    assert (ran[0], ran[1]) == (status, ""), ran
    assert says in ran[2]
    assert "Traceback" not in ran[2]
    assert not (tmp_path / "ran").exists()
    assert locks.nothing_left()


# Outputs


def test_without_standard_output_nothing_is_run(locks: Bench, tmp_path: Path) -> None:
    ran = locks.shell("holdfast locks run a -- touch ran >&-")
    assert (ran.status, ran.err.count("\n")) == (6, 1)
    assert "nothing was done" in ran.err
    assert not (tmp_path / "ran").exists()


def test_without_standard_error_or_input_the_command_still_runs(locks: Bench) -> None:
    assert locks.shell("holdfast locks run a -- echo yes 2>&-") == (0, "yes\n", "")
    assert locks.shell("holdfast locks run a -- echo yes <&-") == (0, "yes\n", "")
    assert locks.shell("holdfast locks run a -- nosuch 2>&-").status == 127
    locks.hold("a", "--by", "job-1")
    assert locks.shell("holdfast locks run -n a -- echo yes 2>&-").status == 5


def test_a_waiter_does_not_read_all_holders(locks: Bench) -> None:
    """A closed standard error ends no wait."""
    first, _ = locks.hold("a", "--by", "job-1")
    second = locks.run("a", "--by", "job-2", "--", "echo", "second")
    assert second.stderr is not None
    second.stderr.close()
    locks.waiting("a", "job-2")
    end(first)
    assert line(second) == "second"
    assert second.wait(PATIENCE_S) == 0
