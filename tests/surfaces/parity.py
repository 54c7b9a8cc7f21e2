"""One operation on four surfaces: how each surface is called for a row of the table, and which
differences are allowed.
"""

import contextlib
import io
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from unittest import mock
from urllib.parse import quote

import httpx
import msgspec

from holdfast.kernel.codec import to_plain
from holdfast.kernel.errors import EXIT_NOTHING_TO_TAKE, STATUS, HoldfastError
from holdfast.operations import all_operations
from holdfast.operations.operation import Operation
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.cli.entry import guarded
from holdfast.surfaces.cli.output import printable
from holdfast.surfaces.mcp.tools import TOOLS
from tests.surfaces.mcp_agent import Agent, ToolError

OPERATIONS = {operation.name: operation for operation in all_operations()}
Facts = dict[str, Any]
RANDOM_PORTS = 1 << 15
"""From here on Linux chooses a port itself."""


class Case(NamedTuple):
    """A row of the table. Words and asked values are templates of what `given` returns, and of `n`,
    the row's number.
    """

    operation: str
    library: Callable[[Holdfast, Any], Any]
    words: str | None
    """None where the command line has no such command."""
    asked: Mapping[str, Any] = {}
    given: Callable[[Holdfast, str], Facts | None] = lambda hf, n: None
    code: str | None = None
    """The error that every surface has; None where it succeeds."""
    exit: int = 0
    lines: bool = False
    """The command prints JSON lines instead of one document."""
    alone: bool = False
    """The command prints a list, of which this is the only one."""
    without: str = ""
    """What the command alone can tell."""
    quiet: bool = False
    """The library returns an empty result, or an error without advice, where HTTP and the command
    line both refuse in the same words.
    """
    same_words: bool = True
    """False where one of the surfaces refuses it before it reaches the domain, in words of its own.
    """


class Answer(NamedTuple):
    """What a surface answered: a value or an error."""

    value: Any = None
    code: str | None = None
    message: str = ""


class Given:
    """What a case's own state gave, for the lambdas of the table."""

    def __init__(self, facts: Facts) -> None:
        self.__dict__.update(facts)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def by_library(hf: Holdfast, case: Case, facts: Facts) -> Answer:
    """Ask the library. A row that asked an operation would compare it with itself."""
    with mock.patch.object(Operation, "__call__", _refuse_operation):
        try:
            return Answer(value=plain(case.library(hf, Given(facts))))
        except HoldfastError as error:
            return Answer(code=error.code, message=plain_message(error.message))


def _refuse_operation(operation: Operation, *_: object, **__: object) -> None:
    raise AssertionError(f"the library's column asks the operation {operation.name}")


def by_operation(hf: Holdfast, case: Case, facts: Facts) -> Answer:
    """Ask the operation itself: it has no route."""
    operation = OPERATIONS[case.operation]
    asked = {name: filled(value, facts) for name, value in case.asked.items()}
    try:
        return Answer(value=plain(operation(hf, msgspec.convert(asked, operation.request))))
    except HoldfastError as error:
        return Answer(code=error.code, message=plain_message(error.message))


def takes(case: Case) -> bool:
    """Has MCP a tool for this row that takes all that it asks?"""
    tool = TOOLS.get(OPERATIONS[case.operation].mcp or "")
    return tool is not None and set(case.asked) <= set(tool.argument_of) and bool(case.asked)


def by_mcp(agent: Agent, case: Case, facts: Facts) -> Answer:
    """Call the tool, and leave out of its answer what MCP adds: handles, `next`, `pending`."""
    tool = TOOLS[OPERATIONS[case.operation].mcp or ""]
    asked = {tool.argument_of[name]: filled(value, facts) for name, value in case.asked.items()}
    try:
        answer = _without_handles(agent.call(tool.name, **asked))
    except ToolError as error:
        return Answer(code=error.code, message=plain_message(error.message))
    for name in ("next", "pending"):
        del answer[name]
    # A tool that returns one thing with a handle names it.
    (value,) = answer.values() if len(answer) == 1 else (answer,)
    return Answer(value=plain(value))


def _without_handles(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_handles(one) for one in value]
    if isinstance(value, dict):
        return {name: _without_handles(one) for name, one in value.items() if name != "handle"}
    return value


def by_http(http: httpx.Client, case: Case, facts: Facts) -> Answer:
    operation = OPERATIONS[case.operation]
    asked = {name: filled(value, facts) for name, value in case.asked.items()}
    path = operation.path
    for name in operation.path_fields:
        path = path.replace(f"{{{name}}}", quote(str(asked.pop(name)), safe=""))
    if operation.method == "POST":
        answer = http.post(path, json=asked) if operation.has_body else http.post(path)
    else:
        answer = http.request(
            operation.method, path, params={name: _query(value) for name, value in asked.items()}
        )
    if answer.status_code in (200, 204):
        return Answer(value=plain(answer.json()) if answer.content else None)
    body = answer.json()
    assert set(body) == {"code", "message", "fields"}
    assert answer.status_code == STATUS[body["code"]].http
    return Answer(code=body["code"], message=plain_message(body["message"]))


class Ran(NamedTuple):
    status: int
    out: bytes
    err: str


def by_command(url: str, namespace: str, case: Case, facts: Facts) -> Ran:
    """Run a command as its entry does, in this process: a hundred interpreters would take a minute
    to begin.
    """
    from holdfast.surfaces.cli.root import run

    assert case.words is not None
    words = [str(filled(word, facts)) for word in shlex.split(case.words)]
    out, err = io.TextIOWrapper(io.BytesIO(), write_through=True), io.StringIO()
    before = sys.stdout
    sys.stdout = out
    try:
        # By the environment: what is said on the command line is repeated in the commands that a
        # message shows.
        chosen = mock.patch.dict(os.environ, HOLDFAST_STORE=url, HOLDFAST_NAMESPACE=namespace)
        with contextlib.redirect_stderr(err), chosen:
            status = guarded(lambda: run(words))
    finally:
        sys.stdout = before
    assert status is not None
    return Ran(status, out.buffer.getvalue(), err.getvalue())


def same(
    case: Case, library: Answer, http: Answer, ran: Ran | None, mcp: Answer | None = None
) -> None:
    """The same result, or the same error, on every surface."""
    for other in (http,) if mcp is None else (http, mcp):
        assert library.code == other.code == case.code, (library, other)
        if case.code is None:
            assert other.value == library.value
        elif case.same_words and not case.quiet:
            assert other.message == library.message
    if ran is None:
        return
    if case.code is not None:
        assert ran.status == STATUS[case.code].exit, ran
        assert (
            not case.same_words
            or plain_message(ran.err) == f"holdfast: {printable(http.message)}\n"
        )
        return
    assert ran.status == (EXIT_NOTHING_TO_TAKE if library.value is None else case.exit), ran
    assert _printed(ran, case) == library.value


def _printed(ran: Ran, case: Case) -> Any:
    if case.lines:
        return plain([json.loads(line) for line in ran.out.splitlines()])
    if not ran.out:
        return None
    printed = json.loads(ran.out)
    if case.alone:
        (printed,) = printed
    if case.without:
        del printed[case.without]
    return plain(printed)


def filled(value: Any, facts: Facts) -> Any:
    """A template with the facts in it; one that is a fact alone is that fact, whatever it is."""
    if isinstance(value, list):
        return [filled(one, facts) for one in value]
    if isinstance(value, dict):
        return {name: filled(one, facts) for name, one in value.items()}
    if not isinstance(value, str):
        return value
    alone = re.fullmatch(r"\{(\w+)\}", value)
    return (
        facts[alone[1]] if alone and not isinstance(facts[alone[1]], str) else value.format(**facts)
    )


def plain(value: Any) -> Any:
    """A value as JSON shows it, without what differs from one moment and namespace to another."""
    return _levelled(to_plain(value))


def plain_message(words: str) -> str:
    """The same of a message."""
    time = r"(\d{4}-\d\d-\d\d[T ])?\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00)"
    words = re.sub(r"\b\d{13,}\b", "TOKEN", re.sub(time, "TIME", words))
    words = re.sub(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "UUID", words)
    words = re.sub(r"\b\d+-\d+-\d+-[0-9a-f]{16}\b", "TREE", words)
    return re.sub(
        r"request [\w-]{12},", "request RANDOM,", re.sub(r"parity-\w+", "NAMESPACE", words)
    )


def _levelled(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _levelled(one, key) for key, one in value.items()}
    if isinstance(value, list):
        return [_levelled(one, name) for one in value]
    if isinstance(value, str):
        return (
            "RANDOM" if name in ("sig", "request_id", "requests", "left") else plain_message(value)
        )
    if isinstance(value, bool) or value is None:
        return value
    if name in ("pid", "start_ticks") and value != os.getpid():
        return "PROCESS"
    if name in ("gateway_port", "port") and isinstance(value, int) and value >= RANDOM_PORTS:
        return "PORT"
    if isinstance(value, int) and value > 10**12:
        return "TOKEN"
    if isinstance(value, float) and (value > 10**9 or name.startswith(("wait_", "hold_"))):
        return "TIME"
    return value


def _query(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
