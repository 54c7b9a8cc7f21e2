"""What is waited for until a tree ends."""

import errno
import os
import subprocess
from pathlib import Path

import pytest

from holdfast.kernel.holder import Liveness
from holdfast.processes import fifo
from holdfast.processes.scan import stat
from holdfast.processes.trees import Trees
from holdfast.system.access import PRIVATE


def test_a_tree_that_ended_in_order_is_not_waited_for_though_its_wrapper_lives(
    tmp_path: Path,
) -> None:
    """A waiter that looked between the end and the release would have slept until the wrapper
    died.
    """
    trees = Trees(lambda: tmp_path / "trees", lambda: PRIVATE)
    wrapper = subprocess.Popen(["sleep", "600"])
    try:
        seen = stat(wrapper.pid)
        assert seen is not None
        tree = f"{os.geteuid()}-{wrapper.pid}-{seen.start_ticks}-0123456789abcdef"
        path = trees.begin(tree)
        assert path is not None
        watched = trees.watch(tree)
        assert watched is not None and trees.liveness(tree, in_sight=True) is Liveness.ALIVE
        os.close(watched)
        fifo.end(path)
        assert trees.watch(tree) is None and trees.liveness(tree, in_sight=True) is Liveness.DEAD
    finally:
        wrapper.kill()
        wrapper.wait()


def test_a_process_that_got_the_pid_of_the_wrapper_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may live for long, and nobody would look again before its end."""
    trees = Trees(lambda: tmp_path / "trees", lambda: PRIVATE)
    wrapper = subprocess.Popen(["sleep", "600"])
    seen = stat(wrapper.pid)
    assert seen is not None
    tree = f"{os.geteuid()}-{wrapper.pid}-{seen.start_ticks}-0123456789abcdef"
    trees.begin(tree)
    opened = os.pidfd_open

    def open_late(pid: int) -> int:
        assert pid == wrapper.pid
        wrapper.kill()
        wrapper.wait()
        return opened(os.getpid())

    monkeypatch.setattr(os, "pidfd_open", open_late)
    assert trees.watch(tree) is None


def test_a_sweep_passes_over_what_it_cannot_examine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs beside a command that has begun, whose claim must not end by it."""
    trees = Trees(lambda: tmp_path / "trees", lambda: PRIVATE)
    trees.begin(f"{os.geteuid()}-1-0-0123456789abcdef")

    def refuse(path: str) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    monkeypatch.setattr(fifo, "observe", refuse)
    assert trees.sweep(older_than_s=0) == 0
