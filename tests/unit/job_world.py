"""Job registries on a store and a clock of the test."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.domains.jobs import Job, Jobs
from holdfast.domains.jobs.event_stream import JobEvents
from holdfast.domains.jobs.events import signature
from holdfast.kernel.holder import Holder
from holdfast.kernel.limits import LABEL_CHARS_MAX
from holdfast.kernel.store import Store
from holdfast.primitives.journal import Journal
from holdfast.processes.procfs import Procfs
from holdfast.testing.clock import ManualClock
from tests.harness.machine import Machine, ProcessTable
from tests.harness.stores import STORES as LOCK_STORES
from tests.harness.stores import ClockedStore, open_store

STORES = [*LOCK_STORES, "files"]
LABEL = "tmux:a"


class World:
    """A store, a machine with processes, and the registry as one of them sees it."""

    def __init__(self, store: Any, clock: ManualClock) -> None:
        self.store = ClockedStore(store, clock)
        self.clock = clock
        self.machine = Machine()
        self.journal = Journal(self.store, actor="tester")
        self.jobs = self.registry(1)
        self.events = JobEvents(self.store, self.journal, ProcessTable(self.machine, 1))

    def registry(self, pid: int, machine: Machine | None = None) -> Jobs:
        return Jobs(self.store, self.journal, (machine or self.machine).begin(pid))

    def worker(self, pid: int, machine: Machine | None = None) -> Holder:
        return (machine or self.machine).begin(pid).current("worker")

    def register(self, prompt: str = "do it", **more: Any) -> Job:
        return self.jobs.register_job(prompt, agent="claude", agent_session=LABEL, **more)

    def pick(self, holder: Holder | None = None) -> Job:
        job = self.jobs.pick_pending(LABEL, holder=holder)
        assert job is not None
        return job

    def logged(self) -> list[dict[str, Any]]:
        return [
            entry.data for entry in self.journal.tail(100)[0] if entry.kind == "job.status_changed"
        ]


WIDE = "\U00020000" * LABEL_CHARS_MAX
"""The label with most bytes."""


CHARACTERS = ["x", '"', "\\", "\0", "é", "漢", "🙂"]
"""Of one to six bytes as JSON."""


@contextmanager
def world_on(kind: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    clock = ManualClock()
    with closing(open_store(kind, folder, clock, request)) as store:
        made = World(store, clock)
        yield made
        made.machine.close()


class EventWorld:
    """A registry and the stream of its events, with the real processes of this machine."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.journal = Journal(store, actor="tester")
        self.jobs = Jobs(store, self.journal, Procfs())
        self.events = JobEvents(store, self.journal, Procfs())

    def running(self, **more: Any) -> Job:
        self.jobs.register_job("do it", agent="a", agent_session="s", **more)
        job = self.jobs.pick_pending("s")
        assert job is not None
        return job

    def forged(self, job: Job, **changes: Any) -> bytes:
        """A `completed` that the job's own worker could have made, but for the changes."""
        document: dict[str, Any] = {
            "schema_version": 1,
            "seq": job.last_seq + 1,
            "job_id": job.job_id,
            "event": "completed",
            "timestamp": "2026-01-01T00:00:00Z",
            "detail": "done",
        }
        key = changes.pop("key", job.auth_token)
        after = changes.pop("after", {})
        document.update(changes)
        if key is not None:
            document["sig"] = signature(document, key)
        return json.dumps({**document, **after}).encode()
