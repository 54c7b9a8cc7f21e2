"""The locks chapter."""

import signal

from holdfast.kernel.errors import DeadlockDetected, Fenced
from holdfast.surfaces.cli.tour.stage import TELLING, BrokenStep, Process, Stage, was_woken

_NEXT = f"""
import sys, time, holdfast
{TELLING}
with holdfast.connect(sys.argv[1]) as hf:
    hf.store = Telling(hf.store)
    grant = hf.locks.acquire(sys.argv[3], by=sys.argv[2])
    print(time.monotonic(), grant.token, flush=True)
    grant.release()
"""

_HOLDER = """
import sys, signal, holdfast
hf = holdfast.connect(sys.argv[1])
print(hf.locks.acquire(sys.argv[3], by=sys.argv[2]).token, flush=True)
signal.pause()
"""

_TWO_IN_TURN = """
import sys, holdfast
with holdfast.connect(sys.argv[1]) as hf:
    with hf.locks.hold(sys.argv[3], by=sys.argv[2]):
        def waits(ahead):
            print('waits', flush=True)
        with hf.locks.acquire(sys.argv[4], by=sys.argv[2], on_wait=waits):
            print('has both', flush=True)
"""


def locks_chapter(stage: Stage) -> None:
    """A hand-over; a holder killed; a deadlock."""
    _hand_over(stage)
    _kill(stage)
    _deadlock(stage)


def _hand_over(stage: Stage) -> None:
    grant = stage.hf.locks.acquire("router-1", by="job-1")
    stage.say("job-1 holds router-1; job-2 asks for it and sleeps")
    after = _asleep(stage, "job-2", "router-1")
    released_at = stage.monotonic()
    grant.release()
    woken, took_ms, _ = _granted(stage, after, released_at)
    stage.holds(woken, f"job-2 had it {took_ms:.1f} ms after job-1 let go")


def _kill(stage: Stage) -> None:
    holder = stage.start_script(_HOLDER, "job-3", "router-1")
    token = int(stage.line(holder))
    stage.say("job-3 takes router-1 and is killed with -9 while job-4 waits")
    after = _asleep(stage, "job-4", "router-1")
    killed_at = stage.monotonic()
    holder.send_signal(signal.SIGKILL)
    woken, took_ms, next_token = _granted(stage, after, killed_at)
    stage.outcome(holder)
    stage.holds(
        woken, f"job-4 had it {took_ms:.1f} ms after the kill: no timeout, no cleaning up by hand"
    )
    refused = False
    try:
        stage.hf.check_token("router-1", token)
    except Fenced:
        refused = True
    stage.holds(
        refused and next_token > token,
        "whatever job-3 left half-way is refused by its token, which is stale",
    )


def _deadlock(stage: Stage) -> None:
    grant = stage.hf.locks.acquire("router-2", by="job-6")
    stage.say(
        "job-5 holds router-1 and waits for router-2, which job-6 holds; now job-6 asks for "
        "router-1"
    )
    other = stage.start_script(_TWO_IN_TURN, "job-5", "router-1", "router-2")
    waits = stage.line(other) == "waits"
    cycle = ""
    try:
        stage.hf.locks.acquire("router-1", by="job-6")
    except DeadlockDetected as error:
        cycle = error.fields["cycle"]
    stage.holds(waits and cycle != "", f"told at once, not after a timeout: {cycle}")
    grant.release()
    status, printed = stage.outcome(other)
    stage.holds(
        status == 0 and printed == "has both", "job-6 lets go of router-2 and job-5 goes on"
    )
    stage.holds(
        stage.hf.locks.list_held() == [], "nothing is left behind (`holdfast locks status`)"
    )


def _asleep(stage: Stage, by: str, name: str) -> Process:
    """A process that has asked and sleeps, so that from here on it is woken, or looks again by
    itself.
    """
    process = stage.start_script(_NEXT, by, name)
    if stage.line(process) != "asleep":
        raise BrokenStep(f"{by} waits for {name}")
    return process


def _granted(stage: Stage, process: Process, since_s: float) -> tuple[bool, float, int]:
    """Was a sleeper woken for it, how long did that take, and its token."""
    status, printed = stage.outcome(process)
    at_s, token = printed.split()[-2:] if status == 0 else ("inf", "0")
    return was_woken(printed), (float(at_s) - since_s) * 1000, int(token)
