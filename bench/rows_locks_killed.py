"""A holder that is killed: how soon does the next one run?"""

import multiprocessing
import os
import random
import signal
import time
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from bench import locking, servers
from bench.locking import FILELOCK, FLOCK, HOLDFAST, LEASE_S, REDIS, Opens
from bench.measure import Contender, Lab, Sample, alone, find
from bench.report import Row, Verdict
from bench.rows_locks import COLUMN
from bench.turns import ONE

NAME = "locks-killed"

_KILLS = 8
_QUICK_KILLS = 2
_TARGET_MS = 20
_SETTLE_S = (0.05, 0.10)
"""The second waits this long before the first is killed, so that the kill comes at any point of its
polls.
"""
_TIMEOUT_S = 30.0


def measure(lab: Lab) -> list[Row]:
    kills = _QUICK_KILLS if lab.quick else _KILLS
    with servers.redis() as redis:
        kinds, absent = locking.take_part(
            locking.kinds(HOLDFAST, FILELOCK, REDIS, FLOCK), {"redis": redis}
        )
        contenders = [
            Contender(kind.name, kind.killed, partial(_kill, opens=kind.opens), kind.limit)
            for kind in kinds
        ]
        series = lab.interleave(contenders, rounds=kills)
    ours = find(series, HOLDFAST)
    verdicts = []
    if ours is not None:
        took = ours.spread(lambda sample: sample.p50_s * 1000)
        verdicts.append(
            Verdict(
                "time to the next in ms, median (most: the worst)",
                f"under {_TARGET_MS}",
                took,
                took.median < _TARGET_MS,
            )
        )
    return [
        Row(
            name="locks-killed",
            title="Holder killed with -9 to the next running",
            says="One process holds the lock and another waits for it. The first is killed; the "
            f"time is until the second has the lock. {kills} times each in turn, so the most "
            "is the worst of all. The kernel closes a dead process's files, which filelock's "
            "next poll sees. Redis cannot see a death: the rest of the lease must pass, here "
            f"of {LEASE_S:g} s, which would be too short for a holder that pauses longer.",
            series=series,
            verdicts=verdicts,
            kind="time",
            column=COLUMN,
            logarithmic=True,
            absent=absent,
        )
    ]


def _kill(folder: Path, *, opens: Opens) -> Sample:
    took = alone(_seconds, folder, opens)
    return Sample(rate=1 / took, p50_s=took, worst_s=took, share=1.0)


def _seconds(folder: Path, opens: Opens) -> float:
    locking.prepare(folder, opens=opens, names=ONE)
    context = multiprocessing.get_context("fork")
    (first, first_end), (second, second_end) = context.Pipe(), context.Pipe()
    holder = context.Process(target=_hold, args=(folder, opens, first_end), daemon=True)
    waiter = context.Process(target=_wait, args=(folder, opens, second_end), daemon=True)
    waiter.start()
    _hear(second)
    holder.start()
    _hear(first)
    second.send("take it")
    time.sleep(random.uniform(*_SETTLE_S))
    assert holder.pid is not None
    killed_at = time.perf_counter()
    os.kill(holder.pid, signal.SIGKILL)
    took = _hear(second) - killed_at
    holder.join()
    waiter.join()
    return took


def _hold(folder: Path, opens: Opens, pipe: Connection) -> None:
    peer = opens(folder, 0, ONE)
    peer.acquire(ONE)
    pipe.send(0.0)
    pipe.recv()


def _wait(folder: Path, opens: Opens, pipe: Connection) -> None:
    peer = opens(folder, 1, ONE)
    pipe.send(0.0)
    pipe.recv()
    peer.acquire(ONE)
    pipe.send(time.perf_counter())
    peer.release(ONE)
    peer.close()


def _hear(pipe: Connection) -> float:
    if not pipe.poll(_TIMEOUT_S):
        raise RuntimeError("no word from a process: what it said is above")
    word = pipe.recv()
    assert isinstance(word, float)
    return word
