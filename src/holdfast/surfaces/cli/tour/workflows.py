"""The workflows chapter: a swap that waits for work to yield, and a swap that is killed."""

import os
import signal

from holdfast.kernel.errors import EAgain
from holdfast.kernel.limits import TREE_GRACE_S
from holdfast.surfaces.cli.tour.steps import Process, Tour

_TUNING = 'echo $$; until [ -e "$HOLDFAST_PREEMPT_FILE" ]; do sleep 0.1; done'
_LOADING = "echo $$; exec sleep 60"


def workflows_chapter(tour: Tour) -> None:
    _yield(tour)
    _kill(tour)


def _yield(tour: Tour) -> None:
    words = ("workflows", "run", "tuning", "--recipe", "llama", "--preemptible")
    tour.say(f"`holdfast {' '.join(words)}` runs; then qwen is to be loaded on the same GPU")
    tuning = _start(tour, *words, "--", "sh", "-c", _TUNING)
    status, _ = tour.run("swap", "to", "qwen", "--", "true")
    current = tour.hf.workflows.swap_status().current
    tour.check(
        status == 0 and current is not None and current.recipe == "qwen",
        "`holdfast swap to qwen` asked the work to yield, slept until it had, and loaded",
    )
    yielded, _ = tour.outcome(tuning)
    tour.check(yielded == 0, "the work ended by itself, when it chose to; nobody killed it")


def _kill(tour: Tour) -> None:
    workflows = tour.hf.workflows
    tour.say("`holdfast swap to mixtral` loads, and is killed with -9 in the middle")
    swap = _start(tour, "swap", "to", "mixtral", "--", "sh", "-c", _LOADING)
    refused = tour.refusal(EAgain, workflows.register, "nightly", "qwen")
    tour.check(refused is not None, "during the swap no work can begin with another recipe")
    marker = workflows.swap_status().marker
    swap.send_signal(signal.SIGKILL)
    swap.wait()
    # The guardian ends the load. Until its last process is gone, the swap is under way.
    if marker is not None and marker.holder.tree:
        tour.hf.processes.trees.wait_for_end(marker.holder.tree, TREE_GRACE_S)
    status = workflows.swap_status()
    tour.check(
        status.marker is None
        and status.current is None
        and status.unknown is not None
        and status.unknown.recipe == "mixtral",
        "the guardian ended the load, and the next command cleared the marker. It is unknown what "
        "is loaded, so no work begins by mistake",
    )
    cleared = [one for one in workflows.swap_log() if one.event == "orphan_marker_cleared"]
    tour.check(len(cleared) == 1, "the swap log shows it, once (`holdfast swap log`)")
    tour.outcome(swap)


def _start(tour: Tour, *words: str) -> Process:
    """`holdfast WORDS`, once the command under it runs."""
    process = tour.start(*words)
    os.kill(int(tour.line(process)), 0)
    return process
