"""Runs operations in bounded threads, with waits that end when their client is gone.

Quick operations share a few threads. Those that may wait, for a lock, a job or another program,
have threads of their own, so that they delay no others. When all of those wait, the next operation
gets what is available at once, or is refused. A client that disconnects ends its wait, and what it
was granted in the same instant is given back.
"""

import asyncio
import contextlib
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from litestar.types import Receive

from holdfast.kernel.errors import EAgain, Full, HoldfastError, LockTimeout, Unavailable
from holdfast.kernel.limits import SERVER_DELIVERED_MAX, SERVER_THREADS, SERVER_WAITS_MAX
from holdfast.kernel.store import Damage
from holdfast.kernel.text import counted
from holdfast.operations.operation import Operation, Request, Stop, Wait
from holdfast.runtime.connection import Holdfast


class IssuedGrants:
    """Which grants were issued to a client, and which were withdrawn because it had gone: never
    both.

    A client that disconnects and asks again at once, as the same job, re-enters the grant that its
    first request has just been given. If that grant were released then, the client would work under
    a lock that is free. Remembers the last of each by token: they are milliseconds apart.
    """

    def __init__(self) -> None:
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
        while len(tokens) > SERVER_DELIVERED_MAX:
            del tokens[next(iter(tokens))]


class ClientWait(Wait):
    """The wait of one request. It ends when the client disconnects, or the server stops."""

    def __init__(self, grants: IssuedGrants) -> None:
        self._grants = grants
        self._stop = Stop()
        super().__init__(stop_fd=self._stop.fd)
        self.end = self._stop.set
        self.close = self._stop.close

    def issue(self, tokens: Iterable[int]) -> set[int]:
        return self._grants.issue(tokens)

    def take_back(self, token: int) -> bool:
        return self._grants.withdraw(token)


class Executor:
    """Runs operations on one connection. To be used on one event loop, and closed there."""

    def __init__(self, hf: Holdfast) -> None:
        self.hf = hf
        self._quick = ThreadPoolExecutor(SERVER_THREADS, thread_name_prefix="holdfast-quick")
        self._slow = ThreadPoolExecutor(SERVER_WAITS_MAX, thread_name_prefix="holdfast-wait")
        self._waits_max = SERVER_WAITS_MAX
        self._waits: set[ClientWait] = set()
        self._grants = IssuedGrants()
        self._stopping = False

    async def run(
        self, operation: Operation, request: Request, damaged: Damage, receive: Receive
    ) -> Any:
        """Run an operation and return its result.

        Raises what it raises; Full when too many wait, Unavailable when the server stops.
        """
        loop = asyncio.get_running_loop()
        more: dict[str, Any] = {"damaged": damaged} if operation.skips_damaged else {}
        if not operation.waits and not operation.outside:
            call = partial(operation, self.hf, request, **more)
            return await loop.run_in_executor(self._quick, call)
        if self._stopping:
            raise _stopping()
        full = len(self._waits) >= self._waits_max
        if full and not operation.waits:
            raise self._full()
        wait = ClientWait(self._grants)
        if operation.waits:
            more["wait"] = wait
        if full:
            # It gets what is available at once, and must not wait.
            wait.end()
        else:
            self._waits.add(wait)
        gone = asyncio.create_task(_end_when_gone(receive, wait))
        threads = self._quick if full else self._slow
        work = loop.run_in_executor(threads, partial(operation, self.hf, request, **more))
        work.add_done_callback(lambda _: self._close(wait))
        try:
            # Shielded: the thread goes on when the request is cancelled, and closes its descriptor.
            result = await asyncio.shield(work)
        except (LockTimeout, EAgain) as error:
            if full:
                raise self._full() from None
            if self._stopping and isinstance(error, LockTimeout):
                raise _stopping() from None
            raise
        finally:
            gone.cancel()
        if full and (result is None or getattr(result, "free", True) is False):
            raise self._full()
        if gone.done() and not gone.cancelled() and operation.undo is not None:
            undo = partial(operation.undo, self.hf, result, wait)
            # It fails where another has changed the claim since, or its time or process ends it.
            with contextlib.suppress(HoldfastError):
                await loop.run_in_executor(self._quick, undo)
        return result

    def end_waits(self) -> None:
        """End all waits, now and from now on."""
        self._stopping = True
        for wait in self._waits:
            wait.end()

    def close(self) -> None:
        """Wait for the operations that run."""
        self._quick.shutdown()
        self._slow.shutdown()

    def _full(self) -> Full:
        waiting = counted(self._waits_max, "request waits", "requests wait")
        return Full(
            f"{waiting} on this server already: ask again in a moment, or without waiting",
            limit=self._waits_max,
        )

    def _close(self, wait: ClientWait) -> None:
        self._waits.discard(wait)
        wait.close()


async def _end_when_gone(receive: Receive, wait: ClientWait) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
    wait.end()


def _stopping() -> Unavailable:
    return Unavailable(
        "the server is stopping, and nothing was taken: ask the next one", outcome="none"
    )
