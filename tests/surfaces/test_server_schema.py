"""The server does what its OpenAPI says: schemathesis sends valid and invalid requests for
everything.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from holdfast.kernel.limits import SERVER_WAIT_MAX_S
from holdfast.operations import all_operations
from holdfast.runtime.connection import connect
from tests.surfaces.server_http import TOKEN, served

pytestmark = pytest.mark.prove

AUTHORISED = {"Authorization": f"Bearer {TOKEN}"}
WAITS = {operation.name for operation in all_operations() if operation.waits}
PARTS = 4
"""In how many tests the operations are asked for: they run beside each other."""
EXAMPLES = int(os.environ.get("SCHEMA_EXAMPLES", "3"))

BEYOND_A_SCHEMA = {
    "agents.publish": "texts are printable and not blank, paths absolute",
    "agents.refresh": "a lease has an end that a calendar knows",
    "gateways.prompt": "which characters a terminal obeys",
    "holds.take": "which characters nobody sees",
    "jobs.publish": "how large an event is in bytes",
    "jobs.register": "topics have no wildcards",
    "locks.acquire": "how long names are together in bytes",
    "locks.free": "how long names are together in bytes",
    "locks.wait": "how long names are together in bytes",
    "log.read": "whether an age reaches beyond the calendar",
    "network.add_host": "what an address is",
    "network.add_hosts": "what an address is",
    "network.drop_neighbor": "what an address is",
    "network.lock_routers": "how long names are together in bytes",
    "network.take_leases": "which characters nobody sees",
    "network.take_neighbor": "what an address is",
    "network.unlock_routers": "how long names are together in bytes",
    "network.wait_for_routers": "how long names are together in bytes",
    "workflows.preempt": "whether it was registered as preemptible",
    "workflows.register": "which characters nobody sees",
}
"""Operations that refuse what no schema can say is wrong, and what that is."""


@pytest.mark.parametrize("part", range(PARTS))
def test_every_answer_matches_the_schema(tmp_path: Path, part: int) -> None:
    with connect(f"sqlite:{tmp_path}/store.sqlite") as hf, served(hf) as world:
        document = world.http.get("/schema/openapi.json").json()
        for methods in document["paths"].values():
            for operation in methods.values():
                # Every request of this test shows the token: it is nothing to be left out or made
                # wrong.
                operation.pop("security", None)
        described = schemathesis.openapi.from_dict(document)
        described.config.update(base_url=world.url)
        operations = [
            found.ok() for found in described.get_all_operations() if isinstance(found, Ok)
        ]
        asked = {(operation.method.upper(), operation.path) for operation in operations}
        others = {
            ("GET", "/health"),
            ("GET", "/ready"),
            ("GET", "/metrics"),
            ("GET", "/v1/events"),
            ("POST", "/v1/links"),
        }
        assert (
            asked
            == {
                (operation.method, operation.path)
                for operation in all_operations()
                if operation.served
            }
            | others
        )
        for operation in operations[part::PARTS]:
            # Events never end.
            if operation.path != "/v1/events":
                for mode in GenerationMode:
                    _ask(operation, mode)


def _ask(operation: "schemathesis.schemas.APIOperation", mode: GenerationMode) -> None:  # type: ignore[type-arg]
    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    def ask(case: schemathesis.Case[Any]) -> None:
        if operation.definition.raw["operationId"] in WAITS:
            _do_not_wait(case.body)
        answer = case.call(headers=AUTHORISED)
        case.validate_response(
            answer, headers=AUTHORISED, excluded_checks=_beyond(operation, answer)
        )

    try:
        ask()
    except Unsatisfiable:
        # Nothing about it can be wrong: it takes nothing.
        assert mode is GenerationMode.NEGATIVE


def _beyond(operation: "schemathesis.schemas.APIOperation", answer: Any) -> list[Any]:  # type: ignore[type-arg]
    """Which checks an answer proves nothing for."""
    if answer.status_code == 412:
        # A token that is not in force is no wrong value, but schemathesis takes the status for
        # that.
        return [positive_data_acceptance]
    if answer.status_code in (503, 504):
        # No gateway of that name runs here, nor a broker, or a lock was held; the server itself is
        # fine.
        assert answer.json()["code"] in ("unavailable", "broker_unavailable", "lock_timeout")
        return [not_a_server_error]
    if answer.status_code == 413:
        return [negative_data_rejection]
    named = operation.definition.raw["operationId"]
    return (
        [positive_data_acceptance] if answer.status_code == 422 and named in BEYOND_A_SCHEMA else []
    )


def _do_not_wait(body: Any) -> None:
    if isinstance(body, dict) and "names" in body and "timeout_s" not in body:
        body["timeout_s"] = 0
    for name in ("wait_s", "timeout_s"):
        if (
            isinstance(body, dict)
            and isinstance(body.get(name), int | float)
            and 0 <= body[name] <= SERVER_WAIT_MAX_S
        ):
            body[name] = 0
