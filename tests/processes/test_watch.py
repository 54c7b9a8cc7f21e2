"""What is waited for until a tree ends."""

import os
import subprocess
from pathlib import Path

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
