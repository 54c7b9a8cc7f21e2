"""An agent that another server owns. That server alone decides about its turns.

Two servers of Houmao are known, which say in `GET /health` which one they are:

- `houmao-server`: one route for prompts and interrupts, whose body names the kind of request.
- `houmao-passive-server`: a headless agent has turns, and the prompt of any other one goes on to
  that agent's own gateway. Its bodies have the prompt alone: a kind in them is refused.
"""

import threading
from typing import Any
from urllib.parse import quote

from holdfast.adapters.upstream import Upstream, poll_answer
from holdfast.domains.gateway.adapter import Adapter, Answer, Delivery, Observation
from holdfast.domains.gateway.state import AgentState
from holdfast.kernel.agent_adapter import ANSWER_TIMEOUT_S, HTTP_TIMEOUT_S, ManagedAdapter
from holdfast.kernel.errors import NotFound, UpstreamUnavailable

ACTIVE, PASSIVE = "houmao-server", "houmao-passive-server"
_DONE = ("completed", "succeeded", "success")
_FAILED = ("failed", "error", "interrupted", "cancelled", "known_failure")
_TEXTS = ("answer", "output", "text", "history_summary")
"""The fields in which a turn may have its answer; the first one that is there counts."""
_PHASES = {"ready": AgentState.READY, "active": AgentState.WORKING}


class ManagedAgent(Adapter):
    backend = "managed"

    def __init__(self, spec: ManagedAdapter) -> None:
        self._spec = spec
        self._upstream = Upstream(
            spec.managed_api_base_url, timeout_s=spec.timeout_s or HTTP_TIMEOUT_S
        )
        self._path = f"/houmao/agents/{quote(spec.managed_agent_ref, safe='')}"
        self._service: str | None = None

    def inspect(self) -> Observation:
        try:
            return self._inspect()
        except (NotFound, UpstreamUnavailable) as error:
            # Another server may be there when it answers again.
            self._service = None
            return Observation(None, detail=error.message)

    def _inspect(self) -> Observation:
        state = self._state()
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
        if self._is_passive() and not _is_headless(state):
            # The id of such an agent follows from its name: only its generation tells instances
            # apart.
            names.append(_dict(self._upstream.get(self._path)).get("generation_id"))
        return Observation(
            f"managed:{self._upstream.base_url}{self._path}:"
            + ":".join(str(name or "") for name in names),
            _PHASES.get(str(_dict(state.get("turn")).get("phase")), AgentState.UNKNOWN),
        )

    def check(self, prompt: str) -> None:
        """Every prompt can be delivered: it is sent in the body."""

    def deliver(self, prompt: str, instance_id: str) -> Delivery:  # noqa: ARG002 - the server refuses what it does not own
        if self._is_passive():
            if not _is_headless(self._state()):
                self._post("requests", {"prompt": prompt})
                return Delivery()
            return Delivery(self._post("turns", {"prompt": prompt}).get("turn_id"))
        said = self._post("requests", {"request_kind": "submit_prompt", "prompt": prompt})
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

        def ask() -> dict[str, Any]:
            turn = _dict(self._upstream.get(path))
            if turn.get("status") in _DONE and self._is_passive():
                # The turn itself has no text there.
                turn["answer"] = _said(_dict(self._upstream.get(f"{path}/events")))
            return turn

        return poll_answer(
            ask,
            lambda turn: _judge(turn, turn_id),
            stop,
            timeout_s=self._spec.answer_timeout_s or ANSWER_TIMEOUT_S,
        )

    def interrupt(self, instance_id: str) -> bool:  # noqa: ARG002 - as above
        if not self._is_passive():
            said = self._post("requests", {"request_kind": "interrupt"})
            return bool(said.get("disposition") != "no_op")
        if _dict(self._state().get("turn")).get("phase") == "ready":
            # It would answer "ok" without having stopped anything.
            return False
        said = self._post("interrupt", None)
        detail = str(said.get("detail", ""))
        if "with error" in detail:
            raise UpstreamUnavailable(
                f"the agent's server could not interrupt it: {detail[:200]}", outcome="unknown"
            )
        return True

    def close(self) -> None:
        self._upstream.close()

    def _state(self) -> dict[str, Any]:
        # The passive server's plain `/state` is what it sees on the screen, and has no identity.
        route = "managed-state" if self._is_passive() else "state"
        return _dict(self._upstream.get(f"{self._path}/{route}"))

    def _is_passive(self) -> bool:
        """Is it the passive server? Asks once, for its health. Raises UpstreamUnavailable for a
        server that is neither.
        """
        if self._service is None:
            try:
                health = _dict(self._upstream.get("/health"))
            except NotFound:
                health = {}
            service = str(health.get("houmao_service", ACTIVE))
            if service not in (ACTIVE, PASSIVE):
                raise UpstreamUnavailable(
                    f"{self._upstream.base_url} is {service[:60]!a}, and this program knows "
                    f"{ACTIVE} and {PASSIVE}: nothing was sent to it",
                    outcome="none",
                )
            self._service = service
        return self._service == PASSIVE

    def _post(self, route: str, body: dict[str, str] | None) -> dict[str, Any]:
        return _dict(self._upstream.post(f"{self._path}/{route}", body=body))


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


def _said(events: dict[str, Any]) -> str:
    """What the agent said in a turn, by the turn's events."""
    entries = events.get("entries")
    found = [_dict(one) for one in entries] if isinstance(entries, list) else []
    return "\n".join(str(one.get("message", "")) for one in found if one.get("kind") == "assistant")


def _is_headless(state: dict[str, Any]) -> bool:
    return bool(_dict(state.get("identity")).get("transport", "headless") == "headless")


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
