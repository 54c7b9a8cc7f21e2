"""The gateway does what its OpenAPI says: schemathesis sends valid and invalid requests for
everything.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import positive_data_acceptance

from holdfast.domains.gateway.request import check_prompt
from holdfast.kernel.errors import Misuse
from holdfast.kernel.names import check_label
from tests.surfaces.gateway_http import TOKEN, served

pytestmark = pytest.mark.prove

AUTHORISED = {"Authorization": f"Bearer {TOKEN}"}
EXAMPLES = 15


def test_every_answer_matches_the_schema(tmp_path: Path) -> None:
    with served(tmp_path, depth_max=100_000, work=False) as gate:
        described = schemathesis.openapi.from_url(
            f"{gate.url}/schema/openapi.json", headers=AUTHORISED
        )
        operations = [
            found.ok() for found in described.get_all_operations() if isinstance(found, Ok)
        ]
        asked = {(operation.method.upper(), operation.path) for operation in operations}
        assert asked == {
            ("GET", "/health"),
            ("GET", "/v1/status"),
            ("POST", "/v1/requests"),
            ("GET", "/v1/requests"),
            ("GET", "/v1/requests/{request_id}"),
            ("DELETE", "/v1/requests/{request_id}"),
            ("POST", "/v1/reconcile"),
            ("POST", "/v1/prune"),
            ("POST", "/v1/detach"),
            ("GET", "/v1/questions"),
            ("POST", "/v1/questions/{question_id}/answer"),
            ("GET", "/v1/events"),
        }
        for operation in operations:
            # Events never end.
            if operation.path != "/v1/events":
                for mode in GenerationMode:
                    _ask(operation, mode)


def _ask(operation: "schemathesis.schemas.APIOperation", mode: GenerationMode) -> None:  # type: ignore[type-arg]
    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    def ask(case: schemathesis.Case[Any]) -> None:
        # No schema can say which characters a terminal obeys: what is refused for that alone need
        # not be accepted.
        excluded: list[Any] = [] if _deliverable(case) else [positive_data_acceptance]
        case.call_and_validate(headers=AUTHORISED, excluded_checks=excluded)

    try:
        ask()
    except Unsatisfiable:
        # Nothing about it can be wrong: it takes nothing.
        assert mode is GenerationMode.NEGATIVE and operation.path in (
            "/health",
            "/v1/status",
            "/v1/detach",
            "/v1/questions",
        )


def _deliverable(case: schemathesis.Case[Any]) -> bool:
    try:
        headers: Mapping[str, str] = case.headers or {}
        check_label(str(headers.get("Idempotency-Key", "none")))
        body = case.body if isinstance(case.body, dict) else {}
        check_label(str(body.get("by") or "none"))
        payload = body.get("payload")
        if isinstance(payload, dict):
            check_prompt(str(payload.get("prompt", "none")))
    except Misuse:
        return False
    return True
