"""Real processes through /proc: alive, dead, zombie, reused pids, odd names."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.kernel.errors import EnvironmentUnavailable, NotFound
from holdfast.kernel.holder import Liveness, probe
from holdfast.processes.procfs import Procfs
from holdfast.stores.listener import readable
from tests.harness.descriptors import pidfds
from tests.harness.timeouts import PATIENCE_S


def test_this_process_is_alive() -> None:
    me = Procfs().current("label")
    assert (me.pid, me.label) == (os.getpid(), "label")
    assert probe(me, Procfs(), embedded=True) is Liveness.ALIVE


def test_a_killed_process_is_dead_even_before_it_is_reaped(
    sleeper: "subprocess.Popen[bytes]",
) -> None:
    processes = Procfs()
    holder = processes.of(sleeper.pid)
    death = processes.death(holder)
    assert death is not None
    assert probe(holder, processes, embedded=True) is Liveness.ALIVE
    sleeper.send_signal(signal.SIGKILL)
    assert readable([death], PATIENCE_S) == {death}
    os.close(death)
    # Nobody has waited for it yet, so it is a zombie with its old start time.
    seen = processes.process_stat(sleeper.pid)
    assert seen is not None
    assert seen.zombie
    assert probe(holder, processes, embedded=True) is Liveness.DEAD
    assert processes.death(holder) is None
    with pytest.raises(NotFound):
        processes.of(sleeper.pid)
    sleeper.wait()
    assert processes.process_stat(sleeper.pid) is None
    assert probe(holder, processes, embedded=True) is Liveness.DEAD


def test_without_descriptors_a_process_is_not_watched_and_none_leak(
    sleeper: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every waiter that failed so left what it had opened, and so did not let anybody recover."""
    processes = Procfs()
    holder = processes.of(sleeper.pid)

    def too_many(_: int) -> None:
        raise OSError(24, "Too many open files")

    before = pidfds()
    monkeypatch.setattr(processes, "process_stat", too_many)
    assert processes.death(holder) is None
    assert pidfds() == before


@pytest.mark.parametrize("pid", [2**31, 10**30])
def test_a_number_that_no_process_can_have_is_a_dead_one(pid: int) -> None:
    """One such number in another program's file made every read of all its records fail."""
    processes = Procfs()
    holder = replace(processes.current(), pid=pid)
    assert probe(holder, processes, embedded=True) is Liveness.DEAD
    assert processes.death(holder) is None


_HEADLESS = """
import ctypes, platform, sys, threading
def last():
    sys.stdin.read()
    ctypes.CDLL(None)._exit(0)
threading.Thread(target=last).start()
print("up", flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)
"""


def test_a_process_lives_on_without_its_first_thread() -> None:
    """The kernel shows the first thread's end as the process's, though the others have its files
    and its locks.
    """
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", _HEADLESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    processes = Procfs()
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        holder = processes.of(process.pid)
        stat = Path(f"/proc/{process.pid}/stat")
        while b") Z " not in stat.read_bytes():
            continue
        assert probe(holder, processes, embedded=True) is Liveness.ALIVE
        death = processes.death(holder)
        assert death is not None
        process.send_signal(signal.SIGKILL)
        assert readable([death], PATIENCE_S) == {death}
        os.close(death)
        assert probe(holder, processes, embedded=True) is Liveness.DEAD
    finally:
        process.kill()
        process.communicate()


def test_a_reused_pid_is_not_the_holder(sleeper: "subprocess.Popen[bytes]") -> None:
    processes = Procfs()
    earlier = replace(
        processes.of(sleeper.pid), start_ticks=processes.of(sleeper.pid).start_ticks - 1
    )
    assert probe(earlier, processes, embedded=True) is Liveness.DEAD
    assert processes.death(earlier) is None


@pytest.mark.parametrize("pid", [0, -1, 1 << 31, 10**12, 1 << 70])
def test_an_impossible_pid_belongs_to_no_process(pid: int) -> None:
    """Another program's record may have any number: of 0 and -1 the kernel says that there are such
    processes.
    """
    processes = Procfs()
    holder = replace(processes.current(), pid=pid)
    assert probe(holder, processes, embedded=True) is Liveness.DEAD
    assert processes.death(holder) is None
    with pytest.raises(NotFound):
        processes.of(pid)


def test_another_boot_host_or_namespace() -> None:
    processes = Procfs()
    me = processes.current()
    assert probe(replace(me, boot_id="other"), processes, embedded=True) is Liveness.DEAD
    assert probe(replace(me, boot_id="other"), processes, embedded=False) is Liveness.UNKNOWN
    assert probe(replace(me, pid_ns=1), processes, embedded=True) is Liveness.UNKNOWN
    assert probe(replace(me, host_id="other"), processes, embedded=True) is Liveness.UNKNOWN
    assert Procfs(host_id="configured").current().host_id == "configured"
    assert processes.death(replace(me, host_id="other")) is None


def test_a_program_may_put_brackets_into_its_name(tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 (b"
    program.symlink_to(sys.executable)
    script = "import sys; print('up', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [program, "-S", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        seen = Procfs().process_stat(process.pid)
        assert seen is not None and seen.start_ticks is not None
        assert not seen.zombie
        assert seen.start_ticks >= Procfs().current().start_ticks
    finally:
        process.communicate()


def test_a_forked_child_is_itself() -> None:
    processes = Procfs()
    parent = processes.current()
    child = os.fork()
    if child == 0:
        os._exit(0 if processes.current().pid == os.getpid() != parent.pid else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_without_procfs_it_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnavailable, match="Linux"):
        Procfs(root=tmp_path).here()


def test_a_process_that_is_hidden_is_unknown_not_dead(
    sleeper: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    """As with a /proc mounted with hidepid: there is no folder for it, and still it can be
    signalled.
    """
    processes = Procfs()
    holder = processes.of(sleeper.pid)
    for place in ("self/ns", "sys/kernel/random"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "self/ns/pid").symlink_to("/proc/self/ns/pid")
    (tmp_path / "sys/kernel/random/boot_id").write_text(holder.boot_id)
    hiding = Procfs(root=tmp_path)
    assert hiding.here() == processes.here()
    assert probe(holder, hiding, embedded=True) is Liveness.UNKNOWN
    sleeper.kill()
    sleeper.wait()
    assert probe(holder, hiding, embedded=True) is Liveness.DEAD


def _proc_with_offset(root: Path, offset: str) -> Procfs:
    for place in ("self/ns", "sys/kernel/random"):
        (root / place).mkdir(parents=True)
    (root / "sys/kernel/random/boot_id").write_text(Procfs().boot_id())
    (root / "self/ns/pid").symlink_to("/proc/self/ns/pid")
    for name in ("time", "time_for_children"):
        (root / "self/ns" / name).symlink_to("/proc/self/ns/net")
    (root / "self/timens_offsets").write_text(
        f"monotonic           0         0\nboottime  {offset}\n"
    )
    (root / str(os.getpid())).symlink_to("/proc/self")
    return Procfs(root=root)


def test_a_start_time_leaves_out_the_offset_of_a_time_namespace(tmp_path: Path) -> None:
    me, shifted = Procfs().current(), _proc_with_offset(tmp_path, "-100 250000000")
    assert shifted.current() == replace(me, start_ticks=me.start_ticks + 9975)


def test_an_offset_of_parts_of_a_tick_can_be_compared_in_its_own_namespace_alone(
    tmp_path: Path,
) -> None:
    """The kernel rounds after adding it: by one tick, a live process would be another one, and
    dead.
    """
    shifted = _proc_with_offset(tmp_path, "100 1")
    assert probe(Procfs().current(), shifted, embedded=True) is Liveness.UNKNOWN
    assert probe(shifted.current(), Procfs(), embedded=True) is Liveness.UNKNOWN
    assert probe(shifted.current(), shifted, embedded=True) is Liveness.ALIVE


def test_the_processes_above_are_known_parent_first() -> None:
    script = (
        "import os\nfrom holdfast.processes.procfs import Procfs\n"
        "print(os.getppid(), *(one.pid for one in Procfs().ancestors()))"
    )
    shell = ["bash", "-c", f'echo $$; "{sys.executable}" -c "$1"; exit $?', "bash", script]
    done = subprocess.run(shell, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    shell_pid, parent, first, second, *_ = done.stdout.split()
    assert (parent, first, second) == (shell_pid, shell_pid, str(os.getpid()))
    me = Procfs().current()
    assert me not in Procfs().ancestors()
