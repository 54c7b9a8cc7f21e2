"""Waits that are ended from outside, by a descriptor: they end at once, hold nothing and leave
nothing queued.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.kernel.errors import EAgain, LockTimeout
from holdfast.runtime.connection import Holdfast, connect
from tests.harness.stores import store_url
from tests.harness.timeouts import PATIENCE_S

LONG_S = 10 * PATIENCE_S


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.prove)])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    with connect(store_url(request, tmp_path)) as made:
        yield made


@pytest.fixture
def stop() -> Iterator[int]:
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("limit_s", [LONG_S, None])
@pytest.mark.parametrize("early", [True, False])
def test_a_wait_for_a_lock_is_ended(
    hf: Holdfast, stop: int, early: bool, limit_s: float | None
) -> None:
    hf.locks.acquire("router-1", by="first", ttl_s=600, process=None)
    if early:
        os.eventfd_write(stop, 1)
    began = time.monotonic()
    with pytest.raises(LockTimeout) as caught:
        hf.locks.acquire(
            "router-1",
            by="second",
            timeout_s=limit_s,
            stop_fd=stop,
            on_wait=lambda _: os.eventfd_write(stop, 1),
        )
    assert time.monotonic() - began < PATIENCE_S and caught.value.fields["outcome"] == "none"
    assert (
        f"within {LONG_S:g} s" if limit_s else "before its wait was stopped"
    ) in caught.value.message
    status = hf.locks.status("router-1")
    assert ([hold.by for hold in status.holds], status.queue) == (["first"], ())


def test_a_free_lock_is_granted_all_the_same(hf: Holdfast, stop: int) -> None:
    os.eventfd_write(stop, 1)
    assert hf.locks.acquire("router-1", by="first", ttl_s=600, process=None, stop_fd=stop).token
    assert hf.locks.wait("router-2", by="first", stop_fd=stop)


def test_a_wait_that_takes_nothing_is_ended(hf: Holdfast, stop: int) -> None:
    hf.locks.acquire("router-1", by="first", ttl_s=600, process=None)
    began = time.monotonic()
    looked = hf.locks.wait(
        "router-1",
        by="second",
        timeout_s=LONG_S,
        stop_fd=stop,
        on_wait=lambda _: os.eventfd_write(stop, 1),
    )
    assert not looked and time.monotonic() - began < PATIENCE_S
    assert hf.locks.status("router-1").queue == ()


def test_a_wait_for_the_end_of_a_swap_is_ended(hf: Holdfast, stop: int) -> None:
    began = time.monotonic()
    with hf.workflows.swap("llama"):
        with pytest.raises(EAgain):
            hf.workflows.register(
                "flow",
                "qwen",
                wait_s=LONG_S,
                stop_fd=stop,
                on_wait=lambda _: os.eventfd_write(stop, 1),
            )
        assert time.monotonic() - began < PATIENCE_S
        assert hf.workflows.list_workflows() == []


def test_the_last_entries_of_a_subject_since_an_instant(hf: Holdfast) -> None:
    for n in range(3):
        job = hf.jobs.register_job(f"{n}", agent="a", agent_session="s", job_id=f"job-{n}")
        hf.jobs.cancel(job.job_id)
    entries, cursor = hf.log.chosen(subject="job-1")
    assert [entry.kind for entry in entries] == ["job.registered", "job.status_changed"]
    assert hf.log.chosen(subject="job-1", limit=1)[0] == entries[1:]
    assert list(hf.log.since(cursor)) == []
    whole, _ = hf.log.chosen()
    assert len(whole) == 6 and hf.log.chosen(limit=2)[0] == whole[-2:]
    assert hf.log.chosen(begin=whole[-1].at)[0][-1] == whole[-1]
    assert hf.log.chosen(begin=whole[-1].at.replace(year=9000))[0] == []
