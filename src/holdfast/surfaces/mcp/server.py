"""The server: one client, over standard input and output, until it goes or a signal comes."""

import logging
import os
import signal
import threading
from typing import IO, Any, cast

import anyio
import mcp.types as types
from anyio import CapacityLimiter, to_thread
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from holdfast import __version__
from holdfast.kernel.errors import (
    EXIT_DONE,
    Full,
    HoldfastError,
    InvalidValue,
    NotFound,
    StoreUnavailable,
)
from holdfast.kernel.limits import MCP_CALLS_MAX, MCP_CLOSE_S
from holdfast.surfaces.mcp.answers import Notice
from holdfast.surfaces.mcp.cancellation import Call
from holdfast.surfaces.mcp.claims import Hand, unknown
from holdfast.surfaces.mcp.lines import UNREADABLE, standard_input
from holdfast.surfaces.mcp.results import Complete, answered, bug, refused
from holdfast.surfaces.mcp.tool import Tool
from holdfast.surfaces.mcp.tools import TOOLS

EXIT_FAULT = 70
_log = logging.getLogger("holdfast.mcp")
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

INSTRUCTIONS = (
    "Holdfast keeps agents from stepping on each other. Before you use something that others use "
    "too (a device, a router, a "
    "file, a GPU), acquire it by name, and release it when done. Take work with claim_job and end "
    "it with report_job. Every "
    "answer has `pending`: read it first. It tells when something was taken from you, when your "
    "turn has come, and when you "
    "are asked to yield. No call waits longer than 25 s; call wait with the handle to go on, your "
    "place is kept. All you hold "
    "ends with this connection."
)


class Desk:
    """Takes calls, each in a thread of its own, so that one that waits holds up no other."""

    def __init__(self, hand: Hand, complete: Complete = str) -> None:
        self._hand = hand
        self._complete = complete
        self._limiter = CapacityLimiter(MCP_CALLS_MAX)

    async def list_tools(self, _: Any, __: Any) -> types.ListToolsResult:
        """The tools."""
        return types.ListToolsResult(tools=[_shown(tool) for tool in TOOLS.values()])

    async def call_tool(self, _: Any, asked: types.CallToolRequestParams) -> types.CallToolResult:
        """Call one. What the client takes back is withdrawn."""
        if self._limiter.available_tokens < 1:
            return refused(
                Full(
                    f"{MCP_CALLS_MAX} calls are under way, which is the most: wait for one of them"
                )
            )
        call = Call()
        try:
            return await to_thread.run_sync(
                self._called,
                asked.name,
                asked.arguments or {},
                call,
                abandon_on_cancel=True,
                limiter=self._limiter,
            )
        except BaseException:
            # Cancelled: a thread cannot be, but what it waits for can.
            call.cancel()
            raise

    def _called(self, name: str, given: dict[str, Any], call: Call) -> types.CallToolResult:
        failed = True
        try:
            if name == UNREADABLE:
                raise InvalidValue(f"the call could not be read: {given.get('why', '')}")
            tool = _tool(name)
            answer = tool.call(self._hand, tool.arguments(given), call)
            failed = False
            return answered(answer, self._pending(call))
        except StoreUnavailable as error:
            return refused(error, (unknown(error),), self._complete)
        except HoldfastError as error:
            return refused(error, self._pending(call), self._complete)
        except Exception as error:  # noqa: BLE001 - the model is told, and the server goes on
            return refused(bug(error))
        finally:
            call.settle(failed=failed)

    def _pending(self, call: Call) -> tuple[Notice, ...]:
        if call.taken_back:
            # What is told once would be told to nobody, and kept for an agent that does not know of
            # it.
            return ()
        try:
            return self._hand.notices()
        except HoldfastError as error:
            return (unknown(error),)


def serve(hand: Hand, complete: Complete = str) -> None:
    """Serve until the client closes its end, or a signal comes; then let go of everything, in
    order, and end the process. `complete` adds to the commands in a message the options that choose
    this server's store.

    The process ends here, and does not return: threads that wait for another agent's answer would
    hold it up.
    """
    status = EXIT_DONE
    try:
        anyio.run(_serve, hand, complete)
    except BaseException:  # noqa: BLE001 - the process ends here, and its log says why
        _log.exception("the server ended by a fault")
        status = EXIT_FAULT
    finally:
        _end(hand, status)


async def _serve(hand: Hand, complete: Complete) -> None:
    desk = Desk(hand, complete)
    server: Server[Any] = Server(
        "holdfast",
        version=__version__,
        title="Holdfast",
        instructions=INSTRUCTIONS,
        on_list_tools=desk.list_tools,
        on_call_tool=desk.call_tool,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_heed_signals, hand)
        async with stdio_server(stdin=anyio.wrap_file(cast("IO[str]", standard_input()))) as (
            read,
            write,
        ):
            await server.run(read, write, server.create_initialization_options())
        tasks.cancel_scope.cancel()


async def _heed_signals(hand: Hand) -> None:
    with anyio.open_signal_receiver(*_SIGNALS) as signals:
        async for _ in signals:
            # Not by cancelling: the thread that reads would not notice before the client writes.
            await to_thread.run_sync(_end, hand, EXIT_DONE)


def _end(hand: Hand, status: int) -> None:
    """Let go of everything and end. A store that does not answer is not waited for: the end of the
    process does it too.
    """

    def let_go() -> None:
        hand.close()
        hand.hf.close()

    letting_go = threading.Thread(target=let_go, name="holdfast-end", daemon=True)
    letting_go.start()
    letting_go.join(MCP_CLOSE_S)
    os._exit(status)


def _tool(name: str) -> Tool:
    if name not in TOOLS:
        raise NotFound(
            f"there is no tool {name[:80]!a}: there are {', '.join(TOOLS)}", tool=name[:80]
        )
    return TOOLS[name]


def _shown(tool: Tool) -> types.Tool:
    hints = types.ToolAnnotations(
        read_only_hint=tool.only_looks,
        destructive_hint=False,
        idempotent_hint=tool.again_is_harmless,
        open_world_hint=False,
    )
    return types.Tool(
        name=tool.name,
        description=tool.words,
        input_schema=tool.takes_schema,
        output_schema=tool.gives_schema,
        annotations=hints,
    )
