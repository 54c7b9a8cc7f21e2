"""The network chapter: two jobs and three routers; one address for two hosts; a run that dies."""

import signal
import time

from holdfast.kernel.errors import Held
from holdfast.surfaces.cli.tour.steps import Tour

_ROUTERS = ("router-1", "router-2", "router-3")
_ROUNDS = 20

_JOB = """
import os, sys, holdfast
url, busy, job, rounds, *routers = sys.argv[1:]
met = 0
with holdfast.connect(url) as hf:
    print("ready", flush=True)
    for _ in range(int(rounds)):
        with hf.network.all_router_locks(routers, job):
            try:
                # Only one process at a time can make this folder.
                os.mkdir(busy)
                os.rmdir(busy)
            except OSError:
                met += 1
print(met, flush=True)
"""

_REGISTRATION = """
import sys, holdfast
with holdfast.connect(sys.argv[1]) as hf:
    print(hf.network.check_and_register_host(sys.argv[2], "10.0.0.7", "router-1", sys.argv[3]))
"""

_RUN = """
import sys, signal, holdfast
hf = holdfast.connect(sys.argv[1])
hf.network.acquire_source_host_lease("run-1", sys.argv[2], "quick", "router-1")
print("leased", flush=True)
signal.pause()
"""


def network_chapter(tour: Tour) -> None:
    _compete(tour)
    host = _register_twice(tour)
    _dead_lease(tour, host)


def _compete(tour: Tour) -> None:
    tour.say(
        f"job-a and job-b each lock all of {', '.join(_ROUTERS)}, {_ROUNDS} times, in opposite "
        "orders, as fast as they can"
    )
    busy = str(tour.folder / "busy")
    started_s = time.monotonic()
    jobs = [
        tour.start_script(_JOB, busy, job, str(_ROUNDS), *routers)
        for job, routers in (("job-a", _ROUTERS), ("job-b", _ROUTERS[::-1]))
    ]
    ready = [tour.line(job) for job in jobs]
    outcomes = [tour.outcome(job) for job in jobs]
    took_s = time.monotonic() - started_s
    tour.check(
        ready == ["ready"] * 2 and outcomes == [(0, "0")] * 2,
        "the two jobs never met on any of the three routers",
    )
    tour.check(
        tour.hf.locks.list_held() == [],
        f"the opposite orders caused no deadlock: both were done after {took_s:.1f} s",
    )


def _register_twice(tour: Tour) -> str:
    tour.say("two processes register a host at once, both with the same address")
    hosts = {"host-a": "02:00:00:00:00:0a", "host-b": "02:00:00:00:00:0b"}
    started = {host: tour.start_script(_REGISTRATION, host, mac) for host, mac in hosts.items()}
    printed = {host: tour.outcome(process)[1] for host, process in started.items()}
    tour.check(
        sorted(printed.values()) == ["False", "True"],
        "one of them has the address, and the other was refused",
    )
    return next(host for host, answer in printed.items() if answer == "True")


def _dead_lease(tour: Tour, host: str) -> None:
    tour.say(f"run-1 leases {host}, so that nobody can remove it, and is then killed with -9")
    run = tour.start_script(_RUN, host)
    leased = tour.line(run) == "leased"
    error = tour.refusal(Held, tour.hf.network.unregister_host, host)
    tour.check(
        leased and error is not None and "run-1" in error.message,
        f"while run-1 lived, {host} could not be unregistered, and the refusal named run-1",
    )
    run.send_signal(signal.SIGKILL)
    tour.outcome(run)
    count = tour.hf.network.get_host_lease_count(host)
    tour.check(
        count == 0 and tour.hf.network.unregister_host(host),
        "after the kill the lease is gone: no counter leaks",
    )
