"""An agent: the official client, over stdio, with a real `holdfast mcp` at its other end."""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client import stdio
from mcp.types import CallToolResult, Tool

from holdfast.kernel.limits import MCP_WAIT_MAX_S
from tests.harness.timeouts import PATIENCE_S, until
from tests.surfaces.command import ENTRY

Document = dict[str, Any]


class ToolError(Exception):
    """What a tool failed with."""

    def __init__(self, error: Document, pending: list[Document]) -> None:
        super().__init__(error["message"])
        self.code: str = error["code"]
        self.message: str = error["message"]
        self.next: str = error["next"]
        self.pending = pending


class Agent:
    """One that calls tools."""

    def __init__(self, portal: BlockingPortal, client: Client) -> None:
        self._portal = portal
        self._client = client

    def tools(self) -> list[Tool]:
        return self._portal.call(self._client.list_tools).tools

    def call(self, tool: str, /, **arguments: Any) -> Document:
        """What the tool answers. Raises ToolError."""
        return self.begin(tool, **arguments).result(PATIENCE_S)

    def begin(self, tool: str, /, **arguments: Any) -> "Future[Document]":
        """The same, without waiting for it. Cancelling it is what a client does that gives up."""
        return self._portal.start_task_soon(self._called, tool, arguments)

    def takes(self, *names: str) -> Document:
        """What `acquire` answers for what is free: a busy machine may take longer than the moment
        that it waits by itself.
        """
        return self.call("acquire", names=list(names), wait_s=MCP_WAIT_MAX_S)

    def stands(self, asked: Document) -> Document:
        """How something stands that another has, when it is in line for it and knows who is
        ahead.
        """

        def seen() -> bool:
            asked.update(self.call("wait", handle=asked["handle"], wait_s=0))
            return bool(asked["ahead"])

        if not asked["ahead"]:
            until(seen)
        return asked

    def pending(self) -> dict[str, str]:
        """The kinds of what is pending, by handle."""
        return {notice["handle"]: notice["kind"] for notice in self.call("whoami")["pending"]}

    @property
    def pid(self) -> int:
        pid: int = self.call("whoami")["pid"]
        return pid

    async def _called(self, tool: str, arguments: Document) -> Document:
        result = await self._client.call_tool(tool, arguments)
        assert isinstance(result, CallToolResult)
        content: Document = result.structured_content
        if result.is_error:
            raise ToolError(content["error"], content["pending"])
        return content


class Agents:
    """Agents on one store."""

    def __init__(self, portal: BlockingPortal, store: str, folder: Path, stack: ExitStack) -> None:
        self.store = store
        self.folder = folder
        self.log = folder / "stderr"
        self._portal = portal
        self._stack = stack

    def __call__(self, label: str | None, *more: str, **how: Any) -> Agent:
        """Begin one; it goes with the others at the end."""
        return self._stack.enter_context(self.passing(label, *more, **how))

    @contextmanager
    def passing(
        self,
        label: str | None,
        *more: str,
        before: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Iterator[Agent]:
        """An agent for a block, started by the command `before` it; then the client closes its end."""
        named = [] if label is None else ["--as", label]
        words: list[str] = [*before, *ENTRY, "mcp", *named, *more]
        first, rest = words[0], words[1:]
        own = {
            "HOLDFAST_STORE": self.store,
            "HOME": str(self.folder),
            "XDG_STATE_HOME": str(self.folder / "state"),
        }
        if "PYTHONPATH" in os.environ:
            own["PYTHONPATH"] = os.environ["PYTHONPATH"]
        parameters = StdioServerParameters(
            command=first, args=rest, env={**own, **(environment or {})}, cwd=self.folder
        )
        with self.log.open("a") as log:
            client = Client(stdio_client(parameters, errlog=log))
            with self._portal.wrap_async_context_manager(client):
                yield Agent(self._portal, client)


@contextmanager
def agents_on(store: str, folder: Path) -> Iterator[Agents]:
    """Agents on a store, until the end of the block."""
    with (
        pytest.MonkeyPatch.context() as patched,
        start_blocking_portal() as portal,
        ExitStack() as stack,
    ):
        # The client kills an agent that has not gone in time, and a busy machine takes longer than that
        # to let it go.
        patched.setattr(stdio, "PROCESS_TERMINATION_TIMEOUT", PATIENCE_S)
        yield Agents(portal, store, folder, stack)
