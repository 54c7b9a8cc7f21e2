"""A terminal behind the API of CAO (CLI Agent Orchestrator), or of a server that offers the same at
other paths.
"""

import threading
from typing import Any
from urllib.parse import quote

from msgspec import UNSET

from holdfast.adapters.upstream import Upstream, poll_answer
from holdfast.domains.gateway.adapter import Adapter, Answer, Delivery, Observation
from holdfast.domains.gateway.state import AgentState
from holdfast.kernel.agent_adapter import ANSWER_TIMEOUT_S, HTTP_TIMEOUT_S, RestAdapter
from holdfast.kernel.errors import InvalidValue, NotFound, UpstreamUnavailable

PREFIXES = {"cao": "", "houmao_server": "/cao"}
PATHS = {
    "terminal": "/terminals/{id}",
    "input": "/terminals/{id}/input",
    "key": "/terminals/{id}/key",
    "output": "/terminals/{id}/output",
}

_STATES = {
    "idle": AgentState.READY,
    "completed": AgentState.READY,
    "processing": AgentState.WORKING,
    "waiting_user_answer": AgentState.ASKING,
    "error": AgentState.EXITED,
}
_AT_REST = ("idle", "completed", "waiting_user_answer")
_SETTLED_AFTER = 5
"""How often a terminal that was never seen at work must be seen at rest: it may not have started.
"""
_MESSAGE_BYTES_MAX = 48 << 10
"""A message is sent in the URL, of which these servers accept 64 KiB."""


class RestAgent(Adapter):
    def __init__(self, spec: RestAdapter) -> None:
        self.backend = f"{spec.preset}_rest"
        self._spec = spec
        self._upstream = Upstream(spec.base_url, timeout_s=spec.timeout_s or HTTP_TIMEOUT_S)
        prefix = PREFIXES[spec.preset] if spec.prefix is UNSET else spec.prefix
        if unknown := sorted(set(spec.paths) - set(PATHS)):
            raise InvalidValue(
                f"{unknown[0][:40]!a} is not a known path: use {', '.join(PATHS)}",
                field="paths",
            )
        templates = {name: prefix + path for name, path in PATHS.items()} | spec.paths
        terminal = quote(spec.terminal_id, safe="")
        self._paths = {name: path.replace("{id}", terminal) for name, path in templates.items()}

    def inspect(self) -> Observation:
        where = f"{self._upstream.base_url}{self._paths['terminal']}"
        try:
            seen = self._state()
        except (NotFound, UpstreamUnavailable) as error:
            return Observation(None, detail=error.message)
        if not seen.get("id"):
            # Some other program answered. It must not count as another instance of the terminal.
            return Observation(None, detail=f"{where} does not describe a terminal")
        names = [str(seen.get(name) or "") for name in ("id", "session_name", "name", "provider")]
        state = _STATES.get(str(seen.get("status")), AgentState.UNKNOWN)
        return Observation(f"rest:{where}:{':'.join(names)}", state)

    def check(self, prompt: str) -> None:
        size = len(quote(prompt, safe=""))
        if size > _MESSAGE_BYTES_MAX:
            raise InvalidValue(
                f"the prompt takes {size} bytes in the URL that carries it to this agent's "
                f"server, and {_MESSAGE_BYTES_MAX} fit: put the text into a file and name the file",
                field="prompt",
                bytes=size,
            )

    def deliver(self, prompt: str, instance_id: str) -> Delivery:  # noqa: ARG002 - a terminal's id is never used twice
        self._upstream.post(self._paths["input"], {"message": prompt})
        return Delivery()

    def answer(self, delivery: Delivery, stop: threading.Event) -> Answer:  # noqa: ARG002 - the terminal has one answer
        seen_at_work, calm = False, 0

        def judge(state: dict[str, Any]) -> Answer | None:
            nonlocal seen_at_work, calm
            status = state.get("status")
            if status == "error":
                return Answer(
                    code="agent_failed",
                    detail="the terminal reports that its agent failed",
                    facts={"status": status},
                )
            if status not in _AT_REST:
                seen_at_work, calm = True, 0
                return None
            calm += 1
            if not seen_at_work and calm < _SETTLED_AFTER:
                return None
            said = self._upstream.get(self._paths["output"], {"mode": "last"})
            text = str(said.get("output", "")) if isinstance(said, dict) else str(said)
            return Answer(text, "output", facts={"status": status})

        timeout_s = self._spec.answer_timeout_s or ANSWER_TIMEOUT_S
        return poll_answer(self._state, judge, stop, timeout_s=timeout_s)

    def interrupt(self, instance_id: str) -> bool:  # noqa: ARG002 - as above
        self._upstream.post(self._paths["key"], {"key": self._spec.interrupt_key or "C-c"})
        return True

    def close(self) -> None:
        self._upstream.close()

    def _state(self) -> dict[str, Any]:
        seen = self._upstream.get(self._paths["terminal"])
        return seen if isinstance(seen, dict) else {}
