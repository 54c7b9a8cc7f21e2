"""The protocol of `codex app-server`, as its client."""

import json
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
from holdfast.kernel.errors import NotReceived, UpstreamUnavailable
from holdfast.kernel.limits import PROTOCOL_RECEIPT_S

_DECISIONS = {"allow": "accept", "deny": "decline", "allow_always": "acceptForSession"}
_APPROVALS = ("item/commandExecution/requestApproval", "item/fileChange/requestApproval")
_CHANGE_CHARS = 16 << 10
_ALLOW_ALWAYS = Choice(name="allow_always", label="Allow it for this conversation")


class AppServer(AgentProtocol):
    backend = "codex_app_server"

    def __init__(self) -> None:
        self._changes: dict[str, str] = {}
        """By item: what a file change that may be asked about would write."""

    def greet(self, program: RpcProgram, within_s: float) -> None:
        program.call("initialize", {"clientInfo": client_info()}, within_s)
        program.notify("initialized", {})
        account = program.call("account/read", {}, within_s)
        if account.get("requiresOpenaiAuth") and account.get("account") is None:
            raise NotOpened("it needs a login: run `codex login` as this user")

    def open(
        self, program: RpcProgram, folder: str, session_id: str | None, within_s: float
    ) -> Opened:
        if session_id is None:
            started = program.call("thread/start", {"cwd": folder}, within_s)
            return Opened(str(started["thread"]["id"]))
        resume = {"threadId": session_id, "cwd": folder, "excludeTurns": True}
        try:
            program.call("thread/resume", resume, within_s)
        except RpcError as error:
            why = f"the conversation {session_id} cannot be resumed: {error}"
            raise NotOpened(why, lost=True) from None
        return Opened(session_id)

    def prompt(self, program: RpcProgram, session_id: str, text: str, turn: Turn) -> None:
        self._changes.clear()
        params = {"threadId": session_id, "input": [{"type": "text", "text": text}]}
        try:
            program.call(
                "turn/start",
                params,
                PROTOCOL_RECEIPT_S,
                first=lambda result: setattr(turn, "turn_id", str(result["turn"]["id"])),
                once=True,
            )
        except RpcError as error:
            raise UpstreamUnavailable(
                f"the agent did not take the prompt: {error}", outcome="none"
            ) from None
        except NotReceived:
            # It must not begin a turn that nobody waits for.
            program.end("it did not answer `turn/start`")
            raise

    def cancel(self, program: RpcProgram, session_id: str, turn: Turn | None) -> None:
        if turn is None or turn.turn_id is None:
            return
        ids = {"threadId": session_id, "turnId": turn.turn_id}
        program.begin("turn/interrupt", ids, lambda result, error: None)  # noqa: ARG005 - the turn's end tells

    def news(self, session_id: str | None, message: RpcMessage) -> ProtocolNews | None:
        params = message.params
        if params.get("threadId") != session_id:
            return None
        turn_id = params.get("turnId")
        match message.method:
            case "item/agentMessage/delta":
                return ProtocolNews(
                    text=str(params["delta"]), part=str(params["itemId"]), turn=turn_id
                )
            case "item/started" | "item/completed":
                item = params["item"]
                return self._item(item, str(turn_id), message.method == "item/started")
            case "turn/completed":
                turn = params["turn"]
                return ProtocolNews(turn=str(turn["id"]), end=_end_of(turn))
            case "serverRequest/resolved":
                return ProtocolNews(resolved=params["requestId"])
        return None

    def request(self, message: RpcMessage) -> ProtocolRequest | None:
        params = message.params
        if message.method in _APPROVALS:
            return self._approval(params)
        if message.method == "item/permissions/requestApproval":
            return _permissions(params)
        if message.method == "item/tool/requestUserInput":
            return _user_input(params)
        if message.method == "mcpServer/elicitation/request":
            return _elicitation(params)
        return None

    def _item(self, item: dict[str, Any], turn_id: str, started: bool) -> ProtocolNews | None:
        item_id, kind = str(item["id"]), item["type"]
        if kind == "agentMessage":
            if started:
                return None
            return ProtocolNews(text=str(item["text"]), part=item_id, whole=True, turn=turn_id)
        if kind == "fileChange":
            changes = item.get("changes") or []
            text = "\n".join(f"{one['path']}\n{one['diff']}" for one in changes)
            self._changes[item_id] = text[:_CHANGE_CHARS]
            what = "edit " + " ".join(str(one["path"]) for one in changes)
        elif kind in ("commandExecution", "mcpToolCall", "webSearch", "dynamicToolCall"):
            what = str(item.get("command") or item.get("query") or item.get("tool") or kind)
        else:
            return None
        return ProtocolNews(call=item_id, activity=what if started else "", turn=turn_id)

    def _approval(self, params: dict[str, Any]) -> ProtocolRequest:
        changes = self._changes.get(str(params.get("itemId")), "")
        network = params.get("networkApprovalContext") or {}
        subject = str(
            params.get("command")
            or (f"network access to {network['host']}" if network.get("host") else "")
            or f"change {changes.partition(chr(10))[0] or 'files'}"
        )
        details = [
            str(params.get("reason") or ""),
            f"in {params['cwd']}" if params.get("cwd") else "",
        ]
        question = ProtocolQuestion(
            "decision",
            "permission",
            subject,
            "\n".join(filter(None, [*details, changes])),
            (ALLOW, DENY, _ALLOW_ALWAYS),
        )

        def result(replies: Mapping[str, str]) -> dict[str, Any]:
            return {"decision": _DECISIONS[replies.get("decision", DENY.name)]}

        return ProtocolRequest((question,), result, {"decision": "cancel"})


def _permissions(params: dict[str, Any]) -> ProtocolRequest:
    asked = params.get("permissions") or {}
    question = ProtocolQuestion(
        "decision",
        "permission",
        str(params.get("reason") or "more permissions"),
        json.dumps(asked, ensure_ascii=False, indent=1),
        (ALLOW, DENY, _ALLOW_ALWAYS),
    )

    def result(replies: Mapping[str, str]) -> dict[str, Any]:
        reply = replies.get("decision", DENY.name)
        if reply == DENY.name:
            return {"permissions": {}}
        return {"permissions": asked, "scope": "session" if reply == "allow_always" else "turn"}

    return ProtocolRequest((question,), result, {"permissions": {}})


def _user_input(params: dict[str, Any]) -> ProtocolRequest:
    """Each of its questions is one of ours; they are answered together."""
    questions = []
    for one in params.get("questions") or []:
        options = one.get("options") or []
        choices = [
            Choice(name=str(option["label"]), label=str(option.get("description") or ""))
            for option in options
        ]
        # Without options any text is an answer; the choice says how to give none.
        none = Choice(name="none", label="Give no answer")
        questions.append(
            ProtocolQuestion(
                str(one["id"]),
                "choice",
                str(one["question"]),
                str(one["question"]),
                tuple(choices or [none]),
                free_text=not choices or bool(one.get("isOther")),
            )
        )

    def result(replies: Mapping[str, str]) -> dict[str, Any]:
        return {"answers": {key: {"answers": [reply]} for key, reply in replies.items()}}

    return ProtocolRequest(tuple(questions), result, {"answers": {}})


def _elicitation(params: dict[str, Any]) -> ProtocolRequest:
    """A request of an MCP server. One that wants more than a yes or no is refused."""
    schema = params.get("requestedSchema") or {}
    declined = {"action": "decline", "content": None}
    wants_more = params.get("mode", "form") != "form" or bool(schema.get("required"))
    question = ProtocolQuestion(
        "decision",
        "permission",
        str(params.get("message") or "a request of an MCP server"),
        str(params.get("serverName") or ""),
        (ALLOW, DENY),
    )

    def result(replies: Mapping[str, str]) -> dict[str, Any]:
        allowed = replies.get("decision") == ALLOW.name
        return {"action": "accept", "content": {}} if allowed else declined

    return ProtocolRequest(() if wants_more else (question,), result, declined)


def _end_of(turn: dict[str, Any]) -> TurnEnd:
    status = str(turn.get("status"))
    if status == "completed":
        return TurnEnd(stop_reason=status)
    if status == "interrupted":
        return TurnEnd("interrupted", "it was cancelled", status)
    error = turn.get("error") or {}
    return TurnEnd("agent_failed", str(error.get("message") or f"its turn is {status}"), status)
