"""The network chapter."""

import signal

from holdfast.kernel.errors import Held
from holdfast.surfaces.cli.tour.stage import Stage

ROUTERS = ("router-1", "router-2", "router-3")
ROUNDS = 20

_FIGHTER = """
import os, sys, holdfast
url, busy, job, rounds, *routers = sys.argv[1:]
met = 0
with holdfast.connect(url) as hf:
    print("ready", flush=True)
    for _ in range(int(rounds)):
        with hf.network.all_router_locks(routers, job):
            try:
                os.mkdir(busy)
                os.rmdir(busy)
            except OSError:
                met += 1
print(met, flush=True)
"""
"""The folder can be made by one at a time: whoever finds it there was not alone."""

_REGISTRANT = """
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


def network_chapter(stage: Stage) -> None:
    """Two jobs fight for three routers; two register one address; a run dies with its lease."""
    _fight(stage)
    host = _one_address(stage)
    _dead_lease(stage, host)


def _fight(stage: Stage) -> None:
    stage.say(
        f"job-a and job-b each take all of {', '.join(ROUTERS)}, {ROUNDS} times, in opposite "
        "orders, as fast as they can"
    )
    busy = str(stage.folder / "busy")
    begun_s = stage.monotonic()
    jobs = [
        stage.start_script(_FIGHTER, busy, job, str(ROUNDS), *routers)
        for job, routers in (("job-a", ROUTERS), ("job-b", ROUTERS[::-1]))
    ]
    ready = [stage.line(job) for job in jobs]
    outcomes = [stage.outcome(job) for job in jobs]
    took_s = stage.monotonic() - begun_s
    stage.holds(
        ready == ["ready"] * 2 and outcomes == [(0, "0")] * 2,
        "neither ever met the other on any of the three",
    )
    stage.holds(
        stage.hf.locks.list_held() == [],
        f"and no order of names made them wait for each other for ever: {took_s:.1f} s",
    )


def _one_address(stage: Stage) -> str:
    stage.say("both register a host at once, with the same address")
    hosts = {"host-a": "02:00:00:00:00:0a", "host-b": "02:00:00:00:00:0b"}
    said = {
        host: stage.outcome(process)[1]
        for host, process in [(h, stage.start_script(_REGISTRANT, h, m)) for h, m in hosts.items()]
    }
    stage.holds(
        sorted(said.values()) == ["False", "True"],
        "one of them has it now, and the other was told no",
    )
    return next(host for host, answer in said.items() if answer == "True")


def _dead_lease(stage: Stage, host: str) -> None:
    stage.say(f"run-1 leases {host}, so that nobody takes it away; then it is killed with -9")
    run = stage.start_script(_RUN, host)
    leased = stage.line(run) == "leased"
    refused = ""
    try:
        stage.hf.network.unregister_host(host)
    except Held as error:
        refused = error.message
    stage.holds(
        leased and "run-1" in refused,
        f"while it lived, {host} could not be unregistered, and the refusal named run-1",
    )
    run.send_signal(signal.SIGKILL)
    stage.outcome(run)
    count = stage.hf.network.get_host_lease_count(host)
    stage.holds(
        count == 0 and stage.hf.network.unregister_host(host),
        "now nobody counts it any more: no counter leaks",
    )
