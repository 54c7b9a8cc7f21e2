"""The server: one client, over standard input and output, until it goes or a signal comes."""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import IO, Any, cast

import anyio
import mcp.types as types
from anyio import CapacityLimiter, to_thread
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from holdfast import __version__
from holdfast.kernel.codec import encodable, to_json, to_plain
from holdfast.kernel.errors import (
    EXIT_BUG,
    EXIT_DONE,
    Corrupt,
    DeadlockDetected,
    EAgain,
    Full,
    HoldfastError,
    InvalidValue,
    Lost,
    Misuse,
    NotFound,
    NotLoaded,
    Refused,
    StoreUnavailable,
    Unavailable,
)
from holdfast.kernel.limits import MCP_CALLS_MAX, MCP_CLOSE_S
from holdfast.operations.operation import json_fields
from holdfast.surfaces.mcp.call import Call
from holdfast.surfaces.mcp.claims import Notice, Session, unknown
from holdfast.surfaces.mcp.lines import UNREADABLE, standard_input
from holdfast.surfaces.mcp.offer import bug
from holdfast.surfaces.mcp.tool import Tool, ToolResult
from holdfast.surfaces.mcp.tools import tools_by

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

INSTRUCTIONS = (
    "Holdfast keeps agents from stepping on each other. Before you use something that others use "
    "too (a device, a router, a file, a GPU), acquire it by name, and release it when done. Claim "
    "work with claim_job and end it with report_job. Every answer has `next`, and `pending`, which "
    "you read first: it says when something was taken from you, when it is your turn, and when you "
    "are asked to yield. An answer's `handle` is accepted by wait, status and release, and "
    "wherever an id is asked for. No call waits longer than 25 s; call wait with the handle to go "
    "on, your place is kept. All you hold ends with this connection."
)


Complete = Callable[[str], str]
"""Completes the commands in a message: an agent that has a shell runs them there, where no option
chooses the store.
"""

_NEXT: Sequence[tuple[type[HoldfastError], str]] = (
    (DeadlockDetected, "release what you hold, then acquire everything you need in one call"),
    (Lost, "stop that work now: it is not yours any more. Begin anew if it is still needed"),
    (Misuse, "correct the arguments and call again"),
    (
        NotFound,
        "check the name: whoami lists your handles, find_agents the agents, status shows locks "
        "and jobs",
    ),
    (Full, "release what you do not need, or wait for your other calls, then call again"),
    (EAgain, "wait a little, then call again"),
    (
        NotLoaded,
        "load it with yield_or_swap and action swap, or call again with wait_s to wait until "
        "somebody has",
    ),
    (Refused, "check with status what stands in the way"),
    (Unavailable, "call again in a moment; what you hold is kept as long as this connection lives"),
    (Corrupt, "do not work around it: ask a person"),
    (HoldfastError, "ask a person"),
)
_OWN_WORK = "yield your own work with yield_or_swap and action yield, then ask again"
_NO_GATEWAY = (
    "check with find_agents who is there and has a gateway; if this one should, call again later "
    "or ask a person"
)


class Calls:
    """Runs calls, each in a thread of its own: one that waits delays no other."""

    def __init__(self, session: Session, complete: Complete = str) -> None:
        self._session = session
        self._complete = complete
        self.tools = tools_by(session.hf.settings)
        self._limiter = CapacityLimiter(MCP_CALLS_MAX)

    async def run(self, _: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        """Run one call. What a cancelled call made is withdrawn."""
        if self._limiter.available_tokens < 1:
            return _refused(
                Full(f"{MCP_CALLS_MAX} calls are running, which is the most: wait for one of them")
            )
        call = Call()
        try:
            return await to_thread.run_sync(
                self.run_here,
                params.name,
                params.arguments or {},
                call,
                abandon_on_cancel=True,
                limiter=self._limiter,
            )
        except BaseException:
            # Cancelled: a thread cannot be, but what it waits for can.
            call.cancel()
            raise

    def run_here(self, name: str, given: dict[str, Any], call: Call) -> types.CallToolResult:
        """Run one call in this thread."""
        failed = True
        try:
            if name == UNREADABLE:
                raise InvalidValue(f"the call could not be read: {given.get('why', '')}")
            if name not in self.tools:
                known = ", ".join(self.tools)
                raise NotFound(f"there is no tool {name[:80]!a}: there are {known}", tool=name[:80])
            answer = self.tools[name](self._session, call, given)
            failed = False
            return _result({**answer, "pending": self._pending(call)})
        except StoreUnavailable as error:
            return _refused(error, (unknown(error),), self._complete)
        except HoldfastError as error:
            return _refused(error, self._pending(call), self._complete)
        except Exception as error:  # noqa: BLE001 - the model gets it, and the server goes on
            return _refused(bug(error))
        finally:
            call.settle(failed=failed)

    def _pending(self, call: Call) -> tuple[Notice, ...]:
        if call.cancelled:
            # A notice that comes once would reach nobody, and its claim be kept for an agent that
            # does not know of it.
            return ()
        try:
            return self._session.notices()
        except HoldfastError as error:
            return (unknown(error),)


def _refused(
    error: HoldfastError, pending: Sequence[Notice] = (), complete: Complete = str
) -> types.CallToolResult:
    problem = {
        "code": error.code,
        "message": encodable(complete(error.message)),
        "fields": json_fields(error),
        "next": _next(error),
    }
    return _result({"error": problem, "pending": pending}, is_error=True)


def _result(content: ToolResult, *, is_error: bool = False) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(text=to_json(content).decode())],
        structured_content=to_plain(content),
        is_error=is_error,
    )


def _next(error: HoldfastError) -> str:
    if isinstance(error, Unavailable) and "agent" in error.fields:
        # A gateway that nobody serves does not return in a moment either.
        return _NO_GATEWAY
    if isinstance(error, DeadlockDetected) and "recipe" in error.fields:
        return _OWN_WORK
    return next(words for kind, words in _NEXT if isinstance(error, kind))


def serve(session: Session, complete: Complete = str) -> None:
    """Serve until the client closes its end, or a signal comes; then release everything, in order,
    and end the process. `complete` adds to the commands in a message the options that choose this
    server's store.

    The process ends here: threads that wait for another agent's answer would delay its end.
    """
    status = EXIT_DONE
    try:
        anyio.run(_serve, session, complete)
    except BaseException:
        logging.getLogger("holdfast.mcp").exception("the server ended by a fault")
        status = EXIT_BUG
    finally:
        _end(session, status)


async def _serve(session: Session, complete: Complete) -> None:
    calls = Calls(session, complete)
    server: Server[Any] = Server(
        "holdfast",
        version=__version__,
        title="Holdfast",
        instructions=INSTRUCTIONS,
        on_list_tools=partial(_list_tools, calls.tools.values()),
        on_call_tool=calls.run,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_end_by_signal, session)
        async with stdio_server(stdin=anyio.wrap_file(cast("IO[str]", standard_input()))) as (
            read,
            write,
        ):
            await server.run(read, write, server.create_initialization_options())
        tasks.cancel_scope.cancel()


async def _list_tools(tools: Iterable[Tool], _: Any, __: Any) -> types.ListToolsResult:
    shown = [
        types.Tool(
            name=tool.name,
            description=tool.text,
            input_schema=tool.schema(),
            annotations=types.ToolAnnotations(
                read_only_hint=tool.reads,
                destructive_hint=False,
                idempotent_hint=tool.repeatable,
                open_world_hint=False,
            ),
        )
        for tool in tools
    ]
    return types.ListToolsResult(tools=shown)


async def _end_by_signal(session: Session) -> None:
    with anyio.open_signal_receiver(*_SIGNALS) as signals:
        async for _ in signals:
            # Not by cancelling: the thread that reads would not notice before the client writes.
            await to_thread.run_sync(_end, session, EXIT_DONE)


def _end(session: Session, status: int) -> None:
    """Release everything and end, at once if the store does not answer: the end does it too."""

    def release() -> None:
        session.close()
        session.hf.close()

    releasing = threading.Thread(target=release, name="holdfast-end", daemon=True)
    releasing.start()
    releasing.join(MCP_CLOSE_S)
    os._exit(status)
