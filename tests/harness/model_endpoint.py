"""A model endpoint on this machine, for the real tools: it answers what Anthropic's Messages,
OpenAI's Responses and Chat Completions and Gemini's streamGenerateContent are asked.

What it answers follows from the prompt, so that a test decides it:

    p-17                    the answer is `answered p-17`, and lists every such mark of the prompt
    [[tool COMMAND]]        first the model asks to run a command, and answers when it has run
    [[ask QUESTION|A|B]]    first Claude Code's model asks its user to choose A or B
    [[outside COMMAND]]     the same, without the tool's sandbox, where it has one: so it has to ask
    [[hold NAME]]           the answer begins with a line `begun`, and goes on when the test calls
                            `release(NAME)`
    [[silent NAME]]         the same, with nothing before that
    [[long N]]              the answer has N more lines
    [[fail STATUS]]         the request fails with this HTTP status, until `release("fail")`

Everything that was asked is recorded: `turns` has the prompts of the agent itself, without those of
a tool's own side requests, such as one for a title.
"""

import itertools
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

_MARK = re.compile(r"\bp-\d+\b")
_DIRECTIVE = re.compile(r"\[\[(\w+) ([^\]]+)\]\]")
_SHELLS = ("Bash", "bash", "exec_command", "shell_command", "shell", "run_shell_command")
"""The names under which tools offer to run a command."""
_CALLS = ("tool", "outside", "ask")
"""The directives that are tool calls."""
_HELD_S = 60.0
_IDS = itertools.count(1)


class Turn(NamedTuple):
    """One request of an agent for the next step of its turn."""

    api: str
    prompt: str
    ran: int
    """How many tool calls have come back since the prompt."""
    last_result: str


class _Asked(NamedTuple):
    turn: Turn
    tools: list[dict[str, Any]]


class ModelEndpoint:
    """The endpoint, on a port of its own. `env` has what makes a tool use it."""

    def __init__(self) -> None:
        self._mutex = threading.Condition()
        self._turns: list[Turn] = []
        self._released: set[str] = set()
        endpoint = self

        class Handler(_Handler):
            model = endpoint

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def __enter__(self) -> "ModelEndpoint":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._mutex:
            self._released.add("*")
            self._mutex.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def turns(self) -> list[Turn]:
        with self._mutex:
            return list(self._turns)

    def prompts(self) -> list[str]:
        """The prompts of the agent, each once for each turn that began with it."""
        return [turn.prompt for turn in self.turns if turn.ran == 0]

    def release(self, name: str) -> None:
        """Let the answers that are held under a name go on."""
        with self._mutex:
            self._released.add(name)
            self._mutex.notify_all()

    def hold(self, name: str) -> None:
        """Hold answers under a name again."""
        with self._mutex:
            self._released.discard(name)

    def wait_for(self, text: str, *, ran: int = 0, timeout_s: float = 60.0) -> Turn:
        """Wait until a turn with this text in its prompt has been asked for."""

        def found() -> Turn | None:
            return next((one for one in self._turns if text in one.prompt and one.ran >= ran), None)

        with self._mutex:
            turn = self._mutex.wait_for(found, timeout_s)
        assert turn is not None, f"the model was never asked about {text!r}: {self.prompts()}"
        return turn

    def _record(self, turn: Turn) -> None:
        with self._mutex:
            self._turns.append(turn)
            self._mutex.notify_all()

    def _is_released(self, name: str) -> bool:
        with self._mutex:
            return name in self._released or "*" in self._released

    def _wait_released(self, name: str) -> None:
        with self._mutex:
            self._mutex.wait_for(lambda: {name, "*"} & self._released, _HELD_S)


class _Plan(NamedTuple):
    """What is answered: a command to run, or a text, of which the part before `hold` comes at
    once.
    """

    command: str | None
    text: str
    hold: str | None
    fail: int | None
    silent: str | None = None
    call: str = "tool"


def _plan_of(asked: _Asked, model: ModelEndpoint) -> _Plan:
    prompt, ran = asked.turn.prompt, asked.turn.ran
    directives = _DIRECTIVE.findall(prompt)
    commands = [(name, value) for name, value in directives if name in _CALLS]
    hold = next((value for name, value in directives if name == "hold"), None)
    silent = next((value for name, value in directives if name == "silent"), None)
    fail = next((int(value) for name, value in directives if name == "fail"), None)
    if fail is not None and model._is_released("fail"):
        fail = None
    if ran < len(commands) and asked.tools:
        name, command = commands[ran]
        return _Plan(command, "", None, fail, call=name)
    marks = " ".join(_MARK.findall(prompt)) or "without a mark"
    lines = [f"answered {marks}"]
    lines += [
        f"line {number}"
        for name, value in directives
        if name == "long"
        for number in range(int(value))
    ]
    return _Plan(None, "\n".join(lines), hold, fail, silent)


class _Handler(BaseHTTPRequestHandler):
    model: ModelEndpoint
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._json({}, with_body=False)

    def do_GET(self) -> None:
        self._json({"data": [], "models": []})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            request = json.loads(body or b"{}")
        except ValueError:
            request = {}
        path = self.path.partition("?")[0]
        if path.endswith(("/count_tokens", ":countTokens")):
            self._json({"input_tokens": 10, "totalTokens": 10})
        elif path.endswith("/messages"):
            self._answer("messages", _asked_of_messages(request), request)
        elif path.endswith("/responses"):
            self._answer("responses", _asked_of_responses(request), request)
        elif path.endswith("/chat/completions"):
            self._answer("chat", _asked_of_chat(request), request)
        elif path.endswith((":streamGenerateContent", ":generateContent")):
            stream = path.endswith(":streamGenerateContent")
            self._answer("gemini", _asked_of_gemini(request), {**request, "stream": stream})
        else:
            self._json({})

    def _answer(self, api: str, asked: _Asked, request: dict[str, Any]) -> None:
        if asked.tools:
            self.model._record(asked.turn)
            plan = _plan_of(asked, self.model)
        else:
            # A tool's own request, such as one for a title.
            plan = _Plan(None, "a title", None, None)
        if plan.fail is not None:
            self._json({"error": {"type": "api_error", "message": "planned"}}, status=plan.fail)
            return
        if plan.silent is not None:
            self.model._wait_released(plan.silent)
        events = _FORMATS[api](plan, asked.tools)
        if not request.get("stream"):
            if plan.hold is not None:
                self.model._wait_released(plan.hold)
            self._json(_WHOLE[api](plan))
            return
        self.close_connection = True
        try:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            for event in events:
                if event is None:
                    if plan.hold is not None:
                        self.model._wait_released(plan.hold)
                    continue
                self.wfile.write(event)
                self.wfile.flush()
        except OSError:
            # The tool was interrupted or killed.
            return

    def _json(self, document: object, *, status: int = 200, with_body: bool = True) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if with_body:
            self.wfile.write(data)


def _new_id(kind: str) -> str:
    """Tools join the messages of an agent that have one id."""
    return f"{kind}_{next(_IDS)}"


def _event(document: dict[str, Any], name: str | None = None) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(document)}\n\n".encode()


def _texts(content: object) -> list[str]:
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        return []
    return [str(one["text"]) for one in content if isinstance(one, dict) and "text" in one]


def _is_instruction(text: str) -> bool:
    """Was it added by the tool, and not written by its user?"""
    start = text.lstrip()
    return start.startswith(
        ("<system-reminder", "<session_context", "<environment", "<user_instructions", "# AGENTS")
    )


def _turn(api: str, steps: list[tuple[str, str]]) -> Turn:
    """The turn in the steps of a conversation: each is `user`, `result` or other, with its text."""
    at = max((at for at, (kind, _) in enumerate(steps) if kind == "user"), default=-1)
    results = [text for kind, text in steps[at + 1 :] if kind == "result"]
    return Turn(api, steps[at][1] if steps else "", len(results), results[-1] if results else "")


def _asked_of_messages(request: dict[str, Any]) -> _Asked:
    steps = []
    for message in request.get("messages", []):
        content = message.get("content")
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        for block in blocks:
            if block.get("type") == "tool_result":
                steps.append(("result", " ".join(_texts(block.get("content")))))
            elif message.get("role") == "user" and not _is_instruction(str(block.get("text", ""))):
                # Prompts without an answer between them are blocks of one message.
                steps.append(("user", str(block.get("text", ""))))
    return _Asked(_turn("messages", steps), request.get("tools") or [])


def _asked_of_responses(request: dict[str, Any]) -> _Asked:
    steps = []
    for item in request.get("input", []):
        if item.get("type") in ("function_call_output", "custom_tool_call_output"):
            output = item.get("output")
            steps.append(("result", output if isinstance(output, str) else json.dumps(output)))
        elif item.get("role") == "user":
            texts = [text for text in _texts(item.get("content")) if not _is_instruction(text)]
            if texts:
                steps.append(("user", "\n".join(texts)))
    return _Asked(_turn("responses", steps), request.get("tools") or [])


def _asked_of_chat(request: dict[str, Any]) -> _Asked:
    steps = []
    for message in request.get("messages", []):
        text = "\n".join(one for one in _texts(message.get("content")) if not _is_instruction(one))
        if message.get("role") == "tool":
            steps.append(("result", text))
        elif message.get("role") == "user" and text:
            steps.append(("user", text))
    return _Asked(_turn("chat", steps), request.get("tools") or [])


def _asked_of_gemini(request: dict[str, Any]) -> _Asked:
    steps = []
    for content in request.get("contents", []):
        parts = content.get("parts", [])
        results = [one["functionResponse"] for one in parts if "functionResponse" in one]
        steps += [("result", json.dumps(one.get("response"))) for one in results]
        texts = [text for text in _texts(parts) if not _is_instruction(text)]
        if content.get("role") == "user" and texts and not results:
            steps.append(("user", "\n".join(texts)))
    declared = [
        one for tool in request.get("tools") or [] for one in tool.get("functionDeclarations", [])
    ]
    return _Asked(_turn("gemini", steps), declared)


def _question(text: str) -> dict[str, Any]:
    question, *labels = text.split("|")
    options = [{"label": label, "description": f"take {label}"} for label in labels]
    one = {"question": question, "header": "Choice", "options": options, "multiSelect": False}
    return {"questions": [one]}


def _call(tools: list[dict[str, Any]], plan: _Plan) -> tuple[str, dict[str, Any]]:
    """The name and the arguments of a tool call that runs a command, or asks the user."""
    command = plan.command or ""
    if plan.call == "ask":
        return "AskUserQuestion", _question(command)
    names = [str(tool.get("name") or (tool.get("function") or {}).get("name")) for tool in tools]
    name = next(one for one in _SHELLS if one in names)
    if name == "exec_command":
        outside = {"sandbox_permissions": "require_escalated", "justification": "May it?"}
        return name, {"cmd": command, **(outside if plan.call == "outside" else {})}
    if name == "shell":
        return name, {"command": ["bash", "-lc", command]}
    return name, {"command": command, "description": "as the test says"}


def _messages(plan: _Plan, tools: list[dict[str, Any]]) -> Iterator[bytes | None]:
    usage = {"input_tokens": 10, "output_tokens": 10}
    message: dict[str, Any] = {
        "id": _new_id("msg"),
        "type": "message",
        "role": "assistant",
        "model": "test",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    yield _event({"type": "message_start", "message": message}, "message_start")
    block: dict[str, Any] = {"type": "text", "text": ""}
    pieces: list[dict[str, Any]]
    if plan.command is not None:
        name, arguments = _call(tools, plan)
        block = {"type": "tool_use", "id": f"toolu_{abs(hash(plan.command))}", "name": name}
        block["input"] = {}
        pieces = [{"type": "input_json_delta", "partial_json": json.dumps(arguments)}]
    else:
        pieces = [{"type": "text_delta", "text": piece} for piece in _pieces(plan)]
    start = {"type": "content_block_start", "index": 0, "content_block": block}
    yield _event(start, "content_block_start")
    for number, piece in enumerate(pieces):
        if number == 1:
            yield None
        yield _event(
            {"type": "content_block_delta", "index": 0, "delta": piece}, "content_block_delta"
        )
    yield _event({"type": "content_block_stop", "index": 0}, "content_block_stop")
    why = "end_turn" if plan.command is None else "tool_use"
    delta = {"stop_reason": why, "stop_sequence": None}
    yield _event({"type": "message_delta", "delta": delta, "usage": usage}, "message_delta")
    yield _event({"type": "message_stop"}, "message_stop")


def _responses(plan: _Plan, tools: list[dict[str, Any]]) -> Iterator[bytes | None]:
    response = {"id": _new_id("resp"), "object": "response", "status": "in_progress", "output": []}
    yield _event({"type": "response.created", "response": response}, "response.created")
    item: dict[str, Any]
    if plan.command is not None:
        name, arguments = _call(tools, plan)
        item = {"type": "function_call", "id": "fc_1", "call_id": f"call_{abs(hash(plan.command))}"}
        item |= {"name": name, "arguments": json.dumps(arguments), "status": "completed"}
        yield _event(
            {"type": "response.output_item.added", "output_index": 0, "item": item},
            "response.output_item.added",
        )
    else:
        item = {"type": "message", "id": _new_id("msg"), "role": "assistant", "status": "completed"}
        item["content"] = [{"type": "output_text", "text": plan.text, "annotations": []}]
        added = {**item, "content": [], "status": "in_progress"}
        yield _event(
            {"type": "response.output_item.added", "output_index": 0, "item": added},
            "response.output_item.added",
        )
        for number, piece in enumerate(_pieces(plan)):
            if number == 1:
                yield None
            delta = {"item_id": item["id"], "output_index": 0, "content_index": 0, "delta": piece}
            yield _event(
                {"type": "response.output_text.delta", **delta}, "response.output_text.delta"
            )
    yield _event(
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        "response.output_item.done",
    )
    usage = {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 10,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 20,
    }
    done = {**response, "status": "completed", "output": [item], "usage": usage}
    yield _event({"type": "response.completed", "response": done}, "response.completed")


def _chat(plan: _Plan, tools: list[dict[str, Any]]) -> Iterator[bytes | None]:
    def chunk(delta: dict[str, Any], why: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": why}
        head = {"id": "chat_1", "object": "chat.completion.chunk", "created": 1, "model": "test"}
        return _event({**head, "choices": [choice]})

    yield chunk({"role": "assistant", "content": ""})
    if plan.command is not None:
        name, arguments = _call(tools, plan)
        call = {"index": 0, "id": f"call_{abs(hash(plan.command))}", "type": "function"}
        call["function"] = {"name": name, "arguments": json.dumps(arguments)}
        yield chunk({"tool_calls": [call]})
        yield chunk({}, "tool_calls")
    else:
        for number, piece in enumerate(_pieces(plan)):
            if number == 1:
                yield None
            yield chunk({"content": piece})
        yield chunk({}, "stop")
    yield b"data: [DONE]\n\n"


def _gemini(plan: _Plan, tools: list[dict[str, Any]]) -> Iterator[bytes | None]:
    if plan.command is not None:
        name, arguments = _call(tools, plan)
        yield _event(_candidate({"functionCall": {"name": name, "args": arguments}}, "STOP"))
        return
    pieces = _pieces(plan)
    for number, piece in enumerate(pieces):
        if number == 1:
            yield None
        last = number == len(pieces) - 1
        yield _event(_candidate({"text": piece}, "STOP" if last else None))


def _candidate(part: dict[str, Any], why: str | None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": [part]}, "index": 0}
    if why is not None:
        candidate["finishReason"] = why
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 10, "totalTokenCount": 20}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "test"}


def _pieces(plan: _Plan) -> list[str]:
    """The text in two parts; an answer is held between them."""
    if plan.hold is None:
        return [plan.text]
    return ["begun\n\n", plan.text]


def _whole_messages(plan: _Plan) -> dict[str, Any]:
    content = [{"type": "text", "text": plan.text}]
    usage = {"input_tokens": 10, "output_tokens": 10}
    head = {"id": _new_id("msg"), "type": "message", "role": "assistant", "model": "test"}
    return {**head, "content": content, "stop_reason": "end_turn", "usage": usage}


def _whole_chat(plan: _Plan) -> dict[str, Any]:
    message = {"role": "assistant", "content": plan.text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
    head = {"id": "chat_1", "object": "chat.completion", "created": 1, "model": "test"}
    return {**head, "choices": [choice], "usage": usage}


def _whole_responses(plan: _Plan) -> dict[str, Any]:
    content = [{"type": "output_text", "text": plan.text, "annotations": []}]
    item = {"type": "message", "id": _new_id("msg"), "role": "assistant", "status": "completed"}
    head = {"id": _new_id("resp"), "object": "response", "status": "completed"}
    return {**head, "output": [{**item, "content": content}]}


def _whole_gemini(plan: _Plan) -> dict[str, Any]:
    return _candidate({"text": plan.text}, "STOP")


_FORMATS = {"messages": _messages, "responses": _responses, "chat": _chat, "gemini": _gemini}
_WHOLE = {
    "messages": _whole_messages,
    "responses": _whole_responses,
    "chat": _whole_chat,
    "gemini": _whole_gemini,
}
