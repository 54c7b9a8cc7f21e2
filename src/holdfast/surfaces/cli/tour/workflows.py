"""The workflows chapter."""

import os
import signal

from holdfast.kernel.errors import EAgain
from holdfast.kernel.limits import TREE_GRACE_S
from holdfast.surfaces.cli.tour.stage import Process, Stage

_TUNING = 'echo $$; until [ -e "$HOLDFAST_PREEMPT_FILE" ]; do sleep 0.1; done'
_LOADING = "echo $$; exec sleep 60"


def workflows_chapter(stage: Stage) -> None:
    """A swap that waits for work to yield; a swapper killed."""
    _yielding(stage)
    _kill(stage)


def _yielding(stage: Stage) -> None:
    stage.say(
        "`holdfast workflows run tuning --recipe llama --preemptible` works; somebody wants qwen "
        "loaded on the same GPU"
    )
    tuning = _begun(
        stage,
        "workflows",
        "run",
        "tuning",
        "--recipe",
        "llama",
        "--preemptible",
        "--",
        "sh",
        "-c",
        _TUNING,
    )
    status, _ = stage.outcome(stage.start("swap", "to", "qwen", "--", "true"))
    current = stage.hf.workflows.swap_status().current
    stage.holds(
        status == 0 and current is not None and current.recipe == "qwen",
        "`holdfast swap to qwen` asked it to yield, slept until it had, and loaded",
    )
    yielded, _ = stage.outcome(tuning)
    stage.holds(
        yielded == 0, "the work ended by itself, at a moment of its own choice; nobody killed it"
    )


def _kill(stage: Stage) -> None:
    stage.say("`holdfast swap to mixtral` loads, and is killed with -9 in the middle")
    swap = _begun(stage, "swap", "to", "mixtral", "--", "sh", "-c", _LOADING)
    refused = False
    try:
        stage.hf.workflows.register("nightly", "qwen")
    except EAgain:
        refused = True
    stage.holds(refused, "until then nothing could begin with another recipe")
    marker = stage.hf.workflows.swap_status().marker
    swap.send_signal(signal.SIGKILL)
    swap.wait()
    # Its guardian ends what it was loading with. Until the last process is gone, the swap counts as
    # under way.
    if marker is not None and marker.holder.tree:
        stage.hf.processes.trees.wait_for_end(marker.holder.tree, TREE_GRACE_S)
    status = stage.hf.workflows.swap_status()
    stage.holds(
        status.marker is None
        and status.current is None
        and status.unknown is not None
        and status.unknown.recipe == "mixtral",
        "its guardian ended the load; the next one who looked cleared what was left. It is "
        "unknown what is loaded, so no work "
        "begins by mistake",
    )
    orphans = [
        event for event in stage.hf.workflows.swap_log() if event.event == "orphan_marker_cleared"
    ]
    stage.holds(len(orphans) == 1, "the swap log tells of it, once (`holdfast swap log`)")
    stage.outcome(swap)


def _begun(stage: Stage, *words: str) -> Process:
    """A command of ours, once the command under it runs."""
    process = stage.start(*words)
    os.kill(int(stage.line(process)), 0)
    return process
