"""The locks chapter: a lock that the next waiter gets, a holder that is killed, a deadlock."""

import signal
import time

from holdfast.kernel.errors import DeadlockDetected, Fenced
from holdfast.surfaces.cli.tour.steps import REPORTING, BrokenStep, Process, Tour, was_woken

_WAITER = f"""
import sys, time, holdfast
{REPORTING}
with holdfast.connect(sys.argv[1]) as hf:
    hf.store = Reporting(hf.store)
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

_TWO_LOCKS = """
import sys, holdfast
with holdfast.connect(sys.argv[1]) as hf:
    with hf.locks.hold(sys.argv[3], by=sys.argv[2]):
        def on_wait(ahead):
            print('waits', flush=True)
        with hf.locks.acquire(sys.argv[4], by=sys.argv[2], on_wait=on_wait):
            print('has both', flush=True)
"""


def locks_chapter(tour: Tour) -> None:
    _release(tour)
    _kill(tour)
    _deadlock(tour)


def _release(tour: Tour) -> None:
    grant = tour.hf.locks.acquire("router-1", by="job-1")
    tour.say("job-1 holds router-1; job-2 requests it and sleeps")
    waiter = _asleep(tour, "job-2", "router-1")
    began_s = time.monotonic()
    grant.release()
    woken, took_ms, _ = _granted(tour, waiter, began_s)
    tour.check(woken, f"job-2 had it {took_ms:.1f} ms after job-1 released it")


def _kill(tour: Tour) -> None:
    holder = tour.start_script(_HOLDER, "job-3", "router-1")
    token = int(tour.line(holder))
    tour.say("job-3 holds router-1 and is killed with -9 while job-4 waits")
    waiter = _asleep(tour, "job-4", "router-1")
    began_s = time.monotonic()
    holder.send_signal(signal.SIGKILL)
    woken, took_ms, next_token = _granted(tour, waiter, began_s)
    tour.outcome(holder)
    tour.check(
        woken, f"job-4 had it {took_ms:.1f} ms after the kill: no timeout, no cleanup by hand"
    )
    stale = tour.refusal(Fenced, tour.hf.check_token, "router-1", token)
    tour.check(
        stale is not None and next_token > token,
        "a late write of job-3 is refused, since its token is stale",
    )


def _deadlock(tour: Tour) -> None:
    grant = tour.hf.locks.acquire("router-2", by="job-6")
    tour.say(
        "job-5 holds router-1 and waits for router-2, which job-6 holds; now job-6 requests "
        "router-1"
    )
    other = tour.start_script(_TWO_LOCKS, "job-5", "router-1", "router-2")
    waits = tour.line(other) == "waits"
    error = tour.refusal(DeadlockDetected, tour.hf.locks.acquire, "router-1", by="job-6")
    cycle = "" if error is None else error.fields["cycle"]
    tour.check(waits and cycle != "", f"refused at once, not after a timeout: {cycle}")
    grant.release()
    tour.check(
        tour.outcome(other) == (0, "has both"), "job-6 releases router-2, and job-5 continues"
    )
    tour.check(tour.hf.locks.list_held() == [], "nothing is left behind (`holdfast locks status`)")


def _asleep(tour: Tour, by: str, name: str) -> Process:
    """A process that has requested a lock and sleeps: from here on it is woken, or times out."""
    process = tour.start_script(_WAITER, by, name)
    if tour.line(process) != "asleep":
        raise BrokenStep(f"{by} waits for {name}")
    return process


def _granted(tour: Tour, process: Process, began_s: float) -> tuple[bool, float, int]:
    """Whether a sleeper was woken, how long that took, and its token."""
    status, printed = tour.outcome(process)
    at_s, token = printed.split()[-2:] if status == 0 else ("inf", "0")
    return was_woken(printed), (float(at_s) - began_s) * 1000, int(token)
