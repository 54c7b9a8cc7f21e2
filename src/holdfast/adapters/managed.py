"""A headless agent that another server owns. That server alone decides about its turns."""

import threading
from typing import Any
from urllib.parse import quote

from holdfast.adapters.upstream import Upstream, poll_answer
from holdfast.domains.gateway.adapter import Adapter, Answer, Delivery, Observation
from holdfast.domains.gateway.state import AgentState
from holdfast.kernel.agent_adapter import ANSWER_TIMEOUT_S, HTTP_TIMEOUT_S, ManagedAdapter
from holdfast.kernel.errors import NotFound, UpstreamUnavailable

_DONE = ("completed", "succeeded", "success")
_FAILED = ("failed", "error", "interrupted", "cancelled", "known_failure")
_TEXTS = ("answer", "output", "text", "history_summary")
"""The fields in which a turn may have its answer; the first one that is there counts."""


class ManagedAgent(Adapter):
    backend = "managed"

    def __init__(self, spec: ManagedAdapter) -> None:
        self._spec = spec
        self._upstream = Upstream(
            spec.managed_api_base_url, timeout_s=spec.timeout_s or HTTP_TIMEOUT_S
        )
        self._path = f"/houmao/agents/{quote(spec.managed_agent_ref, safe='')}"

    def inspect(self) -> Observation:
        try:
            state = _dict(self._upstream.get(f"{self._path}/state"))
        except (NotFound, UpstreamUnavailable) as error:
            return Observation(None, detail=error.message)
        if state.get("availability", "available") != "available":
            return Observation(None, detail=f"its server says that it is {state['availability']}")
        identity = _dict(state.get("identity"))
        names = [
            state.get("tracked_agent_id"),
            identity.get("runtime_session_id"),
            identity.get("terminal_id"),
        ]
        if not any(names):
            # Some other program answered. It must not count as another instance of the agent.
            where = f"{self._upstream.base_url}{self._path}/state"
            return Observation(None, detail=f"{where} does not describe an agent")
        phase = _dict(state.get("turn")).get("phase")
        doing = {"ready": AgentState.READY, "active": AgentState.WORKING}.get(
            str(phase), AgentState.UNKNOWN
        )
        return Observation(
            f"managed:{self._upstream.base_url}{self._path}:"
            + ":".join(str(name or "") for name in names),
            doing,
        )

    def check(self, prompt: str) -> None:
        """Every prompt can be delivered: it is sent in the body."""

    def deliver(self, prompt: str, instance_id: str) -> Delivery:  # noqa: ARG002 - the server refuses what it does not own
        said = self._request({"request_kind": "submit_prompt", "prompt": prompt})
        if said.get("disposition") not in (None, "accepted"):
            raise UpstreamUnavailable(
                f"the agent's server refused the prompt: {said.get('disposition')} "
                f"{said.get('detail', '')}",
                outcome="none",
            )
        return Delivery(said.get("headless_turn_id"))

    def answer(self, delivery: Delivery, stop: threading.Event) -> Answer:
        if delivery.handle is None:
            return Answer(known=False)
        turn_id = str(delivery.handle)
        path = f"{self._path}/turns/{quote(turn_id, safe='')}"
        return poll_answer(
            lambda: _dict(self._upstream.get(path)),
            lambda turn: _judge(turn, turn_id),
            stop,
            timeout_s=self._spec.answer_timeout_s or ANSWER_TIMEOUT_S,
        )

    def interrupt(self, instance_id: str) -> bool:  # noqa: ARG002 - as above
        return bool(self._request({"request_kind": "interrupt"}).get("disposition") != "no_op")

    def close(self) -> None:
        self._upstream.close()

    def _request(self, body: dict[str, str]) -> dict[str, Any]:
        return _dict(self._upstream.post(f"{self._path}/requests", body=body))


def _judge(turn: dict[str, Any], turn_id: str) -> Answer | None:
    status = str(turn.get("status"))
    text = next((str(turn[name]) for name in _TEXTS if isinstance(turn.get(name), str)), "")
    facts = {"turn_id": turn_id, "status": status}
    if status in _DONE:
        return Answer(text, "output", facts=facts)
    if status in _FAILED:
        return Answer(
            text,
            "output",
            code="agent_failed",
            detail=f"its turn is {status}: {turn.get('error') or ''}",
            facts=facts,
        )
    return None


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
