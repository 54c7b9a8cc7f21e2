"""Accepts that share commits."""

import asyncio
import threading
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from holdfast.domains.gateway.request import Submission
from holdfast.kernel.errors import Full, HoldfastError, StoreUnavailable
from holdfast.primitives.queue import QueueRequest
from holdfast.primitives.queue.records import Draft
from holdfast.surfaces.http.shared_commit import SharedCommits
from tests.harness.timeouts import PATIENCE_S


def submission(name: str) -> Submission:
    return Submission(Draft(kind="k", payload={"name": name}))


class Commits:
    """What was committed together. Each commit waits until it may end."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.may_end = threading.Semaphore(0)
        self.error: Exception | None = None
        self.shared = SharedCommits(self.accept)

    def accept(
        self, submissions: Sequence[Submission]
    ) -> tuple[list[QueueRequest | HoldfastError], int]:
        names = [one.draft.payload["name"] for one in submissions]
        self.batches.append(names)
        assert self.may_end.acquire(timeout=PATIENCE_S)
        if self.error is not None:
            raise self.error
        return [self.answer(name) for name in names], len(names)

    def answer(self, name: str) -> QueueRequest | HoldfastError:
        if name == "full":
            return Full("no more")
        return QueueRequest(
            request_id=name,
            queue="q",
            kind="k",
            payload={},
            arrival=1,
            epoch=1,
            accepted_at=datetime(2026, 1, 1, tzinfo=UTC),
        )

    def begin(self, *names: str) -> "list[asyncio.Task[str]]":
        return [asyncio.create_task(self._one(name)) for name in names]

    async def _one(self, name: str) -> str:
        try:
            stored, depth = await self.shared.accept(submission(name))
        except HoldfastError as error:
            return type(error).__name__
        return f"{stored.request_id} of {depth}"


def test_requests_that_come_during_a_commit_share_the_next() -> None:
    made = Commits()

    async def crowd() -> list[str]:
        first = made.begin("a")
        await asyncio.sleep(0)
        others = made.begin("b", "full", "c")
        await asyncio.sleep(0)
        made.may_end.release(2)
        return await asyncio.gather(*first, *others)

    assert asyncio.run(crowd()) == ["a of 1", "b of 3", "Full", "c of 3"]
    made.shared.close()
    assert made.batches == [["a"], ["b", "full", "c"]]


def test_while_requests_come_together_one_more_is_waited_for() -> None:
    """It has arrived, but takes some turns of the loop until it is here."""
    made = Commits()
    made.may_end.release(4)

    async def late(turns: int) -> str:
        for _ in range(turns):
            await asyncio.sleep(0)
        return await made.begin("late")[0]

    async def crowd() -> None:
        await asyncio.gather(*made.begin("a", "b", "c"))
        await asyncio.gather(*made.begin("d"), late(2))

    asyncio.run(crowd())
    made.shared.close()
    assert made.batches == [["a"], ["b", "c"], ["d", "late"]]


def test_a_failed_commit_is_the_error_of_each() -> None:
    made = Commits()
    made.error = StoreUnavailable("the store is away", outcome="none")
    made.may_end.release(2)

    async def crowd() -> list[str]:
        return await asyncio.gather(*made.begin("a", "b"))

    assert asyncio.run(crowd()) == ["StoreUnavailable", "StoreUnavailable"]
    made.shared.close()


def test_closing_waits_for_the_commit_under_way() -> None:
    made = Commits()

    async def leave() -> None:
        task = made.begin("a")[0]
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    made.may_end.release()
    made.shared.close()
    assert made.batches == [["a"]]
