"""Every operation over library, command line, HTTP and MCP: the same result, and the same error with the
same words.
"""

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from holdfast.runtime.connection import Holdfast, connect
from tests.surfaces.broker import Broker
from tests.surfaces.mcp_agent import Agent, agents_on
from tests.surfaces.parity import (
    OPERATIONS,
    Case,
    by_command,
    by_http,
    by_library,
    by_mcp,
    by_operation,
    same,
    takes,
)
from tests.surfaces.parity_cases import TABLE, a_broker, a_sendable_event
from tests.surfaces.parity_stage import facts_for, gateway_beside, surroundings
from tests.surfaces.server_http import Served, served

pytestmark = pytest.mark.prove


class Surfaces(NamedTuple):
    """Four parts of one store that have been through the same, one for each surface."""

    url: str
    library: Holdfast
    command: Holdfast
    http: Served
    mcp: Holdfast
    agent: Agent


@pytest.fixture(scope="module", params=["sqlite", "files", "postgres"])
def surfaces(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Surfaces]:
    folder = tmp_path_factory.mktemp("parity")
    urls = {"sqlite": f"sqlite:{folder}/store.sqlite", "files": f"files:{folder}/store"}
    server = None if request.param in urls else request.getfixturevalue("postgres_server")
    url = urls[request.param] if server is None else server.database()
    with surroundings(folder):
        with (
            connect(url, namespace="parity-library") as library,
            connect(url, namespace="parity-command") as command,
            connect(url, namespace="parity-http") as http,
            connect(url, namespace="parity-mcp") as mcp,
            served(http) as world,
            gateway_beside(library),
            gateway_beside(command),
            gateway_beside(http),
            gateway_beside(mcp),
            agents_on(url, folder) as agents,
        ):
            # By the environment: options are repeated in the commands that a message shows.
            chosen = {
                "HOLDFAST_GATEWAY_ROOT": os.environ["HOLDFAST_GATEWAY_ROOT"],
                "HOLDFAST_NAMESPACE": "parity-mcp",
            }
            agent = agents("tester", "--allow", "answer", environment=chosen)
            yield Surfaces(url, library, command, world, mcp, agent)
    if server is not None:
        server.drop(url)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A message broker for the jobs of the table that need one."""
    made = Broker(tmp_path_factory.mktemp("broker") / "broker")
    made.start()
    os.environ["PARITY_BROKER_PORT"] = str(made.port)
    yield
    made.close()


EMPTY = {"jobs.pick", "log.prune"}
"""Operations with a row that returns nothing: no job is there, and no entry is old enough."""


def _is_empty(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_empty, value.values()))
    return all(map(_is_empty, value)) if isinstance(value, list) else not value


def _id(case: Case) -> str:
    return f"{case.operation}-{case.code or 'done'}"


def test_some_rows_are_asked_of_mcp_too() -> None:
    """The others need an identity or a claim, which a tool supplies itself."""
    assert {case.operation for case in TABLE if takes(case)} >= {
        "agents.find",
        "gateways.progress",
        "gateways.send",
        "jobs.retry",
        "questions.answer",
    }


@pytest.mark.parametrize(
    ("number", "case"), list(enumerate(TABLE, 1)), ids=[_id(case) for case in TABLE]
)
def test_every_surface_says_the_same(
    surfaces: Surfaces, number: int, case: Case, request: pytest.FixtureRequest
) -> None:
    if case.given in (a_broker, a_sendable_event):
        request.getfixturevalue("broker")

    of_library, of_command, of_http = (
        facts_for(case, hf, number) for hf in (surfaces.library, surfaces.command, surfaces.http.hf)
    )
    library = by_library(surfaces.library, case, of_library)
    # An operation that does nothing would agree with an empty result.
    assert case.code or case.operation in EMPTY or not _is_empty(library.value)
    ran = (
        None if case.words is None else by_command(surfaces.url, "parity-command", case, of_command)
    )
    served = OPERATIONS[case.operation].served
    http = (
        by_http(surfaces.http.http, case, of_http)
        if served
        else by_operation(surfaces.http.hf, case, of_http)
    )
    mcp = None
    if takes(case):
        mcp = by_mcp(surfaces.agent, case, facts_for(case, surfaces.mcp, number))
    same(case, library, http, ran, mcp)
    if case.words is None:
        # Its part goes through the same as the others.
        by_library(surfaces.command, case, of_command)
