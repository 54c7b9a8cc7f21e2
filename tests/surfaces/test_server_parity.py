"""Every operation over library, command line and HTTP: the same result, and the same error with the
same words.
"""

import os
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from holdfast.runtime.connection import Holdfast, connect
from tests.surfaces.broker import Broker
from tests.surfaces.parity import Case, by_command, by_http, by_library, same
from tests.surfaces.parity_cases import TABLE, a_broker
from tests.surfaces.parity_stage import facts_for, gateway_beside, surroundings
from tests.surfaces.server_http import Served, served

pytestmark = pytest.mark.prove


class Surfaces(NamedTuple):
    """Three parts of one store that have been through the same, one for each surface."""

    url: str
    library: Holdfast
    command: Holdfast
    http: Served


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
            served(http) as world,
            gateway_beside(library),
            gateway_beside(command),
            gateway_beside(http),
        ):
            yield Surfaces(url, library, command, world)
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


def _id(case: Case) -> str:
    return f"{case.operation}-{case.code or 'done'}"


@pytest.mark.parametrize(
    ("number", "case"), list(enumerate(TABLE, 1)), ids=[_id(case) for case in TABLE]
)
def test_every_surface_says_the_same(
    surfaces: Surfaces, number: int, case: Case, request: pytest.FixtureRequest
) -> None:
    if case.given is a_broker:
        request.getfixturevalue("broker")

    of_library, of_command, of_http = (
        facts_for(case, hf, number) for hf in (surfaces.library, surfaces.command, surfaces.http.hf)
    )
    library = by_library(surfaces.library, case, of_library)
    ran = (
        None if case.words is None else by_command(surfaces.url, "parity-command", case, of_command)
    )
    same(case, library, by_http(surfaces.http.http, case, of_http), ran)
    if case.words is None:
        # Its part goes through the same as the others.
        by_library(surfaces.command, case, of_command)
