"""A command under a lock: what `holdfast locks run` costs when the lock passes on, and in memory."""

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import holdfast
from bench import work
from bench.measure import Contender, Lab, Sample, find, spread
from bench.report import Row, Verdict

NAME = "custody"

_KILLS = 10
_QUICK_KILLS = 2
_HAND_OVER_TARGET_MS = 20
_MEMORY_TARGET_MB = 15
_SETTLE_S = (0.05, 0.10)
"""The second waits this long before the first is killed, so that the kill comes at any point of a
poll.
"""
_TIMEOUT_S = 30.0
_LOCK = "one"
_OURS = "holdfast locks run"
_UNGUARDED = "holdfast locks run, guardian killed too"
_FLOCK = "flock(1)"
_TREE = "the last process of the tree"


def measure(lab: Lab) -> list[Row]:
    return [_hand_over(lab)]


def _memory_of_running(lab: Lab) -> list[int]:
    """The memory of some `locks run` whose commands run, each with its guardian."""
    with lab.folder() as folder, ExitStack() as stack:
        words = _ours(folder)[:-2]
        running = [
            _started(stack, [*words, f"lock-{number}", "--", "/bin/cat"], subprocess.PIPE)
            for number in range(3)
        ]
        # They release memory that they do not need after a few seconds.
        _until(
            lambda: all(
                b"standby_program" in Path(f"/proc/{one.pid}/cmdline").read_bytes()
                for one in running
            )
        )
        time.sleep(_SETTLE_S[1])
        return [_memory_of([one.pid, *_children(one.pid)]) for one in running]


def _ours(folder: Path) -> list[str]:
    program = str(Path(sys.executable).with_name("holdfast"))
    return [
        program,
        "locks",
        "run",
        "--quiet",
        "--store",
        work.url_of(folder),
        _LOCK,
        "--",
    ]


def _theirs(folder: Path) -> list[str]:
    # Without --close: the command inherits the lock, which then ends with the last process of the
    # tree, as ours does.
    return ["/usr/bin/flock", str(folder / "file")]


def _hand_over(lab: Lab) -> Row:
    kills = _QUICK_KILLS if lab.quick else _KILLS
    memory: list[int] = []
    contenders = [
        Contender(_OURS, _TREE, partial(_kill, kind=(_ours, _waits_for_ours), memory=memory)),
        Contender(_UNGUARDED, _TREE, partial(_kill, kind=(_ours, _waits_for_ours), unguarded=True)),
        Contender(_FLOCK, _TREE, partial(_kill, kind=(_theirs, _waits_for_theirs)), limit=True),
    ]
    series = lab.interleave(contenders, rounds=kills)
    verdicts = []
    for name in (_OURS, _UNGUARDED):
        if (found := find(series, name)) is not None:
            took = found.spread(lambda sample: sample.p50_s * 1000)
            reached = took.median <= _HAND_OVER_TARGET_MS
            verdicts.append(
                Verdict(
                    f"{name}: ms to the next command",
                    f"at most {_HAND_OVER_TARGET_MS}",
                    took,
                    reached,
                )
            )
    held = spread(size / 1e6 for size in _memory_of_running(lab))
    what = "memory of `holdfast locks run` and its guardian while the command runs, in MB (PSS)"
    verdicts.append(
        Verdict(what, f"at most {_MEMORY_TARGET_MB}", held, held.median <= _MEMORY_TARGET_MB)
    )
    queued = spread(size / 1e6 for size in memory)
    verdicts.append(
        Verdict("the same while it waits for the lock, and must be quick, in MB", "", queued, None)
    )
    return Row(
        name="custody-killed",
        title="Wrapper and command killed with -9 to the next command running",
        says="A command runs under the lock, and another waits for it. The program that took "
        "the lock is killed first, then its command. The time is from the second kill "
        f"until the next command has written a line. {kills} times each in turn. The next "
        "flock(1) and the next `locks run` are already started; only their command is "
        "not.",
        series=series,
        verdicts=verdicts,
        kind="time",
        column="the lock ends with",
        logarithmic=True,
    )


def _kill(
    folder: Path,
    *,
    kind: tuple[Callable[[Path], list[str]], Callable[[Path], bool]],
    unguarded: bool = False,
    memory: list[int] | None = None,
) -> Sample:
    words, waits = kind
    with ExitStack() as stack:
        holder = _started(stack, [*words(folder), "/bin/sh", "-c", "echo $$; exec sleep infinity"])
        command = int(_line(holder))
        command_fd = os.pidfd_open(command)
        stack.callback(os.close, command_fd)
        stack.callback(_end, command_fd)
        guardian = _children(holder.pid)[0]
        waiter = _started(stack, [*words(folder), "/bin/echo", "runs"])
        holder.kill()
        holder.wait()
        if unguarded:
            os.kill(guardian, signal.SIGKILL)
        _until(partial(waits, folder))
        if memory is not None:
            memory.append(_memory_of([waiter.pid, *_children(waiter.pid)]))
        time.sleep(random.uniform(*_SETTLE_S))
        killed_at = time.perf_counter()
        _end(command_fd)
        _line(waiter)
        took = time.perf_counter() - killed_at
        waiter.wait(_TIMEOUT_S)
    return Sample(rate=1 / took, p50_s=took, worst_s=took, share=1.0)


def _started(
    stack: ExitStack, words: list[str], stdin: int = subprocess.DEVNULL
) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(words, stdin=stdin, stdout=subprocess.PIPE)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def _line(process: "subprocess.Popen[bytes]") -> bytes:
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], _TIMEOUT_S)[0]:
        raise RuntimeError("no word from a command: what it said is above")
    return process.stdout.readline()


def _until(met: Callable[[], bool]) -> None:
    end_s = time.monotonic() + _TIMEOUT_S
    while not met():
        if time.monotonic() > end_s:
            raise RuntimeError("the second never waited for the lock: what it said is above")
        time.sleep(0.02)


def _waits_for_ours(folder: Path) -> bool:
    with holdfast.connect(work.url_of(folder)) as hf:
        return bool(hf.locks.status(_LOCK).queue)


def _waits_for_theirs(folder: Path) -> bool:
    """Does the kernel list a process that waits behind the lock's holder?"""
    inode = str((folder / "file").stat().st_ino)
    waiting = [line for line in Path("/proc/locks").read_text().splitlines() if "->" in line]
    return any(word.endswith(f":{inode}") for line in waiting for word in line.split())


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _memory_of(pids: list[int]) -> int:
    """The memory of some processes in bytes, in which each page that n processes share counts as
    1/n.
    """
    lines = [
        line for pid in pids for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    ]
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _end(pidfd: int) -> None:
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return
