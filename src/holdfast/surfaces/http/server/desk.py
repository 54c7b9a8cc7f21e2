"""Where operations are carried out: in bounded threads, with waits that end when nobody waits for
them any more.

Quick ones share a few threads. Those that may wait, for a lock, a job or another program, have
threads of their own, so that they hold up no other; when all of those wait, the next gets what is
to be had at once, or is refused. A client that hangs up ends its wait, and what it was given in the
same instant is taken back.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from litestar.types import Receive

from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import EAgain, Full, LockTimeout, Unavailable
from holdfast.kernel.limits import SERVER_THREADS, SERVER_WAITS_MAX
from holdfast.kernel.store import Damage
from holdfast.kernel.text import counted
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.answers.locks import Free
from holdfast.surfaces.http.server.operation import Operation
from holdfast.surfaces.http.server.told import Told

T = TypeVar("T")


class Turn:
    """One wait: its descriptor becomes readable when it should end. `told` is the desk's."""

    def __init__(self, told: Told) -> None:
        self.told = told
        self.stop_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.ended = False

    def end(self) -> None:
        """Let it end now."""
        if not self.ended:
            self.ended = True
            os.eventfd_write(self.stop_fd, 1)


class Desk:
    """Carries out operations on one connection. To be used on one loop, and closed there."""

    def __init__(self, hf: Holdfast, *, waits_max: int = SERVER_WAITS_MAX) -> None:
        self.hf = hf
        self._quick = ThreadPoolExecutor(SERVER_THREADS, thread_name_prefix="holdfast-quick")
        self._slow = ThreadPoolExecutor(waits_max, thread_name_prefix="holdfast-wait")
        self._waits_max = waits_max
        self._turns: set[Turn] = set()
        self._told = Told()
        self._closing = False

    async def carry_out(
        self, operation: Operation, asked: Plain, damaged: Damage, receive: Receive
    ) -> Any:
        """Carry out an operation. Raises what it raises; Full when too many wait, Unavailable when
        the server stops.
        """
        more: dict[str, Any] = {"damaged": damaged} if "damaged" in operation.more else {}
        if "turn" not in operation.more and not operation.outside:
            return await self._run(self._quick, lambda: operation.run(self.hf, asked, **more))
        return await self._attended(operation, asked, more, receive)

    def end_waits(self) -> None:
        """Let all waits end, now and from now on."""
        self._closing = True
        for turn in list(self._turns):
            turn.end()

    def close(self) -> None:
        """Wait for what is being done."""
        self._quick.shutdown()
        self._slow.shutdown()

    async def _attended(
        self, operation: Operation, asked: Plain, more: dict[str, Any], receive: Receive
    ) -> Any:
        """Carry out one that may wait, as long as somebody waits for its answer."""
        if self._closing:
            raise _stopping()
        if len(self._turns) >= self._waits_max:
            return await self._at_once(operation, asked, more)
        turn = Turn(self._told)
        self._turns.add(turn)
        gone = asyncio.create_task(_hung_up(receive, turn))
        if "turn" in operation.more:
            more["turn"] = turn
        try:
            # Shielded: what is under way in a thread goes on, and its turn must stay open for as
            # long.
            answer = await asyncio.shield(
                self._kept(turn, self._slow, lambda: operation.run(self.hf, asked, **more))
            )
        except LockTimeout:
            if self._closing:
                raise _stopping() from None
            raise
        finally:
            gone.cancel()
        if gone.done() and not gone.cancelled() and operation.undo is not None:
            undo = operation.undo
            await self._run(self._quick, lambda: undo(self.hf, answer, turn))
        return answer

    async def _at_once(self, operation: Operation, asked: Plain, more: dict[str, Any]) -> Any:
        """Carry out one that may wait, where nobody else can: what is to be had at once is had.
        Raises Full otherwise.
        """
        waiting = counted(self._waits_max, "request waits", "requests wait")
        full = Full(
            f"{waiting} on this server already: ask again in a moment, or without waiting",
            limit=self._waits_max,
        )
        if "turn" not in operation.more:
            raise full
        turn = Turn(self._told)
        turn.end()
        try:
            work = self._kept(
                turn, self._quick, lambda: operation.run(self.hf, asked, turn=turn, **more)
            )
            answer = await asyncio.shield(work)
        except (LockTimeout, EAgain):
            raise full from None
        if answer is None or (isinstance(answer, Free) and not answer.free):
            # It would have had to wait.
            raise full
        return answer

    async def _kept(self, turn: Turn, threads: ThreadPoolExecutor, work: Callable[[], Any]) -> Any:
        try:
            return await self._run(threads, work)
        finally:
            self._turns.discard(turn)
            os.close(turn.stop_fd)
            turn.ended = True

    async def _run(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(threads, work)


async def _hung_up(receive: Receive, turn: Turn) -> None:
    """Until the client hangs up; then the wait is over."""
    while (await receive())["type"] != "http.disconnect":
        continue
    turn.end()


def _stopping() -> Unavailable:
    return Unavailable(
        "the server is stopping, and nothing was taken: ask the next one", outcome="none"
    )
