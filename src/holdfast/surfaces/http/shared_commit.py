"""Concurrent accepts in one commit.

A lone request is committed at once. Requests that come during a commit share the next one: each
waits for at most two syncs. While requests come together, a commit is begun a moment later, so that
those that have arrived already share it.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue

from holdfast.domains.gateway.request import Submission
from holdfast.kernel.errors import HoldfastError
from holdfast.kernel.limits import ACCEPTS_PER_COMMIT_MAX
from holdfast.primitives.queue import QueueRequest

_IDLE_TURNS = 4
"""A request takes about as many turns of the loop from its first byte to here."""

Stored = tuple[QueueRequest, int]
"""An accepted request, and how many had not ended by then."""
Batch = list[tuple[Submission, "asyncio.Future[Stored]"]]


class SharedCommits:
    """Accepts on one loop. `accept` stores several, and says how many have not ended by then."""

    def __init__(
        self,
        accept: Callable[
            [Sequence[Submission]], tuple[Sequence[QueueRequest | HoldfastError], int]
        ],
    ) -> None:
        self._accept = accept
        self._waiting: Batch = []
        self._busy = self._crowded = False
        # Not an executor, which wakes the loop by a future of its own: for a lone request that
        # costs as much as parsing it.
        self._batches: SimpleQueue[tuple[asyncio.AbstractEventLoop, Batch] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def accept(self, submission: Submission) -> Stored:
        """Store a request together with all others that wait.

        Raises the error with which the gateway refuses it.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Stored] = loop.create_future()
        self._waiting.append((submission, future))
        if not self._busy:
            self._busy = True
            self._begin(loop)
        return await future

    def close(self) -> None:
        """Wait for the commit under way."""
        self._batches.put(None)
        if self._thread is not None:
            self._thread.join()

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._crowded:
            loop.call_soon(self._gather, loop, 0, len(self._waiting))
        else:
            self._commit(loop)

    def _gather(self, loop: asyncio.AbstractEventLoop, idle_turns: int, before: int) -> None:
        """Give the loop some microseconds for requests that have arrived already: a commit costs as
        much as parsing several requests, and they may share it.
        """
        waiting = len(self._waiting)
        idle_turns = idle_turns + 1 if waiting == before else 0
        if idle_turns < _IDLE_TURNS and waiting < ACCEPTS_PER_COMMIT_MAX:
            loop.call_soon(self._gather, loop, idle_turns, waiting)
        else:
            self._commit(loop)

    def _commit(self, loop: asyncio.AbstractEventLoop) -> None:
        batch = self._waiting[:ACCEPTS_PER_COMMIT_MAX]
        del self._waiting[:ACCEPTS_PER_COMMIT_MAX]
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="holdfast-accepts", daemon=True)
            self._thread.start()
        self._batches.put((loop, batch))

    def _run(self) -> None:
        while (begun := self._batches.get()) is not None:
            loop, batch = begun
            answers: Sequence[QueueRequest | Exception]
            try:
                answers, depth = self._accept([submission for submission, _ in batch])
            except Exception as error:  # noqa: BLE001 - raised to each that asked
                answers, depth = [error for _ in batch], 0
            # A closed loop has no clients any more.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._answer, loop, batch, answers, depth)

    def _answer(
        self,
        loop: asyncio.AbstractEventLoop,
        batch: Batch,
        answers: Sequence[QueueRequest | Exception],
        depth: int,
    ) -> None:
        for (_, future), answer in zip(batch, answers, strict=True):
            # A future that is done is of a client that disconnected: its request stays stored.
            if not future.done():
                if isinstance(answer, QueueRequest):
                    future.set_result((answer, depth))
                else:
                    future.set_exception(answer)
        self._crowded = len(batch) > 1 or bool(self._waiting)
        if self._waiting:
            self._begin(loop)
        else:
            self._busy = False
