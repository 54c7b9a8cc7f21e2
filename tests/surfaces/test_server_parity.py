"""Every operation over library, command line and HTTP: the same result, and the same error with the
same words.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.adapters.gateway_folder import CurrentInstance, GatewayFolder
from holdfast.runtime.connection import Holdfast, connect
from holdfast.runtime.paths import gateway_root
from tests.surfaces import gateway_http
from tests.surfaces.broker import Broker
from tests.surfaces.gateway_http import served as gateway_served
from tests.surfaces.parity import Case, by_command, by_http, by_library, same
from tests.surfaces.parity_cases import GATEWAYS, TABLE, a_broker
from tests.surfaces.server_http import Served, served
from tests.tmux_server import TmuxServer, tmux_server

pytestmark = pytest.mark.slow


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
    server = request.getfixturevalue("postgres_server") if request.param == "postgres" else None
    url = {"sqlite": f"sqlite:{folder}/store.sqlite", "files": f"files:{folder}/store"}.get(
        request.param
    )
    url = server.database() if url is None else url
    with pytest.MonkeyPatch.context() as patch:
        _surroundings(patch, folder)
        with (
            tmux_server() as tmux,
            _found_by_all(patch, tmux),
            connect(url, namespace="parity-library") as library,
            connect(url, namespace="parity-command") as command,
            connect(url, namespace="parity-http") as http,
            served(http) as world,
            _gateway(library),
            _gateway(command),
            _gateway(http),
        ):
            yield Surfaces(url, library, command, world)
    if server is not None:
        server.drop(url)


@contextmanager
def _found_by_all(patch: pytest.MonkeyPatch, tmux: TmuxServer) -> Iterator[None]:
    """The tmux of the agents in the table."""
    for name, value in tmux.environment.items():
        patch.setenv(name, value)
    yield


@contextmanager
def _gateway(hf: Holdfast) -> Iterator[None]:
    """The gateway of the agent gpu, in the namespace of a connection, found by its folder."""
    folder = GatewayFolder(gateway_root(hf.settings, "gpu"))
    folder.prepare()
    with gateway_served(folder.root, work=False) as gate:
        folder.token.write_text(gateway_http.TOKEN)
        folder.write_instance(
            CurrentInstance(
                pid=os.getpid(), host="127.0.0.1", port=gate.port, managed_agent_instance_epoch=1
            )
        )
        GATEWAYS[hf.store.namespace] = gate
        yield


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A message broker for the jobs of the table that need one."""
    made = Broker(tmp_path_factory.mktemp("broker") / "broker")
    made.start()
    os.environ["PARITY_BROKER_PORT"] = str(made.port)
    yield
    made.close()


def _surroundings(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setenv("XDG_STATE_HOME", str(folder / "state"))
    patch.setenv("HOLDFAST_GATEWAY_ROOT", str(folder / "gateways"))
    patch.setenv("HOLDFAST_ACTOR", "tester")
    patch.delenv("MQTT_BROKER", raising=False)
    patch.chdir(folder)


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

    def begun(hf: Holdfast) -> dict[str, object]:
        return {"n": str(number), "hex": f"{number:02x}", **(case.given(hf, str(number)) or {})}

    of_library, of_command, of_http = (
        begun(hf) for hf in (surfaces.library, surfaces.command, surfaces.http.hf)
    )
    library = by_library(surfaces.library, case, of_library)
    ran = (
        None if case.words is None else by_command(surfaces.url, "parity-command", case, of_command)
    )
    same(case, library, by_http(surfaces.http.http, case, of_http), ran)
    if case.words is None:
        # Its part goes through the same as the others.
        by_library(surfaces.command, case, of_command)
