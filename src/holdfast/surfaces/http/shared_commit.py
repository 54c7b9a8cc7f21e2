"""Concurrent accepts in one commit.

A lone request is committed at once. Requests that have arrived with it share its commit, and those
that come during a commit share the next one: each waits for at most two syncs.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from holdfast.domains.gateway.request import Submission
from holdfast.kernel.errors import HoldfastError
from holdfast.kernel.limits import ACCEPTS_PER_COMMIT_MAX
from holdfast.primitives.queue import QueueRequest

_IDLE_TURNS = 4
"""A request takes about as many turns of the loop from its first byte to here."""

Stored = tuple[QueueRequest, int]
"""An accepted request, and how many had not ended by then."""


class SharedCommits:
    """Accepts on one loop. `accept` stores several, and `depth` says how many have not ended."""

    def __init__(
        self,
        accept: Callable[[Sequence[Submission]], list[QueueRequest | HoldfastError]],
        depth: Callable[[], int],
    ) -> None:
        self._accept = accept
        self._depth = depth
        self._waiting: list[tuple[Submission, asyncio.Future[Stored]]] = []
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-accepts")

    async def accept(self, submission: Submission) -> Stored:
        """Store a request together with all others that wait.

        Raises the error with which the gateway refuses it.
        """
        future: asyncio.Future[Stored] = asyncio.get_running_loop().create_future()
        self._waiting.append((submission, future))
        if self._task is None:
            self._task = asyncio.create_task(self._commit())
        return await future

    def close(self) -> None:
        """Wait for the commit under way."""
        self._thread.shutdown()

    async def _commit(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            await self._gather()
            batch = self._waiting[:ACCEPTS_PER_COMMIT_MAX]
            del self._waiting[:ACCEPTS_PER_COMMIT_MAX]
            answers: Sequence[QueueRequest | Exception]
            try:
                answers, depth = await loop.run_in_executor(
                    self._thread, self._stored, [submission for submission, _ in batch]
                )
            except Exception as error:  # noqa: BLE001 - raised to each that asked
                answers, depth = [error for _ in batch], 0
            for (_, future), answer in zip(batch, answers, strict=True):
                # A future that is done is of a client that disconnected: its request stays stored.
                if not future.done():
                    if isinstance(answer, QueueRequest):
                        future.set_result((answer, depth))
                    else:
                        future.set_exception(answer)
        self._task = None

    async def _gather(self) -> None:
        """Give the loop some microseconds for requests that have arrived already: a commit costs as
        much as parsing several requests, and they may share it.
        """
        idle_turns, waiting = 0, len(self._waiting)
        while idle_turns < _IDLE_TURNS and waiting < ACCEPTS_PER_COMMIT_MAX:
            await asyncio.sleep(0)
            idle_turns = idle_turns + 1 if len(self._waiting) == waiting else 0
            waiting = len(self._waiting)

    def _stored(
        self, submissions: Sequence[Submission]
    ) -> tuple[Sequence[QueueRequest | HoldfastError], int]:
        return self._accept(submissions), self._depth()
