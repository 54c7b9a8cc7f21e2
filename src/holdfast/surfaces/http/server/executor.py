"""Runs operations in bounded threads, with waits that end when their client is gone.

Quick operations share a few threads. Those that may wait, for a lock, a job or another program,
have threads of their own, so that they delay no other. When all of those wait, the next operation
gets what is available at once, or is refused. A client that disconnects ends its wait, and what it
was granted in the same instant is taken back.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from litestar.types import Receive

from holdfast.kernel.errors import EAgain, Full, HoldfastError, LockTimeout, Unavailable
from holdfast.kernel.limits import SERVER_THREADS, SERVER_TOLD_MAX, SERVER_WAITS_MAX
from holdfast.kernel.store import Damage
from holdfast.kernel.text import counted
from holdfast.operations.operation import Operation, Request, Wait
from holdfast.runtime.connection import Holdfast

T = TypeVar("T")


class IssuedGrants:
    """Which grants were issued to a client, and which were withdrawn because it had gone: never
    both.

    A client that disconnects and asks again at once, as the same job, re-enters the grant that its
    first request has just been given. If that grant were released then, the client would work under
    a lock that is free. Remembers the last of each by token: they are milliseconds apart.
    """

    def __init__(self, *, most: int = SERVER_TOLD_MAX) -> None:
        self._most = most
        self._mutex = threading.Lock()
        self._issued: dict[int, None] = {}
        self._withdrawn: dict[int, None] = {}

    def issue(self, tokens: Iterable[int]) -> set[int]:
        """Issue grants that the client has re-entered. Returns those that are being withdrawn.

        If there are any, none of the grants may be issued.
        """
        wanted = set(tokens)
        with self._mutex:
            withdrawn = wanted & self._withdrawn.keys()
            if not withdrawn:
                self._remember(self._issued, wanted)
            return withdrawn

    def withdraw(self, token: int) -> bool:
        """Withdraw a grant, which will never be issued then; False when it was issued."""
        with self._mutex:
            if token in self._issued:
                return False
            self._remember(self._withdrawn, (token,))
            return True

    def _remember(self, tokens: dict[int, None], more: Iterable[int]) -> None:
        tokens |= dict.fromkeys(more)
        while len(tokens) > self._most:
            del tokens[next(iter(tokens))]


class ClientWait(Wait):
    """The wait of one request. It ends when the client disconnects, or the server stops."""

    def __init__(self, grants: IssuedGrants) -> None:
        self._grants = grants
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ended = False
        super().__init__(stop_fd=self._fd)

    def end(self) -> None:
        """End it now."""
        if not self._ended:
            self._ended = True
            os.eventfd_write(self._fd, 1)

    def close(self) -> None:
        """The operation has returned."""
        os.close(self._fd)
        self._ended = True

    def issue(self, tokens: Iterable[int]) -> set[int]:
        return self._grants.issue(tokens)

    def take_back(self, token: int) -> bool:
        return self._grants.withdraw(token)


class Executor:
    """Runs operations on one connection. To be used on one event loop, and closed there."""

    def __init__(self, hf: Holdfast, *, waits_max: int = SERVER_WAITS_MAX) -> None:
        self.hf = hf
        self._quick = ThreadPoolExecutor(SERVER_THREADS, thread_name_prefix="holdfast-quick")
        self._slow = ThreadPoolExecutor(waits_max, thread_name_prefix="holdfast-wait")
        self._waits_max = waits_max
        self._waits: set[ClientWait] = set()
        self._grants = IssuedGrants()
        self._stopping = False

    async def run(
        self, operation: Operation, request: Request, damaged: Damage, receive: Receive
    ) -> Any:
        """Run an operation and return its result.

        Raises what it raises; Full when too many wait, Unavailable when the server stops.
        """
        more: dict[str, Any] = {"damaged": damaged} if operation.skips_damaged else {}
        if not operation.waits and not operation.outside:
            return await self._in(self._quick, lambda: operation(self.hf, request, **more))
        if self._stopping:
            raise _stopping()
        if len(self._waits) >= self._waits_max:
            return await self._run_at_once(operation, request, more)
        wait = ClientWait(self._grants)
        self._waits.add(wait)
        gone = asyncio.create_task(_end_when_gone(receive, wait))
        if operation.waits:
            more["wait"] = wait
        try:
            # Shielded: the thread goes on, and its descriptor must stay open for as long.
            work = self._waited(wait, self._slow, lambda: operation(self.hf, request, **more))
            result = await asyncio.shield(work)
        except LockTimeout:
            if self._stopping:
                raise _stopping() from None
            raise
        finally:
            gone.cancel()
        if gone.done() and not gone.cancelled() and operation.undo is not None:
            undo = operation.undo
            with contextlib.suppress(HoldfastError):
                # Another has changed it since, or its time or process ends it all the same.
                await self._in(self._quick, lambda: undo(self.hf, result, wait))
        return result

    def end_waits(self) -> None:
        """End all waits, now and from now on."""
        self._stopping = True
        for wait in list(self._waits):
            wait.end()

    def close(self) -> None:
        """Wait for the operations that run."""
        self._quick.shutdown()
        self._slow.shutdown()

    async def _run_at_once(
        self, operation: Operation, request: Request, more: dict[str, Any]
    ) -> Any:
        """Run one that may wait without waiting. Raises Full if it would have had to wait."""
        waiting = counted(self._waits_max, "request waits", "requests wait")
        full = Full(
            f"{waiting} on this server already: ask again in a moment, or without waiting",
            limit=self._waits_max,
        )
        if not operation.waits:
            raise full
        wait = ClientWait(self._grants)
        wait.end()
        try:
            work = self._waited(
                wait, self._quick, lambda: operation(self.hf, request, wait=wait, **more)
            )
            result = await asyncio.shield(work)
        except (LockTimeout, EAgain):
            raise full from None
        if result is None or getattr(result, "free", True) is False:
            raise full
        return result

    async def _waited(
        self, wait: ClientWait, threads: ThreadPoolExecutor, work: Callable[[], Any]
    ) -> Any:
        try:
            return await self._in(threads, work)
        finally:
            self._waits.discard(wait)
            wait.close()

    async def _in(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(threads, work)


async def _end_when_gone(receive: Receive, wait: ClientWait) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
    wait.end()


def _stopping() -> Unavailable:
    return Unavailable(
        "the server is stopping, and nothing was taken: ask the next one", outcome="none"
    )
