"""The Agent Client Protocol, version 1, as its client: claude-agent-acp, codex-acp, `opencode acp`,
`gemini --acp` and others.

Neither files nor terminals are offered to the agent: it reads, writes and runs by itself.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

from holdfast.adapters.agent_protocol import (
    AgentProtocol,
    NotOpened,
    Opened,
    ProtocolNews,
    ProtocolQuestion,
    ProtocolRequest,
    Turn,
    TurnEnd,
)
from holdfast.adapters.json_rpc import RpcError, RpcMessage, RpcProgram, client_info
from holdfast.domains.gateway.state import ALLOW, DENY, Choice
from holdfast.kernel.errors import UpstreamUnavailable

_VERSION = 1
_AUTH_REQUIRED = -32000
_METHOD_NOT_FOUND = -32601
_REPLAY_S = 0.5
"""gemini answers `session/load` first, and replays the conversation then."""
_RUNNING = ("pending", "in_progress")
_CHOICES = {
    "allow_once": ALLOW,
    "reject_once": DENY,
    "allow_always": Choice(name="allow_always", label="Allow it from now on"),
    "reject_always": Choice(name="deny_always", label="Refuse it from now on"),
}
"""The choices by the kind of an option. Agents give their options ids of their own."""
_ENDS = {
    "refusal": ("agent_refused", "the agent refused to go on"),
    "max_tokens": ("agent_limit", "the model's limit of tokens was reached"),
    "max_turn_requests": ("agent_limit", "the agent's limit of requests for one turn was reached"),
    "cancelled": ("interrupted", "it was cancelled"),
}
_CANCELLED = {"outcome": {"outcome": "cancelled"}}


class Acp(AgentProtocol):
    """`mode` is the session mode to switch to, such as `plan`."""

    backend = "acp"

    def __init__(self, mode: str | None = None) -> None:
        self._mode = mode
        self._can_load = self._can_resume = False
        self._logins = ""
        self._message = 0

    def greet(self, program: RpcProgram, within_s: float) -> None:
        offered = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
        answer = _table(
            program.call(
                "initialize",
                {
                    "protocolVersion": _VERSION,
                    "clientCapabilities": offered,
                    "clientInfo": client_info(),
                },
                within_s,
            )
        )
        if (version := answer.get("protocolVersion")) != _VERSION:
            raise NotOpened(
                f"it speaks version {version} of the Agent Client Protocol, and Holdfast version "
                f"{_VERSION}: use another version of it"
            )
        can = _table(answer.get("agentCapabilities"))
        self._can_load = bool(can.get("loadSession"))
        self._can_resume = "resume" in _table(can.get("sessionCapabilities"))
        names = [str(one.get("name") or one.get("id")) for one in _tables(answer, "authMethods")]
        self._logins = ", ".join(names)

    def open(
        self, program: RpcProgram, folder: str, session_id: str | None, within_s: float
    ) -> Opened:
        place: dict[str, Any] = {"cwd": folder, "mcpServers": []}
        settle_s = 0.0
        if session_id is None:
            session = self._call(program, "session/new", place, within_s)
            session_id = str(session["sessionId"])
        elif not self._can_load and not self._can_resume:
            raise NotOpened("it cannot resume a conversation", lost=True)
        else:
            method = "session/resume" if self._can_resume else "session/load"
            settle_s = 0.0 if self._can_resume else _REPLAY_S
            try:
                session = self._call(program, method, {"sessionId": session_id, **place}, within_s)
            except RpcError as error:
                why = f"the conversation {session_id} cannot be resumed: {error}"
                raise NotOpened(why, lost=True) from None
        if self._mode:
            self._set_mode(program, session, session_id, within_s)
        return Opened(session_id, settle_s)

    def prompt(self, program: RpcProgram, session_id: str, text: str, turn: Turn) -> None:
        def done(result: Any, error: Exception | None) -> None:
            # Without an answer the agent has ended, and the turn ends with it.
            if not isinstance(error, UpstreamUnavailable):
                turn.finish(_end_of(result, error))

        content = [{"type": "text", "text": text}]
        program.begin("session/prompt", {"sessionId": session_id, "prompt": content}, done)
        program.await_read()

    def cancel(self, program: RpcProgram, session_id: str, turn: Turn | None) -> None:  # noqa: ARG002 - a session has one turn
        program.notify("session/cancel", {"sessionId": session_id})

    def news(self, session_id: str | None, message: RpcMessage) -> ProtocolNews | None:
        if message.method != "session/update" or message.params.get("sessionId") != session_id:
            return None
        update = _table(message.params.get("update"))
        match update.get("sessionUpdate"):
            case "agent_message_chunk":
                content = _table(update.get("content"))
                if content.get("type") != "text":
                    return None
                part = str(update.get("messageId") or "")
                return ProtocolNews(text=str(content["text"]), part=f"{self._message} {part}")
            case "user_message_chunk":
                # Seen in replays only.
                return ProtocolNews(replay=True)
            case "tool_call" | "tool_call_update":
                # What the agent writes behind a tool call is another message.
                self._message += 1
                running = update.get("status", "pending") in _RUNNING
                title = str(update.get("title") or "") if running else ""
                if running and not title:
                    return None
                return ProtocolNews(call=str(update.get("toolCallId")), activity=title)
        return None

    def request(self, message: RpcMessage) -> ProtocolRequest | None:
        if message.method != "session/request_permission":
            return None
        call = _table(message.params.get("toolCall"))
        choices: dict[str, Choice] = {}
        options: dict[str, str] = {}
        for option in _tables(message.params, "options"):
            choice = _CHOICES.get(str(option.get("kind")))
            if choice is None:
                continue
            name = choice.name
            if name in choices:
                name = f"{name}_{len(choices) + 1}"
            choices[name] = Choice(name=name, label=str(option.get("name") or choice.label))
            options[name] = str(option.get("optionId"))
        choices.setdefault(DENY.name, DENY)

        def result(replies: Mapping[str, str]) -> dict[str, Any]:
            option_id = options.get(replies.get("permission", DENY.name))
            if option_id is None:
                return _CANCELLED
            return {"outcome": {"outcome": "selected", "optionId": option_id}}

        question = ProtocolQuestion(
            "permission",
            "permission",
            str(call.get("title") or call.get("kind") or "a tool call"),
            _detail(call),
            tuple(choices.values()),
        )
        return ProtocolRequest((question,), result, _CANCELLED)

    def _call(
        self, program: RpcProgram, method: str, params: dict[str, Any], within_s: float
    ) -> dict[str, Any]:
        """Raises RpcError, and NotOpened for an agent that needs a login."""
        try:
            return _table(program.call(method, params, within_s))
        except RpcError as error:
            if error.code != _AUTH_REQUIRED:
                raise
            ways = f" ({self._logins})" if self._logins else ""
            raise NotOpened(
                f"it needs a login{ways}: log in with the tool itself, as this user"
            ) from None

    def _set_mode(
        self, program: RpcProgram, session: dict[str, Any], session_id: str, within_s: float
    ) -> None:
        modes = _table(session.get("modes"))
        names = [str(one.get("id")) for one in _tables(modes, "availableModes")]
        option = next(
            (one for one in _tables(session, "configOptions") if one.get("category") == "mode"), {}
        )
        names = names or [str(one.get("value")) for one in _tables(option, "options")]
        if self._mode not in names:
            offered = f"use one of {', '.join(names)}" if names else "leave --mode out"
            # claude-agent-acp keeps bypassPermissions from root.
            root = ". Some modes are not for root: run it as an ordinary user"
            raise NotOpened(
                f"it has no mode {self._mode}: {offered}{root if os.geteuid() == 0 else ''}"
            )
        target = {"sessionId": session_id}
        if "availableModes" in modes:
            program.call("session/set_mode", {**target, "modeId": self._mode}, within_s)
        else:
            chosen = {"configId": option["id"], "value": self._mode}
            program.call("session/set_config_option", {**target, **chosen}, within_s)


def _end_of(result: Any, error: Exception | None) -> TurnEnd:
    if error is not None:
        return TurnEnd("agent_failed", str(error))
    reason = str(_table(result).get("stopReason") or "")
    if reason == "end_turn":
        return TurnEnd(stop_reason=reason)
    code, detail = _ENDS.get(reason, ("agent_failed", f"it stopped for the reason {reason!r}"))
    return TurnEnd(code, detail, reason)


def _detail(call: Mapping[str, Any]) -> str:
    """All that is known of a tool call: its input, and what is to change."""
    parts = []
    if call.get("rawInput"):
        parts.append(json.dumps(call["rawInput"], ensure_ascii=False, indent=1))
    for one in _tables(call, "content"):
        if one.get("type") == "diff":
            parts.append(f"{one.get('path')}:\n{one.get('newText')}")
        else:
            parts.append(str(_table(one.get("content")).get("text") or ""))
    return "\n".join(filter(None, parts))


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _tables(table: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = table.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
