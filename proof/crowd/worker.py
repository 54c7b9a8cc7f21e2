"""The program of one process of a crowd: threads that perform a workload.

    python -m proof.crowd.worker PLAN

It prints `ready`, reads until when it has to work, on the monotonic clock, and exits with 1 when
one of its threads failed.
"""

import json
import random
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec.structs import replace

from holdfast.kernel.settings import Settings
from holdfast.runtime.configuration import load_settings
from holdfast.runtime.connection import Holdfast, connected
from proof import bugs
from proof.crowd import calls, lock_jobs
from proof.crowd.plan import Crowd, Plan
from proof.parent import end_with_parent


class Workload(Protocol):
    """A module with the work of a process."""

    def warm(self, hf: Holdfast) -> None:
        """Load and open what the work needs, before the time begins."""
        ...

    def threads(self, plan: Plan, hf: Holdfast, until: float) -> Mapping[str, Callable[[], None]]:
        """What each thread does, by its name."""
        ...


WORKLOADS: dict[str, Workload] = {"calls": calls, "lock_jobs": lock_jobs}


def main(plan: Plan) -> int:
    end_with_parent()
    if plan.crowd.bug:
        bugs.plant(plan.crowd.bug, random.Random(f"{plan.crowd.seed}/{plan.process}"))
    workload = WORKLOADS[plan.crowd.workload]
    with connected(_settings(plan)) as hf:
        workload.warm(hf)
        print("ready", flush=True)
        until = float(sys.stdin.readline())
        return _run_all(workload.threads(plan, hf, until))


def _settings(plan: Plan) -> Settings:
    """Every second process journals each wait: so both ways of a crowd meet in one lock table."""
    settings = load_settings(store=plan.store)
    each = int(plan.process.partition(".")[0]) % 2
    waits_s = 0 if each else settings.locks.journal_waits_s
    return replace(settings, locks=replace(settings.locks, journal_waits_s=waits_s))


def _run_all(works: Mapping[str, Callable[[], None]]) -> int:
    failures: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)
            raise

    threads = [
        threading.Thread(target=run, args=(work,), name=name) for name, work in works.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 1 if failures else 0


if __name__ == "__main__":
    store, folder, process, crowd = json.loads(sys.argv[1])
    sys.exit(main(Plan(store, folder, process, Crowd(*crowd))))
