"""Concurrent accepts in one commit.

A lone request is committed at once. Those that have arrived with it share its commit, and those
that come while one is under way share the next: each waits for at most two syncs.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from holdfast.domains.gateway.gateway import Asked
from holdfast.kernel.errors import HoldfastError
from holdfast.kernel.limits import ACCEPTS_PER_COMMIT_MAX
from holdfast.primitives.queue import Request

_IDLE_TURNS = 4
"""A request takes about so many turns of the loop from its first byte to here."""

Answers = list[Request | HoldfastError]


class Stored(NamedTuple):
    """An accepted request, and how many had not ended by then."""

    request: Request
    depth: int


class SharedCommits:
    """Accepts on one loop. `accept` stores several, and `depth` says how many have not ended."""

    def __init__(
        self, accept: Callable[[Sequence[Asked]], Answers], depth: Callable[[], int]
    ) -> None:
        self._accept = accept
        self._depth = depth
        self._waiting: list[tuple[Asked, asyncio.Future[Stored]]] = []
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-accepts")

    async def accept(self, asked: Asked) -> Stored:
        """Store a request with whatever else waits to be stored.

        Raises what the gateway refuses it with.
        """
        future: asyncio.Future[Stored] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, future))
        if self._task is None:
            self._task = asyncio.create_task(self._commit())
        return await future

    def close(self) -> None:
        """Wait for what is being stored."""
        self._thread.shutdown()

    async def _commit(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            await self._gather()
            batch, self._waiting = (
                self._waiting[:ACCEPTS_PER_COMMIT_MAX],
                self._waiting[ACCEPTS_PER_COMMIT_MAX:],
            )
            try:
                answers, depth = await loop.run_in_executor(
                    self._thread, self._stored, [asked for asked, _ in batch]
                )
            except Exception as error:  # noqa: BLE001 - raised to each that asked
                answers, depth = [error for _ in batch], 0
            for (_, future), answer in zip(batch, answers, strict=True):
                _tell(future, answer, depth)
        self._task = None

    async def _gather(self) -> None:
        """Let the loop deal with what has arrived already, some microseconds' work: a commit costs
        as much as parsing several requests, and those on their way may share it.
        """
        idle_turns, waiting = 0, len(self._waiting)
        while idle_turns < _IDLE_TURNS and waiting < ACCEPTS_PER_COMMIT_MAX:
            await asyncio.sleep(0)
            idle_turns = idle_turns + 1 if len(self._waiting) == waiting else 0
            waiting = len(self._waiting)

    def _stored(self, asked: Sequence[Asked]) -> tuple[Sequence[Request | Exception], int]:
        return self._accept(asked), self._depth()


def _tell(future: "asyncio.Future[Stored]", answer: Request | Exception, depth: int) -> None:
    if future.done():
        # Whoever asked has hung up. What was stored stays stored.
        return
    if isinstance(answer, Request):
        future.set_result(Stored(answer, depth))
    else:
        future.set_exception(answer)
