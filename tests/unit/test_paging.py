"""Lists read a page at a time: nothing is skipped, nothing comes twice, and no more is read than is
shown. On every store.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.domains.jobs import JobStatus
from holdfast.domains.jobs.queries import place_of
from holdfast.kernel.errors import InvalidValue, LockTimeout
from holdfast.kernel.store import Tx
from holdfast.runtime.connection import Holdfast, connect
from tests.harness.stores import store_url
from tests.harness.timeouts import PATIENCE_S

STORES = ["memory", "sqlite", "files", pytest.param("postgres", marks=pytest.mark.prove)]


@pytest.fixture(params=STORES)
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    with connect(store_url(request, tmp_path)) as made:
        yield made


def test_jobs_before_a_job_are_the_rest_of_the_list(hf: Holdfast) -> None:
    for number in range(7):
        hf.jobs.register_job(
            str(number), agent="a", agent_session=f"tmux:{number % 2}", priority=number % 3
        )
    first = hf.jobs.pick_pending("tmux:0")
    second = hf.jobs.pick_pending("tmux:1")
    assert first is not None and second is not None
    hf.jobs.update_status(second.job_id, JobStatus.COMPLETED, token=second.token)
    everything = [job.job_id for job in hf.jobs.list_jobs()]
    seen: list[str] = []
    before = None
    while page := hf.jobs.list_jobs(limit=2, before=before):
        before = place_of(page[0])
        seen = [job.job_id for job in page] + seen
    assert seen == everything
    assert hf.jobs.list_jobs(status="running", before=place_of(first)) == []


def test_jobs_that_arrive_together_are_ordered_by_their_ids(tmp_path: Path) -> None:
    from msgspec.structs import replace

    from holdfast.domains.jobs.records import JOBS

    with connect(f"sqlite:{tmp_path}/s.sqlite") as hf:
        job = hf.jobs.register_job("x", agent="a", agent_session="b")
        twins = [replace(job, job_id=f"job{number:05}", arrival=job.arrival) for number in range(5)]

        def put_twins(tx: Tx) -> None:
            for twin in twins:
                tx.put(JOBS, twin.job_id, twin)

        hf.store.transact(put_twins, scope=[JOBS])
        everything = [one.job_id for one in hf.jobs.list_jobs()]
        pages = [hf.jobs.list_jobs(limit=4)]
        pages.insert(0, hf.jobs.list_jobs(limit=4, before=place_of(pages[0][0])))
        assert [one.job_id for page in pages for one in page] == everything


def test_jobs_are_counted_by_status(hf: Holdfast) -> None:
    assert hf.jobs.counts() == dict.fromkeys(JobStatus, 0)
    for number in range(4):
        hf.jobs.register_job(str(number), agent="a", agent_session="b")
    taken = [hf.jobs.pick_pending("b") for _ in range(3)]
    assert taken[0] is not None and taken[1] is not None
    hf.jobs.update_status(taken[0].job_id, JobStatus.ERROR, token=taken[0].token)
    hf.jobs.cancel(taken[1].job_id)
    found = hf.jobs.counts()
    assert found == {
        JobStatus.PENDING: 1,
        JobStatus.RUNNING: 1,
        JobStatus.COMPLETED: 0,
        JobStatus.ERROR: 1,
        JobStatus.CANCELLED: 1,
    }


def test_agents_behind_an_agent_are_the_rest_of_the_list(hf: Holdfast, tmp_path: Path) -> None:
    for number in range(5):
        # Two of each name: names need not be unique, and the second id comes first or last by
        # chance.
        for agent_id in (f"a{number}", f"b{number}"):
            name, manifest = f"agent-{number}", str(tmp_path / "m")
            hf.agents.publish(
                name, agent_id=agent_id, backend="codex_headless", tool="t", manifest_path=manifest
            )
    everything = [agent.agent_id for agent in hf.agents.list_agents()]
    assert hf.agents.count() == len(everything) == 10
    seen: list[str] = []
    after = None
    while page := hf.agents.page(after=after, limit=3):
        seen += [agent.agent_id for agent in page]
        after = (page[-1].agent_name, page[-1].agent_id)
    assert seen == everything
    gone = hf.agents.get("a2")
    hf.agents.remove("a2", gone.generation_id)
    behind = hf.agents.page(after=(gone.agent_name, "a2"), limit=1)
    assert [agent.agent_id for agent in behind] == ["b2"], (
        "a position is a position, without its job too"
    )
    with pytest.raises(InvalidValue):
        hf.agents.page(limit=-1)


def test_locks_behind_a_name_are_the_rest_of_what_is_held(hf: Holdfast) -> None:
    for name in ("a", "b/1", "c", "d"):
        hf.locks.acquire(name, by=f"job-{name}")
    seen: list[str] = []
    after = ""
    while page := hf.locks.page(after=after, limit=3):
        seen += [line.name for line in page]
        after = page[-1].name
    assert seen == ["a", "b/1", "c", "d"]
    assert [hold.by for hold in hf.locks.page(after="a", limit=1)[0].holds] == ["job-b/1"]
    assert (hf.locks.counts().resources, hf.locks.counts().waiting) == (4, 0)
    with pytest.raises(InvalidValue):
        hf.locks.page(limit=-1)


def test_waited_for_locks_are_drawn_and_others_are_not(hf: Holdfast) -> None:
    hf.locks.acquire("a", by="one")
    hf.locks.acquire("b", by="two")
    seen = []

    def look(_: object) -> None:
        seen.append(
            (
                hf.locks.contention(),
                hf.locks.page(limit=9),
                hf.locks.counts(),
                hf.locks.contention(limit=0),
            )
        )
        os.eventfd_write(enough, 1)

    enough = os.eventfd(0, os.EFD_NONBLOCK)
    with pytest.raises(LockTimeout):
        hf.locks.acquire("a", by="three", timeout_s=PATIENCE_S, stop_fd=enough, on_wait=look)
    os.close(enough)
    graph, lines, counts, none = seen[0]
    assert [(edge.job, edge.resource, edge.position) for edge in graph.edges] == [
        ("one", "a", None),
        ("three", "a", 1),
    ]
    assert graph.deadlocks == ()
    assert [(line.name, line.waiting, line.waited_since is None) for line in lines] == [
        ("a", 1, False),
        ("b", 0, True),
    ]
    assert (counts.resources, counts.waiting) == (2, 1)
    assert none.edges == ()
